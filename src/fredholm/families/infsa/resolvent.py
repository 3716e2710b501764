"""Hops without end: the resolvent of a token graph, solved matrix-free and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import OptionError, StrategyError, suggest
from ...integral import Facts, Form, Kernel, Memory, Problem, Strategy, register_strategy
from ...ops.backend import check_backend, full_precision, transforms
from ...quadrature import Quadrature
from .capabilities import TokenGraphWeights
from .graph import resolvent, resolvent_naive
from .graph.solve import SOLVERS, Solved
from .hops import NEEDS, GraphRows, append, gained, graph_of, graph_row


@register_strategy("resolvent")
@dataclass(frozen=True)
class Resolvent(Strategy):
    r"""Walks of every length on a token graph,
    :math:`((I - M)^{-1} - I) V u = \sum_{t \ge 1} M^t V u`, within a tolerance.

    In causal order M is triangular and the answer follows by substitution; otherwise it is
    iterated. It runs in eager mode only, because the number of iterations depends on values.
    Without order ‖M‖ ≤ γ < 1, so the series converges; ``InfSA.convergence`` reports how fast.

    Args:
        tol: largest relative residual, of every head and sample; where the precision cannot resolve
            it (float32: 2e-6), the smallest residual that it can.
        max_iterations: largest number of products with M, at least 2.
        method: ``"neumann"`` iterates z ← v + Mz with two vectors; ``"gmres"`` stores ten and needs
            far fewer products where γ is near 1.
        backend: of the products with the graph, see :mod:`fredholm.ops.backend`. A causal step
            multiplies one row, and does so in PyTorch with any backend.

    Raises:
        ConvergenceError: the tolerance is not reached; the error has the estimated spectral radius.
        StrategyError: in traced code.

    Reference: InfSA Eqs. 7, 10, 15.

    Example:
        >>> Resolvent(tol=1e-4).method
        'neumann'
    """

    exact: ClassVar[bool] = False
    needs: ClassVar[str] = NEEDS
    instead: ClassVar[str] = "Exact"
    tol: float = 1e-5
    max_iterations: int = 500
    method: str = "neumann"
    backend: str = "auto"

    def __post_init__(self):
        check_backend(self.backend)
        if not 0.0 < self.tol < 1.0 or self.max_iterations < 2:
            raise OptionError(
                "expected tol in (0, 1) and max_iterations of 2 or more, got "
                f"{self.tol} and {self.max_iterations}"
            )
        if self.method not in SOLVERS:
            raise OptionError(f"unknown method {self.method!r}{suggest(self.method, SOLVERS)}")


class Iterations(Form):
    """Without an order: fixed-point or Krylov iterations, each one product with the graph."""

    word = Resolvent
    strategy: Resolvent
    name = "iterations over tiles"
    reason = (
        "a product with the graph is cheap and its inverse is not; the backward solves the "
        "transposed system"
    )
    triton = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        eager_only(facts)
        if facts.layout.causal:
            return "a causal graph is triangular"
        return None

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        # All hops are another response than the kernel's.
        return False

    def respond(self, kernel: TokenGraphWeights, problem: Problem) -> Tensor:
        if not transforms():
            return self.solve(kernel, problem).solution

        # A transformed tensor has no values by which iterations could stop.
        graph, value = graph_of(kernel, problem)
        with full_precision(value):
            start = value.to(graph.query.dtype)
            out = resolvent_naive(graph, start)
        return gained(kernel, out, value)

    def solve(self, kernel: TokenGraphWeights, problem: Problem) -> Solved:
        """Return the response (B, H, N, d_out), and how it was solved."""
        options = self.strategy
        graph, value = graph_of(kernel, problem, backend=options.backend)
        with full_precision(value):
            solved = resolvent(
                graph,
                value.to(graph.query.dtype),
                tol=options.tol,
                max_iterations=options.max_iterations,
                method=options.method,
            )
        solution = gained(kernel, solved.solution, value)
        return solved._replace(solution=solution)


class Substitution(Iterations):
    """In causal order: substitution, block by block."""

    name = "forward substitution by blocks"
    reason = "a causal graph is triangular"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        eager_only(facts)
        if not facts.layout.causal:
            return "without an order the graph is not triangular"
        return None


class WalkRows(GraphRows):
    """Substitution point by point: the walks of all points before are the memory, O(t)."""

    word = Resolvent
    strategy: Resolvent

    def step(
        self,
        kernel: TokenGraphWeights,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        # Row t of z = v + Mz has one unknown, z_t: the walks of all points before are known.
        row, value, after = graph_row(
            kernel,
            u,
            quadrature,
            t,
            memory,
        )
        with full_precision(u):
            known = torch.zeros_like(value)
            if t:
                known = row[..., :-1] @ memory["walk"]
            own = row[..., -1:]
            walk = (value + known) / (1.0 - own)
        after["walk"] = append(memory, "walk", walk)
        return gained(kernel, walk - value, u), after


def eager_only(facts: Facts) -> None:
    """StrategyError in traced code."""
    if facts.tracing:
        raise StrategyError(
            "expected eager code for Resolvent, which stops once it has converged, got a trace; "
            "compile or export with Neumann(hops=...)"
        )
