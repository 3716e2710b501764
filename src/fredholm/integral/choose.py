"""Which form integrates a kernel: a plain loop over the kernel's own list."""

from __future__ import annotations

from typing import Any

from ..errors import StrategyError
from .forms.form import Form
from .kernel import Kernel
from .problem import Facts
from .strategy import Strategy


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
    """The form, or a StrategyError where Triton was demanded of a form that has no Triton kernel."""
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
