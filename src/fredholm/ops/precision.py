"""Precision: what autocast must not touch, and the dtype of a result."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

UNCHANGED = nullcontext()


def full_precision(like: Tensor) -> AbstractContextManager:
    """A context without autocast on the device of ``like``: nothing at all where there is none.

    Example:
        >>> x = torch.eye(2)
        >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(x):
        ...     (x @ x).dtype
        torch.float32
    """
    kind = like.device.type
    if kind == "meta":  # has no autocast
        return UNCHANGED
    # a traced program may run under autocast later
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return UNCHANGED


def result_dtype(u: Tensor) -> torch.dtype:
    """The dtype in which a layer answers features ``u``: theirs, or autocast's, as ``nn.Linear``.

    Example:
        >>> u = torch.ones(2)
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     result_dtype(u), result_dtype(u.double())
        (torch.bfloat16, torch.float64)
    """
    kind = u.device.type
    if kind == "meta" or u.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return u.dtype
    return torch.get_autocast_dtype(kind)
