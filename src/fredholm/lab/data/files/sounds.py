"""Sounds in ``.wav`` files, one folder per class or named by a table: series with a clock."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ....errors import DataError, require
from .collection import numbered

SUFFIXES = frozenset({".wav"})


def read_sound(
    path: Path, content: bytes | None = None
) -> tuple[Float[np.ndarray, "samples channels"], int]:
    """Return the samples of a WAV file of integers or floats, and how many there are per second.

    Integers are divided by the largest of their size, to lie from -1 to 1.

    Args:
        content: the bytes of the file, where it lies in an archive.

    Raises:
        DataError: a missing, truncated or damaged file, or one of compressed samples.
        MissingExtraError: scipy is not installed.
    """
    wavfile: Any = require("scipy.io.wavfile", "train", "reading sounds")
    source = path if content is None else io.BytesIO(content)
    try:
        with warnings.catch_warnings():
            # scipy only warns of a truncated file, and returns what is there. Unknown chunks are
            # harmless: tools store their settings in them.
            warnings.simplefilter("error", wavfile.WavFileWarning)
            warnings.filterwarnings("ignore", "Chunk ", wavfile.WavFileWarning)
            rate, samples = wavfile.read(source)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; restore it, or correct the path") from error
    except (OSError, ValueError, struct.error, wavfile.WavFileWarning) as error:
        raise DataError(
            f"{path}: expected a complete WAV file of plain samples, got another ({error}); copy "
            "it again if damaged, convert it if of another format"
        ) from error

    if samples.ndim == 1:
        samples = samples[:, None]
    if samples.dtype.kind == "f":
        return samples, int(rate)
    half = 2.0 ** (8 * samples.itemsize - 1)
    # Samples of 8 bits are unsigned: silence is 128.
    if samples.dtype.kind == "u":
        samples = samples - half
    return (samples / half).astype(np.float32), int(rate)


def read_whole_sound(file: Path) -> tuple[np.ndarray, int]:
    """Return a sound (samples, channels) and its rate.

    Raises:
        DataError: a file that cannot be read or holds no sample.
    """
    sound, rate = read_sound(file)
    if not len(sound):
        raise DataError(f"{file}: expected samples, got an empty sound; remove it")
    return sound, rate


def sounds_of(
    files: Sequence[Path],
    sounds: Sequence[tuple[np.ndarray, int]],
    labelled: bool,
) -> dict[str, Any]:
    """Return the ``samples``, ``times`` in seconds and ``channels`` of a collection of sounds.

    Raises:
        DataError: other channels than the first file has; or, in training, another rate.
    """
    first, first_rate = sounds[0]
    width = first.shape[1]
    for file, (sound, rate) in zip(files, sounds):
        if sound.shape[1] != width:
            raise DataError(
                f"{file}: expected {width} channels, as {files[0]} has, got {sound.shape[1]}; "
                "bring all to the same"
            )
        # Rates of sounds to predict are compared with that of training when they are scaled.
        if labelled and rate != first_rate:
            raise DataError(
                f"{file}: expected {first_rate:,} samples per second, as {files[0]} has, got "
                f"{rate:,}; a model learns from one rate: convert them"
            )
    names = ("sound",)
    if width > 1:
        names = numbered("channel", width)

    # Sounds of one rate share the numbers of their clocks in memory.
    longest = np.arange(max(len(sound) for sound, _ in sounds), dtype=np.float64)
    clocks = {rate: longest / rate for rate in {rate for _, rate in sounds}}
    return {
        "samples": [sound for sound, _ in sounds],
        "times": [clocks[rate][: len(sound)] for sound, rate in sounds],
        "channels": names,
    }
