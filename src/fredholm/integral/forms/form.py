"""What a form is, one algorithm for the integral with the options of its strategy; and which one
integrates a kernel: a plain loop over the kernel's own list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...errors import StrategyError
from ...ops.backend import describe_backend
from ...quadrature import Quadrature
from ..kernel import Kernel
from ..problem import Facts, Layout, Problem
from ..strategy import Plan, Strategy

Memory = dict[str, Tensor]
"""What a causal form keeps of the points before: tensors with the batch on dimension 0."""


class Form:
    """One algorithm for ∫ K u dμ + offset. A kernel lists the forms that may integrate it.

    A form that answers a whole problem defines :meth:`respond`; one that advances through a causal
    domain defines :meth:`step`, and may define :meth:`start` and a faster :meth:`prefill`.

    Args:
        strategy: the options, of class ``word``.

    Attributes:
        word: the strategy that the form belongs to.
        name: what it does in a few words: ``plan(domain).path``.
        reason: why it is right where it is chosen.
        responds, steps: whether it answers whole problems, and single points in causal order.
        triton: whether it has a Triton kernel.
        default: the word without options.
    """

    word: ClassVar[type[Strategy]]
    name: ClassVar[str]
    reason: ClassVar[str]
    responds: ClassVar[bool] = True
    steps: ClassVar[bool] = False
    triton: ClassVar[bool] = False
    default: ClassVar[Strategy]

    def __init_subclass__(cls, **options) -> None:
        super().__init_subclass__(**options)
        if hasattr(cls, "word"):
            cls.default = cls.word()

    def __init__(self, strategy: Strategy):
        self.strategy = strategy

    # --- choosing ---------------------------------------------------------------------------------

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        """Why the form cannot integrate this kernel here, or None."""
        return None

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        """Whether ``"auto"`` may take the form; an approximation answers False."""
        return True

    def compared(self, kernel: Kernel, facts: Facts) -> Sequence[str]:
        """Names of the ops it calls whose Triton kernels ``"auto"`` may take, once they have agreed
        with PyTorch's operations.
        """
        return ()

    def plan(self, kernel: Kernel, facts: Facts, device: torch.device) -> Plan:
        """The form in words, for tensors on ``device``."""
        requested = getattr(self.strategy, "backend", "torch")
        backend = describe_backend(requested, self.compared(kernel, facts), device)
        return Plan(repr(self.strategy), self.name, self.reason, backend)

    # --- a whole problem --------------------------------------------------------------------------

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        """∫ K u dμ + offset, (B, H, Nq, d_out)."""
        raise NotImplementedError(f"{type(self).__name__} must define respond(kernel, problem)")

    # --- a causal domain, point by point ----------------------------------------------------------

    def start(self, kernel: Kernel, u: Tensor) -> Memory:
        """The memory before the first point, for features like ``u`` (B, H, d)."""
        return {}

    def step(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """The response at point t (B, H, 1, d_out) from its position (1 | B, 1, p), its features
        (B, H, 1, d), the whole domain's quadrature and the memory of the points before it; and the
        memory after it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step")

    def prefill(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """A stretch at once: points t, t + 1, … at x (1 | B, n, p) with features u (B, H, n, d) to
        their responses (B, H, n, d_out) and the memory after the last. By
        default one step after another.
        """
        out = []
        for i in range(u.shape[2]):
            part = slice(i, i + 1)
            y, memory = self.step(kernel, x[:, part], u[:, :, part], quadrature, t + i, memory)
            out.append(y)
        return torch.cat(out, 2), memory


class KeyForm(Form):
    """Base of forms that compute something once for every key, and whose causal memory is that: it
    grows with the points, and a step costs O(t).
    """

    steps = True

    def keys(self, kernel: Kernel, y: Tensor, uy: Tensor) -> Memory:
        """What is computed once for the keys: tensors with points on dimension -2."""
        return {"positions": y, "signal": uy}

    def integrate(self, kernel: Kernel, problem: Problem, keys: Memory) -> Tensor:
        """∫ K u dμ for every query and head, (B, H, Nq, d_out)."""
        raise NotImplementedError(f"{type(self).__name__} must define integrate")

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        keys = self.keys(kernel, problem.y, problem.uy)
        return with_offset(self.integrate(kernel, problem, keys), kernel, problem)

    def step(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return self._advance(kernel, x, u, quadrature.row(t), memory)

    def prefill(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return self._advance(kernel, x, u, quadrature.stretch(t, t + u.shape[2]), memory)

    def _advance(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """The stretch's queries against all keys so far."""
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
            # queries are the last of the keys only: to a kernel, points of another domain
            Layout(cross=True, stepping=True),
        )
        return with_offset(self.integrate(kernel, problem, memory), kernel, problem), memory


def with_offset(out: Tensor, kernel: Kernel, problem: Problem) -> Tensor:
    """An integral and the kernel's response to a constant channel."""
    offset = kernel.offset(problem)
    return out if offset is None else out + offset


# --- choosing one ---------------------------------------------------------------------------------


def choose(strategy: Strategy | str, kernel: Kernel, facts: Facts) -> Form:
    """The first form of ``kernel.forms`` that belongs to the strategy and does not refuse.

    ``"auto"`` takes the first that any strategy prefers; such a form is always exact. The choice
    follows static facts alone and is made anew at every call (about 5 µs), so that a kernel's
    options may change and traced lengths stay free.

    Raises:
        StrategyError: no form of the strategy integrates this kernel here; it says why.

    Example:
        >>> from fredholm.kernels import Layout, SoftmaxKernel
        >>> choose("auto", SoftmaxKernel(8, 2), Facts(Layout())).name
        'fused attention'
    """
    stepping = facts.layout.stepping
    if isinstance(strategy, str):
        for kind in kernel.forms:
            if kind.steps if stepping else kind.responds:
                form = kind(kind.default)
                if form.preferred(kernel, facts) and form.refuses(kernel, facts) is None:
                    return form
        raise StrategyError(f"{type(kernel).__name__} has no form for {facts.layout}")
    strategy = strategy.stepping() if stepping else strategy
    reasons = []
    for kind in kernel.forms:
        if isinstance(strategy, kind.word) and (kind.steps if stepping else kind.responds):
            form = kind(strategy)
            why = form.refuses(kernel, facts)
            if why is None:
                return _on_backend(form, kernel)
            reasons.append(why)
    raise _refusal(strategy, kernel, reasons, stepping)


def _on_backend(form: Form, kernel: Kernel) -> Form:
    """The form, or a StrategyError where Triton was demanded of a form without a Triton kernel."""
    options: Any = form.strategy
    if form.triton or getattr(options, "backend", "auto") != "triton":
        return form
    raise StrategyError(
        f"{options!r} would integrate {type(kernel).__name__} by {form.name}, which has no Triton "
        "kernel; use backend='auto'"
    )


def _refusal(
    strategy: Strategy, kernel: Kernel, reasons: list[str], stepping: bool
) -> StrategyError:
    """The error of a strategy that cannot integrate a kernel."""
    name, other = type(strategy).__name__, type(kernel).__name__
    if reasons:
        return StrategyError(f"{name} cannot integrate {other}: {reasons[-1]}")
    if stepping and any(isinstance(strategy, kind.word) for kind in kernel.forms):
        return StrategyError(f"{name} has no causal step; set op.strategy = 'exact' to generate")
    return StrategyError(
        f"{name} cannot integrate {other}: it needs {strategy.needs}; "
        f"use {strategy.instead} instead"
    )
