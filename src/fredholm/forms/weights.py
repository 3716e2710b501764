"""A scalar weight times a value map, a block of queries at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..distributed import Shards
from ..domain import Domain
from ..integral.contract import Kernel, Memory, with_offset
from ..integral.exchange import Exchange, all_keys, gather_numbers
from ..integral.problem import Facts, Problem
from ..integral.strategy import Exact
from .blocks import by_query_blocks
from .keys import KeyForm

NUMBERS_PER_PAIR = 4  # scores, weights and what their gradient keeps


class WeightBlocks(KeyForm):
    """Weights (Nq × Nk) times the signal, then the value map: O(N²·d) time, memory of one block."""

    word = Exact
    strategy: Exact
    name = "weights by query block"
    reason = "a scalar weight times a value map"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        layout = facts.layout
        if layout.sharded and layout.pairs and not kernel.rowwise:
            return "its weights may be a functional of all pairs, which no rank has"
        return super().refuses(kernel, facts)

    def exchange(self, kernel: Kernel, problem: Problem, shards: Shards) -> Tensor:
        rows = all_keys(problem, shards)
        return with_offset(self.integrate(kernel, rows, {}), kernel, rows)

    def sent(self, kernel: Kernel, domain: Domain, batch: int, crossed: bool) -> Exchange:
        width = kernel.d_in if kernel.whole else kernel.heads * kernel.d_in
        return Exchange("all keys, gathered", gather_numbers(domain, width, batch, crossed))

    def integrate(self, kernel: Kernel, problem: Problem, keys: Memory) -> Tensor:
        return by_query_blocks(_block, kernel, problem, NUMBERS_PER_PAIR, self.strategy.memory)


def _block(kernel: Any, problem: Problem) -> Tensor:
    u = problem.uy
    # a density may be beyond float16, and so may a mass; their sum over keys is not
    dtype = torch.float32 if u.dtype == torch.float16 else u.dtype
    density = (kernel.weights(problem) * problem.quadrature.weights()).to(dtype)
    density = density.expand(-1, kernel.heads, -1, -1)
    # two products: an einsum of three would fix traced lengths
    return (density @ u.to(dtype)).to(u.dtype) @ kernel.value_map().mT
