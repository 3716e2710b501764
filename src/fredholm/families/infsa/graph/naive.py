"""The product with the edges as it is written, every pair at once: the plain form of the op."""

from __future__ import annotations

import torch
from torch import Tensor

from ....ops.precision import full_precision
from .activations import activated


def edge_product_naive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mass: Tensor,
    density: Tensor | None,
    causal: bool,
    activation: str,
    statistic: str,
    memory: int | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`.product.edge_product` in memory O(B·H·Nq·Nk); ``memory`` is ignored.

    Example:
        >>> one = torch.ones(1, 1, 2, 1)
        >>> edge_product_naive(one, one, one, one[0, 0], None, True, "relu", "sums")[1].tolist()
        [[[1.0, 2.0]]]
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key, value = (x.to(dtype) for x in (query, key, value))
    with full_precision(value):
        pairs = activated(query @ key.mT, activation)
        pairs = pairs if density is None else pairs * density
        pairs = pairs.tril() if causal else pairs
        if statistic == "none":
            return pairs @ value, pairs.new_zeros(pairs.shape[:-1])
        size = pairs.square() if statistic == "squares" else pairs.abs()
        return pairs @ value, (size * mass[:, None, None, :]).sum(-1)
