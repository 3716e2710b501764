"""A scan over the points, where the response has a state of fixed size; and the choice between it and a convolution."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...kernels import Kernel, Layout, Problem, StateScan, has_trait
from ...quadrature import Quadrature
from .base import Keys, Plan, Strategy
from .exact import Exact
from .fft import FFT, convolves

SCANNED = "scan over the states"
# A transform of every tap pays while a tap is a small matrix; above that a state is passed on.
SMALL_TAP = 64


@dataclass(frozen=True)
class Scan(Strategy):
    """O(N): all states of the kernel's recurrence, then the outputs.

    Serves kernels with ``StateScan``: state space models, selective or not, on causal domains. A causal step is the kernel's own.

    Example:
        >>> from fredholm.kernels import DiagonalStateSpaceKernel
        >>> str(Scan().plan(DiagonalStateSpaceKernel(8, state=4), Layout(causal=True)))
        'Scan() by scan over the states: the response has a state of fixed size'
    """

    def path(self, kernel: Kernel, layout: Layout) -> str:
        if layout.stepping:
            return Exact().path(kernel, layout)
        if not scans(kernel, layout):
            raise self.refuse(kernel, "a state of fixed size on a causal domain (StateScan)", "Exact()")
        return SCANNED

    def reason(self, path: str) -> str:
        return "the response has a state of fixed size"

    def respond(self, kernel: Kernel, problem: Problem, path: str) -> Tensor:
        return kernel.scan(problem)  # type: ignore[attr-defined]

    def step(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Keys, path: str
    ) -> tuple[Tensor, Keys]:
        return Exact().step(kernel, x, u, quadrature, t, memory, path)


def scans(kernel: Kernel, layout: Layout) -> bool:
    """Whether the kernel has a scan that serves these static facts."""
    return has_trait(kernel, StateScan) and not layout.stepping and kernel.scans(layout)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Recurrent(Strategy):
    """What ``"auto"`` is for a kernel with taps or a scan: :class:`FFT`, :class:`Scan` or, where neither serves, :class:`Exact`.

    Example:
        >>> from fredholm.kernels import DiagonalStateSpaceKernel
        >>> Recurrent().choose(DiagonalStateSpaceKernel(8, state=4), Layout(causal=True))
        FFT()
    """

    def choose(self, kernel: Kernel, layout: Layout) -> Strategy:
        """The strategy for these static facts."""
        small = kernel.d_in * kernel.d_out <= SMALL_TAP
        if convolves(kernel, layout) and (small or not scans(kernel, layout)):
            return FFT()
        return Scan() if scans(kernel, layout) else Exact()

    def path(self, kernel: Kernel, layout: Layout) -> str:
        return self.choose(kernel, layout).path(kernel, layout)

    def plan(self, kernel: Kernel, layout: Layout) -> Plan:
        return self.choose(kernel, layout).plan(kernel, layout)

    def respond(self, kernel: Kernel, problem: Problem, path: str) -> Tensor:
        return self.choose(kernel, problem.layout).respond(kernel, problem, path)

    def step(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Keys, path: str
    ) -> tuple[Tensor, Keys]:
        return Exact().step(kernel, x, u, quadrature, t, memory, path)
