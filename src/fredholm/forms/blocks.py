"""Dense evaluation, a block of queries at a time, for the forms that write out pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from ..integral.contract import Kernel
from ..integral.problem import Problem
from ..ops.plain import recomputed

WORKING_SET = 1 << 26
"""Bytes of one block, where the strategy does not set them."""

AnyKernel = TypeVar("AnyKernel", bound=Kernel)


def by_query_blocks(
    evaluate: Callable[[AnyKernel, Problem], Tensor],
    kernel: AnyKernel,
    problem: Problem,
    numbers_per_pair: int,
    memory: int | None,
) -> Tensor:
    """Return ``evaluate`` on blocks of queries that fit ``memory`` bytes, one after the other, as
    one tensor (B, H, Nq, d_out).

    Each block is computed again in the backward, so that no tensor of Nq × Nk outlives its block.
    Traced code takes one block: a loop over a symbolic number of queries would fix it.
    """
    if torch.compiler.is_compiling():
        return evaluate(kernel, problem)
    n = problem.ux.shape[2]

    # Numbers and their gradients, at four bytes each, for one query of every sample and head.
    batch = max(1, problem.uy.shape[0])
    keys = problem.uy.shape[2]
    pairs = batch * kernel.heads * keys
    row_bytes = 8 * pairs * numbers_per_pair
    block = max(1, min(n, (memory or WORKING_SET) // row_bytes))
    if block == n:
        return evaluate(kernel, problem)

    def of_block(start: int) -> Tensor:
        queries = range(start, min(n, start + block))
        rows = problem.rows(list(queries))
        return evaluate(kernel, rows)

    blocks = [recomputed(of_block, start) for start in range(0, n, block)]
    return torch.cat(blocks, 2)
