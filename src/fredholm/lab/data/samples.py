"""Samples in memory, as arrays, lists and texts: their kind, and data sets of them as of files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from ...errors import DataError, OptionError, ShapeError
from .files.casts import LARGEST
from .files.collection import TRAIN, VAL, Collection, blocks, too_large
from .files.datasets import as_read, labels_of
from .files.reading import Reading
from .files.scaling import channel_scales
from .files.source import LARGEST_SIDE, Source
from .files.times import NotATime, Ticks, ticks_of_array, ticks_of_words
from .frames import is_frame
from .kinds.dataset import LabelledDataset
from .kinds.images import ImageDataset, standardised
from .kinds.sequences import padded
from .kinds.texts import TextOptions, encode_rows
from .splits import SPLIT_SEED, stratified
from .vocabulary import Vocabulary

_BY_AXES = {2: "rows", 3: "series", 4: "images"}


# --- from what a caller has to a collection -------------------------------------------------------


def recognise(samples: Any) -> str:
    """The kind of samples in memory, a name of :data:`fredholm.lab.data.files.datasets.KINDS`.

    An array (N, columns) is rows, (N, times, channels) series, (N, H, W, C) images; strings are
    texts; a list of arrays (times, channels), or of pairs (times, values), is series, one of arrays
    (H, W, C) images. Clouds and fields look like other kinds and are never guessed.

    Raises:
        ShapeError: none of these.

    Example:
        >>> recognise(np.zeros((5, 3))), recognise(["a text"])
        ('rows', 'texts')
        >>> recognise([np.zeros((4, 1)), np.zeros((6, 1))])
        'series'
    """
    if is_frame(samples):
        return "rows"
    listed = isinstance(samples, Iterable) and not isinstance(samples, Iterator)
    if not (listed or hasattr(samples, "__array__")):
        raise ShapeError(
            f"X: received {type(samples).__name__}; needs an array or a list of samples, which can "
            "be read more than once"
        )
    if hasattr(samples, "__array__") and not hasattr(samples, "ndim"):
        samples = np.asarray(samples)
    axes = getattr(samples, "ndim", None)
    if axes is not None and axes != 1:
        if axes not in _BY_AXES:
            raise ShapeError(
                f"X: received an array of {axes} axes; needs (N, columns), (N, times, channels) or "
                "(N, H, W, C), or a list of samples"
            )
        return _BY_AXES[axes]
    first: Any = next(iter(samples), None)
    if isinstance(first, str):
        return "texts"
    if is_frame(first):
        return "series"
    if isinstance(first, tuple) and len(first) == 2 and np.ndim(first[0]) == 1:
        return "series"
    if hasattr(first, "__array__") and np.ndim(first):
        return "images" if np.ndim(first) == 3 else "series"
    if isinstance(first, list) and first and np.ndim(first[0]) == 0:
        return "rows" if len({len(row) for row in samples}) == 1 else "series"
    if isinstance(first, Mapping):
        raise ShapeError(
            "X: received samples as dictionaries; needs rows of numbers: pandas.DataFrame(X)"
        )
    return "series" if isinstance(first, list) else "rows"


def collect_samples(samples: Any, kind: str, task: str) -> Collection:
    """Samples of a kind, without labels, as files of them are. Frames have lost their names
    before, see :mod:`.frames`.

    Series are an array (N, times, channels), a list of arrays (times, channels) or (times,), or one
    of pairs (times, values); NaN is what was not measured. Images are (N, H, W) or (N, H, W, C),
    whole numbers (0 to 255) as shares of 255. Clouds are (points, channels) each, coordinates
    first; a point with NaN is left out, as one that is not there. Fields are (N, H, W) or
    (N, C, H, W), or a list of pairs (coordinates (points, d), values (points, C)).

    Raises:
        ShapeError: arrays of other shapes, or of different ones; a cloud without a point; values
            of another number than their points.
        OptionError: times that go back, an infinite value; NaN in images and fields; a blank text.
    """
    reading = Reading(kind=kind, task=task, split="random")
    result = Collection(
        "samples", reading, None, None, lambda number: {"file": "X", "sample": number}
    )
    _FILL[kind](result, samples)
    return result


def collect_answers(answers: Any, collection: Collection) -> Any:
    """What is to be answered of the samples in a collection: numbers (N,); of fields (N, K, H, W),
    or (points, K) each.

    Raises:
        ShapeError: another grid, or another number of points, than the field has.
        OptionError: a value that is no finite number.
    """
    result = replace(collection, place=lambda number: {"file": "y", "sample": number})
    if collection.kind != "fields":
        _check_finite(result, answers, missing=False)
        return answers
    if collection.coordinates is None:
        fields, grid = _grids(result, answers, "y"), collection.samples.shape[2:]
        if fields.shape[2:] != grid:
            raise ShapeError(f"y: received fields on a grid {fields.shape[2:]}; X has {grid}")
        return fields
    parts = _matrices(result, list(answers))
    _check_points(result, collection.coordinates, parts)
    return [part.astype(np.float32) for part in parts]


def _rows(result: Collection, samples: Any) -> None:
    result.samples = np.asarray(samples)
    if np.issubdtype(result.samples.dtype, np.number):
        _check_finite(result, result.samples, missing=True)
    result.channels = tuple(str(i) for i in range(result.samples.shape[1]))


def _texts(result: Collection, samples: Any) -> None:
    if isinstance(samples, str):  # whose letters would be texts
        raise ShapeError(f"X: received one text, {samples[:40]!r}; needs a list of texts: [text]")
    result.samples = list(samples)
    for number, text in enumerate(result.samples):
        if not isinstance(text, str):
            raise ShapeError(
                f"{result.where(number)}: received {text!r}; needs a text as the others"
            )
        if not text.strip():
            raise OptionError(f"{result.where(number)}: received {text!r}; needs a word or more")


def _series(result: Collection, samples: Any) -> None:
    parts = list(samples)
    if any(map(_is_pair, parts)):
        clocks, parts = _halves(result, parts, "(times, values)")
        result.times = _clocks(result, clocks)
    result.samples = _matrices(result, parts)
    for number, times in enumerate(result.times or ()):
        rows = len(result.samples[number])
        if times.shape != (rows,):
            raise ShapeError(
                f"{result.where(number)}: {rows} values at times {times.shape}; needs as many"
            )
        if not (np.diff(times) > 0).all():
            raise OptionError(f"{result.where(number)}: its times do not grow; sort them")


def _clocks(result: Collection, clocks: Sequence[Any]) -> list[np.ndarray]:
    """Return the times of each series since its first, and note whether all are dates.

    Differences are taken before any digits are dropped.
    """
    seconds = []
    for number, times in enumerate(clocks):
        values = _array(result, number, times)
        ticks = _ticks(result, number, values.reshape(-1))
        # Spans of time are in seconds, as dates are.
        dated = ticks.dated or values.dtype.kind == "m"
        if result.dated is None:
            result.dated = dated
        if dated != result.dated:
            raise OptionError(
                f"{result.where(number)}: expected times that are {_times_word(result.dated)}, as "
                f"sample 0 has them, got {_times_word(dated)}; give all series the same"
            )
        seconds.append(ticks.seconds.reshape(values.shape))
    return seconds


def _ticks(result: Collection, number: int, values: np.ndarray) -> Ticks:
    """Return the times of one series; dates may be words, and may have a zone."""
    try:
        if values.dtype.kind in "iufmMb":
            return ticks_of_array(values)
        return ticks_of_words([_as_word(value) for value in values.tolist()])
    except NotATime as error:
        if values.dtype.kind in "iufmM":
            raise OptionError(f"{result.where(number)}: its times do not grow; sort them") from None
        raise OptionError(
            f"{result.where(number)}: expected times that are numbers, or dates such as "
            f"2026-03-01T06:00+01:00, got {str(values[error.number])!r}; mend them"
        ) from None


def _as_word(time: Any) -> str:
    return time.isoformat() if isinstance(time, date) and time == time else str(time)


def _times_word(dated: bool | None) -> str:
    return "dates" if dated else "numbers"


def _clouds(result: Collection, samples: Any) -> None:
    clouds = _matrices(result, list(samples))
    result.samples = [cloud[~np.isnan(cloud).any(1)] for cloud in clouds]
    for number, cloud in enumerate(result.samples):
        if not len(cloud):
            raise ShapeError(
                f"{result.where(number)}: all of its {len(clouds[number])} points have NaN, and are"
                " taken as not there; needs a point or more"
            )


def _images(result: Collection, samples: Any) -> None:
    images = _stack(result, samples)
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4:
        raise ShapeError(f"X: received {images.shape}; images are (N, H, W) or (N, H, W, C)")
    if images.shape[1] in (1, 3) and images.shape[2] > 4 < images.shape[3]:
        raise ShapeError(
            f"X: received {images.shape}, channels first; images are (N, H, W, C): "
            "X.transpose(0, 2, 3, 1)"
        )
    whole = np.issubdtype(images.dtype, np.integer)
    low, high = (images.min(), images.max()) if images.size else (0, 0)
    if whole and not 0 <= low <= high <= 255:
        raise OptionError(
            f"X: received images of {images.dtype} from {low} to {high}; whole numbers are taken "
            "as 0 to 255; give numbers on another scale as floats"
        )
    result.pixels = "bytes" if whole else "shares" if 0 <= low <= high <= 1 else "numbers"
    result.samples = np.moveaxis(images, -1, 1).astype(np.float32) / (255 if whole else 1)
    _check_finite(result, result.samples, missing=False)


def _fields(result: Collection, samples: Any) -> None:
    parts = samples if hasattr(samples, "ndim") else list(samples)
    if isinstance(parts, list) and any(map(_is_pair, parts)):
        places, values = _halves(result, parts, "(coordinates, values)")
        result.coordinates = _matrices(result, places)
        result.samples = _matrices(result, values)
        _check_points(result, result.coordinates, result.samples)
        return
    result.samples = _grids(result, parts, "X")


def _grids(result: Collection, samples: Any, name: str) -> np.ndarray:
    """Fields (N, C, H, W)."""
    fields = _stack(result, samples).astype(np.float32)
    if fields.ndim not in (3, 4):
        raise ShapeError(f"{name}: received {fields.shape}; fields are (N, H, W) or (N, C, H, W)")
    fields = fields[:, None] if fields.ndim == 3 else fields
    _check_finite(result, fields, missing=False)
    return fields


def _check_points(result: Collection, places: list[np.ndarray], values: list[np.ndarray]) -> None:
    """Refuse values that are not one for each point, and points or values with NaN."""
    for number, (here, there) in enumerate(zip(places, values)):
        if len(here) != len(there):
            raise ShapeError(
                f"{result.where(number)}: {len(there)} values at {len(here)} points; needs as many"
            )
    for arrays in (places, values):
        _check_finite(result, arrays, missing=False, instead="; leave such points out of X and y")


_FILL: dict[str, Callable[[Collection, Any], None]] = {
    "rows": _rows,
    "texts": _texts,
    "series": _series,
    "clouds": _clouds,
    "images": _images,
    "fields": _fields,
}


def _is_pair(sample: Any) -> bool:
    return isinstance(sample, tuple) and len(sample) == 2 and np.ndim(sample[0]) > 0


def _halves(result: Collection, samples: list[Any], form: str) -> tuple[list[Any], list[Any]]:
    """The first and the second of each pair."""
    other = next((i for i, sample in enumerate(samples) if not _is_pair(sample)), None)
    if other is not None:
        raise ShapeError(
            f"{result.where(other)}: received {type(samples[other]).__name__}; needs a pair {form} "
            "as other samples, or give all without"
        )
    return [first for first, _ in samples], [second for _, second in samples]


def _array(result: Collection, number: int, sample: Any, dtype: Any = None) -> np.ndarray:
    try:
        return np.asarray(sample, dtype)
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"{result.where(number)}: received {type(sample).__name__}; needs an array of numbers "
            f"({error})"
        ) from error


def _stack(result: Collection, samples: Any) -> np.ndarray:
    if hasattr(samples, "ndim"):
        return np.asarray(samples)
    arrays = [_array(result, number, sample) for number, sample in enumerate(samples)]
    other = next((i for i, a in enumerate(arrays) if a.shape != arrays[0].shape), None)
    if other is not None:
        raise ShapeError(
            f"{result.where(other)}: received {arrays[other].shape}; needs {arrays[0].shape} as "
            "the first, bring all to one size"
        )
    return np.stack(arrays)


def _matrices(result: Collection, parts: Sequence[Any]) -> list[np.ndarray]:
    """Samples (points, channels) of one width."""
    arrays = [_array(result, number, part, np.float64) for number, part in enumerate(parts)]
    arrays = [array[:, None] if array.ndim == 1 else array for array in arrays]
    for number, array in enumerate(arrays):
        if array.ndim != 2 or not len(array) or array.shape[1] != arrays[0].shape[1]:
            raise ShapeError(
                f"{result.where(number)}: received {np.shape(parts[number])}; needs (points, "
                f"{arrays[0].shape[-1]}) with a point or more"
            )
    _check_finite(result, arrays, missing=True)
    return arrays


def _check_finite(result: Collection, arrays: Any, *, missing: bool, instead: str = "") -> None:
    """Refuse numbers that no model reads; ``instead`` is how NaN is mended where it may not be
    ``missing``.
    """
    found = too_large(arrays)
    if found is not None:
        number, at = found
        raise OptionError(
            f"{result.where(number)}: received {arrays[number][at]:g}; needs finite numbers, none "
            f"beyond {LARGEST:.2g}"
        )
    if missing:
        return
    for start, block in blocks(arrays):
        gone = np.isnan(block).reshape(len(block), -1).any(1)
        if gone.any():
            where = result.where(start + int(gone.argmax()))
            raise OptionError(f"{where}: has a value that is no finite number{instead}")


# --- data sets ------------------------------------------------------------------------------------


class MemorySource(Source):
    """Labelled samples in memory, divided and scaled as files are.

    Args:
        collection: of :func:`collect_samples`, with labels.
        held: the share of them that is kept for validation, 0 for none.
        seed: of the split, stratified by class.
    """

    def __init__(self, collection: Collection, held: float, seed: int):
        self.path, self.collection = Path(collection.name), collection
        self.asked = collection.reading
        self.parts = np.full(len(collection), TRAIN, np.int8)
        self.parts[_held(collection, held, SPLIT_SEED + seed)] = VAL
        self.training = np.flatnonzero(self.parts == TRAIN)
        codes = getattr(collection.labels, "codes", np.zeros(len(collection), np.int64))
        lost = np.setdiff1d(codes, codes[self.training])
        if len(lost):
            raise OptionError(
                f"validation_fraction: received {held:g}, which holds out every sample of "
                f"{len(lost)} classes, or all there are; needs a smaller share"
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
        trained = self.collection.samples[self.training]
        result = FloatImages(
            self.name,
            split,
            resized(
                torch.from_numpy(self.collection.samples[chosen]), image_size or self.image_size
            ),
            labels_of(self, chosen),
            self.classes,
            trained.mean((0, 2, 3), dtype=np.float64).tolist(),
            channel_scales(trained, (0, 2, 3)),
            self.collection.task,
        )
        result.units = self.units
        result.source = self.facts() | {"pixels": self.collection.pixels}
        if self.collection.pixels is not None:
            result.source |= {"largest": float(trained.max())}
        return result


def _held(collection: Collection, share: float, seed: int) -> np.ndarray:
    """The samples that are held out: of each class, or, where all classes are too small, of all."""
    codes = getattr(collection.labels, "codes", np.zeros(len(collection)))
    for strata in (codes, np.zeros(len(collection))):
        held = stratified(torch.as_tensor(strata).long(), share, seed)[1].numpy()
        if len(held):
            break
    return held


class FloatImages(ImageDataset):
    """Images in memory as floats (N, C, H, W), brought to mean 0 and deviation 1."""

    def __init__(
        self,
        name: str,
        split: str,
        images: Float[Tensor, "n c h w"],
        labels: Tensor,
        classes: Sequence[str],
        mean: Sequence[float],
        std: Sequence[float],
        task: str = "classification",
    ):
        _, channels, height, width = images.shape
        super().__init__(name, split, labels, classes, mean, std, (channels, height, width))
        self.images, self.task = images, task

    def raw(self, indices: Tensor | Sequence[int]) -> tuple[Float[Tensor, "b c h w"], Tensor]:
        indices = torch.as_tensor(indices, dtype=torch.int64)
        return self.images[indices], self.labels[indices]

    def normalise(self, images: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
        """(value − mean) / std."""
        return standardised(images, self.mean, self.std)


def resized(images: Float[Tensor, "n c h w"], size: tuple[int, int]) -> Float[Tensor, "n c i j"]:
    """Images at another size; those that have it as they are."""
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    return functional.interpolate(
        images, tuple(size), mode="bilinear", antialias=True, align_corners=False
    )


# --- samples whose label is asked for -------------------------------------------------------------


def warn_of_cut(cut: int, count: int, length: int) -> None:
    """A ``UserWarning`` where texts lost their end."""
    if cut:
        warnings.warn(
            f"X: {cut} of {count} texts are longer than {length} words, of which the first {length}"
            " are read; shorten or divide them, or train with `fredholm train` and "
            "data.max_length",
            stacklevel=5,
        )


def read_samples(
    collection: Collection, facts: Mapping[str, Any], encoder: Any
) -> Callable[[Sequence[int]], Tensor]:
    """Inputs of a model by numbers of samples, scaled as those were that ``facts`` describe
    (:meth:`fredholm.data.LabelledDataset.describe`).

    Warns:
        UserWarning: texts that are longer than the model reads.

    Raises:
        ShapeError: samples of other channels than the training samples.
        OptionError: times between the steps of regular training samples, or images of another
            scale.
    """
    kind, scaling = collection.kind, facts["source"]["scaling"]
    if kind == "texts":
        vocabulary = Vocabulary.from_dict(facts["vocabulary"])
        length = facts["max_length"]
        numbers, cut = encode_rows(collection.samples, vocabulary, length, "X, text")
        warn_of_cut(int(cut.sum()), len(cut), length)
        return lambda chosen: numbers[list(chosen)]
    _check_channels(collection, encoder)
    _check_clock(collection, facts)
    if kind == "images":
        _check_scale(collection, facts)
        images = torch.from_numpy(collection.samples)
        size, mean, std = encoder.image_size, facts["mean"], facts["std"]
        return lambda chosen: standardised(resized(images[list(chosen)], size), mean, std)
    if kind == "fields" and collection.coordinates is None:
        fields = torch.from_numpy(collection.samples)
        return lambda chosen: standardised(
            fields[list(chosen)], facts["shift"], facts["input_scale"]
        )
    try:
        rows = as_read(collection, scaling)
    except DataError as error:
        raise OptionError(str(error)) from error
    if kind == "clouds":
        rows = rows[:, : scaling["points"]]
    if isinstance(rows, Tensor):
        return lambda chosen: rows[list(chosen)]
    return lambda chosen: padded([rows[i] for i in chosen])


def _check_scale(collection: Collection, facts: Mapping[str, Any]) -> None:
    """Refuse images whose numbers are on another scale than those of training."""
    fitted, most = facts["source"].get("pixels"), max(map(abs, facts["mean"]))
    if fitted is None:  # earlier versions did not save it, and divided bytes alone
        fitted = "shares" if most <= 1 else "numbers"
    low, high = float(collection.samples.min()), float(collection.samples.max())
    ones, largest = 1.01 / 255, facts["source"].get("largest", 1.0)
    if {fitted, collection.pixels} == {"bytes", "shares"}:
        whole, shares = (largest, high) if fitted == "bytes" else (high, largest)
        if 0 < whole <= ones < shares:  # 0 and 1, which are 1/255 of whole numbers alone
            raise OptionError(
                f"X: received images of {_pixel_range(collection.pixels, high)}; the estimator was "
                f"fitted on {_pixel_range(fitted, largest)}, and whole numbers are taken as 0 to "
                "255: give numbers of the same type"
            )
    if collection.pixels == "bytes" and fitted == "numbers":
        raise OptionError(
            "X: received images of whole numbers, which are taken as 0 to 255; the estimator was "
            f"fitted on floats of another scale (means up to {most:g}): give floats on that scale"
        )
    if collection.pixels == "numbers" and fitted != "numbers" and not -1 <= low <= high <= 2:
        raise OptionError(
            f"X: received images of floats from {low:g} to {high:g}; the estimator was fitted on "
            "whole numbers from 0 to 255, or shares of 1: divide by 255, or give whole numbers"
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


def _check_clock(collection: Collection, facts: Mapping[str, Any]) -> None:
    """Refuse dates where the training had numbers, whose unit nobody knows, and the other way."""
    fitted = facts["source"].get("dated")
    if None not in (fitted, collection.dated) and fitted != collection.dated:
        raise OptionError(
            f"X, sample 0: expected times that are {_times_word(fitted)}, on which the estimator "
            f"was fitted, got {_times_word(collection.dated)}; give times in the same form"
        )


def _check_channels(collection: Collection, encoder: Any) -> None:
    if collection.kind == "rows":
        return  # a point per column: their number is checked with the columns
    sample, places = collection.samples[0], collection.coordinates
    on_grid = collection.kind in ("images", "fields") and places is None
    width = sample.shape[0] if on_grid else sample.shape[1]
    width += 0 if places is None else places[0].shape[1]
    if width != encoder.channels:
        raise ShapeError(
            f"X: samples of {width} channels; the estimator was fitted on {encoder.channels}"
        )
