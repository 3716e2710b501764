"""Residual blocks for comparisons: any operator or classical layer, all else the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ...arguments import options_of
from ...domain import Domain
from ...integral.registry import operator_factory
from ..baselines import list_baselines, make_baseline
from ..encoders import Encoder, EncoderConfig
from ..operators import make_operator, of_block, suited
from .body import StackConfig, register_body
from .residual import ResidualBody


@register_body("backbone")
@dataclass(frozen=True)
class BackboneConfig(StackConfig):
    """Residual blocks around any registered operator or baseline; see :class:`BackboneBody`.

    Attributes:
        dim, depth, heads: width d, layers L, heads H.
        operator: a registered operator, or one of :func:`fredholm.models.list_baselines`.
        operator_options: its further options; ``{"blocks": [...]}`` lists them for each block.
            Options that follow from the data (``position_dim``, ``length``, ``causal``) are set
            by the encoder.
        mlp_ratio: expansion of the feed-forward networks.
        dropout: after operators, inside feed-forward networks and after the embedding.
    """

    dim: int = 32
    depth: int = 2
    heads: int = 2
    operator: str = "softmax"
    operator_options: dict[str, Any] = field(default_factory=dict)
    mlp_ratio: float = 2.0
    dropout: float = 0.0

    def build(self, encoder: Encoder, config: EncoderConfig) -> BackboneBody:
        layers = (make_layer(self, encoder.position_dim, config, i) for i in range(self.depth))
        return BackboneBody(
            layers,
            self.dim,
            ratio=self.mlp_ratio,
            dropout=self.dropout,
            drop_path=[0.0] * self.depth,
        )


class BackboneBody(ResidualBody):
    """Blocks of :class:`ResidualBody`, on the measure for which their operator is defined.

    Operators whose default domain counts points (convolutions, recurrences) sum over them; all
    others compute means. Two runs therefore differ only in the operator.
    """

    def suited(self, domain: Domain) -> Domain:
        return suited(self.blocks[0].operator, domain)


def make_layer(
    c: BackboneConfig,
    position_dim: int,
    data: EncoderConfig,
    block: int = 0,
) -> nn.Module:
    """Return the operator or baseline of a block, with the options that follow from the data."""
    given = of_block(c.operator_options, block)
    if c.operator in list_baselines():
        return make_baseline(
            c.operator,
            c.dim,
            c.heads,
            position_dim=position_dim,
            causal=data.causal,
            **given,
        )
    from_data: dict[str, Any] = {}
    heads = c.heads
    known = options_of(operator_factory(c.operator))
    if "length" in known:
        # Heads of a convolution are groups: channels that never meet.
        from_data["length"] = data.points
        heads = 1
    # Without an order a kernel is centred on its point.
    if "origin" in known and not data.causal:
        from_data["origin"] = "centre"
    return make_operator(
        c.operator,
        c.dim,
        heads,
        position_dim=position_dim,
        ordered=data.causal,
        from_data=from_data,
        **given,
    )
