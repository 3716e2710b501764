"""Softmax attention as a density, in its plainest form."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def attention_density(
    scores: Float[Tensor, "b h q k"],
    weights: Float[Tensor, "#b #h #q k"],
    visible: Bool[Tensor, "#b #h #q k"] | None = None,
) -> Float[Tensor, "b h q k"]:
    r"""Density p of softmax attention against the quadrature weights w,
    :math:`p_{ij} = e^{s_{ij}} / \sum_l w_{il} e^{s_{il}}`.

    :math:`\sum_j w_{ij} p_{ij} = 1` for every query that sees some mass, and p = 0 for one that
    sees none. In float32 at least.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    seen = weights > 0 if visible is None else visible & (weights > 0)
    # Hidden before the exponential and not after it: one of a hidden score far above the others
    # would be infinite, and its gradient, zero times infinity, NaN.
    scores = scores.masked_fill(~seen, -torch.inf)
    top = scores.detach().amax(-1, keepdim=True)
    raw = (scores - torch.where(top.isfinite(), top, 0.0)).exp()
    mass = (raw * weights).sum(-1, keepdim=True)
    return raw / torch.where(mass > 0, mass, 1.0)


def attention_naive(
    query: Float[Tensor, "b h q e"],
    key: Float[Tensor, "b h k e"],
    value: Float[Tensor, "b h k d"],
    weights: Float[Tensor, "#b #h #q k"],
    visible: Bool[Tensor, "#b #h #q k"] | None = None,
) -> Float[Tensor, "b h q d"]:
    """Attention with scores ``query·key`` (scaled by the caller), through the dense density: the
    oracle of ``sdpa``.
    """
    density = attention_density(query @ key.mT, weights, visible)
    return (density * weights).to(value.dtype) @ value
