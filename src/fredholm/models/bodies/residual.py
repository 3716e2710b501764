"""Residual blocks around any operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ...configuration import check_rates
from ...domain import Domain
from ...errors import OptionError
from ...integral import CausalState
from ..depth import ResidualBlock
from ..encoders import Encoder, EncoderConfig
from ..operators import make_operator, of_block
from .body import Body, StackConfig, operator_domain, register_body, rising_rates


@register_body("residual")
@dataclass(frozen=True)
class ResidualConfig(StackConfig):
    """L pre-norm residual blocks around one kind of operator; see :class:`ResidualBody`.

    Attributes:
        dim, depth, heads: width d, layers L, heads H.
        operator: a registered operator's name.
        operator_options: its further options; ``{"blocks": [...]}`` lists them for each block.
            ``position_dim`` is set by the encoder.
        mlp_ratio: expansion of the feed-forward networks.
        dropout: after operators, inside feed-forward networks and after the embedding.
        drop_path: stochastic depth of the last block; it grows linearly from 0.
        scaled: whether output layers start scaled by :math:`1/\\sqrt{2L}`.
    """

    dim: int = 64
    depth: int = 3
    heads: int = 4
    operator: str = "itnet"
    operator_options: dict[str, Any] = field(default_factory=dict)
    mlp_ratio: float = 4.0
    dropout: float = 0.1
    drop_path: float = 0.0
    scaled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(self, "drop_path")

    def build(self, encoder: Encoder, config: EncoderConfig) -> Body:
        return ResidualBody(
            (self.operator_of(block, encoder, config) for block in range(self.depth)),
            self.dim,
            ratio=self.mlp_ratio,
            dropout=self.dropout,
            drop_path=self.drop_paths,
            scaled=self.scaled,
        )

    def operator_of(self, block: int, encoder: Encoder, config: EncoderConfig) -> nn.Module:
        """Return a new operator for one block."""
        return make_operator(
            self.operator,
            self.dim,
            self.heads,
            position_dim=encoder.position_dim,
            ordered=config.causal,
            **of_block(self.operator_options, block),
        )

    @property
    def drop_paths(self) -> list[float]:
        """Rates of stochastic depth, one per block: linear from 0 to ``drop_path``."""
        return rising_rates(self.drop_path, self.depth)


class ResidualBody(Body):
    r"""L pre-norm residual blocks (:class:`fredholm.models.depth.ResidualBlock`), then layer norm.

    Args:
        operators: one per block. An iterator creates the next operator only when the block before
            it exists, so that random numbers are drawn block by block.
        dim: D.
        ratio, dropout, chunk: see :class:`fredholm.models.depth.ResidualBlock`.
        drop_path: rate of stochastic depth, one per block.
        scaled: whether the 2L branches, an operator and a feed-forward network per block, start
            with outputs scaled by :math:`1/\sqrt{2L}`.

    Raises:
        OptionError: another number of rates than of operators.

    Reference: ITNet §3.4, Eqs. 5, 194.

    Example:
        >>> import torch
        >>> from fredholm.operators import create_operator
        >>> body = ResidualBody([create_operator("softmax", 8)], 8, ratio=2.0, drop_path=[0.0])
        >>> body(torch.zeros(1, 4, 8), Domain.line(4))[0].shape
        torch.Size([1, 4, 8])
    """

    def __init__(
        self,
        operators: Iterable[nn.Module],
        dim: int,
        *,
        ratio: float,
        drop_path: list[float],
        dropout: float = 0.0,
        chunk: int | None = None,
        scaled: bool = True,
    ):
        super().__init__()
        shared: Any = {"ratio": ratio, "dropout": dropout, "chunk": chunk}
        blocks: list[nn.Module] = []
        for operator in operators:
            if len(blocks) == len(drop_path):
                raise OptionError(
                    f"drop_path: expected a rate for each operator, got {len(drop_path)} rates and "
                    "more operators; give one per block"
                )
            blocks.append(ResidualBlock(operator, dim, drop_path=drop_path[len(blocks)], **shared))
        if len(blocks) < len(drop_path):
            raise OptionError(
                f"drop_path: expected a rate for each of {len(blocks)} operators, got "
                f"{len(drop_path)} rates; give one per block"
            )
        self.blocks: Any = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(dim)
        if scaled:
            # The sum of 2L independent branches then has the variance of a single unscaled one.
            branches = 2 * len(self.blocks)
            for block in self.blocks:
                block.scale_outputs(branches**-0.5)

    @property
    def operators(self) -> list[nn.Module]:
        return [block.operator for block in self.blocks]

    def suited(self, domain: Domain) -> Domain:
        """Return the domain that the operators integrate over: with a mass of one per point where
        they are defined for that, or a part of a sum is.
        """
        return operator_domain(self.blocks[0].operator, domain)

    def forward(self, u: Tensor, domain: Domain) -> tuple[Tensor, Domain]:
        domain = self.suited(domain)
        for block in self.blocks:
            u = block(u, domain)
        # Pre-norm blocks leave the stream unnormalised.
        return self.norm(u), domain

    def init_state(self, batch: int, domain: Domain) -> tuple[CausalState, ...]:
        domain = self.suited(domain)
        return tuple(block.operator.init_state(batch, domain) for block in self.blocks)

    def advance(
        self,
        u: Tensor,
        states: tuple[CausalState, ...],
        move: str,
    ) -> tuple[Tensor, tuple[CausalState, ...]]:
        # ``move`` names the method of the operators: ``prefill`` of n points, or ``step`` of one.
        after = []
        for block, state in zip(self.blocks, states):
            u, new = block.advance(u, state, move)
            after.append(new)
        return self.norm(u), tuple(after)
