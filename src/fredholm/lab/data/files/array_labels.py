"""Labels in arrays: classes or numbers of samples, or classes at every point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ....errors import DataError
from .collection import coded, looks_continuous
from .named import LABELS, ArrayFile, rule_of
from .reading import Reading

MANY = 10_000  # values that tell numbers from classes


class Labels(NamedTuple):
    """Labels of arrays.

    Attributes:
        reading: with the array of the labels and their task.
        labels: classes as :class:`Coded`, or numbers; None where none are read.
        steps: of series with a class at every point, the codes of each.
    """

    reading: Reading
    labels: Any = None
    steps: list[np.ndarray] | None = None


def read_labels(
    file: ArrayFile,
    count: int,
    samples: list[np.ndarray] | None,
) -> Labels:
    """Read the labels of ``count`` samples.

    Args:
        samples: series, whose points may have a label each; None: one label per sample.

    Raises:
        DataError: labels of another shape, or words where a regression is asked for.
    """
    reading = file.reading
    if not file.labelled:
        return Labels(reading)
    key = file.needed(LABELS, reading.label, "labels")
    values = file[key]
    # Columns (N, 1) are common where scikit-learn made the labels.
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    settled = reading.settled(label=key, split=rule_of(reading))
    # Two axes are labels at every point; only series can have these.
    if samples is not None and values.ndim == 2 and len(values) == count:
        return _steps(file, key, settled, samples)
    if values.shape != (count,):
        raise file.error(key, f"({count},)", "give one label per sample")
    if reading.task == "steps":
        raise file.error(
            key,
            "a class at every point, as task steps and the training files have",
            "give labels (series, points), or leave task out",
        )

    # Words may be missing as an empty text, numbers as NaN.
    words = [word_of(value) for value in values.tolist()]
    known = known_words(words)
    task = reading.task
    if task is None:
        task = "classification"
        if looks_continuous(known):
            task = "regression"
    settled = settled.settled(task=task)
    if task != "regression":
        return Labels(settled, coded(words, known))
    try:
        return Labels(settled, values.astype(np.float64))
    except ValueError as error:
        raise DataError(
            f"{file.path}: {key!r}: expected numbers for a regression ({error}); correct them, or "
            "pass task classification"
        ) from error


def word_of(value: Any) -> str:
    """Return the name of a class: of 3.0 it is 3, and bytes are text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return str(value)


def known_words(words: Iterable[str]) -> list[str]:
    """Return the words that are not missing."""
    return [word for word in words if word not in ("nan", "")]


def _steps(
    file: ArrayFile,
    key: str,
    reading: Reading,
    samples: list[np.ndarray],
) -> Labels:
    """Read one class per point from an array (N, points), padded at the ends of shorter series."""
    # Numbers at every point are a field, which is not what series are learned for.
    values = file[key]
    longest = max(map(len, samples))
    some = known_words(map(word_of, values.ravel()[:MANY].tolist()))
    if values.shape[1] < longest or looks_continuous(some):
        count = len(samples)
        raise file.error(
            key,
            f"({count},), a class or a number per sample, or ({count}, {longest}), a class at "
            "every point",
            "bring it to one of these",
        )
    words = []
    lengths = []
    for row, sample in zip(values.tolist(), samples):
        words += map(word_of, row[: len(sample)])
        lengths.append(len(sample))
    found = coded(words, known_words(words))
    steps = np.split(found.codes, np.cumsum(lengths)[:-1])
    return Labels(reading.settled(task="steps"), found, steps)
