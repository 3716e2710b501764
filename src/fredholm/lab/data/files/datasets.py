"""The data sets of what was read, a function for each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from .collection import Collection
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
FAR = 10.0  # deviations from zero
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's


def kind_of(collection: Collection) -> Kind:
    """Return the kind of samples, as a saved model remembers it."""
    return KINDS[collection.kind] if collection.coordinates is None else POINT_FIELDS


def as_read(collection: Collection, scaling: Mapping[str, Any]) -> Any:
    """Return series, rows, clouds or fields as tensors of :func:`.scaling.as_arrays`: one, or a
    list with one per sample.
    """
    arrays = as_arrays(collection, scaling)
    if isinstance(arrays, np.ndarray):
        return torch.from_numpy(arrays)
    return [torch.from_numpy(array) for array in arrays]


def make_dataset(
    source: Source,
    split: str,
    chosen: np.ndarray,
    *,
    image_size: tuple[int, int] | None,
    text: TextOptions | None,
) -> LabelledDataset:
    """The data set of the samples ``chosen``; see :meth:`.source.Source.dataset`."""
    kind = source.collection.kind
    if kind == "texts":
        return _texts(source, split, chosen, text or TextOptions())
    if kind == "images":
        return _images(source, split, chosen, image_size or source.image_size)
    if source.collection.coordinates is not None:
        return _point_fields(source, split, chosen)
    return {"series": _series, "rows": _rows, "clouds": _clouds, "fields": _fields}[kind](
        source, split, chosen
    )


def labels_of(source: Source, chosen: np.ndarray) -> Tensor:
    """Class numbers, or scaled targets."""
    labels = source.collection.labels
    if isinstance(labels, Coded):
        return torch.from_numpy(labels.codes[chosen].astype(np.int64))
    shift, scale = source.units
    return torch.from_numpy(((labels[chosen] - shift) / scale).astype(np.float32))


def _series(source: Source, split: str, chosen: np.ndarray) -> LabelledDataset:
    rows = [source.prepared[i] for i in chosen]
    steps = source.collection.steps
    labels = (
        labels_of(source, chosen) if steps is None else _padded_steps([steps[i] for i in chosen])
    )
    result = SequenceDataset(
        source.name,
        split,
        labels,
        source.classes,
        lambda indices: padded([rows[i] for i in indices.tolist()]),
        shape=(
            longest(source.collection, source.training, source.scaling),
            source.collection.samples[0].shape[1],
        ),
        task=source.collection.task,
        timed=source.scaling["timed"],
    )
    result.pool = None if steps is None else "every"
    return result


def _rows(source: Source, split: str, chosen: np.ndarray) -> LabelledDataset:
    rows = source.prepared[torch.from_numpy(chosen)]
    shape = (rows.shape[1], 1)
    return SequenceDataset(
        source.name,
        split,
        labels_of(source, chosen),
        source.classes,
        rows.__getitem__,
        shape=shape,
        task=source.collection.task,
    )


def _texts(source: Source, split: str, chosen: np.ndarray, options: TextOptions) -> LabelledDataset:
    texts = source.collection.samples
    vocabulary = options.make_vocabulary([texts[i] for i in source.training])
    regression = source.collection.task == "regression"
    labels = labels_of(source, chosen)
    return TextDataset(
        source.name,
        split,
        [texts[i] for i in chosen],
        torch.zeros(len(chosen), dtype=torch.int64) if regression else labels,
        ("",) if regression else source.classes,
        vocabulary,
        options.length,
        labels if regression else None,
        source.collection.task,
    )


def _images(
    source: Source, split: str, chosen: np.ndarray, image_size: tuple[int, int]
) -> LabelledDataset:
    files = [source.collection.samples[i] for i in chosen]
    labels = labels_of(source, chosen)
    form = source.reading.pixels or "rgb"
    mean, std = _normalisation(source, image_size, form)
    place = (source.name, split, files, labels, source.classes, mean, std, image_size)
    return FolderDataset(*place, task=source.collection.task, form=form)


def _normalisation(
    source: Source, image_size: tuple[int, int], form: str
) -> tuple[Sequence[float], Sequence[float]]:
    """Return mean and deviation of each channel of pictures: ImageNet's, whose pictures have 8
    bits; of 16 bits those of training pictures, which may fill a small part of the range.
    """
    if form == "rgb":
        return MEAN, STD
    if form == "rgba":
        return (*MEAN, 0.5), (*STD, 0.5)
    trained = [source.collection.samples[i] for i in source.training]
    return moments(trained, image_size, form)


def _clouds(source: Source, split: str, chosen: np.ndarray) -> LabelledDataset:
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


def _fields(source: Source, split: str, chosen: np.ndarray) -> LabelledDataset:
    inputs, answers = source.collection.samples, source.collection.labels
    trained, asked = inputs[source.training], answers[source.training]
    scale, mean = channel_scales(asked, (0, 2, 3)), asked.mean((0, 2, 3), np.float64).tolist()
    result = FieldDataset(
        source.name,
        split,
        torch.from_numpy(inputs[chosen]),
        torch.from_numpy(answers[chosen]),
        _answers(source, answers.shape[1]),
        input_shift=trained.mean((0, 2, 3), dtype=np.float64).tolist(),
        input_scale=channel_scales(trained, (0, 2, 3)),
        scale=scale,
        mean=mean,
    )
    result.notes = _far_from_zero(mean, scale)
    return result


def _point_fields(source: Source, split: str, chosen: np.ndarray) -> LabelledDataset:
    assert source.collection.coordinates is not None
    answers = source.collection.labels
    trained = [answers[i] for i in source.training]
    scale = channel_scales(trained, (0,))
    mean = np.concatenate(trained).mean(0, np.float64).tolist()
    result = PointFieldDataset(
        source.name,
        split,
        [source.prepared[i] for i in chosen],
        [torch.from_numpy(answers[i]) for i in chosen],
        _answers(source, answers[0].shape[1]),
        coordinates=source.collection.coordinates[0].shape[1],
        scale=scale,
        mean=mean,
    )
    result.notes = _far_from_zero(mean, scale)
    return result


def _far_from_zero(mean: Sequence[float], scale: Sequence[float]) -> tuple[str, ...]:
    """What is said of answers whose mean is many of their deviations: a relative error of them is
    small whatever a model does.
    """
    far = np.abs(mean) > FAR * np.array(scale)
    if not far.any():
        return ()
    k = int(far.argmax())
    error = scale[k] / abs(mean[k])
    return (
        f"the fields asked for are {mean[k]:.4g} on average and vary by {scale[k]:.4g} alone: "
        f"answering the mean everywhere has a relative error of about {error:.2g}",
    )


def _answers(source: Source, count: int) -> tuple[str, ...]:
    name = source.reading.label or "answer"
    return (name,) if count == 1 else tuple(f"{name} {i + 1}" for i in range(count))


def _padded_steps(steps: list[np.ndarray]) -> Tensor:
    """Classes (N, points), IGNORED where none is asked."""
    result = torch.full((len(steps), max(map(len, steps))), IGNORED)
    for row, codes in enumerate(steps):
        values = torch.from_numpy(codes.astype(np.int64))
        result[row, : len(values)] = torch.where(values < 0, IGNORED, values)
    return result
