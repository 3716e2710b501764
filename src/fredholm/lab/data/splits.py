"""Splits of a data set: fixed, stratified and seeded."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from ...errors import OptionError, suggest
from .mixing import permuted

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

SPLITS = ("train", "val", "test")
# Constant, since a split is part of the data set, not of a run.
SPLIT_SEED = 20240229


def check_split(split: str) -> str:
    """Return ``split`` if it is one of the three.

    Raises:
        OptionError: anything but train, val and test.

    Example:
        >>> check_split("val")
        'val'
    """
    if split not in SPLITS:
        raise OptionError(
            f"split: expected one of {', '.join(SPLITS)}, got {split!r}{suggest(split, SPLITS)}"
        )
    return split


def check_fraction(val_fraction: float | int) -> float:
    """Return ``val_fraction`` if it is in [0, 1).

    Raises:
        OptionError: it is negative, 1 or more, NaN or not a number.

    Example:
        >>> check_fraction(0.1)
        0.1
    """
    number = isinstance(val_fraction, int | float) and not isinstance(val_fraction, bool)
    # NaN is not in any interval.
    if not number or not 0 <= val_fraction < 1:
        raise OptionError(
            "val_fraction: expected a share of the training samples, at least 0 and less than 1, "
            f"got {val_fraction!r}; such as 0.1"
        )
    return float(val_fraction)


def place_of(key: str | bytes) -> float:
    """Return a number in [0, 1) that follows from ``key`` alone, the same on every machine.

    Example:
        >>> place_of("one") == place_of(b"one") != place_of("another")
        True
    """
    if isinstance(key, str):
        key = key.encode()
    digest = hashlib.sha256(key).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def split_at(place: float, val_fraction: float, test_fraction: float) -> str:
    """Return the split of a ``place``: the first ``test_fraction`` of [0, 1) is test,
    ``val_fraction`` of the rest val.

    Example:
        >>> [split_at(place, 0.25, 0.2) for place in (0.19, 0.39, 0.41)]
        ['test', 'val', 'train']
    """
    if place < test_fraction:
        return "test"
    edge = test_fraction + (1 - test_fraction) * val_fraction
    if place < edge:
        return "val"
    return "train"


def spans(
    n: int,
    val_fraction: float,
    test_fraction: float,
) -> dict[str, tuple[int, int]]:
    """Return (start, stop) of the splits of a text of ``n`` tokens: train, val and test in its
    order, as shares of the complete text.

    Example:
        >>> spans(100, 0.1, 0.2)
        {'train': (0, 70), 'val': (70, 80), 'test': (80, 100)}

    Raises:
        OptionError: shares that leave nothing to train on.
    """
    if val_fraction + test_fraction >= 1:
        raise OptionError(
            f"val_fraction: expected less than {1 - test_fraction:g}, since {test_fraction:g} are "
            f"for the test, got {val_fraction:g}; reduce it"
        )
    first = round(n * (1 - val_fraction - test_fraction))
    second = round(n * (1 - test_fraction))
    return {
        "train": (0, first),
        "val": (first, second),
        "test": (second, n),
    }


def stratified(
    labels: Int[Tensor, " n"],
    fraction: float | int,
    seed: int = SPLIT_SEED,
) -> tuple[Int[Tensor, " a"], Int[Tensor, " b"]]:
    """Return two sorted index lists: the rest, and the held-out ``fraction`` of every class.

    Each class is put in a random order fixed by ``seed``, and its last round(fraction · n_class)
    members are held out (halves round to even). O(n log n).

    Example:
        >>> import torch
        >>> rest, held = stratified(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), 0.25)
        >>> len(rest), [i // 4 for i in held.tolist()]
        (6, [0, 1])
    """
    held = held_out(labels.numpy(force=True), fraction, seed)
    rest = np.setdiff1d(np.arange(len(labels)), held)
    # Made by a tensor: this file doesn't import torch, for which a description of files would wait.
    places = labels.cpu().long()
    return places.new_tensor(rest), places.new_tensor(held)


def held_out(labels: np.ndarray, fraction: float | int, seed: int) -> np.ndarray:
    """Return the held-out rows of :func:`stratified`, sorted."""
    held = [np.zeros(0, np.int64)]
    for label in np.unique(labels).tolist():
        members = np.flatnonzero(labels == label)
        order = permuted(len(members), seed, label)
        count = round(fraction * len(members))
        cut = len(members) - count
        held.append(members[order[cut:]])
    return np.sort(np.concatenate(held))
