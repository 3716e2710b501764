"""Two-stream body for a picture and a text: the alternative to a joint domain.

Importing this file registers the body ``two_streams``; a recipe names it under ``import:``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fredholm import Domain
from fredholm.errors import DomainError, OptionError, ShapeError, suggest
from fredholm.models import Body, ResidualConfig, register_body
from fredholm.models.depth import ResidualBlock

FUSIONS = ("cross", "concatenation")


@register_body("two_streams")
@dataclass(frozen=True)
class TwoStreamsConfig(ResidualConfig):
    """A stack of blocks for the picture and one for its text; see :class:`TwoStreamsBody`.

    Attributes:
        fusion: ``cross``: in every layer each stream reads the other; ``concatenation``: the
            streams are combined only in the read-out.

    Further fields are those of :class:`ResidualConfig`, for each stream: both have ``depth``
    layers.
    """

    encoders = ("multimodal",)
    fixed_axes = ("height", "width")

    fusion: str = "cross"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fusion not in FUSIONS:
            raise OptionError(
                f"fusion: expected one of {', '.join(FUSIONS)}, got {self.fusion!r}"
                f"{suggest(self.fusion, FUSIONS)}"
            )

    def build(self, encoder: Any, config: Any) -> TwoStreamsBody:
        token = encoder.token is not None
        if token and self.fusion == "concatenation":
            raise OptionError(
                "fusion: expected 'cross' beside a class token, got 'concatenation', with which "
                "the token would read the picture only; choose head.pool=mean, or fusion=cross"
            )
        if self.fusion == "cross":
            _check_queries(self, encoder, config)
        # Where the text begins is known from the picture's size alone.
        encoder.register_forward_pre_hook(partial(_check_size, config.sides))
        return TwoStreamsBody(
            partial(self.operator_of, encoder=encoder, config=config),
            self.dim,
            depth=self.depth,
            first=config.patches + token,
            fusion=self.fusion,
            ratio=self.mlp_ratio,
            dropout=self.dropout,
            drop_path=self.drop_paths,
            scaled=self.scaled,
        )


def _check_queries(body: TwoStreamsConfig, encoder: Any, config: Any) -> None:
    """Refuse an operator that cannot answer at other points.

    Raises:
        OptionError: naming it.
    """
    there = Domain.points(torch.zeros(2, encoder.position_dim))
    here = Domain.points(torch.zeros(1, encoder.position_dim))
    u = torch.zeros(1, 2, body.dim)
    query = torch.zeros(1, 1, body.dim)
    # Tried with one of its own, without using up random numbers.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        try:
            body.operator_of(0, encoder, config)(u, there, query=query, query_domain=here)
        except DomainError as error:
            raise OptionError(
                "fusion: expected an operator that answers at other points beside 'cross', got "
                f"{body.operator!r} ({error}); choose fusion=concatenation or another operator"
            ) from error


def _check_size(sides: tuple[int, int], encoder: nn.Module, given: tuple[Any, ...]) -> None:
    """Refuse pictures of another size than the body was built for, before the encoder reads them.

    Raises:
        ShapeError: naming both sizes.
    """
    image = given[0]["image"]
    # Side by side: under torch.compile sides may be symbolic, and tuples of them never equal.
    height, width = sides
    if image.shape[-2] != height or image.shape[-1] != width:
        raise ShapeError(
            f"image: expected {height} x {width} pixels, for which this body was built, got "
            f"{tuple(image.shape)}; build the model with that encoder.image_size, or with a "
            "joint body such as 'residual'"
        )


class CrossBlock(ResidualBlock):
    r"""A block that reads another signal s:
    :math:`v = u + \mathrm{Drop}(T(\mathrm{LN}\,s)(x_u, \mathrm{LN}\,u))`,
    :math:`u' = v + \mathrm{FFN}(\mathrm{LN}\,v)`, the integral over the domain of s at the points
    of u.

    Args:
        operator, dim: see :class:`ResidualBlock`.
        options: its others.

    Raises:
        DomainError: when called, of an operator that answers at its own points only.

    Reference: Vaswani et al. 2017, the decoder's attention to the encoder.

    Example:
        >>> from fredholm import create_operator
        >>> block = CrossBlock(create_operator("softmax", 8, heads=2), 8)
        >>> u, words = torch.zeros(1, 4, 8), torch.zeros(1, 3, 8)
        >>> block(u, Domain.line(4), source=words, source_domain=Domain.line(3)).shape
        torch.Size([1, 4, 8])
    """

    def __init__(self, operator: nn.Module, dim: int, **options: Any):
        super().__init__(operator, dim, **options)
        self.norm_source = nn.LayerNorm(dim)

    def forward(
        self,
        u: Tensor,
        domain: Domain,
        *,
        source: Tensor,
        source_domain: Domain,
    ) -> Tensor:
        branch = self.operator(
            self.norm_source(source), source_domain, query=self.norm1(u), query_domain=domain
        )
        return self._added(u, branch)


class Stream(nn.Module):
    """The layers of one side, picture or text, and its norm and matrix before the read-out.

    Args:
        operator: a new operator for a block's number.
        dim: D.
        depth: L.
        cross: whether each layer also reads the other side.
        ratio, dropout: see :class:`ResidualBody`.
        drop_path: one rate per layer.

    Attributes:
        own: blocks that read this side.
        other: blocks that read the other side, as many, or none without ``cross``.
    """

    def __init__(
        self,
        operator: Callable[[int], nn.Module],
        dim: int,
        *,
        depth: int,
        cross: bool,
        ratio: float,
        dropout: float,
        drop_path: list[float],
    ):
        super().__init__()
        self.own: Any = nn.ModuleList()
        self.other: Any = nn.ModuleList()
        for block, rate in zip(range(depth), drop_path):
            shared: Any = {"dropout": dropout, "drop_path": rate}
            # A layer has one feed-forward network, in its last block; ratio 0 leaves it out.
            own_ratio = ratio
            if cross:
                own_ratio = 0.0
            self.own.append(ResidualBlock(operator(block), dim, ratio=own_ratio, **shared))
            if cross:
                self.other.append(CrossBlock(operator(block), dim, ratio=ratio, **shared))
        self.norm = nn.LayerNorm(dim)
        # Streams that meet in the read-out alone have a matrix each. The mean over all points is
        # then a linear map of the two means side by side, instead of their average.
        self.last: nn.Module = nn.Identity()
        if not cross:
            self.last = nn.Linear(dim, dim)

    def read_out(self, u: Tensor) -> Tensor:
        return self.last(self.norm(u))


class TwoStreamsBody(Body):
    r"""Separate blocks for the points of a picture and for those of a text.

    ``cross``: a layer of the picture's stream u, with the text's w, is

    .. math:: v = u + T_1(\mathrm{LN}\,u), \quad
        v' = v + T_2(\mathrm{LN}\,w')(x_u, \mathrm{LN}\,v), \quad
        u' = v' + \mathrm{FFN}(\mathrm{LN}\,v'),

    where :math:`w'` is the result of the text's operator on w; the text's layer is the same with
    the sides exchanged. ``concatenation``: no T_2. After the last block each stream has its own
    matrix, so that a layer that reads the mean of both, under a measure that gives each side a
    mass, is one that reads the two means side by side.

    Each side's measure is renormalised over its points. A class token belongs to the picture.

    Args:
        operator: a new operator for a block's number; called for every block of the picture, then
            of the text, a layer's own operator before the one that reads the other.
        dim: D.
        depth: layers of each stream, L.
        first: points of the picture, which come first.
        fusion: ``cross`` or ``concatenation``.
        ratio, dropout, drop_path: of the blocks, see :class:`ResidualBody`.
        scaled: whether what a layer adds starts scaled by :math:`1/\sqrt{kL}`, k the branches of
            a layer.

    Shape: (B, N, D) on a domain of N points to (B, N, D) on the same.

    Cost: of each operator at P picture points, T words and, with ``cross``, at P queries over T
    points and T over P: the pairs of one joint operator, in four pieces with separate weights.

    Raises:
        ShapeError: of its model, pictures of another size than it was built for.

    Reference: ITNet §4 compares a joint domain with "two-stream variants with cross-attention or
    concatenation fusion" and says no more of them; a layer is that of Dou et al., An empirical
    study of training end-to-end vision-and-language transformers, 2022 (co-attention).

    Example:
        >>> from fredholm import create_operator
        >>> body = TwoStreamsBody(lambda block: create_operator("softmax", 8), 8, depth=1, first=4)
        >>> body(torch.zeros(1, 7, 8), Domain.points(torch.rand(7, 2)))[0].shape
        torch.Size([1, 7, 8])
    """

    def __init__(
        self,
        operator: Callable[[int], nn.Module],
        dim: int,
        *,
        depth: int,
        first: int,
        fusion: str = "cross",
        ratio: float = 4.0,
        dropout: float = 0.0,
        drop_path: list[float] | None = None,
        scaled: bool = True,
    ):
        super().__init__()
        self.first = first
        self.cross = fusion == "cross"
        given: Any = {
            "depth": depth,
            "cross": self.cross,
            "ratio": ratio,
            "dropout": dropout,
            "drop_path": drop_path or [0.0] * depth,
        }
        self.picture = Stream(operator, dim, **given)
        self.text = Stream(operator, dim, **given)
        if scaled:
            # Branches per layer: the own operator, the other's with ``cross``, the network.
            branches = 2 * depth
            if self.cross:
                branches = 3 * depth
            for stream in (self.picture, self.text):
                for block in (*stream.own, *stream.other):
                    block.scale_outputs(branches**-0.5)

    @property
    def operators(self) -> list[nn.Module]:
        """Own operators of each layer, the picture's before the text's."""
        pairs = zip(self.picture.own, self.text.own)
        return [block.operator for pair in pairs for block in pair]

    @property
    def layer_names(self) -> list[str]:
        layers = range(1, len(self.picture.own) + 1)
        return [f"{side} {layer}" for layer in layers for side in ("picture", "text")]

    def forward(self, u: Tensor, domain: Domain) -> tuple[Tensor, Domain]:
        p, t = u[:, : self.first], u[:, self.first :]
        at_p, at_t = domain[: self.first], domain[self.first :]
        for layer, (of_p, of_t) in enumerate(zip(self.picture.own, self.text.own)):
            p = of_p(p, at_p)
            t = of_t(t, at_t)
            if self.cross:
                # Each side reads the other as it was before this exchange.
                read_p = self.picture.other[layer](p, at_p, source=t, source_domain=at_t)
                read_t = self.text.other[layer](t, at_t, source=p, source_domain=at_p)
                p, t = read_p, read_t
        return torch.cat([self.picture.read_out(p), self.text.read_out(t)], 1), domain
