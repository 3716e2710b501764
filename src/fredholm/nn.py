"""Layers with the signatures of :mod:`torch.nn`, around any operator.

They take the place of torch's own in a model that is there already::

    layer = fredholm.nn.TransformerEncoderLayer(64, 4, operator="luna", batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, num_layers=2)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .domain import Domain
from .errors import ConversionError, OptionError, ShapeError
from .integral import IntegralOperator, create_operator
from .integral.multihead import MultiheadAdapter, is_causal_mask

__all__ = ["ContinuousConv1d", "MultiheadAttention", "TransformerEncoderLayer"]

PROJECTIONS = ("query", "key", "value")


class MultiheadAttention(MultiheadAdapter):
    r"""An operator in the place of :class:`torch.nn.MultiheadAttention`.

    The sequence is a signal on a line. ``key_padding_mask`` says which points are real, a
    triangular ``attn_mask`` or ``is_causal=True`` that the line has an order, any other
    ``attn_mask`` (L, S) which pairs of points see each other.

    Args:
        embed_dim, num_heads, batch_first, device, dtype: as torch's.
        bias: of the projections; without it the output projection has none either.
        dropout, add_bias_kv, add_zero_attn, kdim, vdim: only torch's defaults. Weights of an
            integral are not dropped; put ``nn.Dropout`` behind the layer.
        operator: a name of :func:`fredholm.list_operators`.
        options: of that operator.

    Shape: (L, B, embed_dim), or (B, L, embed_dim) where ``batch_first``, or (L, embed_dim).

    Raises:
        OptionError: an option that has no meaning for an operator.

    Example:
        >>> layer = MultiheadAttention(8, 2, batch_first=True, operator="luna")
        >>> u = torch.randn(3, 5, 8)
        >>> layer(u, u, u, need_weights=False)[0].shape
        torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        operator: str = "softmax",
        **options: Any,
    ):
        _refuse_options(
            dropout=dropout != 0,
            add_bias_kv=add_bias_kv,
            add_zero_attn=add_zero_attn,
            kdim=kdim not in (None, embed_dim),
            vdim=vdim not in (None, embed_dim),
        )
        # Operators without a bias of their own still project their heads, with a bias by default.
        if not bias:
            options = {**options, "bias": False}
        chosen = create_operator(operator, embed_dim, num_heads, **options)
        if not bias and chosen.projection is not None:
            chosen.projection.register_parameter("bias", None)
        super().__init__(chosen, batch_first=batch_first)
        self.to(device=device, dtype=dtype)
        self._warned = False

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
        """Return the outputs at the queries, and the weights (B, L, S), or (B, H, L, S) unless
        averaged over heads. Kernels without a number for each pair have no weights: None, with one
        warning.

        Raises:
            OptionError: keys that are not the values, or a mask for each head.
            ShapeError: tensors or masks of other shapes.
        """
        if query.dim() not in (2, 3):
            raise ShapeError(
                f"expected query, key and value of 2 or 3 dimensions, got {tuple(query.shape)}"
            )
        options = (need_weights, attn_mask, average_attn_weights, is_causal)
        if query.dim() == 3:
            return super().forward(query, key, value, key_padding_mask, *options)

        # One sequence is a batch of one; which of the three are the same tensor must stay known.
        batch = 1
        if self.batch_first:
            batch = 0
        batched = {id(x): x.unsqueeze(batch) for x in (query, key, value)}
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask[None]
        query, key, value = (batched[id(x)] for x in (query, key, value))
        out, weights = super().forward(query, key, value, key_padding_mask, *options)
        if weights is not None:
            weights = weights[0]
        return out.squeeze(batch), weights

    def load_torch(self, layer: nn.MultiheadAttention) -> MultiheadAttention:
        """Take over the projections of a layer of torch, and return self.

        With ``operator="softmax"`` the answers are the layer's. Other operators with queries, keys
        and values start from its projections.

        Raises:
            ConversionError: an operator without such projections, or a layer of another width or
                with another number of heads.
        """
        kernel: Any = self.operator.kernel
        if not all(isinstance(getattr(kernel, name, None), nn.Linear) for name in PROJECTIONS):
            raise ConversionError(
                f"load_torch: expected an operator with queries, keys and values, got "
                f"{type(self.operator).__name__}; train it from the start"
            )
        sizes = (layer.embed_dim, layer.num_heads)
        if sizes != (self.embed_dim, self.num_heads) or layer.in_proj_weight is None:
            raise ConversionError(
                f"load_torch: expected {self.embed_dim} features in {self.num_heads} heads and "
                f"keys of the queries' width, got {sizes[0]} in {sizes[1]}, kdim={layer.kdim}"
            )

        # torch stacks the matrices of queries, keys and values: (3 · embed_dim, embed_dim).
        parts = [getattr(kernel, name) for name in PROJECTIONS]
        with torch.no_grad():
            for part, weight in zip(parts, layer.in_proj_weight.chunk(3), strict=True):
                part.weight.copy_(weight)
            if layer.in_proj_bias is not None:
                for part, bias in zip(parts, layer.in_proj_bias.chunk(3), strict=True):
                    part.bias.copy_(bias)
            projection = self.operator.projection
            assert projection is not None
            projection.load_state_dict(layer.out_proj.state_dict())
        return self

    def _line(self, u: Tensor, causal: bool) -> Domain:
        """The points on which the operator's own training would put the features."""
        return self.operator.default_domain(u).replace(causal=causal)

    def _query_line(self, query: Tensor, causal: bool) -> Domain:
        if causal:
            raise OptionError(
                "attn_mask: expected no order between queries and other keys, got a triangular "
                "mask; give query, key and value as one tensor"
            )
        return self._line(query, causal)

    def _order(
        self,
        mask: Tensor,
        queries: int,
        keys: int,
    ) -> tuple[bool, Tensor | None]:
        if mask.dim() != 2:
            raise OptionError(
                f"attn_mask: expected one mask (L, S) for all heads and samples, got "
                f"{tuple(mask.shape)}; padding goes into key_padding_mask"
            )
        if mask.shape != (queries, keys):
            raise ShapeError(f"attn_mask: expected {(queries, keys)}, got {tuple(mask.shape)}")
        if is_causal_mask(mask, queries, keys):
            return True, None
        # True hides a pair in torch's masks and shows it in a domain's; numbers are added in both.
        if mask.dtype == torch.bool:
            mask = ~mask
        return False, mask

    def _weights(self, u: Tensor, call: dict[str, Any]) -> Tensor | None:
        if self.operator.has_weights:
            return super()._weights(u, call)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(self.operator).__name__} has no number for each pair of points: weights "
                "are None; pass need_weights=False (said once)",
                stacklevel=4,
            )
        return None

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, batch_first={self.batch_first}"


class TransformerEncoderLayer(nn.TransformerEncoderLayer):
    """:class:`torch.nn.TransformerEncoderLayer` with an operator in the place of its attention.

    :class:`torch.nn.TransformerEncoder` works around it. ``dropout`` acts behind the operator and
    in the feed-forward part, not on weights of pairs.

    Args:
        d_model, nhead, dim_feedforward, dropout: as torch's, and so are ``activation``,
            ``layer_norm_eps``, ``batch_first``, ``norm_first``, ``bias``, ``device``, ``dtype``.
        operator: a name of :func:`fredholm.list_operators`.
        options: of that operator.

    Example:
        >>> layer = TransformerEncoderLayer(8, 2, 16, batch_first=True, operator="luna")
        >>> layer(torch.randn(3, 5, 8)).shape
        torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = nn.functional.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        operator: str = "softmax",
        **options: Any,
    ):
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
            device,
            dtype,
        )
        attention: Any = MultiheadAttention(
            d_model,
            nhead,
            bias=bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
            operator=operator,
            **options,
        )
        # In the place of torch's own, which its constructor has made.
        self.self_attn = attention

    def load_torch(self, layer: nn.TransformerEncoderLayer) -> TransformerEncoderLayer:
        """Take over the weights of a layer of torch, and return self.

        With ``operator="softmax"`` the answers are the layer's, see
        :meth:`MultiheadAttention.load_torch`.

        Raises:
            ConversionError: an operator without projections, or a layer of other sizes.
        """
        self.self_attn.load_torch(layer.self_attn)
        for name in ("linear1", "linear2", "norm1", "norm2"):
            own, theirs = getattr(self, name), getattr(layer, name)
            try:
                own.load_state_dict(theirs.state_dict())
            except RuntimeError as error:
                raise ConversionError(
                    f"load_torch: expected {name} of the sizes {own.extra_repr()}, got "
                    f"{theirs.extra_repr()}; make this layer with the other's options"
                ) from error
        return self


class ContinuousConv1d(nn.Module):
    """A convolution with a continuous kernel (CKConv) in the place of :class:`torch.nn.Conv1d`.

    Its number of weights does not depend on how far it sees, and the same weights serve another
    rate: ``layer(x, rate=2)`` reads a signal with twice as many samples in the same time.

    Args:
        in_channels, out_channels: as torch's.
        length: samples of a training sequence; the kernel reaches over all of them.
        causal: whether an output depends on samples up to its own only.
        groups: as torch's.
        options: of :class:`fredholm.CKConv`.

    Shape: (B, in_channels, L) to (B, out_channels, L).

    Example:
        >>> layer = ContinuousConv1d(2, 4, length=16)
        >>> layer(torch.randn(3, 2, 16)).shape, layer(torch.randn(3, 2, 32), rate=2).shape
        (torch.Size([3, 4, 16]), torch.Size([3, 4, 32]))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        length: int,
        causal: bool = True,
        groups: int = 1,
        **options: Any,
    ):
        super().__init__()
        # Causal lags begin at 0; others lie on both sides of it.
        origin = "centre"
        if causal:
            origin = "start"
        options.setdefault("origin", origin)
        self.length, self.causal = length, causal
        self.operator: IntegralOperator = create_operator(
            "ckconv",
            in_channels,
            groups,
            out_dim=out_channels,
            length=length,
            **options,
        )

    def forward(self, x: Tensor, rate: float = 1.0) -> Tensor:
        """Convolve signals with ``rate`` samples in each step of training."""
        if x.dim() != 3:
            raise ShapeError(f"expected signals (B, C, L), got {tuple(x.shape)}")
        if not rate > 0:
            raise OptionError(f"rate: expected a positive number, got {rate}")

        # Channels are the features of points: (B, L, in_channels).
        u = x.transpose(1, 2)
        domain = self.operator.default_domain(u).replace(causal=self.causal)
        if rate != 1:
            # Each sample stands for a part of a step of training.
            domain = domain.replace(
                positions=domain.positions / rate,
                measure=domain.measure / rate,
                kind="spacing",
            )
        return self.operator(u, domain).transpose(1, 2)


def _refuse_options(**given: bool) -> None:
    for name, set_otherwise in given.items():
        if set_otherwise:
            raise OptionError(
                f"{name}: expected torch's default, got another value, which has no meaning for an "
                "integral operator; leave it out"
            )
