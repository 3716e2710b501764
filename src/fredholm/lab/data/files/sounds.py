"""Sounds in ``.wav`` files, one folder per class or named by a table: series with a clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from ..audio import read_sound
from .collection import numbered

SUFFIXES = frozenset({".wav"})


def read_whole_sound(file: Path) -> tuple[np.ndarray, int]:
    """Return a sound (samples, channels) and its rate.

    Raises:
        DataError: a file that cannot be read or holds no sample.
    """
    sound, rate = read_sound(file)
    if not len(sound):
        raise DataError(f"{file}: holds no sample; remove it")
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
