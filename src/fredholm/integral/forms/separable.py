"""Linear attention: the forms of a weight that is an inner product of features. Two sums over the
keys where there is no order, chunks in causal order, a moment of fixed size point by point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...ops.linear_attention import (
    advance_moment,
    at_scale,
    attend_in_pieces,
    banked_attention,
    linear_attention,
    wants_pieces,
)
from ...quadrature import Quadrature
from ..capabilities import Banked, Expanded, Separable, Stabilised, window_of
from ..contract import Form, Kernel, Memory, with_offset
from ..problem import Facts, Layout, Problem
from ..strategy import Linear


class SeparableForm(Form):
    """Base of the linear forms: the weight is an inner product of features."""

    word = Linear
    strategy: Linear
    triton = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not isinstance(kernel, Separable):
            return f"it needs {Linear.needs}; use {Linear.instead} instead"
        if facts.layout.pairs or (facts.layout.causal and facts.layout.cross):
            return "pairs, and an order across two domains, leave no moment that all queries share"
        if window_of(kernel) is not None:
            return "the last points are weighed by softmax, and not by features"
        return None

    def compared(self, kernel: Kernel, facts: Facts) -> Sequence[str]:
        given = ("linear attention",) if facts.layout.causal else ()
        return ("attention with a bank's features", *given) if isinstance(kernel, Banked) else given

    def respond(self, kernel: Any, problem: Problem) -> Tensor:
        options = self.strategy
        # A GPU makes the features of a bank in registers and never keeps them.
        on_gpu = options.backend == "triton" or problem.uy.is_cuda
        bank = _bank(kernel, problem) if on_gpu else None
        if bank is None:
            out = self.attend(kernel, problem)
        else:
            out = banked_attention(
                value=kernel.values(problem.y, problem.uy),
                quadrature=problem.quadrature,
                floor=kernel.floor,
                chunk=options.chunk,
                backend=options.backend,
                **bank,
            )
        return with_offset(expanded(kernel, problem, out), kernel, problem)

    def attend(self, kernel: Any, problem: Problem) -> Tensor:
        """The integral of the values, (B, H, Nq, c)."""
        raise NotImplementedError(f"{type(self).__name__} must define attend")


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


class Chunks(SeparableForm):
    """A whole causal sequence: O(N·r·(c + chunk))."""

    name = "causal chunks"
    reason = (
        "the weight is an inner product of features: pairs inside a chunk, one moment for all "
        "chunks before"
    )

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        return super().refuses(kernel, facts) if facts.layout.causal else "the domain has no order"

    def attend(self, kernel: Any, problem: Problem) -> Tensor:
        p, options = problem, self.strategy
        key, shift = key_features(kernel, p.y, p.uy, p.quadrature.valid)
        query, value = query_features(kernel, p.x, p.ux), kernel.values(p.y, p.uy)
        if shift is not None:
            query = at_scale(query, key.detach().amax(-1).cummax(-1).values)
        backend = {"floor": kernel.floor, "chunk": options.chunk, "backend": options.backend}
        return linear_attention(query, key, value, p.quadrature, **backend)


class RunningMoment(SeparableForm):
    """The same sequence in parts: the moment of the points before is the whole memory, O(r·c) time
    and memory per point. Stretches go in chunks, single points by themselves.
    """

    name = "state of fixed size"
    reason = "the weight is an inner product of features, so the points before need one moment"
    responds = False
    steps = True

    def step(
        self, kernel: Any, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return self._advance(kernel, x, u, quadrature.row(t), memory)

    def prefill(
        self, kernel: Any, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return self._advance(kernel, x, u, quadrature.stretch(t, t + u.shape[2]), memory)

    def _advance(
        self, kernel: Any, x: Tensor, u: Tensor, quadrature: Quadrature, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """The next n points, the last n of what ``quadrature`` is about."""
        n = u.shape[2]
        valid = None if quadrature.valid is None else quadrature.valid[:, -n:]
        features, shift = key_features(kernel, x, u, valid, memory.get("shift"))
        points = query_features(kernel, x, u), features, kernel.values(x, u)
        measure = quadrature.mass[:, -n:], quadrature.scale
        options = {"floor": kernel.floor, "chunk": self.strategy.chunk}
        out, memory = advance_moment(*points, shift, *measure, memory, **options)
        problem = Problem(x, x, u, u, quadrature, Layout(cross=True, stepping=True))
        out = with_offset(expanded(kernel, problem, out), kernel, problem)
        return out, memory


# --- features, stabilised where the kernel can ----------------------------------------------------


def _bank(kernel: object, problem: Problem) -> dict[str, Any] | None:
    """The arguments of ``banked_attention``, where the features are a bank and nothing else."""
    return kernel.banked(problem) if isinstance(kernel, Banked) else None


def query_features(kernel: Any, x: Tensor, ux: Tensor) -> Tensor:
    """φ, up to a factor per query where the kernel is ``Stabilised``."""
    if isinstance(kernel, Stabilised):
        return kernel.stable_query_features(x, ux)
    return kernel.query_features(x, ux)


def key_features(
    kernel: Any, y: Tensor, uy: Tensor, valid: Tensor | None, least: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """ψ divided by e^c, and c, (B, H), or None where nothing was divided."""
    if isinstance(kernel, Stabilised):
        return kernel.stable_key_features(y, uy, valid, least)
    return kernel.key_features(y, uy), None


def expanded(kernel: Any, problem: Problem, response: Tensor) -> Tensor:
    """The response through the matrix at the query, where the kernel has one."""
    if isinstance(kernel, Expanded):
        return kernel.expand(problem.x, problem.ux, response)
    return response
