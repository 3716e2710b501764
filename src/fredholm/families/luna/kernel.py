"""LUNA's kernel: attention by the inner products of a learned feature map."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...errors import DomainError
from ...integral import Banked, FeatureAttentionKernel, Layout, Problem, Projections
from .feature_map import LunaMap


class LunaKernel(FeatureAttentionKernel, Banked):
    r"""Attention with LUNA's kernel,
    :math:`K_h(x, y; u) = \phi(Q_h u(x))\cdot\phi(K_h u(y))\,V_h / Z_h(x)`.

    Args:
        dim, heads, bias, projections: see :class:`fredholm.kernels.attention.AttentionKernel`.
        floor: of the denominator, see :func:`fredholm.ops.linear_attention.guarded`.
        tied: one φ for queries and keys.
        map_options: options of :class:`LunaMap`.

    Raises:
        DomainError: ``cap="batch"`` with an order, padding, pairs or single steps, where the
            batch's statistic would see the future, count padding or depend on how points come.

    Reference: LUNA, Eqs. 9-11.

    Example:
        >>> LunaKernel(16, 4, channels=4).feature_map.features
        32
    """

    feature_map: LunaMap

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        bias: bool = True,
        projections: Projections | None = None,
        floor: float = 1e-6,
        tied: bool = True,
        **map_options,
    ):
        super().__init__(
            dim,
            heads,
            feature_map="luna",
            feature_options=map_options,
            tied=tied,
            floor=floor,
            bias=bias,
            projections=projections,
        )

    def banked(self, problem: Problem) -> dict[str, Any] | None:
        maps = [self.feature_map, self.feature_map if self.key_map is None else self.key_map]
        if not all(one.plain for one in maps):
            return None
        heads = self._heads(problem.ux, 0), self._heads(problem.uy, 1)
        query, key = (one.scalars(x) for one, x in zip(maps, heads))
        banks = [one.scaled_bank(query.dtype) for one in maps]
        rules = {"activation": self.feature_map.activation, "nonneg": self.feature_map.nonneg}
        return {"query": query, "key": key, "query_bank": banks[0], "key_bank": banks[1], **rules}

    def check(self, layout: Layout) -> None:
        if self.feature_map.cap != "batch":
            return
        facts = {
            "causal": "an order",
            "padded": "padding",
            "pairs": "pairs",
            "stepping": "single steps",
        }
        for fact, what in facts.items():
            if getattr(layout, fact):
                raise DomainError(
                    'cap="batch" is a statistic of all tokens of a call and means nothing with '
                    f'{what}; use cap="running"'
                )

    def weights(self, problem: Problem) -> Tensor:
        if self.feature_map.cap != "batch" or problem.whole is None:
            return super().weights(problem)
        return super().weights(problem.whole)[
            :, :, problem.index
        ]  # the statistic is that of all queries
