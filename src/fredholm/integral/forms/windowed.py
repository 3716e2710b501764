"""Softmax on the last points of an order, features on all before: the forms of a kernel whose
measure is split in near and far.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...domain import Domain
from ...ops.linear_attention import Far, advance_window, over_new_factor
from ...parallel import Shards, concatenated, largest
from ...parallel.part import before_this
from ...quadrature import Quadrature
from ..capabilities import Windowed
from ..contract import Form, Kernel, Memory, StretchForm, with_offset
from ..exchange import Exchange, mass_rows
from ..problem import Facts, Layout, Problem
from ..strategy import Linear
from .keys import one_point
from .separable import refuses_shards


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
        return refuses_shards(kernel, self.strategy) if layout.sharded else None

    def advance(
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
        out, _ = self.advance(kernel, problem.x, problem.ux, problem.quadrature, {})
        return out

    def exchange(self, kernel: Any, problem: Problem, shards: Shards) -> Tensor:
        p = problem
        memory = memory_before(kernel, p, shards)
        out, _ = self.advance(kernel, p.x, p.ux, p.quadrature, memory)
        return out

    def sent(self, kernel: Any, domain: Domain, batch: int, crossed: bool) -> Exchange:
        shards = domain.shards
        assert shards is not None
        y, uy = one_point(kernel, domain, batch)
        with torch.no_grad():
            key, value = kernel.near_keys(y, uy), kernel.values(y, uy)
            features, shift = kernel.far_keys(key)
        point = key.numel() + value.numel() + mass_rows(domain)
        moment = features.numel() * (value.shape[3] + 1)
        halo = tails(shards.filled, kernel.window).size * point
        numbers = (shards.count - 1) * (halo + moment) + (0 if shift is None else shift.numel())
        return Exchange("the ranks' last points, and moments of all before them", numbers)


class WindowMoment(WindowForm, StretchForm):
    """The same sequence in parts: the last w keys and values and the moment of all before are the
    whole memory, O(w·d + r·c) time and memory per point.
    """

    name = "window and state of fixed size"
    reason = "softmax weighs the last points; what leaves the window is added to one moment"
    responds = False


# --- between the ranks of a sharded domain --------------------------------------------------------


def tails(shards: Shards, window: int) -> Shards:
    """The last points of each rank, as many as a window may reach back to."""
    kept = [0 if r in shards.holes else min(window, n) for r, n in enumerate(shards.sizes)]
    return replace(shards, sizes=tuple(kept), holes=())


def memory_before(kernel: Any, problem: Problem, shards: Shards) -> Memory:
    """The memory of :func:`~fredholm.ops.linear_attention.advance_window` before this rank's first
    point: the last keys of the ranks before, and one moment of all before those.

    A rank cannot know which of its last points lie in the windows of a rank that is not the next.
    So it sends them as they are, and each rank adds those beyond its own window to the moment.
    """
    p, window, last = problem, kernel.window, tails(shards, kernel.window)
    key, value, mass = kernel.near_keys(p.y, p.uy), kernel.values(p.y, p.uy), p.quadrature.mass
    n = key.shape[2]
    ahead = torch.arange(n, device=key.device) < n - last.size
    far_mass = torch.where(ahead, mass, 0.0).to(torch.promote_types(mass.dtype, torch.float32))
    features, shift = kernel.far_keys(key, (far_mass > 0).expand(len(key), -1), None)
    common = None if shift is None else largest(shift, shards)
    if shift is not None and common is not None:
        features = features * over_new_factor(shift, common).to(features.dtype)
    moment = before_this(_moment(features, value, far_mass), shards)
    every = [(key, 2), (value, 2), (mass, 1)]
    parts = [concatenated(x.narrow(dim, n - last.size, last.size), last, dim) for x, dim in every]
    near_key, near_value, near_mass = (
        x.narrow(dim, 0, last.start) for x, (_, dim) in zip(parts, every)
    )
    near_mass = near_mass.to(far_mass.dtype).expand(len(key), -1)
    beyond = max(0, last.start - window)
    if beyond:
        left = near_mass[:, :beyond]
        features, shift = kernel.far_keys(near_key[:, :, :beyond], left > 0, common)
        if shift is not None and common is not None:
            moment = moment * over_new_factor(common, shift).to(moment.dtype)
            common = shift
        moment = moment + _moment(features, near_value[:, :, :beyond], left)
    missing = max(0, window - last.start)
    memory = {
        "moment": moment,
        "near_key": F.pad(near_key[:, :, beyond:], (0, 0, missing, 0)),
        "near_value": F.pad(near_value[:, :, beyond:], (0, 0, missing, 0)),
        "near_mass": F.pad(near_mass[:, beyond:], (missing, 0)),
    }
    return memory if common is None else memory | {"shift": common}


def _moment(features: Tensor, value: Tensor, mass: Tensor) -> Tensor:
    """Sums of features times values and times one, (B, S, r, c + 1)."""
    value = value.repeat_interleave(features.shape[1] // value.shape[1], 1)
    value = F.pad(value.to(features.dtype), (0, 1), value=1.0)
    return (features * mass[:, None, :, None].to(features.dtype)).mT @ value
