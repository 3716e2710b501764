"""Tokens without padding, each with a mass of one: texts for convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...configuration import check_counts, check_rates
from ...distributed import Shards
from ...domain import Domain
from ...ops.backend import at_least_single
from .encoder import (
    Axis,
    Encoder,
    EncoderConfig,
    check_length,
    check_tokens,
    embedded,
    register_encoder,
)


@register_encoder("tokens")
@dataclass(frozen=True)
class TokenConfig(EncoderConfig):
    """Texts without padding; see :class:`TokenEncoder`.

    Attributes:
        vocabulary, max_length: token numbers, and the length of a training text.
        dim: width of the embedding.
        causal: a token sees itself and earlier tokens.
        embedding_dropout: share of the vocabulary that a training step leaves out.
    """

    data = "text"
    own_width = True
    input_dtype = torch.int64
    ties = True
    of_data = ("vocabulary", "max_length")
    pools = ("mean", "points", "last", "every")

    vocabulary: int = 50
    max_length: int = 1024
    dim: int = 100
    causal: bool = True
    embedding_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(self, "embedding_dropout")
        check_counts(self, "vocabulary", "max_length", "dim")

    def build(
        self,
        dim: int | None,
        *,
        dropout: float = 0.0,
        class_token: bool = False,
    ) -> TokenEncoder:
        return TokenEncoder(
            self.vocabulary,
            self.dim,
            length=self.max_length,
            causal=self.causal,
            embedding_dropout=self.embedding_dropout,
        )

    @property
    def points(self) -> int:
        return self.max_length

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.max_length,)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (Axis(1, "length"),)

    def example(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return torch.randint(0, self.vocabulary, tuple(shape), generator=generator)


class TokenEncoder(Encoder):
    """Tokens as points of a line with a mass of one each, and their embedding as features.

    Every number is a token: there is no padding. Positions are in units of ``length``; those of a
    longer text exceed 1.

    Shape: numbers (B, N) int64 to (B, N, D) and the line of N points.

    Raises:
        ShapeError: numbers that are not (B, N) integers.

    Example:
        >>> TokenEncoder(50, 8, length=100)(torch.zeros(2, 7, dtype=torch.int64))[0].shape
        torch.Size([2, 7, 8])
    """

    position_dim = 1
    axis = 1

    def __init__(
        self,
        vocabulary: int,
        dim: int,
        *,
        length: int,
        causal: bool = True,
        embedding_dropout: float = 0.0,
    ):
        super().__init__()
        self.embedding_dropout = embedding_dropout
        self.embed = nn.Embedding(vocabulary, dim)
        std = dim**-0.5
        nn.init.normal_(self.embed.weight, std=std)
        self.dim = dim
        self.length = length
        self.causal = causal

    def forward(self, numbers: Int[Tensor, "b n"]) -> tuple[Float[Tensor, "b n d"], Domain]:
        check_tokens(numbers)
        vectors = embedded(self.embed, numbers, self.embedding_dropout)
        line = self._line(numbers.shape[1], device=numbers.device)
        return vectors, line

    def part(self, inputs: Int[Tensor, "b n"], mesh: Any) -> tuple[Tensor, Domain]:
        """Encode this rank's tokens of every text: return features (B, n, D), and this rank's part
        of the line of all tokens.

        Each rank sends its number of tokens to every other one, and nothing else.

        Args:
            inputs: token numbers (B, n), n ≥ 1. Ranks hold consecutive stretches of the texts, in
                their order, and may differ in n.
            mesh: the device mesh of the ranks, of one dimension.

        Raises:
            OptionError: an encoder in training with ``embedding_dropout``.
            ShapeError: numbers that are not (B, n) integers.
        """
        check_tokens(inputs)
        # Each rank would draw other tokens of the vocabulary to leave out.
        if self.embedding_dropout and self.embed.training:
            self.refuse_part("which tokens are left out in training is drawn for all of them")
        shards = Shards.of_parts(mesh, inputs.shape[1])
        whole = self._line(shards.total, device=inputs.device)
        domain = whole.shard(mesh, sizes=shards.sizes)
        return self.embed(inputs), domain

    def line(self, length: int, **place: Any) -> Domain:
        check_length(length, self.length, self.causal)
        return self._line(length, device=self.embed.weight.device)

    def _line(self, length: int, device: torch.device) -> Domain:
        return Domain.line(
            length,
            length=self.length,
            causal=self.causal,
            measure="counting",
            device=device,
            # In half precision, positions of long texts would coincide.
            dtype=at_least_single(self.embed.weight.dtype),
        )

    def point(
        self,
        numbers: Int[Tensor, "b ..."],
        position: Tensor,
    ) -> Float[Tensor, "b ... d"]:
        """Return features of one token of each text, which do not depend on the position."""
        return self.embed(numbers)
