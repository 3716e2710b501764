"""Convolution on a regular grid in shards: a ring of the ranks' signals, each convolved by FFT with
the kernel at the displacements between the two stretches.

The kernel is a function of the displacement and can be evaluated anywhere, so that no rank needs
more of it than the displacements between its own points and those of one other rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from ....domain import Domain
from ....integral import Exchange, Problem, fold_ring, sums
from ....parallel import Shards, summed


@dataclass(frozen=True)
class Rows:
    """The rows of the grid, along its first axis, that each rank has points of.

    Attributes:
        grid: extents of the whole.
        first: of each rank.
        counts: at least one a rank, whole rows.
        skips: points of a rank's first row that are another rank's.
    """

    grid: tuple[int, ...]
    first: tuple[int, ...]
    counts: tuple[int, ...]
    skips: tuple[int, ...]

    @classmethod
    def of(cls, grid: tuple[int, ...], shards: Shards) -> Rows:
        """Example:
        >>> Rows.of((3, 2), Shards(None, 0, (3, 3))).first
        (0, 1)
        """
        width, start, parts = prod(grid[1:]), 0, []
        for r, size in enumerate(shards.sizes):
            size = 0 if r in shards.holes else size
            first = min(start // width, grid[0] - 1)
            count = max(1, -(-(start + size) // width) - first)
            parts.append((first, count, start - first * width if size else 0))
            start += size
        first, counts, skips = zip(*parts)
        return cls(grid, first, counts, skips)

    @property
    def width(self) -> int:
        """Points of one row."""
        return prod(self.grid[1:])

    def sizes(self) -> tuple[int, ...]:
        """Points of each rank's rows."""
        return tuple(count * self.width for count in self.counts)


def convolve_part(convolve: Any, kernel: Any, problem: Problem, shards: Shards) -> Tensor:
    """∫ K u dμ but for the queries' scale at one rank's points, (B, H, n, d_out); ``convolve`` is
    :func:`.grid_convolution` with its options.
    """
    q, p, grid = problem.quadrature, problem, shards.extents
    assert grid is not None
    rows, n = Rows.of(grid, shards), p.uy.shape[2]
    steps = grid_steps(p.x[0].detach(), grid, shards)
    signal = q.mass[:, None, :, None].to(p.uy.dtype) * p.uy
    skip, size = rows.skips[shards.rank], rows.sizes()[shards.rank]
    signal = torch.nn.functional.pad(signal, (0, 0, skip, size - skip - n))
    readout, bias = kernel.readout()
    if bias is not None:  # one more hidden unit, constant
        readout = torch.cat([readout, bias[..., None]], -1)

    def respond(owner: int, theirs: list[Tensor]) -> tuple[Tensor]:
        here, there = rows.counts[shards.rank], rows.counts[owner]
        side = max(here, there)
        lag = torch.arange(1 - side, side, device=signal.device)
        # those beyond both stretches meet zeros: not evaluated where nobody looks
        lag = lag.clamp(1 - there, here - 1) + rows.first[shards.rank] - rows.first[owner]
        hidden = kernel.lag_features(displacements(lag, steps, grid))
        if bias is not None:
            hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], -1)
        if p.layout.causal:  # one axis
            hidden = torch.where(lag[:, None] >= 0, hidden, 0.0)
        block = torch.nn.functional.pad(theirs[0], (0, 0, 0, (side - there) * rows.width))
        out = convolve(block, hidden, readout, (side, *grid[1:]))
        return (out[:, :, skip : skip + n],)

    between = replace(shards, sizes=rows.sizes(), holes=())
    return fold_ring([signal], (2,), between, respond, sums)[0]


def convolution_sent(kernel: Any, domain: Domain, batch: int) -> Exchange:
    """What :func:`convolve_part` sends: the signal, and where the corners of the grid are."""
    shards = domain.shards
    assert shards is not None
    assert shards.extents is not None
    filled = shards.filled
    points = Rows.of(shards.extents, filled).sizes()[shards.rank]
    width = kernel.d_in if kernel.whole else kernel.heads * kernel.d_in
    numbers = (shards.count - 1) * points * batch * width + (len(shards.extents) + 1) * domain.dim
    return Exchange("a ring of the ranks' signals, a convolution each", numbers)


def grid_steps(x: Tensor, grid: tuple[int, ...], shards: Shards) -> list[Tensor]:
    """The span of each axis of the whole grid, (p,), from the ranks that have its corners."""
    corners = [0] + [(n - 1) * prod(grid[axis + 1 :]) for axis, n in enumerate(grid)]
    start = sum(n for r, n in enumerate(shards.sizes[: shards.rank]) if r not in shards.holes)
    found = []
    for place in corners:
        mine = start <= place < start + len(x) and shards.rank not in shards.holes
        found.append(x[place - start] if mine else torch.zeros_like(x[0]))
    first, *ends = summed(torch.stack(found), shards).unbind(0)
    return [end - first for end in ends]


def displacements(lag: Tensor, spans: list[Tensor], grid: tuple[int, ...]) -> Tensor:
    """Displacements (D, p) at ``lag`` rows of the first axis and all lags of the others."""
    total, axes = torch.zeros((), device=lag.device), len(grid)
    for axis, (n, span) in enumerate(zip(grid, spans)):
        steps = lag if axis == 0 else torch.arange(1 - n, n, device=lag.device)
        shape = [1] * (axes + 1)
        shape[axis] = -1
        total = total + (steps.to(span.dtype) / max(1, n - 1)).reshape(shape) * span
    return total.flatten(0, -2)
