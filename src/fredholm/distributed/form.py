"""A form over a sharded domain."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..integral.contract import Form, Kernel
from ..integral.problem import Problem
from ..integral.strategy import Plan
from .exchange import exchange_of


class Distributed(Form):
    """A form at one rank's points of a sharded domain, by its exchange between the ranks."""

    steps = False

    def __init__(self, form: Form, kernel: Kernel):
        super().__init__(form.strategy)
        exchange = exchange_of(type(form), type(kernel))
        # choose leaves out forms without an exchange.
        assert exchange is not None
        self.form = form
        self.exchange = exchange

    def plan(self) -> Plan:
        words = self.exchange.words(self.form)
        return replace(self.form.plan(), exchange=words)

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        # A rank without points has answered at one of padding.
        out = self.respond_filled(kernel, problem)
        return out[:, :, problem.answered]

    def respond_filled(self, kernel: Kernel, problem: Problem) -> Tensor:
        """Respond at all points of the problem, a point of padding included."""
        assert problem.shards is not None
        return self.exchange.respond(
            self.form,
            kernel,
            problem,
            problem.shards,
        )


class OwnTargets(Form):
    """A form on a rank that has all keys which its points see, see :func:`.part.read_part`.

    It needs no messages of its own.
    """

    steps = False

    def __init__(self, form: Form, exchange: str):
        super().__init__(form.strategy)
        self.form = form
        self.exchange = exchange

    def plan(self) -> Plan:
        return replace(self.form.plan(), exchange=self.exchange)

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        # The form also answers at points of other ranks, or at one of padding: leave them out.
        out = self.form.respond(kernel, problem)
        return out[:, :, problem.answered]
