"""Linear attention as a kernel: softmax's exponential replaced by an inner product of features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..errors import OptionError, suggest
from ..ops.linear_attention import linear_density
from .attention import AttentionKernel, Projections
from .base import Problem


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1, the positive feature map of Katharopoulos et al. 2020, Eq. 7."""
    return nn.functional.elu(x) + 1.0


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": elu_plus_one,
    "relu": torch.relu,
    "softplus": nn.functional.softplus,
}


class LinearAttentionKernel(AttentionKernel):
    r"""Attention with any feature map: :math:`K_h(x, y; u) = \phi(Q_h u(x))\cdot\phi(K_h u(y))\,V_h / Z_h(x)`.

    .. math:: Z_h(x) = \int \phi(Q_h u(x))\cdot\phi(K_h u(y))\,d\mu(y)

    Args:
        dim, heads, bias, projections: see :class:`AttentionKernel`.
        feature_map: φ, from (…, e) to (…, r): a name of :data:`FEATURE_MAPS`, a function, or a module with parameters of its own.
            Where it may be negative, Z may vanish.
        normalised: divide by Z; without it the values' layer must have no bias, whose response would be no constant.
        floor: of Z, see :func:`fredholm.ops.linear_attention.guarded`.

    Cost: O(N·r·d_h) with the strategy ``Linear``, causal or not; ``step`` O(r·d_h).

    Raises:
        OptionError: an unknown feature map; no positive floor; a value bias without normalisation.

    Reference: Katharopoulos et al. 2020, Eqs. 4-7; ITNet, App. D.7.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> op = IntegralOperator(8, 2, kernel=LinearAttentionKernel(8, 2), residual=False)
        >>> op(torch.randn(1, 5, 8)).shape, op.plan(Domain.line(5, causal=True)).path
        (torch.Size([1, 5, 8]), 'causal chunks')
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        feature_map: str | Callable[[Tensor], Tensor] = "elu",
        normalised: bool = True,
        floor: float = 1e-6,
        bias: bool = True,
        projections: Projections | None = None,
    ):
        super().__init__(dim, heads, bias=bias, projections=projections)
        if isinstance(feature_map, str):
            if feature_map not in FEATURE_MAPS:
                raise OptionError(
                    f"unknown feature map {feature_map!r}{suggest(feature_map, FEATURE_MAPS)}, or pass a function"
                )
            feature_map = FEATURE_MAPS[feature_map]
        if not floor > 0:
            raise OptionError(f"the denominator's floor must be positive, got {floor}")
        if not normalised and self._map(2)[1] is not None:
            raise OptionError("normalised=False needs values without bias: pass bias=False, or such projections")
        self.feature_map = feature_map
        self.floor = floor if normalised else None

    def query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        return self.feature_map(self._heads(ux, 0))

    def key_features(self, y: Tensor, uy: Tensor) -> Tensor:
        return self.feature_map(self._heads(uy, 1))

    def weights(self, problem: Problem) -> Tensor:
        query, key = self.query_features(problem.x, problem.ux), self.key_features(problem.y, problem.uy)
        return linear_density(query, key, problem.quadrature.weights(), self.floor).to(problem.uy.dtype)
