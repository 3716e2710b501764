"""Attention with features: what linear attention of any kind shares, whatever its map."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..errors import OptionError
from ..ops.linear_attention import linear_density
from .attention import AttentionKernel, Projections
from .bases import SEPARABLE
from .capabilities import Stabilised
from .feature_map import build_feature_map, is_pointwise, key_features, query_features
from .forms import WeightBlocks
from .problem import Problem


class FeatureAttentionKernel(AttentionKernel, Stabilised):
    r"""Base of kernels :math:`K_h(x, y; u) = \phi(Q_h u(x))\cdot\phi(K_h u(y))\,V_h / Z_h(x)`.

    .. math:: Z_h(x) = \int \phi(Q_h u(x))\cdot\phi(K_h u(y))\,d\mu(y)

    Args:
        dim, heads, bias, projections: see :class:`AttentionKernel`.
        feature_map: φ, from (…, e) to (…, r): a name of :data:`fredholm.kernels.FEATURE_MAPS`, a
            function, or a module with parameters of its own. Where it may be negative, Z may
            vanish.
        feature_options: options of a named map.
        tied: one φ for queries and keys, a positive semi-definite kernel; otherwise keys have a map
            of their own.
        normalised: divide by Z; without it the values' layer must have no bias, whose response
            would not be constant.
        floor: of Z, see :func:`fredholm.ops.linear_attention.guarded`.

    Cost: O(N·r·d_h) with the strategy ``Linear``, causal or not; ``step`` O(r·d_h).

    Raises:
        OptionError: an unknown feature map; no positive floor; a value bias without normalisation.
    """

    forms = (*SEPARABLE, WeightBlocks)

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        feature_map: str | Callable[[Tensor], Tensor],
        feature_options: dict[str, Any] | None = None,
        tied: bool = True,
        normalised: bool = True,
        floor: float = 1e-6,
        bias: bool = True,
        projections: Projections | None = None,
    ):
        super().__init__(dim, heads, bias=bias, projections=projections)
        if not floor > 0:
            raise OptionError(f"the denominator's floor must be positive, got {floor}")
        if not normalised and self._map(2)[1] is not None:
            raise OptionError(
                "normalised=False needs values without bias: pass bias=False, or such projections"
            )
        self.feature_map = build_feature_map(
            feature_map, self.width, heads, **feature_options or {}
        )
        self.key_map = None if tied else self._second_map(feature_map, feature_options or {})
        self.floor = floor if normalised else None

    def _second_map(
        self, feature_map: str | Callable[[Tensor], Tensor], options: dict[str, Any]
    ) -> Any:
        """The keys' own map: another draw of a named one, a copy of a module."""
        if isinstance(feature_map, str):
            return build_feature_map(feature_map, self.width, self.heads, **options)
        return copy.deepcopy(feature_map)

    @property
    def pointwise(self) -> bool:
        """Whether the features of a point are a function of that point alone; not known of
        functions that have no name here.
        """
        maps = [one for one in (self.feature_map, self.key_map) if one is not None]
        return all(is_pointwise(one) for one in maps)

    def query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        return self.feature_map(self._heads(ux, 0))

    def key_features(self, y: Tensor, uy: Tensor) -> Tensor:
        return (self.feature_map if self.key_map is None else self.key_map)(self._heads(uy, 1))

    def stable_query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        """:meth:`query_features` up to a factor of each query, which the denominator takes away."""
        return (
            self.query_features(x, ux)
            if self.floor is None
            else query_features(self.feature_map, self._heads(ux, 0))
        )

    def stable_key_features(
        self, y: Tensor, uy: Tensor, valid: Tensor | None = None, least: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """:meth:`key_features` divided by e^c, and c, (B, H), or None where nothing was divided."""
        if self.floor is None:
            return self.key_features(y, uy), None
        feature_map = self.feature_map if self.key_map is None else self.key_map
        return key_features(feature_map, self._heads(uy, 1), valid, least)

    def weights(self, problem: Problem) -> Tensor:
        query = self.stable_query_features(problem.x, problem.ux)
        key, _ = self.stable_key_features(problem.y, problem.uy, problem.quadrature.valid)
        return linear_density(query, key, problem.quadrature.weights(), self.floor)
