"""The tiled backward of the MLP kernel: every tile is computed again, nothing of size Nq × Nk is
kept.

With G the gradient of the output, a tile's gradients are, per head and batch entry (S
pre-activations, H = σ(S), ρ the pair weight, R the readout, Q the rows ``scale ⊙ query``):

    dM = G R        d(H) = dM Vᵀ        dρ = Σ_k H ⊙ d(H)        dS = ρ d(H) ⊙ σ'(S)
    dV = (ρH)ᵀ dM   dR = Gᵀ M           dQ = dS · keys           dkeys = dSᵀ Q
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..activations import Activation, activation_named
from ..tiles import Scratch, Span, cut, groups, multiply_rows, spans
from .forward import linear
from .tiles import (
    Fields,
    Inputs,
    Plan,
    fill_scores,
    pair_weight,
    prepare,
    scaled_queries,
    shared_terms,
    table_places,
    tile_distances,
)


@dataclass
class Pass:
    """What stays the same over all tiles of one backward pass."""

    x: Inputs
    act: Activation
    plan: Plan
    scratch: list[Scratch]
    mid: list[Tensor]  # gradients of the further layers


def backward(
    grad: Tensor, x: Inputs, activation: str, memory: int, needs: list[bool]
) -> list[Tensor]:
    """Gradients of the inputs marked in ``needs`` (the order of :class:`Inputs`, ``mid`` spread out
    at the end).
    """
    wanted = dict(zip(x._fields[:-1], needs))
    f = prepare(x)
    g = _zeros(f, wanted)
    mid = [torch.zeros_like(t) for t in x.mid]
    b, h, nk, _ = x.value.shape
    nq = x.query_bias.shape[2]
    if 0 not in (b, h, nk, nq):
        plan, act = Plan.make(x, memory), activation_named(activation)
        tile, shared, rows, moments = plan.sizes
        sizes = [tile, tile, shared, shared, rows, moments, moments if g.readout is not None else 0]
        run = Pass(x, act, plan, [Scratch(x.value, size) for size in sizes], mid)
        grad = grad.transpose(0, 1)
        for block in groups(h, b, plan.block, plan.block_heads):
            part, sums, above = f.cut(*block), g.cut(*block), grad[block]
            for q in spans(0, nq, plan.rows):
                _rows(run, part, sums, q, above[:, :, q])
    results = {name: _restored(name, g, x) for name, needed in wanted.items() if needed}
    return [*results.values(), *(t for t, needed in zip(mid, needs[len(wanted) :]) if needed)]


def _zeros(f: Fields, wanted: dict[str, bool]) -> Fields:
    g = Fields()
    for name, needed in wanted.items():
        field = "keys" if name == "key" else name
        tensor = getattr(f, field, None)
        if needed and tensor is not None:
            setattr(g, field, torch.zeros_like(tensor, memory_format=torch.contiguous_format))
    return g


def _restored(name: str, g: Fields, x: Inputs) -> Tensor:
    """The gradient of input ``name`` in that input's shape, from its heads-first form."""
    like = getattr(x, name)
    if name == "readout":
        return (
            g.readout.view(len(like), like.shape[3], like.shape[2], like.shape[1])
            .permute(0, 3, 2, 1)
            .contiguous()
        )
    if name == "key":
        return g.keys[..., :-1].transpose(0, 1).sum_to_size(like.shape).contiguous()
    total = getattr(g, name)
    if name in ("scale", "scale2", "table", "distance_scale"):
        return total[:, 0].contiguous()
    if name in ("query_positions", "key_positions"):
        return total[0].contiguous()
    if name == "key_bias":
        return total.permute(1, 0, 3, 2).contiguous()
    return total.transpose(0, 1).contiguous()


def add(total: Tensor | None, part: Tensor) -> None:
    """Add ``part`` to ``total``, summed over the dimensions that ``total`` shares; without
    ``total`` do nothing.
    """
    if total is not None:
        shared = [i for i in range(total.dim()) if total.shape[i] == 1 and part.shape[i] != 1]
        total.add_(part.sum(shared, keepdim=True) if shared else part)


def _rows(run: Pass, f: Fields, g: Fields, q: Span, grad: Tensor) -> None:
    """All gradients that come from one block's queries ``q``, whose moments and moment gradients
    are held together.
    """
    shape = (*grad.shape[:3], *run.x.readout.shape[:1:-1])
    above = grad.flatten(1, 2)
    moments_grad = run.scratch[5].view(*shape)
    torch.bmm(above, f.readout[:, 0].mT, out=moments_grad.flatten(3).flatten(1, 2))
    moments = None if g.readout is None else run.scratch[6].view(*shape).zero_()
    for tile in spans(q.start, q.stop, run.plan.queries):
        own = slice(tile.start - q.start, tile.stop - q.start)
        _query_tile(
            run,
            f,
            g,
            tile,
            moments_grad[:, :, own],
            None if moments is None else moments[:, :, own],
        )
    if moments is not None and g.readout is not None:
        g.readout[:, 0].baddbmm_(moments.flatten(3).flatten(1, 2).mT, above)


def _query_tile(
    run: Pass, f: Fields, g: Fields, q: Span, moments_grad: Tensor, moments: Tensor | None
) -> None:
    """The gradients from one query tile of one block; adds to ``moments`` (h, b, Tq, w', d) where
    they are wanted.
    """
    heads, batch, nk = f.value.shape[:3]
    for k in spans(0, nk, run.plan.keys):
        weight, empty = pair_weight(f, q, k)
        if empty:
            continue
        far = tile_distances(f, q, k)
        shared = shared_terms(f, table_places(run.x, q, k), far, q, k, run.scratch[2])
        wants_shared = g.table is not None or (
            far is not None and far.shape[1] == 1 and _wants_distance(g)
        )
        shared_grad = None
        if wants_shared and shared is not None:
            h, _, tq, w, tk = shared.shape
            shared_grad = run.scratch[3].view(h, 1, w, tq, tk).transpose(2, 3).zero_()
        for chunk in groups(heads, batch, run.plan.group, heads):
            rows = scaled_queries(f, q, chunk, run.scratch[4])
            s = run.scratch[0].view(*rows.shape[:4], k.stop - k.start)
            fill_scores(f, rows, shared, far, chunk, k, s)
            above = moments_grad[chunk].flatten(0, 1).flatten(1, 2)
            hidden, slope = _hidden_gradient(run, f, g, s, above, weight, chunk, q, k)
            sums = None if moments is None else moments[chunk].flatten(0, 1).flatten(1, 2)
            _chunk_products(f, g, hidden, slope, rows, sums, above, chunk, q, k)
            add(cut(shared_grad, *chunk), slope)
            if far is not None and far.shape[1] > 1:
                _distance_gradient(f, g, slope, far, chunk, q, k)
        if shared_grad is not None:
            _shared_gradient(run, f, g, shared_grad, far, q, k)


def _hidden_gradient(
    run: Pass,
    f: Fields,
    g: Fields,
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
    up = run.scratch[1].view(h, b, tq, last, tk)
    multiply_rows(
        up.view(h * b, tq * last, tk),
        moments_grad,
        f.value[chunk][:, :, k].flatten(0, 1).mT,
        beta=0,
    )
    hidden = None
    if g.density is not None:
        hidden = act.function(before[-1])
        _density_gradient(f, g, (hidden * up).sum(3), chunk, q, k)
    own = cut(weight, *chunk)
    if own is not None:
        up.mul_(own)
    act.gradient_(up, before[-1])
    if hidden is None:
        hidden = before[-1]
        if mid:
            hidden = act.function(hidden)
        else:
            act.apply_(hidden)
    if own is not None:
        hidden.mul_(own)
    for layer in reversed(range(len(mid) // 2)):
        up = _mid_gradient(run, act, layer, before[layer], up)
    return hidden, up


def _density_gradient(
    f: Fields, g: Fields, part: Tensor, chunk: tuple[Span, Span], q: Span, k: Span
) -> None:
    """Add the tile's ``part`` (h, b, Tq, Tk) to the density's gradient where the order lets the
    query see the key.
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


def _chunk_products(
    f: Fields,
    g: Fields,
    hidden: Tensor,
    slope: Tensor,
    rows: Tensor,
    moments: Tensor | None,
    moments_grad: Tensor,
    chunk: tuple[Span, Span],
    q: Span,
    k: Span,
) -> None:
    """The matrix products of one chunk: M, dV, dQ and dkeys, and the key bias's sum over queries."""
    flat_hidden, flat_slope = hidden.flatten(0, 1).flatten(1, 2), slope.flatten(0, 1).flatten(1, 2)
    if moments is not None:
        multiply_rows(moments, flat_hidden, f.value[chunk][:, :, k].flatten(0, 1), beta=1)
    if g.value is not None:
        g.value[chunk][:, :, k].flatten(0, 1).baddbmm_(flat_hidden.mT, moments_grad)
    if g.keys is not None:
        flat_rows = rows.flatten(0, 1).flatten(1, 2)
        g.keys[chunk][:, :, k].flatten(0, 1).baddbmm_(flat_slope.mT, flat_rows)
    if any(t is not None for t in (g.query, g.query_bias, g.scale, g.query2, g.scale2)):
        rows_grad = torch.bmm(flat_slope, f.keys[chunk][:, :, k].flatten(0, 1))
        _rows_gradient(f.cut(*chunk), g.cut(*chunk), rows_grad.view(rows.shape), q)
    if g.key_bias is not None:
        add(cut(g.key_bias, *chunk)[..., k], slope.sum(2))


def _rows_gradient(f: Fields, g: Fields, rows_grad: Tensor, q: Span) -> None:
    """From the gradient of the rows ``scale ⊙ query`` (h, b, Tq, w, e + 1) to their factors'."""
    e = rows_grad.shape[-1] - 1
    if g.query_bias is not None:
        add(g.query_bias[:, :, q], rows_grad[..., e])
    pairs = [(f.query, f.scale, g.query, g.scale), (f.query2, f.scale2, g.query2, g.scale2)]
    for query, scale, query_grad, scale_grad in pairs:
        if query is None or scale is None:
            continue
        part = rows_grad[..., e - query.shape[-1] : e]
        if query_grad is not None:
            add(query_grad[:, :, q], (part * scale[:, :, None]).sum(3))
        if scale_grad is not None:
            add(scale_grad, (part * query[:, :, q, None, :]).sum((1, 2))[:, None])


def _wants_distance(g: Fields) -> bool:
    return any(t is not None for t in (g.distance_scale, g.query_positions, g.key_positions))


def _shared_gradient(
    run: Pass, f: Fields, g: Fields, slope: Tensor, far: Tensor | None, q: Span, k: Span
) -> None:
    """Gradients of the table and of shared distances from a tile's gradient (h, 1, Tq, w, Tk)."""
    places = table_places(run.x, q, k)
    if g.table is not None and places is not None:
        part = slope.sum(0, keepdim=True) if g.table.shape[0] == 1 and len(slope) > 1 else slope
        columns = part.transpose(2, 3).flatten(3)
        g.table.scatter_add_(-1, places.flatten().expand_as(columns), columns)
    if far is not None and far.shape[1] == 1:
        _distance_gradient(f, g, slope, far, (slice(None), slice(None)), q, k)


def _distance_gradient(
    f: Fields, g: Fields, slope: Tensor, far: Tensor, chunk: tuple[Span, Span], q: Span, k: Span
) -> None:
    """Gradients of the distance scale and of both positions; zero where two points coincide."""
    scale, own = cut(f.distance_scale, *chunk), cut(far, *chunk)
    if g.distance_scale is not None:
        total = cut(g.distance_scale, *chunk)
        add(total, (slope * own).sum((1, 2, 4))[:, None])
    if g.query_positions is None and g.key_positions is None:
        return
    x, y = cut(f.query_positions, *chunk), cut(f.key_positions, *chunk)
    reach = (slope * scale[:, :, None, :, None]).sum((0, 3))[None]  # (1, b, Tq, Tk)
    near = own[:, :, :, 0] == 0
    reach = torch.where(near, 0.0, reach / torch.where(near, 1.0, own[:, :, :, 0]))
    pull = reach[..., None] * (x[:, :, q, None, :] - y[:, :, None, k, :])
    for total, tile, part in (
        (g.query_positions, q, pull.sum(3)),
        (g.key_positions, k, -pull.sum(2)),
    ):
        if total is not None:
            target = cut(total, *chunk)
            add(target[:, :, tile], part)
