"""What happens when an op is called: which implementation runs, PyTorch's operations or the op's
own Triton kernel, and which derivatives none of them has.

An op that has a Triton kernel takes ``backend``, and so does the strategy or operator that calls
it, as an option of its construction. The choice follows static facts alone (device, dtype, shapes),
never the values of tensors:

- ``"auto"``: Triton on a CUDA device where its kernel takes the case, PyTorch everywhere else;
- ``"torch"``: PyTorch's operations;
- ``"triton"``: the Triton kernel, or a :class:`~fredholm.errors.BackendError` that says what stands
  in the way.

Triton is imported by ``ops/<name>/triton.py`` alone, when that kernel is first used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from ..errors import BackendError, DerivativeError, OptionError, suggest

Op = Callable[..., Any]

BACKENDS = ("auto", "torch", "triton")
OLDEST_CAPABILITY = (8, 0)  # bfloat16 matrix products
INSTALLED = find_spec("triton") is not None


def check_backend(name: str) -> str:
    """``name`` where it is one of :data:`BACKENDS`; for the construction of what takes a backend.

    Raises:
        OptionError: for any other name.

    Example:
        >>> check_backend("auto")
        'auto'
    """
    if name not in BACKENDS:
        raise OptionError(f"unknown backend {name!r}{suggest(name, BACKENDS)}")
    return name


def choose_backend(
    requested: str, op: str, device: torch.device, refusal: Callable[[], str | None]
) -> str:
    """``"torch"`` or ``"triton"`` for one call of ``op`` on ``device``.

    Args:
        requested: one of :data:`BACKENDS`.
        op: the op's name, for the error.
        device: where its tensors are.
        refusal: why this op's Triton kernel cannot take the call, or None where it can. Called
            only on a machine that runs Triton kernels.

    Raises:
        OptionError: for an unknown backend.
        BackendError: where ``"triton"`` was requested and cannot run.

    Example:
        >>> choose_backend("auto", "an op", torch.device("cpu"), lambda: None)
        'torch'
    """
    check_backend(requested)
    if requested == "torch" or (requested == "auto" and device.type != "cuda"):
        return "torch"
    reason = machine_refusal(device) or refusal()
    if reason is None:
        return "triton"
    if requested == "auto":
        return "torch"
    raise BackendError(
        f"backend='triton' cannot run {op}: {reason}; backend='auto' takes Triton only where it "
        "can run"
    )


def machine_refusal(device: torch.device) -> str | None:
    """Why no Triton kernel runs on tensors of ``device`` here, or None.

    Without a GPU, kernels run on the CPU through Triton's interpreter where ``TRITON_INTERPRET=1``
    was in the environment before the first of them was imported: slow, for tests.
    """
    if not INSTALLED:
        return "the package triton is not installed (pip install 'fredholm[triton]')"
    if interpreted():
        return (
            None
            if device.type == "cpu"
            else f"TRITON_INTERPRET=1 runs kernels on CPU tensors, got {device.type}"
        )
    if device.type != "cuda":
        return (
            f"the tensors are on {device.type}, it needs a CUDA device (or TRITON_INTERPRET=1, "
            "which is for tests)"
        )
    capability = _capability(device.index or 0)
    if capability < OLDEST_CAPABILITY:
        needed = ".".join(map(str, OLDEST_CAPABILITY))
        present = ".".join(map(str, capability))
        return f"the GPU has compute capability {present}, it needs {needed} or newer"
    return None


def interpreted() -> bool:
    """Whether Triton kernels are run by its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


@torch.compiler.assume_constant_result
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


# --- derivatives that no implementation of an op has ----------------------------------------------


def guarded_call(name: str, op: Op) -> Op:
    """The function that calls a custom op, behind :func:`refuse_transforms`."""

    def call(*arguments: Any) -> Any:
        # is_compiling is a constant to the tracer, which then leaves the check out
        if not torch.compiler.is_compiling():
            refuse_transforms(name, arguments)
        return op(*arguments)

    return call


def refuse_transforms(name: str, arguments: Sequence[Any]) -> None:
    """DerivativeError where forward mode, or a gradient of ``torch.func``, follows one of the
    arguments.

    ``vmap`` alone passes: it calls the op once for each element.
    """
    for x in spread(arguments):
        if isinstance(x, Tensor) and _is_followed(x):
            raise DerivativeError(
                f"{name} was called under torch.func.grad, torch.func.jvp or forward-mode "
                "differentiation, for which custom ops have no rule: use torch.autograd.grad or "
                "backward(), which it supports, or the op's plain form (its naive function)"
            )


def _is_followed(x: Tensor) -> bool:
    """Whether a derivative with respect to ``x`` is being taken.

    Each level of torch.func wraps all tensors made inside it, also those it does not differentiate.
    Only the outermost wrapper shows whether it has a tangent; an inner one counts as followed.
    """
    outermost = True
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_gradtrackingtensor(x) and (not outermost or _has_derivative(x)):
            return True
        x, outermost = _functorch.get_unwrapped(x), False
    return _has_derivative(x)


def _has_derivative(x: Tensor) -> bool:
    wrapped = _functorch.is_functorch_wrapped_tensor(x)
    return (wrapped and x.requires_grad) or forward_ad.unpack_dual(x).tangent is not None


def spread(arguments: Sequence[Any]) -> list[Any]:
    """The arguments with the elements of lists in the lists' places."""
    spread: list[Any] = []
    for x in arguments:
        spread.extend(x) if isinstance(x, (list, tuple)) else spread.append(x)
    return spread
