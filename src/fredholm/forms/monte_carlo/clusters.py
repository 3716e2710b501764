"""The integral from anchors: clusters of positions stand for all keys."""

from __future__ import annotations

from torch import Tensor

from ...errors import DomainError
from ...integral.capabilities import OwnForm
from ...integral.contract import Form, Kernel, first_form
from ...integral.facts import Facts
from ...integral.problem import Problem
from ...integral.strategy import EXACT
from .anchors import Anchors, at_anchors, check_count
from .strategy import MonteCarlo


class AnchorKeys(Form):
    """The kernel's exact form on few points, the same ones for all queries."""

    word = MonteCarlo
    name = "anchors"
    reason = "in evaluation clusters of positions stand for all keys, which is deterministic"
    strategy: MonteCarlo

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        anchors = self.strategy.anchors
        if isinstance(kernel, OwnForm):
            return f"it needs {MonteCarlo.needs}; use {MonteCarlo.instead} instead"
        # This form is an approximation: it is used on request, and in evaluation only.
        if facts.training or anchors is False:
            return "anchors are used in evaluation only, and when they are asked for"
        if facts.tracing and not isinstance(anchors, Anchors):
            return "traced code cannot make anchors; pass anchors=Anchors.of(domain, samples)"
        # Here the user has asked for anchors, so that another form would not be what was asked for.
        if facts.layout.pairs:
            raise DomainError(
                "anchors stand for points that all queries see alike, which pairs forbid; use "
                "anchors=False, or 'exact'"
            )
        return None

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        return False

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        samples = self.strategy.samples
        given = None
        if isinstance(self.strategy.anchors, Anchors):
            given = self.strategy.anchors
        else:
            check_count(samples, problem.uy.shape[2])
        part = at_anchors(problem, given, samples)
        return exact_response(kernel, part)


def exact_response(kernel: Kernel, part: Problem) -> Tensor:
    """Return the kernel's response by the best exact form that it has for a problem."""
    facts = part.facts._replace(training=kernel.training)
    form = first_form(EXACT, kernel, facts)
    return form.respond(kernel, part)
