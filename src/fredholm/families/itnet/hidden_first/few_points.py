"""ITNet's kernel on a small grid, without gradients: all pairs of all heads and samples at once,
without tiles and with nothing kept for a backward pass.

Hidden units have shape (H·B, Nq, Nk, w): the moments of a query are one matrix product, and come in
the order in which the readout takes them. At this size the overhead of each operation exceeds its
arithmetic, so that few operations matter more than few numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ....integral import Problem, prepared
from ....ops.backend import at_least_single, cast, full_precision
from ....ops.tiles import find_activation
from .columns import Columns, GridPoints, PositionTerms, ends_and_shifts

if TYPE_CHECKING:
    from ..kernel import MLPKernel


def few_points(
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
        hidden = _hidden(kernel, problem, dtype)
        if problem.quadrature.triangular:
            visible = hidden.new_ones(n, n)
            visible = visible.tril_()
            hidden.mul_(visible[..., None])

        # M of each query: (d × Nk) times (Nk × w). All queries of a matrix meet the same values.
        by_head = cast(value, dtype)
        by_head = by_head.permute(1, 0, 3, 2)
        by_head = by_head[:, :, None]
        for_queries = by_head.expand(h, b, n, d, n)
        values = for_queries.reshape(-1, d, n)
        moments = torch.bmm(values, hidden.flatten(0, 1))

        # The readout as (H, d·w, o).
        columns = cast(readout, dtype)
        columns = columns.flatten(2).mT
        moments = moments.view(h, b * n, -1)
        out = torch.bmm(moments, columns)
        out = out.view(h, b, n, o)
        out = out.transpose(0, 1)
        return cast(out, value.dtype)


def _hidden(
    kernel: MLPKernel,
    problem: Problem,
    dtype: torch.dtype,
) -> Tensor:
    """Return the last hidden layer, (H·B, Nq, Nk, w), in memory that the caller may overwrite.

    The first layer is linear before its activation, so that its pre-activations S are a sum: a term
    of each pair's displacement, one of the key, one of the query, and one of the product
    u(x) ⊙ u(y).
    """
    u = cast(problem.uy, dtype)
    domain = problem.domain
    assert domain is not None
    b, h, n, d = u.shape
    # ``grid.index`` names the displacement of every pair, query by query. It depends on the points
    # alone, and the domain keeps it for the next call.
    name = ("ends and pairs", problem.x.dtype)
    grid = domain.kept(name, lambda: _ends_and_pairs(problem))
    columns = Columns(kernel, dtype)

    def make() -> PositionTerms:
        """Return the terms of positions, with the table written out per pair, (Nq, Nk, w)."""
        terms = columns.of_positions(kernel, domain, grid, n)
        pairs = terms.table.index_select(0, grid.index)
        pairs = pairs.view(n, n, -1)
        return PositionTerms(terms.ends, pairs)

    points = (grid.points, grid.lengths)
    positions = prepared(
        kernel,
        ("all pairs", dtype),
        make,
        of=points,
    )

    # Features with heads before samples, (H·B·N, d), and their terms, (H·B, N, w) each or None.
    by_head = u.transpose(0, 1)
    flat = by_head.reshape(-1, d)
    query, key = columns.of_ends(
        positions.ends,
        flat,
        h * b,
    )

    # The following steps overwrite S, so that it must not share memory with the table, which
    # ``prepared`` may hand to later calls.
    if key is None:
        s = positions.table.repeat(h * b, 1, 1, 1)
    else:
        s = positions.table + key[:, None]
    if query is not None:
        s.add_(query[:, :, None])
    # One row per pair, a view of S.
    rows = s.view(-1, kernel.width)
    if "product" in columns.sizes:
        ends = flat.view(h * b, n, d)
        of_query = ends[:, :, None]
        of_key = ends[:, None]
        products = of_query * of_key
        pairs = products.view(-1, d)
        weight = columns.of("product")
        rows.addmm_(pairs, weight.mT)

    activate = find_activation(kernel.activation).apply_
    activate(rows)
    for weight, bias in kernel.mid_layers():
        weight = cast(weight, dtype)
        bias = cast(bias, dtype)
        rows = F.linear(rows, weight, bias)
        activate(rows)
    return rows.view(h * b, n, n, -1)


def _ends_and_pairs(problem: Problem) -> GridPoints:
    """Return :func:`.ends_and_shifts` with an index for every pair of points, (N·N,)."""
    grid = ends_and_shifts(problem)
    # The middle displacement is 0.
    middle = len(grid.lengths) // 2
    of_queries = grid.index[:, None]
    of_pairs = of_queries - grid.index + middle
    return grid._replace(index=of_pairs.flatten())
