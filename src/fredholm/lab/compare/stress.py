"""What becomes of an answer when samples of a series are lost, or come at half the rate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..data.counter import uniform
from ..data.kinds.sequences import padded
from ..training.tasks import task_of

Change = Callable[[Tensor], Tensor]


def applies(dataset: Any) -> bool:
    """Whether samples of a data set can be lost: of series with one answer each."""
    return dataset.kind.sampled and task_of(dataset).lone


def keep(series: Float[Tensor, "b n c"], kept: Bool[Tensor, "b n"], timed: bool) -> Tensor:
    """Series without the points that are not kept; their first point stays.

    Of a regular series they become gaps of NaN, so that what is left keeps its place; of one with
    times they are taken out.

    Example:
        >>> series = torch.tensor([[[1.0], [2.0], [3.0]]])
        >>> keep(series, torch.tensor([[True, False, True]]), timed=False).flatten().tolist()
        [1.0, nan, 3.0]
    """
    kept = kept.clone()
    kept[:, 0] = True
    if not timed:
        return torch.where(kept[..., None], series, torch.nan)
    return padded([row[here] for row, here in zip(series, kept & ~series[..., 0].isnan())])


def lose(series: Float[Tensor, "b n c"], share: float, timed: bool, seed: int = 0) -> Tensor:
    """Series that have lost a share of their points, drawn anew for each of a batch."""
    batch, points = series.shape[:2]
    draws = uniform(seed, torch.arange(batch)[:, None], torch.arange(points))
    return keep(series, draws >= share, timed)


def halve(series: Float[Tensor, "b n c"], timed: bool) -> Tensor:
    """Every other point of each series."""
    even = torch.arange(series.shape[1]) % 2 == 0
    return keep(series, even.expand(len(series), -1), timed)


# By name, each from whether series bring their times.
STRESSES: dict[str, Callable[[bool], Change]] = {
    "30% lost": lambda timed: partial(lose, share=0.3, timed=timed),
    "50% lost": lambda timed: partial(lose, share=0.5, timed=timed),
    "half the rate": lambda timed: partial(halve, timed=timed),
}
