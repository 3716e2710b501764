"""Base classes of encoders, which map raw data to features on a domain, and of their
configurations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...configuration import Configuration
from ...distributed import Shards
from ...domain import Domain
from ...errors import OptionError, ShapeError
from ...integral import FourierFeatures
from ...registry import Registered, Registry
from ...validation import cheap_to_read
from .inputs import Inputs

# Kinds of class tokens: one without mass, and one with the mass of a point.
TOKENS = ("reader", "ordinary")


def with_token(token: Domain, domain: Domain, kind: str) -> Domain:
    """Return a class token's point before those of a domain: a ``reader`` has no mass, so that it
    reads the others and none reads it; an ``ordinary`` one has that of any other point.
    """
    if kind == "reader":
        return Domain.join(token, domain, balance=(0.0, 1.0))
    return Domain.join(token, domain)


@torch.no_grad()
def draw_words(words: nn.Embedding) -> None:
    """Draw embeddings with variance 1 / D. Word 0 is padding, and zero."""
    std = words.embedding_dim**-0.5
    nn.init.normal_(words.weight, std=std)
    words.weight[0] = 0.0


def behind_token(
    features: Float[Tensor, "b n d"],
    token: Float[Tensor, " d"],
    tokens: int = 1,
) -> Float[Tensor, "b m d"]:
    """Return features behind the class token, where ``tokens`` is one, or as they are, where it is
    zero: another rank has the token.
    """
    token = token.to(features.dtype)
    by_sample = token.expand(features.shape[0], tokens, -1)
    return torch.cat([by_sample, features], 1)


def first_row(domain: Domain, has_token: bool) -> int:
    """Return the row of a table of positions that belongs to the first point here beside a class
    token, which has no row and stands before all others, in the first of several parts.
    """
    if domain.shards is None or domain.shards.start == 0:
        return 0
    return domain.shards.start - has_token


def embedded(embed: nn.Embedding, numbers: Tensor, dropout: float) -> Tensor:
    """Return vectors of token numbers. In training a share ``dropout`` of the vocabulary is left
    out, wherever it stands, and the others are divided by 1 - dropout.

    Reference: Gal and Ghahramani, A theoretically grounded application of dropout in recurrent
    neural networks, 2016.

    Example:
        >>> table = nn.Embedding.from_pretrained(torch.ones(1000, 1))
        >>> vectors = embedded(table, torch.arange(1000).repeat(2, 1), 0.5)[..., 0]
        >>> torch.equal(vectors[0], vectors[1]), vectors.unique().tolist()
        (True, [0.0, 2.0])
    """
    check_numbers(numbers, embed)
    vectors = embed(numbers)
    if not (dropout and embed.training):
        return vectors

    # A token is left out wherever it occurs.
    draws = torch.rand(embed.num_embeddings, device=numbers.device)
    kept = draws >= dropout
    factor = kept[numbers].to(vectors.dtype) / (1 - dropout)
    return vectors * factor[..., None]


def check_tokens(numbers: Tensor) -> None:
    """Refuse tensors that are not rows of token numbers.

    Raises:
        ShapeError: another number of dimensions or dtype, or no token.
    """
    if numbers.dim() != 2 or numbers.is_floating_point() or numbers.shape[1] < 1:
        raise ShapeError(
            f"tokens: expected integers (B, N), got {tuple(numbers.shape)} of {numbers.dtype}; "
            "convert them"
        )


def check_length(length: int, most: int, causal: bool) -> None:
    """Refuse texts that a model cannot go through token by token.

    Raises:
        OptionError: a model without order, or more tokens than it was built for.
    """
    if not causal:
        raise OptionError(
            "init_state: expected encoder.causal=True, got False; build the model with it"
        )
    if length > most:
        raise OptionError(
            f"length: expected at most {most} tokens, for which the model was built, got {length}; "
            "shorten the text"
        )


def check_numbers(numbers: Tensor, embed: nn.Embedding) -> None:
    """Refuse token numbers without a row in a table of vectors, where reading them is cheap.

    Raises:
        ShapeError: naming the first number that is too small or too large.
    """
    if not numbers.numel() or not cheap_to_read(numbers):
        return
    for number in map(int, numbers.aminmax()):
        if not 0 <= number < embed.num_embeddings:
            raise ShapeError(
                f"tokens: expected 0 to {embed.num_embeddings - 1}, got {number}; give all splits "
                "one vocabulary"
            )


class Encoder(nn.Module):
    """A map from raw data to features (B, N, D) and their domain.

    Encoders of texts also work point by point: :meth:`line` and :meth:`point`.

    Attributes:
        position_dim: dimension p of the positions.
        dim: D, if the encoder determines it; else it is the width that it was built with.
        axis: dimension of the inputs along which points run, and samples may be cut for
            :meth:`part`; None if it reads complete samples only.
        grain: entries of that dimension that must stay together, such as the rows of a patch.
    """

    position_dim: int
    fourier: FourierFeatures | None
    position: nn.Linear | None
    axis: ClassVar[int | None] = None
    grain = 1

    def part(self, inputs: Any, mesh: Any) -> tuple[Tensor, Domain]:
        """Encode one rank's part of every sample: return features (B, n, D) of its points, and its
        part of the sharded domain (:meth:`fredholm.Domain.shard`).

        All ranks of the mesh call it together, each with its part, in the order of the ranks. They
        exchange only positions and padding, O(N) numbers, and no features.

        Raises:
            OptionError: an encoder that needs all points of a sample in one process.
        """
        self.refuse_part("it reads a sample as a whole")

    def with_positions(self, features: Tensor, positions: Tensor) -> Tensor:
        """Return features plus a linear map of Fourier features γ of their positions, where the
        encoder has these.
        """
        if self.fourier is None or self.position is None:
            return features
        # Positions may be in float32 beside weights in half precision.
        gamma = self.fourier(positions)
        gamma = gamma.to(self.position.weight.dtype)
        return features + self.position(gamma)

    def refuse_part(self, why: str) -> NoReturn:
        """Raise an OptionError with the reason why samples cannot be divided for this encoder."""
        raise OptionError(
            "parallel.domain: expected an encoder of samples whose points are in several "
            f"processes, got {type(self).__name__}: {why}; set parallel.domain=1, or choose "
            "another model"
        )

    def line(self, length: int, **place: Any) -> Domain:
        """Return the causal domain of a text of up to ``length`` tokens, before any is known.

        Raises:
            OptionError: an encoder without order.
        """
        raise OptionError(
            "init_state: expected an encoder of texts with causal=True, got "
            f"{type(self).__name__}, which has no order; choose another model"
        )

    def point(self, inputs: Tensor, position: Tensor) -> Tensor:
        """Return features (B, D) of one point of each sample at one position of :meth:`line`, or
        (B, n, D) of n points.
        """
        raise OptionError(
            f"step: expected an encoder that goes point by point, got {type(self).__name__}; "
            "choose another model"
        )


def part_of_grid(
    rows: int,
    others: tuple[int, ...],
    mesh: Any,
    **place: Any,
) -> Domain:
    """Return this rank's part of a grid, whose rows are divided among the ranks in their order.

    Args:
        rows: of this rank.
        others: extents of the further dimensions.
        mesh: of the ranks.
        place: device and dtype.
    """
    row = math.prod(others)
    shards = Shards.of_parts(mesh, rows * row)
    whole = Domain.grid(shards.total // row, *others, **place)
    return whole.shard(mesh, sizes=shards.sizes)


class _OwnKind:
    """A class attribute equal to the kind of the class it is read from."""

    def __get__(self, instance: Any, owner: type[Configuration]) -> str:
        return owner.kind


class Axis(NamedTuple):
    """A dimension of a batch of inputs whose size may differ from that of training.

    Attributes:
        dimension: its number; the batch is 0.
        name: of its size, such as ``length``.
        multiple: sizes are multiples of this number, such as the side of a patch.
        largest: the largest size, or None.
        smallest: the smallest size that a program can be traced for.
    """

    dimension: int
    name: str
    multiple: int = 1
    largest: int | None = None
    smallest: int = 1


class Part(NamedTuple):
    """One tensor of a batch of inputs.

    Attributes:
        name: its name among :class:`fredholm.encoders.Inputs`; ``inputs`` of an encoder that reads
            one tensor.
        shape: of one sample, at the sizes of training.
        axes: its dimensions whose sizes are free. Axes of one name have one size in all parts.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[Axis, ...] = ()


@dataclass(frozen=True)
class EncoderConfig(Configuration):
    """Base of configurations of encoders; its kind is the ``kind`` of a recipe's
    ``model.encoder``.

    Attributes:
        data: kind of data that it reads, by default the one with its own name. Several encoders may
            read one kind.
        of_data: fields that the data set determines and a recipe cannot set.
        own: fields with a different meaning in another kind, which does not adopt them.
        pools: read-outs that its domain allows, the default first.
        input_dtype: dtype of an input's tensor.
        ties: whether a head can use its matrix of token vectors.
        causal: whether a point reads only itself and earlier points.
        own_width: whether the data or an embedding determines the width of its features; otherwise
            the body does.
        views: inputs of one sample that are encoded separately and read out together.
        one_tensor: whether it reads one tensor; else :class:`fredholm.encoders.Inputs`.
    """

    data: ClassVar[Any] = _OwnKind()
    of_data: ClassVar[tuple[str, ...]] = ()
    own: ClassVar[tuple[str, ...]] = ()
    pools: ClassVar[tuple[str, ...]] = ("mean", "points", "every")
    own_width: ClassVar[bool] = False
    input_dtype: ClassVar[torch.dtype] = torch.float32
    ties: ClassVar[bool] = False
    one_tensor: ClassVar[bool] = True
    causal = False
    views = 1

    def build(
        self,
        dim: int | None,
        *,
        dropout: float = 0.0,
        class_token: bool = False,
    ) -> Encoder:
        """Return the encoder with features of width ``dim`` (None: that of the data), with a class
        token if the read-out needs one.
        """
        raise NotImplementedError

    @property
    def default_pool(self) -> str:
        """The read-out if none is named: the last point of a causal sequence, which alone reads
        all others, else the first of ``pools``.
        """
        if self.causal and "last" in self.pools:
            return "last"
        return self.pools[0]

    @property
    def points(self) -> int:
        """Points of one training input."""
        raise OptionError(
            f"points: expected an encoder with a fixed number of points, got {self.kind!r}; count "
            "those of a sample"
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input that the model is built for.

        Raises:
            OptionError: an input of several tensors, or a configuration that does not define a
                shape.
        """
        if self.one_tensor:
            raise OptionError(
                f"input_shape: expected {type(self).__name__} to say the shape of an input, got "
                "nothing; give it the property input_shape"
            )
        raise OptionError(
            f"input_shape: expected an input of one tensor, got the several of {self.kind!r}; see "
            "fredholm.encoders.Inputs"
        )

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Dimensions of a batch of inputs whose sizes may vary, except for the batch itself."""
        return ()

    def example(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return a made-up batch of inputs of this shape, with padding at the end of the last
        sample where the encoder knows padding; programs are compared with their models on it.
        """
        return torch.randn(*shape, generator=generator, dtype=self.input_dtype)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The tensors of a batch of inputs, in the order in which a program takes them.

        Raises:
            OptionError: an encoder of several tensors that does not list them.
        """
        if not self.one_tensor:
            raise OptionError(
                f"export: expected an encoder that lists its tensors, got one of {self.kind}; give "
                f"{type(self).__name__} the property parts and the method batch"
            )
        return (Part("inputs", self.input_shape, self.axes),)

    def batch(
        self,
        shapes: Mapping[str, Sequence[int]],
        generator: torch.Generator,
    ) -> Tensor | Inputs:
        """Return a made-up batch of inputs whose :attr:`parts` have these shapes, as
        :meth:`example` does of one tensor.
        """
        return self.example(shapes["inputs"], generator)


ENCODERS: Registry[type[EncoderConfig]] = Registry(
    "encoder",
    home="fredholm.models.encoders",
    attribute="kind",
)


def register_encoder(kind: str) -> Callable[[Registered], Registered]:
    """Register an encoder's configuration as ``kind``, for ``model.encoder.kind`` of recipes and
    ``create_model(..., encoder={"kind": kind})``.

    Raises:
        OptionError: a kind that is already registered.
    """
    return ENCODERS.register(kind)
