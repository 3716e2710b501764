"""A scalar weight times a value map, a block of queries at a time."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..contract import Kernel, Memory
from ..problem import Problem
from ..strategy import Exact
from .blocks import by_query_blocks
from .keys import KeyForm

NUMBERS_PER_PAIR = 4  # scores, weights and what their gradient keeps


class WeightBlocks(KeyForm):
    """Weights (Nq × Nk) times the signal, then the value map: O(N²·d) time, memory of one block."""

    word = Exact
    strategy: Exact
    name = "weights by query block"
    reason = "a scalar weight times a value map"

    def integrate(self, kernel: Kernel, problem: Problem, keys: Memory) -> Tensor:
        return by_query_blocks(_block, kernel, problem, NUMBERS_PER_PAIR, self.strategy.memory)


def _block(kernel: Any, problem: Problem) -> Tensor:
    weights = problem.quadrature.weights().to(problem.uy.dtype)
    density = (kernel.weights(problem) * weights).expand(-1, kernel.heads, -1, -1)
    # two products: an einsum of three would fix traced lengths
    return density @ problem.uy @ kernel.value_map().mT
