"""Kernels that evaluate their whole response: a stencil, a recurrence, a pooling."""

from __future__ import annotations

from torch import Tensor

from ..integral.capabilities import OwnForm
from ..integral.contract import Form, Kernel
from ..integral.facts import Facts
from ..integral.problem import Problem
from ..integral.strategy import Exact


class OwnResponse(Form):
    """The kernel's own evaluation, at its own cost."""

    word = Exact
    name = "the layer's own form"
    reason = "the kernel evaluates its whole response itself"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if isinstance(kernel, OwnForm) and kernel.evaluates(facts.layout):
            return None
        return "it has no evaluation of its own here (OwnForm)"

    def respond(self, kernel: OwnForm, problem: Problem) -> Tensor:
        return kernel.evaluate(problem)
