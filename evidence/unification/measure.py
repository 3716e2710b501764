"""How far an operator is from the layer it was made of, in outputs and in every gradient."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fredholm.convert import as_operator

FLOAT64, FLOAT32 = 1e-10, 1e-5


@dataclass(frozen=True)
class Configuration:
    """One layer with one set of options.

    Attributes:
        family: ``convolution``, ``attention``, ``recurrence``, ``state space``, ...
        label: what the documentation's table says, ``Conv2d 4→6, 3×3, stride 2``.
        build: makes the module, in evaluation mode.
        inputs: makes the inputs, u (B, N, dim) first; floating-point ones are differentiated.
        reference: the module's output on the inputs, as (B, Nq, out_dim).
        apply: the same through ``call``, which is the operator's ``forward`` or its ``dense``.
        options: of :func:`fredholm.as_operator`; a callable is given the module.
        requires: a package without which the configuration cannot run, or None.
    """

    family: str
    label: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    reference: Callable[..., Tensor]
    apply: Callable[..., Tensor] = lambda call, u: call(u)
    options: dict[str, Any] | Callable[[nn.Module], dict[str, Any]] = field(default_factory=dict)
    requires: str | None = None

    def __str__(self) -> str:
        return f"{self.family}: {self.label}"


@dataclass(frozen=True)
class Errors:
    """Largest differences relative to the largest value: of the fast path, its gradients, and the
    explicit kernel's output.
    """

    output: float
    inputs: float
    weights: float
    kernel: float

    @property
    def worst(self) -> float:
        return max(self.output, self.inputs, self.weights, self.kernel)


def measure(
    configuration: Configuration, dtype: torch.dtype = torch.float64, *, seed: int = 0
) -> Errors:
    """The operator against its module on one random input, parameters moved off their initial
    values.
    """
    torch.manual_seed(seed)
    module = configuration.build().to(dtype).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    inputs = tuple(
        x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in configuration.inputs()
    )
    options = (
        configuration.options(module) if callable(configuration.options) else configuration.options
    )
    operator = as_operator(module, **options)
    leaves = [x for x in inputs if x.requires_grad]
    named = [p for p in module.parameters() if p.requires_grad]
    expected = configuration.reference(module, *inputs)
    weights = torch.randn_like(expected)
    actual = configuration.apply(operator, *inputs)
    explicit = configuration.apply(operator.dense, *inputs)
    if actual.shape != expected.shape:
        raise AssertionError(
            f"{configuration}: operator gives {tuple(actual.shape)}, module {tuple(expected.shape)}"
        )
    right = _gradients(expected, leaves + named, weights)
    wrong = [_gradients(y, leaves + named, weights) for y in (actual, explicit)]
    k = len(leaves)
    return Errors(
        output=_relative(actual, expected),
        inputs=_largest(wrong[0][:k], right[:k]),
        weights=_largest(wrong[0][k:], right[k:]),
        kernel=max(_relative(explicit, expected), _largest(wrong[1], right)),
    )


def _gradients(output: Tensor, leaves: list[Tensor], weights: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(output, leaves, weights, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found)]


def _largest(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Relative to the largest gradient of the group: a gradient that is exactly zero (a key bias)
    has no scale of its own.
    """
    scale = max((x.abs().max().item() for x in expected), default=0.0)
    return max(((a - b).abs().max().item() for a, b in zip(actual, expected)), default=0.0) / (
        scale or 1.0
    )


def _relative(actual: Tensor, expected: Tensor) -> float:
    return (actual - expected).abs().max().item() / (expected.abs().max().item() or 1.0)


def configurations() -> list[Configuration]:
    """All configurations, family by family: the lists ``CONFIGURATIONS`` of this package's files."""
    package = __package__ or "evidence.unification"
    found: list[Configuration] = []
    for module in pkgutil.iter_modules([str(p) for p in importlib.import_module(package).__path__]):
        if module.name != "measure":
            found += getattr(
                importlib.import_module(f"{package}.{module.name}"), "CONFIGURATIONS", []
            )
    return found
