"""Causal linear attention in parts: the moment of all points before has a fixed size.

A moment is Σ_j m_j ψ_j [v_j, 1]ᵀ, (B, H, r, c + 1); without a denominator it lacks the last column.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...quadrature import Quadrature
from ..backend import at_least_single, cast, full_precision, product
from .chunked import at_scale, divided_by_last, over_new_factor, query_scale, with_ones
from .decayed import decayed_prefix_sums, largest_seen
from .prefix_sums import prefix_sums


class JointFeatures(NamedTuple):
    """Features and values of points that are both queries and keys.

    Attributes:
        query: φ up to a factor of each query, (B, H, N, r).
        key: ψ divided by e^shift, (B, H, N, r).
        shift: the exponent, (B, H), or None where nothing was divided.
        value: (B, H, N, c).
    """

    query: Tensor
    key: Tensor
    shift: Tensor | None
    value: Tensor


class Advance(NamedTuple):
    """Responses of new points, and the moment after them.

    Attributes:
        out: (B, H, n, c), or (B, H, c) of a single point.
        moment: (B, H, r, c + 1).
    """

    out: Tensor
    moment: Tensor


class RunningAdvance(NamedTuple):
    """Responses of new points, and the memory after them: ``moment``, and ``shift`` if used."""

    out: Tensor
    memory: dict[str, Tensor]


def advance_moment(
    features: JointFeatures,
    quadrature: Quadrature,
    memory: dict[str, Tensor],
    *,
    floor: float | None,
    positive: bool = False,
    chunk: int = 64,
) -> RunningAdvance:
    """Return the responses of the next n points in causal order, and the memory after them.

    Heads of queries may share the keys of fewer heads by broadcasting.

    Args:
        features: φ, ψ over :math:`e^c`, c, and v of these points; c is no smaller than the
            memory's.
        quadrature: of these points, of which mass, scale and decay are read.
        memory: ``moment`` of the points before, and ``shift`` where there is one; empty before the
            first.
        floor, positive, chunk: see :func:`linear_attention`.

    Cost: O(n·r·c) time; a memory of r·(c + 1) numbers per head, and c.

    Example:
        >>> u = torch.ones(1, 1, 3, 2)
        >>> features, quadrature = JointFeatures(u, u, None, u), Domain.line(3).quadrature()
        >>> out, memory = advance_moment(features, quadrature, {}, floor=1e-6)
        >>> tuple(memory["moment"].shape)
        (1, 1, 2, 3)
    """
    query, key, shift, value = features
    mass = quadrature.mass
    scale = quadrature.scale
    decay = quadrature.decay
    moment = memory.get("moment")
    after: dict[str, Tensor] = {}
    if shift is not None:
        # The largest feature that each query sees, (B, H, n): of the new keys up to it, and of the
        # keys before, whose features are at most 1 over their own factor.
        largest = largest_seen(key.detach().amax(-1), decay)
        if moment is not None:
            ratio = over_new_factor(memory["shift"], shift)
            moment = moment * ratio.to(moment.dtype)
            before = ratio[..., 0].to(largest.dtype)
            if decay is not None:
                sums = decay.detach().to(largest.dtype).cumsum(-1)
                before = before * (-sums).exp()
            largest = torch.maximum(largest, before)
        query = at_scale(query, largest)
        after = {"shift": shift}

    if query.shape[2] > 1:
        out, moment = linear_attention_stretch(
            query,
            key,
            value,
            quadrature,
            moment,
            floor=floor,
            chunk=chunk,
        )
    else:
        # A single point takes no chunks, whose padding would cost as much again.
        if moment is not None and decay is not None:
            moment = moment * cast(decay, moment.dtype).neg().exp()[..., None]
        out, moment = linear_attention_point(
            query,
            key,
            value,
            mass,
            scale,
            moment,
            floor=floor,
            positive=positive,
        )
    return RunningAdvance(out, {"moment": moment, **after})


def linear_attention_stretch(
    query: Float[Tensor, "#b #h n r"],
    key: Float[Tensor, "#b #h n r"],
    value: Float[Tensor, "#b #h n c"],
    quadrature: Quadrature,
    moment: Float[Tensor, "#b #h r _"] | None,
    *,
    floor: float | None,
    chunk: int = 64,
) -> Advance:
    """Return the responses of n points in causal order, and the moment after the last.

    Args:
        query, key, value: φ, ψ and v.
        quadrature: of these points, of which mass, scale and decay are read.
        moment: of the points before, or None where there are none.
        floor, chunk: see :func:`linear_attention`.

    Cost: O(n·r·c) time; memory O(n·(r + c)) and O(n·(r·c / chunk + chunk)) more.

    Example:
        >>> one, two = torch.ones(1, 1, 1, 2), torch.ones(1, 1, 2, 2)
        >>> first, rest = Quadrature(torch.ones(1, 1)), Quadrature(torch.ones(1, 2))
        >>> _, moment = linear_attention_stretch(one, one, one, first, None, floor=1e-6)
        >>> out, _ = linear_attention_stretch(two, two, two, rest, moment, floor=1e-6)
        >>> out[0, 0].tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """
    dtype = at_least_single(query.dtype)
    with full_precision(query):
        # m [v, 1], (B, H, n, c + 1).
        value = with_ones(cast(value, dtype), floor)
        value = value * cast(quadrature.mass, dtype)[:, None, :, None]
        query = cast(query, dtype)
        key = cast(key, dtype)
        if quadrature.decay is None:
            sums = prefix_sums(query, key, value, chunk, moment)
        else:
            decay = cast(quadrature.decay, dtype)
            sums = decayed_prefix_sums(
                query,
                key,
                value,
                decay,
                chunk,
                moment,
            )

        out = divided_by_last(sums.out, query_scale(quadrature, dtype), floor)
        return Advance(out, sums.moment)


def linear_attention_step(
    query: Float[Tensor, "#b #h r"],
    key: Float[Tensor, "#b #h r"],
    value: Float[Tensor, "#b #h c"],
    mass: Float[Tensor, "#b"],
    scale: Float[Tensor, "#b #h"] | None,
    moment: Float[Tensor, "#b #h r _"] | None,
    *,
    floor: float | None,
) -> Advance:
    """Return the response of one point in causal order, and the moment after it.

    Arguments are those of :func:`linear_attention_stretch` without the dimension of points; mass
    and scale are those of its quadrature.

    Cost: O(r·c) time and memory.

    Example:
        >>> u, mass = torch.ones(1, 1, 2), torch.ones(1)
        >>> linear_attention_step(u, u, u, mass, None, None, floor=1e-6).out.tolist()
        [[[1.0, 1.0]]]
    """
    if scale is not None:
        scale = scale[..., None]
    out, moment = linear_attention_point(
        query[..., None, :],
        key[..., None, :],
        value[..., None, :],
        mass[:, None],
        scale,
        moment,
        floor=floor,
    )
    return Advance(out.squeeze(-2), moment)


def linear_attention_point(
    query: Float[Tensor, "#b #h 1 r"],
    key: Float[Tensor, "#b #h 1 r"],
    value: Float[Tensor, "#b #h 1 c"],
    mass: Float[Tensor, "#b 1"],
    scale: Float[Tensor, "#b #h 1"] | None,
    moment: Float[Tensor, "#b #h r _"] | None,
    *,
    floor: float | None,
    positive: bool = False,
) -> Advance:
    """Return :func:`linear_attention_step` of tensors with a dimension of points, of size 1.

    ``floor`` and ``positive`` are those of :func:`linear_attention`.
    """
    dtype = at_least_single(query.dtype)
    with full_precision(query):
        query = cast(query, dtype)
        key = cast(key, dtype)
        value = cast(value, dtype)
        mass = cast(mass.view(-1, 1, 1, 1), dtype)

        # The outer product m ψ [v, 1]ᵀ by broadcasting, (B, H, r, 1) · (B, H, 1, c + 1).
        weighted = (key * mass).mT
        value = with_ones(value, floor)
        if moment is None:
            moment = weighted * value
        else:
            moment = torch.addcmul(moment, weighted, value)

        # The faster product does not broadcast: heads of queries may share the moment of one head.
        if query.shape[:2] == moment.shape[:2]:
            out = product(query, moment)
        else:
            out = query @ moment

        if scale is not None:
            scale = cast(scale.unsqueeze(-1), dtype)
        return Advance(divided_by_last(out, scale, floor, positive), moment)


def moment_of(
    key: Float[Tensor, "#b #h n r"],
    value: Float[Tensor, "#b #h n c"],
    mass: Float[Tensor, "#b n"],
    floor: float | None,
) -> Float[Tensor, "#b #h r _"]:
    """Return the moment after n points, as :func:`linear_attention_stretch` leaves it.

    Example:
        >>> key, value, mass = torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 1), torch.ones(1, 3)
        >>> moment_of(key, value, mass, 1e-6).tolist()
        [[[[3.0, 3.0], [3.0, 3.0]]]]
    """
    dtype = torch.promote_types(key.dtype, torch.float32)
    with full_precision(key):
        weighted = key.to(dtype) * mass[:, None, :, None].to(dtype)
        columns = with_ones(value.to(dtype), floor)
        return weighted.mT @ columns
