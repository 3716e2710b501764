"""The MLP kernel where a query sees few keys: the first layer per point, hidden units first."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...forms.neighbourhoods.gather import End, Neighbours, Rows, by_point, measure_rows
from ...forms.neighbourhoods.general import has_no_values, refuses_images, shape_alone
from ...forms.neighbourhoods.hidden import read_moments
from ...forms.neighbourhoods.join import added
from ...forms.neighbourhoods.recompute import (
    Pending,
    Weights,
    Work,
    parameters_of,
    with_parameters,
)
from ...forms.neighbourhoods.tiles import partition
from ...integral import Exact, Facts, Form, Kernel, Problem, with_offset
from ...ops.backend import at_least_single, cast, full_precision
from ...ops.tiles import find_activation
from .capabilities import SplitHidden

ENDS: dict[str, End] = {
    "query_bias": "query",
    "query": "query",
    "key_bias": "key",
    "key": "key",
}


class NeighbourHidden(Form):
    """The first layer's terms of each end are computed once per point and gathered. Its
    displacement term and further layers are computed per edge, and hidden units are integrated
    before the readout: O(E·w·(d + w)) time and O(N·w + E) memory, beside one tile.
    """

    word = Exact
    strategy: Exact
    sparse = True
    name = "hidden units over neighbours"
    reason = (
        "the first layer is a sum of both ends' terms, and the last is linear, so that points come "
        "before pairs and hidden units before the readout"
    )

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not isinstance(kernel, SplitHidden):
            return "it needs a first layer that is a sum of terms (SplitHidden)"
        return refuses_images(kernel, facts)

    def respond(self, kernel: SplitHidden, problem: Problem) -> Tensor:
        if has_no_values(problem):
            return shape_alone(kernel, problem)
        batch, _, queries, _ = problem.ux.shape
        work = _work(kernel, problem, self.strategy.memory)
        results = work.results()
        out = added(results, work.tiles, batch * queries)
        out = cast(out, problem.uy.dtype)
        out = out.unflatten(0, (batch, queries))
        out = out.transpose(1, 2)
        return with_offset(out, kernel, problem)


def _work(kernel: SplitHidden, problem: Problem, memory: int | None) -> Work:
    """Return the computation of each tile of a problem, within so many bytes."""
    p = problem
    terms = kernel.both_terms(p)
    single = at_least_single(p.uy.dtype)
    no_displacement = p.x.new_zeros(1, p.x.shape[-1])
    shifted = kernel.table(no_displacement) is not None
    shared_positions = len(p.x) == 1 and len(p.y) == 1
    heads = {name: terms[name].shape[1] for name in ENDS if name in terms}
    rows = Rows.of(_gathered(p, terms, shifted))

    # The readout is made once, and the kernel's own parameters are read for displacements alone.
    parameters: Weights = {}
    if shifted:
        parameters = parameters_of(kernel)
    weights = _weights(kernel, terms) | parameters
    layers = len(terms.get("mid", ()))
    count = p.uy.shape[1]

    def answer(tile: Neighbours, weights: Weights) -> Pending:
        value = cast(tile.heads("value", count), single)
        with full_precision(value):
            first = _first_layer(
                kernel,
                tile,
                weights,
                heads,
                shifted,
                shared_positions,
                single,
            )
            function = find_activation(terms["activation"]).function
            hidden = function(first)
            for i in range(layers):
                weight = weights[f"term.weight{i}"].to(single)
                shift = weights[f"term.shift{i}"].to(single)
                hidden = function(F.linear(hidden, weight, shift))
            mass = cast(tile.weights(spread=False), single)
            return read_moments(
                hidden,
                mass,
                value,
                weights["term.readout"],
                weights.get("term.bias"),
            )

    # Memory of a tile: gathered rows per key; per pair the hidden units of all heads, of which
    # about four tensors exist at once.
    size = torch.finfo(single).bits // 8
    width = terms["query_bias"].shape[-1]
    key_bytes = size * rows.width()
    pair_bytes = 4 * size * count * width
    tiles = partition(
        p,
        key_bytes=key_bytes,
        pair_bytes=pair_bytes,
        split=True,
        cached=True,
        memory=memory,
    )
    within = with_parameters(kernel, list(parameters))
    return Work(
        rows,
        weights,
        tiles,
        answer,
        p.quadrature,
        within,
    )


def _gathered(
    p: Problem,
    terms: dict[str, Any],
    shifted: bool,
) -> dict[str, tuple[End, Tensor | None]]:
    """Return the tensors that tiles gather, each with its end of a pair."""
    parts: dict[str, tuple[End, Tensor | None]] = {}
    for name, end in ENDS.items():
        # Where the product's columns are the values, the values are gathered once.
        if name in terms and not (name == "key" and terms[name] is p.uy):
            parts[name] = (end, by_point(terms[name]))
    parts["value"] = ("key", by_point(p.uy))
    parts |= measure_rows(p)
    if shifted:
        parts["x"] = ("query", p.x)
        parts["y"] = ("key", p.y)
    return parts


def _weights(
    kernel: SplitHidden,
    terms: dict[str, Any],
) -> dict[str, Tensor]:
    """Return the tensors of the layer itself that every tile reads."""
    readout, bias = kernel.readout()
    weights = {
        "term.readout": readout,
        "term.bias": bias,
        "term.scale": terms.get("scale"),
    }
    for i, (weight, shift) in enumerate(terms.get("mid", ())):
        weights[f"term.weight{i}"] = weight
        weights[f"term.shift{i}"] = shift
    return {name: x for name, x in weights.items() if x is not None}


def _first_layer(
    kernel: SplitHidden,
    tile: Neighbours,
    weights: Weights,
    heads: dict[str, int],
    shifted: bool,
    shared_positions: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Return the arguments of the first activation, (R, 1 | H, b, k, w)."""

    def ends(query: str, key: str) -> tuple[Tensor, Tensor]:
        """Return rows of both ends of a pair, (R, H, b, 1, ·) and (R, H, 1, k, ·)."""
        # Where the keys' columns are the values, the tile has them under that name.
        key_rows = "value"
        if key in tile.rows:
            key_rows = key
        of_query = tile.heads(query, heads[query])
        of_query = cast(of_query, dtype)
        of_key = tile.heads(key_rows, heads[key])
        of_key = cast(of_key, dtype)
        return of_query[:, :, :, None], of_key[:, :, None]

    of_query, of_key = ends("query_bias", "key_bias")
    total = of_query + of_key
    if "term.scale" in weights:
        of_query, of_key = ends("query", "key")
        scale = weights["term.scale"].to(dtype)
        product = of_query * of_key
        if scale.shape[0] == 1:
            total = total + F.linear(product, scale[0])
        else:
            total = total + product @ scale.mT[:, None]
    if shifted:
        away = tile.displacements()
        samples = 1
        if shared_positions:
            # The term depends on positions alone: once for all samples of the tile.
            samples = tile.part.samples
            away = away.unflatten(0, (samples, -1))[0]
        table = kernel.table(away.flatten(0, 2))
        # ``shifted`` says that the layer has a displacement term.
        assert table is not None
        by_pair = table.to(dtype).mT
        by_pair = by_pair.unflatten(1, away.shape[:3])
        by_sample = total.unflatten(0, (samples, -1)) + by_pair.transpose(0, 1)
        total = by_sample.flatten(0, 1)
    return total
