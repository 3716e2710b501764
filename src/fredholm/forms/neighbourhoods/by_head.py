"""Products of one query with its keys, whose heads lie side by side in a row of numbers.

Rows as they are gathered, (R, k, H · c), are one block of memory: a pass over it is several times
faster than one by head. Sums over the few numbers of a head are products with a matrix of ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def products(
    query: Float[Tensor, "r 1 hc"],
    key: Float[Tensor, "r k hc"],
    heads: int,
) -> Float[Tensor, "r k h"]:
    """Return the inner products of a query and its keys, head by head."""
    if heads == 1:
        return key @ query.mT
    return sum_of_heads(query * key, heads)


def sum_of_heads(x: Float[Tensor, "r k hc"], heads: int) -> Float[Tensor, "r k h"]:
    """Return the sum over the c numbers of each head."""
    by_head = x.unflatten(-1, (heads, -1))
    return by_head @ by_head.new_ones(by_head.shape[-1])


def weighted(
    shares: Float[Tensor, "r k h"],
    value: Float[Tensor, "r k hc"],
) -> Float[Tensor, "r 1 hc"]:
    """Return sums of values over the keys, with one weight per head."""
    heads = shares.shape[-1]
    if heads == 1:
        return shares.mT @ value
    products = shares[..., None] * value.unflatten(-1, (heads, -1))
    return products.sum(1, keepdim=True).flatten(2)


def outer(
    shares: Float[Tensor, "r k h"],
    row: Float[Tensor, "r 1 hc"],
) -> Float[Tensor, "r k hc"]:
    """Return products of a weight per head and a row. Autograd does not follow it: it is a
    gradient.
    """
    heads = shares.shape[-1]
    if heads == 1:
        return shares * row

    # A product with ones repeats each weight over the numbers of its head.
    width = row.shape[-1] // heads
    ones = block_diagonal(row.new_ones(heads, width))
    repeated = shares @ ones
    return repeated.mul_(row)


def block_diagonal(x: Float[Tensor, "h c"]) -> Float[Tensor, "h hc"]:
    """Return the matrix that has the numbers of each head in separate columns."""
    identity = torch.eye(
        x.shape[0],
        dtype=x.dtype,
        device=x.device,
    )
    # (H, H, c): head h of row h, zero elsewhere.
    blocks = identity[..., None] * x
    return blocks.flatten(1)


def weighted_sum_of_heads(
    x: Float[Tensor, "r k hc"],
    direction: Float[Tensor, "h c"],
) -> Float[Tensor, "r k h"]:
    """Return the inner products of every row's heads with one direction per head."""
    # The matrix comes first: a product with few columns would be several times slower.
    rows = x.flatten(0, 1)
    product = block_diagonal(direction) @ rows.mT
    return product.unflatten(1, x.shape[:2]).movedim(0, -1)


class HeadSumGradients(NamedTuple):
    """Gradients of both arguments of :func:`weighted_sum_of_heads`."""

    x: Float[Tensor, "r k hc"]
    direction: Float[Tensor, "h c"]


def weighted_sum_of_heads_gradients(
    above: Float[Tensor, "r k h"],
    x: Float[Tensor, "r k hc"],
    direction: Float[Tensor, "h c"],
) -> HeadSumGradients:
    """Return the gradients of :func:`weighted_sum_of_heads`.

    The sum is s = x Dᵀ with D the block-diagonal matrix of directions, and so that of x is s̄ D, and
    that of D is s̄ᵀ x, of which the blocks on the diagonal count.
    """
    heads = direction.shape[0]
    of_x = above @ block_diagonal(direction)

    # One product has the gradients of all pairs of heads; those of a head with itself count.
    of_pairs = above.flatten(0, 1).mT @ x.flatten(0, 1)
    of_pairs = of_pairs.unflatten(1, (heads, -1))
    head = torch.arange(heads, device=x.device)
    return HeadSumGradients(of_x, of_pairs[head, head])


def softmax_of_rows(scores: Float[Tensor, "r k h"]) -> Float[Tensor, "r k h"]:
    """Return the softmax over the keys."""
    # A softmax over the last dimension of contiguous numbers is several times faster.
    shares = F.softmax(scores.mT.contiguous(), -1)
    return shares.mT.contiguous()
