"""Attention by features of queries and keys: what kernels, which project queries and keys from u,
and converted layers, which receive them from a model, have in common.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..errors import OptionError
from ..quadrature import Quadrature
from .denominators import DenominatorWatch, denominators
from .feature_map import (
    FeatureMap,
    build_feature_map,
    floor_of,
    is_pointwise,
    key_features,
    query_features,
)
from .windowed import ScaledFeatures, check_window, first_gain, query_parts


def check_floor(floor: float) -> None:
    """Check the smallest denominator of a normalised attention.

    Raises:
        OptionError: it is not positive.
    """
    if not floor > 0:
        raise OptionError(
            f"floor: expected a positive smallest denominator, got {floor}; leave it out for 1e-6"
        )


class FeatureAttention(nn.Module):
    r"""Base of attention on given queries, keys and values whose weight is
    :math:`\phi(q_i)\cdot\psi(k_j)` over its sum. ψ is φ where the maps are tied.

    With a window, softmax weighs the last keys that a query sees, and features all others (see
    :class:`fredholm.integral.FeatureAttentionKernel`).

    Attributes:
        feature_map: φ, from (B, H, N, e) to (B, H, N, r).
        key_map: ψ, or None for φ.
        floor: the smallest denominator; None for no denominator.
        watch: counts denominators that vanish in training; None where none can.
        window: w, the last points that softmax sees; None for features alone.
        sinks: the first points, which softmax sees from everywhere.
        gain: g of each head beside a window, (H,), or None without one.
    """

    floor: float | None
    watch: DenominatorWatch | None
    window: int | None
    sinks: int
    gain: nn.Parameter | None

    def build_features(
        self,
        feature_map: str | Callable[[Tensor], Tensor],
        width: int,
        heads: int,
        *,
        options: dict[str, Any],
        tied: bool,
        floor: float | None,
        window: int | None,
        sinks: int,
    ) -> None:
        """Build the maps, the gain, and the watch on denominators. Call it once, in a constructor.

        Args:
            feature_map, options: see :func:`build_feature_map`.
            width, heads: e and H.
            tied: one map for queries and keys.
            floor: a positive number, or None for no denominator.
            window, sinks: see :func:`fredholm.integral.windowed.check_window`.

        Raises:
            OptionError: an unknown map or option; a window or sinks that the map cannot have.
        """
        self.feature_map = build_feature_map(feature_map, width, heads, **options)
        self.key_map = None
        if not tied:
            # A named map, or a class of maps, is built again and draws weights of its own. A module
            # is copied, so that both maps begin with the same weights and then learn apart. A
            # function has no weights, and queries and keys share it.
            if isinstance(feature_map, str | type):
                self.key_map = build_feature_map(feature_map, width, heads, **options)
            else:
                self.key_map = copy.deepcopy(self.feature_map)

        self.floor = None
        self.watch = None
        if floor is not None:
            self.floor = floor_of(floor, self.feature_map, self.key_map)
            self.watch = DenominatorWatch.of(self.feature_map, self.key_map)

        check_window(window, self.feature_map, floor, sinks)
        self.window = window
        self.sinks = sinks
        self.gain = None
        if window is not None:
            gain = first_gain(self.feature_map, self._key_map, width, heads)
            self.gain = nn.Parameter(gain)

    @property
    def _key_map(self) -> Callable[[Tensor], Tensor]:
        """The keys' map, or the queries' where both share one."""
        if self.key_map is None:
            return self.feature_map
        return self.key_map

    @property
    def pointwise(self) -> bool:
        """Whether the features of a point are a function of that point alone; False for functions
        that are not in FEATURE_MAPS, of which it is unknown.
        """
        if self.key_map is not None and not is_pointwise(self.key_map):
            return False
        return is_pointwise(self.feature_map)

    def map_queries(self, query: Tensor) -> Tensor:
        """Return φ of queries up to a factor of each query, which cancels in the quotient."""
        return query_features(self.feature_map, query)

    def map_keys(
        self, key: Tensor, valid: Tensor | None = None, least: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return ψ of keys divided by e^c, and c; see :meth:`FeatureMap.of_keys`."""
        return key_features(self._key_map, key, valid, least)

    def map_queries_before_window(self, query: Tensor) -> ScaledFeatures:
        """Return e^g φ of queries divided by e^a, and a: beside softmax's exponentials no factor of
        a query cancels.
        """
        assert self.gain is not None
        return query_parts(self.feature_map, query, self.gain)

    def observe_points(
        self,
        queries: Callable[[], Tensor],
        keys: Callable[[], Tensor],
        real: Tensor | None,
        valid: Tensor | None,
        measure: Callable[[], Quadrature],
    ) -> None:
        """Show the points of a call in training to the maps that keep statistics, and count the
        denominators of maps that may be negative.

        Most maps do neither, so queries, keys and the measure are functions, called only where one
        does.

        Args:
            queries, keys: return q (B, H, Nq, e) and k (B, H, Nk, e).
            real, valid: queries and keys that are not padding, or None for all.
            measure: returns the weights of the sum over keys.
        """
        for feature_map, points, counted in (
            (self.feature_map, queries, real),
            (self._key_map, keys, valid),
        ):
            if not isinstance(feature_map, FeatureMap):
                continue
            if feature_map.observes and feature_map.training:
                feature_map.observe(points(), counted)

        if self.watch is not None:
            # The floor is left out, because it would hide what is counted. So is a window: maps
            # that may be negative refuse one.
            self.watch.observe(
                lambda: denominators(self.feature_map(queries()), self._key_map(keys()), measure())
            )
