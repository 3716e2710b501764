"""A scalar weight times a value map, a block of queries at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from ..integral.capabilities import WeightedValue
from ..integral.contract import Memory
from ..integral.problem import Problem
from ..integral.strategy import Exact
from .blocks import by_query_blocks
from .keys import KeyForm

NUMBERS_PER_PAIR = 4
"""Scores, weights and what their gradient saves."""


class WeightBlocks(KeyForm):
    """Weights (Nq × Nk) times the signal, then the value map: O(N²·d) time, memory of one block."""

    word = Exact
    strategy: Exact
    name = "weights by query block"
    reason = "a scalar weight times a value map"

    def integrate(
        self,
        kernel: WeightedValue,
        problem: Problem,
        keys: Memory,
    ) -> Tensor:
        return by_query_blocks(
            _block,
            kernel,
            problem,
            NUMBERS_PER_PAIR,
            self.strategy.memory,
        )


def _block(kernel: WeightedValue, problem: Problem) -> Tensor:
    """Return ∫ K u dμ for all queries of a problem, with weights (B, H, Nq, Nk)."""
    u = problem.uy

    # A density or a mass may exceed float16's range; their sum over keys does not.
    dtype = u.dtype
    if dtype == torch.float16:
        dtype = torch.float32
    density = (kernel.weights(problem) * problem.quadrature.weights()).to(dtype)
    density = density.expand(-1, kernel.heads, -1, -1)

    # Two products: an einsum of three would fix traced lengths.
    total = (density @ u.to(dtype)).to(u.dtype)
    return total @ kernel.value_map().mT
