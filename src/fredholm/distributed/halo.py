"""Points of other ranks that a rank reads beside its own: a halo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor

from .collectives import deliver, starts
from .shards import Shards


def fetched(x: Tensor, shards: Shards, dim: int, wanted: Sequence[Tensor]) -> Tensor:
    """The points ``wanted[rank]`` of the whole, on dimension ``dim``, in that order.

    Args:
        x: this rank's points; a rank that has one only to stand for none keeps it.
        wanted: for every rank the places in the whole that it reads, the same list on all ranks;
            a place may come twice.

    Sends the elements of those of its points that other ranks read; so do they with the gradient.
    """
    real = without_holes(shards)
    rows = x.movedim(dim, 0)[: real.size]
    flat = rows.reshape(real.size, prod(rows.shape[1:]))
    out = _Fetch.apply(flat, real, Routes(real, wanted))
    return out.view(len(wanted[real.rank]), *rows.shape[1:]).movedim(0, dim)


def without_holes(shards: Shards) -> Shards:
    """The same ranks, with the points that they really have."""
    sizes = tuple(0 if r in shards.holes else n for r, n in enumerate(shards.sizes))
    return replace(shards, sizes=sizes, holes=())


class Routes:
    """Which of this rank's points go to each rank, and where those that come are put."""

    def __init__(self, shards: Shards, wanted: Sequence[Tensor]):
        bounds = starts(shards.sizes)
        first, end = bounds[shards.rank], bounds[shards.rank + 1]
        mine = wanted[shards.rank]
        self.send = [w[(w >= first) & (w < end)] - first for w in wanted]
        self.place = [((mine >= a) & (mine < b)).nonzero()[:, 0] for a, b in pairwise(bounds)]


class _Fetch(torch.autograd.Function):
    """Rows of this rank to whom they are wanted by, and theirs."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, shards: Shards, ways: Routes) -> Tensor:
        ctx.shards, ctx.ways, ctx.width = shards, ways, rows.shape[1]
        parts = [rows[index].flatten() for index in ways.send]
        sizes = [len(place) * ctx.width for place in ways.place]
        return _placed(deliver(parts, sizes, shards), ways.place, ctx.width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        return _Return.apply(grads[0], ctx.shards, ctx.ways, ctx.width), None, None


class _Return(torch.autograd.Function):
    """The transpose of :class:`_Fetch`, and its gradient: rows that a rank fetched go back to the
    ranks that own them, which add up what comes for each row.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards, ways: Routes, width: int) -> Tensor:
        ctx.shards, ctx.ways = shards, ways

        # The routes of a fetch, backwards: rows leave from the places where they were put, and
        # arrive at the rows that were sent.
        parts = [x[place].flatten() for place in ways.place]
        sizes = [len(index) * width for index in ways.send]
        received = deliver(parts, sizes, shards)

        # Always in the order of the ranks, so that rounding does not depend on who answers first.
        out = x.new_zeros(shards.size, width)
        for index, part in zip(ways.send, received):
            out.index_add_(0, index, part.view(len(index), width))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        return _Fetch.apply(grads[0], ctx.shards, ctx.ways), None, None, None


def _placed(parts: Sequence[Tensor], places: Sequence[Tensor], width: int) -> Tensor:
    """Each part's rows at its places."""
    out = parts[0].new_empty(sum(len(place) for place in places), width)
    for part, place in zip(parts, places):
        out[place] = part.view(len(place), width)
    return out
