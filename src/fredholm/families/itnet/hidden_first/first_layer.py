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

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ....ops.backend import cast
from ....ops.tiles import Scratch, Span, cut, distances, multiply_rows
from .terms import PAIR_TENSORS, Tensors

Chunk = tuple[Span, Span]


class FirstLayer:
    """The pre-activations of queries ``q`` and keys ``k`` of one block, and their gradients.

    Args:
        x, f: the call's tensors as given, and the block's heads first.
        scratch: memory for S, for the shared terms and for the scaled queries.
    """

    def __init__(self, x: Tensors, f: Tensors, q: Span, k: Span, scratch: Sequence[Scratch]):
        self.f, self.q, self.k = f, q, k
        self.scores, shared, self.rows = scratch
        self.places = _table_places(x, q, k)
        self.far = _distances(f, q, k)
        self.far_is_shared = self.far is not None and self.far.shape[1] == 1
        self.shared = self._shared_terms(shared)

    # --- values -----------------------------------------------------------------------------------

    def values(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """S (h, b, Tq, w, Tk) of a chunk in scratch memory, and the scaled queries, which
        :meth:`add_gradients` takes.
        """
        f, k = self.f, self.k
        rows = self._scaled_queries(chunk)
        s = self.scores.view(*rows.shape[:4], k.stop - k.start)
        h, b, tq, w, tk = s.shape
        bias = cut(f.key_bias, *chunk)
        bias = None if bias is None else bias[:, :, None, :, k]
        terms = [t for t in (cut(self.shared, *chunk), bias) if t is not None]
        if len(terms) == 2:
            torch.add(terms[0].expand_as(s), terms[1], out=s)
        elif terms:
            s.copy_(terms[0])
        if self.far is not None and not self.far_is_shared:
            scale, far = cut(f.distance_scale, *chunk)[:, :, None, :, None], cut(self.far, *chunk)
            s.addcmul_(scale, far) if terms else torch.mul(scale.expand_as(s), far, out=s)
            terms.append(far)
        keys = f.key[chunk][:, :, k].flatten(0, 1)
        flat = rows.view(h * b, tq * w, -1)
        multiply_rows(s.view(h * b, tq * w, tk), flat, keys.mT, beta=1 if terms else 0)
        return s, rows

    def _scaled_queries(self, chunk: Chunk) -> Tensor:
        """Rows (h, b, Tq, w, e + 1) of a chunk whose product with the keys is the product terms
        plus the query bias.
        """
        f, q = self.f, self.q
        heads, batch, _, columns = f.key[chunk].shape
        e = columns - 1
        bias = cut(f.query_bias, *chunk)[:, :, q]
        rows = self.rows.view(heads, batch, *bias.shape[2:], columns)
        rows[..., e] = bias
        if f.query is not None and f.scale is not None:
            query, scale = cut(f.query, *chunk)[:, :, q, None], cut(f.scale, *chunk)[:, :, None]
            torch.mul(query.expand_as(rows[..., :e]), scale, out=rows[..., :e])
        else:
            rows[..., :e] = 0
        if f.query2 is not None and f.scale2 is not None:
            query, scale = cut(f.query2, *chunk)[:, :, q, None], cut(f.scale2, *chunk)[:, :, None]
            rows[..., e - query.shape[-1] : e].addcmul_(query, scale)
        return rows

    def _shared_terms(self, scratch: Scratch) -> Tensor | None:
        """The terms (h, 1, Tq, w, Tk) of the pre-activation that all batch entries share, or None.

        The gathered table lies in memory as (h, 1, w, Tq, Tk), as a selection of columns leaves it.
        """
        f, total = self.f, None
        if f.table is not None and self.places is not None:
            h, _, w, _ = f.table.shape
            total = scratch.view(h * w, self.places.numel())
            torch.index_select(f.table.flatten(0, 2), 1, self.places.flatten(), out=total)
            total = total.view(h, 1, w, *self.places.shape).transpose(2, 3)
        if self.far is not None and self.far_is_shared and f.distance_scale is not None:
            term = f.distance_scale[:, :, None, :, None] * self.far
            total = term if total is None else total + term
        return total

    # --- gradients --------------------------------------------------------------------------------

    def shared_gradient(self, g: Tensors, scratch: Scratch) -> Tensor | None:
        """Zeros for the gradient of the shared terms, laid out like them, or None where none of
        their tensors wants one.
        """
        wants_distance = self.far_is_shared and _wants_distance(g)
        if self.shared is None or (g.table is None and not wants_distance):
            return None
        h, _, tq, w, tk = self.shared.shape
        return scratch.view(h, 1, w, tq, tk).transpose(2, 3).zero_()

    def add_gradients(
        self, g: Tensors, slope: Tensor, rows: Tensor, shared: Tensor | None, chunk: Chunk
    ) -> None:
        """Add to ``g`` what a chunk's gradient ``slope`` of the pre-activations makes of its terms;
        what belongs to shared ones waits in ``shared``.
        """
        f, k = self.f, self.k
        flat = slope.flatten(0, 1).flatten(1, 2)
        keys = f.key[chunk][:, :, k].flatten(0, 1)
        if g.key is not None:
            flat_rows = rows.flatten(0, 1).flatten(1, 2)
            g.key[chunk][:, :, k].flatten(0, 1).baddbmm_(flat.mT, flat_rows)
        if any(t is not None for t in (g.query, g.query_bias, g.scale, g.query2, g.scale2)):
            rows_grad = torch.bmm(flat, keys).view(rows.shape)
            _add_row_gradients(cut_pairs(f, *chunk), cut_pairs(g, *chunk), rows_grad, self.q)
        if g.key_bias is not None:
            add(cut(g.key_bias, *chunk)[..., k], slope.sum(2))
        add(cut(shared, *chunk), slope)
        if self.far is not None and not self.far_is_shared:
            self._add_distance_gradients(g, slope, chunk)

    def add_shared_gradients(self, g: Tensors, slope: Tensor | None) -> None:
        """Gradients of the table and of shared distances, from the tile's sum (h, 1, Tq, w, Tk)
        over the chunks.
        """
        if slope is None:
            return
        if g.table is not None and self.places is not None:
            alone = g.table.shape[0] == 1 and slope.shape[0] > 1
            part = slope.sum(0, keepdim=True) if alone else slope
            columns = part.transpose(2, 3).flatten(3)
            # pairs of the same displacement read one column, whose gradient is their sum
            g.table.scatter_add_(-1, self.places.flatten().expand_as(columns), columns)
        if self.far_is_shared:
            self._add_distance_gradients(g, slope, (slice(None), slice(None)))

    def _add_distance_gradients(self, g: Tensors, slope: Tensor, chunk: Chunk) -> None:
        """Gradients of the distance scale and of both positions: with r = |x - y|, ∂r/∂x is
        (x - y) / r and ∂r/∂y its negative; zero where two points coincide, as :func:`distances`
        defines it.
        """
        f, q, k = self.f, self.q, self.k
        scale, far = cut(f.distance_scale, *chunk), cut(self.far, *chunk)
        if g.distance_scale is not None:
            total = cut(g.distance_scale, *chunk)
            add(total, (slope * far).sum((1, 2, 4))[:, None])
        if g.query_positions is None and g.key_positions is None:
            return
        x, y = cut(f.query_positions, *chunk), cut(f.key_positions, *chunk)
        reach = (slope * scale[:, :, None, :, None]).sum((0, 3))[None]  # (1, b, Tq, Tk)
        near = far[:, :, :, 0] == 0
        reach = torch.where(near, 0.0, reach / torch.where(near, 1.0, far[:, :, :, 0]))
        pull = reach[..., None] * (x[:, :, q, None, :] - y[:, :, None, k, :])
        for total, tile, part in (
            (g.query_positions, q, pull.sum(3)),
            (g.key_positions, k, -pull.sum(2)),
        ):
            if total is not None:
                add(cut(total, *chunk)[:, :, tile], part)


def cut_pairs(x: Tensors, h: Span, b: Span) -> Tensors:
    """Heads ``h`` and batch entries ``b`` of all heads-first tensors."""
    parts = {
        name: cut(getattr(x, name), h, b)
        for name, fact in PAIR_TENSORS.items()
        if fact.kind != "index"
    }
    return Tensors(**parts)


def shared_terms_differ(x: Tensors) -> bool:
    """Whether the terms that all batch entries share differ between heads."""
    return any(t is not None and t.shape[0] > 1 for t in (x.table, x.distance_scale))


def add(total: Tensor | None, part: Tensor) -> None:
    """Add ``part`` to ``total``, summed over the dimensions that ``total`` shares; without
    ``total`` do nothing.
    """
    if total is not None:
        shared = [i for i in range(total.dim()) if total.shape[i] == 1 and part.shape[i] != 1]
        total.add_(part.sum(shared, keepdim=True) if shared else part)


def _distances(f: Tensors, q: Span, k: Span) -> Tensor | None:
    """Distances (1, b, Tq, 1, Tk) of a tile, or None."""
    if f.distance_scale is None or f.query_positions is None or f.key_positions is None:
        return None
    return distances(f.query_positions[:, :, q], f.key_positions[:, :, k])[:, :, :, None, :]


def _table_places(x: Tensors, q: Span, k: Span) -> Tensor | None:
    """Columns (Tq, Tk) of the table that a tile's pairs read, or None: kept as one integer per
    point, and one per pair of this tile alone.
    """
    if x.query_index is None or x.key_index is None:
        return None
    return x.query_index[q, None] - x.key_index[k]


def _wants_distance(g: Tensors) -> bool:
    return any(t is not None for t in (g.distance_scale, g.query_positions, g.key_positions))


def _add_row_gradients(f: Tensors, g: Tensors, rows_grad: Tensor, q: Span) -> None:
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


# --- all pairs in one tile ------------------------------------------------------------------------


def pair_values(terms: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
    """Pre-activations of all pairs at once, (B | 1, H | 1, Nk, Nq, w), from the terms as
    supplied.
    """
    of = {name: cast(x, dtype) for name, x in terms.items() if _is_number(x)}
    total = of["key_bias"][:, :, :, None] + of["query_bias"][:, :, None]
    if "query" in of:
        scale, query, key = of["scale"][:, None], of["query"][..., None, :], of["key"]
        if "query2" in of:  # the last columns have two summands
            columns = of["scale2"][:, None] * of["query2"][..., None, :]
            sizes = [key.shape[-1] - columns.shape[-1], columns.shape[-1]]
            (scale, scale1), (query, query1), (key, key1) = (
                x.split(sizes, -1) for x in (scale, query, key)
            )
            total = total + _products(key1, torch.addcmul(columns, scale1, query1))
        if key.shape[-1]:
            total = total + _products(key, scale * query)
    if "table" in of:
        places = terms["query_index"] - terms["key_index"][:, None]
        total = total + of["table"].mT[:, places]
    if "distance_scale" in of:
        # positions keep their precision until they are subtracted
        far = cast(distances(terms["key_positions"], terms["query_positions"]), dtype)
        total = total + far[:, None, :, :, None] * of["distance_scale"][:, None, None]
    return total


def _products(key: Tensor, columns: Tensor) -> Tensor:
    """Keys (B, H, Nk, e) times columns (B, H, Nq, w, e), (B, H, Nk, Nq, w)."""
    return (key @ columns.flatten(2, 3).mT).unflatten(-1, columns.shape[2:4])


def _is_number(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
