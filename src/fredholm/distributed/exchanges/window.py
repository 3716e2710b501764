"""A softmax window in front of linear attention.

Each rank sends its last points, as many as a window of a later rank may reach back to, and one
moment of all points before those.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ...forms.windowed import WindowChunks
from ...integral.capabilities import Decaying, Windowed
from ...integral.contract import Memory
from ...integral.facts import Facts
from ...integral.problem import Problem
from ...ops.linear_attention import Points, over_new_factor
from .. import Shards, concatenated, gathered, largest, without_holes
from ..exchange import Exchange, register_exchange
from ..part import before_this
from .moments import features_refusal


@register_exchange(WindowChunks, Windowed)
class TailsAndMoments(Exchange):
    """The last points of the ranks before, and the moment of all points before those."""

    passes = "the ranks' last points, and moments of all before them"

    def refuses(
        self,
        form: WindowChunks,
        kernel: Windowed,
        facts: Facts,
    ) -> str | None:
        if isinstance(kernel, Decaying) and kernel.fades:
            return "the last points of other ranks have no age"
        return features_refusal(kernel, form.strategy)

    def respond(
        self,
        form: WindowChunks,
        kernel: Windowed,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        memory = memory_before(kernel, problem, shards)
        out, _ = form.advance(
            kernel,
            problem.x,
            problem.ux,
            problem.quadrature,
            memory,
        )
        return out


def tails(shards: Shards, window: int) -> Shards:
    """Return the last points of each rank as shards: as many as a window may reach back to."""
    real = without_holes(shards)
    sizes = tuple(min(window, n) for n in real.sizes)
    return replace(real, sizes=sizes)


# In the points of this exchange a mass of -1 marks a hidden point (padding, or a sink), which takes
# no place in a window.


def hidden_first(points: Points) -> Points:
    """Move the hidden points of each row to its front; the others keep their order."""
    visible = points.mass.expand(len(points.key), -1) >= 0
    order = visible.long().argsort(dim=1, stable=True)
    return points.at(order)


def memory_before(kernel: Windowed, problem: Problem, shards: Shards) -> Memory:
    """Return the memory of :func:`~fredholm.ops.linear_attention.advance_window` before this rank's
    first point: the sinks, the last points of the ranks before, and one moment of all points before
    those.

    A rank cannot know which of its last points lie in the windows of a rank that is not the next.
    So it sends them as they are, and each rank adds those beyond its own window to the moment.
    """
    # The form refuses a kernel without a window.
    window = kernel.window
    assert window is not None
    last = tails(shards, window)

    # Sinks have their own places in the memory, and are hidden among the points.
    own = _own_points(kernel, problem)
    batch = own.key.shape[0]
    n = own.key.shape[2]
    sinks = None
    if kernel.sinks:
        sinks = _sinks_before(own, kernel.sinks, shards)
        own = _without_sinks(own, sinks, kernel.sinks)

    # With hidden points in front, the last places hold the last visible points.
    some_hidden = problem.quadrature.valid is not None or sinks is not None
    if some_hidden:
        own = hidden_first(own)

    # All but the last points go into the moment. Features are divided by e^shift, which differs
    # between ranks: before their sums are added, all change over to the largest shift.
    place = torch.arange(n, device=own.key.device)
    not_last = place < n - last.size
    far_mass = torch.where(not_last, own.mass, 0.0).clamp_min(0.0)
    is_far = (far_mass > 0).expand(batch, -1)
    features, shift = kernel.far_keys(own.key, is_far, None)
    common = None
    if shift is not None:
        common = largest(shift, shards)
        ratio = over_new_factor(shift, common)
        features = features * ratio.to(features.dtype)
    moment = _moment(features, own.value, far_mass)
    moment = before_this(moment, shards)

    # The last points of all ranks before this one. From here on hidden points have mass 0.
    own_last = own.part(slice(n - last.size, n))
    near = Points(
        concatenated(own_last.key, last, 2),
        concatenated(own_last.value, last, 2),
        concatenated(own_last.mass, last, 1),
    )
    near = near.part(slice(0, last.start))
    if some_hidden:
        near = hidden_first(near)
    near_mass = near.mass.clamp_min(0.0).expand(batch, -1)
    near = near._replace(mass=near_mass)

    # A window holds the last of these; the points beyond it go into the moment too.
    beyond = max(0, last.start - window)
    if beyond:
        older = near.part(slice(0, beyond))
        features, shift = kernel.far_keys(older.key, older.mass > 0, common)
        if shift is not None and common is not None:
            ratio = over_new_factor(common, shift)
            moment = moment * ratio.to(moment.dtype)
            common = shift
        moment = moment + _moment(features, older.value, older.mass)

    in_window = near.part(slice(beyond, last.start))
    memory = _as_memory(moment, in_window, window, sinks)
    if common is not None:
        memory["shift"] = common
    return memory


def _own_points(kernel: Windowed, problem: Problem) -> Points:
    """Return this rank's points, with masses in float32 at least; -1 marks padding."""
    y = problem.y
    uy = problem.uy
    mass = problem.quadrature.mass
    dtype = torch.promote_types(mass.dtype, torch.float32)
    mass = mass.to(dtype)
    valid = problem.quadrature.valid
    if valid is not None:
        mass = torch.where(valid, mass, -1.0)
    return Points(
        kernel.near_keys(y, uy),
        kernel.values(y, uy),
        mass,
    )


def _as_memory(
    moment: Tensor,
    near: Points,
    window: int,
    sinks: Points | None,
) -> Memory:
    """Return the memory of a moment, up to ``window`` points before this rank, and the sinks."""
    # Where there are fewer points than a window has places, the first places have mass 0.
    missing = window - near.key.shape[2]
    near = Points(
        F.pad(near.key, (0, 0, missing, 0)),
        F.pad(near.value, (0, 0, missing, 0)),
        F.pad(near.mass, (missing, 0)),
    )
    memory = {"moment": moment}
    if sinks is not None:
        # The places of the sinks come before those of the window.
        filled = (sinks.mass >= 0).sum(1)
        memory["sinks_filled"] = filled.to(sinks.mass.dtype)
        sink_mass = sinks.mass.clamp_min(0.0)
        near = near.behind(sinks._replace(mass=sink_mass))
    memory["near_key"], memory["near_value"], memory["near_mass"] = near
    return memory


def _sinks_before(own: Points, count: int, shards: Shards) -> Points:
    """Return the domain's sinks that lie on ranks before this one: the first ``count`` visible
    points of those ranks, in the order of the domain.

    Where there are fewer, the last places have mass -1. The sinks among this rank's own points
    are not in the result. All ranks must call this together. Each sends ``count`` points to every
    other one.

    Args:
        own: this rank's points: keys (B, G, n, k), values (B, G, n, c) and masses (1 | B, n).
        count: the number of sinks of the kernel, m.
        shards: the ranks, P of them.

    Returns:
        Points with keys (B, G, m, k), values (B, G, m, c) and masses (B, m).
    """
    # Each rank offers as many points, so that they can be stacked; missing ones have mass -1.
    first = _visible_first(own, count)
    if shards.rank in shards.holes:
        # A rank without points holds one point of padding, which is not a point of the domain.
        hidden = torch.full_like(first.mass, -1.0)
        first = first._replace(mass=hidden)
    key = gathered(first.key, shards)
    value = gathered(first.value, shards)
    mass = gathered(first.mass, shards)

    # The candidates of this rank and of later ones are hidden. The masses are (P, B, m).
    rank = torch.arange(shards.count, device=own.key.device)
    before = rank < shards.rank
    mass = torch.where(before[:, None, None], mass, -1.0)

    # From P stacked ranks to one row of P · m candidates, in the order of the domain.
    candidates = Points(
        key.movedim(0, 2).flatten(2, 3),
        value.movedim(0, 2).flatten(2, 3),
        mass.movedim(0, 1).flatten(1, 2),
    )
    return _visible_first(candidates, count)


def _visible_first(points: Points, count: int) -> Points:
    """Return the first ``count`` visible points of each row; mass -1 where there are fewer."""
    mass = points.mass.expand(len(points.key), -1)
    hidden = (mass < 0).long()
    order = hidden.argsort(dim=1, stable=True)
    first = points.at(order[:, :count])
    missing = max(0, count - order.shape[1])
    return Points(
        F.pad(first.key, (0, 0, 0, missing)),
        F.pad(first.value, (0, 0, 0, missing)),
        F.pad(first.mass, (0, missing), value=-1.0),
    )


def _without_sinks(own: Points, before: Points, count: int) -> Points:
    """Return this rank's points with its sinks hidden.

    A point is a sink if it is among the first ``count`` visible points of the domain.
    """
    mass = own.mass.expand(len(own.key), -1)
    sinks_before = (before.mass >= 0).sum(1, keepdim=True)
    rank = sinks_before + (mass >= 0).cumsum(1)
    without_sinks = torch.where(rank > count, mass, -1.0)
    return own._replace(mass=without_sinks)


def _moment(features: Tensor, value: Tensor, mass: Tensor) -> Tensor:
    """Return the sums of features times values and times one, (B, S, r, c + 1)."""
    # Several maps of features may share a head of values.
    shared = features.shape[1] // value.shape[1]
    value = value.repeat_interleave(shared, 1)
    value = value.to(features.dtype)
    value = F.pad(value, (0, 1), value=1.0)
    weighted = features * mass[:, None, :, None].to(features.dtype)
    return weighted.mT @ value
