"""Kernels with a linear readout where a query sees few keys: hidden units are integrated first."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...integral.capabilities import HiddenReadout
from ...integral.contract import Form, Kernel, with_offset
from ...integral.problem import Facts, Problem
from ...integral.strategy import Exact
from ...ops.backend import at_least_single, cast, full_precision, promoted
from .gather import Neighbours, Rows, by_point, edge_rows, measure_rows
from .general import has_no_values, shape_alone
from .join import added, weighted_sum
from .recompute import Weights, Work, parameters_of, with_parameters
from .tiles import partition


class NeighbourMoments(Form):
    """Hidden units of each edge times the signal, summed before the readout: O(E·w·d) time beside
    the hidden units, and O(E) memory, of which the gathered part is one tile.
    """

    word = Exact
    sparse = True
    name = "moments over neighbours"
    reason = "the last layer is linear, so hidden units are integrated first"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if isinstance(kernel, HiddenReadout):
            return None
        return "it needs a linear readout of hidden units (HiddenReadout)"

    def respond(self, kernel: Any, problem: Problem) -> Tensor:
        if has_no_values(problem):
            return shape_alone(kernel, problem)
        p, single = problem, at_least_single(problem.uy.dtype)
        rows = Rows.of(
            {
                "x": ("query", p.x),
                "y": ("key", p.y),
                "ux": ("query", by_point(p.ux)),
                "uy": ("key", by_point(p.uy)),
                "shift": ("edge", edge_rows(p, "shift")),
                **measure_rows(p),
            }
        )
        readout, bias = kernel.readout()
        parameters, weights = parameters_of(kernel), {"term.readout": readout}
        if bias is not None:
            weights["term.bias"] = bias
        heads, width = p.uy.shape[1], readout.shape[-1]
        size = torch.finfo(single).bits // 8
        per_pair = width
        if kernel.d_out == 1:
            per_pair += heads * kernel.d_in
        tiles = partition(
            p,
            key_bytes=2 * size * rows.width(),
            pair_bytes=4 * size * per_pair,
            split=True,
            cached=True,
        )

        def answer(kernel: Any, tile: Neighbours, weights: Weights) -> Tensor:
            hidden = _hidden(kernel, tile, heads)
            dtype = promoted(hidden.dtype, single)
            value = cast(tile.heads("uy", heads), dtype)
            with full_precision(value):
                return read_moments(
                    cast(hidden, dtype),
                    cast(tile.weights(), dtype),
                    value,
                    weights["term.readout"],
                    weights.get("term.bias"),
                )

        of_tile = with_parameters(kernel, answer, list(parameters))
        work = Work(rows, weights | parameters, tiles, of_tile, p.quadrature)
        batch, queries = p.ux.shape[0], p.ux.shape[2]
        out = cast(added(work.results(), tiles, batch * queries), p.uy.dtype)
        return with_offset(out.unflatten(0, (batch, queries)).transpose(1, 2), kernel, p)


def _hidden(kernel: Any, tile: Neighbours, heads: int) -> Tensor:
    """The hidden units of a tile, (R, 1 | H, b, k, w)."""
    x, y = tile.rows["x"], tile.rows["y"]
    if "shift" in tile.rows:
        y = y + tile.rows["shift"].to(y.dtype)
    ux, uy = tile.heads("ux", heads), tile.heads("uy", heads)
    hidden = kernel.hidden(x[:, None, :, None], y[:, None, None], ux[:, :, :, None], uy[:, :, None])
    return hidden.expand(len(x), -1, x.shape[1], y.shape[1], -1)


def read_moments(
    hidden: Float[Tensor, "#r #h b k w"],
    measure: Float[Tensor, "#r #h #b k"],
    value: Float[Tensor, "r h k i"],
    readout: Float[Tensor, "h o i w"],
    bias: Float[Tensor, "h o i"] | None,
) -> Float[Tensor, "r h b o"]:
    """The readout of the hidden units of a tile, integrated before it."""
    if readout.shape[1] == 1 and hidden.shape[1] == 1:
        return _read_entries(hidden, measure, value, readout, bias)
    count = value.shape[1]
    hidden = hidden * measure[..., None]
    if hidden.shape[1] == 1 and count > 1:
        # Hidden units that heads share meet the values of all heads at once.
        every = value.transpose(1, 2).flatten(2)
        if hidden.shape[2] == 1:
            moment = torch.bmm(hidden[:, 0, 0].mT, every)[:, None]
        else:
            moment = hidden[:, 0].mT @ every[:, None]
        moment = moment.unflatten(-1, (count, -1)).movedim(-2, 1)
    elif hidden.shape[2] == 1:
        moment = (hidden[:, :, 0].mT @ value)[:, :, None]
    else:
        moment = hidden.mT @ value[:, :, None]

    # One matrix product per head: moments (R · b, w · i) times the readout (w · i, o).
    readout = readout.to(value.dtype).permute(0, 3, 2, 1).flatten(1, 2)
    rows, _, block = moment.shape[:3]
    flat = moment.transpose(1, 2).flatten(0, 1).flatten(2).transpose(0, 1)
    out = torch.bmm(flat, readout).transpose(0, 1).unflatten(0, (rows, block)).transpose(1, 2)
    if bias is not None:
        out = out + weighted_sum(measure, value) @ bias.to(value.dtype).mT
    return out


def _read_entries(
    hidden: Tensor, measure: Tensor, value: Tensor, readout: Tensor, bias: Tensor | None
) -> Tensor:
    """:func:`read_moments` of hidden units that heads of one output share: the kernel's entries are
    then no more numbers than the moments, and one matrix product.
    """
    heads, _, width, _ = readout.shape
    shift = None if bias is None else bias.to(value.dtype).flatten()
    entries = F.linear(hidden[:, 0], readout.to(value.dtype).flatten(0, 2), shift)
    every = value.transpose(1, 2).flatten(2)[:, None]
    products = entries * every
    if width > 1:
        products = products.unflatten(-1, (heads, width)).sum(-1)
    if measure.shape[1] == 1:
        # One product of a row of masses and its entries, (R, b, 1, k) times (R, b, k, H).
        return (measure[:, 0, :, None] @ products).movedim(-1, 1)
    return (products * measure.movedim(1, -1)).sum(2).transpose(1, 2)[..., None]
