"""New samples with labels, read as the training samples were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....errors import DataError
from ....progress import current
from ..kinds.picture_files import picture_size
from ..kinds.sequences import padded
from .casts import Coded
from .collect import collect
from .collection import Collection
from .columns import Trained
from .datasets import padded_steps
from .labels import with_labels
from .reading import Reading
from .unlabelled import NewSamples, Unlabelled, check_notation

BINS = 6  # most numbers of points with a group of their own


@dataclass(frozen=True)
class Labelled:
    """Samples with labels.

    Attributes:
        samples: inputs of a model.
        labels: maps numbers of samples to their labels: classes, numbers or fields in the units of
            the files; classes at every point are padded.
        resolutions: of each sample, in words; all the same for samples without.
    """

    samples: Unlabelled
    labels: Callable[[Sequence[int]], Tensor]
    resolutions: list[str]

    def __len__(self) -> int:
        return len(self.samples)


def read_labelled(
    path: str | Path,
    facts: Mapping[str, Any],
    encoder: Any,
    strict: bool = False,
    read: Mapping[str, str] | None = None,
) -> Labelled:
    """Return the samples of a file or folder and their labels.

    They are read as the data set was that ``facts`` describe. Samples without a label are left out
    and listed; where ``strict``, they are refused. ``read`` says how tables are written where they
    differ from the training tables.

    Raises:
        DataError: a file that cannot be read, holds other columns than the training files, or no
            labels, or a class that training did not have.
        OptionError: samples that are not read from files, or an impossible ``read``.
    """
    reader = NewSamples.of(facts, encoder, strict, read)
    place = Path(path)
    reading = reader.reading
    source = reader.source
    if not place.exists():
        raise DataError(f"{place}: no such file or folder")
    if read:
        check_notation(str(path), place, reading, read)
    trained = None
    if reading.label is not None:
        trained = Trained.of(source, reading)
    collection = with_labels(collect(place, reading, labelled=True, trained=trained))
    for line in collection.remarks:
        current().note(line)
    # A score on training samples looks better than the model is.
    if source and collection.files == source.get("files"):
        current().note(
            f"{place}: these are the files that the run learned from, so most of their samples are "
            "not new; without files, evaluate measures the held-out test samples"
        )
    return Labelled(
        reader.samples_of(collection, place),
        _labels(collection, facts),
        _resolutions(collection, reading, source),
    )


def _labels(collection: Collection, facts: Mapping[str, Any]) -> Callable[[Sequence[int]], Tensor]:
    """Return a function from numbers of samples to their labels."""
    labels = collection.labels
    steps = collection.steps
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
    known = [np.where(part < 0, -1, codes[part]) for part in steps]
    return lambda chosen: padded_steps([known[i] for i in chosen])


def _codes(
    collection: Collection,
    labels: Coded,
    facts: Mapping[str, Any],
) -> np.ndarray:
    """Return the run's number of each class of the file, -1 for a new one that no sample has.

    Raises:
        DataError: naming the first sample of a class that training did not have.
    """
    place = {name: number for number, name in enumerate(facts["classes"])}
    codes = np.array([place.get(name, -1) for name in labels.names], np.int64)
    parts: Iterable[np.ndarray] = labels.codes[:, None]
    if collection.steps is not None:
        parts = collection.steps
    for number, part in enumerate(parts):
        new = [code for code in part[part >= 0] if codes[code] < 0]
        if new:
            raise DataError(
                f"{collection.where(number)}: expected a class of the training, "
                f"{', '.join(place)}, got {labels.names[new[0]]!r}; correct it, or leave the "
                "sample out"
            )
    return codes


def _fields(answers: list[np.ndarray], collection: Collection) -> Tensor:
    """Return fields (B, K, h, w), or on points (B, K, P), NaN where a sample has fewer points."""
    parts = [torch.from_numpy(np.asarray(answer, np.float64)) for answer in answers]
    if collection.coordinates is None:
        return torch.stack(parts)
    return padded(parts).mT


# --- resolutions ----------------------------------------------------------------------------------


def _resolutions(
    collection: Collection,
    reading: Reading,
    source: Mapping[str, Any],
) -> list[str]:
    """Return the resolution of each sample in words, by which scores are grouped."""
    count = len(collection)
    kind = collection.kind
    samples = collection.samples
    if kind == "images":
        return [" × ".join(map(str, picture_size(path))) for path in samples]
    if kind == "fields" and collection.coordinates is None:
        return [" × ".join(map(str, samples.shape[2:]))] * count
    if kind == "series" and collection.times is not None:
        step = float((source.get("scaling") or {}).get("step", 1.0))
        return _rates(collection.times, step, reading.time or "time")
    if kind in ("series", "clouds", "fields"):
        return _point_counts([len(sample) for sample in samples])
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


def _rates(
    times: Sequence[np.ndarray],
    step: float,
    clock: str,
) -> list[str]:
    """Return the median gap between two points of each series in words.

    More than :data:`BINS` different gaps are binned: to the nearest power of two times the ``step``
    of training.

    Example:
        >>> _rates([np.array([0, 0.5]), np.array([0, 1, 2]), np.zeros(1)], 0.5, "seconds")
        ['seconds: every 0.5', 'seconds: every 1', 'one point']
        >>> _rates([np.array([0, 0.1 + 0.01 * i]) for i in range(8)], 0.1, "seconds")[::7]
        ['seconds: about every 0.1', 'seconds: about every 0.2']
    """
    gaps = []
    for clocks in times:
        gap = 0.0
        if len(clocks) > 1:
            gap = float(np.median(np.diff(clocks)))
        gaps.append(gap)
    about = ""
    if len({f"{gap:.3g}" for gap in gaps}) > BINS:
        about = "about "
    words = []
    for gap in gaps:
        if about and gap > 0:
            gap = step * 2 ** round(np.log2(gap / step))
        word = "one point"
        if gap:
            word = f"{clock}: {about}every {gap:.3g}"
        words.append(word)
    return words
