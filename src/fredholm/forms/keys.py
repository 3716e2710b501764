"""Bases of forms that compute something once for every key."""

from __future__ import annotations

import torch
from torch import Tensor

from ..integral.contract import Kernel, Memory, StretchForm, with_offset
from ..integral.facts import Layout
from ..integral.problem import Problem
from ..quadrature import Quadrature

# In a causal step the queries are the last keys only: to a kernel, points of another domain.
STEP = Layout(cross=True, stepping=True)


class KeyForm(StretchForm):
    """Base of forms that compute something once for every key, and whose causal memory is that: it
    grows with the points, and a step costs O(t).
    """

    def keys(self, kernel: Kernel, y: Tensor, uy: Tensor) -> Memory:
        """Compute once for all keys: tensors with points on dimension -2."""
        return {"positions": y, "signal": uy}

    def integrate(
        self,
        kernel: Kernel,
        problem: Problem,
        keys: Memory,
    ) -> Tensor:
        """Return ∫ K u dμ for every query and head, (B, H, Nq, d_out)."""
        raise NotImplementedError(f"{type(self).__name__} must define integrate")

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        keys = self.keys(kernel, problem.y, problem.uy)
        out = self.integrate(kernel, problem, keys)
        return with_offset(out, kernel, problem)

    def advance(
        self,
        kernel: Kernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        keys = self.keys(kernel, x, u)
        if memory:
            keys = {name: torch.cat([memory[name], new], -2) for name, new in keys.items()}

        # A form whose keys include neither positions nor signal does not read those of the problem.
        y = keys.get("positions", x)
        uy = keys.get("signal", u)
        problem = Problem(
            x,
            y,
            u,
            uy,
            quadrature.to(u.dtype),
            STEP,
        )
        out = self.integrate(kernel, problem, keys)
        response = with_offset(out, kernel, problem)
        return response, keys


class KeyRing(KeyForm):
    """Base of key forms whose keys add up: the integral over some keys and that over the others is
    the integral over all.
    """
