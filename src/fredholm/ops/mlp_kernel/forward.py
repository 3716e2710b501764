"""The tiled forward of the MLP kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from .activations import Activation, activation_named
from .tiles import (
    Fields,
    Inputs,
    Plan,
    Scratch,
    Span,
    cut,
    fill_scores,
    groups,
    pair_weight,
    prepare,
    scaled_queries,
    shared_terms,
    spans,
    tile_distances,
)


def forward(x: Inputs, activation: str, memory: int) -> Tensor:
    """Values (B, H, Nq, o) of the integral, tile by tile; see :func:`mlp_kernel`."""
    b, h, nk, _ = x.value.shape
    nq, o = x.query_bias.shape[2], x.readout.shape[1]
    out = x.value.new_zeros(b, h, nq, o)
    if 0 in (b, h, nk, nq):
        return out
    act, plan, f = activation_named(activation), Plan.make(x, memory), prepare(x)
    scratch = Scratch(x.value, plan, x.query_bias.shape[-1])
    heads_first = out.transpose(0, 1)
    for block in groups(h, b, plan.block, plan.block_heads):
        part = f.cut(*block)
        for q in spans(0, nq, plan.queries):
            _query_tile(part, x, act, plan, scratch, q, heads_first[block][:, :, q])
    return out


def _query_tile(f: Fields, x: Inputs, act: Activation, plan: Plan, scratch: Scratch, q: Span, out: Tensor) -> None:
    """Moments of one query tile over all keys, then the readout, for one block; writes ``out`` (h, b, Tq, o)."""
    heads, batch, nk, d = f.value.shape
    tq, w, last = q.stop - q.start, x.query_bias.shape[-1], x.readout.shape[-1]
    rows = scaled_queries(f, q, heads, batch)
    moments = f.value.new_zeros(heads, batch, tq, last, d)
    for k in spans(0, nk, plan.keys):
        weight, empty = pair_weight(f, q, k)
        if empty:
            continue
        far = tile_distances(f, q, k)
        shared = shared_terms(f, x.table_index, far, q, k)
        for chunk in groups(heads, batch, plan.group, heads):
            value, sums = f.value[chunk][:, :, k].flatten(0, 1), moments[chunk].flatten(0, 1)
            s = scratch.view(*moments[chunk].shape[:2], tq, w, k.stop - k.start)
            fill_scores(f, rows, shared, far, chunk, k, s)
            hidden = hidden_units(s, x.mid, act)
            own = cut(weight, *chunk)
            if own is not None:
                hidden.mul_(own)
            sums.view(len(sums), tq * last, d).baddbmm_(hidden.view(len(sums), tq * last, -1), value)
    contracted = torch.bmm(moments.view(heads, batch * tq, last * d), f.readout[:, 0])
    out.copy_(contracted.view(out.shape))


def hidden_units(s: Tensor, mid: list[Tensor], act: Activation) -> Tensor:
    """Last hidden layer (h, b, Tq, w', Tk) from the first one's pre-activations, which are overwritten."""
    act.apply_(s)
    for weight, bias in zip(mid[::2], mid[1::2]):
        s = linear(weight, bias, s)
        act.apply_(s)
    return s


def linear(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """W x + b along the last but one dimension of ``x`` (..., w, Tk)."""
    flat = x.flatten(0, 2)
    return torch.baddbmm(bias[:, None], weight.expand(len(flat), -1, -1), flat).view(*x.shape[:3], -1, x.shape[-1])
