"""Separable kernels where pairs matter: queries share no moment, so every pair is evaluated."""

from __future__ import annotations

from torch import Tensor

from ..integral.capabilities import Separable
from ..integral.contract import Form, Kernel, Memory
from ..integral.facts import Facts, Layout
from ..integral.problem import Problem
from ..integral.strategy import EXACT, Linear
from ..quadrature import Quadrature
from .keys import KeyForm


class Quadratic(Form):
    """The kernel's best exact form: O(N²)."""

    word = Linear
    name = "quadratic form"
    strategy: Linear
    reason = (
        "pair masks, biases and an order across two domains act on pairs, so that no moment serves "
        "all queries"
    )
    steps = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not isinstance(kernel, Separable):
            return f"it needs {Linear.needs}; use {Linear.instead} instead"
        layout = facts.layout
        if layout.pairs or (layout.causal and layout.cross):
            return None
        return "one moment of the keys serves all queries"

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        return _by_pairs(kernel).respond(kernel, problem)

    def step(
        self,
        kernel: Kernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        return _by_pairs(kernel).step(
            kernel,
            x,
            u,
            quadrature,
            t,
            memory,
        )

    def prefill(
        self,
        kernel: Kernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        return _by_pairs(kernel).prefill(
            kernel,
            x,
            u,
            quadrature,
            t,
            memory,
        )


def _by_pairs(kernel: Kernel) -> KeyForm:
    """Return the kernel's best exact form over cached keys: such a form takes pairs of any
    kind.
    """
    facts = Facts(Layout(pairs=True))
    forms = (kind(EXACT) for kind in kernel.forms if issubclass(kind, KeyForm))
    return next(form for form in forms if form.refuses(kernel, facts) is None)
