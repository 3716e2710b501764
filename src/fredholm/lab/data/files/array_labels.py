"""Labels in arrays: classes or numbers of samples, or classes at every point."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from .casts import Coded
from .collection import coded, looks_continuous
from .named import LABELS, needed, rule_of
from .reading import Reading

MANY = 10_000  # values that tell numbers from classes


def read_labels(
    path: Path,
    arrays: dict[str, np.ndarray],
    reading: Reading,
    labelled: bool,
    count: int,
    samples: list[np.ndarray] | None,
) -> tuple[Reading, Any, list[np.ndarray] | None]:
    """(the reading with label and task, labels, classes at every point)."""
    if not labelled:
        return reading, None, None
    key = needed(arrays, LABELS, reading.label, path, "labels")
    values = arrays[key]
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    settled = reading.settled(label=key, split=rule_of(reading))
    if samples is not None and values.ndim == 2 and len(values) == count:
        return settled.settled(task="steps"), *_steps(values, samples, f"{path}: {key!r}")
    if values.shape != (count,):
        raise DataError(f"{path}: {key!r} has shape {arrays[key].shape}; needs ({count},)")
    if reading.task == "steps":
        raise DataError(
            f"{path}: {key!r} has shape {values.shape}; needs a class at every point, as asked for "
            "by task steps, or had by the training files"
        )
    words = [word_of(value) for value in values.tolist()]
    task = reading.task
    if task is None:
        task = "regression" if looks_continuous(known_words(words)) else "classification"
    if task == "regression":
        return settled.settled(task=task), _numbers(values, f"{path}: {key!r}"), None
    return settled.settled(task=task), coded(words, known_words(words)), None


def _numbers(values: np.ndarray, where: str) -> np.ndarray:
    try:
        return values.astype(np.float64)
    except ValueError as error:
        raise DataError(f"{where}: {error}; needs numbers, as a regression is asked for") from error


def word_of(value: Any) -> str:
    """A class's name: 3.0 is 3, bytes are text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def known_words(words: Iterable[str]) -> list[str]:
    """Those that are not missing."""
    return [word for word in words if word not in ("nan", "")]


def _steps(
    values: np.ndarray, samples: list[np.ndarray], where: str
) -> tuple[Coded, list[np.ndarray]]:
    rows, longest = values.tolist(), max(len(s) for s in samples)
    known = known_words(word_of(value) for value in values.ravel()[:MANY])
    if values.shape[1] < longest or looks_continuous(known):
        raise DataError(
            f"{where} has shape {values.shape}; needs ({len(rows)},), a class "
            f"or a number of each sample, or ({len(rows)}, {longest}), a class at every point"
        )
    whole = [[word_of(v) for v in row[: len(s)]] for row, s in zip(rows, samples)]
    words = [word for row in whole for word in row]
    found = coded(words, known_words(words))
    return found, np.split(found.codes, np.cumsum([len(row) for row in whole])[:-1])
