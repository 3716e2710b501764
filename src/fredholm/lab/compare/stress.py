"""Stress tests of an answer: samples of a series are lost, or come at half the rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..data.counter import uniform
from ..data.kinds.sequences import padded
from ..training.tasks import task_of


def applies(dataset: Any) -> bool:
    """Return whether the samples are series, with one answer each."""
    return dataset.kind.sampled and task_of(dataset).lone


def keep(
    series: Float[Tensor, "b n c"],
    kept: Bool[Tensor, "b n"],
    timed: bool,
) -> Tensor:
    """Return series with only the points ``kept``, and their first point in any case.

    In a regular series the others become NaN, so that the rest stays in its place. A series with
    times gets shorter.

    Example:
        >>> series = torch.tensor([[[1.0], [2.0], [3.0]]])
        >>> keep(series, torch.tensor([[True, False, True]]), timed=False).flatten().tolist()
        [1.0, nan, 3.0]
    """
    kept = kept.clone()
    kept[:, 0] = True
    if not timed:
        return torch.where(kept[..., None], series, torch.nan)
    present = ~series[..., 0].isnan()
    rows = []
    for row, here in zip(series, kept & present):
        rows.append(row[here])
    return padded(rows)


def lose(
    series: Float[Tensor, "b n c"],
    share: float,
    timed: bool,
) -> Tensor:
    """Return series without a random share of their points, drawn for each series of a batch."""
    batch, points = series.shape[:2]
    sample = torch.arange(batch)[:, None]
    point = torch.arange(points)
    draws = uniform(0, sample, point)
    return keep(series, draws >= share, timed)


def halve(
    series: Float[Tensor, "b n c"],
    timed: bool,
) -> Tensor:
    """Return every other point of each series."""
    batch, points = series.shape[:2]
    even = torch.arange(points) % 2 == 0
    return keep(series, even.expand(batch, -1), timed)


STRESSES: dict[str, Callable[..., Tensor]] = {
    "30% lost": lambda series, timed: lose(series, 0.3, timed),
    "50% lost": lambda series, timed: lose(series, 0.5, timed),
    "half the rate": halve,
}
"""Changes of a batch of series by name; the second argument is whether they bring their times."""
