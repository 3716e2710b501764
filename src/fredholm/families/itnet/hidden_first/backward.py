"""The tiled backward of the MLP kernel: every tile is computed again, nothing of size Nq × Nk is
kept.

With G the gradient of the output, a tile's gradients are, per head and batch entry (S
pre-activations, H = σ(S), ρ the pair weight, R the readout, Q the rows ``scale ⊙ query``):

    dM = G R        d(H) = dM Vᵀ        dρ = Σ_k H ⊙ d(H)        dS = ρ d(H) ⊙ σ'(S)
    dV = (ρH)ᵀ dM   dR = Gᵀ M           dQ = dS · keys           dkeys = dSᵀ Q

Only dR needs the forward's moments M, which are therefore summed again where it is wanted, and
nowhere else. dS becomes the gradients of the terms in :mod:`.first_layer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from .first_layer import FirstLayer, add, cut_pairs
from .forward import Plan, as_given, linear, pair_weight, prepare
from .terms import PAIR_TENSORS, Tensors


@dataclass
class Pass:
    """What stays the same over all tiles of one backward pass."""

    x: Tensors
    act: Activation
    plan: Plan
    mid: list[Tensor]  # gradients of the further layers
    layer: list[Scratch]  # of FirstLayer
    up: Scratch  # the gradient of a tile's hidden units
    shared_grad: Scratch
    moments_grad: Scratch
    moments: Scratch


def backward(
    grad: Tensor, x: Tensors, activation: str, memory: int, needs: list[bool]
) -> list[Tensor]:
    """Gradients of the inputs marked in ``needs`` (the order of :class:`Tensors`, ``mid`` spread
    out at the end).
    """
    wanted = dict(zip(PAIR_TENSORS, needs))
    f = prepare(x)
    g = _zeros(f, wanted)
    mid = [torch.zeros_like(t) for t in x.mid]
    b, h, nk, _ = x.value.shape
    nq = x.query_bias.shape[2]
    if 0 not in (b, h, nk, nq):
        plan, act = Plan.make(x, memory), find_activation(activation)
        tile, shared, rows, moments = plan.sizes
        sizes = (tile, shared, moments, moments if g.readout is not None else 0)
        layer = [Scratch(x.value, size) for size in (tile, shared, rows)]
        run = Pass(x, act, plan, mid, layer, *(Scratch(x.value, size) for size in sizes))
        grad = grad.transpose(0, 1)
        for block in groups(h, b, plan.block, plan.block_heads):
            part, sums = cut_pairs(f, *block), cut_pairs(g, *block)
            above = grad[block]
            for q in spans(0, nq, plan.rows):
                _rows(run, part, sums, q, above[:, :, q])
    results = {name: _restored(name, g, x) for name, needed in wanted.items() if needed}
    return [*results.values(), *(t for t, needed in zip(mid, needs[len(wanted) :]) if needed)]


def _zeros(f: Tensors, wanted: dict[str, bool]) -> Tensors:
    """Gradients to add to, heads first, None where none is wanted."""
    zeros: dict[str, Any] = {}
    for name, needed in wanted.items():
        x = getattr(f, name)
        if needed and x is not None:
            zeros[name] = torch.zeros_like(x, memory_format=torch.contiguous_format)
    return Tensors(**zeros)


def _restored(name: str, g: Tensors, x: Tensors) -> Tensor:
    """The gradient of input ``name`` in that input's shape, from its heads-first form."""
    total = getattr(g, name)
    total = total[..., :-1] if name == "key" else total  # without the column of ones
    return as_given(PAIR_TENSORS[name], total, getattr(x, name))


def _rows(run: Pass, f: Tensors, g: Tensors, q: Span, grad: Tensor) -> None:
    """All gradients that come from one block's queries ``q``, whose moments and moment gradients
    are held together.
    """
    shape = (*grad.shape[:3], *run.x.readout.shape[:1:-1])
    above = grad.flatten(1, 2)
    moments_grad = run.moments_grad.view(*shape)
    torch.bmm(above, f.readout[:, 0].flatten(1, 2).mT, out=moments_grad.flatten(3).flatten(1, 2))
    moments = None if g.readout is None else run.moments.view(*shape).zero_()
    for tile in spans(q.start, q.stop, run.plan.queries):
        rows = slice(tile.start - q.start, tile.stop - q.start)
        sums = None if moments is None else moments[:, :, rows]
        _query_tile(run, f, g, tile, moments_grad[:, :, rows], sums)
    if moments is not None and g.readout is not None:
        total = g.readout[:, 0].flatten(1, 2)
        total.baddbmm_(moments.flatten(3).flatten(1, 2).mT, above)


def _query_tile(
    run: Pass, f: Tensors, g: Tensors, q: Span, moments_grad: Tensor, moments: Tensor | None
) -> None:
    """The gradients from one query tile of one block; adds to ``moments`` (h, b, Tq, w', d) where
    they are wanted.
    """
    heads, batch, nk = f.value.shape[:3]
    for k in spans(0, nk, run.plan.keys):
        weight, empty = pair_weight(f, q, k)
        if empty:
            continue
        layer = FirstLayer(run.x, f, q, k, run.layer)
        shared_grad = layer.shared_gradient(g, run.shared_grad)
        for chunk in groups(heads, batch, run.plan.group, heads):
            s, rows = layer.values(chunk)
            above = moments_grad[chunk].flatten(0, 1).flatten(1, 2)
            hidden, slope = _hidden_gradient(run, f, g, s, above, weight, chunk, q, k)
            sums = None if moments is None else moments[chunk].flatten(0, 1).flatten(1, 2)
            _moment_products(f, g, hidden, sums, above, chunk, k)
            layer.add_gradients(g, slope, rows, shared_grad, chunk)
        layer.add_shared_gradients(g, shared_grad)


def _hidden_gradient(
    run: Pass,
    f: Tensors,
    g: Tensors,
    s: Tensor,
    moments_grad: Tensor,
    weight: Tensor | None,
    chunk: tuple[Span, Span],
    q: Span,
    k: Span,
) -> tuple[Tensor, Tensor]:
    """Weighted hidden units ρH and the gradient dS of the first layer; both overwrite scratch,
    ``s`` included.
    """
    act, mid = run.act, run.x.mid
    before = [s]
    for w, bias in zip(mid[::2], mid[1::2]):
        before.append(linear(w, bias, act.function(before[-1])))
    h, b, tq, last, tk = before[-1].shape
    up = run.up.view(h, b, tq, last, tk)
    multiply_rows(
        up.view(h * b, tq * last, tk),
        moments_grad,
        f.value[chunk][:, :, k].flatten(0, 1).mT,
        beta=0,
    )
    hidden = None
    if g.density is not None:  # before ρ enters either: dρ needs H and d(H) without it
        hidden = act.function(before[-1])
        _density_gradient(f, g, (hidden * up).sum(3), chunk, q, k)
    chunk_weight = cut(weight, *chunk)
    if chunk_weight is not None:
        up.mul_(chunk_weight)
    act.gradient_(up, before[-1])
    if hidden is None:
        hidden = before[-1]
        if mid:
            hidden = act.function(hidden)
        else:
            act.apply_(hidden)
    if chunk_weight is not None:
        hidden.mul_(chunk_weight)
    for layer in reversed(range(len(mid) // 2)):
        up = _mid_gradient(run, act, layer, before[layer], up)
    return hidden, up


def _density_gradient(
    f: Tensors, g: Tensors, part: Tensor, chunk: tuple[Span, Span], q: Span, k: Span
) -> None:
    """Add the tile's ``part`` (h, b, Tq, Tk) to the density's gradient where the order lets the
    query see the key: ρ of a hidden pair has no effect.
    """
    if f.query_time is not None and f.key_time is not None:
        late = cut(f.key_time[:, :, None, k] > f.query_time[:, :, q, None], *chunk)
        part.masked_fill_(late, 0.0)
    target = cut(g.density, *chunk)
    add(target[:, :, q, k], part)


def _mid_gradient(run: Pass, act: Activation, layer: int, before: Tensor, up: Tensor) -> Tensor:
    """Through one further layer: adds to its weight's and bias's gradient, returns the gradient of
    what came before.
    """
    weight = run.x.mid[2 * layer]
    hidden = act.function(before).flatten(0, 2)
    flat = up.flatten(0, 2)
    run.mid[2 * layer].add_(torch.bmm(flat, hidden.mT).sum(0))
    run.mid[2 * layer + 1].add_(flat.sum((0, 2)))
    down = torch.bmm(weight.mT.expand(len(flat), -1, -1), flat).view_as(before)
    act.gradient_(down, before)
    return down


def _moment_products(
    f: Tensors,
    g: Tensors,
    hidden: Tensor,
    moments: Tensor | None,
    moments_grad: Tensor,
    chunk: tuple[Span, Span],
    k: Span,
) -> None:
    """What weighted hidden units give by themselves: the moments M and dV."""
    flat = hidden.flatten(0, 1).flatten(1, 2)
    if moments is not None:
        multiply_rows(moments, flat, f.value[chunk][:, :, k].flatten(0, 1), beta=1)
    if g.value is not None:
        g.value[chunk][:, :, k].flatten(0, 1).baddbmm_(flat.mT, moments_grad)
