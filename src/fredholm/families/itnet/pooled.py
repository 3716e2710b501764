"""The low-rank kernel where all queries see all keys: hidden units pooled before any factor is."""

from __future__ import annotations

from torch import Tensor

from ...integral import Facts, Form, Kernel, Linear, Problem, with_offset
from .capabilities import Pooled


class HiddenPooled(Form):
    """Both factors' last layers are linear and commute with the integral: O(N·w·d)."""

    word = Linear
    name = "hidden units pooled"
    reason = (
        "both factors' last layers are linear, so hidden units are integrated first and no factor "
        "is formed"
    )

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        layout = facts.layout
        if layout.causal or layout.pairs:
            return "an order or pairs give each query an integral of its own"
        if not isinstance(kernel, Pooled):
            return "it needs a kernel whose hidden units can be pooled (Pooled)"
        return None

    def respond(self, kernel: Pooled, problem: Problem) -> Tensor:
        return with_offset(kernel.pooled(problem), kernel, problem)
