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

from .band import Points, Sinks, visible_first
from .store import advance_with_store
from .window_stretch import (
    NEAR,
    Far,
    WindowAdvance,
    WindowSizes,
    advance_stretch,
    near_points,
)


def advance_window(
    query: Float[Tensor, "b h n e"],
    points: Points,
    far: Far,
    memory: dict[str, Tensor],
    sizes: WindowSizes,
    valid: Bool[Tensor, "#b n"] | None = None,
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

    With a decay in ``far`` the second sum has the factor :math:`e^{-(\Lambda_i - \Lambda_j)}`, see
    :mod:`fredholm.ops.linear_attention.window_decay`; what softmax sees keeps its whole mass.

    With a ``store`` softmax also sees so many points of each group of heads behind its window, see
    :mod:`fredholm.ops.linear_attention.store`. They have mass 1 there.

    Args:
        query: q with softmax's scale in it.
        points: k, v and m, zero at padding; keys of fewer heads are each for a group of
            neighbouring heads of queries.
        far: φ and ψ.
        memory: of the points before; empty before the first.
        sizes: of window, sinks and store.
        valid: the visible points, or None where all are.

    Returns:
        Responses (B, H, n, c) and a memory: ``moment`` (B, S, r, c + 1), ``shift`` c (B, S) where
        there is one, and the sinks so far with the last w points behind them: ``near_key``
        (B, G, s + w, e), ``near_value`` (B, G, s + w, c), ``near_mass`` (B, s + w). Where points
        were hidden, ``sinks_filled`` (B,) counts each row's sinks. Where the past fades,
        ``near_age`` (B, S, w) is by how much each of the last w points would have. A store has the
        tensors of :class:`.store.Store`.

    Cost: O(n·(w·(e + c) + r·c)) time, whatever came before.

    Example:
        >>> x = torch.ones(1, 1, 5, 2)
        >>> points = Points(x, x, torch.ones(1, 5))
        >>> far = Far(x, None, lambda key, real, least: (key, None))
        >>> out, memory = advance_window(x, points, far, {}, WindowSizes(window=3))
        >>> out[0, 0, 4].tolist(), tuple(memory["near_key"].shape), memory["moment"][0, 0].tolist()
        ([1.0, 1.0], (1, 1, 3, 2), [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]])
    """
    if sizes.sinks:
        return _advance_beside_sinks(
            query,
            points,
            far,
            memory,
            sizes,
            valid,
        )
    return _advance_by(sizes)(
        query,
        points,
        far,
        memory,
        sizes,
        valid,
        None,
    )


def _advance_by(sizes: WindowSizes) -> Callable[..., WindowAdvance]:
    """Return how points that are not sinks come: with a store, or all at once."""
    if sizes.store:
        return advance_with_store
    return advance_stretch


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
    sizes: WindowSizes,
    valid: Tensor | None,
) -> WindowAdvance:
    """Return :func:`advance_window` with sinks, which window and moment take for hidden points."""
    n = query.shape[2]
    known = 0
    if memory:
        known = memory["near_key"].shape[2] - sizes.window
    filled = memory.get("sinks_filled")
    all_visible = valid is None and filled is None
    if all_visible and known < sizes.sinks < known + n:
        return _sinks_then_others(
            query,
            points,
            far,
            memory,
            sizes,
            sizes.sinks - known,
        )

    batch = points.key.shape[0]
    dtype = torch.promote_types(query.dtype, torch.float32)
    mass = points.mass.to(dtype).expand(batch, -1)
    points = points._replace(mass=mass)
    old, ring = _sinks_and_ring(memory, known)
    if all_visible:
        plan = _first_points(old, points, known, sizes.sinks)
    else:
        if valid is None:
            valid = torch.ones_like(mass, dtype=torch.bool)
        valid = valid.expand(batch, -1)
        if filled is None:
            filled = mass.new_full((batch,), known)
        plan = _first_visible_points(old, points, valid, filled, sizes.sinks)

    # A query of rank r sees the first r places of the sinks.
    slots = plan.sinks.mass.shape[1]
    seen = torch.arange(slots, device=query.device) < plan.rank[..., None]
    if plan.in_band is not None:
        points = points._replace(mass=torch.where(plan.in_band, mass, 0.0))
    beside = Sinks(
        plan.sinks.key,
        plan.sinks.value,
        plan.sinks.mass[:, None],
        seen[:, None],
    )
    out, after = _advance_by(sizes)(
        query,
        points,
        far,
        ring,
        sizes,
        plan.in_band,
        beside,
    )

    near = near_points(after).behind(plan.sinks)
    after.update(zip(NEAR, near))
    if plan.filled is not None:
        after["sinks_filled"] = plan.filled
    return WindowAdvance(out, after)


def _sinks_then_others(
    query: Tensor,
    points: Points,
    far: Far,
    memory: dict[str, Tensor],
    sizes: WindowSizes,
    missing: int,
) -> WindowAdvance:
    """Advance by the ``missing`` sinks first, and then by the others, which need no gather."""
    outs = []
    for part in (slice(0, missing), slice(missing, query.shape[2])):
        out, memory = _advance_beside_sinks(
            query[:, :, part],
            points.part(part),
            far.part(part),
            memory,
            sizes,
            None,
        )
        outs.append(out)
    return WindowAdvance(torch.cat(outs, 2), memory)


class SinksAndRing(NamedTuple):
    """A memory taken apart: its sinks, None before the first point, and a memory without them."""

    sinks: Points | None
    ring: dict[str, Tensor]


def _sinks_and_ring(memory: dict[str, Tensor], known: int) -> SinksAndRing:
    """Take a memory apart whose first ``known`` points near the window are sinks."""
    ring = {name: x for name, x in memory.items() if name != "sinks_filled"}
    if not memory:
        return SinksAndRing(None, ring)
    near = near_points(memory)
    ring.update(zip(NEAR, near.part(slice(known, None))))
    return SinksAndRing(near.part(slice(0, known)), ring)


def _first_points(
    old: Points | None,
    new: Points,
    known: int,
    wanted: int,
) -> SinkPlan:
    """Return the plan where all points are visible: the first new ones follow the sinks so far.

    Either all new points are sinks, or none is.
    """
    n = new.mass.shape[1]
    count = min(wanted, known + n) - known
    sinks = new.part(slice(0, count))
    if old is not None:
        sinks = sinks.behind(old)

    rank = known + torch.arange(1, n + 1, device=new.mass.device)[None]
    in_band = None
    if known < wanted:
        in_band = torch.zeros_like(new.mass, dtype=torch.bool)
    return SinkPlan(sinks, rank, in_band, None)


def _first_visible_points(
    old: Points | None,
    new: Points,
    valid: Tensor,
    filled: Tensor,
    wanted: int,
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
    visible = visible_first(new, valid)
    place = torch.arange(wanted, device=filled.device)
    source = place - filled[:, None].long()
    count = valid.sum(1, keepdim=True)
    comes = (source >= 0) & (source < count)

    # Other places read some point, which :func:`_beside_old` does not use.
    sinks = visible.at(source.clamp(0, valid.shape[1] - 1))
    sinks = sinks._replace(mass=torch.where(comes, sinks.mass, 0.0))

    rank = filled[:, None] + valid.cumsum(1)
    in_band = valid & (rank > wanted)
    filled_after = rank[:, -1].clamp_max(wanted)
    return SinkPlan(
        _beside_old(old, sinks, comes, wanted),
        rank,
        in_band,
        filled_after,
    )


def _beside_old(
    old: Points | None,
    new: Points,
    comes: Tensor,
    wanted: int,
) -> Points:
    """Return the sinks of each row: the new ones in their places, and the old ones in the others.

    Args:
        old: the sinks so far, at most ``wanted`` places; None before the first points.
        new: ``wanted`` places, of which those of new sinks are read.
        comes: whether a place gets a new sink, (B, wanted).
        wanted: s.
    """
    # For keys and values, (B, G, s, e).
    comes_wide = comes[:, None, :, None]
    if old is None:
        key = torch.where(comes_wide, new.key, 0.0)
        value = torch.where(comes_wide, new.value, 0.0)
        return Points(key, value, new.mass)

    # While points were all visible, the memory had only as many places as sinks.
    missing = wanted - old.key.shape[2]
    old_key = F.pad(old.key, (0, 0, 0, missing))
    old_value = F.pad(old.value, (0, 0, 0, missing))
    old_mass = F.pad(old.mass, (0, missing))
    return Points(
        torch.where(comes_wide, new.key, old_key.to(new.key.dtype)),
        torch.where(comes_wide, new.value, old_value.to(new.value.dtype)),
        torch.where(comes, new.mass, old_mass.to(new.mass.dtype)),
    )
