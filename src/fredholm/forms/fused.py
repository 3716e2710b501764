"""Softmax attention through PyTorch's fused kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..distributed import Shards
from ..domain import Domain
from ..integral.capabilities import JointScores, SoftmaxScores, has_trait
from ..integral.contract import Kernel, Memory, with_offset
from ..integral.exchange import Exchange, Parts, ring
from ..integral.problem import Facts, Problem
from ..integral.strategy import Exact
from ..ops.attention import attention, attention_part, finished, joined
from ..quadrature import Quadrature
from .blocks import by_query_blocks
from .keys import STEP, KeyForm, ring_of_keys

NUMBERS_PER_PAIR = 4  # of one block of a ring: scores, weights and what their gradient keeps


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

    def advance(
        self, kernel: Any, x: Tensor, u: Tensor, quadrature: Quadrature, memory: Memory
    ) -> tuple[Tensor, Memory]:
        if not has_trait(kernel, JointScores):
            return super().advance(kernel, x, u, quadrature, memory)
        query, key, value = kernel.project(x, u)
        if memory:
            key = torch.cat([memory["key"], key], -2)
            value = torch.cat([memory["value"], value], -2)
        out = attention(query, key, value, quadrature.to(u.dtype), scale=kernel.factor)
        out = with_offset(out, kernel, Problem(x, x, u, u, quadrature, STEP))
        return out, {"key": key, "value": value}

    def integrate(self, kernel: Any, problem: Problem, keys: Memory) -> Tensor:
        query = kernel.queries(problem.x, problem.ux)
        return attention(query, keys["key"], keys["value"], problem.quadrature)

    def exchange(self, kernel: Any, problem: Problem, shards: Shards) -> Tensor:
        def respond(p: Problem) -> Tensor:
            return by_query_blocks(_part, kernel, p, NUMBERS_PER_PAIR, None)

        return with_offset(finished(ring(problem, shards, respond, _join)), kernel, problem)

    def sent(self, kernel: Kernel, domain: Domain, batch: int, crossed: bool) -> Exchange:
        return ring_of_keys(kernel, domain, batch, crossed)

    def respond(self, kernel: Any, problem: Problem) -> Tensor:
        # where both ends are the same points, one matrix product projects them to all three
        if problem.layout.cross or not has_trait(kernel, JointScores):
            return super().respond(kernel, problem)
        query, key, value = kernel.project(problem.y, problem.uy)
        out = attention(query, key, value, problem.quadrature, scale=kernel.factor)
        return with_offset(out, kernel, problem)


def _part(kernel: Any, p: Problem) -> Tensor:
    key, value = kernel.keys(p.y, p.uy), kernel.values(p.y, p.uy)
    return attention_part(kernel.queries(p.x, p.ux), key, value, p.quadrature)


def _join(a: Parts, b: Parts) -> Parts:
    return (joined(a[0], b[0]),)
