"""The integral of a separable kernel: one moment of the keys, and a cost linear in the number of
points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...errors import OptionError, StrategyError
from ...kernels import (
    Banked,
    Expanded,
    Kernel,
    Layout,
    Pooled,
    Problem,
    Separable,
    Stabilised,
    has_trait,
)
from ...ops.backend import check_backend
from ...ops.linear_attention import (
    attend_in_pieces,
    banked_attention,
    linear_attention,
    linear_attention_step,
    wants_pieces,
)
from ...quadrature import Quadrature
from .base import Keys, Strategy, with_offset
from .exact import Exact

SUMS, CHUNKS, STATE, QUADRATIC = (
    "two sums",
    "causal chunks",
    "state of fixed size",
    "quadratic form",
)
POOLED = "hidden units pooled"
REASONS = {
    POOLED: "both factors' last layers are linear, so hidden units are integrated first and no "
    "factor is formed",
    SUMS: "the weight is an inner product of features, so the keys need one moment",
    CHUNKS: "the weight is an inner product of features: pairs inside a chunk, one moment for all "
    "chunks before",
    STATE: "the weight is an inner product of features, so the points before need one moment",
    QUADRATIC: "pair masks, biases and an order across two domains act on pairs, so that no moment "
    "serves all queries",
}


@dataclass(frozen=True)
class Linear(Strategy):
    """Separable kernels in O(N), exactly: sums over all keys, chunked prefix sums in causal order,
    O(1) steps.

    Args:
        chunk: points a causal chunk, whose pairs are formed.
        piece: points whose features a processor makes at a time, in inference without an order.
        backend: ``"auto"``, ``"torch"`` or ``"triton"`` (see :mod:`fredholm.ops.backend`). Triton's
            kernels make the features of a bank (``Banked``) in registers, and serve sums and
            chunks.

    Pairs, and an order across two domains, take the quadratic form of :class:`Exact`.
    """

    chunk: int = 64
    piece: int = 16384
    backend: str = "auto"

    def __post_init__(self):
        check_backend(self.backend)
        for name in ("chunk", "piece"):
            if getattr(self, name) < 1:
                raise OptionError(f"a {name} has at least one point, got {getattr(self, name)}")

    def path(self, kernel: Kernel, layout: Layout) -> str:
        if not has_trait(kernel, Separable):
            raise self.refuse(
                kernel, "a separable kernel: query_features, key_features and values", "Exact"
            )
        path = self._path(kernel, layout)
        if self.backend == "triton" and path in (QUADRATIC, POOLED):
            raise StrategyError(
                f"{self!r} would integrate {type(kernel).__name__} by {path}, which has no Triton "
                "kernel; use backend='auto'"
            )
        return path

    def _path(self, kernel: Kernel, layout: Layout) -> str:
        if layout.pairs or (layout.causal and layout.cross):
            return QUADRATIC
        if layout.stepping:
            return STATE
        if layout.causal:
            return CHUNKS
        return POOLED if has_trait(kernel, Pooled) else SUMS

    def suits(self, kernel: Kernel, layout: Layout) -> bool:
        return has_trait(kernel, Separable)

    def reason(self, path: str) -> str:
        return REASONS[path]

    def keys(self, kernel: Kernel, y: Tensor, uy: Tensor, path: str) -> Keys:
        return {"features": kernel.key_features(y, uy), "values": kernel.values(y, uy)}  # type: ignore[attr-defined]

    def respond(self, kernel: Kernel, problem: Problem, path: str) -> Tensor:
        if path == QUADRATIC:
            exact = Exact()
            return exact.respond(kernel, problem, exact.path(kernel, problem.layout))
        if path == POOLED:
            return with_offset(kernel.pooled(problem), kernel, problem)  # type: ignore[attr-defined]
        if has_trait(kernel, Banked) and (self.backend == "triton" or problem.uy.is_cuda):
            banked: Any = kernel.banked(problem)  # type: ignore[attr-defined]
            if banked is not None:
                banked |= {"floor": kernel.floor, "chunk": self.chunk, "backend": self.backend}  # type: ignore[attr-defined]
                value = kernel.values(problem.y, problem.uy)  # type: ignore[attr-defined]
                out = banked_attention(value=value, quadrature=problem.quadrature, **banked)
                return with_offset(_expand(kernel, problem.x, problem.ux, out), kernel, problem)
        if has_trait(kernel, Stabilised):
            if path == SUMS and self._in_pieces(kernel, problem):
                return with_offset(self._sums(kernel, problem), kernel, problem)
            features, _ = kernel.stable_key_features(
                problem.y, problem.uy, problem.quadrature.valid
            )  # type: ignore[attr-defined]
            keys = {"features": features, "values": kernel.values(problem.y, problem.uy)}  # type: ignore[attr-defined]
            return with_offset(self.integrate(kernel, problem, keys, path), kernel, problem)
        return super().respond(kernel, problem, path)

    def _in_pieces(self, kernel: Any, problem: Problem) -> bool:
        longest = max(problem.ux.shape[2], problem.uy.shape[2])
        pointwise = kernel.pointwise and not has_trait(kernel, Expanded)
        return pointwise and wants_pieces(problem.uy, longest, self.piece)

    def _sums(self, kernel: Any, problem: Problem) -> Tensor:
        def keys(part: slice, least: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
            y, uy, valid = problem.y[:, part], problem.uy[:, :, part], problem.quadrature.valid
            features, shift = kernel.stable_key_features(
                y, uy, None if valid is None else valid[:, part], least
            )
            return features, kernel.values(y, uy), shift

        def queries(part: slice) -> Tensor:
            return kernel.stable_query_features(problem.x[:, part], problem.ux[:, :, part])

        sizes = problem.ux.shape[2], problem.uy.shape[2]
        return attend_in_pieces(
            keys, queries, sizes, problem.quadrature, floor=kernel.floor, piece=self.piece
        )

    def integrate(self, kernel: Kernel, problem: Problem, keys: Keys, path: str) -> Tensor:
        query = _query(kernel, problem.x, problem.ux)
        options = {"floor": kernel.floor, "chunk": self.chunk, "backend": self.backend}
        out = linear_attention(
            query, keys["features"], keys["values"], problem.quadrature, **options
        )  # type: ignore
        return _expand(kernel, problem.x, problem.ux, out)

    def step(
        self,
        kernel: Kernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Keys,
        path: str,
    ) -> tuple[Tensor, Keys]:
        if path == QUADRATIC:
            exact = Exact()
            layout = Layout(pairs=True, causal=True, stepping=True)
            return exact.step(kernel, x, u, quadrature, t, memory, exact.path(kernel, layout))
        query, after, moment = _query(kernel, x, u), {}, memory.get("moment")
        if has_trait(kernel, Stabilised):
            valid = None if quadrature.valid is None else quadrature.valid[:, t : t + 1]
            features, shift = kernel.stable_key_features(x, u, valid, memory.get("shift"))  # type: ignore[attr-defined]
            if shift is not None:
                if moment is not None:  # the moment so far, over the new common factor
                    moment = moment * (memory["shift"] - shift).exp()[..., None, None].to(
                        moment.dtype
                    )
                after = {"shift": shift}
        else:
            features = kernel.key_features(x, u)  # type: ignore[attr-defined]
        scale = None if quadrature.scale is None else quadrature.scale[..., t]
        value = kernel.values(x, u)  # type: ignore[attr-defined]
        point = (query[:, :, 0], features[:, :, 0], value[:, :, 0], quadrature.mass[:, t], scale)
        out, moment = linear_attention_step(*point, moment, floor=kernel.floor)  # type: ignore
        out = _expand(kernel, x, u, out[:, :, None])
        problem = Problem(x, x, u, u, quadrature.row(t), Layout(cross=True, stepping=True))
        return with_offset(out, kernel, problem), {"moment": moment, **after}


def _query(kernel: Kernel, x: Tensor, ux: Tensor) -> Tensor:
    if has_trait(kernel, Stabilised):
        return kernel.stable_query_features(x, ux)  # type: ignore[attr-defined]
    return kernel.query_features(x, ux)  # type: ignore[attr-defined]


def _expand(kernel: Kernel, x: Tensor, ux: Tensor, response: Tensor) -> Tensor:
    return kernel.expand(x, ux, response) if has_trait(kernel, Expanded) else response  # type: ignore[attr-defined]
