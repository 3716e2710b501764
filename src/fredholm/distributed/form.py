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
        assert exchange is not None  # choose leaves out forms without one
        self.form, self.exchange = form, exchange

    def plan(self) -> Plan:
        return replace(self.form.plan(), exchange=self.exchange.words(self.form))

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        # A rank without points has answered at one of padding.
        return self.respond_filled(kernel, problem)[:, :, problem.answered]

    def respond_filled(self, kernel: Kernel, problem: Problem) -> Tensor:
        """:meth:`respond` at all points of the problem, padding of a rank without points among
        them.
        """
        assert problem.shards is not None
        return self.exchange.respond(self.form, kernel, problem, problem.shards)


class OwnTargets(Form):
    """A form where a rank's problem is complete before it begins: it has the rows of its points and
    all keys that they see, see :func:`.part.read_part`.
    """

    steps = False

    def __init__(self, form: Form, exchange: str):
        super().__init__(form.strategy)
        self.form, self.exchange = form, exchange

    def plan(self) -> Plan:
        return replace(self.form.plan(), exchange=self.exchange)

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        # There may be answers at points of other ranks, and at one of padding.
        return self.form.respond(kernel, problem)[:, :, problem.answered]
