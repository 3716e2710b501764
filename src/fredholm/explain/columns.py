"""Sums over queries and largest keys of a fused kernel, in memory linear in the points.

Fused attention never writes its weights down, so programs that need a little of them, such as how
much attention each key receives or the few keys that matter to a query, would otherwise build all
N² of them. Here a tile of queries is evaluated at a time and only what is asked for is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..domain import Domain
from ..errors import OptionError
from .kernels import BUDGET, PairwiseOperator, check, output_points, pair_weights


class TopKeys(NamedTuple):
    """The largest weights of each query, in descending order; see :func:`top_keys`.

    Attributes:
        weights: the weights, (B, H, Nq, k); zero for padded queries.
        keys: the indices of their keys, (B, H, Nq, k).
    """

    weights: Float[Tensor, "b h q k"]
    keys: Int[Tensor, "b h q k"]


@torch.no_grad()
def column_sums(
    operator: PairwiseOperator,
    u: Float[Tensor, "b n d"],
    domain: Domain | None = None,
    *,
    budget: int = BUDGET,
) -> Float[Tensor, "b h n"]:
    r"""Return the total weight of each key over all queries, :math:`c_j = \sum_i w_{ij}`, (B, H, N).

    The weights are those of :func:`fredholm.explain.kernel_map`: attention probabilities for
    softmax, :math:`\|K_{ij}\|_F` times the measure of j for a matrix kernel. Padded queries do not
    count. Sums are in float64.

    Args:
        operator: anything that obeys the operator contract.
        u: its inputs, (B, N, D).
        domain: where they live, by default where the operator puts them without one.
        budget: bytes of weights stored at once.

    Cost: O(B·H·N²) time, as for the definition; ``budget`` and O(B·H·N) memory.

    Raises:
        ShapeError: u has no samples or does not fit the domain.
        OptionError: a budget below one byte.

    Example:
        >>> from fredholm.operators import create_operator
        >>> op = create_operator("softmax", 8, heads=2)
        >>> column_sums(op, torch.randn(3, 50, 8)).sum(-1).round().tolist()
        [[50.0, 50.0], [50.0, 50.0], [50.0, 50.0]]
    """
    domain = check(operator, u, domain)
    sums: Tensor | float = 0.0
    for weights in _tiles(operator, u, domain, budget):
        sums = sums + weights.sum(2)
    assert isinstance(sums, Tensor)
    return sums


@torch.no_grad()
def top_keys(
    operator: PairwiseOperator,
    u: Float[Tensor, "b n d"],
    domain: Domain | None = None,
    *,
    k: int,
    budget: int = BUDGET,
) -> TopKeys:
    """Return the ``k`` keys of the largest weight for every query, and those weights.

    Equal weights are in no particular order, as with :func:`torch.topk`.

    Args:
        operator, u, domain, budget: as in :func:`column_sums`.
        k: how many keys, from 1 to N.

    Cost: O(B·H·N²) time; ``budget`` and O(B·H·N·k) memory.

    Raises:
        ShapeError: u has no samples or does not fit the domain.
        OptionError: ``k`` outside 1 to N, or a budget below one byte.

    Example:
        >>> from fredholm.operators import create_operator
        >>> op = create_operator("softmax", 8, heads=2)
        >>> top = top_keys(op, torch.randn(3, 50, 8), Domain.line(50, causal=True), k=4)
        >>> top.keys.shape, top.keys[0, 0, 0, 0].item()
        (torch.Size([3, 2, 50, 4]), 0)
    """
    domain = check(operator, u, domain)
    if not 1 <= k <= domain.size:
        raise OptionError(f"expected k from 1 to {domain.size}, the number of keys, got {k}")
    values = []
    indices = []
    for weights in _tiles(operator, u, domain, budget):
        top = weights.topk(k, dim=-1)
        values.append(top.values)
        indices.append(top.indices)
    return TopKeys(
        torch.cat(values, dim=2),
        torch.cat(indices, dim=2),
    )


def _tiles(
    operator: PairwiseOperator,
    u: Tensor,
    domain: Domain,
    budget: int,
) -> Iterator[Tensor]:
    """Yield the weights of successive queries, (B, H, rows, N) in float64, zero at padding."""
    if budget < 1:
        raise OptionError(f"expected a budget of at least 1 byte, got {budget}")
    target = output_points(operator, domain)

    # The first row tells how many bytes a query takes: heads and precision are the operator's.
    row = pair_weights(operator, u, domain, rows=[0])
    row = row.double()
    bytes_per_row = row.numel() * row.element_size()
    rows = max(1, budget // bytes_per_row)
    for queries in torch.arange(target.size).split(rows):
        weights = pair_weights(operator, u, domain, rows=queries).double()
        if target.valid is not None:
            real = target.valid[:, None, queries, None]
            weights = torch.where(real, weights, 0.0)
        yield weights
