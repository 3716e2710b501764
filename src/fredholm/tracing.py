"""What may be kept of tensors between calls: whether code is traced, transformed or watched now."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad


def transforms() -> bool:
    """Whether a transform of :mod:`torch.func` (``grad``, ``jvp``, ``vmap``, what is built on them)
    or a level of :mod:`torch.autograd.forward_ad` is open. 0.1 µs; compiled code may ask as well.

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


def versions(tensors: Iterable[Tensor]) -> list[int] | None:
    """How often each tensor was written to: what is computed from them now holds until that
    changes. None where it must not be kept.

    That is: while code is traced, transformed or watched by a mode, while a CUDA graph is captured,
    for subclasses, and where autograd follows a tensor. An inference tensor does not say when it is
    written to.

    Example:
        >>> x = torch.ones(2)
        >>> versions([x]), versions([x.add_(1)]), versions([x.requires_grad_()])
        ([0], [1], None)
    """
    if torch.compiler.is_compiling() or transforms() or torch._C._len_torch_dispatch_stack():
        return None
    result = []
    for x in tensors:
        if type(x) is not Tensor or x.requires_grad or x.is_inference():
            return None
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        result.append(x._version)
    return result
