"""Roots and distances whose gradient is zero, not infinite, at zero."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def root_of(x: Tensor) -> Tensor:
    """√x with gradient zero, not infinity, at zero.

    The root is taken of 1 where x is 0: its slope there is infinite, and the zero of the outer
    ``where``'s gradient times infinity would be NaN.

    Example:
        >>> x = torch.tensor([4.0, 0.0], requires_grad=True)
        >>> torch.autograd.grad(root_of(x).sum(), x)[0].tolist()
        [0.25, 0.0]
    """
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


def distances(x: Float[Tensor, "*b q p"], y: Float[Tensor, "*c k p"]) -> Float[Tensor, "*d q k"]:
    """Euclidean distances whose gradient is zero, not NaN, between coinciding points. O(Nq·Nk·p).

    Example:
        >>> distances(torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[5.0, 0.0]]
    """
    square = (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1)
    return root_of(square)
