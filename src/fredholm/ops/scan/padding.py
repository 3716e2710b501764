"""Padding in a recurrence. A padded point leaves the state unchanged, wherever it lies."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Packing(NamedTuple):
    """A permutation of the points of each row, and its inverse, both (B, N)."""

    order: Int[Tensor, "b n"]
    inverse: Int[Tensor, "b n"]


def ranks(
    valid: Bool[Tensor, "b n"] | None,
    n: int,
    device: torch.device,
) -> Int[Tensor, "#b n"]:
    """Return each real point's index among the real points of its row.

    A padded point gets the index of the last real point before it, or -1 where there is none.

    Args:
        valid: the real points; None where all are.
        n: the number of points.
        device: where the ranks are made without ``valid``.

    Example:
        >>> ranks(torch.tensor([[True, False, True]]), 3, torch.device("cpu")).tolist()
        [[0, 0, 1]]
    """
    if valid is None:
        return torch.arange(n, device=device)[None]
    return valid.long().cumsum(-1) - 1


def pack(valid: Bool[Tensor, "b n"]) -> Packing:
    """Return the order that puts the real points of each row first, and the inverse order.

    Example:
        >>> order, inverse = pack(torch.tensor([[False, True, True]]))
        >>> order.tolist(), inverse.tolist()
        ([[1, 2, 0]], [[2, 0, 1]])
    """
    # A stable sort keeps the real points in the order in which they came.
    padded = (~valid).to(torch.uint8)
    order = torch.argsort(padded, dim=-1, stable=True)
    return Packing(order, torch.argsort(order, dim=-1))


def reorder(
    x: Tensor,
    order: Int[Tensor, "#b n"] | None,
    dim: int,
) -> Tensor:
    """Return ``x`` with the points on dimension ``dim`` in another order for each row.

    Args:
        x: of any shape; its first dimension is the batch.
        order: indices of points; None returns ``x``. Either may have a batch of one for all rows
            of the other.
        dim: the dimension of the points, not the first.

    Example:
        >>> reorder(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2, 0, 1]]), 1).tolist()
        [[3.0, 1.0, 2.0]]
    """
    if order is None:
        return x

    # The index gets the shape of x, with the order along ``dim`` and repeated along the others.
    rows, points = order.shape
    index_shape = [1] * x.dim()
    index_shape[0] = rows
    index_shape[dim] = points
    index = order.view(index_shape)

    (batch,) = torch.broadcast_shapes(
        x.shape[:1],
        order.shape[:1],
    )
    sizes = [batch, *x.shape[1:]]
    expanded = x.expand(sizes)
    sizes[dim] = points
    return expanded.gather(dim, index.expand(sizes))
