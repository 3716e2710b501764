"""Description of a user's files before anything is trained: counts, gaps, rates, balance, and the
first samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..splits import SPLITS
from .casts import Coded
from .collection import Collection
from .schema import as_facts
from .terms import Terms, columns_of
from .writing import is_number

FIRST = 3  # samples that are shown
LINES = 4  # of each
CELLS = 6  # of each line
LARGE = 1e6  # of times, which six digits do not tell apart


def describe(source: Any) -> dict[str, Any]:
    """Facts of a :class:`.source.Source`, as JSON takes them."""
    collection: Collection = source.collection
    counts = [int((source.parts == number).sum()) for number in range(3)]
    facts = source.facts()
    return {
        "name": source.name,
        "path": str(source.path),
        "kind": collection.kind,
        "task": "field" if collection.kind == "fields" else collection.task,
        "samples": len(collection),
        "split": {"rule": facts["split"]["rule"], **dict(zip(SPLITS, counts, strict=True))},
        "taken": dict(collection.taken),
        "schema": as_facts(source.schema),
        "channels": list(collection.channels),
        **_target(collection),
        **_sizes(collection),
        **({"image_size": list(source.image_size)} if collection.kind == "images" else {}),
        "first": [_first(collection, i) for i in range(min(FIRST, len(collection)))],
        "remarks": list(collection.remarks),
    }


def _target(collection: Collection) -> dict[str, Any]:
    """Balance of classes, or the range of numbers."""
    labels = collection.labels
    if isinstance(labels, Coded):
        codes = labels.codes[labels.codes >= 0]
        counts = np.bincount(codes, minlength=len(labels.names)).tolist()
        return {"classes": dict(zip(labels.names, counts, strict=True))}
    if collection.kind == "fields":
        return {}
    values = {"least": labels.min(), "mean": labels.mean(), "most": labels.max()}
    return {"target": {name: float(value) for name, value in values.items()}}


def _sizes(collection: Collection) -> dict[str, Any]:
    """Lengths, rate and missing cells, as far as the kind has them."""
    kind, samples = collection.kind, collection.samples
    if kind == "texts":
        words = [len(text.split()) for text in samples]
        return {"words": _range(words)}
    if kind == "images":
        return {}
    if kind == "rows":
        return {"columns": samples.shape[1], "missing": float(np.isnan(samples).mean())}
    if kind == "fields" and collection.coordinates is None:
        return {"grid": list(samples.shape[2:]), "answers": int(collection.labels.shape[1])}
    lengths = {"points": _range([len(sample) for sample in samples])}
    if kind != "series":
        return lengths
    cells = sum(sample.size for sample in samples)
    missing = sum(int(np.isnan(sample).sum()) for sample in samples)
    return lengths | {"missing": missing / max(1, cells)} | _rate(collection)


def _rate(collection: Collection) -> dict[str, Any]:
    """The step between two times, and the longest gap, in units of the files."""
    if collection.times is None:
        return {"rate": "no times: one step between two rows"}
    gaps = np.concatenate([np.diff(times) for times in collection.times])
    if not len(gaps):
        return {}
    step = float(np.median(gaps))
    regular = bool((np.abs(gaps / step - 1) <= 1e-3).all())
    return {
        "rate": f"{'every' if regular else 'irregular, usually every'} {step:g}",
        "longest_gap": float(gaps.max()),
    }


def _range(values: list[int]) -> dict[str, int]:
    return {"least": min(values), "median": int(np.median(values)), "most": max(values)}


def _first(collection: Collection, number: int) -> dict[str, Any]:
    """One sample: where it is, its label, and its beginning."""
    return {
        "where": collection.where(number),
        "label": _label(collection, number),
        "beginning": _beginning(collection, number),
    }


def _label(collection: Collection, number: int) -> str:
    labels = collection.labels
    if collection.steps is not None:
        codes = collection.steps[number][:8]
        return " ".join(labels.names[code] if code >= 0 else "-" for code in codes)
    if isinstance(labels, Coded):
        return labels.names[labels.codes[number]]
    if collection.kind == "fields":
        return " × ".join(str(n) for n in labels[number].shape)
    return f"{labels[number]:.6g}"


def _beginning(collection: Collection, number: int) -> str:
    sample = collection.samples[number]
    if collection.kind == "texts":
        return sample[:80]
    if collection.kind == "images":  # a table of paths; else where it is says its name
        return "" if collection.where(number).endswith(sample.name) else sample.name
    if collection.kind == "rows" and collection.reading.channels:
        return _cells(collection, sample)
    rows = sample if collection.kind != "rows" else sample[None]
    if collection.kind == "fields" and collection.coordinates is None:
        rows = sample.reshape(len(sample), -1)
    lines = [_line(row) for row in rows[:LINES]]
    if collection.times is not None:
        start = (collection.starts or ["0"] * len(collection))[number]
        times = _shown_times(start, collection.times[number][:LINES])
        lines = [f"{time}: {line}" for time, line in zip(times, lines)]
    return "; ".join(lines) + ("; …" if len(rows) > LINES else "")


def _cells(collection: Collection, row: np.ndarray) -> str:
    """Return the first cells of a row as the table has them."""
    names = collection.reading.channels or ()
    terms = Terms(columns=tuple(columns_of(names[:CELLS], collection.words)))
    cells = [cell or "·" for cell in terms.cells(row)]
    if len(names) > CELLS:
        cells.append("…")
    return " ".join(cells)


def _shown_times(start: str, later: np.ndarray) -> list[str]:
    """Return times as text: of dates and large numbers, whose digits would hide what differs, the
    first, and how much later the others are.

    Example:
        >>> _shown_times("0.5", np.array([0.0, 1.5]))
        ['0.5', '2']
        >>> _shown_times("2026-01-01T00:00:00", np.array([0.0, 900.0]))
        ['2026-01-01T00:00:00', '+900']
    """
    if is_number(start) and abs(float(start)) < LARGE:
        return [f"{float(start) + time:g}" for time in later]
    return [start, *(f"+{time:g}" for time in later[1:])]


def _line(row: np.ndarray) -> str:
    cells = ["·" if np.isnan(value) else f"{value:.4g}" for value in row[:CELLS].tolist()]
    return " ".join(cells) + (" …" if len(row) > CELLS else "")
