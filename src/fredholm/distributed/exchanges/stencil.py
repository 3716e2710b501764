"""Convolutions: a rank also reads the rows of its neighbours that its stencils reach."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from ...forms.own import OwnResponse
from ...integral.facts import Facts
from ...integral.features import weighed
from ...integral.lattice import summed, write_points
from ...integral.problem import Problem, merge_heads
from ...integral.window import Window
from ...layers.convolution import Reads, StencilKernel
from .. import Shards, fetched, without_holes
from ..collectives import starts
from ..exchange import Exchange, register_exchange


@register_exchange(OwnResponse, StencilKernel)
class RowsBeyond(Exchange):
    """Each rank's outputs read a few rows of its neighbours: a halo."""

    passes = "the rows that stencils read beyond a rank's own"

    def refuses(self, form: OwnResponse, kernel: StencilKernel, facts: Facts) -> str | None:
        if kernel.transposed:
            return "the kernel's own form needs all points in one process here"
        return None

    def respond(
        self, form: OwnResponse, kernel: StencilKernel, problem: Problem, shards: Shards
    ) -> Tensor:
        p = problem
        grid = shards.extents or ()
        first, *others = kernel.windows
        reads = RowReads.of(grid, first, shards)
        u = merge_heads(weighed(p.uy, p.quadrature.mass)).mT
        image = reads.image(u, shards, grid[1:])
        # The image has all rows that are read, padding among them.
        windows = (replace(first, before=0, after=0, mode="zeros"), *others)
        if len(grid) == 1:
            # A line is an image of one row.
            image = image.mT
            windows = (Window(1), *windows)
        weight, bias = kernel.image_taps(p, image.dtype)
        with summed(p):
            out = Reads.of(windows).convolve(image, weight, bias, kernel.heads)
        out = write_points(out, kernel.heads)

        # The image begins with a complete row, and so with points of the rank before.
        before = shards.start - sum(shards.sizes[r] for r in shards.holes if r < shards.rank)
        skip = before - reads.first * reads.width
        return kernel.scaled(out[:, :, skip : skip + p.uy.shape[2]], p)


@dataclass(frozen=True)
class RowReads:
    """Rows that a window along the first axis of a sharded grid reads for a rank's outputs.

    Attributes:
        width: points per row: the product of all extents but the first.
        first, last: the rows in which this rank has points, last excluded.
        rows: for each rank the rows that its outputs read, in order. -1 stands for a row of zeros;
            a rank without points reads nothing else.
    """

    width: int
    first: int
    last: int
    rows: tuple[Tensor, ...]

    @classmethod
    def of(cls, grid: tuple[int, ...], window: Window, shards: Shards) -> RowReads:
        """Example:
        >>> reads = RowReads.of((6,), Window(3, before=1, after=1), Shards(None, 1, (4, 2)))
        >>> [rows.tolist() for rows in reads.rows]
        [[-1, 0, 1, 2, 3, 4], [3, 4, 5, -1]]
        """
        width = prod(grid[1:])

        # The rows of each rank, one at least. Two ranks may have points of the same row.
        spans = []
        for start, stop in pairwise(starts(without_holes(shards).sizes)):
            first = start // width
            last = max(first + 1, math.ceil(stop / width))
            spans.append((first, last))
        mode = Window(1, mode=window.mode)
        rows = []
        for r, (first, last) in enumerate(spans):
            at = torch.arange(first, last + window.reach) - window.before
            at = mode.sources(at, grid[0])[:, 0]
            outside = (at < 0) | (at >= grid[0]) | (r in shards.holes)
            rows.append(torch.where(outside, -1, at))
        first, last = spans[shards.rank]
        return cls(width, first, last, tuple(rows))

    def points(self) -> list[Tensor]:
        """Return for each rank the points of the rows that it reads."""
        inside = torch.arange(self.width)
        return [(rows[rows >= 0, None] * self.width + inside).flatten() for rows in self.rows]

    def image(self, u: Tensor, shards: Shards, axes: tuple[int, ...]) -> Tensor:
        """Return the rows that this rank reads, (B, C, rows, *axes), from its points (B, C, n)."""
        rows = self.rows[shards.rank].to(u.device)
        points = [index.to(u.device) for index in self.points()]
        found = fetched(u, shards, 2, points).unflatten(2, (-1, self.width))
        out = found.new_zeros(*found.shape[:2], len(rows), self.width)
        return out.index_copy(2, (rows >= 0).nonzero()[:, 0], found).unflatten(3, axes or (1,))
