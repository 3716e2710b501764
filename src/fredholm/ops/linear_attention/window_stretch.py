"""A stretch of causal attention with a window: the window by softmax, the points before it as one
more point of the softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...quadrature import Quadrature
from ..backend import full_precision
from .band import NOTHING, Points, Sinks, attend_in_band, folded, visible_first
from .chunked import over_new_factor
from .running import Advance, linear_attention_step, linear_attention_stretch
from .window_decay import NEAR_AGE, Ages

KeyFeatures = Callable[[Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor | None]]

NEAR = ("near_key", "near_value", "near_mass")
"""The memory's tensors of :func:`near_points`."""


class Far(NamedTuple):
    """Features by which the points before the window are seen.

    Attributes:
        query: φ over :math:`e^a`, (B, H, n, r), not negative.
        exponent: a, (B, H, n), without a gradient; None where nothing was divided.
        keys: maps keys (B, G, n, e), which of them are real (B, n), and the smallest c allowed, to
            ψ over :math:`e^c`, (B, S, n, r), and c (B, S) or None. S is G, or H where heads that
            share a key have maps of their own.
        decay: exponents by which the past behind the window fades as each query comes, zero at
            hidden ones, (1 | B, 1 | G | S, n); None where nothing fades.
    """

    query: Tensor
    exponent: Tensor | None
    keys: KeyFeatures
    decay: Tensor | None = None

    def part(self, span: slice) -> Far:
        """Return the features of some of the queries."""
        exponent = self.exponent
        # An exponent of size 1 belongs to all points.
        if exponent is not None and exponent.shape[-1] > 1:
            exponent = exponent[..., span]
        decay = self.decay
        if decay is not None:
            decay = decay[..., span]
        return Far(
            self.query[:, :, span],
            exponent,
            self.keys,
            decay,
        )


def near_points(memory: dict[str, Tensor]) -> Points:
    """Return the memory's points, which softmax sees."""
    return Points(
        memory["near_key"],
        memory["near_value"],
        memory["near_mass"],
    )


class WindowSizes(NamedTuple):
    """Numbers of points in :func:`.advance_window`.

    Attributes:
        window: w, the last visible points, which softmax sees; the query's own is one of them.
        sinks: s, the first visible points of all, which softmax sees as well.
        store: points of each group of heads that softmax sees beside them; their masses are 1.
        chunk: points in a chunk of the linear part.
    """

    window: int
    sinks: int = 0
    store: int = 0
    chunk: int = 64


class WindowAdvance(NamedTuple):
    """Responses of new points, (B, H, n, c), and the memory after them."""

    out: Tensor
    memory: dict[str, Tensor]


def advance_stretch(
    query: Tensor,
    points: Points,
    far: Far,
    memory: dict[str, Tensor],
    sizes: WindowSizes,
    valid: Tensor | None,
    sinks: Sinks | None,
    stored: Tensor | None = None,
) -> WindowAdvance:
    """Return the responses of n new points, and the memory after them.

    This is :func:`.advance_window` after the sinks were taken out. A query attends by softmax to
    the last w points and to ``sinks``. Points that have left the window count by their features,
    whose sums become one more point of the softmax, see :func:`_as_one_point`.

    Args:
        query, points, far, memory: see :func:`.advance_window`; the memory has no sinks. The H
            heads of queries share the keys of G groups.
        sizes: of which the window w and the chunk are read.
        valid: the visible points that are not sinks, (1 | B, n); None where all points are.
        sinks: keys that softmax sees beside the window, those of a store included; or None.
        stored: for each query, whether the point that leaves the window as it comes is in the store
            and must not enter the state, (B, G, n); None without a store.
    """
    batch = points.key.shape[0]
    n = query.shape[2]
    dtype = torch.promote_types(query.dtype, torch.float32)
    points = points._replace(mass=points.mass.to(dtype).expand(batch, -1))

    # A query's rank is the number of visible points up to it. It addresses them once the hidden
    # ones are behind all others.
    rank = None
    if valid is not None:
        valid = valid.expand(batch, -1)
        rank = valid.cumsum(1)
        points = visible_first(points, valid)

    # The last w points and the new ones, (B, G, w + n, ·).
    near = _with_past(points, memory, sizes.window)

    # No point has left the window before the first w queries of all: they need no sums. One query
    # remains in any case, because the sums and the moment need a point. Under tracing n is unknown.
    nothing_before = 0
    if not memory and not torch.compiler.is_compiling():
        nothing_before = min(sizes.window, n - 1)
    leaving = _leaving(
        near,
        valid,
        rank,
        slice(nothing_before, n),
    )
    features, shift = far.keys(
        leaving.key,
        leaving.mass > 0,
        memory.get("shift"),
    )
    if stored is not None:
        features = without(features, stored[:, :, nothing_before:])

    # The sums over the points before each window, zero for the queries that have none.
    with full_precision(query):
        ages = None
        decay = None
        if far.decay is not None:
            ages = Ages.of(
                far.decay,
                features,
                memory,
                valid,
                sizes.window,
            )
            features = ages.faded(features, rank, slice(nothing_before, n))
            decay = ages.decay[..., nothing_before:]
        moment = _moment_before(memory, shift, dtype)
        sums, moment = _sums_before(
            far.query[:, :, nothing_before:],
            features,
            leaving,
            moment,
            sizes.chunk,
            decay,
        )
        if nothing_before:
            sums = F.pad(sums, (0, 0, nothing_before, 0))

        # One softmax over the window and all these points as one, whose weight in it is ``rest``.
        exponent = _exponent(far.exponent, shift, sums)
        before = _as_one_point(sums, exponent)
        band = attend_in_band(
            query.to(dtype),
            *near,
            before.score,
            sizes.window,
            rank,
            sinks,
        )
        out = torch.addcmul(band.out, band.rest, before.value)

    after: dict[str, Tensor] = {}
    if shift is not None:
        after["shift"] = shift
    if ages is not None:
        after[NEAR_AGE] = ages.last(rank)
    after["moment"] = moment
    after.update(zip(NEAR, _last_points(near, rank, sizes.window)))
    return WindowAdvance(out, after)


def without(features: Tensor, points: Tensor) -> Tensor:
    """Return features ψ (B, S, n, r) that are zero at some points, (B, G, n): those do not enter
    the state.
    """
    shared = features.shape[1] // points.shape[1]
    by_map = points.repeat_interleave(shared, 1)
    return features.masked_fill(by_map[..., None], 0.0)


def _with_past(
    points: Points,
    memory: dict[str, Tensor],
    window: int,
) -> Points:
    """Return the points with the last ``window`` ones in front; before the first, empty ones."""
    if memory:
        return points.behind(near_points(memory))
    # Heads come first in memory as well: other strides would fix a traced length.
    return Points(
        F.pad(
            points.key.contiguous(),
            (0, 0, window, 0),
        ),
        F.pad(
            points.value.contiguous(),
            (0, 0, window, 0),
        ),
        F.pad(points.mass, (window, 0)),
    )


def _leaving(
    near: Points,
    valid: Tensor | None,
    rank: Tensor | None,
    queries: slice,
) -> Points:
    """Return the point that leaves the window as each of the queries comes; mass zero for none.

    ``near`` are the last w points and the new ones. Query i sees places i + 1 to i + w in its
    window, so that the point in place i leaves. With hidden points the query's rank among the
    visible ones replaces i + 1.
    """
    if rank is None or valid is None:
        return near.part(queries)

    # A hidden query before the first visible one has rank 0; its point has mass zero anyway.
    place = (rank[:, queries.start :] - 1).clamp_min(0)
    leaving = near.at(place)
    mass = torch.where(
        valid[:, queries.start :],
        leaving.mass,
        0.0,
    )
    return leaving._replace(mass=mass)


def _last_points(
    near: Points,
    rank: Tensor | None,
    window: int,
) -> Points:
    """Return the last ``window`` visible points, for the memory.

    They are copies: a view would keep everything alive that the stretch was computed from.
    """
    if rank is None:
        count = near.key.shape[2]
        key, value, mass = near.part(slice(count - window, None))
        return Points(
            key.clone(),
            value.clone(),
            mass.clone(),
        )
    place = rank[:, -1:] + torch.arange(window, device=rank.device)
    return near.at(place)


# --- the points before the window -----------------------------------------------------------------


def _moment_before(
    memory: dict[str, Tensor],
    shift: Tensor | None,
    dtype: torch.dtype,
) -> Tensor | None:
    """Return the memory's moment over the new common factor of the keys; None before the first."""
    moment = memory.get("moment")
    if moment is None:
        return None
    moment = moment.to(dtype)
    if shift is not None:
        ratio = over_new_factor(memory["shift"], shift)
        moment = moment * ratio.to(dtype)
    return moment


def _sums_before(
    query: Tensor,
    key: Tensor,
    points: Points,
    moment: Tensor | None,
    chunk: int,
    decay: Tensor | None = None,
) -> Advance:
    """Return the sums over the points before the window, and the moment after them.

    Args:
        query, key: φ (B, H, n, r), and ψ (B, S, n, r) of the points that leave.
        points: their values and masses.
        moment: of the points that left earlier, (B, S, r, c + 1).
        chunk: of the prefix sums.
        decay: exponents, (B, S, n), or None.

    Returns:
        Sums of values and of ones, (B, H, n, c + 1), and the moment (B, S, r, c + 1).
    """
    batch, heads, n, _ = query.shape
    groups = key.shape[1]

    # Heads of a group share keys: S groups go to the batch, (B·S, H / S, n, r) and (B·S, 1, n, ·).
    maps_of_value = groups // points.value.shape[1]
    value = points.value.repeat_interleave(maps_of_value, 1)
    query = folded(query, groups)
    key = folded(key, groups)
    value = folded(value, groups).to(key.dtype)
    value = F.pad(value, (0, 1), value=1.0)
    mass = points.mass.repeat_interleave(groups, 0)
    if moment is not None:
        moment = folded(moment, groups)
    if decay is not None:
        decay = decay.reshape(batch * groups, 1, n)

    if n > 1:
        out, moment = linear_attention_stretch(
            query,
            key,
            value,
            Quadrature(mass, decay=decay),
            moment,
            floor=None,
            chunk=chunk,
        )
    else:
        # A single point takes no chunks, whose padding would cost as much again.
        if moment is not None and decay is not None:
            moment = moment * (-decay).exp()[..., None]
        out, moment = linear_attention_step(
            query[:, :, 0],
            key[:, :, 0],
            value[:, :, 0],
            mass[:, 0],
            None,
            moment,
            floor=None,
        )
        out = out[:, :, None]

    out = out.reshape(batch, heads, n, out.shape[-1])
    moment = moment.reshape(batch, groups, *moment.shape[2:])
    return Advance(out, moment)


class _OnePoint(NamedTuple):
    """All points before the window as one.

    Attributes:
        score: log z + a + c, (B, H, n, 1).
        value: s / z, (B, H, n, c).
    """

    score: Tensor
    value: Tensor


def _as_one_point(sums: Tensor, exponent: Tensor) -> _OnePoint:
    """Return the points of sums s and z, which were divided by :math:`e^{a + c}`, as one point.

    The exponents belong to s and z alike, and no gradient goes through them.
    """
    total = sums[..., -1:]
    # Below this sum the logarithm would be -∞ and the mean NaN: there is no such point then.
    least = vanishing(total.dtype)
    exists = total > least
    total = total.clamp_min(least)
    score = torch.where(
        exists,
        total.log() + exponent.detach(),
        NOTHING,
    )
    mean = sums[..., :-1] / total
    return _OnePoint(score, mean)


def _exponent(
    query: Tensor | None,
    key: Tensor | None,
    like: Tensor,
) -> Tensor:
    """Return a + c, by which the sums before the window were divided, (B, H, n | 1, 1)."""
    result = like.new_zeros(())
    if query is not None:
        result = result + query[..., None].to(like.dtype)
    # c is -∞ before the first key, whose sums are zero.
    if key is not None:
        shared = like.shape[1] // key.shape[1]
        by_head = key.repeat_interleave(shared, 1)[..., None, None]
        result = result + by_head.to(like.dtype)
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
