"""The MLP kernel by Triton: two custom ops that prepare, launch and sum; the kernels are in
``forward.py`` and ``backward.py``.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ....errors import DerivativeError
from ....ops.backend import full_precision
from ....ops.custom_op import differentiable_op
from ..hidden_first.forward import gather
from ..hidden_first.limits import operand_dtype
from ..hidden_first.registration import backward_flops, fake, forward_flops, plain
from ..hidden_first.terms import PAIR_TENSORS, SCHEMA
from .gradient import backward
from .launch import forward

DEFAULT_BYTES = 1_000_000_000  # few launches: each costs tenths of a millisecond of Python's time


def mlp_kernel_triton(
    tensors: dict[str, Tensor | None],
    activation: str,
    memory: int | None,
) -> Tensor:
    """:func:`~fredholm.families.itnet.hidden_first.mlp_kernel` for checked arguments.

    ``memory``: bytes of the moments held at once.
    """
    dtype = operand_dtype(tensors)
    ready = [_cast(name, x, dtype) for name, x in tensors.items()]
    value: Any = tensors["value"]
    return mlp_kernel_triton_op(*ready, activation, memory or DEFAULT_BYTES).to(value.dtype)


def _cast(name: str, x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Operands in ``dtype``, what is only added in float32; masks and times as they are."""
    fact = PAIR_TENSORS[name]
    if x is None or not x.is_floating_point() or fact.kind in ("mask", "time"):
        return x
    return x.to(torch.float32 if fact.single else dtype)


def _device(x: Tensor) -> Any:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _forward(*arguments: Any) -> Tensor:
    *tensors, activation, memory = arguments
    x = gather(tensors)
    with _device(x.value), full_precision(x.value):
        return forward(x, activation, memory)


def _backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
    *tensors, activation, memory, needs = arguments
    x = gather(tensors)
    for (name, fact), needed in zip(PAIR_TENSORS.items(), needs):
        if needed and fact.triton != "gradients":
            raise DerivativeError(
                f"fredholm::mlp_kernel_triton has no gradient of {name}: take backend='torch', or "
                "detach it"
            )
    with _device(x.value), full_precision(x.value):
        return backward(grad, x, activation, memory, needs)


mlp_kernel_triton_op = differentiable_op(
    "mlp_kernel_triton",
    tensors=SCHEMA,
    options="str activation, int memory",
    forward=_forward,
    backward=_backward,
    fake=fake,
    plain=plain,
    flops=(
        lambda *shapes: forward_flops(*shapes[:-2], []),
        lambda grad, *shapes: backward_flops(*shapes[:-3], [], needs=shapes[-1]),
    ),
)
