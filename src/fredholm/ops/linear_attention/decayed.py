r"""Causal linear attention whose past fades, chunk by chunk.

With exponents d and their sums :math:`\Lambda_i = \sum_{j \le i} d_j`, for all i

.. math:: \phi_i^T S_i, \qquad S_i = \sum_{j \le i} e^{-(\Lambda_i - \Lambda_j)}\,\psi_j v_j^T
    = e^{-d_i} S_{i-1} + \psi_i v_i^T.

Every exponential is of a difference over the points between, never of Λ itself, so that none is
above 1: :math:`e^{-(\Lambda_i - \Lambda_j)}` inside a chunk, the decay since its first point for
the moment of all chunks before, and the decay up to its last point for its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...errors import BackendError, StrategyError
from ...quadrature import Quadrature
from ..backend import at_least_single, cast, full_precision, wants_triton
from .chunked import divided_by_last, query_scale, with_ones
from .prefix_sums import PrefixSums


def decayed_attention(
    query: Float[Tensor, "#b #h q r"],
    key: Float[Tensor, "#b #h k r"],
    value: Float[Tensor, "#b #h k c"],
    quadrature: Quadrature,
    *,
    floor: float | None,
    chunk: int = 64,
    backend: str = "auto",
) -> Float[Tensor, "b h q c"]:
    """Return :func:`.linear_attention` against a measure whose past fades.

    Args:
        query, key, value, floor: see :func:`.linear_attention`.
        quadrature: in triangular order, with a ``decay``.
        chunk: points in a chunk.
        backend: PyTorch's operations alone.

    Cost: that of :func:`.linear_attention` in triangular order, and one exponential per pair of a
    chunk and head.

    Raises:
        BackendError: Triton kernels were requested.
        StrategyError: no order.

    Example:
        >>> u = torch.ones(1, 1, 3, 1)
        >>> halves = Domain.line(3, causal=True, measure="counting").quadrature()
        >>> halves = halves.decayed(torch.full((1, 1, 3), 2.0).log())
        >>> decayed_attention(u, u, u, halves, floor=None).flatten().tolist()
        [1.0, 1.5, 1.75]
    """
    if wants_triton(backend):
        raise BackendError(
            "linear attention: expected backend='auto' or 'torch' beside a decay, got "
            f"{backend!r}, whose kernels have none; use backend='auto'"
        )
    if not quadrature.triangular or quadrature.decay is None:
        raise StrategyError("a decay has a linear form in the order of a domain's own points alone")

    dtype = at_least_single(query.dtype)
    with full_precision(query):
        query = cast(query, dtype)
        value = with_ones(cast(value, dtype), floor)
        mass = cast(quadrature.mass, dtype)[:, None, :, None]
        weighted_key = cast(key, dtype) * mass
        decay = cast(quadrature.decay, dtype)
        sums = decayed_prefix_sums(query, weighted_key, value, decay, chunk)
        return divided_by_last(sums.out, query_scale(quadrature, dtype), floor)


def decayed_prefix_sums(
    query: Float[Tensor, "#b #h n r"],
    key: Float[Tensor, "#b #h n r"],
    value: Float[Tensor, "#b #h n c"],
    decay: Float[Tensor, "#b #h n"],
    chunk: int,
    moment: Float[Tensor, "#b #h r c"] | None = None,
) -> PrefixSums:
    r"""Return :math:`\phi_i^T (e^{-\Lambda_i} M + S_i)` for all i, and the matrix in brackets after
    the last point.

    Args:
        query, key, value: φ, ψ and v.
        decay: d.
        chunk: points in a chunk.
        moment: M, of the points before; None for none.

    Cost: O(n·(r·c + chunk·(r + c))) time; memory O(n·(r·c / chunk + chunk)).

    Example:
        >>> one, halves = torch.ones(1, 1, 3, 1), torch.full((1, 1, 3), 2.0).log()
        >>> sums = decayed_prefix_sums(one, one, one, halves, 2)
        >>> sums.out.flatten().tolist(), sums.moment.item()
        ([1.0, 1.5, 1.75], 1.75)
    """
    n = query.shape[2]
    chunks = (n + chunk - 1) // chunk
    if torch.compiler.is_compiling():
        # One empty chunk more, as in :func:`.prefix_sums`.
        return _traced_sums(
            query,
            key,
            value,
            decay,
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
        decay = F.pad(decay, (0, padding))
    # (B, H, chunks, chunk, r | c)
    query = query.unflatten(2, (chunks, chunk))
    key = key.unflatten(2, (chunks, chunk))
    value = value.unflatten(2, (chunks, chunk))
    exponents = _exponents(decay.unflatten(-1, (chunks, chunk)))

    # Pairs inside each chunk, (B, H, chunks, chunk, chunk).
    out = (query @ key.mT * _ratios(exponents.since_start)) @ value

    # The moment before each chunk, added up chunk by chunk.
    of_chunks = _at_ends(key, exponents).mT @ value
    gates = (-exponents.total).exp()[..., None]
    before = []
    state = moment
    for of_chunk, gate in zip(of_chunks.unbind(2), gates.unbind(2)):
        if state is None:
            state = of_chunk
        else:
            before.append(state)
            state = state * gate + of_chunk

    # Without a moment the first chunk has nothing before it.
    if before:
        first = chunks - len(before)
        faded = _from_starts(query, exponents)
        of_earlier = faded[:, :, first:] @ torch.stack(before, 2)
        out[:, :, first:].add_(of_earlier)

    assert state is not None
    out = out.flatten(2, 3)
    return PrefixSums(out[:, :, :n], state)


class _Exponents(NamedTuple):
    """Sums of exponents inside each chunk.

    Attributes:
        since_start: from the chunk's start up to each point, (…, chunk).
        total: up to its end, (…, 1).
    """

    since_start: Tensor
    total: Tensor


def _exponents(decay: Tensor) -> _Exponents:
    since_start = decay.cumsum(-1)
    return _Exponents(since_start, since_start[..., -1:])


def _at_ends(key: Tensor, exponents: _Exponents) -> Tensor:
    """Return what is left of each key at the end of its chunk."""
    # The difference is at most 0, so that its exponential does not overflow.
    until_end = (exponents.since_start - exponents.total).exp()
    return key * until_end[..., None]


def _from_starts(query: Tensor, exponents: _Exponents) -> Tensor:
    """Return queries times the decay since the start of their chunk."""
    since_start = (-exponents.since_start).exp()
    return query * since_start[..., None]


def _ratios(sums: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n n"]:
    """Return :math:`e^{-(\\Lambda_i - \\Lambda_j)}` for j ≤ i, and 0 for later j."""
    n = sums.shape[-1]
    later = torch.ones(n, n, dtype=torch.bool, device=sums.device).triu(1)
    between = sums[..., :, None] - sums[..., None, :]
    # Masked before the exponential, which would overflow, and whose gradient would be NaN.
    exponent = (-between).masked_fill(later, -torch.inf)
    return exponent.exp()


def _traced_sums(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    chunk: int,
    chunks: int,
    moment: Tensor | None,
) -> PrefixSums:
    """:func:`decayed_prefix_sums` in traced code, where a loop over chunks would fix their number:
    the moments before all chunks are one product with their decays, O(chunks²·r·c).
    """
    n = query.shape[2]
    padding = chunks * chunk - n
    # (B, H, chunks, chunk, r | c)
    query = F.pad(query, (0, 0, 0, padding)).unfold(2, chunk, chunk).mT
    key = F.pad(key, (0, 0, 0, padding)).unfold(2, chunk, chunk).mT
    value = F.pad(value, (0, 0, 0, padding)).unfold(2, chunk, chunk).mT
    exponents = _exponents(F.pad(decay, (0, padding)).unfold(-1, chunk, chunk))

    of_chunks = _at_ends(key, exponents).mT @ value

    # The decay from the end of chunk c' to the start of a later chunk c.
    total = exponents.total
    ends = total[..., 0].cumsum(-1)
    starts = ends - total[..., 0]
    between = starts[..., :, None] - ends[..., None, :]
    index = torch.arange(chunks, device=decay.device)
    not_earlier = index[:, None] <= index
    # Masked before the exponential, which would overflow.
    passed = (-between).masked_fill(not_earlier, -torch.inf).exp()

    # The moment before each chunk, (B, H, chunks, r, c).
    flat = passed @ of_chunks.flatten(-2)
    before = flat.unflatten(-1, of_chunks.shape[-2:])
    if moment is not None:
        since_first = (-starts).exp()[..., None, None]
        before = before + since_first * moment[:, :, None]

    out = (query @ key.mT * _ratios(exponents.since_start)) @ value
    out = out + _from_starts(query, exponents) @ before
    # A negative pad cuts the padding off. The last chunk is empty: all points come before it.
    out = F.pad(out.flatten(2, 3), (0, 0, 0, -padding))
    return PrefixSums(out, before[:, :, -1])


def largest_seen(
    largest: Float[Tensor, "b h n"],
    decay: Float[Tensor, "#b #h n"] | None,
) -> Float[Tensor, "b h n"]:
    """Return the largest of the numbers up to each point, each faded since it came.

    Example:
        >>> size, halves = torch.tensor([[[4.0, 1.0, 1.5]]]), torch.full((1, 1, 3), 2.0).log()
        >>> largest_seen(size, None).tolist(), largest_seen(size, halves).tolist()
        ([[[4.0, 4.0, 4.0]]], [[[4.0, 2.0, 1.5]]])
    """
    if decay is None:
        return largest.cummax(-1).values
    # Largest at i is max over j ≤ i of x_j exp(Λ_j - Λ_i): in logarithms, a running maximum.
    sums = decay.detach().to(largest.dtype).cumsum(-1)
    logarithm = largest.log() + sums
    faded = logarithm.cummax(-1).values - sums
    return faded.exp()
