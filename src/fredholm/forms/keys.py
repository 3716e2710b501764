"""What forms share that compute something once for every key."""

from __future__ import annotations

import torch
from torch import Tensor

from ..distributed import Shards
from ..domain import Domain
from ..integral.contract import Kernel, Memory, StretchForm, first_dtype, with_offset
from ..integral.exchange import Exchange, ring, ring_numbers
from ..integral.problem import Layout, Problem
from ..quadrature import Quadrature

# queries are the last of the keys only: to a kernel, points of another domain
STEP = Layout(cross=True, stepping=True)


def one_point(kernel: Kernel, domain: Domain, batch: int) -> tuple[Tensor, Tensor]:
    """A position, and the features of ``batch`` samples there, to ask a kernel for its widths."""
    dtype = first_dtype(kernel) or domain.positions.dtype
    y, heads = domain.positions.new_zeros(1, 1, domain.dim), 1 if kernel.whole else kernel.heads
    uy = y.new_zeros(batch, heads, 1, kernel.d_in, dtype=dtype)
    return y.to(torch.promote_types(dtype, y.dtype)), uy


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
    """Base of key forms whose keys add up, so that those of one rank of a sharded domain may come
    after another's.
    """

    def exchange(self, kernel: Kernel, problem: Problem, shards: Shards) -> Tensor:
        def respond(p: Problem) -> Tensor:
            return self.integrate(kernel, p, self.keys(kernel, p.y, p.uy))

        return with_offset(ring(problem, shards, respond), kernel, problem)

    def sent(self, kernel: Kernel, domain: Domain, batch: int, crossed: bool) -> Exchange:
        return ring_of_keys(kernel, domain, batch, crossed)


def ring_of_keys(kernel: Kernel, domain: Domain, batch: int, crossed: bool) -> Exchange:
    """What a ring of positions, features and masses sends."""
    width = kernel.d_in if kernel.whole else kernel.heads * kernel.d_in
    numbers = ring_numbers(domain, width, batch, crossed)
    return Exchange("a ring of the ranks' keys", numbers)
