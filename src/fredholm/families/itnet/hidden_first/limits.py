"""Which calls of the MLP kernel its Triton kernels can run: a question of static facts, answered
without importing Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ....ops.backend import interpreted
from .terms import PAIR_TENSORS

WIDEST = 256
"""Columns of a value or of one part of the product: a block must fit a program's shared memory."""
HALVES = (torch.float16, torch.bfloat16)


def operand_dtype(tensors: dict[str, Any]) -> torch.dtype:
    """Return the dtype of operands of matrix products: autocast's where it is on, else the values'.
    Products accumulate in float32.
    """
    device = tensors["value"].device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return tensors["value"].dtype


def refusal(
    tensors: dict[str, Any],
    mid: Sequence[Any],
) -> str | None:
    """Return why the Triton kernels cannot run with these arguments of ``mlp_kernel``, or None."""
    if mid:
        return "it has no kernels with further hidden layers (mid)"
    given = {name: x for name, x in tensors.items() if x is not None}
    for name, x in given.items():
        if not PAIR_TENSORS[name].triton:
            return f"it has no kernels with {name}"
        if x.dtype == torch.float64 and PAIR_TENSORS[name].kind != "time":
            return f"{name} is float64, and its sums are in float32"

    dtype = operand_dtype(tensors)
    if dtype not in (torch.float32, *HALVES):
        return f"it multiplies float32, float16 and bfloat16, and value is {dtype}"
    if dtype in HALVES and interpreted():
        return f"Triton's interpreter computes {dtype} wrongly; use float32"

    for name, x in given.items():
        without = x.requires_grad and PAIR_TENSORS[name].triton != "gradients"
        if without and torch.is_grad_enabled():
            return f"it has no gradients of {name}"
    return _width_refusal(tensors)


def _width_refusal(tensors: dict[str, Any]) -> str | None:
    columns = dict.fromkeys(("value", "key", "query2"), 0)
    for name in columns:
        if tensors[name] is not None:
            columns[name] = tensors[name].shape[-1]
    # The last columns of the keys belong to the second product.
    columns["key"] -= columns["query2"]
    for name, n in columns.items():
        if n > WIDEST:
            return f"{name} has {n} columns, at most {WIDEST} fit"
    return None
