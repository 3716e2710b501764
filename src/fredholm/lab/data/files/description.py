"""Description of a user's files before training: counts, gaps, rates, balance, first samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...numbers import readable
from ..splits import SPLITS
from .casts import Coded
from .channels import word_channel
from .collection import Collection
from .scaling import EVEN
from .terms import Terms, columns_of
from .writing import is_number

FIRST = 3  # samples that are shown
LINES = 4  # lines per sample
CELLS = 6  # cells per line

# Times from which on six digits do not tell one from the next.
LARGE = 1e6


def describe(source: Any) -> dict[str, Any]:
    """Return facts of a :class:`.source.Source`, as JSON stores them."""
    collection: Collection = source.collection
    split = source.facts()["split"]
    task = collection.task
    if collection.kind == "fields":
        task = "field"
    shown = min(FIRST, len(collection))

    result: dict[str, Any] = {
        "name": source.name,
        "path": str(source.path),
        "kind": collection.kind,
        "task": task,
        "samples": len(collection),
        "split": {key: split[key] for key in ("rule", *SPLITS)},
        "taken": dict(collection.taken),
        "schema": [entry._asdict() for entry in source.schema],
        "channels": list(collection.channels),
        **_target(collection),
        **_sizes(collection),
    }
    if collection.kind == "images":
        result["image_size"] = list(source.image_size)
    return result | {
        "first": [_first(collection, number) for number in range(shown)],
        "remarks": list(collection.remarks),
    }


def _target(collection: Collection) -> dict[str, Any]:
    """Return the balance of classes, or the range of numbers."""
    labels = collection.labels
    if isinstance(labels, Coded):
        known = labels.codes[labels.codes >= 0]
        counts = np.bincount(known, minlength=len(labels.names))
        balance = dict(zip(labels.names, counts.tolist(), strict=True))
        return {"classes": balance}
    if collection.kind == "fields":
        return {}
    target = {
        "least": float(labels.min()),
        "mean": float(labels.mean()),
        "most": float(labels.max()),
    }
    return {"target": target}


def _sizes(collection: Collection) -> dict[str, Any]:
    """Return lengths, rate and missing cells, as far as the kind has them."""
    kind = collection.kind
    samples = collection.samples
    if kind == "texts":
        words = [len(text.split()) for text in samples]
        return {"words": _range(words)}
    if kind == "images":
        return {}
    if kind == "rows":
        return {
            "columns": samples.shape[1],
            "missing": _missing_cells(collection),
        }
    if kind == "fields" and collection.coordinates is None:
        answers = collection.labels.shape[1]
        return {"grid": list(samples.shape[2:]), "answers": int(answers)}

    lengths = [len(sample) for sample in samples]
    points = _range(lengths)
    if kind != "series":
        return {"points": points}

    cells = 0
    missing = 0
    for sample in samples:
        cells += sample.size
        missing += int(np.isnan(sample).sum())
    return {
        "points": points,
        "missing": missing / max(1, cells),
        **_rate(collection),
    }


def _missing_cells(collection: Collection) -> float:
    """Return the share of missing cells in the columns of a table of rows.

    A column of words has one channel per word, and all of them are NaN where its cell is empty. So
    each column is counted by its first channel.
    """
    further = set()
    for column, words in (collection.words or {}).items():
        further.update(word_channel(column, word) for word in words[1:])
    first = [channel not in further for channel in collection.channels]
    columns = collection.samples[:, first]
    missing = np.isnan(columns)
    return float(missing.mean())


def _rate(collection: Collection) -> dict[str, Any]:
    """Return the step between two times, and the longest gap, in units of the files."""
    # Without times, users see how their rows are taken, and can name the column.
    if collection.times is None:
        return {"rate": "no times: one step between two rows"}
    gaps = np.concatenate([np.diff(times) for times in collection.times])
    if not len(gaps):
        return {}

    step = float(np.median(gaps))
    rate = f"every {readable(step, 6)}"
    even = np.abs(gaps / step - 1) <= EVEN
    if not even.all():
        rate = f"irregular, usually {rate}"
    return {"rate": rate, "longest_gap": float(gaps.max())}


def _range(values: list[int]) -> dict[str, int]:
    return {
        "least": min(values),
        "median": int(np.median(values)),
        "most": max(values),
    }


def _first(collection: Collection, number: int) -> dict[str, Any]:
    """Return the place, the label and the beginning of a sample."""
    return {
        "where": collection.where(number),
        "label": _label(collection, number),
        "beginning": _beginning(collection, number),
    }


def _label(collection: Collection, number: int) -> str:
    labels = collection.labels
    if collection.steps is not None:
        # The name behind the last one is that of the code -1, a missing class.
        names = [*labels.names, "-"]
        codes = collection.steps[number][:8]
        return " ".join(names[code] for code in codes)
    if isinstance(labels, Coded):
        code = labels.codes[number]
        return labels.names[code]

    label = labels[number]
    if collection.kind == "fields":
        return " × ".join(map(str, label.shape))
    return readable(float(label), 6)


def _beginning(collection: Collection, number: int) -> str:
    """Return the first cells, points or words of a sample."""
    sample = collection.samples[number]
    kind = collection.kind
    if kind == "texts":
        return sample[:80]
    if kind == "images":
        # Without a table, the place of a picture is its path already.
        if collection.where(number).endswith(sample.name):
            return ""
        return sample.name
    rows = sample
    if kind == "rows":
        if collection.reading.channels:
            return _cells(collection, sample)
        rows = sample[None]
    elif kind == "fields" and collection.coordinates is None:
        rows = sample.reshape(len(sample), -1)

    lines = [_line(row) for row in rows[:LINES]]
    if collection.times is not None:
        start = "0"
        if collection.starts:
            start = collection.starts[number]
        later = collection.times[number][:LINES]
        times = _shown_times(start, later)
        lines = [f"{time}: {line}" for time, line in zip(times, lines)]
    if len(rows) > LINES:
        lines.append("…")
    return "; ".join(lines)


def _cells(collection: Collection, row: np.ndarray) -> str:
    """Return the first cells of a row as the table has them: words instead of their columns."""
    names = collection.reading.channels or ()
    columns = columns_of(names[:CELLS], collection.words)
    terms = Terms(columns=tuple(columns))
    cells = [cell or "·" for cell in terms.cells(row)]
    if len(names) > CELLS:
        cells.append("…")
    return " ".join(cells)


def _shown_times(start: str, later: np.ndarray) -> list[str]:
    """Return times as text.

    Dates and large numbers are shown as the first time and the differences to it: six digits of
    1,700,000,000 hide the seconds.

    Example:
        >>> _shown_times("0.5", np.array([0.0, 1.5]))
        ['0.5', '2']
        >>> _shown_times("2026-01-01T00:00:00", np.array([0.0, 900.0]))
        ['2026-01-01T00:00:00', '+900']
    """
    if is_number(start) and abs(float(start)) < LARGE:
        first = float(start)
        return [f"{first + time:g}" for time in later]
    differences = [f"+{readable(time, 6)}" for time in later[1:]]
    return [start, *differences]


def _line(row: np.ndarray) -> str:
    cells = [readable(value) for value in row[:CELLS].tolist()]
    cells = [cell.replace("nan", "·") for cell in cells]
    if len(row) > CELLS:
        cells.append("…")
    return " ".join(cells)
