"""Samples of a WAV file."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ...errors import DataError, require


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
