"""Quadrature: what a query sees of a domain, and with which weight."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .edges import Edges

Rows = Tensor | list[int] | None


def take_rows(tensor: Tensor, rows: Rows, dim: int) -> Tensor:
    """``tensor`` at the query indices ``rows`` along ``dim``; all of it where ``rows`` is None or
    ``dim`` has size 1.
    """
    if rows is None or tensor.shape[dim] == 1:
        return tensor
    return tensor.index_select(dim, torch.as_tensor(rows, device=tensor.device))


@dataclass(eq=False)  # nobody writes to one; a frozen class takes three times as long to build
class Quadrature:
    r"""Weights of the sum that stands for an integral:
    :math:`\int f(x_i, y)\,d\mu(y) \approx \sum_j w_{ij} f(x_i, y_j)`.

    The weights are kept factored, so that no N² tensor exists unless the domain's ``pairs`` brought
    one:

    .. math:: w_{ij} = s_i\, m_j\, [t_j \le t_i]\, \rho_{ij}

    Attributes:
        mass: m, mass of each key, zero at padding; (1 | B, Nk).
        scale: s, one over the mass each query sees, or None where nothing is renormalised; (1 | B,
            1 | H, Nq).
        query_time, key_time: t, or None where order plays no role; (1 | B, Nq) and (1 | B, Nk).
        density: ρ, the pair density (0 or 1 for a mask); (1 | B, 1 | H, Nq, Nk) or None.
        log_density: log ρ, or None; kept beside ρ so that a softmax adds it without a logarithm.
        valid: keys that are no padding; (B, Nk) or None.
        equal: whether all keys that are no padding have the same mass: a static fact.
        triangular: whether the order is that of the indices, t_i = i: a static fact.
        edges: who sees whom, where few do; ``density`` and ``log_density`` are then None, and the
            order is in the edges' own density.
        reach: how many places before and after it a query sees, or None.
        rank: the place of each key among the real ones, (1 | B, Nk), beside ``reach``.
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

    @property
    def sparse(self) -> bool:
        """Whether pairs are edges or a reach, so that ``density`` does not hold them."""
        return self.edges is not None or self.reach is not None

    def dense(self) -> Quadrature:
        """The same quadrature with a density of all pairs. O(Nq·Nk)."""
        if not self.sparse:
            return self
        return self.rows(torch.arange(self._queries(), device=self.mass.device))

    def _queries(self) -> int:
        return self.mass.shape[-1] if self.edges is None else self.edges.queries

    def _dense_pairs(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """ρ and log ρ of some queries, (1 | B, 1 | H, r, Nk)."""
        dtype = self.mass.dtype
        if self.edges is None:
            assert self.reach is not None
            assert self.rank is not None
            before, after = self.reach
            lag = self.rank[:, rows][:, :, None] - self.rank[:, None, :]
            seen = ((lag <= before) & (lag >= -after))[:, None]
            density = seen.to(dtype)
            return density, torch.zeros_like(density).masked_fill(~seen, -torch.inf)

        edges = self.edges
        graph = torch.arange(edges.batch, device=rows.device)
        flat = (graph[:, None] * edges.queries + rows).flatten()
        pairs = edges.dense_rows(flat).unflatten(0, (edges.batch, rows.shape[0])).movedim(2, 1)
        if pairs.dtype == torch.bool:
            density = pairs.to(dtype)
            return density, torch.zeros_like(density).masked_fill(~pairs, -torch.inf)
        pairs = pairs.to(dtype)
        return pairs.exp(), pairs

    def order(self) -> Bool[Tensor, "b q k"] | None:
        """Pairs in causal order, ``t_j <= t_i``, or None where order plays no role."""
        if self.query_time is None or self.key_time is None:
            return None
        return self.key_time[:, None, :] <= self.query_time[:, :, None]

    def visible(self, rows: Rows = None) -> Bool[Tensor, "b h q k"] | None:
        """Pairs that order, padding and masks leave, or None where every query sees every key.
        O(Nq·Nk).
        """
        part, parts = self.dense() if rows is None else self.rows(rows), []
        if part.valid is not None:
            parts.append(part.valid[:, None, None, :])
        order = part.order()
        if order is not None:
            parts.append(order[:, None])
        if part.log_density is not None:
            parts.append(part.log_density > -torch.inf)
        seen = None
        for mask in parts:
            seen = mask if seen is None else seen & mask
        return seen

    def sees(self) -> Bool[Tensor, "b h q"] | None:
        """Whether each query sees a key, (1 | B, 1 | H, Nq), or None where all do. O(E) where pairs
        are edges or a reach, else as :meth:`visible`.
        """
        if not self.sparse:
            visible = self.visible()
            return None if visible is None else visible.any(-1)
        edges = self.edges
        if edges is not None and edges.log_density is None and self.valid is None:
            return (edges.degrees() > 0).view(edges.batch, 1, edges.queries)
        keys = torch.ones_like(self.mass)
        if self.valid is not None:
            keys = self.valid.to(keys.dtype)
        if edges is not None:
            return mass_on_edges(keys, edges) > 0
        assert self.reach is not None
        return (mass_in_reach(keys, self.valid, *self.reach) > 0)[:, None]

    def weights(self, rows: Rows = None) -> Float[Tensor, "b h q k"]:
        """The dense weights w (1 | B, 1 | H, Nq, Nk), for definitions, pictures and small domains.
        O(Nq·Nk).
        """
        part = self.dense() if rows is None else self.rows(rows)
        dense, order = part.mass[:, None, None, :], part.order()
        if order is not None:
            dense = torch.where(order[:, None], dense, 0.0)
        if part.density is not None:
            dense = dense * part.density
        if part.scale is not None:
            dense = dense * part.scale[..., None]
        return dense

    def rows(self, rows: Rows) -> Quadrature:
        """The same quadrature for some of the queries, which are then in no triangular order."""
        if rows is None:
            return self

        def pick(x: Tensor | None, dim: int) -> Tensor | None:
            return None if x is None else take_rows(x, rows, dim)

        density, log_density = pick(self.density, 2), pick(self.log_density, 2)
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

    def to(self, dtype: torch.dtype) -> Quadrature:
        """The same quadrature in a working precision, at least float32; itself where it has it."""
        dtype = torch.promote_types(dtype, torch.float32)
        if self.mass.dtype == dtype and (self.scale is None or self.scale.dtype == dtype):
            return self  # a quadrature's parts share their dtype
        parts = {name: getattr(self, name) for name in ("mass", "scale", "density", "log_density")}
        edges = self.edges
        if edges is not None and edges.log_density is not None:
            edges = edges.with_density(edges.log_density.to(dtype))
        return replace(
            self,
            edges=edges,
            **{name: None if x is None else x.to(dtype) for name, x in parts.items()},
        )

    def row(self, t: int) -> Quadrature:
        """What query ``t`` sees of the keys up to and including ``t``: the quadrature of one causal
        step.
        """

        if self.sparse:
            # The one row is dense: a step sees all keys that a cache holds.
            part = self.rows([t])
            return Quadrature(
                mass=self.mass[:, : t + 1],
                scale=part.scale,
                density=None if part.density is None else part.density[..., : t + 1],
                log_density=None if part.log_density is None else part.log_density[..., : t + 1],
                valid=None if self.valid is None else self.valid[:, : t + 1],
                equal=self.equal,
            )

        def cut(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[..., : t + 1]

        def pick(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[..., t : t + 1, : t + 1]

        scale = None if self.scale is None else self.scale[..., t : t + 1]
        return Quadrature(
            mass=self.mass[:, : t + 1],
            scale=scale,
            density=pick(self.density),
            log_density=pick(self.log_density),
            valid=cut(self.valid),
            equal=self.equal,
        )

    def stretch(self, start: int, stop: int) -> Quadrature:
        """What queries ``start`` to ``stop`` of a causal domain see of the keys before ``stop``:
        the quadrature of a stretch of steps at once.
        """

        if self.sparse:
            part = self.rows(list(range(start, stop)))
            order = torch.arange(stop, device=self.mass.device, dtype=torch.float32)[None]
            return Quadrature(
                mass=self.mass[:, :stop],
                scale=part.scale,
                query_time=order[:, start:],
                key_time=order,
                density=None if part.density is None else part.density[..., :stop],
                log_density=None if part.log_density is None else part.log_density[..., :stop],
                valid=None if self.valid is None else self.valid[:, :stop],
                equal=self.equal,
                triangular=start == 0,
            )

        def pairs(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[..., start:stop, :stop]

        # Half precisions cannot tell apart the indices of a long domain.
        order = torch.arange(stop, device=self.mass.device, dtype=torch.float32)[None]
        return Quadrature(
            mass=self.mass[:, :stop],
            scale=None if self.scale is None else self.scale[..., start:stop],
            query_time=order[:, start:],
            key_time=order,
            density=pairs(self.density),
            log_density=pairs(self.log_density),
            valid=None if self.valid is None else self.valid[:, :stop],
            equal=self.equal,
            triangular=start == 0,
        )


def reciprocal(mass: Tensor) -> Tensor:
    """1 / mass, and 0 where there is no mass to divide by: a query that sees nothing integrates to
    zero.
    """
    return torch.where(mass > 0, 1.0 / torch.where(mass > 0, mass, 1.0), 0.0)


def mass_on_edges(mass: Float[Tensor, "#b k"], edges: Edges) -> Float[Tensor, "#b #h q"]:
    """The mass that each query sees along edges, a hidden one not."""
    seen = mass.new_ones(edges.count, 1)
    if edges.log_density is not None:
        seen = (edges.log_density.reshape(edges.count, -1) > -torch.inf).to(mass.dtype)
    if edges.batch == 1:
        along = mass[:, edges.source, None] * seen
        total = along.new_zeros(mass.shape[0], edges.queries, along.shape[-1])
        return total.index_add(1, edges.targets(), along).mT
    flat = mass.expand(edges.batch, -1).reshape(-1)[edges.flat_source()]
    total = flat.new_zeros(edges.rows, seen.shape[1])
    total = total.index_add(0, edges.targets(), flat[:, None] * seen)
    return total.unflatten(0, (edges.batch, edges.queries)).mT


def mass_in_reach(
    mass: Float[Tensor, "#b k"], valid: Bool[Tensor, "#b k"] | None, before: int, after: int
) -> Float[Tensor, "#b k"]:
    """The mass that each point sees within its reach, in places of real points."""
    if valid is None:
        return _window_sums(mass, before, after)
    order = compact_order(valid)
    mass = mass.expand(valid.shape[0], -1)
    sums = _window_sums(mass.gather(1, order), before, after)
    return torch.zeros_like(sums).scatter(1, order, sums)


def compact_order(valid: Bool[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """Real points first, in their order; padding behind them."""
    return torch.sort((~valid).to(torch.int8), dim=-1, stable=True).indices


def _window_sums(mass: Tensor, before: int, after: int) -> Tensor:
    before, after = min(before, mass.shape[-1]), min(after, mass.shape[-1])
    padded = torch.nn.functional.pad(mass, (before, after))
    return padded.unfold(-1, before + after + 1, 1).sum(-1)
