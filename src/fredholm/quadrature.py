"""Quadrature: which keys of a domain a query sees, and with which weight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .edges import Edges, check_dense

Rows = Tensor | list[int] | None


def take_rows(tensor: Tensor, rows: Rows, dim: int) -> Tensor:
    """Return ``tensor`` at the query indices ``rows`` along ``dim``, or as it is where ``rows`` is
    None.

    A ``dim`` of size 1 is one query, or holds for all of them: it is repeated, without a copy.

    Example:
        >>> take_rows(torch.tensor([[1.0], [2.0]]), [1, 1], 0).tolist()
        [[2.0], [2.0]]
    """
    if rows is None:
        return tensor
    index = torch.as_tensor(rows, device=tensor.device)
    if tensor.shape[dim] == 1:
        sizes = list(tensor.shape)
        sizes[dim] = index.shape[0]
        return tensor.expand(sizes)
    return tensor.index_select(dim, index)


class PairDensity(NamedTuple):
    """The density of some queries at all keys, and its logarithm, (1 | B, 1 | H, r, Nk)."""

    density: Tensor
    log_density: Tensor

    @classmethod
    def of_mask(cls, mask: Tensor, dtype: torch.dtype) -> PairDensity:
        """Return a density of 1 where ``mask`` is True and 0 elsewhere."""
        density = mask.to(dtype)
        zeros = torch.zeros_like(density)
        log_density = zeros.masked_fill(~mask, -torch.inf)
        return cls(density, log_density)


class QueryFactors(NamedTuple):
    """The factors of a quadrature that depend on the query, for some of the queries."""

    density: Tensor | None
    log_density: Tensor | None
    scale: Tensor | None


# Nobody writes to a quadrature, but it is not frozen: a frozen class takes three times as long to
# build, and every causal step builds one (docs/log.md, "Calls on eight points").
@dataclass(eq=False)
class Quadrature:
    r"""Weights of the sum that stands for an integral:
    :math:`\int f(x_i, y)\,d\mu(y) \approx \sum_j w_{ij} f(x_i, y_j)`.

    The weights are kept factored, so that no N² tensor exists unless the domain's ``pairs`` brought
    one:

    .. math:: w_{ij} = s_i\, m_j\, [t_j \le t_i]\, \rho_{ij}\,
        e^{-(\Lambda_i - \Lambda_j)}, \qquad \Lambda_i = \sum_{t_l \le t_i} d_l

    Attributes:
        mass: m, mass of each key, zero at padding; (1 | B, Nk).
        scale: s, one over the mass each query sees, or None where nothing is renormalised; (1 | B,
            1 | H, Nq).
        query_time, key_time: t, or None where order plays no role; (1 | B, Nq) and (1 | B, Nk).
        density: ρ, the pair density (0 or 1 for a mask); (1 | B, 1 | H, Nq, Nk) or None.
        log_density: log ρ, or None; kept beside ρ so that a softmax adds it without a logarithm.
        valid: keys that are not padding; (B, Nk) or None.
        equal: whether all keys that are not padding have the same mass: a static fact.
        triangular: whether the order is that of the indices, t_i = i: a static fact.
        edges: who sees whom, where few do; ``density`` and ``log_density`` are then None, and the
            order is in the edges' own density.
        reach: how many points before and after it a query sees, or None.
        rank: the number of each key among the real ones, (1 | B, Nk), beside ``reach``.
        clock: the time of each key, (1 | B, Nk), where points of an order have times; None where
            they are steps.
        decay: d, by which the past fades as a key comes, a density that a kernel adds; (1 | B, 1 |
            H, Nk), zero at padding. None where nothing fades. See :meth:`decayed`.
    """

    mass: Float[Tensor, "#b k"]
    scale: Float[Tensor, "#b #h q"] | None = None
    query_time: Float[Tensor, "#b q"] | None = None
    key_time: Float[Tensor, "#b k"] | None = None
    density: Float[Tensor, "#b #h q k"] | None = None
    log_density: Float[Tensor, "#b #h q k"] | None = None
    valid: Bool[Tensor, "#b k"] | None = None
    equal: bool = False
    triangular: bool = False
    edges: Edges | None = None
    reach: tuple[int, int] | None = None
    rank: Int[Tensor, "#b k"] | None = None
    clock: Float[Tensor, "#b k"] | None = None
    decay: Float[Tensor, "#b #h k"] | None = None

    @property
    def sparse(self) -> bool:
        """Whether pairs are edges or a reach, so that ``density`` does not hold them."""
        return self.edges is not None or self.reach is not None

    # --- who sees whom ----------------------------------------------------------------------------

    def order(self) -> Bool[Tensor, "b q k"] | None:
        """Return pairs in causal order, ``t_j <= t_i``, or None where order plays no role."""
        if self.query_time is None or self.key_time is None:
            return None
        return self.key_time[:, None, :] <= self.query_time[:, :, None]

    def visible(self, rows: Rows = None) -> Bool[Tensor, "b h q k"] | None:
        """Return the pairs that order, padding and masks leave, or None where every query sees
        every key. O(Nq·Nk).
        """
        part = self._written_out(rows)

        parts = []
        if part.valid is not None:
            parts.append(part.valid[:, None, None, :])
        order = part.order()
        if order is not None:
            parts.append(order[:, None])
        if part.log_density is not None:
            parts.append(part.log_density > -torch.inf)

        if not parts:
            return None
        visible, *others = parts
        for mask in others:
            visible = visible & mask
        return visible

    def sees(self) -> Bool[Tensor, "b h q"] | None:
        """Whether each query sees a key, (1 | B, 1 | H, Nq), or None where all do.

        O(E) where pairs are edges or a reach, O(Nq·Nk) where there are other pairs or two domains
        are compared in time, else O(Nk).
        """
        ordered = self.query_time is not None
        if not self.sparse and self.log_density is None and (self.triangular or not ordered):
            if self.valid is None:
                return None
            if ordered:
                # A query sees the keys up to its own index.
                sees = self.valid.cumsum(-1) > 0
            else:
                sees = self.valid.any(-1, keepdim=True)
            return sees[:, None]

        if not self.sparse:
            visible = self.visible()
            if visible is None:
                return None
            return visible.any(-1)

        # Edges of equal density between real points: a query sees a key where it has an edge.
        edges = self.edges
        if edges is not None and edges.log_density is None and self.valid is None:
            has_edge = edges.degrees() > 0
            return has_edge.view(edges.batch, 1, edges.queries)

        keys = torch.ones_like(self.mass)
        if self.valid is not None:
            keys = self.valid.to(keys.dtype)
        if edges is not None:
            return mass_on_edges(keys, edges) > 0
        assert self.reach is not None
        sees = mass_in_reach(keys, self.valid, *self.reach) > 0
        return sees[:, None]

    def weights(self, rows: Rows = None) -> Float[Tensor, "b h q k"]:
        """Return the weights w of all pairs, (1 | B, 1 | H, Nq, Nk), the product of all factors in
        the class's formula: for definitions, pictures and small domains. O(Nq·Nk).

        The kernel's decay is one of the factors where the quadrature has it, see :meth:`decayed`.

        Args:
            rows: indices of the queries wanted, or None for all. Edges or a reach are then written
                out for these queries alone.
        """
        part = self._written_out(rows)
        dense = part.mass[:, None, None, :]
        order = part.order()
        if order is not None:
            dense = torch.where(order[:, None], dense, 0.0)
        if part.density is not None:
            dense = dense * part.density
        fading = part.fading()
        if fading is not None:
            dense = dense * fading.to(dense.dtype)
        if part.scale is not None:
            dense = dense * part.scale[..., None]
        return dense

    def scaled(self, sums: Float[Tensor, "b h q d"]) -> Float[Tensor, "b h q d"]:
        """Return sums over keys, each times the scale of its query, in the dtype of the sums."""
        if self.scale is None:
            return sums
        scale = self.scale[..., None]
        return sums * scale.to(sums.dtype)

    # --- a past that fades ------------------------------------------------------------------------

    def decayed(self, rates: Float[Tensor, "#b #h k"]) -> Quadrature:
        r"""Return the measure whose past fades at the rates λ of its keys.

        :math:`d_j = \lambda_j\,\Delta t_j` has the time since the real key before on a clock, and
        elsewhere one step per real key. The mass that a query sees, and with it the scale, stays
        that of the domain.
        """
        return replace(self, decay=self.exponents(rates))

    def exponents(
        self,
        rates: Float[Tensor, "#b #h n"],
        before: Float[Tensor, "#b"] | None = None,
    ) -> Float[Tensor, "#b #h n"]:
        """Return d of the last n keys, from their rates λ.

        Args:
            rates: λ.
            before: on a clock, the time of the last real point before all keys here, -∞ for none.
        """
        n = rates.shape[-1]
        if self.clock is None:
            if self.valid is None:
                return rates
            steps = self.valid[:, None, -n:]
            return rates * steps.to(rates.dtype)

        clock = self.clock
        if self.valid is None:
            # Without padding the point before is the neighbour.
            clock = clock[:, -n - 1 :]
        elapsed = elapsed_times(clock, self.valid, before)
        last = elapsed[:, None, -n:]
        return rates * last.to(rates.dtype)

    def fading(self) -> Float[Tensor, "#b #h q k"] | None:
        r"""Return :math:`e^{-(\Lambda_i - \Lambda_j)}` of all pairs, 1 where the key comes later;
        None where nothing fades. O(Nq·Nk).
        """
        if self.decay is None:
            return None

        # Differences of sums over all keys: in float32 they would lose the digits of near pairs.
        decay = self.decay
        if decay.device.type != "mps":
            decay = decay.double()
        of_keys = decay.cumsum(-1)

        order = self.order()
        if order is None:
            # The one query of a step sees all keys.
            since_keys = of_keys - of_keys[..., -1:]
            return since_keys[..., None, :].exp()

        of_queries = of_keys
        if not self.triangular:
            of_queries = decay @ order.to(decay.dtype).mT
        between = of_queries[..., None] - of_keys[..., None, :]
        between = torch.where(order[:, None], between, 0.0)
        return (-between).exp()

    # --- the same quadrature in another form ------------------------------------------------------

    def dense(self) -> Quadrature:
        """Return the same quadrature with a density of all pairs. O(Nq·Nk)."""
        if not self.sparse:
            return self
        queries = self.mass.shape[-1]
        if self.edges is not None:
            queries = self.edges.queries
        every = torch.arange(queries, device=self.mass.device)
        return self.rows(every)

    def _written_out(self, rows: Rows) -> Quadrature:
        """Return the quadrature of some queries, or of all, with a density where pairs have one."""
        if rows is None:
            return self.dense()
        return self.rows(rows)

    def rows(self, rows: Rows) -> Quadrature:
        """Return the quadrature of some of the queries.

        Their order is no longer that of the indices, so it is not triangular.
        """
        if rows is None:
            return self

        def pick(x: Tensor | None, dim: int) -> Tensor | None:
            if x is None:
                return None
            return take_rows(x, rows, dim)

        density = pick(self.density, 2)
        log_density = pick(self.log_density, 2)
        if self.sparse:
            index = torch.as_tensor(rows, device=self.mass.device)
            density, log_density = self._dense_pairs(index)

        return replace(
            self,
            scale=pick(self.scale, 2),
            query_time=pick(self.query_time, 1),
            density=density,
            log_density=log_density,
            triangular=False,
            edges=None,
            reach=None,
            rank=None,
        )

    def _dense_pairs(self, rows: Tensor) -> PairDensity:
        """Write out the edges, or the reach, of some queries."""
        dtype = self.mass.dtype
        if self.edges is None:
            within = self._within_reach(rows)
            return PairDensity.of_mask(within, dtype)

        # The edges of a batch of graphs are numbered through: graph g's query i is g·Nq + i.
        edges = self.edges
        graph = torch.arange(edges.batch, device=rows.device)
        numbered = graph[:, None] * edges.queries + rows
        pairs = edges.dense_rows(numbered.flatten())
        by_graph = pairs.unflatten(0, (edges.batch, rows.shape[0]))
        pairs = by_graph.movedim(2, 1)

        # Edges hold a mask, or a log-density that is -∞ where there is no edge.
        if pairs.dtype == torch.bool:
            return PairDensity.of_mask(pairs, dtype)
        pairs = pairs.to(dtype)
        return PairDensity(pairs.exp(), pairs)

    def _within_reach(self, rows: Tensor) -> Tensor:
        """Return which keys lie within the reach of some queries, (1 | B, 1, r, Nk).

        Raises:
            DomainError: too many pairs to write out.
        """
        assert self.reach is not None
        assert self.rank is not None
        before, after = self.reach
        samples, keys = self.rank.shape
        check_dense(samples * rows.shape[0] * keys)
        rank_of_query = self.rank[:, rows]
        lag = rank_of_query[:, :, None] - self.rank[:, None, :]
        within = (lag <= before) & (lag >= -after)
        return within[:, None]

    def to(self, dtype: torch.dtype) -> Quadrature:
        """Return the quadrature in a working precision, at least float32."""
        dtype = torch.promote_types(dtype, torch.float32)
        # A quadrature's parts share their dtype, so two of them tell that of all.
        if self.mass.dtype == dtype and (self.scale is None or self.scale.dtype == dtype):
            return self

        converted = {}
        for name in ("mass", "scale", "density", "log_density"):
            value = getattr(self, name)
            if value is not None:
                converted[name] = value.to(dtype)
        edges = self.edges
        if edges is not None and edges.log_density is not None:
            edges = edges.with_density(edges.log_density.to(dtype))
        return replace(self, edges=edges, **converted)

    # --- parts of a causal domain -----------------------------------------------------------------

    def row(self, t: int) -> Quadrature:
        """Return the quadrature of one causal step: query ``t`` over the keys 0 to ``t``.

        It has no order, because the query sees all of these keys.
        """
        return self._up_to(t, t + 1)

    def stretch(self, start: int, stop: int) -> Quadrature:
        """Return the quadrature of several causal steps at once: queries ``start`` to ``stop - 1``
        over the keys before ``stop``, in the order of their indices.
        """
        # Float32 counts up to 2^24 exactly; half precisions only up to 2,048 or 256.
        places = torch.arange(stop, device=self.mass.device, dtype=torch.float32)
        index = places[None]
        return replace(
            self._up_to(start, stop),
            query_time=index[:, start:],
            key_time=index,
            triangular=start == 0,
        )

    def _up_to(self, start: int, stop: int) -> Quadrature:
        """Return these queries over the keys before ``stop``, without an order."""
        # Tensors of the domain cover all its points; the cache of a step holds those up to it.
        factors = self._of_queries(start, stop)
        return Quadrature(
            mass=self.mass[:, :stop],
            scale=factors.scale,
            density=_first_keys(factors.density, stop),
            log_density=_first_keys(factors.log_density, stop),
            valid=_first_keys(self.valid, stop),
            equal=self.equal,
            clock=_first_keys(self.clock, stop),
        )

    def _of_queries(self, start: int, stop: int) -> QueryFactors:
        """Return the density, log-density and scale of queries ``start`` to ``stop - 1``.

        The densities cover all keys, (…, stop - start, Nk). Those of edges or a reach are written
        out for these queries.
        """
        if self.sparse:
            queries = list(range(start, stop))
            part = self.rows(queries)
            return QueryFactors(part.density, part.log_density, part.scale)

        def pick(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            return x[..., start:stop, :]

        scale = None
        if self.scale is not None:
            scale = self.scale[..., start:stop]
        return QueryFactors(
            pick(self.density),
            pick(self.log_density),
            scale,
        )


def _first_keys(x: Tensor | None, keys: int) -> Tensor | None:
    """Return the first keys of a tensor whose last dimension is that of keys."""
    if x is None:
        return None
    return x[..., :keys]


# --- time between points --------------------------------------------------------------------------


def elapsed_times(
    time: Float[Tensor, "#b n"],
    valid: Bool[Tensor, "#b n"] | None = None,
    before: Float[Tensor, "#b"] | None = None,
) -> Float[Tensor, "#b n"]:
    """Return the time since the real point before, zero at padding and where there is none.

    Args:
        time: of each point, not decreasing.
        valid: points that are not padding, or None where all are real.
        before: time of the last real point before these, -∞ or None for none.

    Example:
        >>> time, real = torch.tensor([[0.0, 1.0, 3.0]]), torch.tensor([[True, False, True]])
        >>> elapsed_times(time).tolist(), elapsed_times(time, real).tolist()
        ([[0.0, 1.0, 2.0]], [[0.0, 0.0, 3.0]])
    """
    if before is None:
        before = time.new_full((1,), -torch.inf)
    real = valid
    if real is None:
        real = torch.ones_like(time, dtype=torch.bool)
    batch = real.shape[0]
    first = before[:, None].to(time.dtype)
    first = first.expand(batch, 1)
    real_times = torch.where(real, time, -torch.inf)
    if valid is None:
        real_times = real_times.expand(batch, -1)

    # Times of an order never go back, so that the largest so far is the last one.
    times_before = torch.cat([first, real_times[:, :-1]], -1)
    latest = times_before.cummax(-1).values
    has_latest = latest > -torch.inf
    return torch.where(real & has_latest, time - latest, 0.0)


# --- the mass that a query sees -------------------------------------------------------------------


def reciprocal(mass: Tensor) -> Tensor:
    """Return 1 / mass, and 0 where there is no mass: a query that sees nothing integrates to zero.

    The inner ``where`` keeps the division by zero out of the gradient, where 0 · ∞ would be NaN.

    Example:
        >>> reciprocal(torch.tensor([2.0, 0.0])).tolist()
        [0.5, 0.0]
    """
    positive = mass > 0
    divisor = torch.where(positive, mass, 1.0)
    return torch.where(positive, 1.0 / divisor, 0.0)


def mass_on_edges(mass: Float[Tensor, "#b k"], edges: Edges) -> Float[Tensor, "#b #h q"]:
    """Return the mass that each query sees along its edges; one of density zero does not count.

    O(E) time and memory.
    """
    visible = mass.new_ones(edges.count, 1)
    if edges.log_density is not None:
        # (E, 1 | H)
        by_head = edges.log_density
        if by_head.dim() == 1:
            by_head = by_head[:, None]
        visible = (by_head > -torch.inf).to(mass.dtype)

    # One graph for all samples: edges number the keys of any of them.
    if edges.batch == 1:
        along = mass[:, edges.source, None] * visible
        total = along.new_zeros(mass.shape[0], edges.queries, along.shape[-1])
        return total.index_add(1, edges.targets(), along).mT

    # A graph for each sample: edges number the keys and queries of all samples through.
    flat_mass = mass.expand(edges.batch, -1)
    flat_mass = flat_mass.reshape(-1)
    along = flat_mass[edges.flat_source(), None] * visible
    total = along.new_zeros(edges.rows, visible.shape[1])
    total = total.index_add(0, edges.targets(), along)
    return total.unflatten(0, (edges.batch, edges.queries)).mT


def mass_in_reach(
    mass: Float[Tensor, "#b *c k"],
    valid: Bool[Tensor, "#b k"] | None,
    before: int,
    after: int,
) -> Float[Tensor, "#b *c k"]:
    """Return the mass that each point sees within its reach, counted in real points.

    Args:
        mass: of each point; any further dimensions share the points of their sample.
        valid: points that are not padding, or None where all are real.
        before, after: how many points before and after it a point sees.
    """
    if valid is None:
        return _window_sums(mass, before, after)

    # Real points next to one another, summed there, and the sums back at their indices.
    samples = torch.broadcast_shapes(mass.shape[:1], valid.shape[:1])
    mass = mass.expand(*samples, *mass.shape[1:])
    order = compact_order(valid)
    shared = [1] * (mass.dim() - 2)
    order = order.view(-1, *shared, order.shape[-1]).expand_as(mass)
    sums = _window_sums(mass.gather(-1, order), before, after)
    return torch.zeros_like(sums).scatter(-1, order, sums)


def compact_order(valid: Bool[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """Return the indices of real points first, in their order, then those of padding.

    Example:
        >>> compact_order(torch.tensor([[True, False, True]])).tolist()
        [[0, 2, 1]]
    """
    padding_last = (~valid).to(torch.int8)
    return torch.sort(padding_last, dim=-1, stable=True).indices


def _window_sums(mass: Tensor, before: int, after: int) -> Tensor:
    """Return the sum of each point's ``before`` predecessors, itself and ``after`` successors."""
    points = mass.shape[-1]
    before = min(before, points)
    after = min(after, points)
    padded = torch.nn.functional.pad(mass, (before, after))
    windows = padded.unfold(-1, before + after + 1, 1)
    return windows.sum(-1)
