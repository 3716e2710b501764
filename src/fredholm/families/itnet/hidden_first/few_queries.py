"""ITNet's kernel on a grid where nothing but values is wanted: a few queries at a time, against all
keys of all heads and samples.

Hidden units lie as (H·B, Nk, Tq, w). The moments of one query are then one product per head and
sample, (d × Nk) times (Nk × w), and lie as the readout takes them; what the positions' table gives
is the same for all heads and samples, and gathered once. No derivative goes through, and every pass
writes where the next one reads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ....integral import Problem, prepared
from ....ops.backend import at_least_single, cast, full_precision
from ....ops.tiles import Scratch, Span, find_activation, kept_scratch, spans
from .columns import Columns, PositionTerms, ends_and_shifts

if TYPE_CHECKING:
    from ..kernel import MLPKernel

NUMBERS = 1 << 19
"""Hidden units of a block, which stay near a processor's cache."""
MOMENTS = 1 << 23
"""Numbers of the moments that meet the readout together."""


class BlockScratch(NamedTuple):
    """Memory of a block: shifts, hidden units, scaled queries, and moments."""

    shifts: Scratch
    hidden: Scratch
    rows: Scratch
    moments: Scratch


def few_queries(
    kernel: MLPKernel,
    problem: Problem,
    value: Tensor,
    readout: Tensor,
) -> Tensor:
    """Return the same as :func:`.tiled.mlp_kernel`, (B, H, Nq, o)."""
    b, h, n, d = value.shape
    o = readout.shape[1]
    dtype = at_least_single(value.dtype)
    with full_precision(value):
        # One matrix per head and sample, (H·B, d, Nk).
        values = cast(value, dtype).permute(1, 0, 3, 2)
        values = values.reshape(h * b, d, n)
        layers = Layers(kernel, problem, dtype)
        # The readout as (H, d·w, o).
        columns = cast(readout, dtype).flatten(2).mT
        moments = columns.shape[1]
        width = moments // d

        numbers_per_query = h * b * moments
        queries_per_block = max(1, MOMENTS // numbers_per_query)
        blocks = spans(0, n, queries_per_block)
        longest = max(q.stop - q.start for q in blocks)
        sizes = [numbers_per_query * longest, *layers.sizes]
        parts = []
        with kept_scratch(values, sizes) as (kept, *block_scratch):
            scratch = BlockScratch(*block_scratch)
            # A block of queries has its moments in memory, (H·B, rows, d, w), and meets the readout
            # as one product per head. Its moments are made of fewer queries at a time, whose hidden
            # units stay near the cache.
            for block in blocks:
                rows = block.stop - block.start
                sums = kept.view(h * b, rows, d, width)
                for q in spans(block.start, block.stop, layers.queries_of_block):
                    first = q.start - block.start
                    last = q.stop - block.start
                    of_q = sums[:, first:last]
                    _write_moments(of_q, layers, values, q, scratch)
                by_head = sums.view(h, b * rows, -1)
                part = torch.bmm(by_head, columns)
                part = part.view(h, b, rows, o)
                parts.append(part.transpose(0, 1))

    out = parts[0]
    if len(parts) > 1:
        out = torch.cat(parts, 2)
    return cast(out, value.dtype)


def _write_moments(
    sums: Tensor,
    layers: Layers,
    values: Tensor,
    q: Span,
    scratch: BlockScratch,
) -> None:
    """Write the moments of queries ``q`` into ``sums`` (H·B, Tq, d, w)."""
    matrices, t, d, w = sums.shape
    # In triangular order no query sees a key behind the last of them.
    seen = values.shape[2]
    if layers.triangular:
        seen = q.stop
    shifts = layers.shifts(q, seen, scratch)

    # Some matrices at a time, whose hidden units (·, Nk, Tq, w) are a block. All of them read the
    # same shifts.
    for part in spans(0, matrices, layers.matrices_of_block):
        hidden = layers.hidden(part, q, shifts, scratch)
        if layers.triangular and t > 1:
            # Earlier keys are visible to all of these queries; among themselves order counts.
            visible = torch.ones(t, t, dtype=hidden.dtype)
            visible = visible.triu_()
            hidden[:, q].mul_(visible[..., None])

        # (d × Nk) times (Nk × Tq·w), and then queries come before channels.
        moments = scratch.moments.view(len(hidden), d, t * w)
        seen_values = values[part, :, :seen]
        units = hidden.view(-1, seen, t * w)
        torch.bmm(seen_values, units, out=moments)
        by_query = moments.view(-1, d, t, w)
        by_query = by_query.transpose(1, 2)
        sums[part].copy_(by_query)


class Layers:
    """The hidden units of some queries: the table's columns plus the terms of the keys, and in one
    matrix product per head and sample the product term and the terms of the queries.
    """

    def __init__(self, kernel: MLPKernel, problem: Problem, dtype: torch.dtype):
        u = cast(problem.uy, dtype)
        b, h, n, d = u.shape
        self.width = kernel.width
        self.triangular = problem.quadrature.triangular
        self.all = n
        self.act = find_activation(kernel.activation).apply_
        self.mid = []
        for weight, bias in kernel.mid_layers():
            self.mid.append((cast(weight, dtype), cast(bias, dtype)))

        # A cell is a query of one matrix, with the hidden units of all its keys. As many queries as
        # matrices at once, so that terms of either end are read as rarely.
        matrices = h * b
        cells = max(1, NUMBERS // (n * self.width))
        per_matrix = cells // matrices
        t = min(n, max(math.isqrt(cells), per_matrix))
        group = min(matrices, max(1, cells // t))
        self.queries_of_block = t
        self.matrices_of_block = group
        # In the order of BlockScratch.
        units = group * n * t
        rows = group * (d + 1) * t
        moments = group * d * t
        numbers = (n * t, units, rows, moments)
        self.sizes = [count * self.width for count in numbers]

        columns = Columns(kernel, dtype)
        positions = self._position_terms(kernel, problem, columns)
        self.table = positions.table
        flat = u.transpose(0, 1)
        flat = flat.reshape(matrices * n, d)
        self.query, self.key = columns.of_ends(positions.ends, flat, matrices)
        self.product = None
        if "product" in kernel.sizes:
            # (d, 1, w)
            self.product = columns.of("product").mT[:, None]
            flat = flat.view(matrices, n, d)
            # The constant meets the queries' terms.
            self.keys = F.pad(flat, (0, 1), value=1.0)
            self.queries = flat.mT[..., None]

    def _position_terms(
        self,
        kernel: MLPKernel,
        problem: Problem,
        columns: Columns,
    ) -> PositionTerms:
        """Return the terms of positions. The table has a column for each displacement, or, where
        one block has all queries, for each pair, (Nk, Nq, w).
        """
        n = self.all
        domain = problem.domain
        assert domain is not None
        name = ("ends and shifts", problem.x.dtype)
        grid = domain.kept(name, lambda: ends_and_shifts(problem))
        self.index = grid.index

        def of_shifts() -> PositionTerms:
            return columns.of_positions(kernel, domain, grid, n)

        def of_pairs() -> PositionTerms:
            terms = of_shifts()
            every = slice(0, n)
            places = self._places(every, n, len(terms.table))
            by_pair = terms.table.index_select(0, places.flatten())
            by_pair = by_pair.view(n, n, -1)
            return terms._replace(table=by_pair)

        name = "shifts"
        make = of_shifts
        if self.queries_of_block == n:
            name = "pairs"
            make = of_pairs
        key = (name, columns.bias.dtype)
        return prepared(kernel, key, make, of=(grid.points, grid.lengths))

    def shifts(self, q: Span, seen: int, scratch: BlockScratch) -> Tensor:
        """Return the table's column of every pair of the first ``seen`` keys, (Nk, Tq, w)."""
        if self.queries_of_block == self.all:
            return self.table[:seen, q]
        places = self._places(q, seen, len(self.table))
        out = scratch.shifts.view(places.numel(), self.width)
        flat = places.flatten()
        torch.index_select(self.table, 0, flat, out=out)
        return out.view(*places.shape, -1)

    def _places(self, q: Span, seen: int, displacements: int) -> Tensor:
        """Return the rows of the table that pairs read, (Nk, Tq)."""
        middle = displacements // 2
        query_places = self.index[q] + middle
        return query_places - self.index[:seen, None]

    def hidden(
        self,
        part: Span,
        q: Span,
        shifts: Tensor,
        scratch: BlockScratch,
    ) -> Tensor:
        """Return the last hidden layer (matrices, Nk, Tq, w). The next call overwrites it."""
        seen, t, w = shifts.shape
        matrices = part.stop - part.start
        s = scratch.hidden.view(matrices, seen, t, w)
        if self.key is None:
            s.copy_(shifts)
        else:
            keys = self.key[part, :seen, None]
            torch.add(shifts, keys, out=s)

        if self.product is not None:
            # One product per matrix: the scaled queries, and below them the queries' terms, which
            # the column of ones behind the keys adds.
            d = self.product.shape[0]
            rows = scratch.rows.view(matrices, d + 1, t, w)
            queries = self.queries[part, :, q]
            torch.mul(queries, self.product, out=rows[:, :d])
            if self.query is None:
                rows[:, d] = 0.0
            else:
                rows[:, d] = self.query[part, q]
            keys = self.keys[part, :seen]
            flat = s.view(matrices, seen, t * w)
            flat.baddbmm_(keys, rows.flatten(2))
        elif self.query is not None:
            s.add_(self.query[part, None, q])

        self.act(s)
        for weight, bias in self.mid:
            s = F.linear(s, weight, bias)
            self.act(s)
        return s
