"""ITNet's kernel of low rank: pooled hidden units, summed over the ranks."""

from __future__ import annotations

from torch import Tensor

from ...families.itnet.low_rank import LowRankKernel
from ...families.itnet.pooled import HiddenPooled
from ...integral.contract import with_offset
from ...integral.problem import Problem
from .. import Shards, summed
from ..exchange import Exchange, register_exchange


@register_exchange(HiddenPooled, LowRankKernel)
class UnitsSummed(Exchange):
    """One moment of the hidden units, summed over the ranks."""

    passes = "one moment of hidden units, summed"

    def respond(
        self,
        form: HiddenPooled,
        kernel: LowRankKernel,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        response = kernel.pooled(problem, lambda moment: summed(moment, shards))
        return with_offset(response, kernel, problem)
