"""Which derivatives are being taken, as far as autograd's graph does not show it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad


def transforms() -> bool:
    """Whether a transform of :mod:`torch.func` (``grad``, ``jvp``, ``vmap``, what is built on them)
    or a level of :mod:`torch.autograd.forward_ad` is open. 0.2 µs; compiled code may ask as well.

    Example:
        >>> transforms()
        False
        >>> torch.func.vmap(lambda x: x * transforms())(torch.ones(2)).tolist()
        [1.0, 1.0]
    """
    if torch.compiler.is_compiling():
        return _traced()
    return _functorch.get_dynamic_layer_stack_depth() > 0 or forward_ad._current_level >= 0


@torch.compiler.assume_constant_result
def _traced() -> bool:
    """The same while compiled code is traced, inside the transforms that it contains."""
    return _functorch.get_dynamic_layer_stack_depth() > 0 or forward_ad._current_level >= 0


def followed(x: Tensor) -> bool:
    """Whether a derivative with respect to ``x`` is being taken, in whichever mode.

    Each level of torch.func wraps all tensors made inside it, also those it does not differentiate.
    Only the outermost wrapper shows whether it has a tangent; an inner one counts as followed.
    """
    return x.requires_grad or (transforms() and transformed(x))


def transformed(x: Tensor) -> bool:
    """:func:`followed` by a transform; autograd's graph by itself does not count. A tracer cannot
    look: to it every tensor is.
    """
    if torch.compiler.is_compiling():
        return True
    outermost = True
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_gradtrackingtensor(x) and (not outermost or _has_derivative(x)):
            return True
        x, outermost = _functorch.get_unwrapped(x), False
    return _has_derivative(x)


def _has_derivative(x: Tensor) -> bool:
    wrapped = _functorch.is_functorch_wrapped_tensor(x)
    return (wrapped and x.requires_grad) or forward_ad.unpack_dual(x).tangent is not None
