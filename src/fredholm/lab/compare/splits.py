"""Samples that contenders are trained and judged on.

These are the recipe's own splits. Where validation would have few samples, parts of the training
samples take turns instead (cross-validation).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

from ..data import limit_samples
from ..data.files import open_files
from ..data.files.casts import Coded
from ..data.files.collection import TEST, VAL
from ..data.files.source import Source
from ..data.kinds.texts import TextOptions
from ..training.build import build_dataset, data_arguments, with_metric
from ..training.own_files import data_mark
from ..training.recipe import Recipe

# Validation samples below which a single split is too uncertain, and the folds that replace it.
FEW = 200
FOLDS = 5

# A trial is judged on at most this many validation samples.
MAX_VALIDATION_SAMPLES = 1000


class Samples(NamedTuple):
    """Samples that a method is fitted to.

    Attributes:
        dataset: the samples.
        words: which they are, in words.
    """

    dataset: Any
    words: str


class Splits:
    """Data sets of a recipe; ``fold(k)`` returns the training and validation samples of a trial.

    If validation has fewer than :data:`FEW` samples, and the user's files leave its choice open,
    all samples except those of the test split are divided into :data:`FOLDS` parts. Fold k is
    judged on the k-th part and scaled by the others; a group lies in one part. Only :attr:`test`
    and :meth:`tested` read the test split.

    Args:
        recipe: shared by all contenders.
        source: samples in memory, instead of those that the recipe names.
    """

    def __init__(self, recipe: Recipe, source: Source | None = None):
        self.recipe = recipe
        self._given = source
        self.train = self._read("train")
        self.val = self._read("val")

    def _read(self, part: str) -> Any:
        """Return the samples of a split, to be judged by the recipe's metric if it names one."""
        if self._given is None:
            return build_dataset(self.recipe, part)
        found = self._given.dataset(part, image_size=self._size)
        return with_metric(self.recipe, found)

    def _subset(
        self,
        source: Source,
        part: str,
        chosen: np.ndarray,
        **known: Any,
    ) -> Any:
        found = source.subset(
            part,
            chosen,
            image_size=self._size,
            **known,
        )
        return with_metric(self.recipe, found)

    def samples_to_fit(self) -> Samples:
        """Return the samples that the recommended method is fitted to.

        They are all samples of files except those of the test split, and otherwise the training
        split.
        """
        if self.recipe.data.name != "files" or self.recipe.data.limit is not None:
            return Samples(self.train, "training samples")
        known = {}
        if self.train.kind.worded:
            # Texts keep the vocabulary of the training split, from which the trials learned.
            known["text"] = TextOptions(
                max_length=self.train.max_length,
                vocabulary=self.train.vocabulary,
            )
        found = self._subset(self._source, "train", self._pool, **known)
        return Samples(found, "training and validation samples")

    @cached_property
    def mark(self) -> str | None:
        """A hash of the user's files, which changes when they do; None without files."""
        return data_mark(self.recipe)

    @property
    def _size(self) -> tuple[int, int] | None:
        size = self.recipe.data.image_size
        if size is None:
            return None
        return size[0], size[1]

    @cached_property
    def test(self) -> Any:
        """The test split."""
        return self._read("test")

    @cached_property
    def folds(self) -> int:
        """Number of different validation splits."""
        return len(self._parts) or 1

    @cache  # noqa: B019  an object lives as long as its search
    def fold(self, number: int) -> tuple[Any, Any]:
        """Return the training and validation samples of a fold; after the last comes the first."""
        if not self._parts:
            return self.train, limit_samples(self.val, MAX_VALIDATION_SAMPLES)
        number %= len(self._parts)
        source = self._fitted(number)
        train = self._subset(source, "train", source.training)
        val = self._subset(source, "val", self._parts[number])
        return train, val

    def tested(self, number: int) -> Any:
        """Return the test split in the scales and units of a fold's training samples."""
        whole = self.test
        if not self._parts:
            return whole
        source = self._fitted(number % len(self._parts))
        tested = np.flatnonzero(source.parts == TEST)
        return self._subset(source, "test", tested)

    @cache  # noqa: B019
    def _fitted(self, number: int) -> Any:
        """Return the samples scaled by those that a fold trains on, not by those that judge it."""
        training = np.setdiff1d(self._pool, self._parts[number])
        return self._source.trained_on(training)

    @cached_property
    def _source(self) -> Any:
        """The user's files or samples, read once."""
        if self._given is not None:
            return self._given
        arguments = data_arguments(self.recipe)
        shares = {}
        if self.recipe.data.val_fraction:
            shares["val"] = self.recipe.data.val_fraction
        return open_files(
            arguments["path"],
            arguments["options"],
            **shares,
        )

    @property
    def _pool(self) -> np.ndarray:
        """Indices of all samples except those of the test split."""
        return np.flatnonzero(self._source.parts != TEST)

    @cached_property
    def _parts(self) -> list[np.ndarray]:
        """Samples that each fold is judged on; empty if there is a single split."""
        data = self.recipe.data
        if data.name != "files" or data.limit is not None:
            return []
        if len(self.val) >= FEW:
            return []

        # A user's own division of the samples stays, and so does an order in time. A vocabulary
        # would have to be made anew for each fold.
        collection = self._source.collection
        parts = collection.parts
        if parts is not None and (parts == VAL).any() and (parts == TEST).any():
            return []
        if self.val.kind.worded or collection.reading.split == "time":
            return []

        pool = self._pool
        if len(pool) < 2 * FOLDS:
            return []
        return _divided(collection, pool)


def _divided(collection: Any, pool: np.ndarray) -> list[np.ndarray]:
    """Divide the pool into :data:`FOLDS` parts of about equal size, each with its share of every
    class, and no group in two.

    Returns no parts if classes or groups are too few for that; the single split is used then.

    Args:
        collection: the user's files.
        pool: indices (n,) of the samples to divide: all but the test split.

    Returns:
        Indices of the samples of each part, which one fold is judged on. They are disjoint, and the
        same at each call.
    """
    # A fixed seed, so that a search that continues has the same folds.
    shuffled: dict[str, Any] = {
        "n_splits": FOLDS,
        "shuffle": True,
        "random_state": 0,
    }
    labels = collection.labels

    # Only samples with one class each can be stratified: not numbers, and not series with a class
    # at every point. A class of one sample would be missing from the training samples of the fold
    # that is judged on it; and scikit-learn refuses to stratify where every class has fewer
    # samples than there are folds.
    codes = None
    if isinstance(labels, Coded) and collection.steps is None:
        codes = labels.codes[pool]
        members = np.bincount(codes)[np.unique(codes)]
        if members.min() < 2 or members.max() < FOLDS:
            return []

    # Groups are kept together if the user asked for it, so every fold needs one at least.
    groups = None
    if collection.reading.split == "group":
        groups = collection.groups[pool]
        if len(np.unique(groups)) < FOLDS:
            return []

    splitter: Any
    if groups is not None and codes is not None:
        splitter = StratifiedGroupKFold(**shuffled)
    elif groups is not None:
        splitter = GroupKFold(FOLDS)
    elif codes is not None:
        splitter = StratifiedKFold(**shuffled)
    else:
        splitter = KFold(**shuffled)

    with warnings.catch_warnings():
        # A class with fewer samples than folds is missing from some parts, and scikit-learn warns.
        warnings.simplefilter("ignore")
        parts = [pool[held] for _, held in splitter.split(pool, codes, groups)]

    # Large groups may leave a part without any samples.
    if not all(map(len, parts)):
        return []
    return parts


def batches(dataset: Any, size: int) -> Iterator[Any]:
    """Iterate over all samples in order, as batches of (inputs, labels)."""
    for start in range(0, len(dataset), size):
        stop = min(start + size, len(dataset))
        yield dataset.batch(torch.arange(start, stop))
