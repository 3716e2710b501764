"""Feature maps: φ with k(x, y) = φ(x)·φ(y). What a map is, and the table of their names; any of
them runs in any linear operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..errors import OptionError, suggest
from ..ops.precision import full_precision
from ..registry import Registry

FEATURE_MAPS: Registry[Callable[..., Tensor]] = Registry("feature map")
"""Functions, and classes derived from :class:`FeatureMap`, by name."""

register_feature_map = FEATURE_MAPS.register


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
        with full_precision(x):
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
        with full_precision(x):
            return self.exponents(x.to(torch.promote_types(x.dtype, torch.float32)))

    def of_queries(self, x: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n r"]:
        """Features of queries, each divided by its own largest one."""
        exponents = self._exponents(x)
        return (exponents - exponents.detach().amax(-1, keepdim=True)).exp()

    def of_keys(
        self,
        x: Float[Tensor, "b h n e"],
        valid: Bool[Tensor, "#b n"] | None = None,
        least: Tensor | None = None,
    ) -> tuple[Float[Tensor, "b h n r"], Float[Tensor, "b h"]]:
        """Features of keys, divided by :math:`e^c`, and c of each sample and head: the largest
        exponent of a key that is not padding.

        ``least``: c of the keys before, where keys come in parts; c is then no smaller. In causal
        order all keys of a call share c too, which changes nothing but what underflows: features
        more than e^87 below the call's largest are zero.
        """
        exponents = self._exponents(x)
        real = exponents.detach()  # c is a factor of both sums, so that no gradient goes through it
        if valid is not None:
            real = real.masked_fill(~valid[:, None, :, None], -torch.inf)
        shift = real.amax((-2, -1))
        shift = (
            torch.where(shift > -torch.inf, shift, 0.0)
            if least is None
            else torch.maximum(shift, least)
        )
        exponents = exponents - shift[..., None, None]
        if valid is not None:  # padding may lie above c, where its exponential overflows
            exponents = torch.where(valid[:, None, :, None], exponents, -torch.inf)
        return exponents.exp(), shift


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


def is_pointwise(feature_map: Callable[[Tensor], Tensor]) -> bool:
    """Whether φ of a point is a function of that point alone: what a :class:`FeatureMap` says, true
    of named functions.
    """
    if isinstance(feature_map, FeatureMap):
        return feature_map.pointwise
    # a function that is at hand was registered when its module was imported
    return any(feature_map is known for known in FEATURE_MAPS.registered())


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
    chosen = feature_map
    if isinstance(feature_map, str):
        if feature_map not in FEATURE_MAPS:
            known = suggest(feature_map, FEATURE_MAPS)
            raise OptionError(f"unknown feature map {feature_map!r}{known}, or pass a function")
        chosen = FEATURE_MAPS[feature_map]
    if isinstance(chosen, type):
        return chosen(width, heads, **options)
    if options:
        names = ", ".join(sorted(options))
        raise OptionError(f"feature map {feature_map!r} has no options, got {names}")
    return chosen  # type: ignore[return-value]
