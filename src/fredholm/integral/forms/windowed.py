"""Softmax on the last points of an order, features on all before: the forms of a kernel whose
measure is split in near and far.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...ops.linear_attention import Far, advance_window
from ...quadrature import Quadrature
from ..capabilities import Windowed
from ..contract import Form, Kernel, Memory, with_offset
from ..problem import Facts, Layout, Problem
from ..strategy import Linear


class WindowForm(Form):
    """Base of both: one pass over the points, near ones in a band, all before in one moment."""

    word = Linear
    strategy: Linear

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not isinstance(kernel, Windowed) or kernel.window is None:
            return "the kernel has no window"
        layout = facts.layout
        if layout.pairs or not layout.causal or layout.cross:
            return "a window and a moment need the order of one domain, without pairs"
        return None

    def _advance(
        self, kernel: Any, x: Tensor, u: Tensor, quadrature: Quadrature, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """The next n points, the last n of what ``quadrature`` is about."""
        query, shift = kernel.far_queries(x, u)
        far = Far(query, shift, kernel.far_keys)
        points = kernel.near_queries(x, u), kernel.near_keys(x, u), kernel.values(x, u)
        mass = quadrature.mass[:, -u.shape[2] :]
        options = {"window": kernel.window, "chunk": self.strategy.chunk}
        out, memory = advance_window(*points, mass, far, memory, **options)
        problem = Problem(x, x, u, u, quadrature, Layout(cross=True, stepping=True))
        return with_offset(out, kernel, problem), memory


class WindowChunks(WindowForm):
    """A whole causal sequence: O(N·(w·d + r·(c + chunk)))."""

    name = "window and causal chunks"
    reason = (
        "softmax weighs the last points, a block of queries at a time; all before them have one "
        "moment"
    )

    def respond(self, kernel: Any, problem: Problem) -> Tensor:
        out, _ = self._advance(kernel, problem.x, problem.ux, problem.quadrature, {})
        return out


class WindowMoment(WindowForm):
    """The same sequence in parts: the last w keys and values and the moment of all before are the
    whole memory, O(w·d + r·c) time and memory per point.
    """

    name = "window and state of fixed size"
    reason = "softmax weighs the last points; what leaves the window is added to one moment"
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
