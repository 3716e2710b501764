r"""Softmax attention over keys that come in parts, by sums under a running maximum of the scores.

Of the keys J in a part, with the largest score :math:`t_i = \max_{j\in J} s_{ij}`, a query needs

.. math:: \sum_{j\in J} w_{ij} e^{s_{ij} - t_i} v_j, \qquad \sum_{j\in J} w_{ij} e^{s_{ij} - t_i},
    \qquad t_i.

A part is these numbers side by side in one tensor (B, H, Nq, d + 2), which ranks send as it is.
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
    """Return the part of some keys, for :func:`joined` and :func:`finished`.

    Args:
        query, key, value: scores are ``query·key``, without a scale.
        quadrature: of these keys.

    Cost: O(Nq·Nk) time and memory.

    Example:
        >>> u, line = torch.ones(1, 1, 2, 3), Domain.line(2).quadrature()
        >>> part = attention_part(u, u, u, line)
        >>> finished(joined(part, part))[0, 0, 0].tolist()
        [1.0, 1.0, 1.0]
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    with full_precision(query):
        # A softmax cancels the queries' scale.
        weights = replace(quadrature, scale=None).weights()
        hidden = ~(weights > 0)
        scores = query.to(dtype) @ key.to(dtype).mT
        scores = scores.masked_fill(hidden, -torch.inf)

        # Where nothing is seen the largest score is -∞, and -∞ - (-∞) would be NaN.
        largest = scores.detach().amax(-1, keepdim=True)
        shift = torch.where(largest > -torch.inf, largest, 0.0)

        share = (scores - shift).exp() * weights.to(dtype)
        sums = share @ value.to(dtype)
        mass = share.sum(-1, keepdim=True)
        return torch.cat([sums, mass, largest], -1)


def joined(
    a: Float[Tensor, "b h q _"],
    b: Float[Tensor, "b h q _"],
) -> Float[Tensor, "b h q _"]:
    """Return the part of the keys of two parts."""
    largest = torch.maximum(a[..., -1:], b[..., -1:]).detach()
    sums_and_mass = _under(a, largest) + _under(b, largest)
    return torch.cat([sums_and_mass, largest], -1)


def finished(part: Float[Tensor, "b h q _"]) -> Float[Tensor, "b h q d"]:
    """Return the attention to the keys of a part, zero where a query saw nothing."""
    sums = part[..., :-2]
    mass = part[..., -2:-1]
    seen = mass > 0
    # Divided by 1 where nothing is seen: the gradient of 0 / 0 would be NaN behind any ``where``.
    mean = sums / torch.where(seen, mass, 1.0)
    return torch.where(seen, mean, 0.0)


def _under(part: Tensor, largest: Tensor) -> Tensor:
    """Return the sums and the mass of a part under another largest score, (B, H, Nq, d + 1).

    A part without visible keys has a largest score of -∞; its sums are zero and count as such.
    """
    before = part[..., -1:].detach()
    ratio = (before - largest).exp()
    factor = torch.where(before > -torch.inf, ratio, 0.0)
    return part[..., :-1] * factor
