"""Samples with labels that a run has not seen, read as the training samples were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....errors import DataError
from ....progress import current
from ..kinds.dataset import IGNORED
from .casts import Coded
from .collect import collect
from .collection import Collection
from .columns import Trained
from .labels import with_labels
from .reading import Reading
from .unlabelled import Unlabelled, read_collection, reading_of

BINS = 6  # different numbers of points that are told apart one by one


@dataclass(frozen=True)
class Labelled:
    """Samples with labels.

    Attributes:
        samples: inputs of a model.
        labels: of some samples, by their numbers: classes, numbers or fields in the units of the
            files; classes at every point are padded.
        resolutions: of each sample, in words; all alike where samples have none.
    """

    samples: Unlabelled
    labels: Callable[[Sequence[int]], Tensor]
    resolutions: list[str]

    def __len__(self) -> int:
        return len(self.samples)


def read_labelled(
    path: str | Path, facts: Mapping[str, Any], encoder: Any, strict: bool = False
) -> Labelled:
    """Return the samples of a file or folder and their labels, read as the data set was that
    ``facts`` describe. Samples without a label are left out and listed; where ``strict``, refused.

    Raises:
        DataError: a file that cannot be read, holds other columns than the training files, or no
            labels, or a class that training did not have.
        OptionError: samples that are not read from files.
    """
    reading, source = reading_of(facts, strict), facts.get("source") or {}
    place = Path(path)
    if not place.exists():
        raise DataError(f"{place}: no such file or folder")
    trained = Trained.of(source, reading)
    if trained is not None and reading.label is None:
        trained = None
    collection = with_labels(collect(place, reading, labelled=True, trained=trained))
    for line in collection.remarks:
        current().note(line)
    if source and collection.files == source.get("files"):
        current().note(
            f"{place}: these are the files that the run learned from, so most of their samples are "
            "not new; without files, evaluate measures the held-out test samples"
        )
    samples = read_collection(collection, place, reading, facts, encoder)
    labels = _labels(collection, facts)
    return Labelled(samples, labels, _resolutions(collection, reading, source))


def _labels(collection: Collection, facts: Mapping[str, Any]) -> Callable[[Sequence[int]], Tensor]:
    """Return a function that gives the labels of some samples."""
    labels, steps = collection.labels, collection.steps
    if labels is None:
        raise DataError(f"{collection.name}: expected a label of each sample, got none; add them")
    if collection.kind == "fields":
        return lambda chosen: _fields([labels[i] for i in chosen], collection)
    if not isinstance(labels, Coded):
        numbers = torch.from_numpy(np.asarray(labels, np.float64))
        return lambda chosen: numbers[torch.as_tensor(chosen)]
    codes = _codes(collection, labels, facts)
    if steps is None:
        classes = torch.from_numpy(codes[labels.codes])
        return lambda chosen: classes[torch.as_tensor(chosen)]
    known = [torch.from_numpy(np.where(part < 0, IGNORED, codes[part])) for part in steps]
    pad = torch.nn.utils.rnn.pad_sequence
    return lambda chosen: pad([known[i] for i in chosen], True, IGNORED)


def _codes(collection: Collection, labels: Coded, facts: Mapping[str, Any]) -> np.ndarray:
    """Return the run's number of each class of the file; one that no sample has may be new.

    Raises:
        DataError: naming the first sample of a class that training did not have.
    """
    place = {name: number for number, name in enumerate(facts["classes"])}
    codes = np.array([place.get(name, -1) for name in labels.names], np.int64)
    parts = [labels.codes[:, None]] if collection.steps is None else collection.steps
    for number, part in enumerate(parts):
        found = part[part >= 0]
        if (codes[found] < 0).any():
            name = labels.names[int(found[codes[found] < 0][0])]
            raise DataError(
                f"{collection.where(number)}: expected a class of the training, "
                f"{', '.join(place)}, got {name!r}; correct it, or leave the sample out"
            )
    return codes


def _fields(answers: list[np.ndarray], collection: Collection) -> Tensor:
    """Fields (B, K, h, w), or on points (B, K, P), NaN where a sample has fewer."""
    parts = [torch.from_numpy(np.asarray(answer, np.float64)) for answer in answers]
    if collection.coordinates is None:
        return torch.stack(parts)
    return torch.nn.utils.rnn.pad_sequence(parts, True, torch.nan).mT


# --- resolutions ----------------------------------------------------------------------------------


def _resolutions(collection: Collection, reading: Reading, source: Mapping[str, Any]) -> list[str]:
    """Return how finely each sample is sampled, in words."""
    count = len(collection)
    if collection.kind == "fields" and collection.coordinates is None:
        grid = " × ".join(str(n) for n in collection.samples.shape[2:])
        return [grid] * count
    if collection.kind == "images":
        from ..kinds.images import picture_size

        return [" × ".join(map(str, picture_size(path))) for path in collection.samples]
    if collection.kind == "series" and collection.times is not None:
        gaps = [float(np.median(np.diff(t))) if len(t) > 1 else np.nan for t in collection.times]
        step = float((source.get("scaling") or {}).get("step", 1.0))
        return _rates(gaps, step, reading.time or "time")
    if collection.kind in ("series", "clouds", "fields"):
        return _point_counts([len(sample) for sample in collection.samples])
    return [""] * count


def _point_counts(points: list[int]) -> list[str]:
    """Return the number of points of each sample in words, by which samples are grouped.

    More than :data:`BINS` different numbers are binned: each bin ends at twice its start, less one.

    Example:
        >>> _point_counts([8, 16, 8])
        ['8 points', '16 points', '8 points']
        >>> _point_counts([3, 4, 5, 6, 7, 8, 9])[:3]
        ['2 to 3 points', '4 to 7 points', '4 to 7 points']
    """
    if len(set(points)) <= BINS:
        return [f"{count:,} points" for count in points]

    # The largest power of two that is no larger than the count.
    starts = [1 << (count.bit_length() - 1) for count in points]
    return [f"{start:,} to {2 * start - 1:,} points" for start in starts]


def _rates(gaps: list[float], step: float, clock: str) -> list[str]:
    """Return the usual gap between two points of each series in words; of many different ones the
    nearest that is a power of two times the ``step`` of training.

    Example:
        >>> _rates([0.5, 1.0, float("nan")], 0.5, "seconds")
        ['seconds: every 0.5', 'seconds: every 1', 'one point']
        >>> _rates([0.1 + 0.01 * i for i in range(8)], 0.1, "seconds")[::7]
        ['seconds: about every 0.1', 'seconds: about every 0.2']
    """
    about = ""
    if len({f"{gap:.3g}" for gap in gaps}) > BINS:
        gaps = [step * 2 ** round(np.log2(gap / step)) if gap > 0 else gap for gap in gaps]
        about = "about "
    return [f"{clock}: {about}every {gap:.3g}" if gap == gap else "one point" for gap in gaps]
