"""The tiled forward of the MLP kernel: the tensors as tiles see them, the tiles' sizes, and the
matrix product.

Inside the op every tensor has the heads first, (H | 1, B | 1, ...): a head's weights then meet all
batch entries at once.

A *block* is the set of (head, batch) pairs whose moments are held together; the terms of a tile
that all batch entries share are made once per block. A *chunk* of a block fills one tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....ops.backend import full_precision
from ....ops.tiles import (
    Activation,
    Scratch,
    Span,
    cut,
    find_activation,
    groups,
    kept_scratch,
    multiply_rows,
    spans,
)
from .first_layer import FirstLayer, cut_pairs, shared_terms_differ
from .terms import PAIR_TENSORS, PairTensor, Tensors

KEY_TILE = 512
MOMENT_TILES = 8  # the moments of a block may take as much memory as this many tiles


def forward_op(*arguments: Any) -> Tensor:
    """:func:`forward` of the op's arguments, outside autocast."""
    *tensors, activation, memory = arguments
    x = gather(tensors)
    with full_precision(x.value):
        return forward(x, activation, memory)


def gather(tensors: Any) -> Tensors:
    """:class:`Tensors` from the op's arguments, with or without further layers at their end."""
    mid = list(tensors[len(PAIR_TENSORS)]) if len(tensors) > len(PAIR_TENSORS) else []
    return Tensors(**dict(zip(PAIR_TENSORS, tensors)), mid=mid)


def forward(x: Tensors, activation: str, memory: int) -> Tensor:
    """Values (B, H, Nq, o) of the integral, tile by tile; see :func:`mlp_kernel`.

    Blocks of (head, batch) pairs are outermost, then rows of queries, whose moments meet the whole
    readout in one product; within them tiles of queries, and innermost the keys, so that a tile's
    moments stay where they are added to.
    """
    b, h, nk, _ = x.value.shape
    nq, o = x.query_bias.shape[2], x.readout.shape[1]
    out = x.value.new_zeros(b, h, nq, o)
    if 0 in (b, h, nk, nq):
        return out
    plan, f = Plan.make(x, memory), prepare(x)
    act, heads_first = find_activation(activation), out.transpose(0, 1)
    with kept_scratch(x.value, plan.sizes) as scratch:
        for block in groups(h, b, plan.block, plan.block_heads):
            part = cut_pairs(f, *block)
            for q in spans(0, nq, plan.rows):
                target = heads_first[block][:, :, q]
                moments = scratch[3].view(*target.shape[:3], *x.readout.shape[:1:-1])
                for tile in spans(q.start, q.stop, plan.queries):
                    sums = moments[:, :, tile.start - q.start : tile.stop - q.start]
                    _moments(part, x, act, plan, scratch, tile, sums)
                rows = moments.flatten(3).flatten(1, 2)
                target.copy_(torch.bmm(rows, part.readout[:, 0].flatten(1, 2)).view(target.shape))
    return out


def _moments(
    f: Tensors,
    x: Tensors,
    act: Activation,
    plan: Plan,
    scratch: list[Scratch],
    q: Span,
    sums: Tensor,
) -> None:
    """Overwrite ``sums`` (h, b, Tq, w', d) with one query tile's moments over all keys, for one
    block.
    """
    heads, batch, nk = f.value.shape[:3]
    fresh = True
    for k in spans(0, nk, plan.keys):
        weight, empty = pair_weight(f, q, k)
        if empty:
            continue
        layer = FirstLayer(x, f, q, k, scratch[:3])
        for chunk in groups(heads, batch, plan.group, heads):
            s, _ = layer.values(chunk)
            hidden = hidden_units(s, x.mid, act)
            chunk_weight = cut(weight, *chunk)
            if chunk_weight is not None:
                hidden.mul_(chunk_weight)
            total = sums[chunk].flatten(0, 1).flatten(1, 2)
            values = f.value[chunk][:, :, k].flatten(0, 1)
            multiply_rows(total, hidden.flatten(0, 1).flatten(1, 2), values, beta=0 if fresh else 1)
        fresh = False
    if fresh:
        sums.zero_()


def hidden_units(s: Tensor, mid: list[Tensor], act: Activation) -> Tensor:
    """Last hidden layer (h, b, Tq, w', Tk) from the first one's pre-activations, which are
    overwritten.
    """
    act.apply_(s)
    for weight, bias in zip(mid[::2], mid[1::2]):
        s = linear(weight, bias, s)
        act.apply_(s)
    return s


def linear(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """W x + b along the last but one dimension of ``x`` (..., w, Tk)."""
    flat = x.flatten(0, 2)
    return torch.baddbmm(bias[:, None], weight.expand(len(flat), -1, -1), flat).view(
        *x.shape[:3], -1, x.shape[-1]
    )


# --- how large a tile -----------------------------------------------------------------------------


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
    def make(x: Tensors, memory: int) -> Plan:
        b, h, k, d = x.value.shape
        q, w = x.query_bias.shape[2:]
        widest = max([w, *(weight.shape[0] for weight in x.mid[::2])])
        elements = max(1, memory // x.value.element_size())
        keys = max(1, min(k, KEY_TILE, elements // widest))
        # nearly equal tiles: the last one is then as efficient as the first
        keys = -(-k // -(-k // keys))
        queries = max(1, min(q, elements // (widest * keys)))
        group = min(b * h, max(1, elements // (widest * keys * queries)))
        moment = x.readout.shape[-1] * d
        block = min(b * h, max(group, MOMENT_TILES * elements // (queries * moment)))
        rows = min(q, max(queries, MOMENT_TILES * elements // (block * moment)))
        heads = group if shared_terms_differ(x) else h
        e = 0 if x.key is None else x.key.shape[-1]
        tile = queries * keys
        sizes = (
            group * tile * widest,
            min(heads, h) * tile * w,
            group * queries * w * (e + 1),
            block * rows * moment,
        )
        return Plan(keys, queries, group, block, heads, rows, sizes)


# --- the tensors as tiles see them ----------------------------------------------------------------


def prepare(x: Tensors) -> Tensors:
    """``x`` heads first, but for what belongs to points alone. O(N) memory.

    The keys get a last column of ones, which carries the query bias through the product.
    """
    b, h, k, _ = x.value.shape
    e = 0 if x.key is None else x.key.shape[-1]
    key = x.value.new_ones(h, b, k, e + 1)
    if x.key is not None:
        key[..., :e] = x.key.transpose(0, 1)
    tensors: dict[str, Any] = {
        name: heads_first(fact, getattr(x, name))
        for name, fact in PAIR_TENSORS.items()
        if name != "key" and getattr(x, name) is not None
    }
    return Tensors(**tensors, key=key)


def heads_first(fact: PairTensor, x: Tensor) -> Tensor:
    """(H | 1, B | 1, ...) from a tensor as the op takes it; the density is not copied, being
    quadratic, and indices stay as they are.
    """
    if fact.kind == "index":
        return x
    for place, size in enumerate(("b", "h")):
        if size not in fact.sizes:
            x = x.unsqueeze(place)
    x = x.permute(_order(fact))
    return x if fact.side == "pair" else x.contiguous()


def as_given(fact: PairTensor, x: Tensor, like: Tensor) -> Tensor:
    """The inverse of :func:`heads_first` for a gradient, summed over what ``like`` shares."""
    order = _order(fact)
    x = x.permute([order.index(i) for i in range(len(order))])
    for place, size in enumerate(("b", "h")):
        if size not in fact.sizes:
            x = x.select(place if "b" in fact.sizes else 0, 0)
    return x.sum_to_size(like.shape).contiguous()


def _order(fact: PairTensor) -> list[int]:
    """Where each heads-first dimension lies in (b, h, the others as they are given)."""
    others = [size for size in fact.sizes if size not in ("b", "h")]
    tile = fact.tile.split() or others
    return [1, 0, *(2 + others.index(size) for size in tile)]


def pair_weight(f: Tensors, q: Span, k: Span) -> tuple[Tensor | None, bool]:
    """Factor (h, b, Tq, 1, Tk) of a tile's hidden units, or None, and whether the tile may be
    skipped.

    Visibility is inspected only on a CPU: on a GPU the answer would have to travel back before the
    next launch.
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
