"""Continuous body of a convolutional vision transformer: one evolution per stage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ...configuration import check_counts
from ...domain import Domain
from ...errors import OptionError
from ...families.continuous.splitting import (
    ConvolutionalAttention,
    ConvolutionalEmbedding,
    ConvolutionTerm,
    Evolution,
    FeedForwardTerm,
    Observer,
    OperatorTerm,
    Term,
)
from ..encoders import Encoder, EncoderConfig
from ..operators import make_operator
from .body import register_body
from .continuous import ContinuousBody, evolution_domain, make_evolution
from .continuous_config import EvolutionConfig


@register_body("stages")
@dataclass(frozen=True)
class StagesConfig(EvolutionConfig):
    """Stages of a convolutional vision transformer, see :class:`EvolutionConfig` for the fields
    that are not here.

    Attributes:
        stages: (dim, depth, heads, stride) of each: a strided convolution makes fewer tokens, then
            the stage's evolution runs. ``steps`` and ``horizon`` are those of the last stage; the
            others take as many in proportion to their knots.
        kernel: side of the stages' embeddings and of the convolutions in their attention.
        periodic: whether those in the attention go on at the other end of the grid.
    """

    any_width = True
    encoders = ("pixels",)

    stages: Any = ((64, 4, 4, 4),)
    kernel: int = 3
    periodic: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "stages",
            tuple(tuple(stage) for stage in self.stages),
        )
        super().__post_init__()
        check_counts(self, "kernel")
        stages: Any = self.stages or ((),)
        for stage in stages:
            # A bool is an int as well, and not a size.
            sizes = all(type(size) is int and size > 0 for size in stage)
            good = len(stage) == 4 and sizes
            if not good or stage[0] % stage[2]:
                raise OptionError(
                    "stages: expected (dim, depth, heads, stride) of each, with heads that divide "
                    f"dim, got {stage}; correct it"
                )

    @property
    def width(self) -> int:
        return self.stages[-1][0]

    @property
    def reduction(self) -> int:
        return math.prod(stride for *_, stride in self.stages)

    def build(self, encoder: Encoder, config: EncoderConfig) -> StagesBody:
        evolutions = [self._evolution(stage, encoder.position_dim) for stage in self.stages]
        first: Any = encoder.dim
        widths = [first, *(stage[0] for stage in self.stages)]
        # A kernel of 2 · stride - 1 cells: neighbouring tokens overlap.
        embeddings: list[nn.Module] = [
            ConvolutionalEmbedding(before, after, 2 * stride - 1, stride=stride)
            for before, (after, _, _, stride) in zip(widths, self.stages)
        ]
        return StagesBody(evolutions, embeddings, self.train_steps)

    def _evolution(self, stage: tuple[int, ...], position_dim: int) -> Evolution:
        dim, depth, heads, _ = stage
        share = depth / self.stages[-1][1]

        def terms(drop_path: float) -> list[Term]:
            return self._terms(dim, heads, position_dim, drop_path)

        # Steps and horizon are those of the last stage; the others have as many per knot.
        steps, horizon = self.steps, self.horizon
        if steps is not None:
            steps = max(1, round(steps * share))
        if horizon is not None:
            horizon = horizon * share
        return make_evolution(
            self,
            terms,
            dim=dim,
            depth=depth,
            steps=steps,
            horizon=horizon,
        )

    def _terms(
        self,
        dim: int,
        heads: int,
        position_dim: int,
        drop_path: float,
    ) -> list[Term]:
        """Return the terms of one knot: softmax attention with convolved queries, keys and values,
        or any other operator beside a convolution (the paper's IV); and the network.
        """

        def before() -> nn.Module | None:
            if self.norm == "pre":
                return nn.LayerNorm(dim)
            return None

        branches: Any = {"dropout": self.dropout, "drop_path": drop_path}
        hidden = round(self.mlp_ratio * dim)
        network = FeedForwardTerm(
            dim,
            hidden,
            activation=self.activation,
            norm=before(),
            **branches,
        )
        if self.operator == "softmax":
            operator: nn.Module = ConvolutionalAttention(
                dim,
                heads,
                kernel_size=self.kernel,
                batch_norm=False,
                periodic=self.periodic,
            )
            return [OperatorTerm(operator, dim, norm=before(), **branches), network]
        operator = make_operator(
            self.operator,
            dim,
            heads,
            position_dim=position_dim,
            **self.operator_options,
        )
        local = ConvolutionTerm(
            dim,
            self.kernel,
            depthwise=True,
            norm=before(),
        )
        return [local, OperatorTerm(operator, dim, norm=before(), **branches), network]


class StagesBody(ContinuousBody):
    """Evolutions in a row, each after an embedding that reduces the number of tokens.

    Example:
        >>> import torch
        >>> from fredholm.models import create_model
        >>> create_model("continuous_cvt_micro")(torch.zeros(1, 1, 28, 28)).shape
        torch.Size([1, 10])
    """

    def __init__(
        self,
        evolutions: list[Evolution],
        embeddings: list[nn.Module],
        train_steps: tuple[int, int] | None = None,
    ):
        super().__init__(evolutions, train_steps)
        self.embeddings: Any = nn.ModuleList(embeddings)

    def start(
        self,
        u: Tensor,
        domain: Domain,
        steps: int | None = None,
        observer: Observer | None = None,
    ) -> tuple[Tensor, Domain]:
        for number, embedding in enumerate(self.embeddings):
            if number:
                before = self.evolutions[number - 1]
                u = before(
                    u,
                    domain,
                    steps=self._steps(before, steps),
                    observer=observer,
                )
            u, domain = embedding(u, domain)
            domain = evolution_domain(self.evolutions[number], domain)
        return u, domain

    def _steps(self, evolution: Evolution, steps: int | None) -> int | None:
        """Return the steps of one stage: as many per unit of time as ``steps`` are in the last."""
        if steps is None:
            return None
        return max(1, round(steps * evolution.horizon / self.evolution.horizon))
