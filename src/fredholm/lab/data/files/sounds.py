"""Sounds in ``.wav`` files, one folder per class or named by a table: series with a clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError

SUFFIXES = frozenset({".wav"})


def read_whole_sound(file: Path) -> tuple[np.ndarray, int]:
    """Return a sound (samples, channels) and its rate.

    Raises:
        DataError: a file that cannot be read or holds no sample.
    """
    from ..audio import read_sound  # imports torch, which tables do without

    sound, rate = read_sound(file)
    if not len(sound):
        raise DataError(f"{file}: holds no sample; remove it")
    return sound, rate


def sounds_of(
    files: Sequence[Path], sounds: Sequence[tuple[np.ndarray, int]], labelled: bool
) -> dict[str, Any]:
    """The ``samples``, ``times`` in seconds and ``channels`` of a collection of sounds; those that
    are learned from have one rate.

    Raises:
        DataError: other channels than the first file has, or another rate to learn from.
    """
    samples, rates = [], []
    for file, (sound, rate) in zip(files, sounds):
        first, width = (rates[0], samples[0].shape[1]) if samples else (rate, sound.shape[1])
        if sound.shape[1] != width:
            raise DataError(
                f"{file}: {sound.shape[1]} channels; {files[0]} has {width}; bring all to the same"
            )
        if labelled and rate != first:
            raise DataError(
                f"{file}: {rate:,} samples a second; {files[0]} has {first:,}; a model learns from "
                "one rate: convert them"
            )
        samples.append(sound)
        rates.append(rate)
    width = samples[0].shape[1]
    names = ("sound",) if width == 1 else tuple(f"channel {i + 1}" for i in range(width))
    return {"samples": samples, "times": _clocks(samples, rates), "channels": names}


def _clocks(samples: Sequence[np.ndarray], rates: Sequence[int]) -> list[np.ndarray]:
    """When each sample was taken; sounds of one rate have the same numbers in memory."""
    longest = np.arange(max(map(len, samples)), dtype=np.float64)
    clocks = {rate: longest / rate for rate in set(rates)}
    return [clocks[rate][: len(sound)] for sound, rate in zip(samples, rates)]
