"""Feature maps: what they are, and how they are found by name."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..arguments import Checked
from ..errors import OptionError, suggest
from ..ops.backend import at_least_single, cast, full_precision
from ..registry import Registry

FEATURE_MAPS: Registry[Callable[..., Tensor]] = Registry("feature map")
"""Functions, and classes derived from :class:`FeatureMap`, by name."""

register_feature_map = FEATURE_MAPS.register
# What divides in float32 beside queries times 1e17 (``at_scale``), so that gradients are finite.
LEAST = 1e-17


class FeatureMap(nn.Module, metaclass=Checked):
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
        per_head: heads may have maps of their own; False where all share one, which is then also
            one for keys that several heads share.
        observes: :meth:`observe` does something.
        divides: :meth:`of_queries` and :meth:`of_keys` give features up to factors.
    """

    positive = True
    pointwise = True
    per_head = True
    observes = False
    divides = False

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
            return self.features_of(cast(x, at_least_single(x.dtype)))

    def of_queries(self, x: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n r"]:
        """Features of queries for a normalised attention, up to a factor of each."""
        return self(x)

    def parts_of_queries(
        self, x: Float[Tensor, "b h n e"]
    ) -> tuple[Float[Tensor, "b h n r"], Tensor | None]:
        """Features of queries beside which other terms stand, over e^a, and a (B, H, N), or None
        where nothing was divided.
        """
        return self(x), None

    def of_keys(
        self,
        x: Float[Tensor, "b h n e"],
        valid: Bool[Tensor, "#b n"] | None = None,
        least: Tensor | None = None,
    ) -> tuple[Float[Tensor, "b h n r"], Tensor | None]:
        """Features of keys for a normalised attention, divided by e^c, and c (B, H), or None where
        nothing was divided; see :class:`.ExponentialMap`.
        """
        return self(x), None

    def observe(self, x: Float[Tensor, "b h n e"], real: Bool[Tensor, "#b n"] | None) -> None:
        """Take note of the points of a call in training, of those that are ``real``: once for its
        queries and once for its keys. Nothing by default.
        """

    @property
    def alike(self) -> bool:
        """Whether :meth:`of_queries` and :meth:`of_keys` are the map itself, point by point."""
        plain = (FeatureMap.of_queries, FeatureMap.of_keys)
        return self.pointwise and (type(self).of_queries, type(self).of_keys) == plain

    def extra_repr(self) -> str:
        return f"width={self.width}, heads={self.heads}, features={self.features}"


def is_pointwise(feature_map: Callable[[Tensor], Tensor]) -> bool:
    """Whether φ of a point is a function of that point alone: what a :class:`FeatureMap` says, true
    of named functions.
    """
    if isinstance(feature_map, FeatureMap):
        return feature_map.pointwise
    # a function that is at hand was registered when its module was imported
    return any(feature_map is known for known in FEATURE_MAPS.registered())


def is_per_head(feature_map: Callable[[Tensor], Tensor]) -> bool:
    """Whether heads may have maps of their own: what a :class:`FeatureMap` says, false of named
    functions.
    """
    if isinstance(feature_map, FeatureMap):
        return feature_map.per_head and feature_map.heads > 1
    return not any(feature_map is known for known in FEATURE_MAPS.registered())


def query_features(feature_map: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Features of queries for a normalised attention: exponentials without their largest exponent,
    others as they are.
    """
    if isinstance(feature_map, FeatureMap):
        return feature_map.of_queries(x)
    return cast(feature_map(x), at_least_single(x.dtype))


def key_features(
    feature_map: Callable[[Tensor], Tensor],
    x: Tensor,
    valid: Tensor | None = None,
    least: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Features of keys for a normalised attention, and the exponent they were divided by, see
    :meth:`FeatureMap.of_keys`.
    """
    if isinstance(feature_map, FeatureMap):
        return feature_map.of_keys(x, valid, least)
    return cast(feature_map(x), at_least_single(x.dtype)), None


def floor_of(floor: float, *feature_maps: Callable[[Tensor], Tensor] | None) -> float:
    """The smallest denominator of a normalised attention by these maps: ``floor``, or, where
    features come up to factors and so does their sum, 1e-17 at most.
    """
    divide = any(isinstance(one, FeatureMap) and one.divides for one in feature_maps)
    return min(floor, LEAST) if divide else floor


def build_feature_map(
    feature_map: str | Callable[[Tensor], Tensor], width: int, heads: int, **options
) -> Callable[[Tensor], Tensor]:
    """A map of :data:`FEATURE_MAPS` for heads of ``width`` features, or the given function or
    module itself.

    Raises:
        OptionError: an unknown name; an option that the map does not have; a module for another
            width or number of heads.

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
