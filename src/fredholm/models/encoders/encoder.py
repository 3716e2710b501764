"""What every encoder is: raw data to features on a domain; and what its configuration says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from ...configuration import Configuration
from ...distributed import Shards
from ...domain import Domain
from ...errors import OptionError, ShapeError, suggest
from ...registry import Registered, Registry
from ...validation import cheap_to_read
from .inputs import Inputs

TOKENS = ("reader", "ordinary")  # a class token's mass: none, or that of a point


def with_token(token: Domain, domain: Domain, kind: str) -> Domain:
    """Return a class token's point before those of a domain: a ``reader`` has no mass, so that it
    reads the others and none reads it; an ``ordinary`` one has that of any other point.
    """
    return Domain.join(token, domain, balance=(0.0, 1.0) if kind == "reader" else None)


def check_options(known: Mapping[str, Sequence[str]], **options: str) -> None:
    """Raise OptionError for an option that is not among its known values."""
    for name, value in options.items():
        if value not in known[name]:
            hint = suggest(str(value), known[name])
            raise OptionError(f"{name}: expected a known name, got {value!r}{hint}")


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
    kept = torch.rand(embed.num_embeddings, device=numbers.device) >= dropout
    return vectors * (kept[numbers].to(vectors.dtype) / (1 - dropout))[..., None]


def check_numbers(numbers: Tensor, embed: nn.Embedding) -> None:
    """ShapeError for token numbers that a table of vectors does not have; looked for where
    :func:`.cheap_to_read`.
    """
    if not numbers.numel() or not cheap_to_read(numbers):
        return
    low, high = (int(x) for x in numbers.aminmax())
    if low < 0 or high >= embed.num_embeddings:
        raise ShapeError(
            f"tokens: received {low if low < 0 else high}; the model knows 0 to "
            f"{embed.num_embeddings - 1}: give all splits one vocabulary"
        )


class Encoder(nn.Module):
    """Raw data to (features (B, N, D), their domain).

    Attributes:
        position_dim: p of the domain's positions.
        dim: D, where the encoder decides it; else it is the width that it was built with.
        axis: the dimension of the inputs along which points run, where samples may be cut for
            :meth:`part`; None where it reads whole samples.
        grain: entries of that dimension that must stay together, such as the rows of a patch.

    Those of texts go point by point as well: :meth:`line` and :meth:`point`.
    """

    position_dim: int
    axis: ClassVar[int | None] = None
    grain = 1

    def part(self, inputs: Any, mesh: Any) -> tuple[Tensor, Domain]:
        """What the encoder makes of one rank's stretch of every sample: features (B, n, D) of its
        points, and its part of the domain of the whole, as :meth:`fredholm.Domain.shard` gives it.
        All ranks of the mesh call it together, each with its own stretch in their order.

        No more than positions and padding of other ranks' points come here, O(N) numbers; nothing
        is sent of their features.

        Raises:
            OptionError: an encoder that needs all points of a sample in one process.
        """
        self.refuse_part("it reads a sample as a whole")

    def refuse_part(self, why: str) -> NoReturn:
        """OptionError that says why samples cannot be cut for this encoder."""
        raise OptionError(
            f"parallel.domain: {type(self).__name__} takes no samples whose points are in several "
            f"processes: {why}; needs parallel.domain=1, or another model"
        )

    def line(self, length: int, **place: Any) -> Domain:
        """The causal domain of a text of up to ``length`` tokens, before any of them is known.

        Raises:
            OptionError: an encoder without order.
        """
        raise OptionError(
            f"init_state: {type(self).__name__} has no order to go along; needs an encoder of "
            "texts with causal=True"
        )

    def point(self, inputs: Tensor, position: Tensor) -> Tensor:
        """Features (B, D) of one point of each sample at one position of :meth:`line`, or (B, n, D)
        of a stretch of them.
        """
        raise OptionError(f"step: {type(self).__name__} does not go point by point")


def part_of_grid(rows: int, others: tuple[int, ...], mesh: Any, **place: Any) -> Domain:
    """This rank's part of a grid of which it has so many rows, of the extents ``others`` each; the
    ranks' rows follow one another.
    """
    row = math.prod(others)
    shards = Shards.of_parts(mesh, rows * row)
    whole = Domain.grid(shards.total // row, *others, **place)
    return whole.shard(mesh, sizes=shards.sizes)


class _OwnKind:
    """The kind of the class that is asked."""

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
    """What an encoder is built from; its kind is the ``kind`` of a recipe's ``model.encoder``.

    Attributes:
        data: the kind of data that it reads, by default the one of its own name; several encoders
            may read one kind.
        of_data: fields that the data set says, which no recipe sets.
        own: fields that mean something else in another kind, which does not take them over.
        pools: the read-outs that its domain allows, the usual one first.
        input_dtype: of one input's tensor.
        ties: whether a head can answer by its matrix of token vectors.
        causal: whether a point sees those up to its own only.
        own_width: whether its features have a width of their own, that of the data or of an
            embedding; else the body's.
        views: inputs of one sample that are encoded each by itself and read out together.
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

    def build(self, dim: int | None, *, dropout: float = 0.0, class_token: bool = False) -> Encoder:
        """The encoder with features of width ``dim`` (None: those of the data), and a class token
        where the read-out needs one.
        """
        raise NotImplementedError

    @property
    def default_pool(self) -> str:
        """The read-out where none is named."""
        return self.pools[0]

    @property
    def points(self) -> int:
        """Points of one training input."""
        raise OptionError(f"points: an encoder of {self.kind} has no fixed number of points")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input that the model is built for.

        Raises:
            OptionError: an input of several tensors, or a configuration that does not say it.
        """
        if self.one_tensor:
            raise OptionError(
                f"input_shape: expected {type(self).__name__} to say the shape of an input, got "
                "nothing; give it the property input_shape"
            )
        raise OptionError(
            f"input_shape: a {self.kind} input is several tensors, see fredholm.encoders.Inputs"
        )

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The dimensions of a batch of inputs, beside the batch itself, whose sizes are free."""
        return ()

    def example(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return a made-up batch of inputs of this shape, with padding at the end of the last
        sample where the encoder knows padding; programs are compared with their models on it.
        """
        return torch.randn(*shape, generator=generator, dtype=self.input_dtype)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The tensors of a batch of inputs, as a program takes them in turn.

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
        self, shapes: Mapping[str, Sequence[int]], generator: torch.Generator
    ) -> Tensor | Inputs:
        """Return a made-up batch of inputs whose :attr:`parts` have these shapes, as
        :meth:`example` does of one tensor.
        """
        return self.example(shapes["inputs"], generator)


ENCODERS: Registry[type[EncoderConfig]] = Registry(
    "encoder", home="fredholm.models.encoders", attribute="kind"
)


def register_encoder(kind: str) -> Callable[[Registered], Registered]:
    """Make an encoder's configuration known as ``kind``, for ``model.encoder.kind`` of recipes and
    ``create_model(..., encoder={"kind": kind})``.

    Raises:
        OptionError: a kind that is taken.
    """
    return ENCODERS.register(kind)
