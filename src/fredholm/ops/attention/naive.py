"""Softmax attention as a density: the definition."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def attention_density(
    scores: Float[Tensor, "b h q k"],
    weights: Float[Tensor, "#b #h #q k"],
    visible: Bool[Tensor, "#b #h #q k"] | None = None,
) -> Float[Tensor, "b h q k"]:
    r"""Return the density p of softmax attention against the quadrature weights w,

    .. math:: p_{ij} = e^{s_{ij}} \Big/ \sum_l w_{il}\, e^{s_{il}}.

    :math:`\sum_j w_{ij} p_{ij} = 1` for every query that sees some mass, and p = 0 for a query that
    sees none. In float32 or better.

    Args:
        scores: s.
        weights: w; a key of weight zero is hidden.
        visible: further pairs to hide, where it is False.

    Cost: O(Nq·Nk).

    Example:
        >>> attention_density(torch.zeros(1, 1, 1, 2), torch.full((1, 1, 1, 2), 0.5)).tolist()
        [[[[1.0, 1.0]]]]
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    seen = weights > 0
    if visible is not None:
        seen = visible & seen

    # Scores are hidden before the exponential. Afterwards it would be too late: a hidden score far
    # above the others overflows to infinity, and its gradient, zero times infinity, is NaN.
    scores = scores.masked_fill(~seen, -torch.inf)

    # The largest score cancels, and without it float32 overflows from a score of 89 on. A query
    # that sees nothing has a largest score of -∞, which must not be subtracted from itself.
    largest = scores.detach().amax(-1, keepdim=True)
    shift = torch.where(largest.isfinite(), largest, 0.0)
    raw = (scores - shift).exp()

    # A query that sees nothing has a mass of zero, and a density of 0 / 1.
    mass = (raw * weights).sum(-1, keepdim=True)
    return raw / torch.where(mass > 0, mass, 1.0)


def attention_naive(
    query: Float[Tensor, "b h q e"],
    key: Float[Tensor, "b h k e"],
    value: Float[Tensor, "b h k d"],
    weights: Float[Tensor, "#b #h #q k"],
    visible: Bool[Tensor, "#b #h #q k"] | None = None,
) -> Float[Tensor, "b h q d"]:
    r"""Return :math:`\sum_j w_{ij} p_{ij} v_j` through the dense density: the oracle of
    :func:`attention`.

    Args:
        query, key, value: scores are ``query·key``, without a scale.
        weights, visible: see :func:`attention_density`.

    Example:
        >>> ones = torch.ones(1, 1, 2, 3)
        >>> attention_naive(ones, ones, ones, torch.full((1, 1, 1, 2), 0.5))[0, 0, 0].tolist()
        [1.0, 1.0, 1.0]
    """
    density = attention_density(query @ key.mT, weights, visible)
    return (density * weights).to(value.dtype) @ value
