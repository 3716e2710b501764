"""Linear attention as a density: the definition."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...quadrature import Quadrature
from ..backend import full_precision
from .chunked import at_scale, guarded


def linear_density(
    query: Float[Tensor, "#b #h q r"],
    key: Float[Tensor, "#b #h k r"],
    weights: Float[Tensor, "#b #h #q k"],
    floor: float | None,
) -> Float[Tensor, "b h q k"]:
    r"""Return the density of linear attention against the quadrature weights w,

    .. math:: p_{ij} = \phi_i\cdot\psi_j \Big/ \sum_l w_{il}\,\phi_i\cdot\psi_l,

    or the numerator where ``floor`` is None. In float32 or better, also under autocast.

    Args:
        query, key: φ and ψ.
        weights: w.
        floor: of the denominator, see :func:`guarded`.

    Cost: O(Nq·Nk·r).

    Example:
        >>> ones = torch.ones(1, 1, 2, 3)
        >>> linear_density(ones, ones, torch.full((1, 1, 2, 2), 0.5), 1e-6)[0, 0].tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    with full_precision(query):
        raw = query.to(dtype) @ key.to(dtype).mT
        weights = weights.to(dtype)
        if floor is None:
            return raw
        integral = (raw * weights).sum(-1, keepdim=True)
        return raw / guarded(integral, floor)


def measured_density(
    query: Float[Tensor, "#b #h q r"],
    key: Float[Tensor, "#b #h k r"],
    quadrature: Quadrature,
    floor: float | None,
) -> Float[Tensor, "b h q k"]:
    r"""Return :func:`linear_density` against a quadrature. Where its past fades, the decay
    :math:`e^{-(\Lambda_i - \Lambda_j)}` is a factor of the density, so that it is one against the
    domain's own weights.

    Example:
        >>> u, line = torch.ones(1, 1, 2, 1), Domain.line(2, causal=True).quadrature()
        >>> halves = line.decayed(torch.full((1, 1, 2), 2.0).log())
        >>> (measured_density(u, u, halves, 1e-6) * line.weights())[0, 0, 1].tolist()
        [0.3333333432674408, 0.6666666865348816]
    """
    density = linear_density(
        query,
        key,
        quadrature.weights(),
        floor,
    )
    fading = quadrature.fading()
    if fading is None:
        return density
    return density * fading.to(density.dtype)


def at_scale_of_seen(
    query: Float[Tensor, "#b #h q r"],
    key: Float[Tensor, "#b #h k r"],
    weights: Float[Tensor, "#b #h #q k"],
    fading: Float[Tensor, "#b #h #q k"] | None,
) -> Float[Tensor, "b h q r"]:
    """Return features of queries over the largest key feature that each one sees, for the
    definition: see :func:`.at_scale`. O(Nq·Nk).

    Keys come divided by the largest exponential of all, so those that a query sees may all be tiny.

    Args:
        query, key: φ and ψ.
        weights: of the quadrature; pairs of weight zero are not seen.
        fading: what is left of each key, where the past fades.

    Example:
        >>> key = torch.tensor([[[[0.5], [1.0]]]])
        >>> order = torch.ones(1, 1, 2, 2).tril()
        >>> at_scale_of_seen(torch.ones(1, 1, 2, 1), key, order, None).flatten().tolist()
        [2.0, 1.0]
    """
    largest = key.detach().amax(-1)[:, :, None]
    if fading is not None:
        largest = largest * fading.detach().to(largest.dtype)
    seen = torch.where(weights > 0, largest, 0.0)
    return at_scale(query, seen.amax(-1))


def linear_attention_naive(
    query: Float[Tensor, "#b #h q r"],
    key: Float[Tensor, "#b #h k r"],
    value: Float[Tensor, "#b #h k c"],
    weights: Float[Tensor, "#b #h #q k"],
    floor: float | None,
) -> Float[Tensor, "b h q c"]:
    r"""Return :math:`\sum_j w_{ij} p_{ij} v_j` through the dense density: the oracle of
    :func:`linear_attention`.

    Example:
        >>> ones = torch.ones(1, 1, 2, 3)
        >>> weights = torch.full((1, 1, 2, 2), 0.5)
        >>> linear_attention_naive(ones, ones, ones, weights, 1e-6)[0, 0, 0].tolist()
        [1.0, 1.0, 1.0]
    """
    density = linear_density(query, key, weights, floor)
    return (density * weights) @ value
