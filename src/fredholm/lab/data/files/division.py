"""Training, validation and test: as the files say, else stratified, by groups or by time."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ....errors import DataError
from ..mixing import permuted
from ..splits import SPLIT_SEED, held_out
from .casts import Coded
from .collection import PART_NAMES, TEST, TRAIN, VAL, Collection
from .suffixes import stem_of

# Strata of a regression's targets, so that each split has small and large ones.
BINS = 10
FOLDS = 20  # most folds that groups are divided into
TOLERANCE = 0.05  # largest difference from the share asked for that is not reported


def divide(collection: Collection, val: float) -> np.ndarray:
    """Return TRAIN, VAL or TEST of each sample, the same for the same files and seed.

    If the files hold two sets, the second is the test set. With ``val=0``, no further samples are
    held out for validation.

    Raises:
        DataError: too few samples, groups or times, or nothing that is called train.
    """
    parts = collection.parts
    if parts is None:
        parts = np.full(len(collection), TRAIN, np.int8)
        everything = np.arange(len(collection))
        held = _held(collection, everything, collection.reading.test, "test")
        parts[held] = TEST
    else:
        if not (parts == TRAIN).any():
            raise DataError(
                f"{collection.name}: its files (or folders of files) are called test or val, and "
                "none train: none is left for training; rename one, or give one file by itself"
            )
        parts = parts.copy()
        if not (parts == TEST).any():
            parts[parts == VAL] = TEST

    if val and not (parts == VAL).any():
        training = np.flatnonzero(parts == TRAIN)
        held = _held(collection, training, val, "validation")
        parts[training[held]] = VAL

    names = {TRAIN: "training", VAL: "validation", TEST: "test"}
    if not val:
        del names[VAL]
    for number, name in names.items():
        if not (parts == number).any():
            raise DataError(
                f"{collection.name}: {len(collection)} samples leave none for {name}; add samples"
            )
    return parts


def divided_groups(collection: Collection, parts: np.ndarray) -> list[str]:
    """Return a remark on groups in several parts, as files called train and test may have them."""
    if collection.groups is None:
        return []
    pairs = np.stack([collection.groups, parts], 1)
    pairs = np.unique(pairs, axis=0)
    _, counts = np.unique(pairs[:, 0], return_counts=True)
    divided = int((counts > 1).sum())
    if not divided:
        return []
    return [
        f"{divided:,} of {len(counts):,} values of {collection.reading.group!r} "
        "are in several parts, as the files are called: the test does not tell how new ones are "
        "answered; to divide by them, give one file"
    ]


def other_shares(
    collection: Collection,
    parts: np.ndarray,
    val: float,
) -> list[str]:
    """Return remarks on sets whose share differs from the one asked for.

    Whole groups, or all samples of one time, are held out together: other shares are impossible.
    """
    why = {
        "group": f"each value of {collection.reading.group!r} stays in one split",
        "time": "samples of one time stay in one split",
    }
    rule = collection.reading.split
    if rule not in why:
        return []

    given = collection.parts
    learned = parts != TEST
    sets = []
    if given is None:
        sets.append(("test", collection.reading.test, parts == TEST, len(parts)))
    # Of three sets in the files, none is divided here.
    if val and (given is None or len(np.unique(given)) < 3):
        sets.append(("validation", val, parts == VAL, int(learned.sum())))
    remarks = []
    for name, asked, members, count in sets:
        share = members.sum() / count
        if abs(share - asked) > TOLERANCE:
            remarks.append(
                f"the {name} set holds {share:.0%} of the samples it is taken from, where "
                f"{asked:.0%} were asked for: {why[rule]}"
            )
    return remarks


def _held(
    collection: Collection,
    rows: np.ndarray,
    share: float,
    what: str,
) -> np.ndarray:
    """Return the places in ``rows`` of the samples that are held out."""
    reading = collection.reading
    if reading.split == "group":
        return _groups(collection, rows, share, what)
    if reading.split == "time":
        return _latest(collection, rows, share, what)

    seed = SPLIT_SEED + reading.seed
    strata = _strata(collection, rows)
    held = held_out(strata, share, seed)
    # Where every class is too small to give one up, some are held out of all samples together.
    if not len(held) and len(rows) > 1:
        count = max(1, round(share * len(rows)))
        order = permuted(len(rows), seed)
        held = np.sort(order[:count])
    return held


def _strata(collection: Collection, rows: np.ndarray) -> np.ndarray:
    """Return the stratum of each sample: its class, or the tenth of a regression's target."""
    labels = collection.labels
    if collection.kind == "fields" or collection.steps is not None:
        return np.zeros(len(rows), np.int64)
    if isinstance(labels, Coded):
        return labels.codes[rows].astype(np.int64)

    values = labels[rows]
    bins = min(BINS, max(1, len(rows) // BINS))
    shares = np.linspace(0, 1, bins + 1)
    edges = np.quantile(values, shares[1:-1])
    strata = np.searchsorted(edges, values)
    return strata.astype(np.int64)


def _groups(
    collection: Collection,
    rows: np.ndarray,
    share: float,
    what: str,
) -> np.ndarray:
    """Return the samples of whole groups: those that keep the shares of the classes best."""
    labels = collection.labels
    seed = collection.reading.seed
    if collection.groups is None:
        raise DataError(
            f"{collection.name}: expected groups to divide by, got none; name their column: group"
        )
    groups = collection.groups[rows]
    count = len(np.unique(groups))
    _check_count(collection, f"values of {collection.reading.group!r}", count, what)
    if isinstance(labels, Coded) and collection.steps is None:
        held = _stratified_groups(labels.codes[rows], groups, share, seed)
        if len(held):
            return held
    return _random_groups(groups, share, seed)


def _check_count(
    collection: Collection,
    things: str,
    count: int,
    what: str,
) -> None:
    """Refuse to divide by one group or time."""
    if count < 2:
        raise DataError(
            f"{collection.name}: expected three {things} or more to divide by, got {count} for "
            f"{what}; add some"
        )


def _stratified_groups(
    codes: np.ndarray,
    groups: np.ndarray,
    share: float,
    seed: int,
) -> np.ndarray:
    """Return samples of whole groups, about ``share`` of each class; none if groups or samples are
    too few for that.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    # With fewer samples than folds in every class, no class could be in each fold.
    most = min(len(np.unique(groups)), int(np.bincount(codes).max()))
    fewest = max(2, round(1 / share))
    if most < fewest:
        return np.zeros(0, np.int64)
    folds, chosen = _folds(share, fewest, most)
    by_class = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # A class with fewer samples than folds is missing from some folds.
        warnings.simplefilter("ignore")
        parts = [held for _, held in by_class.split(codes, codes, groups)]
    return np.sort(np.concatenate(parts[:chosen]))


def _folds(share: float, fewest: int, most: int) -> tuple[int, int]:
    """Return a number of folds and how many of them to hold out, next to ``share`` of all.

    Example:
        >>> [_folds(share, max(2, round(1 / share)), 50) for share in (0.2, 0.3, 0.4, 0.6, 0.04)]
        [(5, 1), (10, 3), (5, 2), (5, 3), (25, 1)]
    """
    numbers = {fewest, *range(2, min(most, FOLDS) + 1)}
    best = (fewest, 1)
    for folds in sorted(numbers):
        chosen = min(folds - 1, max(1, round(share * folds)))
        if abs(chosen / folds - share) < abs(best[1] / best[0] - share):
            best = (folds, chosen)
    return best


def _random_groups(groups: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return the samples of random groups, with a number of samples next to ``share`` of all."""
    _, numbers, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    # This generator gives runs of earlier versions the same groups again.
    order = np.random.RandomState(seed).permutation(len(sizes))
    held = np.cumsum(sizes[order])[:-1]
    number = np.abs(held - share * len(groups)).argmin()
    return np.flatnonzero(np.isin(numbers, order[: number + 1]))


def _latest(
    collection: Collection,
    rows: np.ndarray,
    share: float,
    what: str,
) -> np.ndarray:
    """Return the latest samples: a model is tested on what comes after its training.

    Samples of one time are not divided.
    """
    if collection.order is None:
        raise DataError(
            f"{collection.name}: expected times to divide by, got none; name their column: time"
        )
    odd = ~np.isfinite(collection.order)
    if odd.any():
        number = int(odd.argmax())
        raise DataError(
            f"{collection.where(number)}: has no time, by which the samples are "
            "divided; give it one, or leave it out"
        )
    times = collection.order[rows]
    order = np.argsort(times, kind="stable")
    # The place of the first sample of each time, but for the earliest time.
    changes = np.flatnonzero(np.diff(times[order])) + 1
    _check_count(collection, "different times", len(changes) + 1, what)
    first = len(rows) - max(1, round(share * len(rows)))
    nearest = changes[np.abs(changes - first).argmin()]
    return np.sort(order[nearest:])


# --- by the names of files -----------------------------------------------------------------------


def part_of(path: Path) -> int | None:
    """Return the split that the name of a file or folder tells.

    Example:
        >>> part_of(Path("GunPoint_TEST.ts")), part_of(Path("train.csv")), part_of(Path("a.csv"))
        (2, 0, None)
    """
    name = stem_of(path).lower().replace("-", "_")
    words = name.split("_")
    return PART_NAMES.get(words[-1])


def named_parts(files: Sequence[Path]) -> list[int | None]:
    """Return the split of each file by its name, or by a folder's below the files' common folder.

    Example:
        >>> named_parts([Path("a/train/1.csv"), Path("a/test/more/2.csv"), Path("a/val.csv")])
        [0, 2, 1]
        >>> named_parts([Path("a/train/1.csv"), Path("a/train/2.csv")])
        [None, None]
    """
    root = os.path.commonpath([file.parent for file in files])
    parts = []
    for file in files:
        folders = [part.lower() for part in file.parent.relative_to(root).parts]
        part = part_of(file)
        # The innermost folder decides, as in test/deep/train/1.csv.
        for name in reversed(folders):
            if part is None:
                part = PART_NAMES.get(name)
        parts.append(part)
    return parts


def parts_of(files: Sequence[Path], counts: Sequence[int]) -> np.ndarray | None:
    """Return the split of each sample by the names of files and folders; None without such names.

    The name of a single file tells nothing: all of its samples would be test samples.

    Raises:
        DataError: some files are called so and others are not.
    """
    parts = named_parts(files)
    if len(files) == 1 or all(part is None for part in parts):
        return None
    if None in parts:
        odd = files[parts.index(None)]
        raise DataError(
            f"{odd}: expected only files (or folders of files) called train, val or test, got "
            "another one among them; rename it, or move it to another folder"
        )
    return np.repeat(np.array(parts, np.int8), counts)
