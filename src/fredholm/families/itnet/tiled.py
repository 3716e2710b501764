"""The exact forms: hidden units integrated first, tile by tile; nothing wide exists per pair.

M_k(x) = ∫ h_k(x, y) u(y) dμ(y) and then one contraction with W2 per query; the displacement term of
the first layer comes from a table on a grid, and from appended columns on any points.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...integral import (
    Exact,
    Facts,
    Form,
    Kernel,
    KeyForm,
    Memory,
    Problem,
    grid_displacements,
    with_offset,
)
from ...quadrature import Quadrature
from .hidden_first import MLP_KERNEL, mlp_kernel


class TiledColumns(KeyForm):
    """On any points: the displacement term as columns appended to queries and keys.

    O(N²·w·(d + columns)) time, O(N) memory, forward and backward.
    """

    word = Exact
    name = "tiled hidden units, appended columns"
    reason = "the first layer splits, and the points share no regular grid"
    triton = True

    def compared(self, kernel: Kernel, facts: Facts) -> tuple[str, ...]:
        return (MLP_KERNEL,)

    def keys(self, kernel: Any, y: Tensor, uy: Tensor) -> Memory:
        return {**kernel.key_terms(y, uy, columns=True), "positions": y, "signal": uy}

    def integrate(self, kernel: Any, problem: Problem, keys: Memory) -> Tensor:
        keys = {name: x for name, x in keys.items() if name not in ("positions", "signal")}
        terms = keys | kernel.query_terms(problem.x, problem.ux, columns=True)
        return _tiled(kernel, problem, terms, self.strategy)


class TiledTable(Form):
    """On a regular grid: the displacement term from a table of its ∏(2n - 1) displacements, which
    each pair reads by an integer of the query minus one of the key.
    """

    word = Exact
    name = "tiled hidden units, displacement table"
    reason = "the first layer splits, and the displacements of a regular grid fit a table"
    triton = True

    def compared(self, kernel: Kernel, facts: Facts) -> tuple[str, ...]:
        return (MLP_KERNEL,)

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        return None if facts.layout.grid is not None else "the points share no regular grid"

    def respond(self, kernel: Any, problem: Problem) -> Tensor:
        p, grid = problem, problem.layout.grid
        assert grid is not None
        terms = kernel.key_terms(p.y, p.uy, columns=False)
        terms |= kernel.query_terms(p.x, p.ux, columns=False)
        displacements, index = grid_displacements(p.x[0], grid)
        table = kernel.table(displacements)
        if table is not None:
            middle = displacements.shape[0] // 2  # the row of displacement 0
            terms |= {"table": table, "query_index": index + middle, "key_index": index}
        return with_offset(_tiled(kernel, p, terms, self.strategy), kernel, p)


def _tiled(kernel: Any, problem: Problem, terms: dict[str, Any], strategy: Any) -> Tensor:
    """∫ K u dμ from the terms of the first layer."""
    q = problem.quadrature
    readout, bias = kernel.readout()
    signal = problem.uy.expand(-1, kernel.heads, -1, -1)
    # A mask or an order acts on pairs; padding is already zero in the masses, and its features are
    # finite, so that the masses can ride on the values.
    value = q.mass[:, None, :, None].to(signal.dtype) * signal
    terms = {"query": None, "key": None} | terms
    if q.query_time is not None:
        terms |= {"query_time": q.query_time, "key_time": q.key_time}
    if strategy.memory is not None:
        terms["memory"] = strategy.memory
    out = mlp_kernel(
        value=value, readout=readout, density=q.density, backend=strategy.backend, **terms
    )
    if bias is not None:  # the readout's bias is one more kernel, constant over pairs
        total = _mean(q, value, problem.ux.shape[2])
        out = out + torch.einsum("hoi,bhqi->bhqo", bias.to(out.dtype), total)
    return out if q.scale is None else out * q.scale[..., None].to(out.dtype)


def _mean(quadrature: Quadrature, value: Tensor, queries: int) -> Tensor:
    """∫ u dμ as each query sees it but for the scale: (B, H, Nq, d), one value for all where
    nothing hides a pair.
    """
    q, order = quadrature, quadrature.order()
    if q.density is None and order is None:
        return value.sum(2, keepdim=True)
    if q.density is None and q.triangular:
        return value.cumsum(2)
    seen = torch.ones(1, 1, queries, value.shape[2], dtype=value.dtype, device=value.device)
    if order is not None:
        seen = seen * order[:, None]
    if q.density is not None:
        seen = seen * q.density.to(value.dtype)
    return seen @ value
