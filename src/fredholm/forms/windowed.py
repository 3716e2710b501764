"""Softmax on the last points of an order, features on all before: the forms of a kernel whose
measure is split in near and far.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..distributed import Shards, concatenated, gathered, largest
from ..distributed.part import before_this
from ..domain import Domain
from ..integral.capabilities import Windowed
from ..integral.contract import Form, Kernel, Memory, StretchForm, with_offset
from ..integral.exchange import Exchange, mass_rows
from ..integral.problem import Facts, Layout, Problem
from ..integral.strategy import Linear
from ..ops.linear_attention import Far, advance_window, over_new_factor, taken_by_row
from ..quadrature import Quadrature
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
        last = slice(quadrature.mass.shape[1] - u.shape[2], None)
        valid = None if quadrature.valid is None else quadrature.valid[:, last]
        out, memory = advance_window(
            *points,
            quadrature.mass[:, last],
            far,
            memory,
            window=kernel.window,
            sinks=kernel.sinks,
            valid=valid,
            chunk=self.strategy.chunk,
        )
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
        halo += kernel.sinks * point
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


class Near(NamedTuple):
    """Keys, values and masses, of hidden points -1."""

    key: Tensor
    value: Tensor
    mass: Tensor

    def taken(self, place: Tensor) -> Near:
        """Points at places of each row, (B, m)."""
        key, value = taken_by_row(self.key, place), taken_by_row(self.value, place)
        return Near(key, value, self.mass.expand(len(key), -1).gather(1, place))

    def hidden_first(self) -> Near:
        """The visible points of each row behind its hidden ones, in their order."""
        visible = self.mass.expand(len(self.key), -1) >= 0
        return self.taken(visible.long().argsort(dim=1, stable=True))

    def narrow(self, start: int, count: int) -> Near:
        parts = zip(self, (2, 2, 1))
        return Near(*(x.narrow(dim, start, count) for x, dim in parts))


def memory_before(kernel: Any, problem: Problem, shards: Shards) -> Memory:
    """The memory of :func:`~fredholm.ops.linear_attention.advance_window` before this rank's first
    point: the sinks, the last keys of the ranks before, and one moment of all before those.

    A rank cannot know which of its last points lie in the windows of a rank that is not the next.
    So it sends them as they are, and each rank adds those beyond its own window to the moment.
    """
    p, window, last = problem, kernel.window, tails(shards, kernel.window)
    key, value, mass = kernel.near_keys(p.y, p.uy), kernel.values(p.y, p.uy), p.quadrature.mass
    mass = mass.to(torch.promote_types(mass.dtype, torch.float32))
    valid, n = p.quadrature.valid, key.shape[2]
    if valid is not None:
        mass = torch.where(valid, mass, -1.0)
    own, sinks = Near(key, value, mass), None
    if kernel.sinks:
        sinks = _sinks_before(own, kernel.sinks, shards)
        own = _without_sinks(own, sinks, kernel.sinks)
    ordered = valid is not None or sinks is not None
    if ordered:
        own = own.hidden_first()

    # All but the last points go into the moment.
    ahead = torch.arange(n, device=key.device) < n - last.size
    far_mass = torch.where(ahead, own.mass, 0.0).clamp_min(0.0)
    features, shift = kernel.far_keys(own.key, (far_mass > 0).expand(len(key), -1), None)
    common = None if shift is None else largest(shift, shards)
    if shift is not None and common is not None:
        features = features * over_new_factor(shift, common).to(features.dtype)
    moment = before_this(_moment(features, own.value, far_mass), shards)

    # The last points of the ranks before, of which a window takes the last.
    parts = zip(own.narrow(n - last.size, last.size), (2, 2, 1))
    near = Near(*(concatenated(x, last, dim) for x, dim in parts)).narrow(0, last.start)
    if ordered:
        near = near.hidden_first()
    near = near._replace(mass=near.mass.clamp_min(0.0).expand(len(key), -1))
    beyond = max(0, last.start - window)
    if beyond:
        left = near.mass[:, :beyond]
        features, shift = kernel.far_keys(near.key[:, :, :beyond], left > 0, common)
        if shift is not None and common is not None:
            moment = moment * over_new_factor(common, shift).to(moment.dtype)
            common = shift
        moment = moment + _moment(features, near.value[:, :, :beyond], left)
    missing = max(0, window - last.start)
    memory = {
        "moment": moment,
        "near_key": F.pad(near.key[:, :, beyond:], (0, 0, missing, 0)),
        "near_value": F.pad(near.value[:, :, beyond:], (0, 0, missing, 0)),
        "near_mass": F.pad(near.mass[:, beyond:], (missing, 0)),
    }
    if sinks is not None:
        memory["sinks_filled"] = (sinks.mass >= 0).sum(1).to(sinks.mass.dtype)
        sinks = sinks._replace(mass=sinks.mass.clamp_min(0.0))
        for name, x, dim in zip(("near_key", "near_value", "near_mass"), sinks, (2, 2, 1)):
            memory[name] = torch.cat([x, memory[name]], dim)
    return memory if common is None else memory | {"shift": common}


def _sinks_before(own: Near, count: int, shards: Shards) -> Near:
    """The first ``count`` visible points of the ranks before this one; mass -1 where there are
    fewer.
    """
    first = _visible_first(own, count)
    if shards.rank in shards.holes:  # its point of padding is no point of the whole
        first = first._replace(mass=torch.full_like(first.mass, -1.0))
    ranks = torch.arange(shards.count, device=own.key.device) < shards.rank
    key, value, mass = (gathered(x, shards) for x in first)
    mass = torch.where(ranks[:, None, None], mass, -1.0)
    key, value = (x.movedim(0, 2).flatten(2, 3) for x in (key, value))
    return _visible_first(Near(key, value, mass.movedim(0, 1).flatten(1, 2)), count)


def _visible_first(points: Near, count: int) -> Near:
    """The first ``count`` visible points of each row; mass -1 where there are fewer."""
    mass = points.mass.expand(len(points.key), -1)
    order = (mass < 0).long().argsort(dim=1, stable=True)
    found, missing = points.taken(order[:, :count]), max(0, count - order.shape[1])
    key, value = (F.pad(x, (0, 0, 0, missing)) for x in found[:2])
    return Near(key, value, F.pad(found.mass, (0, missing), value=-1.0))


def _without_sinks(own: Near, before: Near, count: int) -> Near:
    """This rank's points, those hidden that are sinks."""
    mass = own.mass.expand(len(own.key), -1)
    rank = (before.mass >= 0).sum(1, keepdim=True) + (mass >= 0).cumsum(1)
    return own._replace(mass=torch.where(rank > count, mass, -1.0))


def _moment(features: Tensor, value: Tensor, mass: Tensor) -> Tensor:
    """Sums of features times values and times one, (B, S, r, c + 1)."""
    value = value.repeat_interleave(features.shape[1] // value.shape[1], 1)
    value = F.pad(value.to(features.dtype), (0, 1), value=1.0)
    return (features * mass[:, None, :, None].to(features.dtype)).mT @ value
