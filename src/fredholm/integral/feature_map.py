"""Feature maps: their interface, and the registry of their names."""

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
# Smallest denominator where features come up to factors. Its reciprocal is multiplied with queries
# that `at_scale` enlarges by up to 1e17, and both together must stay below float32's 3e38.
LEAST = 1e-17


class FeatureMap(nn.Module, metaclass=Checked):
    r"""Base of maps φ from (B, H, N, e) to (B, H, N, r) that have parameters or options; other maps
    are plain functions.

    Every inner product of features is a positive semi-definite kernel. Features are in float32 or
    better, under autocast too.

    Args:
        width: e, features of a query or a key.
        heads: H, for maps with parameters for each head.

    Attributes:
        features: r.
        positive: φ ≥ 0, so that the denominator of an attention cannot change its sign.
        pointwise: φ of a point depends on that point alone, so that points can be processed in
            pieces.
        per_head: heads may have separate maps; False if all share one, which then also applies to
            keys that several heads share.
        observes: :meth:`observe` updates statistics.
        divides: :meth:`of_queries` and :meth:`of_keys` return features up to factors.

    Raises:
        OptionError: no features.
    """

    positive = True
    pointwise = True
    per_head = True
    observes = False
    divides = False

    def __init__(self, width: int, heads: int = 1, *, features: int):
        super().__init__()
        if features < 1:
            raise OptionError(
                f"features: expected at least one, got {features}; leave it out for the map's "
                "default"
            )
        self.width = width
        self.heads = heads
        self.features = features

    def draw(self) -> None:
        """Draw new parameters and frequencies, as at initialisation. By default there are none.

        The module that owns the map calls this, and may compute other parameters from the new ones.
        It is not called ``reset_parameters``, because torch calls that of all modules, owners
        first, and would draw the map again afterwards.
        """

    def features_of(self, x: Tensor) -> Tensor:
        """Return φ of x, which is in float32 or float64, outside autocast."""
        raise NotImplementedError(f"{type(self).__name__} must define features_of(x)")

    def forward(self, x: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n r"]:
        with full_precision(x):
            return self.features_of(cast(x, at_least_single(x.dtype)))

    def of_queries(self, x: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n r"]:
        """Return features of queries for a normalised attention, up to a factor of each query."""
        return self(x)

    def parts_of_queries(
        self, x: Float[Tensor, "b h n e"]
    ) -> tuple[Float[Tensor, "b h n r"], Tensor | None]:
        """Return features of queries over e^a, and a (B, H, N), or None where nothing was divided:
        for a sum that has other terms beside the features, which must be divided too.
        """
        return self(x), None

    def of_keys(
        self,
        x: Float[Tensor, "b h n e"],
        valid: Bool[Tensor, "#b n"] | None = None,
        least: Tensor | None = None,
    ) -> tuple[Float[Tensor, "b h n r"], Tensor | None]:
        """Return features of keys for a normalised attention, divided by e^c, and c (B, H), or None
        where nothing was divided; see :class:`.ExponentialMap`.

        Args:
            x: projected keys.
            valid: keys that are not padding, or None where all are real.
            least: c of the keys before, where keys come in parts.
        """
        return self(x), None

    def observe(
        self,
        x: Float[Tensor, "b h n e"],
        real: Bool[Tensor, "#b n"] | None,
    ) -> None:
        """Update statistics from the ``real`` points of a call in training. It is called once for
        the queries and once for the keys. By default there are none.
        """

    @property
    def alike(self) -> bool:
        """Whether :meth:`of_queries` and :meth:`of_keys` are the map itself, point by point."""
        plain = (FeatureMap.of_queries, FeatureMap.of_keys)
        return self.pointwise and (type(self).of_queries, type(self).of_keys) == plain

    def extra_repr(self) -> str:
        return f"width={self.width}, heads={self.heads}, features={self.features}"


def is_pointwise(feature_map: Callable[[Tensor], Tensor]) -> bool:
    """Whether φ of a point is a function of that point alone.

    A :class:`FeatureMap` declares it, named functions are, and of other functions it is unknown:
    False.
    """
    if isinstance(feature_map, FeatureMap):
        return feature_map.pointwise
    # A function that is at hand was registered when its module was imported, so that no further
    # module needs to be looked for.
    return any(feature_map is known for known in FEATURE_MAPS.registered())


def is_per_head(feature_map: Callable[[Tensor], Tensor]) -> bool:
    """Whether heads may have maps of their own.

    A :class:`FeatureMap` declares it, named functions are the same for all heads, and of other
    functions it is unknown: True.
    """
    if isinstance(feature_map, FeatureMap):
        return feature_map.per_head and feature_map.heads > 1
    return not any(feature_map is known for known in FEATURE_MAPS.registered())


def query_features(feature_map: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return features of queries for a normalised attention, up to a factor of each query:
    exponentials without their largest exponent, others as they are.
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
    """Return features of keys for a normalised attention, and the exponent that they were divided
    by, or None; see :meth:`FeatureMap.of_keys`.
    """
    if isinstance(feature_map, FeatureMap):
        return feature_map.of_keys(x, valid, least)
    return cast(feature_map(x), at_least_single(x.dtype)), None


def floor_of(floor: float, *feature_maps: Callable[[Tensor], Tensor] | None) -> float:
    """Return the smallest denominator of a normalised attention by these maps.

    That is ``floor``, but at most 1e-17 where features come up to factors, and so does their sum.

    Example:
        >>> floor_of(1e-6, torch.relu)
        1e-06
    """
    divided = any(isinstance(one, FeatureMap) and one.divides for one in feature_maps)
    if divided:
        return min(floor, LEAST)
    return floor


def build_feature_map(
    feature_map: str | Callable[[Tensor], Tensor],
    width: int,
    heads: int,
    **options,
) -> Callable[[Tensor], Tensor]:
    """Return a map of :data:`FEATURE_MAPS` for heads of ``width`` features, or the function or
    module that was passed.

    Args:
        feature_map: a name, a function, a module, or a class of modules.
        width, heads: features of each head, and their number.
        options: of a named map or a class.

    Raises:
        OptionError: an unknown name; an option that the map does not have; a module for another
            width or number of heads.

    Example:
        >>> build_feature_map("performer", 8, 2, features=16).features
        16
    """
    if isinstance(feature_map, FeatureMap):
        fits = feature_map.width == width and feature_map.heads in (1, heads)
        if not fits:
            raise OptionError(
                f"{type(feature_map).__name__}: expected a map for {heads} heads of width {width}, "
                f"got one for {feature_map.heads} of {feature_map.width}; build it for these heads"
            )

    chosen = feature_map
    if isinstance(feature_map, str):
        if feature_map not in FEATURE_MAPS:
            hint = suggest(feature_map, FEATURE_MAPS)
            raise OptionError(f"unknown feature map {feature_map!r}{hint}, or pass a function")
        chosen = FEATURE_MAPS[feature_map]

    if isinstance(chosen, type):
        return chosen(width, heads, **options)
    if options:
        names = ", ".join(sorted(options))
        raise OptionError(
            f"feature map {feature_map!r} has no options, got {names}; leave them out"
        )
    return chosen  # type: ignore[return-value]
