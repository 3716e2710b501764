"""Softmax attention against a measure, through PyTorch's fused attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...quadrature import Quadrature
from ..backend import at_least_single, full_precision, transforms
from ..plain import attention_differentiable_again


def attention(
    query: Float[Tensor, "b h q e"],
    key: Float[Tensor, "b h k e"],
    value: Float[Tensor, "b h k d"],
    quadrature: Quadrature,
    *,
    scale: float = 1.0,
) -> Float[Tensor, "b h q d"]:
    r""":math:`\sum_j p_{ij} w_{ij} v_j` with p the softmax density of the scores ``query·key``
    times ``scale``.

    Equal masses need no bias, and causal order alone none either: both reach the fused kernels as
    they are. Otherwise the log of the weights is added to the scores; a query that sees nothing
    gives zero. Memory O(N) on the fused kernels, plus the mask. They have one derivative; where
    ``torch.func`` transforms, and for second derivatives, the scores are made, O(N²).
    """
    bias = _bias(quadrature, query.dtype)
    causal = bias is None and quadrature.triangular
    if bias is None and quadrature.query_time is not None and not causal:
        bias = torch.zeros((), dtype=query.dtype, device=query.device)
    if bias is None:
        return fused_attention(query, key, value, None, causal=causal, scale=scale)
    order = quadrature.order()
    if order is not None:
        bias = torch.where(order[:, None], bias, -torch.inf)
    bias = bias.expand(*bias.shape[:2], query.shape[2], key.shape[2])
    blind = (bias == -torch.inf).all(-1, keepdim=True)
    out = fused_attention(query, key, value, bias.masked_fill(blind, 0.0), scale=scale)
    return out.masked_fill(blind, 0.0)


def fused_attention(
    query: Float[Tensor, "b h q e"],
    key: Float[Tensor, "b h k e"],
    value: Float[Tensor, "b h k d"],
    bias: Float[Tensor, "#b #h #q k"] | None,
    *,
    causal: bool = False,
    scale: float = 1.0,
) -> Float[Tensor, "b h q d"]:
    """Softmax attention with a bias, by torch's fused kernels where they have the derivative."""
    if transforms():
        return _plain(query, key, value, bias, causal, scale)
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, is_causal=causal, scale=scale
    )
    if out.requires_grad and not torch.compiler.is_compiling():
        attention_differentiable_again(
            out, lambda q, k, v, b: _plain(q, k, v, b, causal, scale), query, key, value, bias
        )
    return out


def _plain(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> Tensor:
    dtype = at_least_single(query.dtype)
    with full_precision(query):  # autocast would round the scores
        scores = scale * query.to(dtype) @ key.to(dtype).mT
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        if bias is not None:
            scores = scores + bias
        return (scores.softmax(-1) @ value.to(dtype)).to(value.dtype)


def _bias(quadrature: Quadrature, dtype: torch.dtype) -> Tensor | None:
    """Logarithm of the weights but for order and the queries' scale, which a softmax cancels; None
    where it is constant.
    """
    bias = None
    if not quadrature.equal:
        mass = quadrature.mass
        # a mass of zero hides its key: no gradient there, as in the definition, and no NaN
        log_mass = torch.where(mass > 0, torch.where(mass > 0, mass, 1.0).log(), -torch.inf)
        # near zero, where half precisions have their digits: a softmax cancels a constant
        top = log_mass.detach().amax(-1, keepdim=True)
        bias = (log_mass - top.clamp_min(torch.finfo(top.dtype).min))[:, None, None, :]
    elif quadrature.valid is not None:
        zero = torch.zeros((), dtype=dtype, device=quadrature.valid.device)
        bias = torch.where(quadrature.valid[:, None, None, :], zero, -torch.inf)
    if quadrature.log_density is not None:
        log_density = quadrature.log_density
        bias = log_density if bias is None else bias + log_density
    return None if bias is None else bias.to(dtype)
