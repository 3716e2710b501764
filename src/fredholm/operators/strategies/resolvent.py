"""Diffusion of all hops: the resolvent of a graph of tokens, solved matrix-free and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import OptionError, StrategyError, suggest
from ...kernels import GraphDiffusion, Kernel, Layout, Problem, has_trait
from ...ops.backend import check_backend
from ...ops.infsa import Convergence, resolvent
from ...ops.infsa.solve import SOLVERS
from ...quadrature import Quadrature
from .base import Keys, Strategy
from .neumann import REASONS as HOP_REASONS
from .neumann import ROWS, gained, graph_of, graph_row

ITERATIONS, SUBSTITUTION = "iterations over tiles", "forward substitution by blocks"
REASONS = HOP_REASONS | {
    ITERATIONS: "a product with the graph is cheap and its inverse is not; the backward solves the "
    "transposed system",
    SUBSTITUTION: "a causal graph is triangular",
}


@dataclass(frozen=True)
class Resolvent(Strategy):
    r"""Walks of every length on a graph of tokens,
    :math:`((I - M)^{-1} - I) V u = \sum_{t \ge 1} M^t V u`, within a tolerance.

    In causal order M is triangular and the answer follows by substitution; otherwise it is
    iterated. Eager only: how often depends on values. ‖M‖ ≤ γ < 1 without order, so that the series
    converges; ``InfSA.convergence`` reports how.

    Args:
        tol: largest relative residual, of every head and sample; where the precision cannot resolve
            it (float32: 2e-6), what it can.
        max_iterations: largest number of products with M, at least 2.
        method: ``"neumann"`` iterates z ← v + Mz in two vectors; ``"gmres"`` keeps ten and needs
            far fewer products where γ is near 1.
        backend: of the products, see :mod:`fredholm.ops.backend`.

    Raises:
        ConvergenceError: the tolerance is not reached; it holds the spectral radius estimate.
        StrategyError: in traced code.

    Reference: InfSA Eqs. 7, 10, 15.

    Example:
        >>> Resolvent(tol=1e-4).method
        'neumann'
    """

    exact: ClassVar[bool] = False
    tol: float = 1e-5
    max_iterations: int = 500
    method: str = "neumann"
    backend: str = "auto"

    def __post_init__(self):
        check_backend(self.backend)
        if not 0.0 < self.tol < 1.0 or self.max_iterations < 2:
            raise OptionError(
                f"Resolvent needs tol in (0, 1) and max_iterations of at least 2, got {self.tol} "
                f"and {self.max_iterations}"
            )
        if self.method not in SOLVERS:
            raise OptionError(f"unknown method {self.method!r}{suggest(self.method, SOLVERS)}")

    def path(self, kernel: Kernel, layout: Layout) -> str:
        if not has_trait(kernel, GraphDiffusion):
            raise self.refuse(
                kernel, "a graph of tokens: weights, value_map, tokens, rules and gain", "Exact"
            )
        if torch.compiler.is_compiling() and not layout.stepping:
            raise StrategyError(
                "Resolvent stops when it has converged, which traced code cannot express; compile "
                "or export with Neumann(hops=...)"
            )
        if layout.stepping:
            return ROWS
        return SUBSTITUTION if layout.causal else ITERATIONS

    def reason(self, path: str) -> str:
        return REASONS[path]

    def respond(self, kernel: Kernel, problem: Problem, path: str) -> Tensor:
        return self.solve(kernel, problem)[0]

    def solve(self, kernel: Kernel, problem: Problem) -> tuple[Tensor, Convergence]:
        """The response (B, H, N, d_out), and how it was reached."""
        graph, value = graph_of(kernel, problem, backend=self.backend)
        with torch.autocast(value.device.type, enabled=False):
            out, report = resolvent(
                graph,
                value.to(graph.query.dtype),
                tol=self.tol,
                max_iterations=self.max_iterations,
                method=self.method,
            )
        return gained(kernel, out, value), report

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
        row, value, after = graph_row(kernel, u, quadrature, t, memory)
        known = row[..., :-1] @ memory["walk"] if t else torch.zeros_like(value)
        walk = (value + known) / (1.0 - row[..., -1:])
        after["walk"] = torch.cat([memory["walk"], walk], -2) if t else walk
        return gained(kernel, walk - value, u), after
