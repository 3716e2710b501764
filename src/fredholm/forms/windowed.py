"""Softmax on the last points of an order, features on all before: the forms of a kernel whose
measure is split in near and far.
"""

from __future__ import annotations

from torch import Tensor

from ..integral.capabilities import Decaying, Windowed
from ..integral.contract import Form, Kernel, Memory, StretchForm, with_offset
from ..integral.facts import Facts
from ..integral.problem import Problem
from ..integral.strategy import Linear
from ..ops.linear_attention import Far, Points, WindowSizes, advance_window
from ..quadrature import Quadrature
from .keys import STEP


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

    def advance(
        self,
        kernel: Windowed,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        """Answer the next n points, the last n of those that ``quadrature`` covers."""
        # The form refuses a kernel without a window.
        assert kernel.window is not None
        query, shift = kernel.far_queries(x, u)
        decay = None
        if isinstance(kernel, Decaying) and kernel.fades:
            decay = quadrature.exponents(kernel.rates(x, u))
        covered = quadrature.mass.shape[1]
        last = slice(covered - u.shape[2], None)
        valid = quadrature.valid
        if valid is not None:
            valid = valid[:, last]
        near_query = kernel.near_queries(x, u)
        near_key = kernel.near_keys(x, u)
        points = Points(
            near_key,
            kernel.values(x, u),
            quadrature.mass[:, last],
        )
        far = Far(
            query,
            shift,
            kernel.far_keys,
            decay,
        )
        sizes = WindowSizes(kernel.window, kernel.sinks, chunk=self.strategy.chunk)
        out, memory = advance_window(
            near_query,
            points,
            far,
            memory,
            sizes,
            valid,
        )
        problem = Problem(
            x,
            x,
            u,
            u,
            quadrature,
            STEP,
        )
        response = with_offset(out, kernel, problem)
        return response, memory


class WindowChunks(WindowForm):
    """A whole causal sequence: O(N·(w·d + r·(c + chunk)))."""

    name = "window and causal chunks"
    reason = (
        "softmax weighs the last points, a block of queries at a time; all before them have one "
        "moment"
    )

    def respond(self, kernel: Windowed, problem: Problem) -> Tensor:
        out, _ = self.advance(
            kernel,
            problem.x,
            problem.ux,
            problem.quadrature,
            {},
        )
        return out


class WindowMoment(WindowForm, StretchForm):
    """The same sequence in parts: the last w keys and values and the moment of all before are the
    whole memory, O(w·d + r·c) time and memory per point.
    """

    name = "window and state of fixed size"
    reason = "softmax weighs the last points; what leaves the window is added to one moment"
    responds = False
