"""Which calls of the MLP kernel its Triton kernels serve: a question of static facts, answered
without importing Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..backend import interpreted

WIDEST = 256  # columns of a value or of one part of the product: a block must fit a program's shared memory
HALVES = (torch.float16, torch.bfloat16)


def operand_dtype(tensors: dict[str, Any]) -> torch.dtype:
    """What matrix products take: autocast's dtype where it is on, else the values'. They accumulate
    in float32.
    """
    device = tensors["value"].device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return tensors["value"].dtype


def refusal(tensors: dict[str, Any], mid: Sequence[Any]) -> str | None:
    """Why the Triton kernels do not serve these arguments of ``mlp_kernel``, or None."""
    if mid:
        return "kernels with further hidden layers (mid) are not served"
    for name, x in tensors.items():
        if x is not None and x.dtype == torch.float64 and not name.endswith("time"):
            return f"{name} is float64, which is not served"
    dtype = operand_dtype(tensors)
    if dtype not in (torch.float32, *HALVES):
        return f"{dtype} is not served"
    if dtype in HALVES and interpreted():
        return f"Triton's interpreter computes {dtype} wrongly; give it float32"
    if torch.is_grad_enabled():
        for name in ("density", "query_positions", "key_positions"):
            if tensors[name] is not None and tensors[name].requires_grad:
                return f"gradients of {name} are not served"
    second = 0 if tensors["query2"] is None else tensors["query2"].shape[-1]
    product = 0 if tensors["key"] is None else tensors["key"].shape[-1]
    for name, n in (
        ("value", tensors["value"].shape[-1]),
        ("key", product - second),
        ("query2", second),
    ):
        if n > WIDEST:
            return f"{name} has {n} columns, at most {WIDEST} are served"
    return None
