"""Causal attention with a window: softmax on the last points, an inner product of features for all
before them, one normaliser over both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..backend import full_precision
from .band import NOTHING, Sinks, attend_in_band, folded, taken_by_row, visible_first
from .chunked import over_new_factor
from .running import linear_attention_step, linear_attention_stretch

NEAR = ("near_key", "near_value", "near_mass")  # the memory's points, in softmax's part
KeyFeatures = Callable[[Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor | None]]


class Far(NamedTuple):
    """What the points before the window are seen by.

    Attributes:
        query: φ over :math:`e^a`, (B, H, n, r), not negative.
        exponent: a, (B, H, n), without a gradient; None where nothing was divided.
        keys: ψ over :math:`e^c`, (B, S, n, r), and c (B, S) or None, of keys (B, G, n, e), which of
            them are real (B, n), and the smallest c allowed. S is G, or H where heads that share a
            key have maps of their own.
    """

    query: Tensor
    exponent: Tensor | None
    keys: KeyFeatures


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
) -> tuple[Float[Tensor, "b h n c"], dict[str, Tensor]]:
    r"""The next n points in causal order: what they receive, and the memory after them.

    .. math:: y_i = \frac{\sum_{j\in W_i} m_j e^{q_i\cdot k_j} v_j
        + \sum_{j\le i,\, j\notin W_i} m_j\,\phi(q_i)\cdot\psi(k_j)\,v_j}
        {\text{the same with } v = 1}

    W_i are the last w visible points up to i, and the first ``sinks`` visible points of all. A
    hidden point is in no window, and takes no place in one.

    The points before the window are one more score of the softmax over the window, the logarithm
    of what they weigh together, a + c + log z with :math:`(s, z) = \sum_j m_j\,\phi(q_i)\cdot
    \psi(k_j)\,(v_j, 1)`, and s / z is their value: neither part overflows, not both vanish.

    Args:
        query, key, value: q with softmax's scale in it, k and v; keys of fewer heads are each for a
            group of neighbouring queries' heads.
        mass: m, zero at padding.
        far: φ and ψ.
        memory: of the points before; empty before the first.
        window: w, visible points that softmax sees, the query's own included.
        sinks: s, the first visible points of all, which stay in softmax's part.
        valid: the visible points, or None where all are.
        chunk: of the linear part.

    Shape: the memory is ``moment`` (B, S, r, c + 1), ``shift`` c (B, S) where there is one, and the
    sinks so far with the last w points behind them: ``near_key`` (B, G, s + w, e), ``near_value``
    (B, G, s + w, c), ``near_mass`` (B, s + w). Where points were hidden, ``sinks_filled`` (B,)
    counts each row's sinks.

    Cost: O(n·(w·(e + c) + r·c)) time, whatever came before.

    Example:
        >>> x, mass = torch.ones(1, 1, 5, 2), torch.ones(1, 5)
        >>> far = Far(x, None, lambda key, real, least: (key, None))
        >>> out, memory = advance_window(x, x, x, mass, far, {}, window=3)
        >>> out[0, 0, 4].tolist(), tuple(memory["near_key"].shape), memory["moment"][0, 0].tolist()
        ([1.0, 1.0], (1, 1, 3, 2), [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]])
    """
    if sinks:
        return _advance_beside_sinks(
            query, key, value, mass, far, memory, Sizes(window, sinks, chunk), valid
        )
    return _advance(query, key, value, mass, far, memory, Sizes(window, 0, chunk), valid, None)


class Sizes(NamedTuple):
    """The sizes of :func:`advance_window`: the window, the sinks, and a chunk of the far part."""

    window: int
    sinks: int
    chunk: int


def _advance(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mass: Tensor,
    far: Far,
    memory: dict[str, Tensor],
    sizes: Sizes,
    valid: Tensor | None,
    sinks: Sinks | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """:func:`advance_window` of points that are no sinks, beside sinks that are known."""
    n, window = query.shape[2], sizes.window
    dtype = torch.promote_types(query.dtype, torch.float32)
    mass = mass.to(dtype).expand(key.shape[0], -1)
    rank = None
    if valid is not None:
        valid = valid.expand(key.shape[0], -1)
        rank = valid.cumsum(1)
        key, value, mass = visible_first(key, value, mass, valid)
    keys, values, masses = _with_past(key, value, mass, memory, window)

    # The first w queries of all have nothing before their window.
    none = 0 if memory or torch.compiler.is_compiling() else min(window, n - 1)
    leaving = _leaving(keys, values, masses, valid, rank, none, n)
    features, shift = far.keys(leaving.key, leaving.mass > 0, memory.get("shift"))
    with full_precision(query):
        moment = memory.get("moment")
        if moment is not None:
            moment = moment.to(dtype)
            if shift is not None:
                moment = moment * over_new_factor(memory["shift"], shift).to(dtype)
        left = features, leaving.value, leaving.mass
        rest, moment = _before(far.query[:, :, none:], *left, moment, sizes.chunk)
        rest = F.pad(rest, (0, 0, none, 0)) if none else rest
        beyond, mean = _score(rest, _exponent(far.exponent, shift, rest))
        points = query.to(dtype), keys, values, masses
        near, share = attend_in_band(*points, beyond, window, rank, sinks)
        out = torch.addcmul(near, share, mean)

    after = {} if shift is None else {"shift": shift}
    # Clones: a part of what the stretch was computed from would keep all of that.
    last = slice(n, None)
    if rank is None:
        kept = keys[:, :, last].clone(), values[:, :, last].clone(), masses[:, last].clone()
    else:
        place = rank[:, -1:] + torch.arange(window, device=query.device)
        kept = taken_by_row(keys, place), taken_by_row(values, place), masses.gather(1, place)
    return out, after | {"moment": moment, **dict(zip(NEAR, kept))}


def _advance_beside_sinks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mass: Tensor,
    far: Far,
    memory: dict[str, Tensor],
    sizes: Sizes,
    valid: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """:func:`advance_window` with sinks, which are hidden points to the window and the moment."""
    n, wanted = query.shape[2], sizes.sinks
    known = memory["near_key"].shape[2] - sizes.window if memory else 0
    filled = memory.get("sinks_filled")
    plain = valid is None and filled is None
    if plain and known < wanted < known + n:  # the first points apart: the others need no gather
        outs = []
        for part in (slice(0, wanted - known), slice(wanted - known, n)):
            exponent = far.exponent
            if exponent is not None and exponent.shape[-1] > 1:  # else one for all points
                exponent = exponent[..., part]
            some = Far(far.query[:, :, part], exponent, far.keys)
            points = query[:, :, part], key[:, :, part], value[:, :, part], mass[:, part]
            out, memory = _advance_beside_sinks(*points, some, memory, sizes, None)
            outs.append(out)
        return torch.cat(outs, 2), memory

    mass = mass.to(torch.promote_types(query.dtype, torch.float32)).expand(key.shape[0], -1)
    ring = {name: x for name, x in memory.items() if name != "sinks_filled"}
    first = []
    for name, dim in zip(NEAR, (2, 2, 1)):
        if memory:
            first.append(memory[name].narrow(dim, 0, known))
            ring[name] = memory[name].narrow(dim, known, sizes.window)
    if plain:
        slots = min(wanted, known + n)
        rank = known + torch.arange(1, n + 1, device=query.device)[None]
        sinks = _more_sinks(first, (key, value, mass), slots - known)
        in_band = None if known == wanted else torch.zeros_like(mass, dtype=torch.bool)
    else:
        slots = wanted
        if valid is None:
            valid = torch.ones_like(mass, dtype=torch.bool)
        valid = valid.expand(mass.shape[0], -1)
        if filled is None:
            filled = mass.new_full((mass.shape[0],), known)
        rank = filled[:, None] + valid.cumsum(1)
        sinks = _filled_sinks(first, (key, value, mass), valid, filled, wanted)
        in_band = valid & (rank > wanted)
    seen = torch.arange(slots, device=query.device) < rank[..., None]
    band_mass = mass if in_band is None else torch.where(in_band, mass, 0.0)
    points = query, key, value, band_mass
    out, after = _advance(*points, far, ring, sizes, in_band, Sinks(*sinks, seen))
    for name, x, dim in zip(NEAR, sinks, (2, 2, 1)):
        after[name] = torch.cat([x.to(after[name].dtype), after[name]], dim)
    if not plain:
        after["sinks_filled"] = rank[:, -1].clamp_max(wanted)
    return out, after


Points = tuple[Tensor, Tensor, Tensor]


def _more_sinks(first: list[Tensor], new: Points, count: int) -> Points:
    """The sinks so far, and the first ``count`` new points behind them."""
    key, value, mass = new
    more = key[:, :, :count], value[:, :, :count], mass[:, :count]
    if not first:
        return more
    pairs = zip(first, more, (2, 2, 1))
    key, value, mass = (torch.cat([old.to(x.dtype), x], dim) for old, x, dim in pairs)
    return key, value, mass


def _filled_sinks(
    first: list[Tensor], new: Points, valid: Tensor, filled: Tensor, wanted: int
) -> Points:
    """As many places as sinks are wanted, of each row those that are visible so far; mass zero in
    the others.
    """
    new = visible_first(*new, valid)
    slot = torch.arange(wanted, device=filled.device)
    source = slot - filled[:, None].long()
    comes = (source >= 0) & (source < valid.sum(1, keepdim=True))
    source = source.clamp(0, valid.shape[1] - 1)
    key, value = (taken_by_row(x, source) for x in new[:2])
    mass = torch.where(comes, new[2].gather(1, source), 0.0)
    comes_wide = comes[:, None, :, None]
    if not first:
        return torch.where(comes_wide, key, 0.0), torch.where(comes_wide, value, 0.0), mass
    missing = wanted - first[0].shape[2]
    old_key, old_value = (F.pad(x, (0, 0, 0, missing)) for x in first[:2])
    old_mass = F.pad(first[2], (0, missing))
    return (
        torch.where(comes_wide, key, old_key.to(key.dtype)),
        torch.where(comes_wide, value, old_value.to(value.dtype)),
        torch.where(comes, mass, old_mass.to(mass.dtype)),
    )


class Leaving(NamedTuple):
    """The points that leave the window as each new one comes; mass zero where none does."""

    key: Tensor
    value: Tensor
    mass: Tensor


def _leaving(
    keys: Tensor,
    values: Tensor,
    masses: Tensor,
    valid: Tensor | None,
    rank: Tensor | None,
    none: int,
    n: int,
) -> Leaving:
    """Of the last w points and the new ones, query i sees i + 1 to i + w nearby, all up to i
    before; with hidden points its rank among the visible ones takes the place of i + 1.
    """
    if rank is None or valid is None:
        old = slice(none, n)
        return Leaving(keys[:, :, old], values[:, :, old], masses[:, old])
    place = (rank[:, none:] - 1).clamp_min(0)
    mass = torch.where(valid[:, none:], masses.gather(1, place), 0.0)
    return Leaving(taken_by_row(keys, place), taken_by_row(values, place), mass)


def _with_past(
    key: Tensor, value: Tensor, mass: Tensor, memory: dict[str, Tensor], window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and masses behind the last ``window`` ones; before the first, empty ones."""
    if not memory:
        # heads first in memory as well: other strides would fix a traced length
        keys, values = (F.pad(x.contiguous(), (0, 0, window, 0)) for x in (key, value))
        return keys, values, F.pad(mass, (window, 0))
    past = {"near_key": key, "near_value": value}
    keys, values = (torch.cat([memory[k].to(x.dtype), x], 2) for k, x in past.items())
    return keys, values, torch.cat([memory["near_mass"].to(mass.dtype), mass], 1)


def _score(rest: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    """The score of all points before the window as one, log z + a + c, (B, H, n, 1), and their mean
    value s / z, (B, H, n, c). Exponents are of s and z alike: no gradient goes through them.
    """
    total = rest[..., -1:]
    least = vanishing(total.dtype)
    some, total = total > least, total.clamp_min(least)
    return torch.where(some, total.log() + exponent.detach(), NOTHING), rest[..., :-1] / total


def _before(
    query: Tensor, key: Tensor, value: Tensor, mass: Tensor, moment: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor]:
    """Sums over the points before the window of values and of ones, (B, H, n, c + 1), and the
    moment after them, (B, S, r, c + 1).
    """
    (b, h, n, _), groups = query.shape, key.shape[1]
    value = value.repeat_interleave(groups // value.shape[1], 1)
    query, key = folded(query, groups), folded(key, groups)
    value = F.pad(folded(value, groups).to(key.dtype), (0, 1), value=1.0)
    mass = mass.repeat_interleave(groups, 0)
    moment = None if moment is None else folded(moment, groups)
    if n > 1:
        options = {"floor": None, "chunk": chunk}
        out, moment = linear_attention_stretch(query, key, value, mass, None, moment, **options)
    else:  # without chunks, whose padding would cost as much again
        point = query[:, :, 0], key[:, :, 0], value[:, :, 0]
        out, moment = linear_attention_step(*point, mass[:, 0], None, moment, floor=None)
        out = out[:, :, None]
    after = moment.reshape(b, groups, *moment.shape[2:])  # type: ignore[union-attr]
    return out.reshape(b, h, n, out.shape[-1]), after


def _exponent(query: Tensor | None, key: Tensor | None, like: Tensor) -> Tensor:
    """a + c, by which the sums before the window were divided, (B, H, n | 1, 1)."""
    result = like.new_zeros(())
    if query is not None:
        result = result + query[..., None].to(like.dtype)
    if key is not None:  # -∞ before the first key, whose sums are zero
        shared = like.shape[1] // key.shape[1]
        result = result + key.repeat_interleave(shared, 1)[..., None, None].to(like.dtype)
    return result


def vanishing(dtype: torch.dtype) -> float:
    """A sum of products of features, each at most 1, that counts as none: 10^-30 in float32, whose
    reciprocal still leaves a gradient finite.
    """
    return torch.finfo(dtype).tiny ** 0.8
