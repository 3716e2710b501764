"""What contenders are trained and judged on: the recipe's own validation split, or, of few samples,
a part of the training samples in turn.
"""

from __future__ import annotations

import warnings
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch

from ..data import limit_samples
from ..data.files import open_files
from ..data.files.casts import Coded
from ..data.files.source import Source
from ..data.kinds.texts import TextOptions
from ..training.build import build_dataset, data_arguments, with_metric
from ..training.own_files import data_mark
from ..training.recipe import Recipe

FEW = 200  # validation samples, below which one part of the samples says too little
FOLDS = 5
JUDGED = 1000  # validation samples that a trial is judged on


class Splits:
    """The data sets of a recipe; ``fold(k)`` are the training and validation samples of a trial.

    Where validation would have fewer than :data:`FEW` samples, and the user's files leave its
    choice open, all samples but the test's are divided in :data:`FOLDS` parts, and fold k is judged
    on the k-th and scaled by the others; a group lies in one part. The test split is read by
    :attr:`test` alone.

    Args:
        recipe: of all contenders.
        source: samples in memory, in the place of what the recipe names.
    """

    def __init__(self, recipe: Recipe, source: Source | None = None):
        self.recipe, self._given = recipe, source
        self.train, self.val = (self._read(part) for part in ("train", "val"))

    def _read(self, part: str) -> Any:
        if self._given is None:
            return build_dataset(self.recipe, part)
        return with_metric(self.recipe, self._given.dataset(part, image_size=self._size))

    def whole(self) -> tuple[Any, str]:
        """The samples that a method is fitted to at last, and which they are: all but the test's of
        files, else those of the training split.
        """
        if self.recipe.data.name != "files" or self.recipe.data.limit is not None:
            return self.train, "training samples"
        known = {}
        if self.train.kind.worded:
            options = TextOptions(
                max_length=self.train.max_length, vocabulary=self.train.vocabulary
            )
            known = {"text": options}
        pool = np.flatnonzero(self._source.parts != 2)
        found = self._source.subset("train", pool, image_size=self._size, **known)
        return with_metric(self.recipe, found), "training and validation samples"

    @cached_property
    def mark(self) -> str | None:
        """What tells whether the user's files have changed; they are looked at once."""
        return data_mark(self.recipe)

    @property
    def _size(self) -> tuple[int, int] | None:
        size = self.recipe.data.image_size
        return None if size is None else (size[0], size[1])

    @cached_property
    def test(self) -> Any:
        """The test split."""
        return self._read("test")

    @cached_property
    def folds(self) -> int:
        """How many different validation splits there are."""
        return len(self._parts) or 1

    @cache  # noqa: B019  an object lives as long as its search
    def fold(self, number: int) -> tuple[Any, Any]:
        """Training and validation samples of a fold; one after the last is the first again."""
        if not self._parts:
            return self.train, limit_samples(self.val, JUDGED)
        held = self._parts[number % len(self._parts)]
        source = self._fitted(number % len(self._parts))
        train, val = (
            with_metric(self.recipe, source.subset(part, chosen, image_size=self._size))
            for part, chosen in (("train", source.training), ("val", held))
        )
        return train, val

    def tested(self, number: int) -> Any:
        """The test split as what is trained on a fold reads it: in the scales and units of its
        training samples.
        """
        whole = self.test
        if not self._parts:
            return whole
        source = self._fitted(number % len(self._parts))
        chosen = np.flatnonzero(source.parts == 2)
        return with_metric(self.recipe, source.subset("test", chosen, image_size=self._size))

    @cache  # noqa: B019
    def _fitted(self, number: int) -> Any:
        """The samples, scaled by those that a fold trains on: no scale knows what it is judged
        on.
        """
        pool = np.flatnonzero(self._source.parts != 2)
        return self._source.trained_on(np.setdiff1d(pool, self._parts[number]))

    @cached_property
    def _source(self) -> Any:
        """The user's files or samples, read once."""
        if self._given is not None:
            return self._given
        given = data_arguments(self.recipe)
        share = self.recipe.data.val_fraction
        return open_files(given["path"], given["options"], **({"val": share} if share else {}))

    @cached_property
    def _parts(self) -> list[np.ndarray]:
        """The samples that each fold is judged on; none where there is one split only."""
        data = self.recipe.data
        if data.name != "files" or data.limit is not None or len(self.val) >= FEW:
            return []
        collection = self._source.collection
        given = collection.parts is not None and (collection.parts == 1).any()
        given = given and (collection.parts == 2).any()
        if given or self.val.kind.worded or collection.reading.split == "time":
            return []
        pool = np.flatnonzero(self._source.parts != 2)
        return [] if len(pool) < 2 * FOLDS else _divided(collection, pool)


def _divided(collection: Any, pool: np.ndarray) -> list[np.ndarray]:
    """The pool in equal parts, each with its share of every class, and groups in one part each;
    none where classes or groups are too few for that.
    """
    from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

    options: dict[str, Any] = {"n_splits": FOLDS, "shuffle": True, "random_state": 0}
    labels, codes, groups = collection.labels, None, None
    if isinstance(labels, Coded) and collection.steps is None:
        codes = labels.codes[pool]
        members = np.bincount(codes)[np.unique(codes)]
        if members.min() < 2 or members.max() < FOLDS:
            return []
    if collection.reading.split == "group":
        groups = collection.groups[pool]
        if len(np.unique(groups)) < FOLDS:
            return []
        splitter = GroupKFold(FOLDS) if codes is None else StratifiedGroupKFold(**options)
    else:
        splitter = KFold(**options) if codes is None else StratifiedKFold(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class with fewer members than folds: not in each part
        parts = [pool[held] for _, held in splitter.split(pool, codes, groups)]
    return parts if all(map(len, parts)) else []  # large groups may leave a part without any


def batches(dataset: Any, size: int) -> Any:
    """All samples in order, with their labels."""
    for start in range(0, len(dataset), size):
        yield dataset.batch(torch.arange(start, min(start + size, len(dataset))))
