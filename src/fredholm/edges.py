"""Sparse pairs: the keys that each query sees, as sorted rows instead of an N × N mask."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.export import register_dataclass

from .errors import DomainError, ShapeError
from .measures import logarithm

Kept = TypeVar("Kept")

DENSE_PAIRS = 1 << 30
"""The most pairs that :meth:`Edges.dense` writes out: a mask of 1 GiB."""

SLACK = 1.25
"""Rows of one tile may be longer than its shortest by this factor, so that little is padding."""


class EdgeValues(NamedTuple):
    """Values of edges, see the attributes of :class:`Edges`."""

    log_density: Tensor | None
    features: Tensor | None
    shift: Tensor | None


class Columns(NamedTuple):
    """The edges sorted by key.

    Attributes:
        order: index of each edge among those sorted by row, (E,).
        start: where each key's edges begin, (batch · keys + 1,).
    """

    order: Int[Tensor, " e"]
    start: Int[Tensor, " columns_1"]


class Tile(NamedTuple):
    """Some rows of :class:`Edges`, padded to the longest of them.

    Attributes:
        rows: index of each row, (r,).
        edges: index into the edges, (r, k); any edge where ``real`` is False.
        source: key of each slot, (r, k).
        real: slots that hold an edge, (r, k).
        pieces: where the result of each row goes, (r,): the rows themselves, unless long rows come
            in pieces.
        full: every slot is known to hold an edge.
    """

    rows: Int[Tensor, " r"]
    edges: Int[Tensor, "r k"]
    source: Int[Tensor, "r k"]
    real: Bool[Tensor, "r k"]
    pieces: Int[Tensor, " r"]
    full: bool = False


class Pieces(NamedTuple):
    """Rows of :class:`Edges`, long ones cut into several.

    Attributes:
        row: the row that each piece belongs to, (P,), ascending.
        start: its first edge, (P,).
        length: its number of edges, (P,).
    """

    row: Int[Tensor, " p"]
    start: Int[Tensor, " p"]
    length: Int[Tensor, " p"]


@dataclass(frozen=True, eq=False, repr=False)
class Edges:
    r"""Visible pairs as one row of keys per query: memory O(E) instead of O(N²).

    Row r lists the keys that query r sees, ascending. In a batch of graphs the rows of graph b
    follow those of graph b - 1, and keys are numbered within their graph; a batch of one is shared
    by all samples.

    Attributes:
        ptr: where each row starts in ``source``, (batch · queries + 1), int64.
        source: the keys, (E,), int64, ascending within a row.
        log_density: log ρ of the pair measure, (E,) or (E, H); -inf hides a pair; None for ρ = 1.
        features: numbers of a pair that kernels may read, (E, f), or None: edge attributes, signed
            weights.
        shift: added to the key's position as the query sees it, (E, p), or None: the nearest image
            in a periodic box.
        queries, keys: how many there are per graph.
        longest: the most keys of a row.
        batch: number of graphs.

    Example:
        >>> edges = Edges.of_index(torch.tensor([[0, 2, 2], [1, 1, 1]]), 3)
        >>> edges.row(1).tolist(), edges.log_density.exp().tolist()
        ([0, 2], [1.0, 2.0])
    """

    ptr: Int[Tensor, " rows_1"]
    source: Int[Tensor, " e"]
    log_density: Float[Tensor, "e ..."] | None
    features: Float[Tensor, "e f"] | None
    shift: Float[Tensor, "e p"] | None
    queries: int
    keys: int
    longest: int
    batch: int = 1

    # --- construction -----------------------------------------------------------------------------

    @classmethod
    def of_index(
        cls,
        edge_index: Tensor,
        queries: int,
        keys: int | None = None,
        *,
        weight: Tensor | None = None,
        features: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Edges:
        """Return edges given in any order, as rows (source, target) of ``edge_index``; the counts
        of repeated ones have ``dtype``, by default torch's.

        Equal edges become one, whose density is their number or, with ``weight``, the sum of their
        weights. With ``features`` equal edges stay apart: each may carry another feature.

        Args:
            edge_index: integers (2, E): sources, then targets.
            queries: number of targets.
            keys: number of sources, by default the same points as the targets.
            weight: density of each edge, finite and not negative; gradients reach it.
            features: attributes of each edge.

        Raises:
            DomainError: indices outside of the graph, weights that are not a density.
            ShapeError: shapes or dtypes that do not fit.
        """
        if keys is None:
            keys = queries
        check_edge_index(edge_index, queries, keys)
        count = edge_index.shape[1]
        check_weight(weight, count)
        check_edge_features(features, count)

        # One number per pair sorts by row and then by key.
        source, target = edge_index.long()
        pair, order = torch.sort(target * keys + source, stable=True)
        if weight is not None:
            weight = weight.index_select(0, order)
        if features is None:
            dtype = dtype or torch.get_default_dtype()
            pair, density = _merge_equal(pair, weight, dtype)
        else:
            density = weight
            features = features.index_select(0, order)

        # An edge of density 0 is hidden, and receives no gradient.
        log_density = None
        if density is not None:
            log_density = logarithm(density)
        row = torch.div(pair, keys, rounding_mode="floor")
        source = pair - row * keys
        return cls.of_sorted(
            row,
            source,
            queries,
            keys,
            log_density,
            features,
        )

    @classmethod
    def of_sorted(
        cls,
        row: Int[Tensor, " e"],
        source: Int[Tensor, " e"],
        queries: int,
        keys: int,
        log_density: Tensor | None = None,
        features: Tensor | None = None,
        shift: Tensor | None = None,
        *,
        batch: int = 1,
    ) -> Edges:
        """Return edges that are already sorted by row and then by key; nothing is checked."""
        degree = torch.bincount(row, minlength=batch * queries)
        longest = 0
        if len(degree):
            longest = int(degree.max())
        ptr = row_starts(degree)
        return cls(
            ptr,
            source,
            log_density,
            features,
            shift,
            queries,
            keys,
            longest,
            batch,
        )

    @classmethod
    def of_mask(cls, pairs: Tensor) -> Edges:
        """Return the visible pairs of a dense mask or log-density: (Nq, Nk), (B, Nq, Nk) or (B, H,
        Nq, Nk), as a domain's ``pairs``.

        Example:
            >>> mask = torch.tensor([[True, False], [True, True]])
            >>> Edges.of_mask(mask).dense().equal(mask)
            True
        """
        if pairs.dim() not in (2, 3, 4):
            raise ShapeError(
                "expected pairs (Nq, Nk), (B, Nq, Nk) or (B, H, Nq, Nk), got "
                f"{tuple(pairs.shape)}; reshape them"
            )
        queries, keys = pairs.shape[-2:]
        if pairs.dim() == 2:
            pairs = pairs[None]
        if pairs.dim() == 3:
            pairs = pairs[:, None]
        batch, heads = pairs.shape[:2]
        by_head = pairs.movedim(1, -1)
        is_mask = pairs.dtype == torch.bool
        visible = by_head
        if not is_mask:
            visible = by_head > -torch.inf

        # An edge is where any head sees the key.
        rows = batch * queries
        some = visible.any(-1)
        row, source = some.reshape(rows, keys).nonzero(as_tuple=True)
        # (E, H)
        by_row = by_head.reshape(rows, keys, heads)
        by_edge = by_row[row, source]
        log_density = None
        if not is_mask:
            log_density = by_edge
        elif heads > 1 and not bool((visible.all(-1) == some).all()):
            # Heads see different keys: an edge that a head does not see has density 0 for it.
            density = by_edge.to(torch.get_default_dtype())
            log_density = density.log()
        if log_density is not None and heads == 1:
            log_density = log_density[:, 0]
        return cls.of_sorted(
            row,
            source,
            queries,
            keys,
            log_density,
            batch=batch,
        )

    @classmethod
    def collate(cls, graphs: Sequence[Edges]) -> Edges:
        """Return graphs of different sizes as one batch: queries and keys are padded to the most
        there are, edges are not padded.

        Raises:
            DomainError: no graphs; a batch among them; features or shifts of some graphs only.

        Example:
            >>> small, large = (Edges.of_mask(torch.ones(n, n).bool()) for n in (1, 3))
            >>> Edges.collate([small, large])
            Edges(10 edges of 2 × 3 queries and 3 keys, at most 3 per query)
        """
        if not graphs:
            raise DomainError("expected at least one graph to collate, got none")
        for number, graph in enumerate(graphs):
            if graph.batch != 1:
                raise DomainError(
                    f"expected unbatched graphs, got a batch of {graph.batch} as graph {number}; "
                    "collate its graphs one by one"
                )
        queries = max(graph.queries for graph in graphs)
        degrees = []
        for graph in graphs:
            missing = queries - graph.queries
            padded = torch.nn.functional.pad(graph.degrees(), (0, missing))
            degrees.append(padded)
        return cls(
            ptr=row_starts(torch.cat(degrees)),
            source=torch.cat([graph.source for graph in graphs]),
            log_density=_collate_densities(graphs),
            features=_collate_field(graphs, "features"),
            shift=_collate_field(graphs, "shift"),
            queries=queries,
            keys=max(graph.keys for graph in graphs),
            longest=max(graph.longest for graph in graphs),
            batch=len(graphs),
        )

    # --- facts ------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of edges E."""
        return self.source.shape[0]

    @property
    def rows(self) -> int:
        """Number of rows, batch · queries."""
        return self.batch * self.queries

    def __repr__(self) -> str:
        queries = f"{self.queries} queries"
        if self.batch > 1:
            queries = f"{self.batch} × {queries}"
        facts = [
            f"{self.count} edges of {queries} and {self.keys} keys",
            f"at most {self.longest} per query",
        ]
        if self.log_density is not None:
            facts.append("densities")
        if self.features is not None:
            facts.append("features")
        if self.shift is not None:
            facts.append("images")
        return f"Edges({', '.join(facts)})"

    def tensors(self) -> list[Tensor | None]:
        """Return every tensor, in the order of the fields."""
        return [self.ptr, self.source, self.log_density, self.features, self.shift]

    def degrees(self) -> Int[Tensor, " rows"]:
        """Return the number of keys of each row."""
        return self.ptr[1:] - self.ptr[:-1]

    def row(self, index: int) -> Int[Tensor, " k"]:
        """Return the keys of one row."""
        ends = self.ptr[index : index + 2]
        start, stop = ends.tolist()
        return self.source[start:stop]

    def targets(self) -> Int[Tensor, " e"]:
        """Return the row of each edge."""

        def make() -> Tensor:
            row = torch.arange(self.rows, device=self.ptr.device)
            return row.repeat_interleave(self.degrees(), output_size=self.count)

        return self.kept("targets", make)

    def flat_source(self) -> Int[Tensor, " e"]:
        """Return the key of each edge, numbered through all graphs of the batch."""
        if self.batch == 1:
            return self.source
        graph = self._graph_of(self.targets())
        return self.source + graph * self.keys

    def _graph_of(self, row: Tensor) -> Tensor:
        """Return the graph of the batch that each row belongs to."""
        return torch.div(row, self.queries, rounding_mode="floor")

    def columns(self) -> Columns:
        """Return the edges sorted by key: the transposed order, made when it is first asked for."""

        def make() -> Columns:
            source = self.flat_source()
            order = torch.sort(source, stable=True).indices
            degree = torch.bincount(source, minlength=self.batch * self.keys)
            return Columns(order, row_starts(degree))

        return self.kept("columns", make)

    def kept(self, name: object, make: Callable[[], Kept]) -> Kept:
        """Return ``make()``, a function of ``ptr`` and ``source`` alone; cached with the edges."""
        if torch.compiler.is_compiling():
            return make()
        memo = self.__dict__.get("_memo")
        if memo is None:
            memo = {}
            object.__setattr__(self, "_memo", memo)
        if name not in memo:
            # A cached result may meet autograd later, which an inference tensor must not.
            with torch.inference_mode(False):
                memo[name] = make()
        return memo[name]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_memo"}

    # --- tiles ------------------------------------------------------------------------------------

    def pieces(self, most: int | None = None) -> Pieces:
        """Return the rows, those of more than ``most`` edges cut into pieces of at most so many.

        Example:
            >>> edges = Edges.of_mask(torch.ones(2, 3).bool())
            >>> edges.pieces(2).length.tolist(), edges.pieces(2).row.tolist()
            ([2, 1, 2, 1], [0, 0, 1, 1])
        """
        if most is None or self.longest <= most:
            row = torch.arange(self.rows, device=self.ptr.device)
            return Pieces(row, self.ptr[:-1], self.degrees())
        return self.kept(("pieces", most), lambda: self._cut(most))

    def _cut(self, most: int) -> Pieces:
        """Return pieces of at most ``most`` edges; a row without edges is one piece."""
        degree = self.degrees()
        # Pieces per row, rounded up.
        count = torch.div(
            degree + most - 1,
            most,
            rounding_mode="floor",
        )
        count = count.clamp_min(1)
        every = torch.arange(self.rows, device=self.ptr.device)
        row = every.repeat_interleave(count)

        # The place of a piece among those of its row.
        first = count.cumsum(0) - count
        index = torch.arange(len(row), device=row.device)
        place = index - first[row]
        offset = place * most
        left = degree[row] - offset
        return Pieces(
            row=row,
            start=self.ptr[row] + offset,
            length=left.clamp(max=most),
        )

    def tiles(self, slots: int, *, split: bool = False) -> Iterator[Tile]:
        """Return all rows in tiles of at most ``slots`` slots (rows × longest row), sorted by
        length so that little is padding. A row longer than that makes a tile alone or, with
        ``split``, comes in pieces.

        Rows of equal length keep their order, and with it the locality of points that were sorted
        in space. The list of each tile's rows is cached; its indices are made anew, because they
        take more memory than the edges.
        """
        most = None
        if split:
            most = slots
        pieces = self.pieces(most)
        parts = self.kept(("tiles", slots, split), lambda: _partition(pieces.length, slots))
        return (self._tile(pieces, part) for part in parts)

    def tile(self, rows: Int[Tensor, " r"]) -> Tile:
        """Return some rows, padded to the longest of them and to one slot at least."""
        return self._tile(self.pieces(), rows)

    def whole_tile(self) -> Tile:
        """Return all rows as one tile, whose shape is static: for traced code."""
        every = self.pieces()
        width = max(self.longest, 1)
        return self._padded(every, every.row, width)

    def _tile(self, pieces: Pieces, part: Tensor) -> Tile:
        """Return the pieces at the indices ``part`` as a tile."""
        values_of_part = (values.index_select(0, part) for values in pieces)
        chosen = Pieces(*values_of_part)
        least, most = chosen.length.aminmax()
        shortest = int(least)
        longest = int(most)
        tile = self._padded(chosen, part, max(longest, 1))
        return tile._replace(full=shortest == longest > 0)

    def _padded(self, pieces: Pieces, part: Tensor, width: int) -> Tile:
        """Return pieces as a tile of ``width`` slots per row."""
        slot = torch.arange(width, device=part.device)
        # (r, width)
        real = slot < pieces.length[:, None]
        edges = torch.where(real, pieces.start[:, None] + slot, 0)
        source = edges
        if self.count:
            flat = self.source.index_select(0, edges.flatten())
            source = flat.view(edges.shape)
        return Tile(pieces.row, edges, source, real, part)

    # --- dense ------------------------------------------------------------------------------------

    def dense(self) -> Tensor:
        """Return the same pairs as a mask, or as a log-density with -inf where there is no edge:
        (Nq, Nk), or (B | 1, H | 1, Nq, Nk) of a batch or of densities per head. O(N²).

        Raises:
            DomainError: more than :data:`DENSE_PAIRS` pairs; equal edges with features, which no
                matrix of pairs holds.
        """
        index = torch.arange(self.rows, device=self.ptr.device)
        pairs = self.dense_rows(index)
        if self.batch == 1 and pairs.shape[1] == 1:
            return pairs.reshape(self.queries, self.keys)
        by_graph = pairs.reshape(self.batch, self.queries, -1, self.keys)
        return by_graph.movedim(2, 1)

    def dense_rows(self, rows: Int[Tensor, " r"]) -> Tensor:
        """Return some rows of :meth:`dense`, (r, 1 | H, Nk)."""
        tile = self._dense_tile(rows, 1)
        count = rows.shape[0]
        if self.log_density is None:
            mask = torch.zeros(
                count,
                self.keys,
                dtype=torch.bool,
                device=self.ptr.device,
            )
            if self.count:
                mask = mask.scatter_reduce(1, tile.source, tile.real, "amax")
            return mask[:, None]

        density = self.log_density
        if density.dim() == 1:
            density = density[:, None]
        heads = density.shape[1]
        empty = density.new_full((count, heads, self.keys), -torch.inf)
        if not self.count:
            return empty
        written = _scatter(empty.movedim(1, 2), tile, density)
        return written.movedim(2, 1)

    def dense_features(self, rows: Int[Tensor, " r"]) -> Tensor | None:
        """Return features of all pairs of some rows, zero where there is no edge: (r, Nk, f)."""
        if self.features is None:
            return None
        width = self.features.shape[1]
        tile = self._dense_tile(rows, width)
        empty = self.features.new_zeros(rows.shape[0], self.keys, width)
        return _scatter(empty, tile, self.features)

    def _dense_tile(self, rows: Tensor, width: int) -> Tile:
        """Return the tile of rows that are about to be written out, ``width`` numbers per pair."""
        self.check_dense(rows.shape[0] * width)
        tile = self.tile(rows)
        self._refuse_repeated(tile)
        return tile

    def check_dense(self, rows: int) -> None:
        """DomainError where a dense matrix of ``rows`` rows would be larger than
        :data:`DENSE_PAIRS`.
        """
        check_dense(rows * self.keys)

    def _refuse_repeated(self, tile: Tile) -> None:
        """DomainError where equal edges carry different features."""
        if self.features is None or tile.source.shape[1] < 2:
            return
        same_key = tile.source[:, 1:] == tile.source[:, :-1]
        equal = same_key & tile.real[:, 1:]
        if bool(equal.any()):
            raise DomainError(
                f"expected one edge per pair, got {int(equal.sum())} repeated with features of "
                "their own; a matrix of all pairs has one place per pair: merge such edges first"
            )

    # --- change -----------------------------------------------------------------------------------

    def to(self, *args: Any, **kwargs: Any) -> Edges:
        """Move tensors as :meth:`torch.Tensor.to` does; indices keep their dtype."""
        return replace(self, **moved_fields(self, *args, **kwargs))

    def with_density(self, log_density: Tensor | None) -> Edges:
        """Return the same pairs with another density; results of the pairs alone stay cached."""
        edges = replace(self, log_density=log_density)
        if "_memo" in self.__dict__:
            object.__setattr__(edges, "_memo", self.__dict__["_memo"])
        return edges

    def _values(self, chosen: Tensor | slice) -> EdgeValues:
        """Return the values of some edges."""

        def pick(values: Tensor | None) -> Tensor | None:
            if values is None:
                return None
            if isinstance(chosen, slice):
                return values[chosen]
            return values.index_select(0, chosen)

        return EdgeValues(
            pick(self.log_density),
            pick(self.features),
            pick(self.shift),
        )

    def select(
        self,
        queries: Int[Tensor, " q"],
        keys: Int[Tensor, " k"] | None = None,
    ) -> Edges:
        """Return the edges between some queries and some keys of an unbatched graph, numbered anew
        in the order given; without ``keys`` all keys stay as they are.

        Raises:
            DomainError: a batch of graphs.
        """
        if self.batch != 1:
            raise DomainError(
                f"expected an unbatched graph, got a batch of {self.batch}; select from each graph"
            )
        row = _renumbered(self.targets(), queries, self.queries)
        source = self.source
        count = self.keys
        if keys is not None:
            source = _renumbered(source, keys, self.keys)
            count = len(keys)

        # Edges with an end that is left out have the number -1 there.
        both_ends = (row >= 0) & (source >= 0)
        chosen = both_ends.nonzero()[:, 0]
        pair = row[chosen] * max(count, 1) + source[chosen]
        order = torch.sort(pair, stable=True).indices
        chosen = chosen[order]
        return Edges.of_sorted(
            row[chosen],
            source[chosen],
            queries.shape[0],
            count,
            *self._values(chosen),
        )

    def graphs(self, chosen: slice) -> Edges:
        """Return some consecutive graphs of a batch; all where samples share the one graph.

        Example:
            >>> graph = Edges.of_mask(torch.ones(2, 2).bool())
            >>> Edges.collate([graph] * 3).graphs(slice(1, 2))
            Edges(4 edges of 2 queries and 2 keys, at most 2 per query)
        """
        start, stop, step = chosen.indices(self.batch)
        if self.batch == 1:
            return self
        if step != 1 or stop <= start:
            raise DomainError(f"expected consecutive graphs of {self.batch}, got {chosen}")
        first = start * self.queries
        last = stop * self.queries
        ptr = self.ptr[first : last + 1]
        edges = slice(int(ptr[0]), int(ptr[-1]))
        return replace(
            self,
            ptr=ptr - ptr[0],
            source=self.source[edges],
            longest=int(ptr.diff().max()),
            batch=stop - start,
            **self._values(edges)._asdict(),
        )

    def stretch(self, start: int, stop: int) -> Edges:
        """Return the rows of some consecutive queries of each graph, with all their keys.

        Example:
            >>> Edges.of_mask(torch.ones(3, 3).bool()).stretch(1, 3)
            Edges(6 edges of 2 queries and 3 keys, at most 3 per query)
        """
        target = self.targets()
        graph = self._graph_of(target)
        place = target - graph * self.queries
        within = (place >= start) & (place < stop)
        chosen = within.nonzero()[:, 0]
        count = stop - start
        row = graph * count + place - start
        return Edges.of_sorted(
            row[chosen],
            self.source[chosen],
            count,
            self.keys,
            *self._values(chosen),
            batch=self.batch,
        )

    # --- checks -----------------------------------------------------------------------------------

    def check(self) -> Edges:
        """Check values, eagerly, where data enters; returns the edges themselves.

        Raises:
            DomainError: rows that are not sorted, keys that do not exist, densities or features
                that are NaN.
        """
        ptr = self.ptr
        source = self.source
        ends_fit = ptr.shape == (self.rows + 1,)
        if not ends_fit or int(ptr[0]) or int(ptr[-1]) != self.count:
            raise DomainError(
                f"expected ptr of {self.rows + 1} starts from 0 to {self.count}, got "
                f"{tuple(ptr.shape)}; build edges with Edges.of_index"
            )

        degrees = self.degrees()
        if bool((degrees < 0).any()):
            raise DomainError("expected rows that do not overlap, got a ptr that goes back")
        longest = int(degrees.max())
        if longest != self.longest:
            raise DomainError(
                f"expected longest={longest}, the most keys of a row, got {self.longest}; build "
                "edges with Edges.of_index"
            )

        if self.count:
            low = int(source.min())
            high = int(source.max())
            if low < 0 or high >= self.keys:
                raise DomainError(f"expected keys 0 to {self.keys - 1}, got {low} to {high}")

        row = self.targets()
        same_row = row[1:] == row[:-1]
        back = same_row & (source[1:] < source[:-1])
        if bool(back.any()):
            raise DomainError(
                f"expected keys ascending within a row, got {int(back.sum())} that go back; build "
                "edges with Edges.of_index"
            )
        named = {"densities": self.log_density, "features": self.features, "shifts": self.shift}
        for name, values in named.items():
            if values is not None and bool(values.isnan().any()):
                raise DomainError(
                    f"expected edge {name} that are numbers, got {int(values.isnan().sum())} NaN"
                )
        return self


def check_dense(pairs: int) -> None:
    """DomainError for more pairs than :data:`DENSE_PAIRS`, before they are written out."""
    if pairs > DENSE_PAIRS:
        raise DomainError(
            f"expected at most {DENSE_PAIRS:,} dense pairs, got {pairs:,}: a matrix of all "
            f"pairs would take {4 * pairs / 1e9:,.0f} GB in float32; ask for some rows "
            "(rows=...), or for a smaller domain"
        )


def row_starts(degree: Int[Tensor, " rows"]) -> Int[Tensor, " rows_1"]:
    """Return where each row starts, and where the last one ends, from the rows' lengths."""
    zero = degree.new_zeros(1)
    ends = degree.cumsum(0)
    return torch.cat([zero, ends])


def moved_fields(
    record: Any,
    *args: Any,
    **kwargs: Any,
) -> dict[str, Any]:
    """Return the tensors and edges among the fields of a dataclass, moved as
    :meth:`torch.Tensor.to` does; masks and indices keep their dtype.
    """
    moved: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Edges):
            moved[field.name] = value.to(*args, **kwargs)
        if isinstance(value, Tensor):
            result = value.to(*args, **kwargs)
            if not value.is_floating_point():
                result = value.to(result.device)
            moved[field.name] = result
    return moved


# --- parts of the above ---------------------------------------------------------------------------


def _merge_equal(
    pair: Int[Tensor, " e"],
    weight: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Int[Tensor, " distinct"], Tensor | None]:
    """Return the distinct ones of sorted pairs, and their densities: the sum of their weights or,
    without weights, their number in ``dtype``; None where none is repeated.
    """
    distinct, place, repeats = torch.unique_consecutive(
        pair,
        return_inverse=True,
        return_counts=True,
    )
    if len(distinct) == len(pair):
        return pair, weight
    if weight is None:
        return distinct, repeats.to(dtype)
    zeros = weight.new_zeros(len(distinct))
    return distinct, zeros.index_add(0, place, weight)


def _renumbered(index: Tensor, chosen: Tensor, count: int) -> Tensor:
    """Return the place of each index among the chosen ones of ``count``, or -1."""
    number = torch.full((count,), -1, device=index.device)
    number[chosen] = torch.arange(len(chosen), device=index.device)
    return number[index]


def _scatter(
    empty: Float[Tensor, "r k n"],
    tile: Tile,
    values: Float[Tensor, "e n"],
) -> Tensor:
    """Return a dense tensor of rows and keys with the values of a tile's edges at their places."""
    row, slot = tile.real.nonzero(as_tuple=True)
    source = tile.source[row, slot]
    edge = tile.edges[row, slot]
    return empty.index_put((row, source), values[edge])


def _partition(length: Int[Tensor, " p"], slots: int) -> list[Tensor]:
    """Return the pieces of each tile, pieces of similar length together."""
    sorted_length, order = torch.sort(length, stable=True)
    # An empty row takes a slot as well.
    lengths = sorted_length.cpu().clamp_min(1)
    parts = []
    start = 0
    while start < len(lengths):
        shortest = int(lengths[start])

        # Lengths rise, so that the last row of a tile decides how wide it is. Rows that are
        # much longer than the first begin a new tile.
        widest = int(shortest * SLACK) + 4
        stop = int(torch.searchsorted(lengths, widest, right=True))
        most = max(1, slots // shortest)
        stop = min(stop, start + most)

        # Fewer rows may be less wide: shorten the tile until it fits, to one row at least.
        while stop > start + 1 and (stop - start) * int(lengths[stop - 1]) > slots:
            width = int(lengths[stop - 1])
            fitting = start + slots // width
            shorter = min(stop - 1, fitting)
            stop = max(start + 1, shorter)
        parts.append(order[start:stop])
        start = stop
    return parts


# --- checks of what edges are built from ----------------------------------------------------------


def check_edge_index(edge_index: Tensor, queries: int, keys: int) -> None:
    """DomainError unless ``edge_index`` is integers (2, E) that name points of the graph."""
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.is_floating_point():
        got = f"{tuple(edge_index.shape)} {edge_index.dtype}"
        raise DomainError(f"expected integer edge_index (2, E), rows (source, target); got {got}")
    if not edge_index.numel():
        return
    parts = [
        ("sources of edges", edge_index[0], keys),
        ("targets of edges", edge_index[1], queries),
    ]
    if queries == keys:
        parts = [("edges between", edge_index, keys)]
    for name, ends, size in parts:
        low = int(ends.min())
        high = int(ends.max())
        if low < 0 or high >= size:
            raise DomainError(
                f"expected {name} nodes 0 to {size - 1}, got indices from {low} to "
                f"{high}; drop edges that point outside, or give the number of nodes"
            )


def check_weight(weight: Tensor | None, count: int) -> None:
    """Error unless edge weights are a density: one per edge, finite and not negative."""
    if weight is None:
        return
    if weight.shape != (count,) or not weight.is_floating_point():
        got = f"{tuple(weight.shape)} {weight.dtype}"
        raise ShapeError(f"expected floating-point edge weights ({count},), got {got}")
    if not bool(weight.isfinite().all()):
        bad = int((~weight.isfinite()).sum())
        raise DomainError(f"expected finite edge weights, got {bad} that are not; drop those edges")
    if bool((weight < 0).any()):
        raise DomainError(
            f"expected edge weights of 0 or more, got {float(weight.min()):.3g}: a weight is the "
            "density of a measure; give signed weights as edge features (edge_attr), which a "
            "kernel reads"
        )


def check_edge_features(features: Tensor | None, count: int) -> None:
    """Error unless edge features are finite numbers (E, f)."""
    if features is None:
        return
    if features.dim() != 2 or features.shape[0] != count or not features.is_floating_point():
        got = f"{tuple(features.shape)} {features.dtype}"
        raise ShapeError(f"expected floating-point edge features ({count}, f), got {got}")
    if not bool(features.isfinite().all()):
        infinite = ~features.isfinite()
        bad = int(infinite.any(-1).sum())
        raise DomainError(f"expected finite edge features, got {bad} edges with others")


def _collate_densities(graphs: Sequence[Edges]) -> Tensor | None:
    """Return log-densities of all graphs, 0 for those that have none."""
    known = [graph.log_density for graph in graphs if graph.log_density is not None]
    if not known:
        return None
    heads = max(density.shape[1:].numel() for density in known)
    parts = []
    for graph in graphs:
        density = graph.log_density
        if density is None:
            density = known[0].new_zeros(graph.count)
        if heads > 1:
            density = density.reshape(graph.count, -1)
            density = density.expand(-1, heads)
        parts.append(density)
    return torch.cat(parts)


def _collate_field(graphs: Sequence[Edges], name: str) -> Tensor | None:
    """Return features or shifts of all graphs, of the same width in each."""
    parts = [getattr(graph, name) for graph in graphs]
    if all(x is None for x in parts):
        return None
    widths = []
    for values in parts:
        width = None
        if values is not None:
            width = values.shape[1]
        widths.append(width)
    if None in widths or len(set(widths)) > 1:
        raise DomainError(f"expected edge {name} of one width in all graphs, got widths {widths}")
    return torch.cat(parts)


register_dataclass(Edges, serialized_type_name="fredholm.Edges")
