"""Data sets of samples in memory, and the inputs that a trained model reads from them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError, OptionError, ShapeError
from ...pictures import resized
from .files.collection import TRAIN, VAL, Collection
from .files.datasets import as_predicted, batches_of, labels_of
from .files.scaling import channel_scales
from .files.source import LARGEST_SIDE, Source
from .kinds.dataset import LabelledDataset
from .kinds.images import ImagesInMemory, standardised
from .kinds.texts import TextOptions, encode_rows
from .samples import times_word
from .splits import SPLIT_SEED, held_out
from .vocabulary import Vocabulary

Rows = Callable[[Sequence[int]], Tensor]
"""The inputs of a model, by the numbers of samples."""


class MemorySource(Source):
    """Labelled samples in memory, split and scaled as files are.

    Args:
        collection: of :func:`.collect_samples`, with labels.
        held: the share of them that is kept for validation, 0 for none.
        seed: of the split, stratified by class.

    Raises:
        OptionError: a share that leaves no sample, or none of some class, to train on.
    """

    def __init__(self, collection: Collection, held: float, seed: int):
        self.path = Path(collection.name)
        self.collection = collection
        self.asked = collection.reading
        # Samples without classes have one code, so "no sample is left" is found in the same way.
        codes = getattr(collection.labels, "codes", np.zeros(len(collection), np.int64))
        self.parts = np.full(len(collection), TRAIN, np.int8)
        self.parts[_held(codes, held, SPLIT_SEED + seed)] = VAL
        self.training = np.flatnonzero(self.parts == TRAIN)
        lost = np.setdiff1d(codes, codes[self.training])
        if len(lost):
            raise OptionError(
                "validation_fraction: expected a share that leaves training samples of every "
                f"class, got {held:g}, which holds out all samples of {len(lost)}; give a smaller "
                "share"
            )

    @cached_property
    def image_size(self) -> tuple[int, int]:
        height, width = self.collection.samples.shape[2:]
        return min(LARGEST_SIDE, height), min(LARGEST_SIDE, width)

    def subset(
        self,
        split: str,
        chosen: np.ndarray,
        *,
        image_size: tuple[int, int] | None = None,
        text: TextOptions | None = None,
    ) -> LabelledDataset:
        if self.collection.kind != "images":
            return super().subset(split, chosen, image_size=image_size, text=text)

        images = torch.from_numpy(self.collection.samples[chosen])
        trained = self.collection.samples[self.training]
        mean = trained.mean((0, 2, 3), dtype=np.float64)
        result = ImagesInMemory(
            self.name,
            split,
            resized(images, image_size or self.image_size),
            labels_of(self, chosen),
            self.classes,
            mean.tolist(),
            channel_scales(trained, (0, 2, 3)),
        )
        result.task = self.collection.task
        result.units = self.units
        # Predictions compare the scale of their images with the scale of these.
        result.source = self.facts() | {"pixels": self.collection.pixels}
        if self.collection.pixels is not None:
            result.source |= {"largest": float(trained.max())}
        return result


def _held(codes: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return the held-out samples: of each class, or, where all classes are too small, of all."""
    held = held_out(codes, share, seed)
    if len(held):
        return held
    return held_out(np.zeros_like(codes), share, seed)


# --- prediction -----------------------------------------------------------------------------------


def warn_of_cut(cut: int, count: int, length: int) -> None:
    """Warn where ``cut`` of ``count`` texts lost their end."""
    if cut:
        # Five frames up is the user's call of ``fit`` or ``predict``.
        warnings.warn(
            f"X: {cut} of {count} texts are longer than {length} words, of which the first {length}"
            " are read; shorten or divide them, or train with `fredholm train` and "
            "data.max_length",
            stacklevel=5,
        )


def read_samples(
    collection: Collection,
    facts: Mapping[str, Any],
    encoder: Any,
) -> Rows:
    """Return a function from numbers of samples to inputs of a model, scaled as those were that
    ``facts`` describe (:meth:`fredholm.data.LabelledDataset.describe`).

    Warns:
        UserWarning: texts that are longer than the model reads.

    Raises:
        ShapeError: samples of other channels than the training samples.
        OptionError: times between the steps of regular training samples, or images of another
            scale.
    """
    kind = collection.kind
    scaling = facts["source"]["scaling"]
    if kind == "texts":
        vocabulary = Vocabulary.from_dict(facts["vocabulary"])
        length = facts["max_length"]
        numbers, cut = encode_rows(collection.samples, vocabulary, length, "X, text")
        warn_of_cut(int(cut.sum()), len(cut), length)
        return lambda chosen: numbers[list(chosen)]

    # Of rows, each column is a point; their number is checked with the columns.
    if kind != "rows" and collection.width != encoder.channels:
        raise ShapeError(
            f"X: expected samples of {encoder.channels} channels, on which the estimator was "
            f"fitted, got {collection.width}; give the same channels"
        )
    _check_clock(collection, facts)
    if kind == "images":
        _check_scale(collection, facts)
        images = torch.from_numpy(collection.samples)
        size = encoder.image_size
        mean = facts["mean"]
        std = facts["std"]
        return lambda chosen: standardised(resized(images[list(chosen)], size), mean, std)
    if kind == "fields" and collection.coordinates is None:
        fields = collection.samples
        shift = facts["shift"]
        scale = facts["input_scale"]
        return lambda chosen: standardised(torch.from_numpy(fields[list(chosen)]), shift, scale)

    try:
        rows = as_predicted(collection, scaling)
    except DataError as error:
        # Those samples came as an argument, not from a file.
        raise OptionError(str(error)) from error
    return batches_of(rows)


def _check_clock(collection: Collection, facts: Mapping[str, Any]) -> None:
    """Refuse dates where the training had numbers, whose unit nobody knows, and vice versa."""
    fitted = facts["source"].get("dated")
    if None not in (fitted, collection.dated) and fitted != collection.dated:
        raise OptionError(
            f"X, sample 0: expected times that are {times_word(fitted)}, on which the estimator "
            f"was fitted, got {times_word(collection.dated)}; give times in the same form"
        )


def _check_scale(collection: Collection, facts: Mapping[str, Any]) -> None:
    """Refuse images whose numbers are on another scale than those of training."""
    fitted = facts["source"].get("pixels")
    most = max(map(abs, facts["mean"]))
    # Earlier versions did not save the scale, and divided only bytes.
    if fitted is None:
        fitted = "shares" if most <= 1 else "numbers"
    low = float(collection.samples.min())
    high = float(collection.samples.max())

    # Whole numbers that are only 0 and 1 were divided by 255, too, and have become 0 and 1/255.
    # Beside true shares up to 1 that is another scale, though both types fit.
    if {fitted, collection.pixels} == {"bytes", "shares"}:
        largest = facts["source"].get("largest", 1.0)
        whole = high
        shares = largest
        if fitted == "bytes":
            whole = largest
            shares = high
        if 0 < whole <= 1.01 / 255 < shares:
            raise OptionError(
                f"X: expected images of {_pixel_range(fitted, largest)}, on which the estimator "
                f"was fitted, got {_pixel_range(collection.pixels, high)}, and whole numbers are "
                "read as 0 to 255; give numbers of the same type"
            )

    if collection.pixels == "bytes" and fitted == "numbers":
        raise OptionError(
            "X: expected floats on the scale on which the estimator was fitted (means up to "
            f"{most:g}), got whole numbers, which are read as 0 to 255; give floats on that scale"
        )
    # Shares may lie a little outside [0, 1] after resizing or brightening.
    if collection.pixels == "numbers" and fitted != "numbers" and not -1 <= low <= high <= 2:
        raise OptionError(
            "X: expected whole numbers from 0 to 255, or shares of 1, on which the estimator was "
            f"fitted, got floats from {low:g} to {high:g}; divide by 255, or give whole numbers"
        )


def _pixel_range(pixels: str | None, largest: float) -> str:
    """Return the type and the largest value of images in words, for an error.

    Args:
        pixels: the scale of the images as the user gave them, see :class:`.Collection`.
        largest: the largest value in memory.
    """
    # Bytes were divided by 255 when they were read; the user gave whole numbers.
    if pixels == "bytes":
        return f"whole numbers up to {255 * largest:g}"
    return f"floats up to {largest:g}"
