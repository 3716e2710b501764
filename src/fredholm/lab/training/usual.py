"""The usual recipe for the user's own files: a model, an operator and a length for each kind."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ..data.files import Source

Section = dict[str, Any]

# The model of every kind of samples.
MODEL = "backbone_nano"

ITNET: Section = {
    "name": "itnet",
    "width": 16,
    "frequencies": 16,
}

# ITNet's exact kernel visits all pairs of points. Up to this many points it is the usual operator.
EXACT_POINTS = 256

# The optimizer steps of a training whose best length is unknown.
STEPS = 1500

# With fewer validation samples than this, the best epoch would be chosen by chance.
FEW_VALIDATION_SAMPLES = 200

# Below this number of training samples the model is smaller.
FEW_TRAINING_SAMPLES = 500

# A regular series longer than this is divided into patches, to so many points.
SERIES_POINTS = 64

# An image is divided into about so many patches of at most MAX_PATCH_SIDE pixels a side.
IMAGE_PATCHES = 25
MAX_PATCH_SIDE = 16
MIN_IMAGE_PATCHES = 4

# Series are standardised one by one if the logarithms of their standard deviations have a standard
# deviation above this, that is, if their scales differ by factors of e and more.
UNEVEN_LOG_SCALES = 1.0


class Parts(NamedTuple):
    """Sections of a recipe that depend on the kind of samples."""

    model: Section
    operator: Section
    data: Section


def usual_recipe(source: Source, image_size: tuple[int, int] | None = None) -> dict[str, Section]:
    """Return the usual sections of a recipe for the samples of ``source``.

    Args:
        source: the files, read and divided.
        image_size: height and width, if the user asked for a size of images.

    Returns: the sections data, model, operator, optimizer, schedule and training.
    """
    count = len(source.training)
    batch_size = max(1, min(32, count // 4))
    epochs = round(STEPS * batch_size / count)
    epochs = max(5, min(100, epochs))

    kind = source.collection.kind
    if image_size is not None and kind in _PARTS_OF_SIZE:
        parts = _PARTS_OF_SIZE[kind](source, image_size)
    else:
        parts = _PARTS[kind](source)

    data = {"batch_size": batch_size, **parts.data}

    # A recipe without the option means RGB bytes.
    pixels = source.collection.reading.pixels or "rgb"
    if pixels != "rgb":
        data["options"] = {"pixels": pixels}

    training: Section = {"epochs": epochs}
    validation_samples = int((source.parts == 1).sum())
    if validation_samples < FEW_VALIDATION_SAMPLES:
        training["keep"] = "last"

    return {
        "data": data,
        "model": parts.model,
        "operator": parts.operator,
        "optimizer": {"lr": 2e-3, "weight_decay": 0.05},
        "schedule": {"warmup_epochs": round(epochs / 10, 2)},
        "training": training,
    }


def usual_operator(points: int, sigma: float) -> Section:
    """Return ITNet's exact kernel for few points and a linear operator for many."""
    if points <= EXACT_POINTS:
        return {**ITNET, "sigma": sigma}
    return {"name": "luna"}


def _backbone(source: Source, **encoder: Any) -> Section:
    """Return the model, smaller for few samples; ``encoder`` changes fields of its encoder."""
    size = {"dim": 64, "depth": 3}
    if len(source.training) < FEW_TRAINING_SAMPLES:
        size = {"dim": 32, "depth": 2}

    body = {**size, "heads": 4, "dropout": 0.1}
    model: Section = {"name": MODEL, "body": body}
    if encoder:
        model["encoder"] = encoder
    return model


# --- series, rows and texts -----------------------------------------------------------------------


def _series(source: Source) -> Parts:
    points = max(len(sample) for sample in source.collection.samples)
    encoder: Section = {}
    if _has_uneven_scales(source):
        encoder["standard"] = True

    # A label per point, or times of their own, need every point by itself.
    label_per_point = source.collection.steps is not None
    if not label_per_point and not source.scaling["timed"]:
        patch = math.ceil(points / SERIES_POINTS)
        points = math.ceil(points / patch)
        if patch > 1:
            encoder["patch"] = patch

    model = _backbone(source, **encoder)
    operator = usual_operator(points, 3.0)
    return Parts(model, operator, data={})


def _has_uneven_scales(source: Source) -> bool:
    """Tell whether the scales of the training series differ strongly in some channel."""
    if source.collection.reading.scale == "sample":
        return False

    series = [source.collection.samples[i] for i in source.training]
    with warnings.catch_warnings():
        # NumPy warns about channels without any value, which are NaN and do not count.
        warnings.simplefilter("ignore")
        deviations = np.stack([np.nanstd(values, 0) for values in series])

        # A constant channel has no scale. Its logarithm would be minus infinity.
        log_scales = np.log(deviations + 1e-12)
        log_scales = np.where(log_scales > np.log(1e-9), log_scales, np.nan)
        spread = np.nanstd(log_scales, 0)
    return bool((spread > UNEVEN_LOG_SCALES).any())


def _rows(source: Source) -> Parts:
    model = _backbone(source)
    return Parts(model, operator={"name": "softmax"}, data={})


def _texts(source: Source) -> Parts:
    model = _backbone(source)
    operator = usual_operator(64, 3.0)
    return Parts(model, operator, data={})


# --- images ---------------------------------------------------------------------------------------


def _images(source: Source) -> Parts:
    """Choose a patch, and then an image size that it divides."""
    height, width = source.image_size
    smallest = _smallest_patch(height, width)

    # A slightly larger patch is better if it divides both sides.
    largest = min(MAX_PATCH_SIDE, smallest + smallest // 4)
    dividing = _dividing_patches(range(smallest, largest + 1), height, width)
    patch = smallest
    if dividing:
        patch, *_ = dividing

    size = []
    for side in (height, width):
        patches = max(4, round(side / patch))
        size.append(patches * patch)
    return _in_patches(source, patch, size)


def _images_of_size(source: Source, size: tuple[int, int]) -> Parts:
    """Choose the patch for a size that the user asked for.

    It is the divisor of both sides nearest to the usual patch that leaves a few patches. If no
    patch divides the size, the model refuses it by name.
    """
    height, width = size
    smallest = _smallest_patch(height, width)
    largest_area = height * width // MIN_IMAGE_PATCHES
    largest = min(MAX_PATCH_SIDE, math.isqrt(largest_area))
    dividing = _dividing_patches(range(2, largest + 1), height, width)

    def distance(patch: int) -> float:
        return abs(math.log(patch / smallest))

    patch = min(dividing, key=distance, default=smallest)
    return _in_patches(source, patch, [height, width])


def _dividing_patches(candidates: range, height: int, width: int) -> list[int]:
    """Return the candidates that divide both sides of an image."""
    return [patch for patch in candidates if height % patch == 0 and width % patch == 0]


def _smallest_patch(height: int, width: int) -> int:
    """Return the side of patches of which about :data:`IMAGE_PATCHES` cover an image."""
    area = height * width / IMAGE_PATCHES
    side = math.ceil(math.sqrt(area))
    return min(MAX_PATCH_SIDE, max(2, side))


def _in_patches(source: Source, patch: int, size: list[int]) -> Parts:
    height, width = size
    points = height * width // patch**2
    model = _backbone(source, patch=patch)
    operator = usual_operator(points, 3.0)
    return Parts(model, operator, data={"image_size": size})


# --- clouds and fields ----------------------------------------------------------------------------


def _clouds(source: Source) -> Parts:
    model = _backbone(source, features="fourier", neighbours=8, sigma=1.0)
    operator = usual_operator(source.scaling["points"], 1.0)
    return Parts(model, operator, data={})


def _fields(source: Source) -> Parts:
    # Fields at scattered points have coordinates; on a grid, samples are (N, K, height, width).
    coordinates = source.collection.coordinates
    if coordinates is not None:
        points = max(len(positions) for positions in coordinates)
        model = _backbone(source, features="fourier", sigma=1.0)
    else:
        _, _, height, width = source.collection.samples.shape
        points = height * width
        model = _backbone(source, sigma=1.0)
    return Parts(model, usual_operator(points, 1.0), data={})


_PARTS: dict[str, Callable[[Source], Parts]] = {
    "series": _series,
    "rows": _rows,
    "texts": _texts,
    "images": _images,
    "clouds": _clouds,
    "fields": _fields,
}

# Kinds of samples that are resized, if the user asks for a size.
_PARTS_OF_SIZE: dict[str, Callable[[Source, tuple[int, int]], Parts]] = {
    "images": _images_of_size,
}
