"""Softmax in a band along the order: each query's last keys, the sinks, and one more score that
stands for all other keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64  # queries whose near keys are multiplied at once
NOTHING = -1e30  # the score of points that do not exist: finite, and rounded to no infinity


class Sinks(NamedTuple):
    """The first keys of all, which every later query sees by softmax.

    Attributes:
        key, value: (B, G, s, e) and (B, G, s, c).
        mass: (B, s).
        seen: which of them a query sees, (1 | B, n, s).
    """

    key: Tensor
    value: Tensor
    mass: Tensor
    seen: Tensor


class Band(NamedTuple):
    """The keys of each block of queries.

    Attributes:
        place: of the block's keys, (blocks, k), or (B, blocks, k) where rows differ.
        seen: which of them a query sees, (blocks | 1, queries, k), or with B in front.
    """

    place: Tensor
    seen: Tensor


def folded(x: Tensor, groups: int) -> Tensor:
    """(B, H, ...) as (B·G, H/G, ...): heads of a group share their keys."""
    return x.reshape(x.shape[0] * groups, x.shape[1] // groups, *x.shape[2:])


def visible_first(
    key: Tensor, value: Tensor, mass: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The points with the visible ones of each row in front, in their order."""
    order = (~valid).long().argsort(dim=1, stable=True)
    mass = torch.where(valid, mass, 0.0).gather(1, order)
    return taken_by_row(key, order), taken_by_row(value, order), mass


def taken_by_row(x: Tensor, place: Tensor) -> Tensor:
    """Points (B, G, n, e) at places of each row, (B, m)."""
    index = place[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


def attend_in_band(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mass: Tensor,
    beyond: Tensor,
    window: int,
    rank: Tensor | None = None,
    sinks: Sinks | None = None,
) -> tuple[Tensor, Tensor]:
    """One softmax over the window's scores, the sinks' and the one ``beyond`` both: the sum over
    window and sinks, (B, H, n, c), and the share of the rest, (B, H, n, 1). A block of queries at a
    time, against the window before it and itself.

    The first key of such a stretch is in nobody's window. Its place is taken by the rest: a key and
    a value of zeros, to whose score that of the rest is added.

    Args:
        query: (B, H, n, e), softmax's scale in it.
        key, value, mass: of the last w points before, and the n new ones, (B, G, w + n, ·).
        beyond: the score of the rest, (B, H, n, 1).
        window: w.
        rank: (B, n), where points are hidden: how many of the new ones are visible, up to each.
            Keys, values and masses then have the visible ones first.
        sinks: keys beside the window.
    """
    (b, h, n, _), groups = query.shape, key.shape[1]
    tracing = torch.compiler.is_compiling()
    block = BLOCK if tracing else min(BLOCK, n)
    count = (n + block - 1) // block
    if tracing:
        count += 1  # see _prefix_sums: a traced dimension of size 1 would be taken for a constant
    more, together = count * block - n, h // groups
    if rank is None:
        band = _regular(count, block, window, n + window + more, query.device)
    else:
        band = _ranked(F.pad(rank, (0, more), value=0), n, block, window, n + window + more)

    # (B·G, 1, blocks, e | c, keys): heads of a group share their keys
    keys, values = (
        _taken(F.pad(folded(x, groups).to(query.dtype), (0, 0, 0, more + 1)), band.place, groups)
        for x in (key, value)
    )
    mass = F.pad(F.pad(mass, (0, more)), (0, 1), value=1.0)
    weight = _taken(_log(mass)[:, None, :, None], band.place, 1).transpose(-1, -2)
    seen = band.seen if rank is None else band.seen[:, None]
    weight = weight.masked_fill(~seen, -torch.inf)[:, :, :, None]
    # (B·G, 1, blocks, heads of a group x block, e): those that share keys are one matrix
    split = (b * groups, together, count, block)

    def in_blocks(x: Tensor) -> Tensor:
        x = _padded(x, more)
        if tracing:
            x = _taken(x, block * torch.arange(count, device=x.device)[:, None] + _row(block, x), 1)
        else:
            x = x.unflatten(2, (count, block))
        return x.reshape(*split, x.shape[-1]).transpose(1, 2)

    queries = in_blocks(query).reshape(b * groups, 1, count, together * block, keys.shape[-1])
    scores = (queries @ keys.mT).reshape(b, groups, count, together, block, block + window)
    rest = in_blocks(beyond).reshape(b, groups, count, together, block, 1)
    scores = scores.add_(weight)
    scores[..., :1] += rest
    if sinks is not None:
        scores = torch.cat([scores, _sink_scores(queries, sinks, more, scores)], -1)
    share = scores.softmax(-1).reshape(b * groups, 1, count, together * block, scores.shape[-1])

    def in_order(x: Tensor) -> Tensor:
        x = x.reshape(b * groups, count, together, block, x.shape[-1]).transpose(1, 2)
        return _first(x.reshape(b, h, count * block, x.shape[-1]), n)

    if sinks is None:
        return in_order(share @ values), in_order(share[..., :1])
    nearby, first = share.split([block + window, sinks.key.shape[2]], -1)
    first_values = folded(sinks.value, groups).to(query.dtype)[:, :, None]
    return in_order(nearby @ values + first @ first_values), in_order(share[..., :1])


def _sink_scores(queries: Tensor, sinks: Sinks, more: int, like: Tensor) -> Tensor:
    """The scores of the sinks, (B, G, blocks, heads of a group, block, s)."""
    b, groups, count, together, block, _ = like.shape
    keys = folded(sinks.key, groups).to(queries.dtype)[:, :, None]
    scores = (queries @ keys.mT).reshape(b, groups, count, together, block, keys.shape[-2])
    seen = F.pad(sinks.seen, (0, 0, 0, more), value=True)
    seen = seen.reshape(seen.shape[0], 1, count, 1, block, seen.shape[2])
    weight = _log(sinks.mass)[:, None, None, None, None].to(scores.dtype)
    return scores + weight.masked_fill(~seen, -torch.inf)


def _log(mass: Tensor) -> Tensor:
    """log m, -∞ without a gradient where m = 0."""
    return torch.where(mass > 0, torch.where(mass > 0, mass, 1.0).log(), -torch.inf)


def _row(block: int, like: Tensor) -> Tensor:
    return torch.arange(block, device=like.device)


def _regular(count: int, block: int, window: int, rest: int, device: torch.device) -> Band:
    """The band where every point is visible: query i sees i + 1 to i + w."""
    first = block * torch.arange(count, device=device)[:, None]
    column = torch.arange(block + window, device=device)
    row = torch.arange(block, device=device)
    place = torch.where(column > 0, first + column, rest)  # the last is all before
    seen = (column == 0) | ((column > row[:, None]) & (column <= row[:, None] + window))
    return Band(place, seen)


def _ranked(rank: Tensor, n: int, block: int, window: int, rest: int) -> Band:
    """The band of visible points: a query of rank r sees r to r + w - 1."""
    inside = torch.arange(rank.shape[1], device=rank.device) < n
    rank = torch.where(inside, rank, rank[:, n - 1 : n])
    rank = rank.reshape(rank.shape[0], rank.shape[1] // block, block)
    first = rank[:, :, :1] - 1
    column = torch.arange(block + window, device=rank.device)
    place = torch.where(column > 0, first + column, rest)
    row = (rank - rank[:, :, :1])[..., None]
    return Band(place, (column == 0) | ((column > row) & (column <= row + window)))


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


def _taken(x: Tensor, place: Tensor, groups: int) -> Tensor:
    """Rows of dimension 2 by their places (m, k), (..., m, k, e), or by those of each of B rows,
    (B, m, k). Not by ``unfold``: its strides fix lengths that are traced, and ``torch.func.vmap``
    takes its gradient row by row.
    """
    if place.dim() == 3:
        rows = place if groups == 1 else place.repeat_interleave(groups, 0)
        found = taken_by_row(x, rows.flatten(1))
        return found.reshape(*x.shape[:2], *place.shape[1:], x.shape[3])
    if torch.compiler.is_compiling():  # to traced code unflatten would be a claim of divisibility
        return x[:, :, place]
    return x.index_select(2, place.flatten()).unflatten(2, place.shape)
