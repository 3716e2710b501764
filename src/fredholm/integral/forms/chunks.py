"""Linear attention in causal order: pairs inside a chunk, one moment for all chunks before."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...ops.linear_attention import linear_attention, linear_attention_step
from ...quadrature import Quadrature
from ..kernel import Kernel
from ..problem import Facts, Layout, Problem
from .form import Memory, with_offset
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
    """The same sequence point by point: the moment of the points before is the whole memory, O(r·c)
    time and memory per point.
    """

    name = "state of fixed size"
    reason = "the weight is an inner product of features, so the points before need one moment"
    responds = False
    steps = True

    def step(
        self, kernel: Any, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        query, after, moment = query_features(kernel, x, u), {}, memory.get("moment")
        valid = None if quadrature.valid is None else quadrature.valid[:, t : t + 1]
        features, shift = key_features(kernel, x, u, valid, memory.get("shift"))
        if shift is not None:
            if moment is not None:  # the moment so far, over the new common factor e^c
                ratio = (memory["shift"] - shift).exp()
                moment = moment * ratio[..., None, None].to(moment.dtype)
            after = {"shift": shift}
        scale = None if quadrature.scale is None else quadrature.scale[..., t]
        value = kernel.values(x, u)
        point = (query[:, :, 0], features[:, :, 0], value[:, :, 0], quadrature.mass[:, t], scale)
        out, moment = linear_attention_step(*point, moment, floor=kernel.floor)
        row = quadrature.row(t)
        problem = Problem(x, x, u, u, row, Layout(cross=True, stepping=True))
        out = expanded(kernel, problem, out[:, :, None])
        return with_offset(out, kernel, problem), {"moment": moment, **after}
