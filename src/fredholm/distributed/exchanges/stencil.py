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

    def refuses(
        self,
        form: OwnResponse,
        kernel: StencilKernel,
        facts: Facts,
    ) -> str | None:
        if kernel.transposed:
            return "the kernel's own form needs all points in one process here"
        return None

    def respond(
        self,
        form: OwnResponse,
        kernel: StencilKernel,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        p = problem
        grid = shards.extents or ()
        first, *others = kernel.windows
        reads = RowReads.of(grid, first, shards)
        u = merge_heads(weighed(p.uy, p.quadrature.mass)).mT
        image = reads.image(u, shards, grid[1:])
        # The image has all rows that are read, padding among them.
        unpadded = replace(first, before=0, after=0, mode="zeros")
        windows = (unpadded, *others)
        if len(grid) == 1:
            # A line is an image of one row.
            image = image.mT
            windows = (Window(1), *windows)
        weight, bias = kernel.image_taps(p, image.dtype)
        with summed(p):
            out = Reads.of(windows).convolve(image, weight, bias, kernel.heads)
        out = write_points(out, kernel.heads)

        # The image begins with a complete row, and so with points of the rank before.
        first_point = without_holes(shards).start
        skip = first_point - reads.first * reads.width
        own = out[:, :, skip : skip + p.uy.shape[2]]
        return kernel.scaled(own, p)


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
    def of(
        cls,
        grid: tuple[int, ...],
        window: Window,
        shards: Shards,
    ) -> RowReads:
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

        # The window's mode says which row stands for one beyond the edge of the grid.
        height = grid[0]
        mode = Window(1, mode=window.mode)
        rows = []
        for rank, (first, last) in enumerate(spans):
            row = torch.arange(first, last + window.reach) - window.before
            row = mode.sources(row, height)[:, 0]
            is_zero = (row < 0) | (row >= height) | (rank in shards.holes)
            rows.append(torch.where(is_zero, -1, row))
        first, last = spans[shards.rank]
        return cls(width, first, last, tuple(rows))

    def points(self) -> list[Tensor]:
        """Return for each rank the points of the rows that it reads."""
        column = torch.arange(self.width)
        points = []
        for rows in self.rows:
            inside = rows[rows >= 0]
            numbers = inside[:, None] * self.width + column
            points.append(numbers.flatten())
        return points

    def image(
        self,
        u: Tensor,
        shards: Shards,
        axes: tuple[int, ...],
    ) -> Tensor:
        """Return the rows that this rank reads, (B, C, rows, *axes), from its points (B, C, n)."""
        points = [index.to(u.device) for index in self.points()]
        found = fetched(u, shards, 2, points)
        found = found.unflatten(2, (-1, self.width))

        # The other rows remain zero.
        rows = self.rows[shards.rank].to(u.device)
        inside = (rows >= 0).nonzero()[:, 0]
        batch, channels = u.shape[:2]
        image = found.new_zeros(batch, channels, len(rows), self.width)
        image = image.index_copy(2, inside, found)
        return image.unflatten(3, axes or (1,))
