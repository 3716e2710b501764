"""A scan over the points, where the response has a state of fixed size."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...kernels import Kernel, Layout, Problem, StateScan, has_trait
from ...quadrature import Quadrature
from .base import Keys, Strategy
from .exact import Exact

SCANNED = "scan over the states"


@dataclass(frozen=True)
class Scan(Strategy):
    """O(N): all states of the kernel's recurrence, then the outputs.

    Serves kernels with ``StateScan``: state space models, selective or not, on causal domains. A
    causal step is the kernel's own.

    Example:
        >>> from fredholm.kernels import DiagonalStateSpaceKernel
        >>> str(Scan().plan(DiagonalStateSpaceKernel(8, state=4), Layout(causal=True)))
        'Scan() by scan over the states: the response has a state of fixed size'
    """

    def path(self, kernel: Kernel, layout: Layout) -> str:
        if layout.stepping:
            return Exact().path(kernel, layout)
        if not scans(kernel, layout):
            raise self.refuse(
                kernel, "a state of fixed size on a causal domain (StateScan)", "Exact()"
            )
        return SCANNED

    def suits(self, kernel: Kernel, layout: Layout) -> bool:
        return scans(kernel, layout)

    def reason(self, path: str) -> str:
        return "the response has a state of fixed size"

    def respond(self, kernel: Kernel, problem: Problem, path: str) -> Tensor:
        return kernel.scan(problem)  # type: ignore[attr-defined]

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
        return Exact().step(kernel, x, u, quadrature, t, memory, path)


def scans(kernel: Kernel, layout: Layout) -> bool:
    """Whether the kernel has a scan that serves these static facts."""
    return has_trait(kernel, StateScan) and not layout.stepping and kernel.scans(layout)  # type: ignore[attr-defined]
