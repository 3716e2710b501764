"""Feature maps: φ with k(x, y) = φ(x)·φ(y), fixed, random and learned. Any of them runs in any
linear operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..errors import OptionError, suggest


class FeatureMap(nn.Module):
    r"""φ, from (B, H, N, e) to (B, H, N, r): the one interface of all maps that are more than a
    function.

    Every inner product of features is a positive semi-definite kernel. Features come in float32 at
    least, autocast or not.

    Args:
        width: e, features of a query or a key.
        heads: H, for maps with parameters of each head's own.

    Attributes:
        features: r.
        positive: φ ≥ 0, so that the denominator of an attention cannot change its sign.
        pointwise: φ of a point is a function of that point alone, so that points may come in
            pieces.
    """

    positive = True
    pointwise = True

    def __init__(self, width: int, heads: int = 1, *, features: int):
        super().__init__()
        if features < 1:
            raise OptionError(f"a feature map has at least one feature, got {features}")
        self.width, self.heads, self.features = width, heads, features

    def features_of(self, x: Tensor) -> Tensor:
        """φ of x in float32 or float64, outside autocast."""
        raise NotImplementedError(f"{type(self).__name__} must define features_of(x)")

    def forward(self, x: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n r"]:
        with torch.autocast(x.device.type, enabled=False):
            return self.features_of(x.to(torch.promote_types(x.dtype, torch.float32)))

    def extra_repr(self) -> str:
        return f"width={self.width}, heads={self.heads}, features={self.features}"


class ExponentialMap(FeatureMap):
    r"""Base of maps whose features are exponentials, :math:`\phi = e^{\epsilon(x)}`; a subclass
    defines ``exponents(x)``.

    Where attention is normalised, features of a query may have any factor of their own, and those
    of all keys any common one:

    .. math:: \frac{\phi(q)\cdot\sum_j \phi(k_j) v_j}{\phi(q)\cdot\sum_j \phi(k_j)} =
        \frac{e^{\epsilon(q) - a}\cdot\sum_j e^{\epsilon(k_j) - c}\, v_j}{e^{\epsilon(q) -
        a}\cdot\sum_j e^{\epsilon(k_j) - c}}

    With a and c the largest exponents no exponential overflows, and not all of them vanish; the
    result is the same.
    """

    def exponents(self, x: Tensor) -> Tensor:
        """ε of x, (B, H, N, r)."""
        raise NotImplementedError(f"{type(self).__name__} must define exponents(x)")

    def features_of(self, x: Tensor) -> Tensor:
        return self.exponents(x).exp()

    def _exponents(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return self.exponents(x.to(torch.promote_types(x.dtype, torch.float32)))

    def of_queries(self, x: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n r"]:
        """Features of queries, each divided by its own largest one."""
        found = self._exponents(x)
        return (found - found.detach().amax(-1, keepdim=True)).exp()

    def of_keys(
        self,
        x: Float[Tensor, "b h n e"],
        valid: Bool[Tensor, "#b n"] | None = None,
        least: Tensor | None = None,
    ) -> tuple[Float[Tensor, "b h n r"], Float[Tensor, "b h"]]:
        """Features of keys, divided by :math:`e^c`, and c of each sample and head: the largest
        exponent of a key that is no padding.

        ``least``: c of the keys before, where keys come in parts; c is then no smaller. In causal
        order all keys of a call share c too, which changes nothing but what underflows: features
        more than e^87 below the call's largest are zero.
        """
        found = self._exponents(x)
        shown = (
            found.detach()
            if valid is None
            else found.detach().masked_fill(~valid[:, None, :, None], -torch.inf)
        )
        shift = shown.amax((-2, -1))
        shift = (
            torch.where(shift > -torch.inf, shift, 0.0)
            if least is None
            else torch.maximum(shift, least)
        )
        found = found - shift[..., None, None]
        return (
            found if valid is None else torch.where(valid[:, None, :, None], found, -torch.inf)
        ).exp(), shift


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1, the positive feature map of Katharopoulos et al. 2020, Eq. 7."""
    # torch traces elu's backward with other strides than it returns; it needs x alone, so that the
    # sum may be in place
    return F.elu(x.contiguous()).add_(1.0)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), a positive feature map."""
    return F.softplus(x.contiguous())  # as in elu_plus_one


def orthogonal_draws(rows: int, width: int) -> Tensor:
    """Gaussian vectors (rows, width) that are orthogonal within blocks of ``width``, with the norms
    of independent ones.

    Example:
        >>> w = orthogonal_draws(4, 4)
        >>> bool((w @ w.T).fill_diagonal_(0).abs().max() < 1e-5)
        True
    """
    blocks = []
    for _ in range(math.ceil(rows / width)):
        q, r = torch.linalg.qr(torch.randn(width, width))
        blocks.append(
            (q * r.diagonal().sign()).T
        )  # without these signs the directions are not uniform
    return torch.cat(blocks)[:rows] * torch.randn(rows, width).norm(dim=1, keepdim=True)


class RandomFeatures(FeatureMap):
    r"""Base of maps with random frequencies, a buffer: ω ~ N(0, I) against :math:`x / e^{1/4}`,
    orthogonal in blocks.

    Args:
        width, heads: see :class:`FeatureMap`; all heads share the draw.
        features: r, default ``width``.
        orthogonal: False for independent draws.
    """

    frequencies: Tensor
    waves = 1  # features a frequency

    def __init__(
        self, width: int, heads: int = 1, *, features: int | None = None, orthogonal: bool = True
    ):
        super().__init__(width, heads, features=features or width)
        if self.features % self.waves:
            raise OptionError(
                f"{type(self).__name__} has {self.waves} features a frequency; {features} do not "
                "divide"
            )
        self.orthogonal = orthogonal
        self.register_buffer("frequencies", torch.empty(self.features // self.waves, width))
        self.redraw()

    @torch.no_grad()
    def redraw(self) -> None:
        """New frequencies from the global generator."""
        shape = self.frequencies.shape
        self.frequencies.copy_(orthogonal_draws(*shape) if self.orthogonal else torch.randn(shape))

    def phases(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x / e^¼ and its products with ω."""
        x = x * self.width**-0.25
        return x, x @ self.frequencies.to(x.dtype).mT


class PositiveRandomFeatures(RandomFeatures, ExponentialMap):
    r"""Performer's :math:`\phi_i(x) = \exp(\omega_i\cdot\bar x - |\bar x|^2/2)/\sqrt r`,
    :math:`\bar x = x/e^{1/4}`:
    :math:`E[\phi(q)\cdot\phi(k)] = \exp(q\cdot k/\sqrt e)`.

    Reference: Choromanski et al. 2021, Lemma 1; LUNA, Eq. 8.

    Example:
        >>> PositiveRandomFeatures(4, features=16)(torch.zeros(1, 1, 1, 4)).unique().item()
        0.25
    """

    def exponents(self, x: Tensor) -> Tensor:
        x, phase = self.phases(x)
        return phase - x.square().sum(-1, keepdim=True) / 2 - math.log(self.features) / 2


class FourierRandomFeatures(RandomFeatures):
    r"""Random Fourier features
    :math:`[\cos\omega_i\cdot\bar x, \sin\omega_i\cdot\bar x]/\sqrt{r/2}`, of expectation
    :math:`\exp(-|q - k|^2 / (2\sqrt e))`. Not positive: a denominator may come near zero.

    Reference: Rahimi and Recht 2007; LUNA, Eq. 4 and Table 5.

    Example:
        >>> u = torch.randn(1, 1, 1, 4)
        >>> FourierRandomFeatures(4, features=8)(u).square().sum().round(decimals=5).item()
        1.0
    """

    positive = False
    waves = 2

    def features_of(self, x: Tensor) -> Tensor:
        phase = self.phases(x)[1]
        return torch.cat([phase.cos(), phase.sin()], -1) * (self.features / 2) ** -0.5


class HeadLinear(FeatureMap):
    """Base of maps with one linear layer a head, ``weight`` (H, r', e) and ``bias`` (H, r')."""

    def __init__(self, width: int, heads: int = 1, *, rows: int, features: int):
        super().__init__(width, heads, features=features)
        self.weight = nn.Parameter(torch.empty(heads, rows, width))
        self.bias = nn.Parameter(torch.zeros(heads, rows))

    def mixed(self, x: Tensor) -> Tensor:
        """W x + b, a head each."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return x @ weight.mT + bias[:, None]


class T2RFeatures(HeadLinear):
    """φ(x) = ReLU(W x + b), one layer a head.

    Reference: Kasai et al. 2021, Eq. 6.

    Example:
        >>> T2RFeatures(4, 2, features=6)(torch.randn(1, 2, 3, 4)).shape
        torch.Size([1, 2, 3, 6])
    """

    def __init__(self, width: int, heads: int = 1, *, features: int | None = None):
        super().__init__(width, heads, rows=features or width, features=features or width)
        nn.init.normal_(self.weight, std=width**-0.5)

    def features_of(self, x: Tensor) -> Tensor:
        return torch.relu(self.mixed(x))


class HedgehogFeatures(HeadLinear, ExponentialMap):
    r"""φ(x) = [exp(W x + b), exp(-W x - b)], one layer a head, W the identity at first.

    Args:
        width, heads: see :class:`FeatureMap`.
        softmax: each half over its sum, as the authors release it, so that no exponential
            overflows.

    Reference: Zhang et al. 2024, Eq. 6.

    Example:
        >>> HedgehogFeatures(4, softmax=True)(torch.randn(1, 1, 3, 4)).sum(-1).round(decimals=4).unique().item()
        2.0
    """

    def __init__(self, width: int, heads: int = 1, *, softmax: bool = False):
        super().__init__(width, heads, rows=width, features=2 * width)
        self.softmax = softmax
        with torch.no_grad():
            self.weight.copy_(torch.eye(width))

    def exponents(self, x: Tensor) -> Tensor:
        x = self.mixed(x)
        if self.softmax:
            return torch.cat([x.log_softmax(-1), (-x).log_softmax(-1)], -1)
        return torch.cat([x, -x], -1)


def is_pointwise(feature_map: Callable[[Tensor], Tensor]) -> bool:
    """Whether φ of a point is a function of that point alone: what a :class:`FeatureMap` says, true
    of named functions.
    """
    if isinstance(feature_map, FeatureMap):
        return feature_map.pointwise
    return any(feature_map is known for known in FEATURE_MAPS.values())


def query_features(feature_map: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Features of queries for a normalised attention: exponentials without their largest exponent,
    others as they are.
    """
    return feature_map.of_queries(x) if isinstance(feature_map, ExponentialMap) else feature_map(x)


def key_features(
    feature_map: Callable[[Tensor], Tensor],
    x: Tensor,
    valid: Tensor | None = None,
    least: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Features of keys for a normalised attention, and the exponent they were divided by, see
    :meth:`ExponentialMap.of_keys`.
    """
    return (
        feature_map.of_keys(x, valid, least)
        if isinstance(feature_map, ExponentialMap)
        else (feature_map(x), None)
    )


FEATURE_MAPS: dict[str, Callable[..., Tensor] | type[FeatureMap]] = {
    "elu": elu_plus_one,
    "relu": torch.relu,
    "softplus": softplus,
    "performer": PositiveRandomFeatures,
    "rff": FourierRandomFeatures,
    "t2r": T2RFeatures,
    "hedgehog": HedgehogFeatures,
}


Map = TypeVar("Map", bound=FeatureMap)


def register_feature_map(name: str) -> Callable[[type[Map]], type[Map]]:
    """Decorator that makes a :class:`FeatureMap` known by name in every linear operator.

    Raises:
        OptionError: the name is taken.
    """

    def register(found: type[Map]) -> type[Map]:
        known = FEATURE_MAPS.get(name)
        if known is not None and getattr(known, "__qualname__", known) != found.__qualname__:
            raise OptionError(f"feature map name {name!r} is taken by {known}; choose another name")
        FEATURE_MAPS[name] = found
        return found

    return register


def build_feature_map(
    feature_map: str | Callable[[Tensor], Tensor], width: int, heads: int, **options
) -> Callable[[Tensor], Tensor]:
    """A map of :data:`FEATURE_MAPS` for heads of ``width`` features, or the given function or
    module itself.

    Raises:
        OptionError: an unknown name; options for a map that has none; a module for another width or
            number of heads.

    Example:
        >>> build_feature_map("performer", 8, 2, features=16).features
        16
    """
    if isinstance(feature_map, FeatureMap):
        have, need = (feature_map.width, feature_map.heads), (width, heads)
        if have[0] != width or have[1] not in (1, heads):
            raise OptionError(
                f"{type(feature_map).__name__} is for {have[1]} heads of width {have[0]}, needs "
                f"{need[1]} of {need[0]}"
            )
    found = FEATURE_MAPS.get(feature_map) if isinstance(feature_map, str) else feature_map
    if found is None:
        known = suggest(str(feature_map), FEATURE_MAPS)
        raise OptionError(f"unknown feature map {feature_map!r}{known}, or pass a function")
    if isinstance(found, type):
        return found(width, heads, **options)
    if options:
        raise OptionError(
            f"feature map {feature_map!r} has no options, got {', '.join(sorted(options))}"
        )
    return found
