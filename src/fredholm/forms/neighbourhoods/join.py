"""Products of the queries, keys and values of a tile, and one result from a row's pieces."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from .tiles import Partition


def pair_products(
    query: Float[Tensor, "r h b e"],
    key: Float[Tensor, "r h k e"],
) -> Float[Tensor, "r h b k"]:
    """Return the inner products of the queries and keys of a tile.

    One query with several heads would be many small matrix products, one per head: a single pass
    over all numbers is faster.
    """
    _, heads, queries, _ = query.shape
    if queries == 1 and heads > 1:
        scores = (query * key).sum(-1)
        return scores[:, :, None]
    return query @ key.mT


def weighted_sum(
    weights: Float[Tensor, "#r #h b k"],
    value: Float[Tensor, "r h k c"],
) -> Float[Tensor, "r h b c"]:
    """Return the weighted sums of the values of a tile."""
    queries = weights.shape[2]
    heads = value.shape[1]
    if queries == 1 and heads > 1:
        return (weights.mT * value).sum(-2, keepdim=True)
    return weights @ value


def added(
    results: Float[Tensor, "p h o"],
    tiles: Partition,
    rows: int,
) -> Float[Tensor, "q h o"]:
    """Return one result per row: the results (P, H, o) of pieces, added up by the row they belong
    to.

    Args:
        results: of all tiles.
        tiles: which row each result belongs to.
        rows: number of rows, the queries of all samples.
    """
    if tiles.row is None:
        # No row was cut, so each has its one result already.
        return results
    nothing = results.new_zeros(rows, *results.shape[1:])
    return nothing.index_add(0, tiles.row, results)


def averaged(
    results: Float[Tensor, "p h o_1"],
    tiles: Partition,
    rows: int,
) -> Float[Tensor, "q h o"]:
    """Return the softmax over a whole row from those over its pieces, each with the logarithm of
    the sum of its exponentials in the last column; without that column where no row is in pieces.
    """
    if tiles.row is None:
        return results
    value = results[..., :-1]
    log_sum = results[..., -1]
    _, heads = log_sum.shape

    # The largest exponent of a row is taken out before the exponential, which would overflow.
    row = tiles.row
    index = row[:, None].expand_as(log_sum)
    largest = log_sum.new_full((rows, heads), -torch.inf)
    largest = largest.scatter_reduce(
        0,
        index,
        log_sum.detach(),
        "amax",
    )
    largest = torch.where(largest.isfinite(), largest, 0.0)

    # A piece's share of its row. A row that sees nothing has no sum to divide by.
    share = (log_sum - largest[row]).exp()
    total = torch.zeros_like(largest).index_add(0, row, share)
    total = torch.where(total > 0, total, 1.0)
    share = share / total[row]

    nothing = value.new_zeros(rows, *value.shape[1:])
    return nothing.index_add(0, row, share[..., None] * value)
