"""Where a kernel evaluates its whole response itself: a stencil, a recurrence, a pooling."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..distributed import Shards
from ..domain import Domain
from ..integral.capabilities import OwnExchange, OwnForm
from ..integral.contract import Form, Kernel
from ..integral.exchange import Exchange
from ..integral.problem import Facts, Problem
from ..integral.strategy import Exact


class OwnResponse(Form):
    """The layer's own evaluation, at its own cost."""

    word = Exact
    name = "the layer's own form"
    reason = "the kernel evaluates its whole response itself"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if isinstance(kernel, OwnForm) and kernel.evaluates(facts.layout):
            if not facts.layout.sharded:
                return None
            if isinstance(kernel, OwnExchange) and kernel.passes(facts.layout):
                return None
            return "the kernel's own form needs all points in one process here"
        return "it has no evaluation of its own here (OwnForm)"

    def exchange(self, kernel: Any, problem: Problem, shards: Shards) -> Tensor:
        return kernel.evaluate_part(problem, shards)

    def sent(self, kernel: Any, domain: Domain, batch: int, crossed: bool) -> Exchange:
        return Exchange(kernel.passed, kernel.sends(domain, batch))

    def respond(self, kernel: Any, problem: Problem) -> Tensor:
        return kernel.evaluate(problem)
