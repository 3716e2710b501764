"""An operator in the place of a torch.nn.MultiheadAttention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..domain import Domain
from ..errors import OptionError, ShapeError
from .operator import IntegralOperator


class MultiheadAdapter(nn.Module):
    """Adapter of any operator to the call of :class:`torch.nn.MultiheadAttention`: self and cross
    attention, padding, causal masks.

    Args:
        operator: from ``dim`` to any width; defined on lines, and for causal masks on causal lines.
        batch_first: (B, N, dim) rather than torch's (N, B, dim). A ``nn.TransformerEncoder`` around
            it needs ``enable_nested_tensor=False``, because only torch's attention supports nested
            tensors.

    Shape: query (B, Nq, dim) and key (B, Nk, dim) to (B, Nq, out_dim). Outputs at padded queries
    are zero in self attention.

    Raises:
        OptionError: values that are not the keys; an attention mask that is not the causal one; a
            padding mask with other values than torch's; weights of an operator without any.
        ShapeError: masks that do not fit.

    Cost: that of the operator; with ``need_weights`` O(Nq·Nk) more.

    Example:
        >>> from fredholm.operators import LunaAttention
        >>> layer, u = MultiheadAdapter(LunaAttention(8, 2)), torch.randn(1, 5, 8)
        >>> out, weights = layer(u, u, u)
        >>> out.shape, weights.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 5, 5]))
    """

    # torch's layers read these two before they take a fused path, which would not be this operator.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, operator: IntegralOperator, *, batch_first: bool = True):
        super().__init__()
        self.operator, self.batch_first = operator, batch_first
        self.embed_dim, self.num_heads = operator.dim, operator.heads

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if key is not value:
            raise OptionError(
                "value: expected the same tensor as key, got another one; an operator integrates "
                "one signal: pass the same tensor as key and value"
            )
        self_attention = query is key
        if not self.batch_first:
            query, key = query.transpose(0, 1), key.transpose(0, 1)

        causal = is_causal
        pairs = None
        if attn_mask is not None and not is_causal:
            causal, pairs = self._order(attn_mask, query.shape[1], key.shape[1])

        domain = self._line(key, causal)
        if key_padding_mask is not None:
            domain = domain.replace(valid=self._valid(key_padding_mask, key))
        if pairs is not None:
            domain = domain.replace(pairs=pairs)
        call: dict[str, Any] = {"domain": domain}
        if not self_attention:
            call |= {"query": query, "query_domain": self._query_line(query, causal)}

        out = self.operator(key, **call)
        if not self.batch_first:
            out = out.transpose(0, 1)
        if not need_weights:
            return out, None
        weights = self._weights(key, call)
        if weights is None or not average_attn_weights:
            return out, weights
        return out, weights.mean(1)

    def _line(self, u: Tensor, causal: bool) -> Domain:
        """Return the line of features (B, N, dim), over a length of 1."""
        dtype = torch.promote_types(u.dtype, torch.float32)
        return Domain.line(
            u.shape[1],
            causal=causal,
            length=1.0,
            device=u.device,
            dtype=dtype,
        )

    def _query_line(self, query: Tensor, causal: bool) -> Domain:
        """Return the line of queries that are not the keys."""
        return self._line(query, causal)

    def _weights(self, u: Tensor, call: dict[str, Any]) -> Tensor | None:
        """Return the weight of each pair, (B, H, Nq, Nk)."""
        return self.operator.weights(u, **call)

    def _order(
        self,
        mask: Tensor,
        queries: int,
        keys: int,
    ) -> tuple[bool, Tensor | None]:
        """Return whether an attention mask is the causal one, and otherwise the pairs that it
        leaves.

        This adapter refuses other masks; a subclass that takes them overrides the method.

        Raises:
            OptionError: any other mask than the causal one.
        """
        if not is_causal_mask(mask, queries, keys):
            raise OptionError(
                "attn_mask must be None or the causal mask, True or -inf above the diagonal and "
                "nothing else. Give other masks to the operator itself, as Domain(pairs=...), "
                "which costs O(N²)"
            )
        return True, None

    @staticmethod
    def _valid(padding: Tensor, key: Tensor) -> Tensor:
        """Return which keys are real, from torch's mask of padded ones: True or -inf.

        Raises:
            ShapeError: a mask for other keys.
            OptionError: a mask with other values.
        """
        if padding.shape != key.shape[:2]:
            raise ShapeError(
                f"key_padding_mask: expected {tuple(key.shape[:2])}, got {tuple(padding.shape)}; "
                "pass one value per key"
            )
        if padding.dtype == torch.bool:
            return ~padding

        plain = padding.is_floating_point()
        # While code is traced there are no values to look at.
        if plain and not torch.compiler.is_compiling():
            plain = bool(((padding == 0) | (padding == -torch.inf)).all())
        if not plain:
            raise OptionError(
                "key_padding_mask must be boolean, True at padding, or a floating-point one of 0 "
                f"and -inf; got {padding.dtype} of other values. Of a mask that is 1 at real "
                "tokens give mask == 0"
            )
        return padding == 0


def is_causal_mask(mask: Tensor, queries: int, keys: int) -> bool:
    """Whether a mask is the causal one: True or -inf above the diagonal, and nothing else.

    Example:
        >>> is_causal_mask(torch.ones(3, 3, dtype=torch.bool).triu(1), 3, 3)
        True
    """
    boolean = mask.dtype == torch.bool
    hidden = mask
    if not boolean:
        hidden = mask == -torch.inf
    future = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).triu(1)

    # A floating-point mask may add a bias where it hides nothing.
    unbiased = boolean or not mask.masked_fill(hidden, 0.0).any()
    return mask.shape == future.shape and bool(unbiased) and torch.equal(hidden, future)
