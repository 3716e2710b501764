"""Softmax attention over keys that come in parts: sums under a running maximum of the scores.

A part is one tensor (B, H, Nq, d + 2): the sum of values under weights e^(score - largest), the sum
of those weights, and the largest score.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ...quadrature import Quadrature
from ..backend import full_precision


def attention_part(
    query: Float[Tensor, "b h q e"],
    key: Float[Tensor, "b h k e"],
    value: Float[Tensor, "b h k d"],
    quadrature: Quadrature,
) -> Float[Tensor, "b h q _"]:
    """What some of the keys give, for :func:`joined`. O(Nq·Nk) memory.

    Example:
        >>> u, line = torch.ones(1, 1, 2, 3), Domain.line(2).quadrature()
        >>> part = attention_part(u, u, u, line)
        >>> finished(joined(part, part))[0, 0, 0].tolist()
        [1.0, 1.0, 1.0]
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    with full_precision(query):
        weights = replace(quadrature, scale=None).weights()  # a softmax cancels the scale
        seen = weights > 0
        scores = (query.to(dtype) @ key.to(dtype).mT).masked_fill(~seen, -torch.inf)
        largest = scores.detach().amax(-1, keepdim=True)
        shift = torch.where(largest > -torch.inf, largest, 0.0)
        share = (scores - shift).exp() * weights.to(dtype)
        parts = share @ value.to(dtype), share.sum(-1, keepdim=True), largest
        return torch.cat(parts, -1)


def joined(a: Tensor, b: Tensor) -> Tensor:
    """Two parts as one."""
    largest = torch.maximum(a[..., -1:], b[..., -1:]).detach()
    total = _over(a, largest) + _over(b, largest)
    return torch.cat([total, largest], -1)


def finished(part: Tensor) -> Tensor:
    """The attention, (B, H, Nq, d); zero where a query saw nothing."""
    total, mass = part[..., :-2], part[..., -2:-1]
    return torch.where(mass > 0, total / torch.where(mass > 0, mass, 1.0), 0.0)


def _over(part: Tensor, largest: Tensor) -> Tensor:
    """The sums of a part under another largest score."""
    own = part[..., -1:].detach()
    factor = torch.where(own > -torch.inf, (own - largest).exp(), 0.0)
    return part[..., :-1] * factor
