"""Linear attention as a density, in its plainest form."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from .chunked import guarded


def linear_density(
    query: Float[Tensor, "#b #h q r"],
    key: Float[Tensor, "#b #h k r"],
    weights: Float[Tensor, "#b #h #q k"],
    floor: float | None,
) -> Float[Tensor, "b h q k"]:
    r"""Density of linear attention against the quadrature weights w,
    :math:`p_{ij} = \phi_i\cdot\psi_j / \sum_l w_{il}\,\phi_i\cdot\psi_l`; without a ``floor`` there
    is no denominator. Statistics in float32 at least, autocast or not. O(Nq·Nk).
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        raw, weights = query.to(dtype) @ key.to(dtype).mT, weights.to(dtype)
        return raw if floor is None else raw / guarded((raw * weights).sum(-1, keepdim=True), floor)


def linear_attention_naive(
    query: Float[Tensor, "#b #h q r"],
    key: Float[Tensor, "#b #h k r"],
    value: Float[Tensor, "#b #h k c"],
    weights: Float[Tensor, "#b #h #q k"],
    floor: float | None,
) -> Float[Tensor, "b h q c"]:
    r""":math:`\sum_j p_{ij} w_{ij} v_j` through the dense density: the oracle of ``chunked``."""
    return (linear_density(query, key, weights, floor) * weights) @ value
