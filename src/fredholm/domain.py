"""Where a signal lives: positions, measure, padding, order and pair masks.

Longer than other files: eight constructors, each with its formula and an example, belong to one
class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad
from torch.export import register_dataclass

from .arguments import Device, checked, refuse_kind
from .distributed.shards import Shards, agreed, checked_sizes, even_sizes
from .edges import Edges, check_edge_features, check_edge_index, check_weight
from .errors import DomainError, ShapeError, suggest
from .meshes import Mesh, check_on_sphere, great_circle_radius, sphere_areas
from .neighbours import nearest_edges, radius_edges
from .quadrature import Quadrature, mass_in_reach, mass_on_edges, reciprocal
from .validation import cheap_to_read, check_forward, check_shapes, check_values, positive

Kept = TypeVar("Kept")

# A graph of more nodes has its pairs as edges, unless it is asked for a mask.
DENSE_NODES = 1024

# name -> (all masses equal, renormalised to the mass a query sees)
MEASURES = {
    "uniform": (True, True),
    "counting": (True, False),
    "spacing": (False, False),
    "weighted": (False, False),
    "probability": (False, True),
}


@dataclass(frozen=True, eq=False, repr=False)
class Domain:
    r"""A sampled domain: points, the mass of each, which are real, and who sees whom.

    An operator integrates over it, :math:`\int f(x, y)\,d\mu(y) \approx \sum_j w_j f(x, y_j)`;
    :meth:`quadrature` makes the weights. ``__init__`` checks nothing, so that traced code may build
    domains; the constructors (:meth:`line`, :meth:`grid`,
    :meth:`points`, :meth:`timestamps`, :meth:`graph`, :meth:`join`) check shapes, and
    :meth:`validate` checks values.

    Attributes:
        positions: coordinates, (N, p) or (B, N, p).
        measure: mass of each point, (N,) or (B, N).
        valid: points that are no padding, (B, N), or None.
        pairs: who sees whom: a boolean mask, or a float *log-density* of the pair measure (an
            additive attention bias; -inf hides a pair; values beyond ±80 leave float32's range),
            (Nq, Nk), (B, Nq, Nk) or (B | 1, H | 1, Nq, Nk); or :class:`fredholm.edges.Edges`, the
            same in memory O(E); or None.
        causal: within the domain a point sees the points up to its own index; from another domain,
            those whose first coordinate (time) is not later.
        shape: extents of a regular grid in row-major order, or None.
        kind: the measure's name. ``uniform``: equal masses, total mass 1 over what a query sees;
            ``counting``: mass 1 a point; ``spacing``: the distance to the neighbours, never
            renormalised; ``weighted``: masses as given; ``probability``: masses as given,
            renormalised over what a query sees.
        shards: where these are one rank's points of a domain over several processes, who has which;
            see :meth:`shard`. ``pairs`` then has this rank's queries and all keys.
        reach: a window: a point sees the points that are at most ``reach`` places before it or,
            without order, after it. Padding is not a place. Never written out as edges.

    Example:
        >>> domain = Domain.grid(2, 3)
        >>> domain.positions.shape, float(domain.quadrature().weights().sum())
        (torch.Size([6, 2]), 1.0)
    """

    positions: Tensor
    measure: Tensor
    valid: Tensor | None = None
    pairs: Tensor | Edges | None = None
    causal: bool = False
    shape: tuple[int, ...] | None = None
    kind: str = "uniform"
    shards: Shards | None = None
    reach: int | None = None

    # --- construction -----------------------------------------------------------------------------

    @classmethod
    @checked(DomainError)
    def line(
        cls,
        n: int,
        *,
        length: float | None = None,
        causal: bool = False,
        measure: str | Tensor = "uniform",
        valid: Tensor | None = None,
        pairs: Tensor | Edges | None = None,
        reach: int | None = None,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Domain:
        """n points at ``index / length``; ``length`` (default n) is a fixed scale, so that a prefix
        keeps its positions.

        With ``reach`` each point sees those at most so many places away: ``2 · reach + 1`` points,
        or ``reach + 1`` of a causal line. What is farther does not count at all, unlike the
        ``window`` of ``luna`` and ``linear_attention``, beyond which features go on.

        Example:
            >>> Domain.line(4).positions.squeeze(-1).tolist()
            [0.0, 0.25, 0.5, 0.75]
            >>> window = Domain.line(4, causal=True, reach=1)
            >>> window.quadrature().weights()[0, 0, 2].tolist()
            [0.0, 0.5, 0.5, 0.0]
        """
        positive(n, "line(n)")
        if length is not None and not length > 0:
            raise DomainError(f"line(length=...) needs a positive scale, got {length}")
        step = 1.0 / (n if length is None else length)
        dtype = dtype or torch.get_default_dtype()
        positions = torch.arange(n, device=device, dtype=dtype)[:, None] * step
        domain = cls._build(
            positions, measure, step, causal=causal, shape=(n,), valid=valid, pairs=pairs
        )
        if reach is None:
            return domain
        if reach < 0 or pairs is not None:
            got = f"reach={reach}" + ("" if pairs is None else " beside pairs")
            raise DomainError(
                f"expected a reach of 0 or more and no pairs, got {got}; a mask of pairs can hide "
                "what is out of reach as well"
            )
        return replace(domain, reach=reach)

    @classmethod
    @checked(DomainError)
    def grid(
        cls,
        *shape: int,
        causal: bool = False,
        measure: str | Tensor = "uniform",
        valid: Tensor | None = None,
        pairs: Tensor | None = None,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Domain:
        """Cell centres of a regular grid on the unit cube, row-major: ``grid(h, w)`` for an image.

        Example:
            >>> Domain.grid(1, 2).positions.tolist()
            [[0.5, 0.25], [0.5, 0.75]]
        """
        for n in shape or (0,):
            positive(n, f"grid{shape}")
        dtype = dtype or torch.get_default_dtype()
        axes = [(torch.arange(n, device=device, dtype=dtype) + 0.5) / n for n in shape]
        positions = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(shape))
        return cls._build(
            positions,
            measure,
            1.0 / positions.shape[0],
            causal=causal,
            shape=tuple(shape),
            valid=valid,
            pairs=pairs,
        )

    @classmethod
    @checked(DomainError)
    def points(
        cls,
        positions: Tensor,
        *,
        causal: bool = False,
        measure: str | Tensor = "uniform",
        valid: Tensor | None = None,
        pairs: Tensor | Edges | None = None,
        radius: float | None = None,
        neighbours: int | None = None,
        box: Sequence[float] | None = None,
    ) -> Domain:
        """Any points: ``positions`` (N, p) or (B, N, p); ``measure`` a name or a tensor of masses
        taken as they are.

        Without ``radius`` or ``neighbours`` every point sees every other. With one of them the
        neighbours are searched once, and memory is linear in their number.

        Args:
            radius: a point sees the points at most so far away, itself among them.
            neighbours: a point sees so many nearest points, itself among them, and all that are as
                near as the last of these.
            box: lengths of a periodic box for either search; a key is then seen at its nearest
                image.

        Example:
            >>> Domain.points(torch.rand(2, 5, 3)).size
            5
            >>> Domain.points(torch.tensor([[0.0], [1.0], [5.0]]), radius=2.0).pairs
            Edges(5 edges of 3 queries and 3 keys, at most 2 per query)
        """
        if radius is not None or neighbours is not None:
            if pairs is not None:
                raise DomainError("expected pairs or a search for them, got both; leave one out")
            check_shapes(positions, None, valid)
            pairs = _neighbours(positions, valid, radius, neighbours, box)
        elif box is not None:
            raise DomainError("expected a radius or neighbours beside box, got neither")
        return cls._build(positions, measure, None, causal=causal, valid=valid, pairs=pairs)

    @classmethod
    @checked(DomainError)
    def mesh(
        cls,
        vertices: Tensor,
        cells: Tensor,
        *,
        at: str = "vertices",
        radius: float | None = None,
        neighbours: int | None = None,
        adjacent: bool = False,
    ) -> Domain:
        """The vertices or cells of a mesh, each with its area or volume as mass, so that the sum
        over points is the integral over the mesh.

        Args:
            vertices, cells: see :class:`fredholm.meshes.Mesh`.
            at: ``"vertices"``, each with its part of the cells around it, or ``"cells"``, at their
                centres.
            radius, neighbours: as in :meth:`points`.
            adjacent: vertices see one another along the edges of the mesh, and themselves.

        Raises:
            DomainError, ShapeError: see :class:`fredholm.meshes.Mesh`.

        Example:
            >>> corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
            >>> square = Domain.mesh(corners, torch.tensor([[0, 1, 2], [0, 2, 3]]))
            >>> square.quadrature().weights().sum().item()
            1.0
        """
        if at not in ("vertices", "cells"):
            raise DomainError(f"expected at='vertices' or 'cells', got {at!r}")
        mesh = Mesh(vertices, cells)
        if at == "cells":
            if adjacent:
                raise DomainError("expected at='vertices' beside adjacent, got at='cells'")
            return cls.points(
                mesh.cell_centres(),
                measure=mesh.cell_masses(),
                radius=radius,
                neighbours=neighbours,
            )
        pairs = None
        if adjacent:
            own = torch.arange(vertices.shape[0], device=vertices.device).expand(2, -1)
            pairs = Edges.of_index(torch.cat([mesh.edge_index(), own], -1), vertices.shape[0])
        return cls.points(
            mesh.vertices,
            measure=mesh.vertex_masses(),
            pairs=pairs,
            radius=radius,
            neighbours=neighbours,
        )

    @classmethod
    @checked(DomainError)
    def sphere(
        cls,
        points: Tensor,
        *,
        areas: Tensor | None = None,
        angle: float | None = None,
        neighbours: int | None = None,
    ) -> Domain:
        """Points of the unit sphere (N, 3), each with an area as mass, so that the sum over points
        is the integral over the sphere.

        Args:
            points: directions of length 1, of :func:`fredholm.meshes.latitude_longitude` for
                instance.
            areas: (N,), by default those of the Voronoi cells.
            angle: a point sees the points at most so far away along a great circle, in radians.
            neighbours: as in :meth:`points`; the nearest along great circles are the nearest.

        Raises:
            DomainError: points off the sphere, an angle that is not above 0 and up to π.
            MissingExtraError: scipy is needed for Voronoi cells and for either search.

        Example:
            >>> from fredholm.meshes import latitude_longitude
            >>> points, areas = latitude_longitude(4, 8)
            >>> globe = Domain.sphere(points, areas=areas, angle=0.8)
            >>> globe.size, round(globe.measure.sum().item(), 4)
            (32, 12.5664)
        """
        check_on_sphere(points)
        if areas is None:
            areas = sphere_areas(points)
        radius = None if angle is None else great_circle_radius(angle)
        return cls.points(points, measure=areas, radius=radius, neighbours=neighbours)

    def near(
        self, queries: Domain, *, radius: float | None = None, neighbours: int | None = None
    ) -> Domain:
        """This domain as the points of another one see it: those within a radius, or the nearest.
        Pass it with the other as ``query_domain``.

        Example:
            >>> source = Domain.points(torch.tensor([[0.0], [1.0], [5.0]]))
            >>> source.near(Domain.points(torch.tensor([[0.4]])), radius=1.0).pairs.row(0).tolist()
            [0, 1]
        """
        if not isinstance(queries, Domain):
            raise DomainError(refuse_kind("queries", queries, "a Domain"))
        if queries.dim != self.dim:
            raise ShapeError(
                f"expected one space, got positions of dimension {self.dim} and {queries.dim}"
            )
        self.refuse_shards("near")
        edges = _neighbours(
            self.positions,
            self.valid,
            radius,
            neighbours,
            None,
            queries=queries.positions,
            queries_valid=queries.valid,
        )
        return replace(self, pairs=edges, reach=None)

    @classmethod
    @checked(DomainError)
    def timestamps(
        cls,
        t: Tensor,
        *,
        step: float = 1.0,
        causal: bool = True,
        valid: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> Domain:
        r"""Irregular samples at times ``t`` (N,) or (B, N), sorted; measure = *spacing*, the
        inverse sample density.

        Causal: :math:`\mu_i = (t_i - t_{i-1}) / step`, :math:`\mu_0 = 1`; otherwise half the
        distance between a point's two neighbours (Voronoi cells, the outer ones doubled). ``step``
        is the time unit of one training sample.

        Raises:
            DomainError: times that go back. They are looked at on the CPU, in eager code; elsewhere
                :meth:`validate` does, where data enter.

        Reference: CKConv, Eq. 8.

        Example:
            >>> Domain.timestamps(torch.tensor([0.0, 1.0, 3.0])).measure.tolist()
            [1.0, 1.0, 2.0]
        """
        if t.dim() not in (1, 2) or t.shape[-1] == 0:
            raise DomainError(
                f"timestamps need a tensor (N,) or (B, N) with N >= 1, got {tuple(t.shape)}"
            )
        if not step > 0:
            raise DomainError(f"timestamps(step=...) needs a positive time unit, got {step}")
        real = torch.ones_like(t, dtype=torch.bool) if valid is None else valid
        check_shapes(t[..., None], None, valid)
        time = torch.where(real, t, 0.0)
        mass = torch.where(real, _cells(time / step, real, causal), 0.0)
        check_forward(mass)
        domain = cls._build(time[..., None], mass, None, causal=causal, valid=valid, pairs=pairs)
        return replace(domain, kind="spacing")

    @classmethod
    @checked(DomainError)
    def graph(
        cls,
        edge_index: Tensor,
        n: int,
        *,
        positions: Tensor | None = None,
        self_loops: bool = True,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        loop_attr: Tensor | None = None,
        sparse: bool | None = None,
        causal: bool = False,
        measure: str | Tensor = "uniform",
        valid: Tensor | None = None,
    ) -> Domain:
        """n nodes whose ``edge_index`` (2, E), rows (source, target), says which sources a target
        sees.

        An edge that comes k times counts k times, as in message passing: ``pairs`` is then the
        logarithm of the count, otherwise a mask. With ``self_loops`` every node sees itself once.
        Without ``positions`` every node sits at the origin: a graph has no coordinates of its own.

        Args:
            edge_weight: density of each edge, (E,), not negative; a loop that is added has 1.
            edge_attr: features of each edge, (E, f), for kernels that read them; signed weights
                belong here.
            loop_attr: features of the loops that are added, (f,) or (n, f), by default 0.
            sparse: pairs as :class:`fredholm.edges.Edges`, memory O(E), instead of a mask, O(n²);
                by default for more than 1,024 nodes and for edges with features.

        Example:
            >>> Domain.graph(torch.tensor([[0], [1]]), 2).pairs.tolist()
            [[True, False], [True, True]]
        """
        positive(n, "graph(n)")
        check_edge_index(edge_index, n, n)
        check_weight(edge_weight, edge_index.shape[1])
        check_edge_features(edge_attr, edge_index.shape[1])
        if positions is None:
            positions = torch.zeros(n, 1, device=edge_index.device)
        check_shapes(positions)
        if self_loops:
            edge_index, edge_weight, edge_attr = _with_loops(
                edge_index, n, edge_weight, edge_attr, loop_attr
            )
        if edge_weight is not None:
            edge_weight = edge_weight.to(positions.dtype)
        edges = Edges.of_index(
            edge_index, n, weight=edge_weight, features=edge_attr, dtype=positions.dtype
        )
        if edges.log_density is not None:
            edges = edges.with_density(edges.log_density.to(positions.dtype))
        if sparse is None:
            sparse = n > DENSE_NODES or edge_attr is not None
        if not sparse and edge_attr is not None:
            raise DomainError("expected sparse=True for edges with features, got sparse=False")
        pairs = edges if sparse else edges.dense()
        return cls.points(positions, causal=causal, measure=measure, valid=valid, pairs=pairs)

    @classmethod
    @checked(DomainError)
    def join(cls, a: Domain, b: Domain, *, balance: tuple[float, float] | None = None) -> Domain:
        """The union of two domains in one space, points of ``a`` first. ``balance`` gives the total
        mass of each side.

        Without ``balance`` masses are concatenated as they are, and two uniform domains become one
        uniform domain; masses of spacing are kept as ``weighted`` ones; measures that are
        renormalised do not mix without it.

        Example:
            >>> grid, points = Domain.grid(1, 3), Domain.points(torch.rand(1, 2))
            >>> both = Domain.join(grid, points, balance=(0.5, 0.5))
            >>> both.quadrature().weights().squeeze().tolist()[-1]
            0.5
        """
        if balance is not None and min(balance) < 0:
            raise DomainError(f"the masses of balance are not negative, got {tuple(balance)}")
        a.refuse_shards("join")
        b.refuse_shards("join")
        if a.dim != b.dim:
            raise DomainError(
                f"join needs one space, got positions of dimension {a.dim} and {b.dim}"
            )
        limited = [d for d in (a, b) if d.causal or d.pairs is not None or d.reach is not None]
        if limited:
            raise DomainError(
                "join takes domains without order or pairs or reach; set them on the union with "
                "replace(...)"
            )
        if None not in (a.batch, b.batch) and a.batch != b.batch:
            raise ShapeError(f"join needs one batch size, got {a.batch} and {b.batch}")
        batch = max(a.batch or 1, b.batch or 1)
        valid = None
        if a.valid is not None or b.valid is not None:
            valid = torch.cat([d._valid_or_true(batch) for d in (a, b)], -1)
        x, y, m, n = a.positions, b.positions, a.measure, b.measure
        if a.batch or b.batch:
            x, y, m, n = (
                x.expand(batch, -1, -1),
                y.expand(batch, -1, -1),
                m.expand(batch, -1),
                n.expand(batch, -1),
            )
        kind = a.kind if a.kind == b.kind else "weighted"
        if kind == "spacing":  # of each side, and not the distances in the union
            kind = "weighted"
        if balance is None and (
            kind == "probability"
            or (a.kind != b.kind and (MEASURES[a.kind][1] or MEASURES[b.kind][1]))
        ):
            raise DomainError(
                f"join of {a.kind} and {b.kind} measures needs balance=(mass of a, mass of b), "
                "such as (0.5, 0.5)"
            )
        if balance is not None:
            m, n = (
                _normalised(part, d, batch) * mass for part, d, mass in zip((m, n), (a, b), balance)
            )
            kind = "probability"
        return cls(torch.cat([x, y], -2), torch.cat([m, n], -1), valid, kind=kind)

    @classmethod
    @checked(DomainError)
    def collate(cls, domains: Sequence[Domain]) -> Domain:
        """Domains of different sizes as one batch, padded to the longest, with ``valid`` marking
        the real points.

        Example:
            >>> Domain.collate([Domain.line(2), Domain.line(3)]).valid.tolist()
            [[True, True, False], [True, True, True]]
        """
        if not domains:
            raise DomainError("collate needs at least one domain, got none")
        for d in domains:
            d.refuse_shards("collate")
        kinds, orders = {d.kind for d in domains}, {d.causal for d in domains}
        batched = next((i for i, d in enumerate(domains) if d.batch), None)
        if batched is not None:
            raise DomainError(
                f"collate needs unbatched domains, domain {batched} has a batch of "
                f"{domains[batched].batch} by its positions, measure or valid; leave padding out "
                "of it, which collate marks itself"
            )
        if len(kinds) > 1 or len(orders) > 1:
            raise DomainError(
                f"collate needs domains of one measure and order, got {kinds} and causal {orders}"
            )
        reaches = {d.reach for d in domains}
        if len(reaches) > 1:
            raise DomainError(f"expected one reach of all domains to collate, got {reaches}")
        n = max(d.size for d in domains)
        valid = torch.stack([torch.arange(n, device=d.positions.device) < d.size for d in domains])
        if len({d.dim for d in domains}) > 1:
            raise DomainError(
                f"collate needs one space, got positions of dimension {[d.dim for d in domains]}"
            )
        positions = torch.stack([_pad(d.positions, n - d.size) for d in domains])
        measure = torch.stack([_pad(d.measure[:, None], n - d.size)[:, 0] for d in domains])
        pairs = _collate_pairs(domains, n)
        first = domains[0]
        shape = first.shape if all(d.shape == first.shape for d in domains) else None
        return cls(
            positions,
            measure,
            None if bool(valid.all()) else valid,
            pairs,
            first.causal,
            shape,
            first.kind,
            reach=first.reach,
        )

    @classmethod
    def _build(
        cls, positions, measure, spacing, *, causal=False, shape=None, valid=None, pairs=None
    ) -> Domain:
        mask = pairs if isinstance(pairs, Tensor) else None
        check_shapes(positions, measure if isinstance(measure, Tensor) else None, valid, mask)
        if isinstance(pairs, Edges):
            _check_edges(pairs, positions)
        if valid is not None:
            positions = torch.where(valid[..., None], positions, 0.0)
        if isinstance(measure, Tensor):
            return cls(positions, measure, valid, pairs, causal, shape, "weighted")
        names = ["uniform", "counting"] + (["spacing"] if spacing is not None else [])
        if measure not in names:
            raise DomainError(
                f"unknown measure {measure!r} here{suggest(str(measure), names)} (or give a tensor "
                "of masses)"
            )
        mass: Any = spacing if measure == "spacing" else 1.0
        masses = torch.full(
            positions.shape[-2:-1], mass, device=positions.device, dtype=positions.dtype
        )
        return cls(positions, masses, valid, pairs, causal, shape, measure)

    # --- in shards --------------------------------------------------------------------------------

    def shard(
        self, mesh: Any, *, dimension: str | None = None, sizes: Sequence[int] | None = None
    ) -> Domain:
        """This rank's part of a domain that every rank has whole: the r-th stretch of its points.

        An operator is called with the part and with the features of its points,
        ``op(u[:, part], domain.shard(mesh))``, by every rank, and answers at those points what the
        whole would. O(1) numbers are sent.

        Args:
            mesh: a torch ``DeviceMesh``.
            dimension: the name of the mesh's dimension to shard over, where it has several.
            sizes: points of each rank, 0 allowed; by default as even as they can be.

        Raises:
            DomainError: no process group, no such mesh or dimension, more ranks than points, sizes
                that do not add up, or another domain on another rank.
        """
        self.refuse_shards("shard")
        shards = Shards.over(mesh, dimension)
        if sizes is None:
            parts = even_sizes(self.size, shards.count)
        else:
            parts = checked_sizes(sizes, self.size, shards.count)
        values = [self.positions, self.measure]
        same = {**self._common(), "points": self.size, "sizes": parts, "shape": self.shape}
        same["checksum"] = tuple(round(float(x.detach().double().nansum()), 6) for x in values)
        agreed({"same": same}, shards)
        shards = replace(shards, sizes=parts, extents=self.shape)
        part = slice(shards.start, shards.start + shards.size)
        return replace(
            self,
            positions=self.positions[..., part, :],
            measure=self.measure[..., part],
            valid=None if self.valid is None else self.valid[:, part],
            pairs=self._pairs_of(part),
            shape=None,
            shards=shards,
        )

    def _pairs_of(self, part: slice) -> Tensor | Edges | None:
        """The pairs of some consecutive queries with all keys."""
        if not isinstance(self.pairs, Edges):
            return None if self.pairs is None else self.pairs[..., part, :]
        edges, (query_time, key_time) = self.pairs, self._times(None)
        if query_time is not None and key_time is not None:
            # A part knows its places in the whole no longer, so that edges hold the order.
            edges = _ordered_edges(edges, query_time, key_time)
        return edges.stretch(part.start, part.stop)

    @classmethod
    def from_shard(
        cls,
        part: Domain,
        mesh: Any,
        *,
        dimension: str | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Domain:
        """The part of a rank that has no more than its own points: the whole is the union of all
        ranks' parts, in their order.

        Args:
            part: this rank's points; ``pairs``, if any, with its queries and all keys. A rank
                without points gives ``domain[:0]``.
            mesh, dimension: see :meth:`shard`.
            shape: extents of the regular grid that the whole is, in row-major order.

        Raises:
            DomainError: as :meth:`shard`; parts of different kinds; masses of ``timestamps``, whose
                first cell needs the rank before: make them of the whole, or give masses.
        """
        part.refuse_shards("from_shard")
        if isinstance(part.pairs, Edges):
            raise DomainError(
                "expected a part without edges for from_shard, got some; build the whole graph on "
                "every rank and shard it"
            )
        if part.kind == "spacing" and part.shape is None:
            raise DomainError(
                "the first cell of a part reaches back to a point of the rank before, which "
                "timestamps of the part alone do not have; shard the whole domain, or give masses: "
                "Domain.points(..., measure=masses)"
            )
        shards = Shards.over(mesh, dimension)
        facts = {"same": {**part._common(), "shape": shape}, "points": part.size}
        sizes = tuple(other["points"] for other in agreed(facts, shards))
        if sum(sizes) < shards.count:
            even_sizes(sum(sizes), shards.count)
        mask = part._mask
        if mask is not None and mask.shape[-2:] != (part.size, sum(sizes)):
            raise ShapeError(
                f"pairs of a part must have shape (..., {part.size}, {sum(sizes)}), its queries "
                f"and all keys; got {tuple(mask.shape)}"
            )
        return replace(part, shape=None, shards=replace(shards, sizes=sizes, extents=shape))

    def _common(self) -> dict[str, Any]:
        """What the parts of one domain have in common."""
        return {
            "dimension": self.dim,
            "dtype": str(self.positions.dtype),
            "batch": self.batch,
            "measure": self.kind,
            "causal": self.causal,
            "padding": self.valid is not None,
            "reach": self.reach,
            "pairs": None if self._mask is None else tuple(self._mask.shape[:-2]),
        }

    def refuse_shards(self, what: str) -> None:
        """DomainError where ``what`` needs the whole domain and this is one rank's part of it."""
        if self.shards is not None:
            raise DomainError(
                f"{what} needs a whole domain; this one is a part of {self.shards.total} points "
                f"that lie over {self.shards.count} ranks"
            )

    # --- facts ------------------------------------------------------------------------------------

    @property
    def sparse(self) -> bool:
        """Whether a point sees few others: by edges or within a reach."""
        return isinstance(self.pairs, Edges) or self.reach is not None

    @property
    def _mask(self) -> Tensor | None:
        """The pairs where they are a dense mask or bias."""
        return self.pairs if isinstance(self.pairs, Tensor) else None

    @property
    def size(self) -> int:
        """Number of points N, padding included."""
        return self.positions.shape[-2]

    @property
    def dim(self) -> int:
        """Dimension p of a position."""
        return self.positions.shape[-1]

    @property
    def batch(self) -> int | None:
        """Batch size of whatever is batched, or None where every batch element shares
        the domain.
        """
        shapes = (self.positions.shape[:-2], self.measure.shape[:-1])
        sizes = [shape[0] for shape in shapes if shape]
        if self.valid is not None and self.valid.dim() == 2:
            sizes.append(self.valid.shape[0])
        return max(sizes) if sizes else None

    def _rules(self) -> tuple[bool, bool]:
        """Whether masses are equal, and whether they are renormalised."""
        if self.kind not in MEASURES:
            raise DomainError(f"unknown measure {self.kind!r}{suggest(str(self.kind), MEASURES)}")
        return MEASURES[self.kind]

    def __repr__(self) -> str:
        """Sizes and facts, no positions.

        Example:
            >>> Domain.grid(2, 3)
            Domain(6 points in 2 dimensions, grid 2 × 3, uniform measure, float32, cpu)
        """
        facts = [f"{self.size} points in {self.dim} dimension{'s' if self.dim != 1 else ''}"]
        if self.batch is not None:
            facts.insert(0, f"batch of {self.batch}")
        if self.shape is not None:
            kind = "grid" if len(self.shape) > 1 else "line"
            facts.append(f"{kind} {' × '.join(map(str, self.shape))}")
        facts.append(f"{self.kind} measure")
        present = {"causal": self.causal, "padding": self.valid, "pairs": self.pairs}
        facts += [name for name, x in present.items() if x is not None and x is not False]
        if isinstance(self.pairs, Edges):
            facts[facts.index("pairs")] = f"{self.pairs.count} edges"
        if self.reach is not None:
            facts.append(f"reach {self.reach}")
        if self.shards is not None:
            facts.append(f"rank {self.shards.rank} of {self.shards.count}")
        dtype = str(self.positions.dtype).removeprefix("torch.")
        return f"Domain({', '.join([*facts, dtype, str(self.positions.device)])})"

    def _valid_or_true(self, batch: int) -> Tensor:
        if self.valid is None:
            return torch.ones(batch, self.size, dtype=torch.bool, device=self.positions.device)
        return self.valid.expand(batch, -1)

    # --- change -----------------------------------------------------------------------------------

    def replace(self, **changes) -> Domain:
        """A copy with some fields changed, unchecked: ``domain.replace(causal=True)``.

        New masses on a domain of equal ones make it ``probability`` (renormalised as before) or
        ``weighted``.
        """
        fields = [f.name for f in dataclasses.fields(self)]
        for name in changes:
            if name not in fields:
                raise DomainError(f"a domain has no field {name!r}{suggest(name, fields)}")
        equal, renormalised = self._rules()
        if "measure" in changes and equal:
            changes.setdefault("kind", "probability" if renormalised else "weighted")
        return replace(self, **changes)

    def unpadded(self) -> Domain:
        """The same points without a mask that hides none of them: operators then take their forms
        for whole samples. The mask is looked at on the CPU, in eager code; elsewhere, and on a part
        of a sharded domain, whose other parts may have padding, the domain is left as it is.

        Example:
            >>> mask = torch.tensor([[True, True], [True, True]])
            >>> Domain.line(2).replace(valid=mask).unpadded().valid is None
            True
            >>> Domain.line(2).replace(valid=~mask).unpadded().valid.tolist()
            [[False, False], [False, False]]
        """
        valid = self.valid
        if valid is None or self.shards is not None or not cheap_to_read(valid):
            return self
        return replace(self, valid=None) if bool(valid.all()) else self

    @checked(DomainError)
    def with_masses(self, measure: Tensor, *, normalised: bool = False) -> Domain:
        """The same points with other masses, taken as they are or renormalised over what a query
        sees.
        """
        return replace(self, measure=measure, kind="probability" if normalised else "weighted")

    def to(self, *args, **kwargs) -> Domain:
        """Move tensors as :meth:`torch.Tensor.to` does; masks keep their dtype."""
        moved = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Edges):
                moved[field.name] = value.to(*args, **kwargs)
            if isinstance(value, Tensor):
                result = value.to(*args, **kwargs)
                moved[field.name] = result if value.is_floating_point() else value.to(result.device)
        return replace(self, **moved)

    def dense(self) -> Domain:
        """The same domain with a mask or bias of all pairs instead of edges or a reach. O(N²).

        Raises:
            DomainError: more pairs than fit into memory; features of edges, which no mask holds.

        Example:
            >>> Domain.line(3, reach=0).dense().pairs.tolist()
            [[True, False, False], [False, True, False], [False, False, True]]
        """
        if self.reach is not None:
            quadrature = self.quadrature()
            seen = quadrature.dense().density
            assert seen is not None
            pairs = seen > 0
            if pairs.shape[:2] == (1, 1):
                pairs = pairs[0, 0]
            return replace(self, pairs=pairs, reach=None)
        if not isinstance(self.pairs, Edges):
            return self
        if self.pairs.features is not None or self.pairs.shift is not None:
            raise DomainError(
                "expected edges without features or images to write out as a mask, got some; keep "
                "the edges"
            )
        return replace(self, pairs=self.pairs.dense())

    def __getitem__(self, index) -> Domain:
        """The sub-domain at a slice of indices; ``domain[:t]`` is the prefix a causal operator has
        seen after t points.
        """
        if not isinstance(index, slice) or (index.step is not None and index.step < 1):
            raise DomainError(
                f"a domain is cut by a forward slice, such as domain[:t]; got {index!r}"
            )
        self.refuse_shards("a slice")
        positions = self.positions[..., index, :]
        return replace(
            self,
            positions=positions,
            measure=self.measure[..., index],
            valid=None if self.valid is None else self.valid[..., index],
            pairs=_cut_pairs(self.pairs, index, self.size),
            shape=(positions.shape[-2],)
            if self.shape is not None and len(self.shape) == 1 and index.step in (None, 1)
            else None,
        )

    # --- what is kept between calls ---------------------------------------------------------------

    def kept(self, key: object, make: Callable[[], Kept]) -> Kept:
        """``make()``, a function of this domain alone, kept until one of its tensors is written to.

        Made anew where autograd follows a tensor, under tracing, transforms and modes. Copies,
        pickles and :meth:`replace` begin with nothing kept.
        """
        pairs = self.pairs.tensors() if isinstance(self.pairs, Edges) else [self.pairs]
        now = _versions((self.positions, self.measure, self.valid, *pairs))
        if now is None:
            return make()
        memo = self.__dict__.get("_memo")
        if memo is None or memo[0] != now:
            memo = (now, {})
            object.__setattr__(self, "_memo", memo)
        if key not in memo[1]:
            with torch.inference_mode(False):  # what is kept may meet autograd later
                memo[1][key] = make()
        return memo[1][key]

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in self.__dict__.items() if name != "_memo"}

    # --- integration ------------------------------------------------------------------------------

    def quadrature(
        self, query_domain: Domain | None = None, *, dtype: torch.dtype | None = None
    ) -> Quadrature:
        """Weights with which a query of ``query_domain`` (default: this domain) integrates over
        this domain.

        Measure, padding, causality and pairs are combined here, and for one rank's part of a domain
        in :func:`fredholm.distributed.part.part_quadrature`. O(N) unless
        ``pairs`` is given or two domains are compared in time. ``pairs`` of this domain are used
        for both; their shape must fit the queries.
        """
        if self.shards is not None:
            self.refuse_shards("quadrature()")
        if query_domain is None:
            return self.kept(("quadrature", dtype), lambda: self._quadrature(None, dtype))
        if not isinstance(query_domain, Domain):
            raise DomainError(refuse_kind("query_domain", query_domain, "a Domain"))
        return self._quadrature(query_domain, dtype)

    def _quadrature(self, query_domain: Domain | None, dtype: torch.dtype | None) -> Quadrature:
        if self.size == 0:
            raise DomainError("the domain has no points; an integral needs at least one")
        equal, renormalised = self._rules()
        dtype = dtype or self.measure.dtype
        mass = self.measure.to(dtype).reshape(-1, self.size)
        if self.valid is not None:
            mass = torch.where(self.valid, mass, 0.0)
        query_time, key_time = self._times(query_domain)
        if self.sparse:
            queries = self.size if query_domain is None else query_domain.size
            return self._sparse_quadrature(mass, query_time, key_time, queries)
        density, log_density, visible = self._density(
            dtype, self.size if query_domain is None else query_domain.size
        )
        scale = None
        if renormalised:
            scale = self._scale(
                mass, query_time, key_time, visible, triangular=query_domain is None
            )
            if scale is None:
                mass = mass * reciprocal(mass.sum(-1, keepdim=True))
        return Quadrature(
            mass=mass,
            scale=scale,
            query_time=query_time,
            key_time=key_time,
            density=density,
            log_density=log_density,
            valid=self.valid,
            equal=equal and not self.measure.requires_grad,
            triangular=self.causal and query_domain is None,
        )

    def _sparse_quadrature(
        self, mass: Tensor, query_time: Tensor | None, key_time: Tensor | None, queries: int
    ) -> Quadrature:
        """The quadrature of a domain with edges or a reach: nothing in it is N²."""
        equal, renormalised = self._rules()
        common: dict[str, Any] = {
            "mass": mass,
            "query_time": query_time,
            "key_time": key_time,
            "valid": self.valid,
            "equal": equal and not self.measure.requires_grad,
            "triangular": self.causal and query_time is key_time,
        }
        if isinstance(self.pairs, Edges):
            edges = self.pairs
            if (edges.queries, edges.keys) != (queries, self.size):
                raise ShapeError(
                    f"expected edges of {queries} queries and {self.size} keys, got {edges!r}; "
                    "search with source.near(queries, ...) for queries on another domain"
                )
            if query_time is not None and key_time is not None:
                edges = _ordered_edges(edges, query_time, key_time)
            scale = reciprocal(mass_on_edges(mass, edges)) if renormalised else None
            return Quadrature(scale=scale, edges=edges, **common)

        if queries != self.size or (query_time is not key_time):
            raise DomainError(
                "expected queries at the domain's own points beside reach, got another domain; "
                "use near(queries, radius=...)"
            )
        assert self.reach is not None
        rank = torch.arange(self.size, device=mass.device)[None]
        if self.valid is not None:
            rank = self.valid.long().cumsum(-1) - 1
        after = 0 if self.causal else self.reach
        scale = None
        if renormalised:
            scale = reciprocal(mass_in_reach(mass, self.valid, self.reach, after))[:, None]
        return Quadrature(scale=scale, reach=(self.reach, after), rank=rank, **common)

    def _times(self, query_domain: Domain | None) -> tuple[Tensor | None, Tensor | None]:
        if not self.causal:
            return None, None
        if query_domain is None:
            index = torch.arange(self.size, device=self.positions.device, dtype=torch.float32)[None]
            return index, index
        return tuple(d.positions[..., 0].detach().reshape(-1, d.size) for d in (query_domain, self))  # type: ignore

    def _density(
        self, dtype: torch.dtype, queries: int, keys: int | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        if self.pairs is None:
            return None, None, None
        assert isinstance(self.pairs, Tensor)
        keys = self.size if keys is None else keys
        if self.pairs.shape[-2:] != (queries, keys):
            need = f"(..., {queries}, {keys})"
            raise ShapeError(
                f"pairs must have shape {need} for these queries, got {tuple(self.pairs.shape)}"
            )
        pairs = (
            self.pairs
            if self.pairs.dim() == 4
            else self.pairs.reshape(-1, 1, *self.pairs.shape[-2:])
        )
        if pairs.dtype == torch.bool:
            log_density = torch.zeros(pairs.shape, dtype=dtype, device=pairs.device).masked_fill(
                ~pairs, -torch.inf
            )
            return pairs.to(dtype), log_density, pairs
        pairs = pairs.to(dtype)
        return pairs.exp(), pairs, pairs > -torch.inf

    @staticmethod
    def _scale(mass, query_time, key_time, visible, triangular: bool) -> Tensor | None:
        """One over the mass each query sees, (1 | B, 1 | H, Nq); None where all queries see all
        keys.
        """
        if query_time is None and visible is None:
            return None
        if visible is None and triangular:
            return reciprocal(mass.cumsum(-1))[:, None]
        seen = mass[:, None, None, :]
        if query_time is not None:
            seen = torch.where((key_time[:, None, :] <= query_time[:, :, None])[:, None], seen, 0.0)
        if visible is not None:
            seen = torch.where(visible, seen, 0.0)
        return reciprocal(seen.sum(-1))

    def validate(self) -> Domain:
        """Check values, eagerly, where data enters; returns the domain itself.

        Raises:
            DomainError: an empty domain, non-finite positions, negative or non-finite masses, zero
                total mass, unsorted or repeated timestamps, NaN in pairs.
            ShapeError: shapes or devices that do not fit.
        """
        mask = self.pairs if isinstance(self.pairs, Tensor) else None
        check_shapes(self.positions, self.measure, self.valid, mask)
        if isinstance(self.pairs, Edges):
            self.pairs.check()
        timestamps = self.kind == "spacing" and self.dim == 1 and not self.shape
        check_values(self.positions, self.measure, self.valid, mask, sorted_=timestamps)
        return self


def default_line(
    n: int,
    *,
    length: float | None = None,
    causal: bool = False,
    measure: str = "uniform",
    device: torch.device,
    dtype: torch.dtype,
) -> Domain:
    """:meth:`Domain.line` for an operator that was given no domain: of the last lines one object
    each, as long as nobody writes to their tensors.

    Example:
        >>> place = {"device": torch.device("cpu"), "dtype": torch.float32}
        >>> default_line(4, **place) is default_line(4, **place)
        True
    """
    if _versions(()) is None:
        return Domain.line(
            n, length=length, causal=causal, measure=measure, device=device, dtype=dtype
        )
    line = _line(n, length, causal, measure, device, dtype)
    used = (line.positions, line.measure)
    if any(part._version or part.requires_grad for part in used):
        _line.cache_clear()
        line = _line(n, length, causal, measure, device, dtype)
    return line


@lru_cache(maxsize=64)
def _line(
    n: int,
    length: float | None,
    causal: bool,
    measure: str,
    device: torch.device,
    dtype: torch.dtype,
) -> Domain:
    with torch.inference_mode(False):
        return Domain.line(
            n, length=length, causal=causal, measure=measure, device=device, dtype=dtype
        )


def _pad(x: Tensor, rows: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, 0, 0, rows))


def _transformed() -> bool:
    """Whether a transform of torch.func or a level of forward mode is open."""
    return _functorch.get_dynamic_layer_stack_depth() > 0 or forward_ad._current_level >= 0


def _versions(tensors: Iterable[Tensor | None]) -> list[int] | None:
    """How often each tensor was written to: what is computed from them now holds until that
    changes. None where it must not be kept.

    That is: while code is traced, transformed or watched by a mode, while a CUDA graph is captured,
    for subclasses, and where autograd follows a tensor. An inference tensor does not say when it is
    written to.
    """
    if torch.compiler.is_compiling() or _transformed() or torch._C._len_torch_dispatch_stack():
        return None
    result = []
    for x in tensors:
        if x is None:
            continue
        if type(x) is not Tensor or x.requires_grad or x.is_inference():
            return None
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        result.append(x._version)
    return result


def _cells(time: Tensor, real: Tensor, causal: bool) -> Tensor:
    """Length of each real point's cell: the gap before it, or Voronoi; an end takes its one gap, a
    lone point 1, and points that are all at one time share it.
    """
    first = torch.full_like(time[..., :1], -torch.inf)
    before = torch.where(real, time, -torch.inf).cummax(-1).values
    left = time - torch.cat([first, before[..., :-1]], -1)
    has_left = left < torch.inf
    if causal:
        return torch.where(has_left, left, 1.0)
    after = -torch.where(real, -time, -torch.inf).flip(-1).cummax(-1).values.flip(-1)
    right = torch.cat([after[..., 1:], -first], -1) - time
    has_right = right < torch.inf
    middle = torch.where(
        has_left & has_right, (left + right) / 2, torch.where(has_left, left, right)
    )
    cells = torch.where(has_left | has_right, middle, 1.0)
    together = torch.where(real, cells, 0.0).sum(-1, keepdim=True) > 0
    return torch.where(together, cells, 1.0 / real.sum(-1, keepdim=True).clamp_min(1))


def _neighbours(
    positions: Tensor,
    valid: Tensor | None,
    radius: float | None,
    neighbours: int | None,
    box: Sequence[float] | None,
    **queries: Tensor | None,
) -> Edges:
    """The edges of one of the two searches."""
    if (radius is None) == (neighbours is None):
        got = f"radius={radius}, neighbours={neighbours}"
        raise DomainError(f"expected a radius or a number of neighbours, got {got}")
    if radius is not None:
        return radius_edges(positions, radius, valid=valid, box=box, **queries)
    assert neighbours is not None
    return nearest_edges(positions, neighbours, valid=valid, box=box, **queries)


def _with_loops(
    edge_index: Tensor,
    n: int,
    weight: Tensor | None,
    features: Tensor | None,
    loop_features: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Edges with one loop per node. Loops of the graph stay where they carry a weight or features,
    once per node; otherwise a node sees itself once, however many loops it had.
    """
    loop = edge_index[0] == edge_index[1]
    missing = torch.ones(n, dtype=torch.bool, device=edge_index.device)
    if weight is None and features is None:
        edge_index = edge_index[:, ~loop]
    else:
        missing[edge_index[0, loop]] = False
    own = missing.nonzero()[:, 0]
    edge_index = torch.cat([edge_index, own.to(edge_index.dtype).expand(2, -1)], -1)
    if weight is not None:
        weight = torch.cat([weight, weight.new_ones(len(own))])
    if features is not None:
        added = features.new_zeros(n, features.shape[1])
        if loop_features is not None:
            added = loop_features.to(features.dtype).expand(n, features.shape[1])
        features = torch.cat([features, added[own]])
    return edge_index, weight, features


def _check_edges(edges: Edges, positions: Tensor) -> None:
    """ShapeError unless edges are between a domain's points, on their device."""
    n = positions.shape[-2]
    if edges.keys != n:
        raise ShapeError(f"expected edges with {n} keys, one per point, got {edges!r}")
    if edges.source.device != positions.device:
        raise ShapeError(
            f"expected edges on {positions.device}, got {edges.source.device}; move them with "
            "edges.to(device)"
        )
    if positions.dim() == 3 and edges.batch not in (1, positions.shape[0]):
        raise ShapeError(
            f"expected edges of {positions.shape[0]} graphs or of one, got {edges.batch}"
        )


def _ordered_edges(edges: Edges, query_time: Tensor, key_time: Tensor) -> Edges:
    """The edges with those from later points hidden."""
    target = edges.targets()
    graph = torch.div(target, edges.queries, rounding_mode="floor")
    query = query_time[graph.clamp(max=query_time.shape[0] - 1), target - graph * edges.queries]
    key = key_time[graph.clamp(max=key_time.shape[0] - 1), edges.source]
    density = edges.log_density
    if density is None:
        density = torch.zeros(edges.count, device=target.device)
    before = key <= query
    if density.dim() == 2:
        before = before[:, None]
    return edges.with_density(torch.where(before, density, -torch.inf))


def _cut_pairs(pairs: Tensor | Edges | None, index: slice, n: int) -> Tensor | Edges | None:
    """The pairs between the points of a slice."""
    if isinstance(pairs, Edges):
        chosen = torch.arange(n, device=pairs.source.device)[index]
        return pairs.select(chosen, chosen)
    return None if pairs is None else pairs[..., index, index]


def _collate_pairs(domains: Sequence[Domain], n: int) -> Tensor | Edges | None:
    """Pairs (B, H | 1, n, n) of unbatched domains; where only some are log-densities, masks become
    0 and -inf. Where one has edges, all become edges.
    """
    if all(d.pairs is None for d in domains):
        return None
    if any(isinstance(d.pairs, Edges) for d in domains):
        return Edges.collate([_edges_of(d) for d in domains])
    stack = []
    for d in domains:
        pairs = d.pairs
        assert not isinstance(pairs, Edges)
        if pairs is None:
            pairs = torch.ones(d.size, d.size, dtype=torch.bool, device=d.positions.device)
        if pairs.dim() > 2 and pairs.shape[0] > 1:
            raise DomainError(
                f"collate needs unbatched pairs, (N, N) or (1, H, N, N); got {tuple(pairs.shape)}"
            )
        stack.append(pairs.reshape(1, -1, *pairs.shape[-2:]))
    if any(p.is_floating_point() for p in stack):
        dtype = next(p.dtype for p in stack if p.is_floating_point())
        empty = [torch.zeros_like(p, dtype=dtype) for p in stack]
        stack = [
            p if p.is_floating_point() else e.masked_fill(~p, -torch.inf)
            for p, e in zip(stack, empty)
        ]
    heads = max(p.shape[1] for p in stack)
    pad = [(0, n - p.shape[-1], 0, n - p.shape[-1]) for p in stack]
    padded = [torch.nn.functional.pad(p, size) for p, size in zip(stack, pad)]
    return torch.cat([p.expand(1, heads, -1, -1) for p in padded])


def _edges_of(domain: Domain) -> Edges:
    """A domain's pairs as edges."""
    if isinstance(domain.pairs, Edges):
        return domain.pairs
    if domain.pairs is not None:
        return Edges.of_mask(domain.pairs)
    ones = torch.ones(domain.size, domain.size, dtype=torch.bool, device=domain.positions.device)
    return Edges.of_mask(ones)


def _normalised(mass: Tensor, domain: Domain, batch: int) -> Tensor:
    mass = mass if domain.valid is None else torch.where(domain.valid, mass.expand(batch, -1), 0.0)
    return mass * reciprocal(mass.sum(-1, keepdim=True))


register_dataclass(Domain, serialized_type_name="fredholm.Domain")
