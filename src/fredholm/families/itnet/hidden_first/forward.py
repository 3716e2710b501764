"""The tiled forward of the MLP kernel: the tensors as tiles see them, the tiles' sizes, and the
matrix product.

Inside the op every tensor has the heads first, (H | 1, B | 1, ...): a head's weights then meet all
batch entries at once.

A *block* is the set of (head, batch) pairs whose moments are held together; the terms of a tile
that all batch entries share are made once per block. A *chunk* of a block fills one tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....ops.backend import full_precision
from ....ops.tiles import (
    Activation,
    Span,
    cut,
    find_activation,
    groups,
    kept_scratch,
    multiply_rows,
    spans,
)
from .first_layer import (
    FirstLayer,
    LayerScratch,
    cut_pairs,
    matrices_of_points,
    shared_terms_differ,
    tile_matrices,
)
from .terms import PAIR_TENSORS, PairTensor, Tensors

KEY_TILE = 512
"""Keys of a tile at most."""
MOMENT_TILES = 8
"""The moments of a block may take as much memory as this many tiles."""
ORDERED_PART = 3
"""Under an order a tile holds this part of the queries that fit, and as many more (head, batch)
pairs. Its keys end where its last query's do, so that fewer of its pairs are hidden.
"""


def forward_op(*arguments: Any) -> Tensor:
    """Call :func:`forward` with the op's arguments, outside autocast."""
    *tensors, activation, memory = arguments
    x = gather(tensors)
    with full_precision(x.value):
        return forward(x, activation, memory)


def gather(tensors: Any) -> Tensors:
    """Return :class:`Tensors` from the op's arguments, with or without further layers at their
    end.
    """
    named = dict(zip(PAIR_TENSORS, tensors))
    mid = []
    for layers in tensors[len(PAIR_TENSORS) :]:
        mid.extend(layers)
    return Tensors(**named, mid=mid)


def forward(
    x: Tensors,
    activation: str,
    memory: int,
) -> Tensor:
    """Return the values (B, H, Nq, o) of the integral, tile by tile; see :func:`mlp_kernel`.

    Blocks of (head, batch) pairs are outermost, then rows of queries, whose moments meet the whole
    readout in one product; within them tiles of queries, and innermost the keys, so that a tile's
    moments stay where they are added to.
    """
    b, h, nk, _ = x.value.shape
    nq = x.query_bias.shape[2]
    outputs = x.readout.shape[1]
    out = x.value.new_zeros(b, h, nq, outputs)
    if 0 in (b, h, nk, nq):
        return out

    plan = Plan.make(x, memory)
    f = prepare(x)
    act = find_activation(activation)
    heads_first_out = out.transpose(0, 1)
    with kept_scratch(x.value, plan.numbers) as (*layer, kept_moments):
        scratch = LayerScratch(*layer)
        for block in groups(h, b, plan.block, plan.block_heads):
            part = cut_pairs(f, *block)
            readout = part.readout[:, 0]
            readout = readout.flatten(1, 2)
            terms = FirstTerms(x, part, scratch)
            for q in spans(0, nq, plan.rows):
                of_block = heads_first_out[block]
                target = of_block[:, :, q]
                heads, batch, queries, _ = target.shape
                width, d = moment_shape(x)
                moments = kept_moments.view(heads, batch, queries, width, d)
                for tile in spans(q.start, q.stop, plan.queries):
                    first = tile.start - q.start
                    last = tile.stop - q.start
                    sums = moments[:, :, first:last]
                    _moments(terms, act, plan, tile, sums)
                rows = moments.flatten(3)
                rows = rows.flatten(1, 2)
                result = torch.bmm(rows, readout)
                target.copy_(result.view(target.shape))
    return out


def moment_shape(x: Tensors) -> tuple[int, int]:
    """Return (w', d) of a query's moments, the last dimensions of the readout (h, o, d, w')
    backwards.
    """
    _, _, d, width = x.readout.shape
    return width, d


class FirstTerms(NamedTuple):
    """The first layer of one block before its tiles are cut: the call's tensors as given, the
    block's heads first, and memory for a tile.
    """

    x: Tensors
    f: Tensors
    scratch: LayerScratch

    def tile(self, q: Span, k: Span) -> FirstLayer:
        return FirstLayer(
            self.x,
            self.f,
            q,
            k,
            self.scratch,
        )


def _moments(
    terms: FirstTerms,
    act: Activation,
    plan: Plan,
    q: Span,
    sums: Tensor,
) -> None:
    """Overwrite ``sums`` (h, b, Tq, w', d) with one query tile's moments over all keys, for one
    block.
    """
    f = terms.f
    heads, batch = f.value.shape[:2]

    # One tile of keys at a time: its terms are made once for all chunks, of which one after the
    # other has its hidden units in memory, (h, b, Tq, w', Tk).
    fresh = True
    for k in key_tiles(f, q, plan.keys):
        tile_weight = pair_weight(f, q, k)
        layer = terms.tile(q, k)
        for chunk in groups(heads, batch, plan.group, heads):
            first = layer.values(chunk)
            hidden = hidden_units(first.values, terms.x.mid, act)
            weight = cut(tile_weight, *chunk)
            if weight is not None:
                hidden.mul_(weight)

            # M += H V: the first tile of keys overwrites what the scratch held.
            keep = int(not fresh)
            total = tile_matrices(sums[chunk])
            flat = tile_matrices(hidden)
            values = matrices_of_points(f.value, chunk, k)
            multiply_rows(total, flat, values, beta=keep)
        fresh = False
    # The order hides all keys.
    if fresh:
        sums.zero_()


def hidden_units(
    s: Tensor,
    mid: list[Tensor],
    act: Activation,
) -> Tensor:
    """Return the last hidden layer (h, b, Tq, w', Tk) from the first one's pre-activations, which
    are overwritten.
    """
    act.apply_(s)
    # ``mid`` has weights and biases in turn.
    for weight, bias in zip(mid[::2], mid[1::2]):
        s = linear(weight, bias, s)
        act.apply_(s)
    return s


def linear(
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
) -> Tensor:
    """Return W x + b along the last but one dimension of ``x`` (..., w, Tk)."""
    *others, _, keys = x.shape
    flat = x.flatten(0, 2)
    weights = weight.expand(len(flat), -1, -1)
    out = torch.baddbmm(bias[:, None], weights, flat)
    return out.view(*others, -1, keys)


# --- how large a tile -----------------------------------------------------------------------------


class BlockNumbers(NamedTuple):
    """Numbers in a tile, in its shared terms, in its rows of scaled queries, and in the moments
    held together.
    """

    tile: int
    shared: int
    rows: int
    moments: int


@dataclass(frozen=True)
class Plan:
    """Tile sizes.

    Attributes:
        keys, queries, group: a tile holds ``group`` (head, batch) pairs × ``queries`` × hidden
            width × ``keys``.
        block: (head, batch) pairs whose moments are held together, at most ``block_heads`` heads.
        rows: queries whose moments are held together; many, because each such set reads the whole
            readout once.
        numbers: sizes of the memory that holds them.
    """

    keys: int
    queries: int
    group: int
    block: int
    block_heads: int
    rows: int
    numbers: BlockNumbers

    @staticmethod
    def make(x: Tensors, memory: int) -> Plan:
        """Return the sizes with which a tile takes about ``memory`` bytes."""
        b, h, k, d = x.value.shape
        q, w = x.query_bias.shape[2:]
        e = product_columns(x)
        mid_widths = [weight.shape[0] for weight in x.mid[::2]]
        widths = [w, *mid_widths]
        widest = max(widths)
        elements = max(1, memory // x.value.element_size())

        in_column = elements // widest
        keys = max(1, min(k, KEY_TILE, in_column))
        # Nearly equal tiles: the last one is then as efficient as the first.
        tiles_of_keys = -(-k // keys)
        keys = -(-k // tiles_of_keys)
        in_tile = elements // (widest * keys)
        if x.key_time is not None:
            in_tile //= ORDERED_PART
        queries = max(1, min(q, in_tile))
        in_chunk = elements // (widest * keys * queries)
        group = min(b * h, max(1, in_chunk))

        moment = x.readout.shape[-1] * d
        held = MOMENT_TILES * elements
        in_block = held // (queries * moment)
        block = min(b * h, max(group, in_block))
        in_rows = held // (block * moment)
        rows = min(q, max(queries, in_rows))
        # Shared terms are made once per block, for all of its heads where these differ.
        heads = h
        if shared_terms_differ(x):
            heads = group

        tile = queries * keys
        numbers = BlockNumbers(
            tile=group * tile * widest,
            shared=min(heads, h) * tile * w,
            rows=group * queries * w * (e + 1),
            moments=block * rows * moment,
        )
        return Plan(
            keys,
            queries,
            group,
            block,
            heads,
            rows,
            numbers,
        )


# --- the tensors as tiles see them ----------------------------------------------------------------


def prepare(x: Tensors) -> Tensors:
    """Return ``x`` heads first, except for what belongs to points alone. O(N) memory.

    The keys get a last column of ones, which carries the query bias through the product.
    """
    b, h, k, _ = x.value.shape
    e = product_columns(x)
    key = x.value.new_ones(h, b, k, e + 1)
    if x.key is not None:
        key[..., :e] = x.key.transpose(0, 1)

    tensors: dict[str, Any] = {"key": key}
    for name, fact in PAIR_TENSORS.items():
        value = getattr(x, name)
        if value is not None and name != "key":
            tensors[name] = heads_first(fact, value)
    return Tensors(**tensors)


def product_columns(x: Tensors) -> int:
    """Return e, the columns of the product of queries and keys; 0 without one."""
    if x.key is None:
        return 0
    return x.key.shape[-1]


def heads_first(fact: PairTensor, x: Tensor) -> Tensor:
    """Return (H | 1, B | 1, ...) from a tensor as the op takes it.

    Indices stay as they are. The density is quadratic in the points, and is not copied.
    """
    if fact.kind == "index":
        return x
    for place, size in enumerate(("b", "h")):
        if size not in fact.sizes:
            x = x.unsqueeze(place)
    x = x.permute(_order(fact))
    if fact.side == "pair":
        return x
    return x.contiguous()


def as_given(
    fact: PairTensor,
    x: Tensor,
    like: Tensor,
) -> Tensor:
    """Return a gradient in the shape of its input: the inverse of :func:`heads_first`, summed over
    what ``like`` shares.
    """
    # Batch first, then heads, and then the others as they are given.
    order = _order(fact)
    places = [order.index(i) for i in range(len(order))]
    x = x.permute(places)
    if "h" not in fact.sizes:
        x = x.select(1, 0)
    if "b" not in fact.sizes:
        x = x.select(0, 0)
    x = x.sum_to_size(like.shape)
    return x.contiguous()


def _order(fact: PairTensor) -> list[int]:
    """Return where each heads-first dimension lies in (b, h, the others as they are given)."""
    others = [size for size in fact.sizes if size not in ("b", "h")]
    tile = fact.tile.split() or others
    places = [2 + others.index(size) for size in tile]
    return [1, 0, *places]


def key_tiles(
    f: Tensors,
    q: Span,
    size: int,
) -> list[Span]:
    """Cut the keys into tiles of at most ``size``, from the first to the last that any query of
    ``q`` sees. Under a causal order, half of all pairs are then never computed.

    Times are read only on a CPU: on a GPU the answer would have to travel back before the next
    launch, and all keys are taken.
    """
    nk = f.value.shape[2]
    if f.query_time is None or f.key_time is None or f.key_time.device.type != "cpu":
        return spans(0, nk, size)

    latest = f.query_time[:, :, q].amax(-1, keepdim=True)
    seen = f.key_time <= latest
    places = seen.flatten(0, 1).any(0).nonzero()
    if len(places) == 0:
        return []
    return spans(int(places[0]), int(places[-1]) + 1, size)


def pair_weight(
    f: Tensors,
    q: Span,
    k: Span,
) -> Tensor | None:
    """Return the factor (h, b, Tq, 1, Tk) of a tile's hidden units from density and order, or None
    where it is one.
    """
    weight = None
    if f.density is not None:
        density = f.density[:, :, q, k]
        density = density.to(f.value.dtype)
        weight = density[:, :, :, None, :]
    if f.query_time is None or f.key_time is None:
        return weight

    key_time = f.key_time[:, :, None, k]
    query_time = f.query_time[:, :, q, None]
    visible = key_time <= query_time
    # Read only on a CPU, as in `key_tiles`.
    if visible.device.type == "cpu" and visible.all():
        return weight
    seen = visible[:, :, :, None, :]
    seen = seen.to(f.value.dtype)
    if weight is not None:
        seen = weight * seen
    return seen
