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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....ops.tiles import (
    Activation,
    Scratch,
    Span,
    add_shared,
    cut,
    find_activation,
    groups,
    multiply_rows,
    spans,
)
from .first_layer import (
    Chunk,
    FirstLayer,
    LayerScratch,
    cut_pairs,
    matrices_of_points,
    tile_matrices,
)
from .forward import Plan, as_given, key_tiles, linear, moment_shape, pair_weight, prepare
from .terms import PAIR_TENSORS, Tensors


@dataclass
class Pass:
    """The state of one backward pass that all tiles share.

    Attributes:
        x: the call's tensors as given.
        act: the activation.
        plan: tile sizes.
        mid: gradients of the further layers, to add to.
        layer: memory of :class:`FirstLayer`.
        up: memory for the gradient of a tile's hidden units.
        shared_grad: memory for the gradient of a tile's shared terms.
        moments_grad, moments: memory for the moments' gradient, and for the moments.
    """

    x: Tensors
    act: Activation
    plan: Plan
    mid: list[Tensor]
    layer: LayerScratch
    up: Scratch
    shared_grad: Scratch
    moments_grad: Scratch
    moments: Scratch

    @staticmethod
    def make(
        x: Tensors,
        activation: str,
        memory: int,
        mid: list[Tensor],
        readout: bool,
    ) -> Pass:
        """Allocate the memory of a pass. Only the ``readout``'s gradient needs moments."""
        plan = Plan.make(x, memory)
        n = plan.numbers

        def scratch(size: int) -> Scratch:
            return Scratch(x.value, size)

        moments = 0
        if readout:
            moments = n.moments
        return Pass(
            x,
            find_activation(activation),
            plan,
            mid,
            layer=LayerScratch(
                scores=scratch(n.tile),
                shared=scratch(n.shared),
                rows=scratch(n.rows),
            ),
            up=scratch(n.tile),
            shared_grad=scratch(n.shared),
            moments_grad=scratch(n.moments),
            moments=scratch(moments),
        )


class Part(NamedTuple):
    """One tile of one block.

    Attributes:
        f, g: the block's tensors, heads first, and their gradients to add to.
        q, k: its queries and keys.
    """

    f: Tensors
    g: Tensors
    q: Span
    k: Span

    def values(self, chunk: Chunk) -> Tensor:
        """Return the values of the keys of a chunk, (h·b, Tk, d)."""
        return matrices_of_points(self.f.value, chunk, self.k)


def backward(
    grad: Tensor,
    x: Tensors,
    activation: str,
    memory: int,
    needs: list[bool],
) -> list[Tensor]:
    """Return gradients of the inputs marked in ``needs`` (the order of :class:`Tensors`, ``mid``
    spread out at the end).
    """
    wanted = dict(zip(PAIR_TENSORS, needs))
    f = prepare(x)
    g = _zeros(f, wanted)
    mid = [torch.zeros_like(t) for t in x.mid]
    b, h, nk, _ = x.value.shape
    nq = x.query_bias.shape[2]
    if 0 not in (b, h, nk, nq):
        wants_readout = g.readout is not None
        run = Pass.make(
            x,
            activation,
            memory,
            mid,
            wants_readout,
        )
        grad = grad.transpose(0, 1)
        for block in groups(h, b, run.plan.block, run.plan.block_heads):
            values = cut_pairs(f, *block)
            gradients = cut_pairs(g, *block)
            above = grad[block]
            for q in spans(0, nq, run.plan.rows):
                of_queries = above[:, :, q]
                _rows(run, values, gradients, q, of_queries)

    results = []
    for name, needed in wanted.items():
        if needed:
            results.append(_restored(name, g, x))
    mid_needs = needs[len(wanted) :]
    for gradient, needed in zip(mid, mid_needs):
        if needed:
            results.append(gradient)
    return results


def _zeros(f: Tensors, wanted: dict[str, bool]) -> Tensors:
    """Return gradients to add to, heads first, None where none is wanted."""
    zeros: dict[str, Any] = {}
    for name, needed in wanted.items():
        x = getattr(f, name)
        if needed and x is not None:
            contiguous = torch.contiguous_format
            zeros[name] = torch.zeros_like(x, memory_format=contiguous)
    return Tensors(**zeros)


def _restored(name: str, g: Tensors, x: Tensors) -> Tensor:
    """Return the gradient of input ``name`` in that input's shape, from its heads-first form."""
    total = getattr(g, name)
    if name == "key":
        # The last column is the ones that `prepare` added.
        total = total[..., :-1]
    given = getattr(x, name)
    return as_given(PAIR_TENSORS[name], total, given)


def _rows(
    run: Pass,
    f: Tensors,
    g: Tensors,
    q: Span,
    grad: Tensor,
) -> None:
    """Add all gradients that come from one block's queries ``q``, whose moments and moment
    gradients are held together.
    """
    # Moments and their gradient are (h, b, Tq, w', d).
    heads, batch, queries, _ = grad.shape
    width, d = moment_shape(run.x)
    shape = (heads, batch, queries, width, d)
    above = grad.flatten(1, 2)
    readout = f.readout[:, 0]
    readout = readout.flatten(1, 2)

    # dM = G R.
    moments_grad = run.moments_grad.view(*shape)
    rows = moments_grad.flatten(3).flatten(1, 2)
    torch.bmm(above, readout.mT, out=rows)
    moments = None
    if g.readout is not None:
        moments = run.moments.view(*shape).zero_()

    # One tile of queries at a time, which adds up its moments beside the gradients.
    for tile in spans(q.start, q.stop, run.plan.queries):
        rows = slice(tile.start - q.start, tile.stop - q.start)
        tile_grad = moments_grad[:, :, rows]
        sums = None
        if moments is not None:
            sums = moments[:, :, rows]
        _query_tile(
            run,
            f,
            g,
            tile,
            tile_grad,
            sums,
        )

    # dR = Gᵀ M.
    if moments is not None and g.readout is not None:
        total = g.readout[:, 0]
        total = total.flatten(1, 2)
        flat = moments.flatten(3).flatten(1, 2)
        total.baddbmm_(flat.mT, above)


def _query_tile(
    run: Pass,
    f: Tensors,
    g: Tensors,
    q: Span,
    moments_grad: Tensor,
    moments: Tensor | None,
) -> None:
    """Add the gradients from one query tile of one block, and add to ``moments``
    (h, b, Tq, w', d) where they are wanted.
    """
    heads, batch = f.value.shape[:2]

    # Tiles and chunks are those of the forward. In memory of one chunk are its pre-activations and
    # their gradient, (h, b, Tq, w', Tk) each; the gradient of shared terms is added up over chunks.
    for k in key_tiles(f, q, run.plan.keys):
        weight = pair_weight(f, q, k)
        part = Part(f, g, q, k)
        layer = FirstLayer(
            run.x,
            f,
            q,
            k,
            run.layer,
        )
        shared_grad = layer.shared_gradient(g, run.shared_grad)
        for chunk in groups(heads, batch, run.plan.group, heads):
            first = layer.values(chunk)
            above = tile_matrices(moments_grad[chunk])
            hidden, slope = _hidden_gradient(
                run,
                part,
                chunk,
                first.values,
                above,
                weight,
            )

            # M += H V and dV += Hᵀ dM, of weighted hidden units ρH.
            flat = tile_matrices(hidden)
            if moments is not None:
                sums = tile_matrices(moments[chunk])
                values = part.values(chunk)
                multiply_rows(sums, flat, values, beta=1)
            if g.value is not None:
                of_values = matrices_of_points(g.value, chunk, k)
                of_values.baddbmm_(flat.mT, above)
            layer.add_gradients(
                g,
                slope,
                first.rows,
                shared_grad,
                chunk,
            )
        layer.add_shared_gradients(g, shared_grad)


class HiddenGradient(NamedTuple):
    """The backward of the hidden layers of a chunk.

    Attributes:
        hidden: weighted hidden units ρH of the last layer.
        slope: dS, the gradient of the first layer's pre-activations.
    """

    hidden: Tensor
    slope: Tensor


def _hidden_gradient(
    run: Pass,
    part: Part,
    chunk: Chunk,
    s: Tensor,
    moments_grad: Tensor,
    weight: Tensor | None,
) -> HiddenGradient:
    """Go back through the hidden layers, from the gradient dM of the moments. The results overwrite
    scratch memory, ``s`` included.
    """
    act = run.act
    mid = run.x.mid
    # The pre-activations of every hidden layer, the first one's first.
    before = [s]
    for w, bias in zip(mid[::2], mid[1::2]):
        units = act.function(before[-1])
        before.append(linear(w, bias, units))

    # d(H) = dM Vᵀ.
    h, b, tq, last, tk = before[-1].shape
    up = run.up.view(h, b, tq, last, tk)
    flat = up.view(h * b, tq * last, tk)
    values = part.values(chunk)
    multiply_rows(flat, moments_grad, values.mT, beta=0)

    # dρ = Σ_k H ⊙ d(H) needs both factors before ρ enters either.
    hidden = None
    if part.g.density is not None:
        hidden = act.function(before[-1])
        _add_density_gradient(part, chunk, (hidden * up).sum(3))

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
        up = _mid_gradient(run, layer, before[layer], up)
    return HiddenGradient(hidden, up)


def _add_density_gradient(part: Part, chunk: Chunk, of_density: Tensor) -> None:
    """Add a tile's gradient (h, b, Tq, Tk) of the density where the order lets the query see the
    key: ρ of a hidden pair has no effect.
    """
    f, g, q, k = part
    if f.query_time is not None and f.key_time is not None:
        key_time = f.key_time[:, :, None, k]
        query_time = f.query_time[:, :, q, None]
        late = key_time > query_time
        of_density.masked_fill_(cut(late, *chunk), 0.0)
    target = cut(g.density, *chunk)
    add_shared(target[:, :, q, k], of_density)


def _mid_gradient(
    run: Pass,
    layer: int,
    before: Tensor,
    up: Tensor,
) -> Tensor:
    """Go back through one further layer: add to its weight's and bias's gradient, and return the
    gradient of the pre-activations ``before`` it.
    """
    act = run.act
    weight = run.x.mid[2 * layer]
    of_weight = run.mid[2 * layer]
    of_bias = run.mid[2 * layer + 1]
    hidden = act.function(before).flatten(0, 2)
    flat = up.flatten(0, 2)

    # dW = dS Hᵀ, db = dS summed, d(H) = Wᵀ dS.
    of_matrices = torch.bmm(flat, hidden.mT)
    of_weight.add_(of_matrices.sum(0))
    of_bias.add_(flat.sum((0, 2)))
    transposed = weight.mT.expand(len(flat), -1, -1)
    down = torch.bmm(transposed, flat).view_as(before)
    act.gradient_(down, before)
    return down
