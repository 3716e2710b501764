"""Sums of operators: each part by the exchange of its own form."""

from __future__ import annotations

from torch import Tensor

from ...integral.addition import PartByPart, SumKernel, seen_by
from ...integral.problem import Problem
from .. import Shards
from ..exchange import Exchange, register_exchange
from ..form import Distributed


@register_exchange(PartByPart, SumKernel)
class PartsInTurn(Exchange):
    """Each part by the exchange of its own form, one part after another."""

    def words(self, form: PartByPart) -> str:
        return " + ".join(part.plan().exchange for part in form.forms)

    def respond(
        self, form: PartByPart, kernel: SumKernel, problem: Problem, shards: Shards
    ) -> Tensor:
        responses = []
        for part_form, part in zip(form.forms, kernel.parts):
            assert isinstance(part_form, Distributed)  # chosen for the same domain
            responses.append(part_form.respond_filled(part.kernel, seen_by(part, problem)))
        return kernel.added(problem, responses)
