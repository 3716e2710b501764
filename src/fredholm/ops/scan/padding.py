"""Padding in a recurrence: no point at all, so that the state passes it by, wherever it is."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def ranks(valid: Bool[Tensor, "b n"] | None, n: int, device: torch.device) -> Int[Tensor, "#b n"]:
    """How many real points come before each point, itself not counted; at padding, those up to the
    last real one.

    Example:
        >>> ranks(torch.tensor([[True, False, True]]), 3, torch.device("cpu")).tolist()
        [[0, 0, 1]]
    """
    if valid is None:
        return torch.arange(n, device=device)[None]
    return valid.long().cumsum(-1) - 1


def pack(valid: Bool[Tensor, "b n"]) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
    """The order that puts real points first, as they come, and the order that undoes it.

    Example:
        >>> order, back = pack(torch.tensor([[False, True, True]]))
        >>> order.tolist(), back.tolist()
        ([[1, 2, 0]], [[2, 0, 1]])
    """
    order = torch.argsort((~valid).to(torch.uint8), dim=-1, stable=True)
    return order, torch.argsort(order, dim=-1)


def reorder(x: Tensor, order: Int[Tensor, "#b n"] | None, dim: int) -> Tensor:
    """``x`` with its points, on dimension ``dim``, in another order in each batch element; ``None``
    leaves it as it is. Either may have a batch of one for all elements of the other.
    """
    if order is None:
        return x
    shape = [1] * x.dim()
    shape[0], shape[dim] = order.shape
    (batch,) = torch.broadcast_shapes(x.shape[:1], order.shape[:1])
    sizes = [batch, *x.shape[1:]]
    whole = x.expand(sizes)
    sizes[dim] = order.shape[1]
    return whole.gather(dim, order.view(shape).expand(sizes))
