"""Linear attention in causal order: pairs inside a chunk, one moment for all chunks before."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...ops.linear_attention import (
    linear_attention,
    linear_attention_step,
    linear_attention_stretch,
)
from ...quadrature import Quadrature
from ..contract import Kernel, Memory, with_offset
from ..problem import Facts, Layout, Problem
from .separable import SeparableForm, expanded, key_features, query_features


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
        key, _ = key_features(kernel, p.y, p.uy, p.quadrature.valid)
        query, value = query_features(kernel, p.x, p.ux), kernel.values(p.y, p.uy)
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
        mass, moment, after = quadrature.mass[:, -n:], memory.get("moment"), {}
        features, shift = key_features(kernel, x, u, valid, memory.get("shift"))
        if shift is not None:
            if moment is not None:  # the moment so far, over the new common factor e^c
                ratio = (memory["shift"] - shift).exp()
                moment = moment * ratio[..., None, None].to(moment.dtype)
            after = {"shift": shift}
        points = query_features(kernel, x, u), features, kernel.values(x, u)
        if n == 1:  # without chunks, whose padding would cost as much again
            query, key, value = (part[:, :, 0] for part in points)
            scale = None if quadrature.scale is None else quadrature.scale[..., 0]
            single = query, key, value, mass[:, 0], scale, moment
            out, moment = linear_attention_step(*single, floor=kernel.floor)
            out = out[:, :, None]
        else:
            options = {"floor": kernel.floor, "chunk": self.strategy.chunk}
            out, moment = linear_attention_stretch(
                *points, mass, quadrature.scale, moment, **options
            )
        problem = Problem(x, x, u, u, quadrature, Layout(cross=True, stepping=True))
        out = with_offset(expanded(kernel, problem, out), kernel, problem)
        return out, {"moment": moment, **after}
