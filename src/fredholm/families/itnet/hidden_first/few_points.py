"""ITNet's kernel on a small grid where nothing but values is wanted: all pairs of all heads and
samples at once, without tiles or memory to keep.

Hidden units lie as (H·B, Nq, Nk, w), so that a query's moments are one product and lie as the
readout takes them. There are few numbers, and each operation costs more than its arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ....integral import Problem, prepared
from ....ops.backend import at_least_single, cast, full_precision
from ....ops.tiles import find_activation
from .columns import Columns, ends_and_shifts

if TYPE_CHECKING:
    from ..kernel import MLPKernel


def few_points(kernel: MLPKernel, problem: Problem, value: Tensor, readout: Tensor) -> Tensor:
    """What :func:`.tiled.mlp_kernel` gives, (B, H, Nq, o)."""
    (b, h, n, d), o, dtype = value.shape, readout.shape[1], at_least_single(value.dtype)
    with full_precision(value):
        hidden = _hidden(kernel, problem, dtype)
        if problem.quadrature.triangular:
            hidden.mul_(hidden.new_ones(n, n).tril_()[..., None])
        values = cast(value, dtype).permute(1, 0, 3, 2)[:, :, None].expand(h, b, n, d, n)
        moments = torch.bmm(values.reshape(-1, d, n), hidden.flatten(0, 1))
        columns = cast(readout, dtype).flatten(2).mT  # (H, d·w, o)
        out = torch.bmm(moments.view(h, b * n, -1), columns)
        return cast(out.view(h, b, n, o).transpose(0, 1), value.dtype)


def _hidden(kernel: MLPKernel, problem: Problem, dtype: torch.dtype) -> Tensor:
    """The last hidden layer, (H·B, Nq, Nk, w)."""
    u, domain = cast(problem.uy, dtype), problem.domain
    assert domain is not None
    b, h, n, d = u.shape
    points, lengths, places = domain.kept(
        ("ends and pairs", problem.x.dtype), lambda: _ends_and_pairs(problem)
    )
    columns = Columns(kernel, dtype)

    def make() -> tuple[Tensor | None, Tensor]:
        ends, table = columns.of_positions(kernel, domain, points, lengths, n)
        return ends, table.index_select(0, places).view(n, n, -1)

    positions, s = prepared(kernel, ("all pairs", dtype), make, of=(points, lengths))
    flat = u.transpose(0, 1).reshape(-1, d)
    query, key = columns.of_ends(positions, flat, h * b)
    # memory of its own, which what follows overwrites
    s = s.repeat(h * b, 1, 1, 1) if key is None else s + key[:, None]
    s = s if query is None else s.add_(query[:, :, None])
    rows = s.view(-1, kernel.width)
    if "product" in columns.sizes:
        ends = flat.view(h * b, n, d)
        pairs = (ends[:, :, None] * ends[:, None]).view(-1, d)
        rows.addmm_(pairs, columns.of("product").mT)
    act = find_activation(kernel.activation).apply_
    act(rows)
    for weight, bias in kernel.mid_layers():
        rows = F.linear(rows, cast(weight, dtype), cast(bias, dtype))
        act(rows)
    return rows.view(h * b, n, n, -1)


def _ends_and_pairs(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`.ends_and_shifts` with the index of every pair's displacement, query by query."""
    points, lengths, index = ends_and_shifts(problem)
    places = index[:, None] - index + len(lengths) // 2
    return points, lengths, places.flatten()
