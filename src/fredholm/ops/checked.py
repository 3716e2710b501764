"""``backend="checked"``: a Triton kernel that every call compares with PyTorch's operations.

A compiler may be wrong on one GPU, and no test runs on all of them. Under this backend an op
computes its result twice, by its kernel and by PyTorch's operations, in values and in gradients. It
returns the kernel's result, or raises where the two differ. A call costs about three times as much
as either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ..errors import BackendError

ResultT = TypeVar("ResultT", bound=Tensor | tuple[Tensor, ...])

TOLERANCE = {
    torch.float32: 1e-4,
    torch.float16: 5e-3,
    torch.bfloat16: 3e-2,
}
"""The largest difference that is allowed, over the largest magnitude of a tensor. Both sides round
in the tensor's dtype.
"""
TF32_TOLERANCE = 5e-3
"""For float32 where ``torch.set_float32_matmul_precision`` allows TF32."""
SMALLEST_SCALE = 1e-3
"""Tensors of a smaller magnitude are compared with this one, so that noise is not divided by 0."""


def checked_call(
    op: str,
    function: Callable[..., ResultT],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> ResultT:
    """Compare both implementations on detached copies, then return the kernel's result.

    Args:
        op: the op's name, for messages.
        function: the op, which takes ``backend``.
        args, options: its arguments without ``backend``.

    Raises:
        BackendError: where the two differ, or the kernel cannot run.
    """
    copies: dict[int, Any] = {}
    detached_args = _detached(args, copies)
    detached_options = _detached(options, copies)
    inputs = [x for x in copies.values() if isinstance(x, Tensor) and x.requires_grad]
    call = partial(function, *detached_args, **detached_options)

    # Both implementations save their tensors as they are. Hooks of the caller, such as those of a
    # checkpoint around the call, must not see them.
    with torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged):
        expected = _evaluate(call, inputs, "torch")
        actual = _evaluate(call, inputs, "triton")

    for name, kernel_result in actual.items():
        difference = relative_difference(kernel_result, expected[name])
        allowed = tolerance(kernel_result.dtype)
        # A difference of NaN must fail as well.
        if not difference <= allowed:
            raise BackendError(
                f"expected the Triton kernel of {op} to agree with PyTorch's operations within "
                f"{allowed:.0e}, got a relative difference of {difference:.1e} in {name}; use "
                "backend='torch', and report the GPU, its driver and the version of Triton"
            )

    # Once more with the caller's own tensors, so that autograd records the call.
    return function(*args, **options, backend="triton")


def _evaluate(
    call: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: list[Tensor],
    backend: str,
) -> dict[str, Tensor]:
    """Return the results of one implementation and the gradients of a random functional of them,
    by name.
    """
    results = call(backend=backend)
    if isinstance(results, Tensor):
        results = (results,)
    named = {f"result {i}": x.detach() for i, x in enumerate(results)}

    recorded = [x for x in results if x.requires_grad]
    if not recorded:
        return named

    # Both implementations get the same functional, and the global generator is not advanced.
    generator = torch.Generator().manual_seed(20)
    weights = [torch.randn(x.shape, generator=generator).to(x) for x in recorded]
    gradients = torch.autograd.grad(recorded, inputs, weights, allow_unused=True)
    for i, (x, gradient) in enumerate(zip(inputs, gradients)):
        # An implementation may return no gradient where the other returns zeros.
        if gradient is None:
            gradient = torch.zeros_like(x)
        named[f"gradient {i}"] = gradient
    return named


def relative_difference(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest magnitude; infinity where there is NaN.

    Example:
        >>> relative_difference(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
        0.25
    """
    if not expected.numel():
        return 0.0
    exact = expected.double()
    difference = float((actual.double() - exact).abs().max())
    if math.isnan(difference):
        return math.inf
    magnitude = float(exact.abs().max())
    return difference / max(magnitude, SMALLEST_SCALE)


def tolerance(dtype: torch.dtype) -> float:
    """Return the relative difference that rounding in ``dtype`` explains.

    Example:
        >>> tolerance(torch.float16)
        0.005
    """
    allowed = TOLERANCE[dtype]
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return max(allowed, TF32_TOLERANCE)
    return allowed


def _detached(value: Any, copies: dict[int, Any]) -> Any:
    """Copy an argument with every tensor in it detached; one object gives one copy.

    ``copies`` maps the id of each object to its copy. A tensor that is used twice must stay one
    leaf, and an op may ask whether two of its arguments are the same object.
    """
    if id(value) in copies:
        return copies[id(value)]
    copied = value
    if isinstance(value, Tensor):
        copied = value.detach().requires_grad_(value.requires_grad)
    elif isinstance(value, Mapping):
        copied = {name: _detached(x, copies) for name, x in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        copied = type(value)(*_each(value, copies))
    elif isinstance(value, (list, tuple)):
        copied = type(value)(_each(value, copies))
    elif is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        parts = {name: _detached(getattr(value, name), copies) for name in names}
        copied = replace(cast(Any, value), **parts)
    copies[id(value)] = copied
    return copied


def _each(values: Iterable[Any], copies: dict[int, Any]) -> list[Any]:
    return [_detached(x, copies) for x in values]


def _unchanged(x: Tensor) -> Tensor:
    return x
