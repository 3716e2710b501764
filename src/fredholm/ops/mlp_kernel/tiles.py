"""What the forward and the backward of the MLP kernel share: prepared inputs, the tiling, a tile's
pre-activations.

Inside the op every tensor has the heads first, (H | 1, B | 1, ...): a head's weights then meet all
batch entries at once. A *block* is the set of (head, batch) pairs whose moments are held together;
the terms of a tile that all pairs of a block share (table, distances between batch-shared
positions) are made once a block. A *chunk* of a block fills one tile.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..distance import distances
from ..tiles import Scratch, Span, cut, multiply_rows


class Inputs(NamedTuple):
    """The op's tensor arguments, in the order of its schema; ``mid`` holds W, b, W, b, ..."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor
    readout: Tensor
    query_bias: Tensor
    key_bias: Tensor | None
    scale: Tensor | None
    query2: Tensor | None
    scale2: Tensor | None
    table: Tensor | None
    query_index: Tensor | None
    key_index: Tensor | None
    distance_scale: Tensor | None
    query_positions: Tensor | None
    key_positions: Tensor | None
    density: Tensor | None
    query_time: Tensor | None
    key_time: Tensor | None
    mid: list[Tensor]


@dataclass
class Fields:
    """Heads-first tensors, or their gradients; ``cut`` takes some heads and batch entries of all.

    The fields typed Any are there in every call; among gradients they too are None where none is
    wanted.
    """

    query: Tensor | None = None  # (h, b, Nq, e)
    keys: Any = None  # (H, B, Nk, e + 1), the last column one: it carries the query bias through the product
    value: Any = None  # (H, B, Nk, d)
    readout: Any = None  # (H, 1, w·d, o)
    query_bias: Any = None  # (h, b, Nq, w)
    key_bias: Tensor | None = None  # (h, b, w, Nk)
    scale: Tensor | None = None  # (h, 1, w, e)
    query2: Tensor | None = None
    scale2: Tensor | None = None
    table: Tensor | None = None  # (h, 1, w, D)
    distance_scale: Tensor | None = None  # (h, 1, w)
    query_positions: Tensor | None = None  # (1, b, Nq, p)
    key_positions: Tensor | None = None
    density: Tensor | None = None  # (h, b, Nq, Nk)
    query_time: Tensor | None = None  # (1, b, Nq)
    key_time: Tensor | None = None

    def cut(self, h: Span, b: Span) -> Fields:
        parts = {f.name: cut(getattr(self, f.name), h, b) for f in dataclasses.fields(self)}
        return Fields(**parts)


def prepare(x: Inputs) -> Fields:
    """``x`` with the heads first and contiguous. O(N) memory."""
    b, h, k, _ = x.value.shape

    def first(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.transpose(0, 1).contiguous()

    def middle(t: Tensor | None) -> Tensor | None:
        return None if t is None else t[:, None].contiguous()

    e = 0 if x.key is None else x.key.shape[-1]
    keys = x.value.new_ones(h, b, k, e + 1)
    if x.key is not None:
        keys[..., :e] = x.key.transpose(0, 1)
    return Fields(
        query=first(x.query),
        keys=keys,
        value=first(x.value),
        readout=x.readout.permute(0, 3, 2, 1).flatten(1, 2)[:, None].contiguous(),
        query_bias=first(x.query_bias),
        key_bias=None if x.key_bias is None else x.key_bias.permute(1, 0, 3, 2).contiguous(),
        scale=middle(x.scale),
        query2=first(x.query2),
        scale2=middle(x.scale2),
        table=middle(x.table),
        distance_scale=middle(x.distance_scale),
        query_positions=None if x.query_positions is None else x.query_positions[None],
        key_positions=None if x.key_positions is None else x.key_positions[None],
        density=None if x.density is None else x.density.transpose(0, 1),
        query_time=None if x.query_time is None else x.query_time[None],
        key_time=None if x.key_time is None else x.key_time[None],
    )


KEY_TILE = 512
MOMENT_TILES = 8  # the moments of a block may take as much memory as this many tiles


@dataclass(frozen=True)
class Plan:
    """Tile sizes.

    Attributes:
        keys, queries, group: a tile holds ``group`` (head, batch) pairs × ``queries`` × hidden
            width × ``keys``.
        block: (head, batch) pairs whose moments are held together, at most ``block_heads`` heads.
        rows: queries whose moments are held together; many, because each such set reads the whole
            readout once.
        sizes: numbers in a tile, in its shared terms, its rows of scaled queries, and the moments
            held together.
    """

    keys: int
    queries: int
    group: int
    block: int
    block_heads: int
    rows: int
    sizes: tuple[int, int, int, int]

    @staticmethod
    def make(x: Inputs, memory: int) -> Plan:
        b, h, k, d = x.value.shape
        q, w = x.query_bias.shape[2:]
        widest = max([w, *(weight.shape[0] for weight in x.mid[::2])])
        elements = max(1, memory // x.value.element_size())
        keys = max(1, min(k, KEY_TILE, elements // widest))
        keys = -(
            -k // -(-k // keys)
        )  # nearly equal tiles: the last one is then as efficient as the first
        queries = max(1, min(q, elements // (widest * keys)))
        group = min(b * h, max(1, elements // (widest * keys * queries)))
        moment = x.readout.shape[-1] * d
        block = min(b * h, max(group, MOMENT_TILES * elements // (queries * moment)))
        rows = min(q, max(queries, MOMENT_TILES * elements // (block * moment)))
        per_head = any(t is not None and t.shape[0] > 1 for t in (x.table, x.distance_scale))
        heads = group if per_head else h
        e = 0 if x.key is None else x.key.shape[-1]
        tile = queries * keys
        sizes = (
            group * tile * widest,
            min(heads, h) * tile * w,
            group * queries * w * (e + 1),
            block * rows * moment,
        )
        return Plan(keys, queries, group, block, heads, rows, sizes)


def scaled_queries(f: Fields, q: Span, chunk: tuple[Span, Span], scratch: Scratch) -> Tensor:
    """Rows (h, b, Tq, w, e + 1) of a chunk whose product with the keys is the pair term plus the
    query bias.
    """
    heads, batch, _, columns = f.keys[chunk].shape
    e = columns - 1
    bias = cut(f.query_bias, *chunk)[:, :, q]
    rows = scratch.view(heads, batch, *bias.shape[2:], columns)
    rows[..., e] = bias
    if f.query is not None and f.scale is not None:
        query, scale = cut(f.query, *chunk)[:, :, q, None], cut(f.scale, *chunk)[:, :, None]
        torch.mul(query.expand_as(rows[..., :e]), scale, out=rows[..., :e])
    else:
        rows[..., :e] = 0
    if f.query2 is not None and f.scale2 is not None:
        query, scale = cut(f.query2, *chunk)[:, :, q, None], cut(f.scale2, *chunk)[:, :, None]
        rows[..., e - query.shape[-1] : e].addcmul_(query, scale)
    return rows


def tile_distances(f: Fields, q: Span, k: Span) -> Tensor | None:
    """Distances (1, b, Tq, 1, Tk) of a tile, or None."""
    if f.distance_scale is None or f.query_positions is None or f.key_positions is None:
        return None
    return distances(f.query_positions[:, :, q], f.key_positions[:, :, k])[:, :, :, None, :]


def table_places(x: Inputs, q: Span, k: Span) -> Tensor | None:
    """Rows (Tq, Tk) of the table that a tile's pairs read, or None. One integer a point, never one
    a pair.
    """
    if x.query_index is None or x.key_index is None:
        return None
    return x.query_index[q, None] - x.key_index[k]


def shared_terms(
    f: Fields, places: Tensor | None, far: Tensor | None, q: Span, k: Span, scratch: Scratch
) -> Tensor | None:
    """The terms (h, 1, Tq, w, Tk) of the pre-activation that all batch entries share, or None.

    The gathered table lies in memory as (h, 1, w, Tq, Tk), as a selection of columns leaves it.
    """
    total = None
    if f.table is not None and places is not None:
        h, _, w, _ = f.table.shape
        total = scratch.view(h * w, places.numel())
        torch.index_select(f.table.flatten(0, 2), 1, places.flatten(), out=total)
        total = total.view(h, 1, w, *places.shape).transpose(2, 3)
    if far is not None and f.distance_scale is not None and far.shape[1] == 1:
        term = f.distance_scale[:, :, None, :, None] * far
        total = term if total is None else total + term
    return total


def pair_weight(f: Fields, q: Span, k: Span) -> tuple[Tensor | None, bool]:
    """Factor (h, b, Tq, 1, Tk) of a tile's hidden units, or None, and whether the tile may be
    skipped.

    Visibility is inspected only on a CPU, where looking costs nothing.
    """
    weight = None
    if f.density is not None:
        weight = f.density[:, :, q, k].to(f.value.dtype)[:, :, :, None, :]
    if f.query_time is None or f.key_time is None:
        return weight, False
    visible = f.key_time[:, :, None, k] <= f.query_time[:, :, q, None]
    if visible.device.type == "cpu":
        if not visible.any():
            return None, True
        if visible.all():
            return weight, False
    seen = visible[:, :, :, None, :].to(f.value.dtype)
    return (seen if weight is None else weight * seen), False


def fill_scores(
    f: Fields,
    rows: Tensor,
    shared: Tensor | None,
    far: Tensor | None,
    chunk: tuple[Span, Span],
    k: Span,
    s: Tensor,
) -> None:
    """Overwrite ``s`` (h, b, Tq, w, Tk) with the chunk's pre-activations of the first layer."""
    h, b, tq, w, tk = s.shape
    bias = cut(f.key_bias, *chunk)
    terms = [
        t
        for t in (cut(shared, *chunk), None if bias is None else bias[:, :, None, :, k])
        if t is not None
    ]
    if len(terms) == 2:
        torch.add(terms[0].expand_as(s), terms[1], out=s)
    elif terms:
        s.copy_(terms[0])
    if far is not None and far.shape[1] > 1:
        scale, own = cut(f.distance_scale, *chunk)[:, :, None, :, None], cut(far, *chunk)
        s.addcmul_(scale, own) if terms else torch.mul(scale.expand_as(s), own, out=s)
        terms.append(own)
    keys = f.keys[chunk][:, :, k].flatten(0, 1)
    multiply_rows(
        s.view(h * b, tq * w, tk), rows.view(h * b, tq * w, -1), keys.mT, beta=1 if terms else 0
    )
