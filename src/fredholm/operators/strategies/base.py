"""What every strategy offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import StrategyError
from ...kernels import Kernel, Layout, Problem
from ...quadrature import Quadrature

Keys = dict[str, Tensor]


@dataclass(frozen=True)
class Plan:
    """Which strategy and which form of it will run, and why: what ``operator.plan(domain)``
    answers.
    """

    strategy: str
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.strategy} by {self.path}: {self.reason}"


@dataclass(frozen=True)
class Strategy:
    """A way of computing ∫ K u dμ. Subclasses are frozen dataclasses without parameters.

    ``exact`` says whether the result equals the definition. A strategy decides from static facts
    only (traits, shapes, device type), never from the values of tensors, so that traced code takes
    the same way as eager code.
    """

    exact: ClassVar[bool] = True

    def path(self, kernel: Kernel, layout: Layout) -> str:
        """Name of the form that serves this kernel, or StrategyError."""
        raise NotImplementedError

    def suits(self, kernel: Kernel, layout: Layout) -> bool:
        """Whether ``"auto"`` prefers this strategy to :class:`Exact` for such a kernel and such
        static facts.
        """
        return False

    def reason(self, path: str) -> str:
        """Why a form was chosen, for people."""
        raise NotImplementedError

    def plan(self, kernel: Kernel, layout: Layout) -> Plan:
        """The form that serves this kernel, and why."""
        path = self.path(kernel, layout)
        return Plan(repr(self), path, self.reason(path))

    def keys(self, kernel: Kernel, y: Tensor, uy: Tensor, path: str) -> Keys:
        """What can be computed once for the keys: tensors with points on dimension -2. A causal
        step caches these.
        """
        raise NotImplementedError

    def integrate(self, kernel: Kernel, problem: Problem, keys: Keys, path: str) -> Tensor:
        """∫ K u dμ for every query and head, (B, H, Nq, d_out)."""
        raise NotImplementedError

    def respond(self, kernel: Kernel, problem: Problem, path: str) -> Tensor:
        """∫ K u dμ + offset, (B, H, Nq, d_out)."""
        return self._respond(kernel, problem, self.keys(kernel, problem.y, problem.uy, path), path)

    def step(
        self,
        kernel: Kernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Keys,
        path: str,
    ) -> tuple[Tensor, Keys]:
        """The response at point t (B, H, 1, d_out) from its position (1 | B, 1, p), its features
        (B, H, 1, d) and the memory of the points before it; and the memory after it. Here: keys are
        computed once and cached, O(t).
        """
        new = self.keys(kernel, x, u, path)
        memory = {name: torch.cat([memory[name], k], -2) if t else k for name, k in new.items()}
        row = quadrature.row(t).to(u.dtype)
        problem = Problem(
            x,
            memory.get("positions", x),
            u,
            memory.get("signal", u),
            row,
            Layout(cross=True, stepping=True),
        )
        return self._respond(kernel, problem, memory, path), memory

    def _respond(self, kernel: Kernel, problem: Problem, keys: Keys, path: str) -> Tensor:
        return with_offset(self.integrate(kernel, problem, keys, path), kernel, problem)

    def refuse(self, kernel: Kernel, needs: str, instead: str) -> StrategyError:
        """The error of a strategy that cannot serve a kernel."""
        return StrategyError(
            f"{type(self).__name__} cannot integrate {type(kernel).__name__}: it needs {needs}; "
            f"use {instead} instead"
        )


def with_offset(out: Tensor, kernel: Kernel, problem: Problem) -> Tensor:
    """An integral and the kernel's response to a constant channel."""
    offset = kernel.offset(problem)
    return out if offset is None else out + offset
