"""One point of causal attention with a window, its memory changed in place: decoding repeats it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..backend import at_least_single, cast, full_precision
from .band import Points
from .chunked import over_new_factor
from .store import Store
from .window_decay import NEAR_AGE, fade_in_place
from .window_stretch import Far, near_points, vanishing, without


def step_window(
    query: Float[Tensor, "b h 1 e"],
    new: Points,
    far: Far,
    memory: dict[str, Tensor],
    slot: int | Int[Tensor, " b"],
    valid: Bool[Tensor, "b 1"] | None = None,
    left: int | None = None,
) -> Float[Tensor, "b h 1 c"]:
    r"""Return the response of the next point of :func:`advance_window`, and advance the memory in
    place.

    The last w points are a ring, since neither part of the sum asks for their order: the point in
    ``slot``, the oldest, is added to the moment, and the new one takes its place. Both parts meet
    in one softmax over w + 1 scores, the last of which is the logarithm of all before the window:

    .. math:: p = \mathrm{softmax}\big(q\cdot k_j + \log m_j \;\big|\; a + c + \log z\big), \qquad
        y = \sum_{j} p_j v_j + p_{w+1}\, s / z, \qquad (s, z) = \phi\,M

    Args:
        query, far: see :func:`advance_window`; no gradients are recorded.
        new: the next point.
        memory: of the points before, in the dtypes that :func:`advance_window` gives it. Its
            tensors keep their place in memory.
        slot: of the oldest point; one per row where hidden points came, whose rows did not move on.
            Sinks lie in front of the ring and stay.
        valid: rows whose point is visible; a hidden one changes nothing. None for all.
        left: of a memory with a store, the number of the point in ``slot``, see
            :class:`.store.Store`, at which no block begins; in all rows the same.

    Cost: O(w·(e + c) + r·c) time; nothing that grows is allocated.

    Example:
        >>> x = torch.ones(1, 1, 1, 2)
        >>> point = Points(x, x, torch.ones(1, 1))
        >>> far = Far(x, None, lambda key, real, least: (key, None))
        >>> memory = {"moment": torch.zeros(1, 1, 2, 3), "near_mass": torch.zeros(1, 3)}
        >>> memory |= {name: torch.zeros(1, 1, 3, 2) for name in ("near_key", "near_value")}
        >>> out = [step_window(x, point, far, memory, i % 3) for i in range(5)]
        >>> out[4][0, 0, 0].tolist(), memory["moment"][0, 0].tolist()
        ([1.0, 1.0], [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]])
    """
    ring = near_points(memory)
    dtype = at_least_single(query.dtype)

    # Rows that advance alike are read and written through views, without a gather.
    views = None
    if valid is None and isinstance(slot, int):
        views = ring.part(slice(slot, slot + 1))
        oldest = views
    else:
        oldest = _oldest_by_row(ring, slot, valid)

    # ψ of the point that leaves. It is zero for a point that the store has.
    features, shift = far.keys(
        oldest.key,
        oldest.mass > 0,
        memory.get("shift"),
    )
    if far.decay is not None:
        # Sinks lie in front of the ring, and have no age.
        sinks = ring.key.shape[2] - memory[NEAR_AGE].shape[2]
        features = fade_in_place(
            memory,
            far.decay,
            features,
            slot - sinks,
            valid,
        )
    store = None
    if left is not None:
        store = Store.of(memory)
        is_stored = (store.number == left).any(-1, keepdim=True)
        features = without(features, is_stored)
        store.count.add_(1)
        if store.age is not None and far.decay is not None:
            store.age.add_(far.decay.to(store.age.dtype))

    with full_precision(query):
        if shift is not None:
            ratio = over_new_factor(memory["shift"], shift)
            memory["moment"].mul_(ratio)
            memory["shift"].copy_(shift)
        _add_to_moment(
            memory["moment"],
            features,
            oldest,
            dtype,
        )

        # The new point overwrites the oldest, which the moment has by now.
        if views is None:
            _put_by_row(ring, new, slot, valid)
        else:
            for place, x in zip(views, new):
                place.copy_(x)

        near = _Near(
            cast(ring.key, dtype),
            cast(ring.value, dtype),
            ring.mass[:, None],
        )
        if store is not None and left is not None:
            near = _with_store(near, store, left, dtype)
        return _respond(
            query,
            near,
            far,
            memory["moment"],
            shift,
            dtype,
        )


class _Near(NamedTuple):
    """What softmax sees: keys and values (B, G, m, e) and (B, G, m, c), masses (B, 1 | G, m)."""

    key: Tensor
    value: Tensor
    mass: Tensor


def _with_store(
    near: _Near,
    store: Store,
    left: int,
    dtype: torch.dtype,
) -> _Near:
    """Append the points of a store to those of the ring.

    Args:
        near: the ring, the last w points.
        store: the store, in which points are numbered in the order in which they came.
        left: the number of the point that has just left the window.
        dtype: of the sums.
    """
    mass = near.mass.expand(-1, near.key.shape[1], -1)
    # All masses beside a store are 1. A chosen point that is still in the window gets mass 0 here,
    # because the ring has it as well; so does an empty place.
    stored_mass = (store.number <= left).to(mass.dtype)
    return _Near(
        torch.cat([near.key, cast(store.key, dtype)], 2),
        torch.cat([near.value, cast(store.value, dtype)], 2),
        torch.cat([mass, stored_mass], 2),
    )


def _add_to_moment(
    moment: Tensor,
    features: Tensor,
    point: Points,
    dtype: torch.dtype,
) -> None:
    """Add m ψ [v, 1]ᵀ of one point to the moment (B, S, r, c + 1), in place."""
    batch, groups = point.key.shape[:2]

    # m [v, 1], (B, G, 1, c + 1).
    mass = point.mass[:, None, :, None]
    weighted = cast(point.value, dtype) * mass
    value = torch.cat(
        [weighted, mass.expand(-1, groups, -1, -1)],
        -1,
    )

    # Heads of a group share a value: their moments lie above one another, (B·G, S / G · r, c + 1).
    matrices = batch * groups
    rows = moment.view(matrices, -1, value.shape[-1])
    column = features.reshape(matrices, -1, 1)
    rows.baddbmm_(column, value.view(matrices, 1, -1))


def _respond(
    query: Tensor,
    near: _Near,
    far: Far,
    moment: Tensor,
    shift: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return the softmax over the points nearby and all others, (B, H, 1, c)."""
    batch, heads, _, width = query.shape
    groups, count = near.key.shape[1:3]
    matrices = batch * groups
    shared = heads // groups

    # The points before the window: sums of values (B, H, 1, c) and of weights (B, H, 1, 1).
    states = moment.shape[1]
    features = far.query.reshape(
        batch * states,
        heads // states,
        -1,
    )
    before = features @ moment.flatten(0, 1)
    before = before.view(batch, heads, 1, -1)
    sums = before[..., :-1]
    total = before[..., -1:]

    # Their score. Its lower bound keeps softmax a number where nothing at all is seen: the empty
    # sum is what remains.
    beyond = total.log()
    for exponent in (far.exponent, shift):
        if exponent is not None:
            beyond = beyond + _for_heads(exponent, heads, dtype)
    beyond = beyond.clamp_min(torch.finfo(dtype).min)

    # The scores of points nearby, q·k + log m, (B·G, H / G, m).
    queries = cast(query, dtype).reshape(matrices, shared, width)
    log_mass = near.mass.log()
    if batch > 1 or log_mass.shape[1] > 1:
        log_mass = log_mass.expand(batch, groups, -1).reshape(matrices, 1, -1)
    scores = torch.baddbmm(
        log_mass,
        queries,
        near.key.flatten(0, 1).mT,
    )

    # One softmax over both. Its last share belongs to the points before the window.
    all_scores = torch.cat(
        [scores.view(batch, heads, 1, count), beyond],
        -1,
    )
    share = all_scores.softmax(-1)

    share_of_near = share[..., :-1].reshape(matrices, shared, count)
    out = share_of_near @ near.value.flatten(0, 1)
    out = out.view(batch, heads, 1, -1)
    # The bound keeps 0 / 0 out where nothing lies before the window.
    mean = sums / total.clamp_min(vanishing(dtype))
    return out.addcmul_(share[..., -1:], mean)


def _for_heads(exponent: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """Return exponents of fewer heads for all heads that share them, (1 | B, H | 1, 1, 1)."""
    exponent = exponent.reshape(-1, exponent.shape[1], 1, 1)
    shared = heads // exponent.shape[1]
    if shared > 1:
        exponent = exponent.repeat_interleave(shared, 1)
    return cast(exponent, dtype)


# --- the ring -------------------------------------------------------------------------------------


def _oldest_by_row(
    ring: Points,
    slot: int | Tensor,
    valid: Tensor | None,
) -> Points:
    """Return a copy of each row's oldest point, mass zero where a hidden point came, for which none
    leaves.
    """
    oldest = ring.at(_places(slot, ring.mass))
    if valid is None:
        return oldest
    return oldest._replace(mass=torch.where(valid, oldest.mass, 0.0))


def _put_by_row(
    ring: Points,
    new: Points,
    slot: int | Tensor,
    valid: Tensor | None,
) -> None:
    """Write each row's new point in the place of its oldest, where it is visible."""
    place = _places(slot, ring.mass)[:, None, :, None]
    # Masses get the shape of keys and values, (B, 1, n, 1).
    stored = ring._replace(mass=ring.mass[:, None, :, None])
    new = new._replace(mass=new.mass[:, None, :, None])

    for old, x in zip(stored, new):
        x = x.to(old.dtype).expand(old.shape[0], -1, -1, -1)
        index = place.expand_as(x)
        # A row whose new point is hidden writes back its old one.
        if valid is not None:
            oldest = old.gather(2, index)
            x = torch.where(valid[:, None, :, None], x, oldest)
        old.scatter_(2, index, x)


def _places(slot: int | Tensor, mass: Tensor) -> Tensor:
    """Return the place of each row's oldest point, (B, 1)."""
    if isinstance(slot, int):
        return torch.full(
            (mass.shape[0], 1),
            slot,
            device=mass.device,
        )
    return slot[:, None]
