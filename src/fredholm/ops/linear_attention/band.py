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

from ...measures import logarithm

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
    """Keys, values and masses of points, (B, G, n, e), (B, G, n, c) and (1 | B, n)."""

    key: Tensor
    value: Tensor
    mass: Tensor

    def part(self, span: slice) -> Points:
        """Return consecutive points, as views."""
        return Points(
            self.key[:, :, span],
            self.value[:, :, span],
            self.mass[:, span],
        )

    def at(self, place: Tensor) -> Points:
        """Return copies of the points at places of each row, (B, m)."""
        mass = self.mass.expand(self.key.shape[0], -1)
        return Points(
            taken_by_row(self.key, place),
            taken_by_row(self.value, place),
            mass.gather(1, place),
        )

    def behind(self, first: Points) -> Points:
        """Return the points ``first``, and these behind them, in the precision of these."""
        key = first.key.to(self.key.dtype)
        value = first.value.to(self.value.dtype)
        mass = first.mass.to(self.mass.dtype)
        return Points(
            torch.cat([key, self.key], 2),
            torch.cat([value, self.value], 2),
            torch.cat([mass, self.mass], 1),
        )


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
        padding: places of the last block, or of the last two, behind the n-th query.
        batch, heads, groups: B, H and G.
        shared: H / G, the heads of a group, which share their keys.
    """

    size: int
    count: int
    points: int
    padding: int
    batch: int
    heads: int
    groups: int
    shared: int


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
    # The rest is stored one place behind the last key and the padding.
    place_of_rest = blocks.points + window + blocks.padding
    if rank is None:
        band = _regular(blocks, window, place_of_rest, query.device)
    else:
        padded_rank = F.pad(rank, (0, blocks.padding), value=0)
        band = _ranked(padded_rank, blocks, window, place_of_rest)

    # (B·G, 1, blocks, k, e | c): the queries of all heads of a group meet them as one matrix.
    keys = _near(key, band, blocks, query.dtype)
    values = _near(value, band, blocks, query.dtype)
    queries = _as_matrices(_in_blocks(query, blocks), blocks)

    scores = _scores_by_head(queries, keys, blocks)
    scores.add_(_log_weight(mass, band, blocks.padding, rank is not None))
    scores_of_rest = _in_blocks(beyond, blocks)
    scores[..., :1] += scores_of_rest.reshape(*scores.shape[:5], 1)
    if sinks is not None:
        scores = torch.cat([scores, _sink_scores(queries, sinks, blocks)], -1)
    share = _as_matrices(scores.softmax(-1), blocks)

    rest = _in_order(share[..., :1], blocks)
    if sinks is None:
        out = share @ values
    else:
        of_band, of_sinks = share.split([keys.shape[-2], sinks.key.shape[2]], -1)
        sink_values = _of_all_blocks(sinks.value, blocks, query.dtype)
        out = of_band @ values + of_sinks @ sink_values
    return BandAttention(_in_order(out, blocks), rest)


def _scores_by_head(queries: Tensor, keys: Tensor, blocks: Blocks) -> Tensor:
    """Return q·k with heads apart, (B, G, blocks, heads of a group, block, k)."""
    scores = queries @ keys.mT
    return scores.reshape(
        blocks.batch,
        blocks.groups,
        blocks.count,
        blocks.shared,
        blocks.size,
        keys.shape[-2],
    )


def _sink_scores(queries: Tensor, sinks: Sinks, blocks: Blocks) -> Tensor:
    """Return the scores of the sinks, (B, G, blocks, heads of a group, block, s)."""
    keys = _of_all_blocks(sinks.key, blocks, queries.dtype)
    scores = _scores_by_head(queries, keys, blocks)

    # Queries of the padding see all sinks, so that their softmax is a number.
    seen = F.pad(sinks.seen, (0, 0, 0, blocks.padding), value=True)
    rows, groups, _, count = seen.shape
    seen = seen.reshape(
        rows,
        groups,
        blocks.count,
        1,
        blocks.size,
        count,
    )

    weight = logarithm(sinks.mass)[:, :, None, None, None]
    weight = weight.to(scores.dtype).masked_fill(~seen, -torch.inf)
    return scores + weight


def _of_all_blocks(x: Tensor, blocks: Blocks, dtype: torch.dtype) -> Tensor:
    """Return keys or values (B, G, s, e) that all blocks meet, (B·G, 1, 1, s, e)."""
    return folded(x, blocks.groups).to(dtype)[:, :, None]


# --- which keys belong to a block -----------------------------------------------------------------


def _regular(
    blocks: Blocks,
    window: int,
    place_of_rest: int,
    device: torch.device,
) -> Band:
    """Return the band where every point is visible.

    The keys begin w places before the queries, so that query i sees places i + 1 to i + w. Row r of
    a block that begins at query f sees columns r + 1 to r + w of places f to f + block + w - 1.
    """
    first = blocks.size * torch.arange(blocks.count, device=device)[:, None]
    column = torch.arange(blocks.size + window, device=device)
    row = torch.arange(blocks.size, device=device)[:, None]

    place = torch.where(column > 0, first + column, place_of_rest)
    return Band(place, _seen(row, column, window))


def _ranked(
    rank: Tensor,
    blocks: Blocks,
    window: int,
    place_of_rest: int,
) -> Band:
    """Return the band of visible points: a query of rank r sees places r to r + w - 1.

    Ranks grow by at most one from query to query, so a block's keys are again at most block + w - 1
    in a row.
    """
    # Queries of the padding rank with the last real one.
    n = blocks.points
    real = torch.arange(rank.shape[1], device=rank.device) < n
    rank = torch.where(real, rank, rank[:, n - 1 : n])

    # (B, blocks, block)
    rank = rank.reshape(
        rank.shape[0],
        rank.shape[1] // blocks.size,
        blocks.size,
    )
    rank_of_first = rank[:, :, :1]
    column = torch.arange(blocks.size + window, device=rank.device)
    row = (rank - rank_of_first)[..., None]

    first = rank_of_first - 1
    place = torch.where(column > 0, first + column, place_of_rest)
    return Band(place, _seen(row, column, window))


def _seen(row: Tensor, column: Tensor, window: int) -> Tensor:
    """Return whether row r sees a column: the rest in column 0, and columns r + 1 to r + w."""
    in_window = (column > row) & (column <= row + window)
    return (column == 0) | in_window


def _near(
    x: Tensor,
    band: Band,
    blocks: Blocks,
    dtype: torch.dtype,
) -> Tensor:
    """Return the keys or values (B, G, w + n, e) of each block, (B·G, 1, blocks, k, e).

    One point of zeros is appended for the rest, behind those of the padding.
    """
    of_groups = folded(x, blocks.groups).to(dtype)
    padded = F.pad(of_groups, (0, 0, 0, blocks.padding + 1))
    return _taken(padded, band.place, blocks.groups)


def _log_weight(
    mass: Tensor,
    band: Band,
    padding: int,
    by_row: bool,
) -> Tensor:
    """Return log m of each block's keys, -∞ where a query does not see one.

    (B, 1, blocks, 1, 1 | block, k). The rest has a mass of one, and its score is added later.
    """
    mass = F.pad(mass, (0, padding))
    mass = F.pad(mass, (0, 1), value=1.0)
    log_mass = logarithm(mass)[:, None, :, None]
    # (B, 1, blocks, 1, k): the same for all queries of a block.
    weight = _taken(log_mass, band.place, 1).transpose(-1, -2)

    seen = band.seen
    if by_row:
        seen = seen[:, None]
    weight = weight.masked_fill(~seen, -torch.inf)
    return weight[:, :, :, None]


# --- blocks of queries ----------------------------------------------------------------------------


def _blocks(query: Tensor, groups: int) -> Blocks:
    batch, heads, n, _ = query.shape
    if torch.compiler.is_compiling():
        # One empty block more: torch.export would take a traced dimension of size 1 for a constant.
        size = BLOCK
        count = (n + size - 1) // size + 1
    else:
        size = min(BLOCK, n)
        count = (n + size - 1) // size
    return Blocks(
        size=size,
        count=count,
        points=n,
        padding=count * size - n,
        batch=batch,
        heads=heads,
        groups=groups,
        shared=heads // groups,
    )


def _in_blocks(x: Tensor, blocks: Blocks) -> Tensor:
    """Return queries (B, H, n, e) cut into blocks, (B·G, blocks, heads of a group, block, e), with
    zeros after the last query.

    The H / G heads of a group lie side by side, because they meet the same keys.
    """
    # Both ways give (B, H, blocks, block, e). Traced code takes the points by index: ``unflatten``
    # would claim that the traced length is divisible by the size of a block.
    if torch.compiler.is_compiling():
        x = F.pad(x, (0, 0, 0, blocks.padding))
        first = blocks.size * torch.arange(blocks.count, device=x.device)[:, None]
        place = first + torch.arange(blocks.size, device=x.device)
        x = _taken(x, place, 1)
    else:
        if blocks.padding:
            x = F.pad(x, (0, 0, 0, blocks.padding))
        x = x.unflatten(2, (blocks.count, blocks.size))

    matrices = blocks.batch * blocks.groups
    x = x.reshape(
        matrices,
        blocks.shared,
        blocks.count,
        blocks.size,
        x.shape[-1],
    )
    return x.transpose(1, 2)


def _as_matrices(x: Tensor, blocks: Blocks) -> Tensor:
    """Return blocks with all heads of a group below one another, (B·G, 1, blocks, rows, e)."""
    matrices = blocks.batch * blocks.groups
    rows = blocks.shared * blocks.size
    return x.reshape(
        matrices,
        1,
        blocks.count,
        rows,
        x.shape[-1],
    )


def _in_order(x: Tensor, blocks: Blocks) -> Tensor:
    """Return matrices as :func:`_as_matrices` makes them as (B, H, n, e), without the padding."""
    matrices = blocks.batch * blocks.groups
    x = x.reshape(
        matrices,
        blocks.count,
        blocks.shared,
        blocks.size,
        x.shape[-1],
    )
    x = x.transpose(1, 2)
    x = x.reshape(
        blocks.batch,
        blocks.heads,
        blocks.count * blocks.size,
        x.shape[-1],
    )

    # Traced code would have to prove that there are n points to slice; a negative pad cuts as well.
    if torch.compiler.is_compiling():
        return F.pad(x, (0, 0, 0, blocks.points - x.shape[2]))
    return x[:, :, : blocks.points]


# --- points by their places -----------------------------------------------------------------------


def folded(x: Tensor, groups: int) -> Tensor:
    """Return (B, H, ...) as (B·G, H / G, ...): heads of a group share their keys."""
    batch, heads, *rest = x.shape
    return x.reshape(batch * groups, heads // groups, *rest)


def visible_first(points: Points, valid: Tensor) -> Points:
    """Return the points of each row with the visible ones in front, in their order.

    Hidden points follow, with mass zero.
    """
    hidden = (~valid).long()
    order = hidden.argsort(dim=1, stable=True)
    mass = torch.where(valid, points.mass, 0.0)
    return points._replace(mass=mass).at(order)


def taken_by_row(x: Tensor, place: Tensor) -> Tensor:
    """Return points of (B, G, n, e) at places of each row, (B, m)."""
    index = place[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


def taken_by_group(x: Tensor, place: Tensor) -> Tensor:
    """Return points of (B, G, n, e) at places of each row and group, (B, G, m)."""
    index = place[..., None].expand(-1, -1, -1, x.shape[3])
    return x.gather(2, index)


def _taken(x: Tensor, place: Tensor, groups: int) -> Tensor:
    """Return points (…, m, k, e) of x, (…, n, e) on dimension 2, at places (m, k), or at places of
    each row, (B, m, k).

    The first dimension of x may be B·``groups``: consecutive groups share the places of a row.

    Not by ``unfold``: its strides fix lengths that are traced, and ``torch.func.vmap`` takes its
    gradient row by row.
    """
    if place.dim() == 3:
        place_of_row = place
        if groups > 1:
            place_of_row = place.repeat_interleave(groups, 0)
        points = taken_by_row(x, place_of_row.flatten(1))
        return points.reshape(
            *x.shape[:2],
            *place.shape[1:],
            x.shape[3],
        )

    # In traced code ``unflatten`` would claim that a length is divisible.
    if torch.compiler.is_compiling():
        return x[:, :, place]
    points = x.index_select(2, place.flatten())
    return points.unflatten(2, place.shape)
