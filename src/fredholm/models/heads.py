"""Heads: map features on a domain to an answer. First the read-out, which pools the features, then
the layers after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ..configuration import Configuration, check_counts, check_known
from ..distributed import Shards, largest, summed
from ..domain import Domain
from ..errors import OptionError
from ..ops.backend import at_least_single, cast, unrounded
from ..registry import Registered, Registry
from .encoders import Encoder

# --- the read-out ---------------------------------------------------------------------------------


POOLS = ("mean", "points", "cls", "first", "last", "every")
MEANS = POOLS[:2]
"""Pools that take a mean over points: by mass, or each point alike."""


def read_out(
    features: Float[Tensor, "b n d"],
    domain: Domain,
    pool: str,
) -> Float[Tensor, "b ... d"]:
    r"""Return the features from which the head computes an answer: (B, D), or (B, N, D) for every
    point.

    Args:
        features: u.
        domain: their domain.
        pool: ``mean``: :math:`\sum_i m_i u_i / \sum_i m_i`, against the measure m, over the points
            that are not padding; ``points``: the same with equal masses; ``cls`` and ``first``: the
            first point, which is a class token or the node in question; ``last``: the last
            point that is not padding; ``every``: all of them.

    For a sample without points the result is zero. On a sharded domain every rank gets the result
    for the full domain, from one sum over the ranks of at most D + 1 numbers per sample; ``every``
    is local.

    Raises:
        OptionError: an unknown pool.

    Example:
        >>> u = torch.tensor([[[1.0], [3.0], [9.0]]])
        >>> domain = Domain.line(3).replace(valid=torch.tensor([[True, True, False]]))
        >>> [read_out(u, domain, pool).flatten().tolist() for pool in ("mean", "last")]
        [[2.0], [3.0]]
    """
    if pool not in POOLS:
        raise OptionError(f"pool: expected one of {', '.join(POOLS)}, got {pool!r}")
    if pool == "every":
        return features
    if pool in MEANS:
        mass = domain.measure
        if pool != "mean":
            mass = torch.ones_like(mass)
        return masked_mean(features, mass, domain.valid, domain.shards)

    if domain.shards is not None:
        return _point_of_shards(features, domain.valid, pool, domain.shards)
    if pool == "last":
        return _last(features, domain.valid)
    # A class token, or the node in question, is the first point.
    return features[:, 0]


def masked_mean(
    features: Tensor,
    mass: Tensor,
    valid: Tensor | None,
    shards: Shards | None = None,
) -> Tensor:
    """Return the mean over points by their masses (N,) or (B, N), padding left out, in float32 or
    better. For points in ``shards`` it is the mean over all ranks', the same on each.
    """
    dtype = torch.promote_types(features.dtype, torch.float32)
    if mass.dim() == 1:
        mass = mass[None]
    mass = mass.to(dtype)[..., None]
    values = features.to(dtype)
    if valid is not None:
        real = valid[..., None]
        mass = torch.where(real, mass, 0.0)
        values = torch.where(real, values, 0.0)

    total = mass.sum(1)
    weighted = (mass * values).sum(1)
    if shards is not None:
        # One message for both.
        both = torch.cat([weighted, total.expand(len(weighted), -1)], -1)
        weighted, total = summed(both, shards).split([weighted.shape[-1], 1], -1)
    # A sample without a point has no mass, and gives zeros.
    smallest = torch.finfo(dtype).tiny
    return (weighted / total.clamp(min=smallest)).to(features.dtype)


def _point_of_shards(features: Tensor, valid: Tensor | None, pool: str, shards: Shards) -> Tensor:
    """Return the features of the first or last point over all ranks, on each rank alike."""
    batch = features.shape[0]
    place = torch.arange(shards.start, shards.start + shards.size, device=features.device)
    place = place.expand(batch, -1)
    if pool == "last":
        real = place
        if valid is not None:
            real = torch.where(valid, place, -1)
        # A rank without points has no last one.
        last = place.new_full((batch,), -1)
        if shards.size:
            last = real.amax(1)
        chosen = largest(last, shards)
    else:
        chosen = place.new_zeros(batch)

    # One rank has the point, and the others add zeros.
    mine = (place == chosen[:, None])[..., None]
    return summed(torch.where(mine, features, 0.0).sum(1), shards)


def _last(features: Tensor, valid: Tensor | None) -> Tensor:
    """Return the features of the last real point, zeros for a sample without any."""
    if valid is None:
        return features[:, -1]
    points = torch.arange(valid.shape[1], device=valid.device)
    samples = torch.arange(features.shape[0], device=valid.device)
    last = torch.where(valid, points, -1).amax(1)
    chosen = features[samples, last.clamp(min=0)]
    return torch.where(last[:, None] >= 0, chosen, 0.0)


# --- heads ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadConfig(Configuration):
    """Base of configurations of heads; its kind is the ``kind`` of a recipe's ``model.head``.

    Attributes:
        outputs: numbers per answer: classes, or 1 for a regression.
        pool: see :func:`read_out`; None: the encoder's default.
        offset: numbers to add to an answer, one per output, such as the mean of a field that is
            far from zero; empty: nothing.
    """

    outputs: int = 10
    pool: str | None = None
    offset: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "outputs")
        if self.offset and len(self.offset) != self.outputs:
            raise OptionError(
                f"offset: expected a number for each of {self.outputs} outputs, or none, got "
                f"{len(self.offset)}"
            )

    def check(self, encoder: Any, width: int) -> None:
        """Raise OptionError where the head does not fit the encoder, or features of this width.

        A head of several views reads one feature vector of each, not those of every point.
        """
        pool = self.pool or encoder.default_pool
        if pool == "every" and encoder.views > 1:
            raise OptionError(
                "head.pool: expected a read-out of one vector for each view, got 'every' beside "
                f"encoder.views={encoder.views}; choose 'mean', or one view"
            )

    def build(self, width: int, views: int) -> nn.Module:
        """Return the head for features of this width, called as ``head(features, encoder)``;
        several views are (B, V, D).
        """
        raise NotImplementedError


HEADS: Registry[type[HeadConfig]] = Registry("head", home="fredholm.models.heads", attribute="kind")


def register_head(kind: str) -> Callable[[Registered], Registered]:
    """Register a head's configuration as ``kind``.

    Raises:
        OptionError: a kind that is already registered.
    """

    return HEADS.register(kind)


class Offset(nn.Module):
    """Constants added to the numbers of an answer, in float32 or better: next to a mean of 300,
    half precision cannot represent a deviation of 1.

    Example:
        >>> Offset([300.0])(torch.ones(1, 2, 1, dtype=torch.bfloat16)).flatten()
        tensor([301., 301.])
    """

    values: Tensor

    def __init__(self, values: Sequence[float]):
        super().__init__()
        # They describe the data: a model that starts from another's weights keeps its own.
        self.register_buffer("values", torch.tensor(values), persistent=False)

    def forward(self, answers: Tensor) -> Tensor:
        return cast(answers, at_least_single(answers.dtype)) + self.values

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        return super()._apply(unrounded(fn), recurse)


@register_head("linear")
@dataclass(frozen=True)
class LinearConfig(HeadConfig):
    """A linear layer; several views are concatenated.

    Attributes:
        initial: ``zero``, or ``kaiming`` normal weights with gain 1.
    """

    initial: str = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(self, initial=("zero", "kaiming"))

    def build(self, width: int, views: int) -> LinearHead:
        return LinearHead(views, width, self.outputs, initial=self.initial)


class LinearHead(nn.Linear):
    """A linear layer; several views are concatenated.

    Args:
        views: V, feature vectors of one sample.
        width: D.
        outputs: numbers in an answer.
        initial: ``"zero"``, or ``"kaiming"`` for normal weights with gain 1. The bias is zero.

    Raises:
        OptionError: another ``initial``.

    Shape: (B, D) to (B, outputs) and (B, N, D) to (B, N, outputs); V > 1 views (B, V, D) to
    (B, outputs).
    """

    def __init__(self, views: int, width: int, outputs: int, *, initial: str = "zero"):
        super().__init__(views * width, outputs)
        self.views = views
        if initial == "kaiming":
            nn.init.kaiming_normal_(self.weight, nonlinearity="linear")
        elif initial == "zero":
            nn.init.zeros_(self.weight)
        else:
            raise OptionError(f"initial: expected 'zero' or 'kaiming', got {initial!r}")
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor, encoder: Encoder | None = None) -> Tensor:
        if self.views > 1:
            input = input.flatten(-2)
        return super().forward(input)


@register_head("mlp")
@dataclass(frozen=True)
class MLPConfig(HeadConfig):
    """A network with one hidden layer; of two views a and b it reads :math:`[a, b, a b, a - b]`.

    Attributes:
        hidden: units of the hidden layer.
    """

    hidden: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "hidden")

    def check(self, encoder: Any, width: int) -> None:
        super().check(encoder, width)
        if encoder.views > 2:
            raise OptionError(
                f"head: expected one view or two for 'mlp', got {encoder.views}; choose 'linear'"
            )

    def build(self, width: int, views: int) -> MLPHead:
        return MLPHead(width, self.hidden, self.outputs, pair=views == 2)


class MLPHead(nn.Sequential):
    """A network with one hidden layer: (B, D), or a pair (B, 2, D), to (B, outputs)."""

    def __init__(self, width: int, hidden: int, outputs: int, *, pair: bool = False):
        read = width
        if pair:
            # a, b, their product and their difference.
            read = 4 * width
        super().__init__(
            nn.Linear(read, hidden),
            nn.ReLU(),
            nn.Linear(hidden, outputs),
        )
        self.pair = pair

    def forward(self, input: Tensor, encoder: Encoder | None = None) -> Tensor:
        if self.pair:
            a, b = input.unbind(-2)
            input = torch.cat([a, b, a * b, a - b], -1)
        return super().forward(input)


@register_head("tied")
@dataclass(frozen=True)
class TiedConfig(HeadConfig):
    """A head that uses the embedding of the tokens as its matrix, and has a bias."""

    def check(self, encoder: Any, width: int) -> None:
        super().check(encoder, width)
        if not encoder.ties or encoder.dim != width:
            raise OptionError(
                "head: expected encoder.kind='tokens' and a last width equal to encoder.dim beside "
                f"'tied', got {encoder.kind!r} and {width}; choose 'linear'"
            )
        if self.outputs != encoder.vocabulary:
            raise OptionError(
                f"head.outputs: expected the vocabulary, {encoder.vocabulary}, beside 'tied', got "
                f"{self.outputs}; leave it out"
            )

    def build(self, width: int, views: int) -> TiedHead:
        return TiedHead(self.outputs)


class TiedHead(nn.Module):
    """A linear layer with the encoder's matrix of token vectors: (B, N, D) to (B, N, outputs)."""

    def __init__(self, outputs: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, input: Tensor, encoder: Any) -> Tensor:
        return functional.linear(input, encoder.embed.weight, self.bias)
