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
    query: Tensor, key: Tensor, value: Tensor, chunk: int, moment: Tensor | None = None
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
        return _traced_prefix_sums(query, key, value, chunk, chunks + 1, moment)

    chunk = min(chunk, n)
    padding = chunks * chunk - n
    if padding:
        query, key, value = (F.pad(x, (0, 0, 0, padding)) for x in (query, key, value))
    # (B, H, chunks, chunk, r | c)
    query, key, value = (x.unflatten(2, (chunks, chunk)) for x in (query, key, value))

    # Pairs inside each chunk: (B, H, chunks, chunk, chunk), the lower triangle of each matrix.
    out = (query @ key.mT).tril() @ value

    # The moment before each chunk, (B, H, r, c), is added up chunk by chunk. ``cumsum`` would read
    # all of them with a stride for each number.
    before = []
    total = moment
    for of_chunk in (key.mT @ value).unbind(2):
        if total is None:
            total = of_chunk
        else:
            before.append(total)
            total = total + of_chunk
    if before:
        # Without a moment the first chunk has nothing before it.
        first = chunks - len(before)
        out[:, :, first:].add_(query[:, :, first:] @ torch.stack(before, 2))

    assert total is not None
    return PrefixSums(out.flatten(2, 3)[:, :, :n], total)


def _traced_prefix_sums(
    query: Tensor, key: Tensor, value: Tensor, chunk: int, chunks: int, moment: Tensor | None
) -> PrefixSums:
    """:func:`prefix_sums` in traced code, where ``unflatten`` and slices would fix lengths."""
    n = query.shape[2]
    padding = chunks * chunk - n
    query, key, value = (F.pad(x, (0, 0, 0, padding)) for x in (query, key, value))
    query, key, value = (x.unfold(2, chunk, chunk).mT for x in (query, key, value))

    # Row c of the moments is what chunk c follows; the last row follows all.
    moments = F.pad((key.mT @ value).cumsum(2), (0, 0, 0, 0, 1, 0))
    if moment is not None:
        moments = moments + moment[:, :, None]

    out = (query @ key.mT).tril() @ value + query @ moments[:, :, :-1]
    # A negative pad cuts the padding off.
    return PrefixSums(F.pad(out.flatten(2, 3), (0, 0, 0, -padding)), moments[:, :, -1])
