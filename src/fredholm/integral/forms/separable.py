"""What the forms of separable kernels share: features, stabilised where the kernel can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...ops.linear_attention import banked_attention
from ..capabilities import Banked, Expanded, Separable, Stabilised
from ..kernel import Kernel
from ..problem import Facts, Problem
from ..strategy import Linear
from .form import Form, with_offset


class SeparableForm(Form):
    """Base of the linear forms: the weight is an inner product of features."""

    word = Linear
    strategy: Linear
    triton = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not isinstance(kernel, Separable):
            return f"it needs {Linear.needs}; use {Linear.instead} instead"
        if facts.layout.pairs or (facts.layout.causal and facts.layout.cross):
            return "pairs, and an order across two domains, leave no moment that all queries share"
        return None

    def compared(self, kernel: Kernel, facts: Facts) -> Sequence[str]:
        given = ("linear attention",) if facts.layout.causal else ()
        return ("attention with a bank's features", *given) if isinstance(kernel, Banked) else given

    def respond(self, kernel: Any, problem: Problem) -> Tensor:
        options = self.strategy
        # A GPU makes the features of a bank in registers and never keeps them.
        on_gpu = options.backend == "triton" or problem.uy.is_cuda
        bank = _bank(kernel, problem) if on_gpu else None
        if bank is None:
            out = self.attend(kernel, problem)
        else:
            out = banked_attention(
                value=kernel.values(problem.y, problem.uy),
                quadrature=problem.quadrature,
                floor=kernel.floor,
                chunk=options.chunk,
                backend=options.backend,
                **bank,
            )
        return with_offset(expanded(kernel, problem, out), kernel, problem)

    def attend(self, kernel: Any, problem: Problem) -> Tensor:
        """The integral of the values, (B, H, Nq, c)."""
        raise NotImplementedError(f"{type(self).__name__} must define attend")


def _bank(kernel: object, problem: Problem) -> dict[str, Any] | None:
    """The arguments of ``banked_attention``, where the features are a bank and nothing else."""
    return kernel.banked(problem) if isinstance(kernel, Banked) else None


def query_features(kernel: Any, x: Tensor, ux: Tensor) -> Tensor:
    """φ, up to a factor per query where the kernel is ``Stabilised``."""
    if isinstance(kernel, Stabilised):
        return kernel.stable_query_features(x, ux)
    return kernel.query_features(x, ux)


def key_features(
    kernel: Any, y: Tensor, uy: Tensor, valid: Tensor | None, least: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """ψ divided by e^c, and c, (B, H), or None where nothing was divided."""
    if isinstance(kernel, Stabilised):
        return kernel.stable_key_features(y, uy, valid, least)
    return kernel.key_features(y, uy), None


def expanded(kernel: Any, problem: Problem, response: Tensor) -> Tensor:
    """The response through the matrix at the query, where the kernel has one."""
    if isinstance(kernel, Expanded):
        return kernel.expand(problem.x, problem.ux, response)
    return response
