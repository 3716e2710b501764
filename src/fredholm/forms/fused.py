"""Softmax attention through PyTorch's fused kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from ..integral.capabilities import SoftmaxScores
from ..integral.contract import Kernel, Memory, with_offset
from ..integral.facts import Facts
from ..integral.problem import Problem
from ..integral.strategy import Exact
from ..ops.attention import attention
from ..quadrature import Quadrature
from .keys import STEP, KeyForm


class Fused(KeyForm):
    """Queries, keys and values to the fused kernels, the logarithm of the weights as their mask:
    O(N²·d) time, O(N) memory.
    """

    word = Exact
    strategy: Exact
    name = "fused attention"
    reason = "the weight is a softmax of inner products"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if isinstance(kernel, SoftmaxScores):
            return None
        return "it needs a softmax of inner products (SoftmaxScores)"

    def keys(
        self,
        kernel: SoftmaxScores,
        y: Tensor,
        uy: Tensor,
    ) -> Memory:
        return {
            "key": kernel.keys(y, uy),
            "value": kernel.values(y, uy),
        }

    def advance(
        self,
        kernel: SoftmaxScores,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        """Return the responses at n new points, (B, H, n, d_out), and the memory with them.

        Shape: x (1 | B, n, p), u (B, H, n, d). The quadrature has the n new points as queries, and
        as keys the points of the memory followed by the new ones.
        """
        # The queries come without the scores' scale, which the fused kernels multiply themselves.
        query, key, value = kernel.project(x, u)

        # The memory is empty before the first point; later it has the keys and values of all
        # points before, (B, H, t, ·).
        if memory:
            key = torch.cat([memory["key"], key], -2)
            value = torch.cat([memory["value"], value], -2)

        out = attention(
            query,
            key,
            value,
            quadrature.to(u.dtype),
            scale=kernel.factor,
        )
        problem = Problem(
            x,
            x,
            u,
            u,
            quadrature,
            STEP,
        )
        response = with_offset(out, kernel, problem)
        return response, {"key": key, "value": value}

    def integrate(
        self,
        kernel: SoftmaxScores,
        problem: Problem,
        keys: Memory,
    ) -> Tensor:
        query = kernel.queries(problem.x, problem.ux)
        return attention(
            query,
            keys["key"],
            keys["value"],
            problem.quadrature,
        )

    def respond(self, kernel: SoftmaxScores, problem: Problem) -> Tensor:
        if problem.layout.cross:
            return super().respond(kernel, problem)

        # Both ends are the same points: one matrix product projects them to all three.
        query, key, value = kernel.project(problem.y, problem.uy)
        out = attention(
            query,
            key,
            value,
            problem.quadrature,
            scale=kernel.factor,
        )
        return with_offset(out, kernel, problem)
