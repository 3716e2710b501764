"""The answer to every test sample of a training, small enough to be committed.

A row of results has them under ``answers``, by the metric that is their mean:
``{"accuracy": {"n": 370, "right": "..."}}``, one bit per sample, or
``{"loss": {"n": 500, "errors": "..."}}``, one float16 per sample. Both are compressed and written
in base64: 10,000 right or wrong answers take at most 1,700 characters.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

Packed = dict[str, Any]
TOLERANCE = 2e-3
"""Largest relative error of a mean of numbers that were rounded to float16."""


def pack(values: Sequence[float]) -> Packed:
    """Write one number per sample in a few characters.

    Example:
        >>> pack([1.0, 0.0, 1.0])["n"], unpack(pack([1.0, 0.0, 1.0])).tolist()
        (3, [1.0, 0.0, 1.0])
    """
    numbers = np.asarray(values, dtype=np.float64)
    if np.isin(numbers, (0.0, 1.0)).all():
        return {"n": len(numbers), "right": _text(np.packbits(numbers.astype(bool)))}

    # An error beyond the range of float16 is still an error: the largest number, not infinity.
    largest = float(np.finfo(np.float16).max)
    halves = np.clip(numbers, -largest, largest).astype("<f2")
    return {"n": len(numbers), "errors": _text(halves)}


def unpack(packed: Packed) -> np.ndarray:
    """Return the numbers that `pack` wrote, (n,) in float64."""
    if "right" in packed:
        bits = np.frombuffer(_bytes(packed["right"]), dtype=np.uint8)
        return np.unpackbits(bits, count=packed["n"]).astype(np.float64)
    return np.frombuffer(_bytes(packed["errors"]), dtype="<f2").astype(np.float64)


def answers_of(scores: dict[str, Any], name: str | None = None) -> dict[str, Packed]:
    """Return an evaluation's numbers per sample for a row of results.

    Args:
        scores: the result of ``evaluate(..., each=True)``.
        name: the row's name of the metric, where the evaluation's differs.
    """
    each = scores["each"]
    return {name or each["measure"]: pack(each["values"])}


def answers_in(row: dict[str, Any], metric: str) -> np.ndarray | None:
    """Return the numbers whose mean is ``row[metric]``, or None if the row does not have them.

    Numbers with another mean do not belong to the metric. An example is a mean over all points
    where samples have unequal numbers of points.
    """
    packed = row.get("answers", {}).get(metric)
    if packed is None:
        return None
    values = unpack(packed)
    score = float(row[metric])
    if not abs(float(values.mean()) - score) <= TOLERANCE * max(abs(score), 1e-3):
        return None
    return values


def _text(values: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(values.tobytes(), 9)).decode("ascii")


def _bytes(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))
