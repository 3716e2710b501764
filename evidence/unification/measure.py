"""Errors of an operator against the layer that it was converted from, in outputs and gradients."""

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
    """A layer with options.

    Attributes:
        family: ``convolution``, ``attention``, ``recurrence``, ``state space``, ...
        label: in the documentation's table, for example ``Conv2d 4→6, 3×3, stride 2``.
        build: makes the module, in evaluation mode.
        inputs: makes the inputs, u (B, N, dim) first; floating-point ones are differentiated.
        reference: returns the module's output on the inputs, (B, Nq, out_dim).
        apply: returns the output of ``call``, the operator's ``forward`` or its ``dense``.
        options: of :func:`fredholm.as_operator`, or a function of the module that returns them.
        requires: a package that the configuration needs, or None.
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
    """Largest differences, relative to the largest value.

    Attributes:
        output: of the operator's output.
        inputs, weights: of its gradients.
        kernel: of output and gradients through the explicit kernel.
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
    """Compare the operator with its module on a random input.

    Raises:
        AssertionError: their outputs have different shapes.
    """
    torch.manual_seed(seed)
    module = configuration.build().to(dtype).eval()
    # Initial values may be zero, which would hide errors.
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    inputs = []
    for x in configuration.inputs():
        inputs.append(x.to(dtype).requires_grad_() if x.is_floating_point() else x)

    options = configuration.options
    if callable(options):
        options = options(module)
    operator = as_operator(module, **options)
    leaves = [x for x in inputs if x.requires_grad]
    named = [p for p in module.parameters() if p.requires_grad]
    expected = configuration.reference(module, *inputs)
    weights = torch.randn_like(expected)
    actual = configuration.apply(operator, *inputs)
    explicit = configuration.apply(operator.dense, *inputs)
    if actual.shape != expected.shape:
        raise AssertionError(
            f"{configuration}: expected the module's shape {tuple(expected.shape)}, got "
            f"{tuple(actual.shape)}"
        )

    right = _gradients(expected, leaves + named, weights)
    fast = _gradients(actual, leaves + named, weights)
    dense = _gradients(explicit, leaves + named, weights)
    k = len(leaves)
    return Errors(
        output=_relative(actual, expected),
        inputs=_largest(fast[:k], right[:k]),
        weights=_largest(fast[k:], right[k:]),
        kernel=max(_relative(explicit, expected), _largest(dense, right)),
    )


def _gradients(output: Tensor, leaves: list[Tensor], weights: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(output, leaves, weights, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found)]


def _largest(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference relative to the largest gradient of the group.

    A gradient that is exactly zero, such as a key bias's, does not have a scale.
    """
    scale = max((x.abs().max().item() for x in expected), default=0.0)
    differences = [(a - b).abs().max().item() for a, b in zip(actual, expected)]
    return max(differences, default=0.0) / (scale or 1.0)


def _relative(actual: Tensor, expected: Tensor) -> float:
    return (actual - expected).abs().max().item() / (expected.abs().max().item() or 1.0)


def configurations() -> list[Configuration]:
    """Return the lists ``CONFIGURATIONS`` of all files of this package."""
    package = __package__ or "evidence.unification"
    folders = [str(path) for path in importlib.import_module(package).__path__]
    found: list[Configuration] = []
    for entry in pkgutil.iter_modules(folders):
        if entry.name != "measure":
            module = importlib.import_module(f"{package}.{entry.name}")
            found += getattr(module, "CONFIGURATIONS", [])
    return found
