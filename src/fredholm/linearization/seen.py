"""Which keys a query sees in a model's attention, and softmax over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..domain import Domain
from ..errors import ConversionError
from ..integral.features import clean as zero_at_padding
from ..quadrature import Quadrature


@dataclass(frozen=True, eq=False)
class Seen:
    """Which keys the queries of a call see.

    Attributes:
        valid: keys that are not padding, (B, Nk), or None for all.
        causal: query i sees the keys up to i; queries and keys are then the same tokens.
        pairs: any other mask, boolean or additive, (B | 1, H | 1, Nq, Nk); it takes the quadratic
            form.
    """

    valid: Bool[Tensor, "b k"] | None = None
    causal: bool = False
    pairs: Tensor | None = None

    def quadrature(self, queries: int, keys: int, like: Tensor) -> Quadrature:
        """Return the weights of the sum over keys, equal masses over what a query sees.

        Args:
            queries, keys: Nq and Nk.
            like: gives the device, and the dtype unless it is a half precision.
        """
        dtype = torch.promote_types(like.dtype, torch.float32)
        line = Domain.line(
            keys,
            causal=self.causal,
            device=like.device,
            dtype=dtype,
        )
        domain = line.replace(valid=self.valid, pairs=self.pairs)
        if queries == keys:
            return domain.quadrature()
        if self.causal:
            raise ConversionError(
                f"causal attention of {queries} queries over {keys} keys needs a mask of pairs"
            )
        query_line = Domain.line(queries, device=like.device, dtype=dtype)
        return domain.quadrature(query_line)

    def real(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Return which queries are not padding, where they are the same tokens as the keys."""
        if query.shape[2] != key.shape[2]:
            return None
        return self.valid

    def bias(self, queries: int, keys: int, like: Tensor) -> Tensor | None:
        """Return the same as an additive mask of a softmax, (B | 1, H | 1, Nq, Nk), or None where
        every query sees every key.
        """
        visible = self.quadrature(queries, keys, like).visible()
        if visible is None:
            return None

        bias = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
        bias = bias.masked_fill(~visible, -torch.inf)
        if self.pairs is not None and self.pairs.dtype != torch.bool:
            bias = bias + self.pairs.to(like.dtype)
        return bias


def clean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return x (B, H, N, d) with zeros at padding, which may hold anything, NaN included."""
    if valid is None:
        return x
    return zero_at_padding(x, valid[:, None])


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Seen,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Return the teacher's response, by torch's fused attention."""
    # The fused kernels know a causal order, and are fastest without a mask.
    order_alone = seen.causal and seen.valid is None and seen.pairs is None
    bias = None
    if not order_alone:
        bias = seen.bias(query.shape[2], key.shape[2], query)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=bias,
        dropout_p=dropout,
        is_causal=order_alone,
        scale=scale,
    )


def softmax_weights(
    query: Tensor,
    key: Tensor,
    seen: Seen,
    scale: float,
) -> Float[Tensor, "b h q k"]:
    """Return the weights of softmax attention, softmax(scale · Q Kᵀ + bias), in float32.

    The bias is that of ``seen``. Keys have one head per head of queries. The row of a query that
    sees no key is zero. Dense: O(N²).
    """
    scores = (query.float() @ key.float().mT) * scale
    bias = seen.bias(query.shape[2], key.shape[2], scores)
    if bias is None:
        return scores.softmax(-1)

    # The softmax of a row of -∞ is NaN, and so is its gradient. Such rows are replaced before it,
    # which keeps the gradient finite, and again after it, where their weights become 0.
    sees_a_key = (bias > -torch.inf).any(-1, keepdim=True)
    finite_scores = torch.where(sees_a_key, scores + bias, 0.0)
    return torch.where(sees_a_key, finite_scores.softmax(-1), 0.0)
