"""Body of InfViT: pre-norm blocks whose responses decay with depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...configuration import check_known, check_rates
from ...domain import Domain
from ...errors import OptionError
from ...integral import operator_options
from ..depth import Accumulation, FeedForward, output_layers
from ..encoders import Encoder, EncoderConfig
from ..operators import make_operator
from .body import Body, StackConfig, operator_domain, register_body, rising_rates
from .residual import ResidualBody

DEPTH_RULES = ("power", "constant", "accumulated")

# The paper's γ.
DECAY = 0.7


@register_body("infvit")
@dataclass(frozen=True)
class InfViTConfig(StackConfig):
    r"""A pre-norm vision transformer around any registered operator.

    Attributes:
        dim, depth, heads: width d, layers L, heads H.
        operator: ``linear_infsa``, ``infsa``, ``softmax`` (the ViT of equal depth) or any
            registered operator.
        operator_options: its further options.
        depth_rule: what block l adds to the residual stream. ``power``: :math:`\gamma^l Z^{(l)}`,
            the paper's; ``constant``:
            :math:`\gamma Z^{(l)}`, as the released code does; ``accumulated``: as ``power``, and
            the class is read from
            :math:`S_L = \sum_l \gamma^l Z^{(l)}` instead of the stream, for any operator
            (:class:`fredholm.models.depth.Accumulation`). Operators without a γ, such as softmax,
            add Z in the first two.
        decay: γ, of operators that have one and of ``accumulated``; None for 0.7.
        learned_decay: γ is learned: one per head, or one for all of ``accumulated``; None for no.
        mlp_ratio: expansion of the feed-forward networks.
        chunk: tokens that a feed-forward network computes at once, None for all: bounds memory,
            changes no weight.
        dropout: after operators, inside feed-forward networks and after the embedding.
        drop_path: stochastic depth of the last block; it grows linearly from 0 (``accumulated``: of
            all).

    Raises:
        OptionError: values out of range, or that do not fit one another.
    """

    dim: int = 768
    depth: int = 4
    heads: int = 64
    operator: str = "linear_infsa"
    operator_options: dict[str, Any] = field(default_factory=dict)
    depth_rule: str = "power"
    decay: float | None = None
    learned_decay: bool | None = None
    mlp_ratio: float = 4.0
    chunk: int | None = None
    dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        check_known(self, depth_rule=DEPTH_RULES)
        super().__post_init__()
        check_rates(self, "drop_path")
        if self.decay is not None and (
            not isinstance(self.decay, int | float) or not 0 < self.decay < 1
        ):
            raise OptionError(f"expected a decay γ in (0, 1), got {self.decay!r}")
        if self.chunk is not None and (not isinstance(self.chunk, int) or self.chunk < 1):
            raise OptionError(
                f"chunk: expected 1 token or more, or null for all at once, got {self.chunk!r}; "
                "raise it"
            )
        for name in ("decay", "learned_decay", "power"):
            if name in self.operator_options:
                raise OptionError(
                    f"operator_options: expected no {name!r}, which InfViT sets, got it; give "
                    "body.decay, body.learned_decay and body.depth_rule"
                )

    @classmethod
    def idle(cls, given: Mapping[str, Any]) -> dict[str, str]:
        # Without a γ of the operator or of the stack, these fields have no effect.
        operator = given.get("operator", "linear_infsa")
        if given.get("depth_rule") == "accumulated" or _decays(operator):
            return {}
        return dict.fromkeys(("decay", "learned_decay"), f"operator={operator!r}, which has no γ")

    def build(self, encoder: Encoder, config: EncoderConfig) -> Body:
        """Return the body for an encoder, whose positions the operators read; ``config`` tells
        whether points are in an order.
        """
        # Counted from 1, because block l adds γ^l Z.
        layers = range(1, self.depth + 1)
        operators = [self._operator(layer, encoder, config) for layer in layers]
        shared: Any = {"ratio": self.mlp_ratio, "dropout": self.dropout, "chunk": self.chunk}
        if self.depth_rule == "accumulated":
            stack = Accumulation(
                operators,
                self.dim,
                decay=self.decay or DECAY,
                learned_decay=bool(self.learned_decay),
                drop_path=self.drop_path,
                **shared,
            )
            return AccumulatedBody(stack, self.dim)

        # From 0 at the first block to ``drop_path`` at the last; a single block has none.
        rates = rising_rates(self.drop_path, self.depth)
        return ResidualBody(operators, self.dim, drop_path=rates, **shared)

    def _operator(self, layer: int, encoder: Encoder, config: EncoderConfig) -> nn.Module:
        """Return the operator of block ``layer`` (1 … L), with γ and its power if it has them."""
        options = dict(self.operator_options)
        decay = self.decay or DECAY
        if _decays(self.operator):
            if self.depth_rule == "accumulated":
                # The stack applies γ itself.
                options |= {"decay": decay, "power": 0}
            else:
                power = 1
                if self.depth_rule == "power":
                    power = layer
                learned = bool(self.learned_decay)
                options |= {"decay": decay, "learned_decay": learned, "power": power}
        return make_operator(
            self.operator,
            self.dim,
            self.heads,
            position_dim=encoder.position_dim,
            ordered=config.causal,
            **options,
        )


def _decays(operator: str) -> bool:
    """Return whether an operator has a γ and its power."""
    return {"decay", "power", "learned_decay"} <= set(operator_options(operator))


class AccumulatedBody(Body):
    r"""Blocks whose class is read from the normalised sum
    :math:`S_L = \sum_l \gamma^l Z^{(l)}` instead of the stream.

    Initialisation: output layers of operators and feed-forward networks scaled by
    :math:`1/\sqrt{2L}`.

    Reference: InfSA §4, Eqs. 9, 12, 23.
    """

    def __init__(self, stack: Accumulation, dim: int):
        super().__init__()
        self.stack = stack
        self.norm = nn.LayerNorm(dim)
        self._scale_outputs()

    @torch.no_grad()
    def _scale_outputs(self) -> None:
        scale = (2 * len(self.operators)) ** -0.5
        for operator in self.operators:
            for projection in output_layers(operator):
                projection.weight.mul_(scale)
        for module in self.stack.modules():
            if isinstance(module, FeedForward):
                module.contract.weight.mul_(scale)

    @property
    def operators(self) -> list[nn.Module]:
        return list(self.stack.operators)

    def forward(self, u: Tensor, domain: Domain) -> tuple[Tensor, Domain]:
        domain = operator_domain(self.operators[0], domain)
        _, total = self.stack.accumulate(u, domain)
        return self.norm(total), domain
