r"""Softmax in a band along the order: the last w keys of each query, the sinks, and one more score
that represents all other keys.

Queries go in blocks. The keys of a block are the w before it and its own: block + w of them, of
which the first is in the window of no query, since query i sees keys i - w + 1 to i. Its place is
taken by the rest: a key and a value of zeros, with the score of the rest in place of log m. One
softmax over block + w scores thus includes all keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64
"""Queries in a block, whose near keys are multiplied at once."""
NOTHING = -1e30
"""The score of points that do not exist: finite, and rounded to infinity by no dtype of scores."""


class Sinks(NamedTuple):
    """Keys that queries see by softmax wherever they lie: the first ones of all, and a store.

    Attributes:
        key, value: (B, G, s, e) and (B, G, s, c).
        mass: (B, 1 | G, s).
        seen: which of them a query sees, (1 | B, 1 | G, n, s).
    """

    key: Tensor
    value: Tensor
    mass: Tensor
    seen: Tensor


class Points(NamedTuple):
    """Keys, values and masses of points, (B, G, n, e), (B, G, n, c) and (B, n)."""

    key: Tensor
    value: Tensor
    mass: Tensor


class BandAttention(NamedTuple):
    """The softmax over window, sinks and rest.

    Attributes:
        out: the sum over window and sinks, (B, H, n, c).
        rest: the share of the rest, (B, H, n, 1).
    """

    out: Tensor
    rest: Tensor


class Band(NamedTuple):
    """The keys of each block of queries.

    Attributes:
        place: of the block's keys among all, (blocks, k), or (B, blocks, k) where rows differ. The
            first is one behind the last key, where the rest is.
        seen: which of them a query sees, (1 | blocks, block, k), or with B in front.
    """

    place: Tensor
    seen: Tensor


class Blocks(NamedTuple):
    """Queries (B, H, n, ·) cut into blocks.

    Attributes:
        size, count: queries in a block, and the number of blocks.
        points: n.
        batch, heads, groups: B, H and G; the H / G heads of a group share their keys.
    """

    size: int
    count: int
    points: int
    batch: int
    heads: int
    groups: int


def attend_in_band(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mass: Tensor,
    beyond: Tensor,
    window: int,
    rank: Tensor | None = None,
    sinks: Sinks | None = None,
) -> BandAttention:
    """Attend to the window and the sinks, with one more score for all other keys.

    Args:
        query: (B, H, n, e), softmax's scale in it.
        key, value, mass: of the last w points before and the n new ones, (B, G, w + n, ·).
        beyond: the score of the rest, (B, H, n, 1).
        window: w.
        rank: (B, n), where points are hidden: how many of the new ones are visible, up to each.
            Keys, values and masses then have the visible ones first.
        sinks: keys beside the window.

    Cost: O(n·(w + block)·(e + c)) time; memory O(n·(w + block)) for the scores, and
    O(n·(1 + w / block)·(e + c)) for the keys and values of all blocks.
    """
    blocks = _blocks(query, key.shape[1])
    padding = blocks.count * blocks.size - blocks.points
    stop = blocks.points + window + padding
    if rank is None:
        band = _regular(blocks, window, stop, query.device)
    else:
        band = _ranked(F.pad(rank, (0, padding), value=0), blocks, window, stop)

    # (B·G, 1, blocks, k, e | c): the queries of all heads of a group meet them as one matrix.
    keys, values = (_near(x, band, blocks, query.dtype) for x in (key, value))
    queries = _as_matrices(_in_blocks(query, blocks), blocks)

    # Scores, (B, G, blocks, heads of a group, block, k): q·k + log m in the window, -∞ outside of
    # it, and the score of the rest in the first column.
    shape = (blocks.batch, blocks.groups, blocks.count, blocks.heads // blocks.groups, blocks.size)
    scores = (queries @ keys.mT).reshape(*shape, blocks.size + window)
    scores = scores.add_(_log_weight(mass, band, padding, rank is not None))
    scores[..., :1] += _in_blocks(beyond, blocks).reshape(*shape, 1)
    if sinks is not None:
        scores = torch.cat([scores, _sink_scores(queries, sinks, blocks, scores)], -1)
    share = _as_matrices(scores.softmax(-1), blocks)

    rest = _in_order(share[..., :1], blocks)
    if sinks is None:
        return BandAttention(_in_order(share @ values, blocks), rest)
    of_band, of_sinks = share.split([blocks.size + window, sinks.key.shape[2]], -1)
    sink_values = folded(sinks.value, blocks.groups).to(query.dtype)[:, :, None]
    return BandAttention(_in_order(of_band @ values + of_sinks @ sink_values, blocks), rest)


def _sink_scores(queries: Tensor, sinks: Sinks, blocks: Blocks, like: Tensor) -> Tensor:
    """Return the scores of the sinks, (B, G, blocks, heads of a group, block, s)."""
    keys = folded(sinks.key, blocks.groups).to(queries.dtype)[:, :, None]
    scores = (queries @ keys.mT).reshape(*like.shape[:5], keys.shape[-2])

    # Queries of the padding see all sinks, so that their softmax is a number.
    padding = blocks.count * blocks.size - blocks.points
    seen = F.pad(sinks.seen, (0, 0, 0, padding), value=True)
    seen = seen.reshape(*seen.shape[:2], blocks.count, 1, blocks.size, seen.shape[3])

    weight = _log(sinks.mass)[:, :, None, None, None].to(scores.dtype)
    return scores + weight.masked_fill(~seen, -torch.inf)


def _log(mass: Tensor) -> Tensor:
    """Return log m, and -∞ without a gradient where m = 0.

    The inner ``where`` keeps log(0) out: its gradient, 1 / 0 times zero, would be NaN.
    """
    return torch.where(mass > 0, torch.where(mass > 0, mass, 1.0).log(), -torch.inf)


# --- which keys belong to a block -----------------------------------------------------------------


def _regular(blocks: Blocks, window: int, rest: int, device: torch.device) -> Band:
    """Return the band where every point is visible.

    The keys begin w places before the queries, so that query i sees places i + 1 to i + w. Row r of
    a block that begins at query f sees columns r + 1 to r + w of places f to f + block + w - 1.
    """
    first = blocks.size * torch.arange(blocks.count, device=device)[:, None]
    column = torch.arange(blocks.size + window, device=device)
    row = torch.arange(blocks.size, device=device)
    place = torch.where(column > 0, first + column, rest)
    in_window = (column > row[:, None]) & (column <= row[:, None] + window)
    return Band(place, (column == 0) | in_window)


def _ranked(rank: Tensor, blocks: Blocks, window: int, rest: int) -> Band:
    """Return the band of visible points: a query of rank r sees places r to r + w - 1.

    Ranks grow by at most one from query to query, so a block's keys are again at most block + w - 1
    in a row.
    """
    n = blocks.points
    # Queries of the padding rank with the last real one.
    real = torch.arange(rank.shape[1], device=rank.device) < n
    rank = torch.where(real, rank, rank[:, n - 1 : n])
    rank = rank.reshape(rank.shape[0], rank.shape[1] // blocks.size, blocks.size)

    first = rank[:, :, :1] - 1
    column = torch.arange(blocks.size + window, device=rank.device)
    place = torch.where(column > 0, first + column, rest)
    row = (rank - rank[:, :, :1])[..., None]
    return Band(place, (column == 0) | ((column > row) & (column <= row + window)))


def _near(x: Tensor, band: Band, blocks: Blocks, dtype: torch.dtype) -> Tensor:
    """Return the keys or values (B, G, w + n, e) of each block, (B·G, 1, blocks, k, e).

    One point of zeros is appended for the rest, behind those of the padding.
    """
    padding = blocks.count * blocks.size - blocks.points
    padded = F.pad(folded(x, blocks.groups).to(dtype), (0, 0, 0, padding + 1))
    return _taken(padded, band.place, blocks.groups)


def _log_weight(mass: Tensor, band: Band, padding: int, by_row: bool) -> Tensor:
    """Return log m of each block's keys, -∞ where a query does not see one.

    (B, 1, blocks, 1, 1 | block, k). The rest has a mass of one, and its score is added later.
    """
    mass = F.pad(F.pad(mass, (0, padding)), (0, 1), value=1.0)
    weight = _taken(_log(mass)[:, None, :, None], band.place, 1).transpose(-1, -2)
    seen = band.seen[:, None] if by_row else band.seen
    return weight.masked_fill(~seen, -torch.inf)[:, :, :, None]


# --- blocks of queries ----------------------------------------------------------------------------


def _blocks(query: Tensor, groups: int) -> Blocks:
    batch, heads, n, _ = query.shape
    if torch.compiler.is_compiling():
        # One empty block more: torch.export would take a traced dimension of size 1 for a constant.
        count = (n + BLOCK - 1) // BLOCK + 1
        return Blocks(BLOCK, count, n, batch, heads, groups)
    size = min(BLOCK, n)
    return Blocks(size, (n + size - 1) // size, n, batch, heads, groups)


def _in_blocks(x: Tensor, blocks: Blocks) -> Tensor:
    """Return queries (B, H, n, e) cut into blocks, (B·G, blocks, heads of a group, block, e), with
    zeros after the last query.

    The H / G heads of a group lie side by side, because they meet the same keys.
    """
    padding = blocks.count * blocks.size - blocks.points

    # Both ways give (B, H, blocks, block, e). Traced code takes the points by index: ``unflatten``
    # would claim that the traced length is divisible by the size of a block.
    if torch.compiler.is_compiling():
        x = F.pad(x, (0, 0, 0, padding))
        first = blocks.size * torch.arange(blocks.count, device=x.device)[:, None]
        x = _taken(x, first + torch.arange(blocks.size, device=x.device), 1)
    else:
        if padding:
            x = F.pad(x, (0, 0, 0, padding))
        x = x.unflatten(2, (blocks.count, blocks.size))

    together = blocks.heads // blocks.groups
    shape = (blocks.batch * blocks.groups, together, blocks.count, blocks.size, x.shape[-1])
    return x.reshape(shape).transpose(1, 2)


def _as_matrices(x: Tensor, blocks: Blocks) -> Tensor:
    """Return blocks with all heads of a group below one another, (B·G, 1, blocks, rows, e)."""
    rows = blocks.heads // blocks.groups * blocks.size
    return x.reshape(blocks.batch * blocks.groups, 1, blocks.count, rows, x.shape[-1])


def _in_order(x: Tensor, blocks: Blocks) -> Tensor:
    """Return matrices as :func:`_as_matrices` makes them as (B, H, n, e), without the padding."""
    together = blocks.heads // blocks.groups
    shape = (blocks.batch * blocks.groups, blocks.count, together, blocks.size, x.shape[-1])
    x = x.reshape(shape).transpose(1, 2)
    x = x.reshape(blocks.batch, blocks.heads, blocks.count * blocks.size, x.shape[-1])

    # Traced code would have to prove that there are n points to slice; a negative pad cuts as well.
    if torch.compiler.is_compiling():
        return F.pad(x, (0, 0, 0, blocks.points - x.shape[2]))
    return x[:, :, : blocks.points]


# --- points by their places -----------------------------------------------------------------------


def folded(x: Tensor, groups: int) -> Tensor:
    """Return (B, H, ...) as (B·G, H / G, ...): heads of a group share their keys."""
    return x.reshape(x.shape[0] * groups, x.shape[1] // groups, *x.shape[2:])


def visible_first(key: Tensor, value: Tensor, mass: Tensor, valid: Tensor) -> Points:
    """Return the points of each row with the visible ones in front, in their order.

    Hidden points follow, with mass zero.
    """
    order = (~valid).long().argsort(dim=1, stable=True)
    mass = torch.where(valid, mass, 0.0).gather(1, order)
    return Points(taken_by_row(key, order), taken_by_row(value, order), mass)


def taken_by_row(x: Tensor, place: Tensor) -> Tensor:
    """Return points of (B, G, n, e) at places of each row, (B, m)."""
    index = place[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


def taken_by_group(x: Tensor, place: Tensor) -> Tensor:
    """Return points of (B, G, n, e) at places of each row and group, (B, G, m)."""
    return x.gather(2, place[..., None].expand(-1, -1, -1, x.shape[3]))


def _taken(x: Tensor, place: Tensor, groups: int) -> Tensor:
    """Return points (…, m, k, e) of x, (…, n, e) on dimension 2, at places (m, k), or at places of
    each row, (B, m, k).

    Not by ``unfold``: its strides fix lengths that are traced, and ``torch.func.vmap`` takes its
    gradient row by row.
    """
    if place.dim() == 3:
        rows = place if groups == 1 else place.repeat_interleave(groups, 0)
        points = taken_by_row(x, rows.flatten(1))
        return points.reshape(*x.shape[:2], *place.shape[1:], x.shape[3])
    # In traced code ``unflatten`` would claim that a length is divisible.
    if torch.compiler.is_compiling():
        return x[:, :, place]
    return x.index_select(2, place.flatten()).unflatten(2, place.shape)
