"""The integral of a separable kernel: one moment of the keys, and a cost linear in the number of points."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...errors import OptionError
from ...kernels import Expanded, Kernel, Layout, Pooled, Problem, Separable, has_trait
from ...ops.linear_attention import linear_attention, linear_attention_step
from ...quadrature import Quadrature
from .base import Keys, Strategy, with_offset
from .exact import Exact

SUMS, CHUNKS, STATE, QUADRATIC = "two sums", "causal chunks", "state of fixed size", "quadratic form"
POOLED = "hidden units pooled"
REASONS = {
    POOLED: "both factors' last layers are linear, so hidden units are integrated first and no factor is formed",
    SUMS: "the weight is an inner product of features, so the keys need one moment",
    CHUNKS: "the weight is an inner product of features: pairs inside a chunk, one moment for all chunks before",
    STATE: "the weight is an inner product of features, so the points before need one moment",
    QUADRATIC: "pair masks, biases and an order across two domains act on pairs, so that no moment serves all queries",
}


@dataclass(frozen=True)
class Linear(Strategy):
    """Separable kernels in O(N), exactly: sums over all keys, chunked prefix sums in causal order, O(1) steps.

    Args:
        chunk: points a causal chunk, whose pairs are formed.

    Pairs, and an order across two domains, take the quadratic form of :class:`Exact`.
    """

    chunk: int = 64

    def __post_init__(self):
        if self.chunk < 1:
            raise OptionError(f"a chunk has at least one point, got {self.chunk}")

    def path(self, kernel: Kernel, layout: Layout) -> str:
        if not has_trait(kernel, Separable):
            raise self.refuse(kernel, "a separable kernel: query_features, key_features and values", "Exact")
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
        return super().respond(kernel, problem, path)

    def integrate(self, kernel: Kernel, problem: Problem, keys: Keys, path: str) -> Tensor:
        query = kernel.query_features(problem.x, problem.ux)  # type: ignore[attr-defined]
        options = {"floor": kernel.floor, "chunk": self.chunk}
        out = linear_attention(query, keys["features"], keys["values"], problem.quadrature, **options)  # type: ignore
        return _expand(kernel, problem.x, problem.ux, out)

    def step(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Keys, path: str
    ) -> tuple[Tensor, Keys]:
        if path == QUADRATIC:
            exact = Exact()
            layout = Layout(pairs=True, causal=True, stepping=True)
            return exact.step(kernel, x, u, quadrature, t, memory, exact.path(kernel, layout))
        query, keys = kernel.query_features(x, u), self.keys(kernel, x, u, path)  # type: ignore[attr-defined]
        scale = None if quadrature.scale is None else quadrature.scale[..., t]
        point = (query[:, :, 0], keys["features"][:, :, 0], keys["values"][:, :, 0], quadrature.mass[:, t], scale)
        out, moment = linear_attention_step(*point, memory.get("moment"), floor=kernel.floor)  # type: ignore
        out = _expand(kernel, x, u, out[:, :, None])
        problem = Problem(x, x, u, u, quadrature.row(t), Layout(cross=True, stepping=True))
        return with_offset(out, kernel, problem), {"moment": moment}


def _expand(kernel: Kernel, x: Tensor, ux: Tensor, response: Tensor) -> Tensor:
    return kernel.expand(x, ux, response) if has_trait(kernel, Expanded) else response  # type: ignore[attr-defined]
