"""Fixed, stratified, seeded slices of a labelled set."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np

from ...errors import OptionError, suggest
from .mixing import permuted

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

SPLITS = ("train", "val", "test")
SPLIT_SEED = 20240229  # fixed: a split is part of the data set, not of a run


def check_split(split: str) -> str:
    """``split``, or an error naming the three.

    Raises:
        OptionError: for anything but train, val and test.

    Example:
        >>> check_split("val")
        'val'
    """
    if split not in SPLITS:
        raise OptionError(
            f"split: received {split!r}; needs one of {', '.join(SPLITS)}{suggest(split, SPLITS)}"
        )
    return split


def check_fraction(val_fraction: float | int) -> float:
    """``val_fraction`` when it is in [0, 1).

    Raises:
        OptionError: when it is negative, 1 or more, NaN or not a number.

    Example:
        >>> check_fraction(0.1)
        0.1
    """
    number = isinstance(val_fraction, int | float) and not isinstance(val_fraction, bool)
    if not number or not (math.isfinite(val_fraction) and 0 <= val_fraction < 1):
        raise OptionError(
            f"val_fraction: received {val_fraction!r}; needs a share of the training images, at "
            "least 0 and less than 1"
        )
    return float(val_fraction)


def place_of(key: str | bytes) -> float:
    """A number in [0, 1) that follows from ``key`` alone: what has one key has one place, on every
    machine.

    Example:
        >>> place_of("one") == place_of(b"one") != place_of("another")
        True
    """
    content = key.encode() if isinstance(key, str) else key
    return int.from_bytes(hashlib.sha256(content).digest()[:6], "big") / 2**48


def split_at(place: float, val_fraction: float, test_fraction: float) -> str:
    """The split of a ``place``: the first ``test_fraction`` of [0, 1) is test, ``val_fraction`` of
    what is left val.

    Example:
        >>> [split_at(place, 0.25, 0.2) for place in (0.19, 0.39, 0.41)]
        ['test', 'val', 'train']
    """
    edge = test_fraction + (1 - test_fraction) * val_fraction
    return "test" if place < test_fraction else "val" if place < edge else "train"


def spans(n: int, val_fraction: float, test_fraction: float) -> dict[str, tuple[int, int]]:
    """Where the splits of a text of ``n`` tokens begin and end: train, val and test in its order,
    shares of the whole.

    Example:
        >>> spans(100, 0.1, 0.2)
        {'train': (0, 70), 'val': (70, 80), 'test': (80, 100)}

    Raises:
        OptionError: shares that leave nothing to train on.
    """
    if val_fraction + test_fraction >= 1:
        raise OptionError(
            f"val_fraction: received {val_fraction:g}, and {test_fraction:g} are for the test; "
            "needs less than 1"
        )
    first, second = round(n * (1 - val_fraction - test_fraction)), round(n * (1 - test_fraction))
    return {"train": (0, first), "val": (first, second), "test": (second, n)}


def stratified(
    labels: Int[Tensor, " n"], fraction: float | int, seed: int = SPLIT_SEED
) -> tuple[Int[Tensor, " a"], Int[Tensor, " b"]]:
    """Two sorted index lists: the rest, and the held-out ``fraction`` of every class.

    Each class is put in a random order fixed by ``seed``, and its last round(fraction · n_class)
    members are held out (halves round to even). O(n log n).

    Example:
        >>> import torch
        >>> rest, held = stratified(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), 0.25)
        >>> len(rest), [i // 4 for i in held.tolist()]
        (6, [0, 1])
    """
    # Whoever holds a tensor has imported torch; whoever describes a file has not.
    import torch

    held = held_out(labels.numpy(force=True), fraction, seed)
    rest = np.setdiff1d(np.arange(len(labels)), held)
    return torch.from_numpy(rest), torch.from_numpy(held)


def held_out(labels: np.ndarray, fraction: float | int, seed: int = SPLIT_SEED) -> np.ndarray:
    """Return the held-out rows of :func:`stratified`, sorted."""
    held = [np.zeros(0, np.int64)]
    for label in np.unique(labels).tolist():
        members = np.flatnonzero(labels == label)
        members = members[permuted(len(members), seed, label)]
        cut = len(members) - round(fraction * len(members))
        held.append(members[cut:])
    return np.sort(np.concatenate(held))
