"""What forms share that compute something once for every key."""

from __future__ import annotations

import torch
from torch import Tensor

from ..integral.contract import Kernel, Memory, StretchForm, with_offset
from ..integral.facts import Layout
from ..integral.problem import Problem
from ..quadrature import Quadrature

# queries are the last of the keys only: to a kernel, points of another domain
STEP = Layout(cross=True, stepping=True)


class KeyForm(StretchForm):
    """Base of forms that compute something once for every key, and whose causal memory is that: it
    grows with the points, and a step costs O(t).
    """

    def keys(self, kernel: Kernel, y: Tensor, uy: Tensor) -> Memory:
        """What is computed once for the keys: tensors with points on dimension -2."""
        return {"positions": y, "signal": uy}

    def integrate(self, kernel: Kernel, problem: Problem, keys: Memory) -> Tensor:
        """∫ K u dμ for every query and head, (B, H, Nq, d_out)."""
        raise NotImplementedError(f"{type(self).__name__} must define integrate")

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        keys = self.keys(kernel, problem.y, problem.uy)
        return with_offset(self.integrate(kernel, problem, keys), kernel, problem)

    def advance(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, memory: Memory
    ) -> tuple[Tensor, Memory]:
        new = self.keys(kernel, x, u)
        memory = {
            name: torch.cat([memory[name], k], -2) if memory else k for name, k in new.items()
        }
        problem = Problem(
            x,
            memory.get("positions", x),
            u,
            memory.get("signal", u),
            quadrature.to(u.dtype),
            STEP,
        )
        return with_offset(self.integrate(kernel, problem, memory), kernel, problem), memory


class KeyRing(KeyForm):
    """Base of key forms whose keys add up: the integral over some keys and that over the others is
    the integral over all.
    """
