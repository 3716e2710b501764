"""The exact integral: equal to the definition, with memory that grows linearly in N wherever the
kernel allows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...errors import StrategyError
from ...kernels import (
    CausalTransition,
    GraphDiffusion,
    HiddenReadout,
    JointScores,
    Kernel,
    Layout,
    OwnForm,
    Point,
    Problem,
    SoftmaxScores,
    SplitHidden,
    WeightedValue,
    has_trait,
)
from ...ops.attention import attention
from ...ops.backend import check_backend
from ...ops.integral import dense_apply
from ...ops.mlp_kernel import mlp_kernel
from ...quadrature import Quadrature
from .base import Keys, Strategy, with_offset
from .neumann import respond_hops, step_hops

TABLE, COLUMNS = "tiled hidden units, displacement table", "tiled hidden units, appended columns"
FUSED, HIDDEN, WEIGHTED, DENSE = (
    "fused attention",
    "hidden units by query block",
    "weights by query block",
    "dense blocks",
)
OWN, STATE, HOP = "the layer's own form", "state of fixed size", "one hop over tiles"
REASONS = {
    FUSED: "the weight is a softmax of inner products",
    TABLE: "the first layer splits, and the displacements of a regular grid fit a table",
    COLUMNS: "the first layer splits, and the points share no regular grid",
    HIDDEN: "the last layer is linear, so hidden units are integrated first",
    WEIGHTED: "a scalar weight times a value map",
    DENSE: "the kernel has no trait that would allow a faster form here",
    OWN: "the kernel evaluates its whole response itself",
    STATE: "the kernel's response has a state of fixed size",
    HOP: "affinities of inner products, whose norm is divided out after the product",
}


@dataclass(frozen=True)
class Exact(Strategy):
    """Every pair is evaluated, and the form follows the kernel's traits.

    Args:
        memory: working-set budget of one tile or query block, in bytes; None lets the op choose for
            the device.
        backend: of the tiled forms, ``"auto"``, ``"torch"`` or ``"triton"`` (see
            :mod:`fredholm.ops.backend`). A form without a Triton kernel refuses ``"triton"``.

    Forms, in the order of preference: the kernel's own (``OwnForm``; in a causal step
    ``CausalTransition``), one hop on a graph of tokens (``GraphDiffusion``), fused attention
    (``SoftmaxScores``), the tiled hidden-first op (``SplitHidden``), hidden units by query block
    (``HiddenReadout``), scalar weights by query block (``WeightedValue``), dense blocks (any
    kernel). Cost O(N²) time in all but the own forms; the blocks are recomputed in the backward, so
    memory stays O(N).
    """

    memory: int | None = None
    backend: str = "auto"

    def __post_init__(self) -> None:
        check_backend(self.backend)

    def path(self, kernel: Kernel, layout: Layout) -> str:
        path = self._path(kernel, layout)
        if self.backend == "triton" and path not in (TABLE, COLUMNS, HOP):
            raise StrategyError(
                f"{self!r} would integrate {type(kernel).__name__} by {path}, which has no Triton "
                "kernel; use backend='auto'"
            )
        return path

    def _path(self, kernel: Kernel, layout: Layout) -> str:
        if layout.stepping and not layout.pairs and has_trait(kernel, CausalTransition):
            return STATE
        if not layout.stepping and has_trait(kernel, OwnForm) and kernel.evaluates(layout):  # type: ignore[attr-defined]
            return OWN
        if has_trait(kernel, GraphDiffusion):
            return HOP
        if has_trait(kernel, SoftmaxScores):
            return FUSED
        if has_trait(kernel, SplitHidden):
            return COLUMNS if layout.grid is None else TABLE
        if has_trait(kernel, HiddenReadout):
            return HIDDEN
        return WEIGHTED if has_trait(kernel, WeightedValue) else DENSE

    def reason(self, path: str) -> str:
        return REASONS[path]

    def keys(self, kernel: Kernel, y: Tensor, uy: Tensor, path: str) -> Keys:
        if path == FUSED:
            return {"key": kernel.keys(y, uy), "value": kernel.values(y, uy)}  # type: ignore[attr-defined]
        if path in (TABLE, COLUMNS):
            terms = kernel.key_terms(y, uy, columns=path == COLUMNS)  # type: ignore[attr-defined]
            return terms | {"positions": y, "signal": uy}
        return {"positions": y, "signal": uy}

    def respond(self, kernel: Kernel, problem: Problem, path: str) -> Tensor:
        if path == OWN:
            return kernel.evaluate(problem)  # type: ignore[attr-defined]
        if path == HOP:
            return respond_hops(kernel, problem, 1, self.memory, self.backend)
        if path == FUSED and has_trait(kernel, JointScores) and not problem.layout.cross:
            query, key, value = kernel.project(problem.y, problem.uy)  # type: ignore[attr-defined]
            return with_offset(attention(query, key, value, problem.quadrature), kernel, problem)
        return super().respond(kernel, problem, path)

    def step(
        self,
        kernel: Kernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Keys,
        path: str,
    ) -> tuple[Tensor, Keys]:
        if path == HOP:
            return step_hops(kernel, u, quadrature, t, memory, 1)
        if path != STATE:
            return super().step(kernel, x, u, quadrature, t, memory, path)
        trait: Any = kernel
        before = memory if t else trait.start(u[:, :, 0])
        out, after = trait.advance(_point(x, u, quadrature, t), before)
        if quadrature.valid is not None:  # padding is no point: the state passes it by
            real = quadrature.valid[:, t]
            after = {
                k: torch.where(real.view(-1, *[1] * (v.dim() - 1)), v, before[k])
                for k, v in after.items()
            }
        return out[:, :, None], after

    def integrate(self, kernel: Kernel, problem: Problem, keys: Keys, path: str) -> Tensor:
        if path == FUSED:
            query = kernel.queries(problem.x, problem.ux)  # type: ignore[attr-defined]
            return attention(query, keys["key"], keys["value"], problem.quadrature)
        if path in (TABLE, COLUMNS):
            return self._tiled(kernel, problem, dict(keys), path == COLUMNS)
        return self._blocks(kernel, problem, path)

    # --- hidden-first, tiled ----------------------------------------------------------------------

    def _tiled(self, kernel, problem: Problem, keys: Keys, columns: bool) -> Tensor:
        q, signal = problem.quadrature, keys.pop("signal")
        del keys["positions"]
        readout, bias = kernel.readout()
        signal = signal.expand(-1, kernel.heads, -1, -1)
        mass = q.mass[:, None, :, None].to(signal.dtype)
        # A mask or an order acts on pairs; padding is already zero in the masses, and its features
        # are finite.
        value = mass * signal
        options = (
            {"query": None, "key": None}
            | keys
            | kernel.query_terms(problem.x, problem.ux, columns=columns)
        )
        if not columns and problem.layout.grid is not None:
            displacements, index = grid_displacements(problem.x[0], problem.layout.grid)
            table = kernel.table(displacements)
            if table is not None:
                options |= {
                    "table": table,
                    "query_index": index + displacements.shape[0] // 2,
                    "key_index": index,
                }
        if q.query_time is not None:
            options |= {"query_time": q.query_time, "key_time": q.key_time}
        if self.memory is not None:
            options["memory"] = self.memory
        out = mlp_kernel(
            value=value, readout=readout, density=q.density, backend=self.backend, **options
        )
        if bias is not None:
            out = out + torch.einsum(
                "hoi,bhqi->bhqo", bias.to(out.dtype), _moment(q, value, problem.ux.shape[2])
            )
        return out if q.scale is None else out * q.scale[..., None].to(out.dtype)

    # --- by query block ---------------------------------------------------------------------------

    def _blocks(self, kernel: Kernel, problem: Problem, path: str) -> Tensor:
        """Dense evaluation, a block of queries at a time, recomputed in the backward. Traced code
        takes one block.
        """
        n = problem.ux.shape[2]
        if torch.compiler.is_compiling():
            return _dense(kernel, problem, path)
        per_pair = {HIDDEN: getattr(kernel, "width", 64), WEIGHTED: 4}.get(
            path, kernel.d_in * kernel.d_out
        )
        row_bytes = 8 * problem.uy.shape[0] * kernel.heads * problem.uy.shape[2] * per_pair
        block = max(1, min(n, (self.memory or 1 << 26) // row_bytes))
        if block == n:
            return _dense(kernel, problem, path)
        outs = []
        for start in range(0, n, block):
            rows = list(range(start, min(n, start + block)))
            outs.append(checkpoint(_dense, kernel, problem, path, rows, use_reentrant=False))
        return torch.cat(outs, 2)


def _point(x: Tensor, u: Tensor, quadrature: Quadrature, t: int) -> Point:
    scale = None if quadrature.scale is None else quadrature.scale[..., t].to(u.dtype)
    return Point(x[:, 0], u[:, :, 0], quadrature.mass[:, t].to(u.dtype), scale)


def _dense(kernel, problem: Problem, path: str, rows: list[int] | None = None) -> Tensor:
    """One block of queries in the form ``path``."""
    part = problem.rows(rows)
    weights, signal = part.quadrature.weights().to(part.uy.dtype), part.uy
    if path == WEIGHTED:
        density = (kernel.weights(part) * weights).expand(-1, kernel.heads, -1, -1)
        return (
            density @ signal @ kernel.value_map().mT
        )  # an einsum of three would fix traced lengths
    if path == HIDDEN:
        x, y = part.x[:, None, :, None], part.y[:, None, None, :]
        hidden = kernel.hidden(x, y, part.ux[:, :, :, None], part.uy[:, :, None, :])
        readout, bias = kernel.readout()
        moment = torch.einsum("bhqkw,bhqki->bhqwi", hidden, weights[..., None] * signal[:, :, None])
        out = torch.einsum("bhqwi,hoiw->bhqo", moment, readout)
        if bias is not None:
            total = torch.einsum(
                "bhqk,bhki->bhqi", weights.expand(signal.shape[0], -1, -1, -1), signal
            )
            out = out + torch.einsum("hoi,bhqi->bhqo", bias, total)
        return out
    return dense_apply(kernel.matrix(part), weights, signal)


def _moment(quadrature, value: Tensor, queries: int) -> Tensor:
    """∫ u dμ as each query sees it but for the scale: (B, H, Nq, d), one value for all where
    nothing hides a pair.
    """
    q = quadrature
    if q.density is None and q.query_time is None:
        return value.sum(2, keepdim=True)
    if q.density is None and q.triangular:
        return value.cumsum(2)
    seen = torch.ones(1, 1, queries, value.shape[2], dtype=value.dtype, device=value.device)
    if q.query_time is not None:
        seen = seen * q.order()[:, None]
    if q.density is not None:
        seen = seen * q.density.to(value.dtype)
    return seen @ value


def grid_displacements(positions: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """All displacements of a regular grid, (D, p) with D = ∏(2n - 1), and each point's index c (N,)
    into them.

    The displacement x_i - x_j is row ``c_i - c_j + D // 2``.

    Example:
        >>> table, index = grid_displacements(torch.tensor([[0.0], [0.5]]), (2,))
        >>> table.squeeze(1).tolist(), index.tolist()
        ([-0.5, 0.0, 0.5], [0, 1])
    """
    device = positions.device
    lattice = torch.zeros(
        (*(2 * n - 1 for n in grid), positions.shape[-1]), dtype=positions.dtype, device=device
    )
    index = torch.zeros(grid, dtype=torch.int64, device=device)
    stride = 1
    for axis in reversed(range(len(grid))):
        n = grid[axis]
        shape = [1] * len(grid)
        shape[axis] = -1
        if n > 1:
            last = positions[(n - 1) * prod(grid[axis + 1 :])] - positions[0]
            steps = torch.arange(1 - n, n, device=device, dtype=positions.dtype).reshape(
                *shape, 1
            ) / (n - 1)
            lattice = lattice + steps * last
        index = index + torch.arange(n, device=device).reshape(shape) * stride
        stride *= 2 * n - 1
    return lattice.flatten(0, -2), index.flatten()
