"""The definition itself, a block of queries at a time."""

from __future__ import annotations

from torch import Tensor

from ..integral.contract import Kernel, Memory
from ..integral.problem import Problem
from ..integral.strategy import Exact
from ..ops.dense import dense_apply
from .blocks import by_query_blocks
from .keys import KeyRing


class Dense(KeyRing):
    """The kernel's matrix against the quadrature, block by block of queries: O(N²·d²) time, memory
    of one block. For any kernel.
    """

    word = Exact
    strategy: Exact
    name = "dense blocks"
    reason = "the kernel has no trait that would allow a faster form here"

    def integrate(
        self,
        kernel: Kernel,
        problem: Problem,
        keys: Memory,
    ) -> Tensor:
        entries = kernel.d_in * kernel.d_out
        return by_query_blocks(
            _block,
            kernel,
            problem,
            entries,
            self.strategy.memory,
        )


def _block(kernel: Kernel, problem: Problem) -> Tensor:
    return dense_apply(
        kernel.matrix(problem),
        problem.quadrature.weights(),
        problem.uy,
    )
