"""The first layer on one tile: its pre-activations from the terms, and back from their gradient to
the terms' tensors.

Three ways into a tile of pre-activations S (h, b, Tq, w, Tk), by what a term varies with:

- Product and query bias are one matrix product: a row ``[scale ⊙ query, query bias]`` of each query
  and hidden unit meets the keys, whose last column is one (:func:`.forward.prepare`).
- Terms that all batch entries share, the table and distances between shared positions, are made
  once per block and copied into the S of every chunk, before that product is added to it.
- What is left, the key bias and distances between positions of a batch entry, is added per chunk.

The copy comes first because ``baddbmm`` then adds the product in place: S is written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....ops.backend import cast
from ....ops.tiles import Scratch, Span, add_shared, cut, distances, multiply_rows
from .terms import PAIR_TENSORS, Tensors

Chunk = tuple[Span, Span]
"""Spans of heads and of batch entries."""


class LayerScratch(NamedTuple):
    """Memory that every tile reuses: for S, for the shared terms and for the scaled queries."""

    scores: Scratch
    shared: Scratch
    rows: Scratch


class PreActivations(NamedTuple):
    """The pre-activations of a chunk, in scratch memory.

    Attributes:
        values: S, (h, b, Tq, w, Tk).
        rows: the scaled queries, (h, b, Tq, w, e + 1), which :meth:`FirstLayer.add_gradients`
            takes.
    """

    values: Tensor
    rows: Tensor


class FirstLayer:
    """The pre-activations of queries ``q`` and keys ``k`` of one block, and their gradients.

    Args:
        x, f: the call's tensors as given, and the block's heads first.
        scratch: memory of the tile.
    """

    def __init__(
        self,
        x: Tensors,
        f: Tensors,
        q: Span,
        k: Span,
        scratch: LayerScratch,
    ):
        self.f = f
        self.q = q
        self.k = k
        self.scores = scratch.scores
        self.rows = scratch.rows
        self.places = _table_places(x, q, k)
        self.far = _distances(f, q, k)
        self.far_is_shared = self.far is not None and self.far.shape[1] == 1
        self.shared = self._shared_terms(scratch.shared)

    # --- values -----------------------------------------------------------------------------------

    def values(self, chunk: Chunk) -> PreActivations:
        """Return the pre-activations of a chunk. The next call overwrites them."""
        f = self.f
        k = self.k
        rows = self._scaled_queries(chunk)
        key_count = k.stop - k.start
        s = self.scores.view(*rows.shape[:4], key_count)
        h, b, tq, w, tk = s.shape

        terms = []
        if self.shared is not None:
            terms.append(cut(self.shared, *chunk))
        if f.key_bias is not None:
            key_bias = cut(f.key_bias, *chunk)
            terms.append(key_bias[:, :, None, :, k])
        if len(terms) == 2:
            shared = terms[0].expand_as(s)
            torch.add(shared, terms[1], out=s)
        elif terms:
            s.copy_(terms[0])

        if self.far is not None and not self.far_is_shared:
            scale = cut(f.distance_scale, *chunk)
            scale = scale[:, :, None, :, None]
            far = cut(self.far, *chunk)
            if terms:
                s.addcmul_(scale, far)
            else:
                torch.mul(scale.expand_as(s), far, out=s)
            terms.append(far)

        keys = matrices_of_points(f.key, chunk, k)
        flat = rows.view(h * b, tq * w, -1)
        # The product is added to what S holds. Without terms S holds the last tile's values.
        keep = int(bool(terms))
        sums = s.view(h * b, tq * w, tk)
        multiply_rows(sums, flat, keys.mT, beta=keep)
        return PreActivations(s, rows)

    def _scaled_queries(self, chunk: Chunk) -> Tensor:
        """Return rows (h, b, Tq, w, e + 1) of a chunk whose product with the keys is the product
        terms plus the query bias.
        """
        f = self.f
        q = self.q
        heads, batch, _, columns = f.key[chunk].shape
        bias = cut(f.query_bias, *chunk)
        bias = bias[:, :, q]
        _, _, queries, width = bias.shape
        rows = self.rows.view(heads, batch, queries, width, columns)

        # The last column meets the column of ones that `prepare` put behind the keys.
        e = columns - 1
        rows[..., e] = bias
        products = rows[..., :e]
        if f.query is not None and f.scale is not None:
            query = cut(f.query, *chunk)
            query = query[:, :, q, None]
            scale = cut(f.scale, *chunk)
            scale = scale[:, :, None]
            torch.mul(query.expand_as(products), scale, out=products)
        else:
            products.zero_()

        # The second product meets the last columns of the keys alone.
        if f.query2 is not None and f.scale2 is not None:
            query = cut(f.query2, *chunk)
            query = query[:, :, q, None]
            scale = cut(f.scale2, *chunk)
            scale = scale[:, :, None]
            first = e - query.shape[-1]
            last_columns = products[..., first:]
            last_columns.addcmul_(query, scale)
        return rows

    def _shared_terms(self, scratch: Scratch) -> Tensor | None:
        """Return the terms (h, 1, Tq, w, Tk) of the pre-activation that all batch entries share,
        or None.

        The gathered table lies in memory as (h, 1, w, Tq, Tk), as a selection of columns leaves it.
        """
        f = self.f
        total = None
        if f.table is not None and self.places is not None:
            h, _, w, _ = f.table.shape
            queries, keys = self.places.shape
            places = self.places.flatten()
            total = scratch.view(h * w, places.numel())
            torch.index_select(
                f.table.flatten(0, 2),
                1,
                places,
                out=total,
            )
            total = total.view(h, 1, w, queries, keys)
            total = total.transpose(2, 3)
        if self.far is not None and self.far_is_shared and f.distance_scale is not None:
            scale = f.distance_scale[:, :, None, :, None]
            term = scale * self.far
            if total is None:
                total = term
            else:
                total = total + term
        return total

    # --- gradients --------------------------------------------------------------------------------

    def shared_gradient(self, g: Tensors, scratch: Scratch) -> Tensor | None:
        """Return zeros for the gradient of the shared terms, laid out like them, or None where none
        of their tensors wants one.
        """
        wants_distance = self.far_is_shared and _wants_distance(g)
        if self.shared is None or (g.table is None and not wants_distance):
            return None
        h, _, tq, w, tk = self.shared.shape
        gradient = scratch.view(h, 1, w, tq, tk)
        gradient = gradient.transpose(2, 3)
        return gradient.zero_()

    def add_gradients(
        self,
        g: Tensors,
        slope: Tensor,
        rows: Tensor,
        shared: Tensor | None,
        chunk: Chunk,
    ) -> None:
        """Add to ``g`` the gradients of a chunk's terms, from the gradient ``slope`` (dS) of its
        pre-activations. Those of shared terms are collected in ``shared``.
        """
        f = self.f
        k = self.k
        flat = tile_matrices(slope)
        keys = matrices_of_points(f.key, chunk, k)

        # dkeys = dSᵀ Q and dQ = dS · keys, for the rows Q of scaled queries.
        if g.key is not None:
            flat_rows = tile_matrices(rows)
            of_keys = matrices_of_points(g.key, chunk, k)
            of_keys.baddbmm_(flat.mT, flat_rows)
        of_rows = (
            g.query,
            g.query_bias,
            g.scale,
            g.query2,
            g.scale2,
        )
        if any(t is not None for t in of_rows):
            rows_grad = torch.bmm(flat, keys)
            rows_grad = rows_grad.view(rows.shape)
            values = cut_pairs(f, *chunk)
            gradients = cut_pairs(g, *chunk)
            _add_row_gradients(values, gradients, rows_grad, self.q)

        # An added term has the gradient dS, summed over what its tensor shares.
        if g.key_bias is not None:
            of_key_bias = cut(g.key_bias, *chunk)
            add_shared(of_key_bias[..., k], slope.sum(2))
        add_shared(cut(shared, *chunk), slope)
        if self.far is not None and not self.far_is_shared:
            self._add_distance_gradients(g, slope, chunk)

    def add_shared_gradients(self, g: Tensors, slope: Tensor | None) -> None:
        """Add the gradients of the table and of shared distances, from the tile's sum
        (h, 1, Tq, w, Tk) over the chunks.
        """
        if slope is None:
            return
        if g.table is not None and self.places is not None:
            part = slope
            if g.table.shape[0] == 1 and slope.shape[0] > 1:
                part = slope.sum(0, keepdim=True)
            columns = part.transpose(2, 3)
            columns = columns.flatten(3)
            # Pairs of the same displacement read one column, whose gradient is their sum.
            places = self.places.flatten()
            index = places.expand_as(columns)
            g.table.scatter_add_(-1, index, columns)
        if self.far_is_shared:
            every = slice(None)
            self._add_distance_gradients(g, slope, (every, every))

    def _add_distance_gradients(
        self,
        g: Tensors,
        slope: Tensor,
        chunk: Chunk,
    ) -> None:
        """Add the gradients of the distance scale and of both positions.

        With r = |x - y|, ∂r/∂x is (x - y) / r and ∂r/∂y its negative; zero where two points
        coincide, as :func:`distances` defines it.
        """
        f = self.f
        q = self.q
        k = self.k
        scale = cut(f.distance_scale, *chunk)
        far = cut(self.far, *chunk)
        if g.distance_scale is not None:
            target = cut(g.distance_scale, *chunk)
            of_scale = (slope * far).sum((1, 2, 4))
            add_shared(target, of_scale[:, None])
        if g.query_positions is None and g.key_positions is None:
            return

        # dr (1, b, Tq, Tk), over r. At r = 0 the quotient would be NaN.
        scale = scale[:, :, None, :, None]
        of_distance = (slope * scale).sum((0, 3))
        of_distance = of_distance[None]
        length = far[:, :, :, 0]
        coincide = length == 0
        per_length = of_distance / torch.where(coincide, 1.0, length)
        per_length = torch.where(coincide, 0.0, per_length)

        x = cut(f.query_positions, *chunk)
        y = cut(f.key_positions, *chunk)
        x = x[:, :, q, None, :]
        y = y[:, :, None, k, :]
        # x - y of every pair, (·, b, Tq, Tk, p).
        difference = x - y
        pull = per_length[..., None] * difference
        if g.query_positions is not None:
            of_queries = cut(g.query_positions, *chunk)
            add_shared(of_queries[:, :, q], pull.sum(3))
        if g.key_positions is not None:
            of_keys = cut(g.key_positions, *chunk)
            add_shared(of_keys[:, :, k], -pull.sum(2))


def cut_pairs(x: Tensors, h: Span, b: Span) -> Tensors:
    """Return heads ``h`` and batch entries ``b`` of all heads-first tensors."""
    parts = {}
    for name, fact in PAIR_TENSORS.items():
        # Indices belong to points alone, and tiles read them off the call's tensors.
        if fact.kind != "index":
            whole = getattr(x, name)
            parts[name] = cut(whole, h, b)
    return Tensors(**parts)


def tile_matrices(x: Tensor) -> Tensor:
    """Return (h, b, Tq, w, n) as one matrix per head and batch entry, (h·b, Tq·w, n)."""
    return x.flatten(0, 1).flatten(1, 2)


def matrices_of_points(x: Tensor, chunk: Chunk, points: Span) -> Tensor:
    """Return the rows of some points of a chunk, one matrix per head and batch entry
    (h·b, points, n).
    """
    of_chunk = x[chunk]
    rows = of_chunk[:, :, points]
    return rows.flatten(0, 1)


def shared_terms_differ(x: Tensors) -> bool:
    """Return whether the terms that all batch entries share differ between heads."""
    tensors = (x.table, x.distance_scale)
    return any(t is not None and t.shape[0] > 1 for t in tensors)


def _distances(
    f: Tensors,
    q: Span,
    k: Span,
) -> Tensor | None:
    """Return distances (1, b, Tq, 1, Tk) of a tile, or None."""
    if f.distance_scale is None or f.query_positions is None or f.key_positions is None:
        return None
    x = f.query_positions[:, :, q]
    y = f.key_positions[:, :, k]
    far = distances(x, y)
    return far[:, :, :, None, :]


def _table_places(
    x: Tensors,
    q: Span,
    k: Span,
) -> Tensor | None:
    """Return the columns (Tq, Tk) of the table that a tile's pairs read, or None.

    A call keeps one integer per point; only this tile has one per pair.
    """
    if x.query_index is None or x.key_index is None:
        return None
    return x.query_index[q, None] - x.key_index[k]


def _wants_distance(g: Tensors) -> bool:
    tensors = (
        g.distance_scale,
        g.query_positions,
        g.key_positions,
    )
    return any(t is not None for t in tensors)


def _add_row_gradients(
    f: Tensors,
    g: Tensors,
    rows_grad: Tensor,
    q: Span,
) -> None:
    """Add the gradients of query bias, queries and scales to the tensors ``g``, from the values
    ``f`` and the gradient of the rows ``[scale ⊙ query, query bias]`` (h, b, Tq, w, e + 1) of the
    queries ``q``.

    The second product adds ``scale2 ⊙ query2`` to the last of the e columns, so that it reads the
    same gradient there.
    """
    # The query bias meets the column of ones, which is the last.
    e = rows_grad.shape[-1] - 1
    if g.query_bias is not None:
        of_bias = g.query_bias[:, :, q]
        add_shared(of_bias, rows_grad[..., e])
    first = _Factors(f.query, f.scale)
    of_first = _Factors(g.query, g.scale)
    _add_factor_gradients(first, of_first, rows_grad, q)

    second = _Factors(f.query2, f.scale2)
    of_second = _Factors(g.query2, g.scale2)
    _add_factor_gradients(second, of_second, rows_grad, q)


class _Factors(NamedTuple):
    """The factors of one product, or their gradients."""

    query: Tensor | None
    scale: Tensor | None


def _add_factor_gradients(
    factors: _Factors,
    gradients: _Factors,
    rows_grad: Tensor,
    q: Span,
) -> None:
    """Add the gradients of a query and its scale, whose product is in the last columns but one.

    The product is P = s ⊙ q for each hidden unit and column. So the gradient of q is that of P
    times s, summed over hidden units, and that of s is that of P times q, summed over queries.
    """
    query, scale = factors
    if query is None or scale is None:
        return
    e = rows_grad.shape[-1] - 1
    first = e - query.shape[-1]
    part = rows_grad[..., first:e]
    if gradients.query is not None:
        target = gradients.query[:, :, q]
        factor = scale[:, :, None]
        of_query = (part * factor).sum(3)
        add_shared(target, of_query)
    if gradients.scale is not None:
        query = query[:, :, q, None, :]
        of_scale = (part * query).sum((1, 2))
        add_shared(gradients.scale, of_scale[:, None])


# --- all pairs in one tile ------------------------------------------------------------------------


def pair_values(terms: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
    """Return the pre-activations of all pairs at once, (B | 1, H | 1, Nk, Nq, w), from the terms as
    supplied.
    """
    of = {}
    for name, x in terms.items():
        if _is_number(x):
            of[name] = cast(x, dtype)

    key_bias = of["key_bias"][:, :, :, None]
    query_bias = of["query_bias"][:, :, None]
    total = key_bias + query_bias
    if "query" in of:
        total = _with_products(total, of)
    if "table" in of:
        key_index = terms["key_index"][:, None]
        places = terms["query_index"] - key_index
        of_displacements = of["table"].mT[:, places]
        total = total + of_displacements
    if "distance_scale" in of:
        # Positions keep their precision until they are subtracted.
        far = distances(terms["key_positions"], terms["query_positions"])
        far = cast(far, dtype)
        far = far[:, None, :, :, None]
        scale = of["distance_scale"][:, None, None]
        total = total + far * scale
    return total


def _with_products(total: Tensor, of: Mapping[str, Tensor]) -> Tensor:
    """Return ``total`` plus both products of queries and keys."""
    scale = of["scale"][:, None]
    query = of["query"][..., None, :]
    key = of["key"]
    if "query2" in of:
        # The last columns of the keys have two summands.
        scale2 = of["scale2"][:, None]
        query2 = of["query2"][..., None, :]
        second = scale2 * query2
        last = second.shape[-1]
        sizes = [key.shape[-1] - last, last]
        scale, last_scale = scale.split(sizes, -1)
        query, last_query = query.split(sizes, -1)
        key, last_key = key.split(sizes, -1)
        columns = torch.addcmul(second, last_scale, last_query)
        total = total + _products(last_key, columns)
    if key.shape[-1]:
        total = total + _products(key, scale * query)
    return total


def _products(key: Tensor, columns: Tensor) -> Tensor:
    """Return keys (B, H, Nk, e) times columns (B, H, Nq, w, e), (B, H, Nk, Nq, w)."""
    flat = columns.flatten(2, 3)
    products = key @ flat.mT
    return products.unflatten(-1, columns.shape[2:4])


def _is_number(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
