"""A causal response through a state of fixed size, one point at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from ..integral.capabilities import CausalTransition
from ..integral.contract import Form, Kernel, Memory
from ..integral.facts import Facts
from ..integral.steps import Point
from ..integral.strategy import Exact
from ..quadrature import Quadrature


class Transition(Form):
    """The kernel's own step: O(1) time and memory per point."""

    word = Exact
    name = "state of fixed size"
    reason = "the kernel's response has a state of fixed size"
    responds = False
    steps = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if facts.layout.pairs:
            return "a state sees all points before, and pairs hide some of them"
        return None if isinstance(kernel, CausalTransition) else "it has no CausalTransition"

    def start(self, kernel: CausalTransition, u: Tensor) -> Memory:
        return kernel.start(u)

    def step(
        self,
        kernel: CausalTransition,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        out, after = kernel.advance(Point.at(x, u, quadrature, t), memory)
        # padding that is not a point leaves the state as it was
        if quadrature.valid is not None and not kernel.counts_padding:
            real = quadrature.valid[:, t]
            after = {
                name: torch.where(real.view(-1, *[1] * (new.dim() - 1)), new, memory[name])
                for name, new in after.items()
            }
        return out[:, :, None], after
