"""The tiled forward of the MLP kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from ....ops.tiles import (
    Activation,
    Scratch,
    Span,
    cut,
    find_activation,
    groups,
    multiply_rows,
    spans,
)
from .first_layer import FirstLayer
from .plan import Plan
from .terms import Tensors
from .tiles import cut_pairs, pair_weight, prepare


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
    scratch = [Scratch(x.value, size) for size in plan.sizes]
    heads_first = out.transpose(0, 1)
    for block in groups(h, b, plan.block, plan.block_heads):
        part = cut_pairs(f, *block)
        for q in spans(0, nq, plan.rows):
            target = heads_first[block][:, :, q]
            moments = scratch[3].view(*target.shape[:3], *x.readout.shape[:1:-1])
            for tile in spans(q.start, q.stop, plan.queries):
                sums = moments[:, :, tile.start - q.start : tile.stop - q.start]
                _moments(part, x, find_activation(activation), plan, scratch, tile, sums)
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
