r"""Causal sums chunk by chunk: :math:`\phi_i^T \sum_{j \le i} \psi_j v_j^T` for all i."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class PrefixSums(NamedTuple):
    """Sums up to each query, and up to the end.

    Attributes:
        out: of each query, (B, H, N, c).
        moment: after the last point, (B, H, r, c).
    """

    out: Tensor
    moment: Tensor


def prefix_sums(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    chunk: int,
    moment: Tensor | None = None,
) -> PrefixSums:
    r"""Return :math:`\phi_i^T \big(M + \sum_{j \le i} \psi_j v_j^T\big)` for all i, and the sum in
    brackets after the last point.

    A query meets the keys of its own chunk in pairs, and all chunks before in one matrix.

    Args:
        query, key, value: φ and ψ (B, H, N, r), v (B, H, N, c); dimensions of size 1 broadcast.
        chunk: points in a chunk.
        moment: M, of the points before; None for none.

    Cost: O(N·(r·c + chunk·(r + c))) time; memory O(N·(r·c / chunk + chunk)).
    """
    n = query.shape[2]
    chunks = (n + chunk - 1) // chunk
    if torch.compiler.is_compiling():
        # One empty chunk more: torch.export would take a traced dimension of size 1 for a constant.
        return _traced_prefix_sums(
            query,
            key,
            value,
            chunk,
            chunks + 1,
            moment,
        )

    chunk = min(chunk, n)
    padding = chunks * chunk - n
    if padding:
        query = F.pad(query, (0, 0, 0, padding))
        key = F.pad(key, (0, 0, 0, padding))
        value = F.pad(value, (0, 0, 0, padding))
    # (B, H, chunks, chunk, r | c)
    query = query.unflatten(2, (chunks, chunk))
    key = key.unflatten(2, (chunks, chunk))
    value = value.unflatten(2, (chunks, chunk))

    # Pairs inside each chunk: (B, H, chunks, chunk, chunk), the lower triangle of each matrix.
    out = (query @ key.mT).tril() @ value

    # The moment before each chunk, (B, H, r, c), is added up chunk by chunk. ``cumsum`` would read
    # all of them with a stride for each number.
    moments = key.mT @ value
    before = []
    total = moment
    for of_chunk in moments.unbind(2):
        if total is None:
            total = of_chunk
        else:
            before.append(total)
            total = total + of_chunk

    # Without a moment the first chunk has nothing before it.
    if before:
        first = chunks - len(before)
        of_earlier = query[:, :, first:] @ torch.stack(before, 2)
        out[:, :, first:].add_(of_earlier)

    assert total is not None
    out = out.flatten(2, 3)
    return PrefixSums(out[:, :, :n], total)


def _traced_prefix_sums(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    chunk: int,
    chunks: int,
    moment: Tensor | None,
) -> PrefixSums:
    """:func:`prefix_sums` in traced code, where ``unflatten`` and slices would fix lengths."""
    n = query.shape[2]
    padding = chunks * chunk - n
    # (B, H, chunks, chunk, r | c)
    query = F.pad(query, (0, 0, 0, padding)).unfold(2, chunk, chunk).mT
    key = F.pad(key, (0, 0, 0, padding)).unfold(2, chunk, chunk).mT
    value = F.pad(value, (0, 0, 0, padding)).unfold(2, chunk, chunk).mT

    # Entry c of the moments is the sum before chunk c, and the last entry the sum of all.
    up_to_chunk = (key.mT @ value).cumsum(2)
    moments = F.pad(up_to_chunk, (0, 0, 0, 0, 1, 0))
    if moment is not None:
        moments = moments + moment[:, :, None]
    before = moments[:, :, :-1]
    total = moments[:, :, -1]

    out = (query @ key.mT).tril() @ value + query @ before
    # A negative pad cuts the padding off.
    out = F.pad(out.flatten(2, 3), (0, 0, 0, -padding))
    return PrefixSums(out, total)
