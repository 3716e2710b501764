"""Causal attention with a window: softmax on the last points, an inner product of features for all
before them, one normaliser over both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..backend import full_precision
from .chunked import (
    linear_attention_step,
    linear_attention_stretch,
    over_new_factor,
)

BLOCK = 64  # queries whose near keys are multiplied at once
NOTHING = -1e30  # the score of points that do not exist: finite, and rounded to no infinity
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
    chunk: int = 64,
) -> tuple[Float[Tensor, "b h n c"], dict[str, Tensor]]:
    r"""The next n points in causal order: what they receive, and the memory after them.

    .. math:: y_i = \frac{\sum_{i-w<j\le i} m_j e^{q_i\cdot k_j} v_j
        + \sum_{j\le i-w} m_j\,\phi(q_i)\cdot\psi(k_j)\,v_j}
        {\text{the same with } v = 1}

    The points before the window are one more score of the softmax over the window, the logarithm
    of what they weigh together, a + c + log z with :math:`(s, z) = \sum_j m_j\,\phi(q_i)\cdot
    \psi(k_j)\,(v_j, 1)`, and s / z is their value: neither part overflows, not both vanish.

    Args:
        query, key, value: q with softmax's scale in it, k and v; keys of fewer heads are each for a
            group of neighbouring queries' heads.
        mass: m, zero at padding.
        far: φ and ψ.
        memory: of the points before; empty before the first.
        window: w, points that softmax sees, the query's own included.
        chunk: of the linear part.

    Shape: the memory is ``moment`` (B, S, r, c + 1), ``shift`` c (B, S) where there is one, and the
    last w points: ``near_key`` (B, G, w, e), ``near_value`` (B, G, w, c), ``near_mass`` (B, w).

    Cost: O(n·(w·(e + c) + r·c)) time, whatever came before.

    Example:
        >>> x, mass = torch.ones(1, 1, 5, 2), torch.ones(1, 5)
        >>> far = Far(x, None, lambda key, real, least: (key, None))
        >>> out, memory = advance_window(x, x, x, mass, far, {}, window=3)
        >>> out[0, 0, 4].tolist(), tuple(memory["near_key"].shape), memory["moment"][0, 0].tolist()
        ([1.0, 1.0], (1, 1, 3, 2), [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]])
    """
    n = query.shape[2]
    dtype = torch.promote_types(query.dtype, torch.float32)
    keys, values, masses = _with_past(key, value, mass.to(dtype), memory, window)
    # Of the last w points and the new ones, query i sees i + 1 to i + w nearby, all up to i before:
    # the first w queries of all have nothing before their window.
    none = 0 if memory or torch.compiler.is_compiling() else min(window, n - 1)
    old = slice(none, n)
    real = masses[:, old] > 0
    features, shift = far.keys(keys[:, :, old], real, memory.get("shift"))
    with full_precision(query):
        moment = memory.get("moment")
        if moment is not None:
            moment = moment.to(dtype)
            if shift is not None:
                moment = moment * over_new_factor(memory["shift"], shift).to(dtype)
        left = features, values[:, :, old], masses[:, old]
        rest, moment = _before(far.query[:, :, none:], *left, moment, chunk)
        rest = F.pad(rest, (0, 0, none, 0)) if none else rest
        beyond, mean = _score(rest, _exponent(far.exponent, shift, rest))
        near, share = _attend(query.to(dtype), beyond, keys, values, masses, window)
        out = torch.addcmul(near, share, mean)
    after = {} if shift is None else {"shift": shift}
    # Clones: a part of what the stretch was computed from would keep all of that.
    after |= {"moment": moment, "near_mass": masses[:, n:].clone()}
    after |= {"near_key": keys[:, :, n:].clone(), "near_value": values[:, :, n:].clone()}
    return out, after


def _with_past(
    key: Tensor, value: Tensor, mass: Tensor, memory: dict[str, Tensor], window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and masses behind the last ``window`` ones; before the first, empty ones."""
    mass = mass.expand(key.shape[0], -1)
    if not memory:
        # heads first in memory as well: other strides would fix a traced length
        keys, values = (F.pad(x.contiguous(), (0, 0, window, 0)) for x in (key, value))
        return keys, values, F.pad(mass, (window, 0))
    past = {"near_key": key, "near_value": value}
    keys, values = (torch.cat([memory[k].to(x.dtype), x], 2) for k, x in past.items())
    return keys, values, torch.cat([memory["near_mass"].to(mass.dtype), mass], 1)


def _folded(x: Tensor, groups: int) -> Tensor:
    """(B, H, ...) as (B·G, H/G, ...): heads of a group share their keys."""
    return x.reshape(x.shape[0] * groups, x.shape[1] // groups, *x.shape[2:])


def _score(rest: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    """The score of all points before the window as one, log z + a + c, (B, H, n, 1), and their mean
    value s / z, (B, H, n, c). Exponents are of s and z alike: no gradient goes through them.
    """
    total = rest[..., -1:]
    least = vanishing(total.dtype)
    some, total = total > least, total.clamp_min(least)
    return torch.where(some, total.log() + exponent.detach(), NOTHING), rest[..., :-1] / total


def _attend(
    query: Tensor, beyond: Tensor, key: Tensor, value: Tensor, mass: Tensor, window: int
) -> tuple[Tensor, Tensor]:
    """One softmax over the window's scores and the one ``beyond`` it: the sum over the window,
    (B, H, n, c), and the share of the rest, (B, H, n, 1). A block of queries at a time, against the
    window before it and itself.

    The first key of such a stretch is in nobody's window. Its place is taken by the rest: a key and
    a value of zeros, to whose score that of the rest is added.
    """
    (b, h, n, _), groups = query.shape, key.shape[1]
    tracing = torch.compiler.is_compiling()
    block = BLOCK if tracing else min(BLOCK, n)
    count = (n + block - 1) // block
    if tracing:
        count += 1  # see _prefix_sums: a traced dimension of size 1 would be taken for a constant
    more, together = count * block - n, h // groups
    first = block * torch.arange(count, device=query.device)[:, None]
    column = torch.arange(block + window, device=query.device)
    row = torch.arange(block, device=query.device)
    place = torch.where(column > 0, first + column, n + window + more)  # the last is all before
    seen = (column == 0) | ((column > row[:, None]) & (column <= row[:, None] + window))
    # (B·G, 1, blocks, e | c, keys): heads of a group share their keys
    key, value = (
        _taken(F.pad(_folded(x, groups).to(query.dtype), (0, 0, 0, more + 1)), place)
        for x in (key, value)
    )
    mass = F.pad(F.pad(mass, (0, more)), (0, 1), value=1.0)
    weight = torch.where(mass > 0, torch.where(mass > 0, mass, 1.0).log(), -torch.inf)
    weight = _taken(weight[:, None, :, None], place).transpose(-1, -2)
    weight = weight.masked_fill(~seen, -torch.inf)[:, :, :, None]
    # (B·G, 1, blocks, heads of a group x block, e): those that share keys are one matrix
    split = (b * groups, together, count, block)

    def in_blocks(x: Tensor) -> Tensor:
        x = _padded(x, more)
        x = _taken(x, first + row) if tracing else x.unflatten(2, (count, block))
        return x.reshape(*split, x.shape[-1]).transpose(1, 2)

    queries = in_blocks(query).reshape(b * groups, 1, count, together * block, key.shape[-1])
    scores = (queries @ key.mT).reshape(b, groups, count, together, block, block + window)
    rest = in_blocks(beyond).reshape(b, groups, count, together, block, 1)
    scores = scores.add_(weight)
    scores[..., :1] += rest
    share = scores.softmax(-1)
    share = share.reshape(b * groups, 1, count, together * block, block + window)

    def in_order(x: Tensor) -> Tensor:
        x = x.reshape(b * groups, count, together, block, x.shape[-1]).transpose(1, 2)
        return _first(x.reshape(b, h, count * block, x.shape[-1]), n)

    return in_order(share @ value), in_order(share[..., :1])


def _padded(x: Tensor, more: int) -> Tensor:
    """With so many empty points behind the last."""
    plain = not torch.compiler.is_compiling() and more == 0
    return x if plain else F.pad(x, (0, 0, 0, more))


def _first(x: Tensor, n: int) -> Tensor:
    """The first n points: by a negative pad in traced code, which would have to prove that there
    are as many.
    """
    if torch.compiler.is_compiling():
        return F.pad(x, (0, 0, 0, n - x.shape[2]))
    return x[:, :, :n]


def _taken(x: Tensor, place: Tensor) -> Tensor:
    """Rows of dimension 2 by their places (m, k), (..., m, k, e). Not by ``unfold``: its strides
    fix lengths that are traced, and ``torch.func.vmap`` takes its gradient row by row.
    """
    if torch.compiler.is_compiling():  # to traced code unflatten would be a claim of divisibility
        return x[:, :, place]
    return x.index_select(2, place.flatten()).unflatten(2, place.shape)


def _before(
    query: Tensor, key: Tensor, value: Tensor, mass: Tensor, moment: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor]:
    """Sums over the points before the window of values and of ones, (B, H, n, c + 1), and the
    moment after them, (B, S, r, c + 1).
    """
    (b, h, n, _), groups = query.shape, key.shape[1]
    value = value.repeat_interleave(groups // value.shape[1], 1)
    query, key = _folded(query, groups), _folded(key, groups)
    value = F.pad(_folded(value, groups).to(key.dtype), (0, 1), value=1.0)
    mass = mass.repeat_interleave(groups, 0)
    moment = None if moment is None else _folded(moment, groups)
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
