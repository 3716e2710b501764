"""Linear attention without an order: two sums over the keys are enough for all queries."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...ops.linear_attention import attend_in_pieces, linear_attention, wants_pieces
from ..capabilities import Expanded, Stabilised
from ..contract import Kernel
from ..problem import Facts, Problem
from .separable import SeparableForm, key_features, query_features


class Sums(SeparableForm):
    """One moment of the keys, (r × c), and one of their features: O(N·r·c)."""

    name = "two sums"
    reason = "the weight is an inner product of features, so the keys need one moment"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        return "the domain has an order" if facts.layout.causal else super().refuses(kernel, facts)

    def attend(self, kernel: Any, problem: Problem) -> Tensor:
        p, options = problem, self.strategy
        longest = max(p.ux.shape[2], p.uy.shape[2])
        pointwise = isinstance(kernel, Stabilised) and kernel.pointwise
        if (
            pointwise
            and not isinstance(kernel, Expanded)
            and wants_pieces(p.uy, longest, options.piece)
        ):
            return self._in_pieces(kernel, problem)
        key, _ = key_features(kernel, p.y, p.uy, p.quadrature.valid)
        query, value = query_features(kernel, p.x, p.ux), kernel.values(p.y, p.uy)
        backend = {"floor": kernel.floor, "chunk": options.chunk, "backend": options.backend}
        return linear_attention(query, key, value, p.quadrature, **backend)

    def _in_pieces(self, kernel: Any, problem: Problem) -> Tensor:
        """Features are made a piece of points at a time, so that inference never holds all."""
        p, valid = problem, problem.quadrature.valid

        def keys(part: slice, least: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
            real = None if valid is None else valid[:, part]
            y, uy = p.y[:, part], p.uy[:, :, part]
            features, shift = key_features(kernel, y, uy, real, least)
            return features, kernel.values(y, uy), shift

        def queries(part: slice) -> Tensor:
            return query_features(kernel, p.x[:, part], p.ux[:, :, part])

        sizes = p.ux.shape[2], p.uy.shape[2]
        piece = self.strategy.piece
        return attend_in_pieces(keys, queries, sizes, p.quadrature, floor=kernel.floor, piece=piece)
