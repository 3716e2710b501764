"""ITNet's kernel on a grid where nothing but values is wanted: a few queries at a time, against all
keys of all heads and samples.

Hidden units lie as (H·B, Nk, Tq, w). The moments of one query are then one product per head and
sample, (d × Nk) times (Nk × w), and lie as the readout takes them; what the positions' table gives
is the same for all heads and samples, and gathered once. No derivative goes through, and every pass
writes where the next one reads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ....integral import Problem, prepared
from ....ops.backend import at_least_single, cast, full_precision
from ....ops.tiles import Scratch, Span, find_activation, kept_scratch, spans
from .columns import Columns, ends_and_shifts

if TYPE_CHECKING:
    from ..kernel import MLPKernel

NUMBERS = 1 << 19  # hidden units of a block, which stay near a processor's cache
MOMENTS = 1 << 23  # numbers of the moments that meet the readout together


def few_queries(kernel: MLPKernel, problem: Problem, value: Tensor, readout: Tensor) -> Tensor:
    """What :func:`.tiled.mlp_kernel` gives, (B, H, Nq, o)."""
    (b, h, n, d), o, dtype = value.shape, readout.shape[1], at_least_single(value.dtype)
    with full_precision(value):
        values = cast(value, dtype).permute(1, 0, 3, 2).reshape(h * b, d, n)
        layers = Layers(kernel, problem, dtype)
        columns = cast(readout, dtype).flatten(2).mT  # (H, d·w, o)
        size, parts = h * b * columns.shape[1], []
        blocks = spans(0, n, max(1, MOMENTS // size))
        held = size * max(q.stop - q.start for q in blocks)
        with kept_scratch(values, [held, *layers.sizes]) as (moments, *layers.scratch):
            for block in blocks:
                rows = block.stop - block.start
                sums = moments.view(h * b, rows, d, columns.shape[1] // d)
                for q in spans(block.start, block.stop, layers.queries_of_block):
                    of_q = sums[:, q.start - block.start : q.stop - block.start]
                    _write_moments(of_q, layers, values, q)
                part = torch.bmm(sums.view(h, b * rows, -1), columns)
                parts.append(part.view(h, b, rows, o).transpose(0, 1))
    return cast(parts[0] if len(parts) == 1 else torch.cat(parts, 2), value.dtype)


def _write_moments(sums: Tensor, layers: Layers, values: Tensor, q: Span) -> None:
    """The moments of queries ``q`` into ``sums`` (H·B, Tq, d, w)."""
    matrices, t, d, w = sums.shape
    seen = q.stop if layers.triangular else values.shape[2]
    shifts = layers.shifts(q, seen)
    for part in spans(0, matrices, layers.matrices_of_block):
        hidden = layers.hidden(part, q, shifts)
        if layers.triangular and t > 1:
            hidden[:, q].mul_(torch.ones(t, t, dtype=hidden.dtype).triu_()[..., None])
        moments = layers.scratch[3].view(len(hidden), d, t * w)
        torch.bmm(values[part, :, :seen], hidden.view(-1, seen, t * w), out=moments)
        sums[part].copy_(moments.view(-1, d, t, w).transpose(1, 2))


class Layers:
    """The hidden units of some queries: the table's columns plus the terms of the keys, and in one
    matrix product per head and sample the product term and the terms of the queries.
    """

    def __init__(self, kernel: MLPKernel, problem: Problem, dtype: torch.dtype):
        u, domain = cast(problem.uy, dtype), problem.domain
        assert domain is not None
        b, h, n, d = u.shape
        self.kernel, self.dtype, self.width = kernel, dtype, kernel.width
        self.triangular, self.all = problem.quadrature.triangular, n
        self.act = find_activation(kernel.activation).apply_
        self.mid = [(cast(x, dtype), cast(y, dtype)) for x, y in kernel.mid_layers()]
        # as many queries as matrices at once, so that what either end adds is read as rarely
        cells = max(1, NUMBERS // (n * self.width))
        t = self.queries_of_block = min(n, max(math.isqrt(cells), cells // (h * b)))
        group = self.matrices_of_block = min(h * b, max(1, cells // t))
        # of the shifts, the hidden units, the scaled queries and the moments of a block
        numbers = n * t, group * n * t, group * (d + 1) * t, group * d * t
        self.sizes = [count * self.width for count in numbers]
        self.scratch: list[Scratch] = []
        points, lengths, self.index = domain.kept(
            ("ends and shifts", problem.x.dtype), lambda: ends_and_shifts(problem)
        )
        columns = Columns(kernel, dtype)

        def make() -> tuple[Tensor | None, Tensor]:
            ends, table = columns.of_positions(kernel, domain, points, lengths, n)
            if t == n:
                places = self._places(slice(0, n), n, len(table)).flatten()
                table = table.index_select(0, places).view(n, n, -1)
            return ends, table

        name = "pairs" if t == n else "shifts", dtype
        ends, self.table = prepared(kernel, name, make, of=(points, lengths))
        flat = u.transpose(0, 1).reshape(h * b * n, d)
        self.query, self.key = columns.of_ends(ends, flat, h * b)
        self.product = None
        if "product" in kernel.sizes:
            self.product = columns.of("product").mT[:, None]  # (d, 1, w)
            flat = flat.view(h * b, n, d)
            self.keys = F.pad(flat, (0, 1), value=1.0)  # the constant meets the queries' terms
            self.queries = flat.mT[..., None]

    def shifts(self, q: Span, seen: int) -> Tensor:
        """The table's column of every pair of the first ``seen`` keys, (Nk, Tq, w)."""
        if self.queries_of_block == self.all:
            return self.table[:seen, q]
        places = self._places(q, seen, len(self.table))
        out = self.scratch[0].view(places.numel(), self.width)
        torch.index_select(self.table, 0, places.flatten(), out=out)
        return out.view(*places.shape, -1)

    def _places(self, q: Span, seen: int, displacements: int) -> Tensor:
        """The rows of the table that pairs read, (Nk, Tq)."""
        return (self.index[q] + displacements // 2) - self.index[:seen, None]

    def hidden(self, part: Span, q: Span, shifts: Tensor) -> Tensor:
        """The last hidden layer (matrices, Nk, Tq, w); the next call overwrites it."""
        (seen, t, w), matrices = shifts.shape, part.stop - part.start
        s = self.scratch[1].view(matrices, seen, t, w)
        if self.key is None:
            s.copy_(shifts)
        else:
            torch.add(shifts, self.key[part, :seen, None], out=s)
        if self.product is not None:
            d = self.product.shape[0]
            rows = self.scratch[2].view(matrices, d + 1, t, w)
            torch.mul(self.queries[part, :, q], self.product, out=rows[:, :d])
            rows[:, d] = 0.0 if self.query is None else self.query[part, q]
            s.view(matrices, seen, t * w).baddbmm_(self.keys[part, :seen], rows.flatten(2))
        elif self.query is not None:
            s.add_(self.query[part, None, q])
        self.act(s)
        for weight, bias in self.mid:
            s = F.linear(s, weight, bias)
            self.act(s)
        return s
