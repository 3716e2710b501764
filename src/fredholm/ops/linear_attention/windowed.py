"""Causal attention with a window: softmax on the last points, an inner product of features for all
points before them, and one normaliser over both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..backend import full_precision
from .band import NOTHING, Points, Sinks, attend_in_band, folded, taken_by_row, visible_first
from .chunked import over_new_factor
from .running import Advance, linear_attention_step, linear_attention_stretch

KeyFeatures = Callable[[Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor | None]]

NEAR = ("near_key", "near_value", "near_mass")
"""The memory's points, which softmax sees."""
POINT_DIMENSIONS = (2, 2, 1)
"""The dimension of the points in each of them."""


class Far(NamedTuple):
    """Features by which the points before the window are seen.

    Attributes:
        query: φ over :math:`e^a`, (B, H, n, r), not negative.
        exponent: a, (B, H, n), without a gradient; None where nothing was divided.
        keys: maps keys (B, G, n, e), which of them are real (B, n), and the smallest c allowed, to
            ψ over :math:`e^c`, (B, S, n, r), and c (B, S) or None. S is G, or H where heads that
            share a key have maps of their own.
    """

    query: Tensor
    exponent: Tensor | None
    keys: KeyFeatures


class Sizes(NamedTuple):
    """The sizes of :func:`advance_window`: the window, the sinks, and a chunk of the far part."""

    window: int
    sinks: int
    chunk: int


class WindowAdvance(NamedTuple):
    """Responses of new points, (B, H, n, c), and the memory after them."""

    out: Tensor
    memory: dict[str, Tensor]


def advance_window(
    query: Float[Tensor, "b h n e"],
    key: Float[Tensor, "b g n e"],
    value: Float[Tensor, "b g n c"],
    mass: Float[Tensor, "#b n"],
    far: Far,
    memory: dict[str, Tensor],
    *,
    window: int,
    sinks: int = 0,
    valid: Bool[Tensor, "#b n"] | None = None,
    chunk: int = 64,
) -> WindowAdvance:
    r"""Return the responses of the next n points in causal order, and the memory after them.

    .. math:: y_i = \frac{\sum_{j\in W_i} m_j e^{q_i\cdot k_j} v_j
        + \sum_{j\le i,\, j\notin W_i} m_j\,\phi(q_i)\cdot\psi(k_j)\,v_j}
        {\text{the same with } v = 1}

    W_i are the last w visible points up to i, and the first ``sinks`` visible points of all. A
    hidden point belongs to no window and takes no place in one.

    The points before the window are one more score of the softmax over the window, the logarithm of
    their total weight, a + c + log z with :math:`(s, z) = \sum_j m_j\,\phi(q_i)\cdot \psi(k_j)\,
    (v_j, 1)`, and s / z is their value. So neither part overflows, and they do not both vanish.

    Args:
        query, key, value: q with softmax's scale in it, k and v; keys of fewer heads are each for a
            group of neighbouring heads of queries.
        mass: m, zero at padding.
        far: φ and ψ.
        memory: of the points before; empty before the first.
        window: w, visible points that softmax sees, the query's own included.
        sinks: s, the first visible points of all, which softmax sees as well.
        valid: the visible points, or None where all are.
        chunk: of the linear part.

    Returns:
        Responses (B, H, n, c) and a memory: ``moment`` (B, S, r, c + 1), ``shift`` c (B, S) where
        there is one, and the sinks so far with the last w points behind them: ``near_key``
        (B, G, s + w, e), ``near_value`` (B, G, s + w, c), ``near_mass`` (B, s + w). Where points
        were hidden, ``sinks_filled`` (B,) counts each row's sinks.

    Cost: O(n·(w·(e + c) + r·c)) time, whatever came before.

    Example:
        >>> x, mass = torch.ones(1, 1, 5, 2), torch.ones(1, 5)
        >>> far = Far(x, None, lambda key, real, least: (key, None))
        >>> out, memory = advance_window(x, x, x, mass, far, {}, window=3)
        >>> out[0, 0, 4].tolist(), tuple(memory["near_key"].shape), memory["moment"][0, 0].tolist()
        ([1.0, 1.0], (1, 1, 3, 2), [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]])
    """
    points = Points(key, value, mass)
    sizes = Sizes(window, sinks, chunk)
    if sinks:
        return _advance_beside_sinks(query, points, far, memory, sizes, valid)
    return _advance(query, points, far, memory, sizes, valid, None)


def _advance(
    query: Tensor,
    points: Points,
    far: Far,
    memory: dict[str, Tensor],
    sizes: Sizes,
    valid: Tensor | None,
    sinks: Sinks | None,
) -> WindowAdvance:
    """Return :func:`advance_window` of points that are no sinks, beside the sinks so far."""
    key, value, mass = points
    n = query.shape[2]
    dtype = torch.promote_types(query.dtype, torch.float32)
    mass = mass.to(dtype).expand(key.shape[0], -1)
    rank = None
    if valid is not None:
        valid = valid.expand(key.shape[0], -1)
        rank = valid.cumsum(1)
        key, value, mass = visible_first(key, value, mass, valid)
    # The last w points and the new ones, (B, G, w + n, ·).
    near = _with_past(key, value, mass, memory, sizes.window)

    # The first w queries of all have nothing before their window. Under tracing n is not known.
    nothing_before = 0
    if not memory and not torch.compiler.is_compiling():
        nothing_before = min(sizes.window, n - 1)
    leaving = _leaving(near, valid, rank, slice(nothing_before, n))
    features, shift = far.keys(leaving.key, leaving.mass > 0, memory.get("shift"))

    with full_precision(query):
        moment = _moment_before(memory, shift, dtype)
        sums, moment = _sums_before(
            far.query[:, :, nothing_before:], features, leaving, moment, sizes.chunk
        )
        if nothing_before:
            sums = F.pad(sums, (0, 0, nothing_before, 0))
        beyond, mean = _as_one_point(sums, _exponent(far.exponent, shift, sums))
        band = attend_in_band(query.to(dtype), *near, beyond, sizes.window, rank, sinks)
        out = torch.addcmul(band.out, band.rest, mean)

    after = {} if shift is None else {"shift": shift}
    last = _last_points(near, rank, sizes.window)
    return WindowAdvance(out, after | {"moment": moment, **dict(zip(NEAR, last))})


def _with_past(
    key: Tensor, value: Tensor, mass: Tensor, memory: dict[str, Tensor], window: int
) -> Points:
    """Return the points with the last ``window`` ones in front; before the first, empty ones."""
    if not memory:
        # Heads come first in memory as well: other strides would fix a traced length.
        keys, values = (F.pad(x.contiguous(), (0, 0, window, 0)) for x in (key, value))
        return Points(keys, values, F.pad(mass, (window, 0)))
    past = {"near_key": key, "near_value": value}
    keys, values = (torch.cat([memory[k].to(x.dtype), x], 2) for k, x in past.items())
    return Points(keys, values, torch.cat([memory["near_mass"].to(mass.dtype), mass], 1))


def _leaving(near: Points, valid: Tensor | None, rank: Tensor | None, queries: slice) -> Points:
    """Return the point that leaves the window as each of the queries comes; mass zero for none.

    ``near`` are the last w points and the new ones. Query i sees places i + 1 to i + w in its
    window, so that the point in place i leaves. With hidden points the query's rank among the
    visible ones replaces i + 1.
    """
    keys, values, masses = near
    if rank is None or valid is None:
        return Points(keys[:, :, queries], values[:, :, queries], masses[:, queries])
    place = (rank[:, queries.start :] - 1).clamp_min(0)
    mass = torch.where(valid[:, queries.start :], masses.gather(1, place), 0.0)
    return Points(taken_by_row(keys, place), taken_by_row(values, place), mass)


def _last_points(near: Points, rank: Tensor | None, window: int) -> Points:
    """Return the last ``window`` visible points, for the memory.

    They are copies: a view would keep everything alive that the stretch was computed from.
    """
    keys, values, masses = near
    if rank is None:
        last = slice(keys.shape[2] - window, None)
        return Points(keys[:, :, last].clone(), values[:, :, last].clone(), masses[:, last].clone())
    place = rank[:, -1:] + torch.arange(window, device=keys.device)
    return Points(taken_by_row(keys, place), taken_by_row(values, place), masses.gather(1, place))


# --- the points before the window -----------------------------------------------------------------


def _moment_before(
    memory: dict[str, Tensor], shift: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """Return the memory's moment over the new common factor of the keys; None before the first."""
    moment = memory.get("moment")
    if moment is None:
        return None
    moment = moment.to(dtype)
    if shift is not None:
        moment = moment * over_new_factor(memory["shift"], shift).to(dtype)
    return moment


def _sums_before(
    query: Tensor, key: Tensor, points: Points, moment: Tensor | None, chunk: int
) -> Advance:
    """Return the sums over the points before the window, and the moment after them.

    Args:
        query, key: φ (B, H, n, r), and ψ (B, S, n, r) of the points that leave.
        points: their values and masses.
        moment: of the points that left earlier, (B, S, r, c + 1).
        chunk: of the prefix sums.

    Returns:
        Sums of values and of ones, (B, H, n, c + 1), and the moment (B, S, r, c + 1).
    """
    b, h, n, _ = query.shape
    groups = key.shape[1]

    # Heads of a group share keys: S groups go to the batch, (B·S, H / S, n, r) and (B·S, 1, n, ·).
    value = points.value.repeat_interleave(groups // points.value.shape[1], 1)
    query, key = folded(query, groups), folded(key, groups)
    value = F.pad(folded(value, groups).to(key.dtype), (0, 1), value=1.0)
    mass = points.mass.repeat_interleave(groups, 0)
    moment = None if moment is None else folded(moment, groups)

    if n > 1:
        out, moment = linear_attention_stretch(
            query, key, value, mass, None, moment, floor=None, chunk=chunk
        )
    else:
        # A single point takes no chunks, whose padding would cost as much again.
        point = query[:, :, 0], key[:, :, 0], value[:, :, 0]
        out, moment = linear_attention_step(*point, mass[:, 0], None, moment, floor=None)
        out = out[:, :, None]
    return Advance(
        out.reshape(b, h, n, out.shape[-1]), moment.reshape(b, groups, *moment.shape[2:])
    )


def _as_one_point(sums: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    """Return all points before the window as one: its score log z + a + c, (B, H, n, 1), and its
    value s / z, (B, H, n, c).

    The exponents belong to s and z alike, and no gradient goes through them.
    """
    total = sums[..., -1:]
    # Below this sum the logarithm would be -∞ and the mean NaN: there is no such point then.
    least = vanishing(total.dtype)
    exists = total > least
    total = total.clamp_min(least)
    score = torch.where(exists, total.log() + exponent.detach(), NOTHING)
    return score, sums[..., :-1] / total


def _exponent(query: Tensor | None, key: Tensor | None, like: Tensor) -> Tensor:
    """Return a + c, by which the sums before the window were divided, (B, H, n | 1, 1)."""
    result = like.new_zeros(())
    if query is not None:
        result = result + query[..., None].to(like.dtype)
    # c is -∞ before the first key, whose sums are zero.
    if key is not None:
        shared = like.shape[1] // key.shape[1]
        result = result + key.repeat_interleave(shared, 1)[..., None, None].to(like.dtype)
    return result


def vanishing(dtype: torch.dtype) -> float:
    """Return the sum of products of features, each at most 1, that counts as none.

    1e-30 in float32. Its reciprocal still leaves gradients finite, which that of the smallest
    number, 1e38, would not.

    Example:
        >>> 1e-31 < vanishing(torch.float32) < 1e-30
        True
    """
    return torch.finfo(dtype).tiny ** 0.8


# --- sinks ----------------------------------------------------------------------------------------


class SinkPlan(NamedTuple):
    """The sinks after some new points, and which of these points belong to the band.

    Attributes:
        sinks: as many places as there may be sinks, mass zero in those not filled.
        rank: visible points up to each new one, of all that came, (1 | B, n).
        in_band: new points that are visible and not sinks, (B, n); None for all.
        filled: sinks of each row, (B,), where points were hidden.
    """

    sinks: Points
    rank: Tensor
    in_band: Tensor | None
    filled: Tensor | None


def _advance_beside_sinks(
    query: Tensor,
    points: Points,
    far: Far,
    memory: dict[str, Tensor],
    sizes: Sizes,
    valid: Tensor | None,
) -> WindowAdvance:
    """Return :func:`advance_window` with sinks, which window and moment take for hidden points."""
    n = query.shape[2]
    known = memory["near_key"].shape[2] - sizes.window if memory else 0
    filled = memory.get("sinks_filled")
    all_visible = valid is None and filled is None
    if all_visible and known < sizes.sinks < known + n:
        return _sinks_then_others(query, points, far, memory, sizes, sizes.sinks - known)

    dtype = torch.promote_types(query.dtype, torch.float32)
    mass = points.mass.to(dtype).expand(points.key.shape[0], -1)
    points = points._replace(mass=mass)
    old, ring = _sinks_and_ring(memory, known, sizes.window)
    if all_visible:
        plan = _first_points(old, points, known, sizes.sinks)
    else:
        if valid is None:
            valid = torch.ones_like(mass, dtype=torch.bool)
        valid = valid.expand(mass.shape[0], -1)
        if filled is None:
            filled = mass.new_full((mass.shape[0],), known)
        plan = _first_visible_points(old, points, valid, filled, sizes.sinks)

    slots = plan.sinks.mass.shape[1]
    seen = torch.arange(slots, device=query.device) < plan.rank[..., None]
    if plan.in_band is not None:
        points = points._replace(mass=torch.where(plan.in_band, mass, 0.0))
    out, after = _advance(query, points, far, ring, sizes, plan.in_band, Sinks(*plan.sinks, seen))

    for name, x, dim in zip(NEAR, plan.sinks, POINT_DIMENSIONS):
        after[name] = torch.cat([x.to(after[name].dtype), after[name]], dim)
    if plan.filled is not None:
        after["sinks_filled"] = plan.filled
    return WindowAdvance(out, after)


def _sinks_then_others(
    query: Tensor,
    points: Points,
    far: Far,
    memory: dict[str, Tensor],
    sizes: Sizes,
    missing: int,
) -> WindowAdvance:
    """Advance by the ``missing`` sinks first, and then by the others, which need no gather."""
    outs = []
    for part in (slice(0, missing), slice(missing, query.shape[2])):
        exponent = far.exponent
        # An exponent of size 1 belongs to all points.
        if exponent is not None and exponent.shape[-1] > 1:
            exponent = exponent[..., part]
        key, value, mass = points
        some = Points(key[:, :, part], value[:, :, part], mass[:, part])
        some_far = Far(far.query[:, :, part], exponent, far.keys)
        out, memory = _advance_beside_sinks(query[:, :, part], some, some_far, memory, sizes, None)
        outs.append(out)
    return WindowAdvance(torch.cat(outs, 2), memory)


def _sinks_and_ring(
    memory: dict[str, Tensor], known: int, window: int
) -> tuple[Points | None, dict[str, Tensor]]:
    """Take a memory apart: its sinks, None before the first point, and a memory without them."""
    ring = {name: x for name, x in memory.items() if name != "sinks_filled"}
    if not memory:
        return None, ring
    sinks = []
    for name, dim in zip(NEAR, POINT_DIMENSIONS):
        sinks.append(memory[name].narrow(dim, 0, known))
        ring[name] = memory[name].narrow(dim, known, window)
    return Points(*sinks), ring


def _first_points(old: Points | None, new: Points, known: int, wanted: int) -> SinkPlan:
    """Return the plan where all points are visible: the first new ones follow the sinks so far.

    Either all new points are sinks, or none is.
    """
    n = new.mass.shape[1]
    count = min(wanted, known + n) - known
    sinks = Points(new.key[:, :, :count], new.value[:, :, :count], new.mass[:, :count])
    if old is not None:
        pairs = zip(old, sinks, POINT_DIMENSIONS)
        sinks = Points(*(torch.cat([x.to(y.dtype), y], dim) for x, y, dim in pairs))

    rank = known + torch.arange(1, n + 1, device=new.mass.device)[None]
    in_band = None
    if known < wanted:
        in_band = torch.zeros_like(new.mass, dtype=torch.bool)
    return SinkPlan(sinks, rank, in_band, None)


def _first_visible_points(
    old: Points | None, new: Points, valid: Tensor, filled: Tensor, wanted: int
) -> SinkPlan:
    """Return the plan where points may be hidden, and each row has other sinks.

    Args:
        old: places of the sinks so far, or None.
        new: the new points.
        valid: which of them are visible, (B, n).
        filled: sinks of each row so far, (B,).
        wanted: s.
    """
    # Place p of a row with f sinks is for its visible new point p - f, where there is such a point.
    visible = visible_first(*new, valid)
    source = torch.arange(wanted, device=filled.device) - filled[:, None].long()
    comes = (source >= 0) & (source < valid.sum(1, keepdim=True))
    source = source.clamp(0, valid.shape[1] - 1)
    sinks = Points(
        taken_by_row(visible.key, source),
        taken_by_row(visible.value, source),
        torch.where(comes, visible.mass.gather(1, source), 0.0),
    )

    rank = filled[:, None] + valid.cumsum(1)
    in_band = valid & (rank > wanted)
    filled_after = rank[:, -1].clamp_max(wanted)
    return SinkPlan(_beside_old(old, sinks, comes, wanted), rank, in_band, filled_after)


def _beside_old(old: Points | None, new: Points, comes: Tensor, wanted: int) -> Points:
    """Return ``new`` in the places where a new sink comes, and the old sink in the others."""
    comes_wide = comes[:, None, :, None]
    if old is None:
        key = torch.where(comes_wide, new.key, 0.0)
        return Points(key, torch.where(comes_wide, new.value, 0.0), new.mass)

    missing = wanted - old.key.shape[2]
    old_key, old_value = (F.pad(x, (0, 0, 0, missing)) for x in (old.key, old.value))
    old_mass = F.pad(old.mass, (0, missing))
    return Points(
        torch.where(comes_wide, new.key, old_key.to(new.key.dtype)),
        torch.where(comes_wide, new.value, old_value.to(new.value.dtype)),
        torch.where(comes, new.mass, old_mass.to(new.mass.dtype)),
    )
