"""Softmax attention through PyTorch's fused kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...ops.attention import attention
from ..capabilities import JointScores, SoftmaxScores, has_trait
from ..contract import Kernel, Memory, with_offset
from ..problem import Facts, Problem
from ..strategy import Exact
from .keys import KeyForm


class Fused(KeyForm):
    """Queries, keys and values to the fused kernels, the logarithm of the weights as their mask:
    O(N²·d) time, O(N) memory.
    """

    word = Exact
    name = "fused attention"
    reason = "the weight is a softmax of inner products"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if isinstance(kernel, SoftmaxScores):
            return None
        return "it needs a softmax of inner products (SoftmaxScores)"

    def keys(self, kernel: Any, y: Tensor, uy: Tensor) -> Memory:
        return {"key": kernel.keys(y, uy), "value": kernel.values(y, uy)}

    def integrate(self, kernel: Any, problem: Problem, keys: Memory) -> Tensor:
        query = kernel.queries(problem.x, problem.ux)
        return attention(query, keys["key"], keys["value"], problem.quadrature)

    def respond(self, kernel: Any, problem: Problem) -> Tensor:
        # where both ends are the same points, one matrix product projects them to all three
        if problem.layout.cross or not has_trait(kernel, JointScores):
            return super().respond(kernel, problem)
        query, key, value = kernel.project(problem.y, problem.uy)
        return with_offset(attention(query, key, value, problem.quadrature), kernel, problem)
