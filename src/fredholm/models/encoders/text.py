"""Texts as signals on a line of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...configuration import (
    check_counts,
    check_known,
    check_name,
    check_positive,
    check_rates,
    options_of,
)
from ...distributed import Shards, concatenated
from ...domain import Domain
from ...errors import OptionError, ShapeError
from ...integral import FourierFeatures
from ...ops.backend import at_least_single
from ...validation import cheap_to_read
from .encoder import (
    TOKENS,
    Axis,
    Encoder,
    EncoderConfig,
    behind_token,
    check_length,
    check_tokens,
    embedded,
    first_row,
    register_encoder,
    with_token,
)

POSITIONS = ("fourier", "learned", "none")


@register_encoder("text")
@dataclass(frozen=True)
class TextConfig(EncoderConfig):
    """Texts; see :class:`TextEncoder`.

    Attributes:
        vocabulary: number of token numbers, including padding.
        max_length: the unit of positions, in tokens, and the longest text if positions are
            learned.
        views: texts per sample, each encoded separately: 2 for pairs.
        causal: whether a token sees only itself and the tokens before it.
        positions: ``fourier``, ``learned`` or ``none``.
        frequencies, sigma: of ``fourier`` positions; None for the encoder's defaults.
        token: a class token's mass: ``reader`` (zero: it reads, and no token reads it) or
            ``ordinary`` (that of a token).
        initial: initial standard deviation of the embeddings; None for dim^(-1/2), so that tokens
            outweigh their positions.
        embedding_dropout: share of the vocabulary that a training step leaves out.
    """

    input_dtype = torch.int64
    of_data = ("vocabulary", "max_length", "views")
    pools = ("mean", "points", "cls", "last", "every")

    vocabulary: int = 257
    max_length: int = 256
    views: int = 1
    causal: bool = False
    positions: str = "fourier"
    frequencies: int | None = None
    sigma: float | None = None
    token: str = "reader"
    initial: float | None = None
    embedding_dropout: float = 0.0

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            OptionError: an unknown name, a count below 1, a ``sigma`` or an ``initial`` that is
                not above 0, or an ``embedding_dropout`` outside [0, 1).
        """
        check_known(self, positions=POSITIONS, token=TOKENS)
        super().__post_init__()
        # The next two checks accept None, which stands for the encoder's default.
        check_counts(self, "vocabulary", "max_length", "views", "frequencies")
        check_positive(self, "sigma", "initial")
        check_rates(self, "embedding_dropout")

    @classmethod
    def idle(cls, given: Mapping[str, Any]) -> dict[str, str]:
        positions = given.get("positions", "fourier")
        if positions == "fourier":
            return {}
        return dict.fromkeys(("frequencies", "sigma"), f"positions={positions!r}")

    def build(
        self,
        dim: int | None,
        *,
        dropout: float = 0.0,
        class_token: bool = False,
    ) -> TextEncoder:
        assert dim is not None
        return TextEncoder(
            dim=dim,
            class_token=class_token,
            dropout=dropout,
            **options_of(self),
        )

    @property
    def points(self) -> int:
        return self.max_length

    @property
    def input_shape(self) -> tuple[int, ...]:
        if self.views == 1:
            return (self.max_length,)
        return (self.views, self.max_length)

    @property
    def axes(self) -> tuple[Axis, ...]:
        largest = None
        if self.positions == "learned":
            largest = self.max_length
        dimension = len(self.input_shape)
        return (Axis(dimension, "length", largest=largest),)

    def example(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        numbers = torch.randint(1, self.vocabulary, tuple(shape), generator=generator)
        # The last sample has padding at its end.
        numbers[-1, ..., -1] = 0
        return numbers


class TextEncoder(Encoder):
    r"""Token numbers as points of a line: features :math:`E[t_i] + p(x_i)` at
    :math:`x_i = i / \mathrm{max\_length}`.

    Number 0 is padding: its points are not valid, so nothing reads them. The line's scale is fixed,
    so a batch padded to another length gives the same features.

    Args:
        vocabulary: number of token numbers, including padding.
        dim: width D of the features.
        max_length: the unit of positions, and the longest text if positions are learned.
        positions: ``fourier``: p(x) = P γ(x), a function of the coordinate; ``learned``: a table of
            ``max_length`` rows; ``none``: for operators that read positions themselves.
        class_token: whether a class token precedes the text.
        token: ``reader``: it has measure 0, reads the text and no token reads it; ``ordinary``: the
            measure of a token.
        initial: initial standard deviation of the embeddings, default :math:`D^{-1/2}`; ITNet's
            paper has 0.02.
        embedding_dropout: share of the vocabulary that a training step leaves out.
        views: texts per sample: numbers (B, V, N) make V·B signals, with those of a sample one
            after the other.
        causal: a token sees itself and earlier tokens.
        frequencies, sigma: of γ.
        dropout: after the embedding.

    Shape: numbers (B, N) int64 to features (B, N, D) and a domain of N points (one more with a
    class token, which comes first).

    Raises:
        OptionError: unknown positions, or a class token before a causal text, where it
            would see nothing.
        ShapeError: numbers that are not (B, N) integers, or longer than a learned table.

    Reference: continuous transformer §2.1 (tokens x, features y); ITNet §3.4 for positions as raw
    coordinates.

    Example:
        >>> encoder = TextEncoder(vocabulary=10, dim=8, max_length=6)
        >>> features, domain = encoder(torch.tensor([[4, 2, 0], [3, 9, 9]]))
        >>> features.shape, domain.valid.tolist()
        (torch.Size([2, 3, 8]), [[True, True, False], [True, True, True]])
    """

    axis = 1

    def __init__(
        self,
        *,
        vocabulary: int,
        dim: int,
        max_length: int,
        positions: str = "fourier",
        class_token: bool = False,
        causal: bool = False,
        views: int = 1,
        frequencies: int = 16,
        sigma: float = 3.0,
        dropout: float = 0.0,
        token: str = "reader",
        initial: float | None = None,
        embedding_dropout: float = 0.0,
    ):
        super().__init__()
        check_name("positions", positions, POSITIONS)
        check_name("token", token, TOKENS)
        if causal and class_token:
            raise OptionError(
                "pool: expected no class token beside causal=True, got one, which would read "
                "nothing but itself; choose pool='last' or 'mean'"
            )
        self.causal = causal
        self.views = views
        self.dim = dim
        self.max_length = max_length
        self.position_dim = 1
        self.embed = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.fourier = None
        self.position = None
        self.table = None
        self.token = None
        if positions == "fourier":
            self.fourier = FourierFeatures(1, frequencies, sigma)
            self.position = nn.Linear(2 * frequencies, dim, bias=False)
        elif positions == "learned":
            self.table = nn.Parameter(torch.empty(max_length, dim))
        if class_token:
            self.token = nn.Parameter(torch.empty(dim))
        self.token_kind = token
        self.initial = initial
        self.embedding_dropout = embedding_dropout
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        r"""Draw embeddings normal, of ``initial`` or variance 1 / D, and positions truncated normal
        0.02; padding is zero.
        """
        std = self.initial
        if std is None:
            std = self.embed.embedding_dim**-0.5
        nn.init.normal_(self.embed.weight, std=std)
        for weight in (self.table, self.token):
            if weight is not None:
                nn.init.trunc_normal_(weight, std=0.02)
        if self.position is not None:
            nn.init.trunc_normal_(self.position.weight, std=0.02)
        self.embed.weight[0] = 0.0

    def forward(self, numbers: Int[Tensor, "b *v n"]) -> tuple[Float[Tensor, "c m d"], Domain]:
        numbers = self._rows(numbers)
        domain = self.domain(numbers)
        return self._features(numbers, domain), domain

    def part(self, inputs: Int[Tensor, "b n"], mesh: Any) -> tuple[Tensor, Domain]:
        if self.views > 1:
            self.refuse_part(f"a sample is {self.views} texts")
        # Each rank would draw other tokens of the vocabulary to leave out.
        if self.embedding_dropout and self.embed.training:
            self.refuse_part("which tokens are left out in training is drawn for all of them")
        shards = Shards.of_parts(mesh, inputs.shape[1])
        # Padding is known by its number, so that every rank needs all numbers.
        complete = self.domain(concatenated(inputs, shards, 1))
        # The class token stands in the first part.
        first, *others = shards.sizes
        if self.token is not None:
            first += 1
        domain = complete.shard(mesh, sizes=(first, *others))
        return self._features(inputs, domain), domain

    def _features(self, numbers: Tensor, domain: Domain) -> Tensor:
        features = embedded(self.embed, numbers, self.embedding_dropout)
        if self.table is not None:
            start = first_row(domain, self.token is not None)
            stop = start + numbers.shape[1]
            features = features + self.table[start:stop]
        if self.token is not None:
            tokens = domain.size - numbers.shape[1]
            features = behind_token(features, self.token, tokens)
        features = self.with_positions(features, domain.positions)
        return self.dropout(features)

    def _rows(self, numbers: Tensor) -> Tensor:
        """Return each text of a sample by itself, (V · B, N)."""
        if self.views == 1:
            return numbers
        if numbers.dim() != 3 or numbers.shape[1] != self.views:
            raise ShapeError(
                f"tokens: expected shape (B, {self.views}, N), got {tuple(numbers.shape)}; reshape "
                "them"
            )
        return numbers.flatten(0, 1)

    def line(self, length: int, **place: Any) -> Domain:
        check_length(length, self.max_length, self.causal)
        return self._line(length, self.embed.weight.device)

    def _line(self, length: int, device: torch.device) -> Domain:
        """Return the line of ``length`` tokens, in float32 or better: in bfloat16 most of them
        would share a position.
        """
        dtype = at_least_single(self.embed.weight.dtype)
        return Domain.line(
            length,
            length=self.max_length,
            causal=self.causal,
            device=device,
            dtype=dtype,
        )

    def point(
        self,
        numbers: Int[Tensor, "b ..."],
        position: Float[Tensor, "... 1"],
    ) -> Float[Tensor, "b ... d"]:
        """Return features (B, D) of one token of each text at one position, as :meth:`forward`
        gives them; or (B, n, D) of n tokens (B, n) at as many positions.

        Raises:
            OptionError: learned positions, which are not a function of the position; padding, which
                a state would take for a token (checked in eager code only).
        """
        if self.table is not None:
            raise OptionError(
                "positions: expected 'fourier' to go token by token, got a learned table, which "
                "has no value between its rows; build the model with it"
            )
        # An accelerator's answer is waited for at every token anyway.
        if cheap_to_read(numbers, waited=True) and bool((numbers == 0).any()):
            raise OptionError(
                "numbers: expected tokens of the texts, got 0, which is padding; go through texts "
                "of one length together, and through others one by one"
            )
        features = self.embed(numbers)
        features = self.with_positions(features, position)
        return self.dropout(features)

    def domain(self, numbers: Tensor) -> Domain:
        """Return the line of token numbers (B, N), with padding marked. A class token's point, if
        there is one, comes before it, at position 0.

        Raises:
            ShapeError: numbers that are not integers (B, N), or that exceed a learned table.
        """
        check_tokens(numbers)
        if self.table is not None and numbers.shape[1] > self.max_length:
            raise ShapeError(
                f"tokens: expected at most {self.max_length}, where learned positions end, got "
                f"{numbers.shape[1]}; cut the text"
            )
        # Padding differs between texts, positions (N, 1) do not. They are not copied per text, so
        # that operators can compute their terms of positions once for the batch.
        line = self._line(numbers.shape[1], numbers.device)
        line = line.replace(valid=numbers != 0)
        if self.token is None:
            return line
        first = torch.zeros_like(line.positions[:1])
        start = Domain.points(first)
        return with_token(start, line, self.token_kind)
