"""Data sets of a user's samples, one function per kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..kinds.dataset import IGNORED, LabelledDataset
from ..kinds.fields import FIELDS, POINT_FIELDS, FieldDataset, PointFieldDataset
from ..kinds.images import IMAGES, FolderDataset
from ..kinds.kind import Kind
from ..kinds.picture_files import moments
from ..kinds.points import POINTS, PointDataset
from ..kinds.sequences import SEQUENCES, TABLES, SequenceDataset, padded
from ..kinds.texts import TEXTS, TextDataset, TextOptions
from .casts import Coded
from .collection import Collection, numbered
from .scaling import as_arrays, channel_scales, longest

if TYPE_CHECKING:
    from .source import Source

KINDS: dict[str, Kind] = {
    "series": SEQUENCES,
    "rows": TABLES,
    "texts": TEXTS,
    "images": IMAGES,
    "clouds": POINTS,
    "fields": FIELDS,
}
FAR = 10.0  # deviations of a mean from zero

# Moments of ImageNet's channels, by which pretrained models were trained.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def kind_of(collection: Collection) -> Kind:
    """Return the kind of samples, as a saved model names it."""
    if collection.coordinates is not None:
        return POINT_FIELDS
    return KINDS[collection.kind]


def as_read(collection: Collection, scaling: Mapping[str, Any]) -> Any:
    """Return the arrays of :func:`.scaling.as_arrays` as tensors: one, or one per sample."""
    arrays = as_arrays(collection, scaling)
    if isinstance(arrays, np.ndarray):
        return torch.from_numpy(arrays)
    return [torch.from_numpy(array) for array in arrays]


def as_predicted(collection: Collection, scaling: Mapping[str, Any]) -> Any:
    """Return the arrays of :func:`as_read`, of clouds only the points that a model reads."""
    rows = as_read(collection, scaling)
    if collection.kind == "clouds":
        return rows[:, : scaling["points"]]
    return rows


def batches_of(rows: Tensor | Sequence[Tensor]) -> Callable[[Sequence[int]], Tensor]:
    """Return a function from numbers of samples to inputs of a model, padded to one length."""
    if isinstance(rows, Tensor):
        return lambda chosen: rows[torch.as_tensor(chosen)]
    return lambda chosen: padded([rows[i] for i in chosen])


def make_dataset(
    source: Source,
    split: str,
    chosen: np.ndarray,
    *,
    image_size: tuple[int, int] | None,
    text: TextOptions | None,
) -> LabelledDataset:
    """Return the data set of the samples ``chosen``; see :meth:`.source.Source.dataset`."""
    # Texts and pictures have options of their own; all other samples have been scaled.
    kind = source.collection.kind
    if kind == "texts":
        return _texts(source, split, chosen, text or TextOptions())
    if kind == "images":
        return _images(source, split, chosen, image_size or source.image_size)
    makers = {
        "series": _series,
        "rows": _rows,
        "clouds": _clouds,
        "fields": _fields,
    }
    return makers[kind](source, split, chosen)


def labels_of(source: Source, chosen: np.ndarray) -> Tensor:
    """Return class numbers, or scaled targets."""
    labels = source.collection.labels
    if isinstance(labels, Coded):
        return torch.from_numpy(labels.codes[chosen].astype(np.int64))
    shift, scale = source.units
    return torch.from_numpy(((labels[chosen] - shift) / scale).astype(np.float32))


def _series(
    source: Source,
    split: str,
    chosen: np.ndarray,
) -> LabelledDataset:
    collection = source.collection
    steps = source.collection.steps
    rows = [source.prepared[i] for i in chosen]
    if steps is None:
        labels = labels_of(source, chosen)
    else:
        labels = padded_steps([steps[i] for i in chosen])
    result = SequenceDataset(
        source.name,
        split,
        labels,
        source.classes,
        lambda indices: padded([rows[i] for i in indices.tolist()]),
        shape=(
            longest(collection, source.training, source.scaling),
            collection.samples[0].shape[1],
        ),
        task=collection.task,
        timed=source.scaling["timed"],
    )
    if steps is not None:
        result.pool = "every"
    return result


def _rows(
    source: Source,
    split: str,
    chosen: np.ndarray,
) -> LabelledDataset:
    # The splits share one table: each holds only the places of its rows.
    rows = source.prepared
    places = torch.from_numpy(chosen)
    return SequenceDataset(
        source.name,
        split,
        labels_of(source, chosen),
        source.classes,
        lambda indices: rows[places[indices]],
        shape=(rows.shape[1], 1),
        task=source.collection.task,
    )


def _texts(
    source: Source,
    split: str,
    chosen: np.ndarray,
    options: TextOptions,
) -> LabelledDataset:
    texts = source.collection.samples
    task = source.collection.task
    # Words of test samples alone must not have numbers of their own.
    vocabulary = options.make_vocabulary([texts[i] for i in source.training])
    labels = labels_of(source, chosen)
    classes = source.classes
    targets = None
    if task == "regression":
        # The data set keeps numbers apart from classes, of which there is one without a name.
        labels, classes, targets = torch.zeros(len(chosen), dtype=torch.int64), ("",), labels
    return TextDataset(
        source.name,
        split,
        [texts[i] for i in chosen],
        labels,
        classes,
        vocabulary,
        options.length,
        targets,
        task,
    )


def _images(
    source: Source,
    split: str,
    chosen: np.ndarray,
    image_size: tuple[int, int],
) -> LabelledDataset:
    files = [source.collection.samples[i] for i in chosen]
    labels = labels_of(source, chosen)
    form = source.reading.pixels or "rgb"
    mean, std = _normalisation(source, image_size, form)
    place = (source.name, split, files, labels, source.classes, mean, std, image_size)
    return FolderDataset(*place, task=source.collection.task, form=form)


def _normalisation(
    source: Source,
    image_size: tuple[int, int],
    form: str,
) -> tuple[Sequence[float], Sequence[float]]:
    """Return mean and deviation of each channel of pictures.

    These are ImageNet's for 8 bits; for 16 bits those of the training pictures, which may fill a
    small part of the range.
    """
    if form == "rgb":
        return MEAN, STD
    # Opacity is a share from 0 to 1, which ImageNet's pictures do not have.
    if form == "rgba":
        return (*MEAN, 0.5), (*STD, 0.5)
    trained = [source.collection.samples[i] for i in source.training]
    return moments(trained, image_size, form)


def _clouds(
    source: Source,
    split: str,
    chosen: np.ndarray,
) -> LabelledDataset:
    return PointDataset(
        source.name,
        split,
        source.prepared[torch.from_numpy(chosen)],
        labels_of(source, chosen),
        source.classes,
        source.scaling["points"],
        source.scaling["coordinates"],
        source.collection.task,
    )


def _fields(
    source: Source,
    split: str,
    chosen: np.ndarray,
) -> LabelledDataset:
    """Return fields on a grid, or on points of their own."""
    collection = source.collection
    answers = source.collection.labels
    if collection.coordinates is None:
        axes = (0, 2, 3)
        trained = answers[source.training]
    else:
        axes = (0,)
        trained = np.concatenate([answers[i] for i in source.training])
    scale = channel_scales(trained, axes)
    mean = trained.mean(axes, np.float64).tolist()
    name = source.reading.label or "answer"
    names = (name,)
    if trained.shape[1] > 1:
        names = numbered(name, trained.shape[1])

    if collection.coordinates is None:
        inputs = collection.samples[source.training]
        result = FieldDataset(
            source.name,
            split,
            torch.from_numpy(collection.samples[chosen]),
            torch.from_numpy(answers[chosen]),
            names,
            input_shift=inputs.mean(axes, dtype=np.float64).tolist(),
            input_scale=channel_scales(inputs, axes),
            scale=scale,
            mean=mean,
        )
    else:
        result = PointFieldDataset(
            source.name,
            split,
            [source.prepared[i] for i in chosen],
            [torch.from_numpy(answers[i]) for i in chosen],
            names,
            coordinates=collection.coordinates[0].shape[1],
            scale=scale,
            mean=mean,
        )
    result.notes = _far_from_zero(mean, scale)
    return result


def _far_from_zero(mean: Sequence[float], scale: Sequence[float]) -> tuple[str, ...]:
    """Return a note on answers whose mean is many of their deviations.

    Their relative error is small, whatever a model predicts.
    """
    for average, deviation in zip(mean, scale):
        if abs(average) > FAR * deviation:
            error = deviation / abs(average)
            return (
                f"the fields asked for are {average:.4g} on average and vary by {deviation:.4g} "
                f"alone: answering the mean everywhere has a relative error of about {error:.2g}",
            )
    return ()


def padded_steps(steps: Sequence[np.ndarray]) -> Tensor:
    """Return classes (N, points) of codes, IGNORED where one is missing and behind the end of a
    series.
    """
    rows = [torch.from_numpy(codes.astype(np.int64)) for codes in steps]
    classes = padded(rows, IGNORED)
    return classes.where(classes >= 0, IGNORED)
