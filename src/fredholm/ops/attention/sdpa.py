"""Softmax attention against a measure, through PyTorch's fused attention."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...measures import relative_logarithm
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
    r"""Return :math:`\sum_j p_{ij} w_{ij} v_j` with p the softmax density of the scores
    ``query·key`` times ``scale``.

    Equal masses need no bias and causal order alone needs none either: both reach the fused kernels
    as they are. Otherwise the logarithm of the weights is added to the scores. A query that sees
    nothing gives zero. The fused kernels have one derivative; where ``torch.func`` transforms, and
    for second derivatives, all scores are computed.

    Args:
        query, key, value: features and values.
        quadrature: the weights w. Their scale per query has no effect, since a softmax cancels it.
        scale: of the scores.

    Cost: O(Nq·Nk·(e + d)) time. Memory O(N) in the fused kernels, besides the bias; O(Nq·Nk) where
    all scores are computed.

    Example:
        >>> u = torch.ones(1, 1, 3, 2)
        >>> attention(u, u, u, Domain.line(3).quadrature())[0, 0, 0].tolist()
        [1.0, 1.0]
    """
    bias = _bias(quadrature, query.dtype)
    causal = bias is None and quadrature.triangular
    if bias is None and quadrature.query_time is not None and not causal:
        # An order that is not that of the indices needs a bias to be written into.
        bias = torch.zeros((), dtype=query.dtype, device=query.device)
    if bias is None:
        return fused_attention(
            query,
            key,
            value,
            None,
            causal=causal,
            scale=scale,
        )

    order = quadrature.order()
    if order is not None:
        bias = torch.where(order[:, None], bias, -torch.inf)
    rows, heads = bias.shape[:2]
    bias = bias.expand(
        rows,
        heads,
        query.shape[2],
        key.shape[2],
    )

    # A softmax over scores of -∞ alone is NaN, in values and gradients. Such a query sees all keys
    # instead, and its response is replaced by zero.
    blind = (bias == -torch.inf).all(-1, keepdim=True)
    out = fused_attention(
        query,
        key,
        value,
        bias.masked_fill(blind, 0.0),
        scale=scale,
    )
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
    """Return softmax attention with a bias, by torch's fused kernels where they have the derivative
    that is wanted.
    """
    if transforms():
        return _all_scores(
            query,
            key,
            value,
            bias,
            causal,
            scale,
        )

    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=bias,
        is_causal=causal,
        scale=scale,
    )
    if out.requires_grad and not torch.compiler.is_compiling():
        plain = partial(_all_scores, causal=causal, scale=scale)
        attention_differentiable_again(
            out,
            plain,
            query,
            key,
            value,
            bias,
        )
    return out


def _all_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float,
) -> Tensor:
    """Return the same in differentiable operations, with the matrix of scores (B, H, Nq, Nk)."""
    dtype = at_least_single(query.dtype)
    # Autocast would round the scores to a half precision.
    with full_precision(query):
        scores = scale * query.to(dtype) @ key.to(dtype).mT
        if causal:
            every_pair = torch.ones(
                scores.shape[-2:],
                dtype=torch.bool,
                device=scores.device,
            )
            scores = scores.masked_fill(every_pair.triu(1), -torch.inf)
        if bias is not None:
            scores = scores + bias
        out = scores.softmax(-1) @ value.to(dtype)
        return out.to(value.dtype)


def _bias(quadrature: Quadrature, dtype: torch.dtype) -> Tensor | None:
    """Return the logarithm of the weights without order and scale, or None where it is constant.

    Shape (1 | B, 1 | H, 1 | Nq, Nk), in ``dtype``.
    """
    bias = None
    if not quadrature.equal:
        bias = relative_logarithm(quadrature.mass)[:, None, None, :]
    elif quadrature.valid is not None:
        zero = torch.zeros((), dtype=dtype, device=quadrature.valid.device)
        bias = torch.where(
            quadrature.valid[:, None, None, :],
            zero,
            -torch.inf,
        )

    log_density = quadrature.log_density
    if bias is None:
        bias = log_density
    elif log_density is not None:
        bias = bias + log_density
    if bias is None:
        return None
    return bias.to(dtype)
