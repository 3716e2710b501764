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
        self,
        form: PartByPart,
        kernel: SumKernel,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        """Return the sum of the parts' responses at this rank's points, (B, 1, n, D_out).

        Every part brings its own form and exchange, and features are split into the heads of that
        part. The parts run in the same order on all ranks, as their messages must.
        """
        responses = []
        for part_form, part in zip(form.forms, kernel.parts):
            # The parts' forms were chosen for the same sharded domain.
            assert isinstance(part_form, Distributed)
            # A rank without points answers at its placeholder: the sum needs one row for each row
            # of the problem. The form of the sum removes that row afterwards.
            own_problem = seen_by(part, problem)
            responses.append(part_form.respond_filled(part.kernel, own_problem))
        return kernel.added(problem, responses)
