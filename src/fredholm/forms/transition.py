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
        if not isinstance(kernel, CausalTransition):
            return "it has no CausalTransition"
        return None

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
        point = Point.at(x, u, quadrature, t)
        out, after = kernel.advance(point, memory)
        if quadrature.valid is not None and not kernel.counts_padding:
            # Padding that does not count leaves the state of its sample unchanged.
            real = quadrature.valid[:, t]
            unchanged_at_padding: Memory = {}
            for name, new in after.items():
                by_sample = real.view(-1, *[1] * (new.dim() - 1))
                unchanged_at_padding[name] = torch.where(by_sample, new, memory[name])
            after = unchanged_at_padding
        return out[:, :, None], after
