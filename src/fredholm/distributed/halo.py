"""A halo: points of other ranks that a rank reads beside its own."""

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


def fetched(
    x: Tensor,
    shards: Shards,
    dim: int,
    wanted: Sequence[Tensor],
) -> Tensor:
    """Return the points that this rank reads, its own or other ranks': those at the indices
    ``wanted[shards.rank]`` of the complete domain, in that order, on dimension ``dim``.

    Args:
        x: this rank's points, on dimension ``dim``. The one point of padding of a rank without
            points is ignored.
        shards: the ranks.
        dim: the dimension of the points. All others have the same size on every rank.
        wanted: for every rank the indices in the complete domain of the points that it reads,
            (m,) integers; the same lists on all ranks, since each follows from them what to send.
            An index may appear twice.

    Each rank sends the elements of its points that other ranks read, and receives their gradients.
    """
    real = without_holes(shards)
    rows = x.movedim(dim, 0)[: real.size]
    others = rows.shape[1:]
    flat = rows.reshape(real.size, prod(others))
    routes = Routes(real, wanted)
    out = _Fetch.apply(flat, real, routes)
    count = len(wanted[real.rank])
    return out.view(count, *others).movedim(0, dim)


def without_holes(shards: Shards) -> Shards:
    """Return the same ranks with size 0 for each rank that owns no point of the domain.

    Such a rank (``shards.holes``) otherwise counts as one point, a placeholder that is padding.
    This undoes :attr:`.Shards.filled`, so that sizes and starts are those of the domain's points.
    """
    sizes = list(shards.sizes)
    for hole in shards.holes:
        sizes[hole] = 0
    return replace(shards, sizes=tuple(sizes), holes=())


class Routes:
    """The routes of a fetch: integers (m,) per rank, of another length for each.

    Args:
        shards: the ranks.
        wanted: for every rank the indices of the points that it reads, see :func:`fetched`.

    Attributes:
        send: for each rank, which of this rank's points it reads, counted from this rank's first.
        place: for each rank, where its points lie in this rank's result.
    """

    def __init__(self, shards: Shards, wanted: Sequence[Tensor]):
        spans = list(pairwise(starts(shards.sizes)))
        first, end = spans[shards.rank]
        self.send: list[Tensor] = []
        for index in wanted:
            is_here = (index >= first) & (index < end)
            self.send.append(index[is_here] - first)

        read_here = wanted[shards.rank]
        self.place: list[Tensor] = []
        for first, end in spans:
            is_there = (read_here >= first) & (read_here < end)
            self.place.append(is_there.nonzero()[:, 0])


class _Fetch(torch.autograd.Function):
    """Send rows (n, width) to the ranks that read them, and return those that this rank reads."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        shards: Shards,
        routes: Routes,
    ) -> Tensor:
        width = rows.shape[1]
        ctx.shards = shards
        ctx.routes = routes
        ctx.width = width
        parts = [rows[index].flatten() for index in routes.send]
        sizes = [len(place) * width for place in routes.place]
        received = deliver(parts, sizes, shards)
        return _placed(received, routes.place, width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        (grad,) = grads
        of_rows = _Return.apply(grad, ctx.shards, ctx.routes, ctx.width)
        return of_rows, None, None


class _Return(torch.autograd.Function):
    """The transpose of :class:`_Fetch`, and its gradient: rows that a rank fetched go back to the
    ranks that own them, which add up what comes for each row.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shards: Shards,
        routes: Routes,
        width: int,
    ) -> Tensor:
        ctx.shards = shards
        ctx.routes = routes

        # The routes of a fetch, backwards: rows leave from the places where they were put, and
        # arrive at the rows that were sent.
        parts = [x[place].flatten() for place in routes.place]
        sizes = [len(index) * width for index in routes.send]
        received = deliver(parts, sizes, shards)

        # Always in the order of the ranks, so that rounding does not depend on who answers first.
        out = x.new_zeros(shards.size, width)
        for index, part in zip(routes.send, received):
            rows = part.view(len(index), width)
            out.index_add_(0, index, rows)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        (grad,) = grads
        of_x = _Fetch.apply(grad, ctx.shards, ctx.routes)
        return of_x, None, None, None


def _placed(
    parts: Sequence[Tensor],
    places: Sequence[Tensor],
    width: int,
) -> Tensor:
    """Write the rows of each part, a flat tensor, at its places of the result."""
    count = sum(len(place) for place in places)
    out = parts[0].new_empty(count, width)
    for part, place in zip(parts, places):
        out[place] = part.view(len(place), width)
    return out
