"""Domains of signals: positions, measure, padding, order and pairs.

Longer than other files: the constructors, each with its formula and an example, belong to one
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
from .distributed.shards import Shards, agreed, checked_sizes, checksum, even_sizes
from .edges import (
    Edges,
    check_edge_features,
    check_edge_index,
    check_weight,
    moved_fields,
)
from .errors import DomainError, ShapeError, suggest
from .measures import MEASURES, AllKeys, MeasureRules, Times, cell_lengths
from .meshes import Mesh, check_on_sphere, great_circle_radius, sphere_areas
from .notebook import NotebookTable
from .pairs import (
    GraphParts,
    Pairs,
    add_loops,
    check_edges,
    collate_pairs,
    hide_later,
    search_edges,
    slice_pairs,
)
from .quadrature import PairDensity, Quadrature, mass_in_reach, mass_on_edges, reciprocal
from .validation import cheap_to_read, check_forward, check_shapes, check_values, positive

Kept = TypeVar("Kept")

DENSE_NODES = 1024
"""A graph of more nodes has its pairs as edges, unless it is asked for a mask."""


@dataclass(frozen=True, eq=False, repr=False)
class Domain(NotebookTable):
    r"""A sampled domain: points, the mass of each, which are real, and who sees whom.

    An operator integrates over it, :math:`\int f(x, y)\,d\mu(y) \approx \sum_j w_j f(x, y_j)`;
    :meth:`quadrature` makes the weights. ``__init__`` checks nothing, so that traced code may build
    domains; the constructors (:meth:`line`, :meth:`grid`,
    :meth:`points`, :meth:`timestamps`, :meth:`graph`, :meth:`join`) check shapes, and
    :meth:`validate` checks values.

    Attributes:
        positions: coordinates, (N, p) or (B, N, p).
        measure: mass of each point, (N,) or (B, N).
        valid: which points are real rather than padding, (B, N), or None where all are.
        pairs: who sees whom: a boolean mask, or a float *log-density* of the pair measure (an
            additive attention bias; -inf hides a pair; values beyond ±80 leave float32's range),
            (Nq, Nk), (B, Nq, Nk) or (B | 1, H | 1, Nq, Nk); or :class:`fredholm.edges.Edges`, the
            same in memory O(E); or None.
        causal: within the domain a point sees the points up to its own index; from another domain,
            those whose first coordinate (time) is not later.
        shape: extents of a regular grid in row-major order, or None.
        kind: the measure's name. ``uniform``: equal masses, total mass 1 over what a query sees;
            ``counting``: mass 1 per point; ``spacing``: the distance to the neighbours, never
            renormalised; ``weighted``: masses as given; ``probability``: masses as given,
            renormalised over what a query sees.
        shards: which rank owns which points, where these are one rank's points of a domain over
            several processes; see :meth:`shard`. ``pairs`` then has this rank's queries and all
            keys.
        reach: a window: a point sees the points that are at most ``reach`` places before it or,
            without order, after it. Padding is not counted. Never written out as edges.
        timed: positions are the times of :meth:`timestamps`. With the measure ``spacing``, decays
            take the time between points; on every other domain each point is one step.

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
    timed: bool = False

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
        """Return n points at ``index / length``; ``length`` (default n) is a fixed scale, so that a
        prefix keeps its positions.

        With ``reach`` each point sees those at most so many places away: ``2 · reach + 1`` points,
        or ``reach + 1`` of a causal line. Points farther away do not count at all, unlike the
        ``window`` of ``luna`` and ``linear_attention``, beyond which features go on.

        Example:
            >>> Domain.line(4).positions.squeeze(-1).tolist()
            [0.0, 0.25, 0.5, 0.75]
            >>> window = Domain.line(4, causal=True, reach=1)
            >>> window.quadrature().weights()[0, 0, 2].tolist()
            [0.0, 0.5, 0.5, 0.0]
        """
        positive(n, "line(n)")
        if length is None:
            length = n
        if not length > 0:
            raise DomainError(f"expected a positive length of the line, got length={length}")
        step = 1.0 / length
        dtype = dtype or torch.get_default_dtype()
        positions = torch.arange(n, device=device, dtype=dtype)[:, None] * step
        domain = cls._build(
            positions,
            measure,
            step,
            causal=causal,
            shape=(n,),
            valid=valid,
            pairs=pairs,
        )
        if reach is None:
            return domain
        if reach < 0:
            raise DomainError(f"expected a reach of 0 or more, got reach={reach}")
        if pairs is not None:
            raise DomainError(
                f"expected a reach or pairs, got reach={reach} beside pairs; hide in the pairs "
                "what is out of reach"
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
        """Return cell centres of a regular grid on the unit cube, row-major: ``grid(h, w)`` for an
        image.

        Example:
            >>> Domain.grid(1, 2).positions.tolist()
            [[0.5, 0.25], [0.5, 0.75]]
        """
        for n in shape or (0,):
            positive(n, f"grid{shape}")
        dtype = dtype or torch.get_default_dtype()
        axes = [(torch.arange(n, device=device, dtype=dtype) + 0.5) / n for n in shape]
        coordinates = torch.meshgrid(*axes, indexing="ij")
        positions = torch.stack(coordinates, -1).reshape(-1, len(shape))
        cell = 1.0 / positions.shape[0]
        return cls._build(
            positions,
            measure,
            cell,
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
        """Return any points: ``positions`` (N, p) or (B, N, p); ``measure`` is a name, or a tensor
        of masses taken as they are.

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
        searched = radius is not None or neighbours is not None
        if searched and pairs is not None:
            raise DomainError("expected pairs or a search for them, got both; leave one out")
        if box is not None and not searched:
            raise DomainError(
                "expected a radius or neighbours beside box, got neither; add one, or leave box out"
            )
        if searched:
            check_shapes(positions, None, valid)
            pairs = search_edges(
                positions,
                radius=radius,
                neighbours=neighbours,
                valid=valid,
                box=box,
            )
        return cls._build(
            positions,
            measure,
            None,
            causal=causal,
            valid=valid,
            pairs=pairs,
        )

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
        """Return the vertices or cells of a mesh, each with its area or volume as mass, so that the
        sum over points is the integral over the mesh.

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
        if at == "cells" and adjacent:
            raise DomainError(
                "expected at='vertices' beside adjacent, got at='cells'; use radius or neighbours"
            )
        mesh = Mesh(vertices, cells)
        search = {"radius": radius, "neighbours": neighbours}
        if at == "cells":
            return cls.points(
                mesh.cell_centres(),
                measure=mesh.cell_masses(),
                **search,
            )

        pairs = None
        if adjacent:
            n = vertices.shape[0]
            itself = torch.arange(n, device=vertices.device).expand(2, -1)
            both = torch.cat([mesh.edge_index(), itself], -1)
            pairs = Edges.of_index(both, n)
        return cls.points(
            mesh.vertices,
            measure=mesh.vertex_masses(),
            pairs=pairs,
            **search,
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
        """Return points of the unit sphere. The mass of a point is an area, so that a sum over the
        points approximates the integral over the sphere.

        Args:
            points: unit vectors (N, 3), for instance those of
                :func:`fredholm.meshes.latitude_longitude`.
            areas: area of each point's cell on the unit sphere, (N,). By default the area of its
                Voronoi cell: the part of the sphere that is nearer to it than to any other point.
            angle: each point sees the points within this angle, in radians.
            neighbours: each point sees this many nearest points, as in :meth:`points`. Angles and
                straight distances order neighbours alike. Give this or ``angle``, not both.

        Raises:
            DomainError: points off the sphere; an angle outside (0, π].
            MissingExtraError: scipy is missing, which computes Voronoi cells and searches by angle
                or number of neighbours.

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

        # The search measures straight distances: an angle becomes the length of its chord.
        radius = None
        if angle is not None:
            radius = great_circle_radius(angle)
        return cls.points(
            points,
            measure=areas,
            radius=radius,
            neighbours=neighbours,
        )

    def near(
        self,
        queries: Domain,
        *,
        radius: float | None = None,
        neighbours: int | None = None,
    ) -> Domain:
        """Return this domain as the points of another one see it: those within a radius, or the
        nearest. Pass it with the other as ``query_domain``.

        Example:
            >>> source = Domain.points(torch.tensor([[0.0], [1.0], [5.0]]))
            >>> source.near(Domain.points(torch.tensor([[0.4]])), radius=1.0).pairs.row(0).tolist()
            [0, 1]
        """
        if not isinstance(queries, Domain):
            raise DomainError(refuse_kind("queries", queries, "a Domain"))
        if queries.dim != self.dim:
            raise ShapeError(
                "expected two domains in one space, got positions of dimension "
                f"{self.dim} and {queries.dim}"
            )
        self.refuse_shards("near")
        edges = search_edges(
            self.positions,
            radius=radius,
            neighbours=neighbours,
            valid=self.valid,
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
        r"""Return irregular samples at times ``t`` (N,) or (B, N), sorted; the measure is their
        *spacing*, the inverse sample density.

        Causal: :math:`\mu_i = (t_i - t_{i-1}) / step`, :math:`\mu_0 = 1`; otherwise half the
        distance between a point's two neighbours (Voronoi cells, the outer ones doubled). ``step``
        is the time unit of one training sample.

        Raises:
            DomainError: times that go back. They are read on the CPU, in eager code; elsewhere
                :meth:`validate` does, where data enter.

        Reference: CKConv, Eq. 8.

        Example:
            >>> Domain.timestamps(torch.tensor([0.0, 1.0, 3.0])).measure.tolist()
            [1.0, 1.0, 2.0]
        """
        if t.dim() not in (1, 2) or t.shape[-1] == 0:
            raise DomainError(
                f"expected timestamps (N,) or (B, N) with N >= 1, got {tuple(t.shape)}"
            )
        if not step > 0:
            raise DomainError(f"expected a positive time unit, got step={step}")
        real = valid
        if real is None:
            real = torch.ones_like(t, dtype=torch.bool)
        check_shapes(t[..., None], None, valid)

        # Padding may hold any number, NaN included, which must not reach a sum or a gradient.
        time = torch.where(real, t, 0.0)
        mass = torch.where(real, cell_lengths(time / step, real, causal), 0.0)
        if cheap_to_read(mass):
            gaps = mass
            if not causal:
                # Voronoi cells average the two gaps of a point, and hide one that goes back.
                gaps = torch.where(real, cell_lengths(time, real, causal=True), 0.0)
            check_forward(gaps)
        domain = cls._build(
            time[..., None],
            mass,
            None,
            causal=causal,
            valid=valid,
            pairs=pairs,
        )
        return replace(domain, kind="spacing", timed=True)

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
        """Return n nodes with edges ``edge_index`` (2, E), rows (source, target): a target sees its
        sources.

        An edge that comes k times counts k times, as in message passing: ``pairs`` is then the
        logarithm of the count, otherwise a mask. With ``self_loops`` every node sees itself once.
        Without ``positions`` every node sits at the origin: a graph alone has no coordinates.

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
        if sparse is None:
            sparse = n > DENSE_NODES or edge_attr is not None
        if not sparse and edge_attr is not None:
            raise DomainError(
                "expected sparse=True for edges with features, got sparse=False; a mask holds none"
            )
        if positions is None:
            positions = torch.zeros(n, 1, device=edge_index.device)
        check_shapes(positions)
        dtype = positions.dtype

        parts = GraphParts(edge_index, edge_weight, edge_attr)
        if self_loops:
            parts = add_loops(parts, n, loop_attr)
        weight = parts.weight
        if weight is not None:
            weight = weight.to(dtype)
        edges = Edges.of_index(
            parts.edge_index,
            n,
            weight=weight,
            features=parts.features,
            dtype=dtype,
        )
        pairs: Pairs = edges
        if not sparse:
            pairs = edges.dense()
        return cls.points(
            positions,
            causal=causal,
            measure=measure,
            valid=valid,
            pairs=pairs,
        )

    @classmethod
    @checked(DomainError)
    def join(
        cls,
        a: Domain,
        b: Domain,
        *,
        balance: tuple[float, float] | None = None,
    ) -> Domain:
        """Return the union of two domains in one space, points of ``a`` first. ``balance`` gives
        the total mass of each side.

        Without ``balance`` masses are concatenated as they are, and two uniform domains become one
        uniform domain; masses of spacing are kept as ``weighted`` ones; measures that are
        renormalised do not mix without it.

        Example:
            >>> grid, points = Domain.grid(1, 3), Domain.points(torch.rand(1, 2))
            >>> both = Domain.join(grid, points, balance=(0.5, 0.5))
            >>> both.quadrature().weights().squeeze().tolist()[-1]
            0.5
        """
        _check_join(a, b, balance)
        batch = max(a.batch or 1, b.batch or 1)
        valid = None
        if a.valid is not None or b.valid is not None:
            valid = torch.cat([a._valid_or_true(batch), b._valid_or_true(batch)], -1)

        positions = [a.positions, b.positions]
        masses = [a.measure, b.measure]
        if a.batch or b.batch:
            positions = [x.expand(batch, -1, -1) for x in positions]
            masses = [mass.expand(batch, -1) for mass in masses]

        # Spacings are those of each side, not the distances in the union.
        kind = a.kind
        if a.kind != b.kind or kind == "spacing":
            kind = "weighted"
        if balance is not None:
            kind = "probability"
            share_of_a = _share_of_mass(masses[0], a.valid, batch)
            share_of_b = _share_of_mass(masses[1], b.valid, batch)
            masses = [share_of_a * balance[0], share_of_b * balance[1]]
        return cls(
            torch.cat(positions, -2),
            torch.cat(masses, -1),
            valid,
            kind=kind,
        )

    @classmethod
    @checked(DomainError)
    def collate(cls, domains: Sequence[Domain]) -> Domain:
        """Return domains of different sizes as one batch, padded to the largest.

        ``valid`` marks the real points; it is None where all domains have the same size. The batch
        has a grid's ``shape`` only where all domains have the same one.

        Args:
            domains: unbatched, of one measure, order, reach and dimension, all or none of them of
                :meth:`timestamps`.

        Raises:
            DomainError: no domains, batched or sharded ones, or domains that differ in one of
                these.

        Example:
            >>> Domain.collate([Domain.line(2), Domain.line(3)]).valid.tolist()
            [[True, True, False], [True, True, True]]
        """
        _check_collate(domains)
        first = domains[0]
        device = first.positions.device
        sizes = [domain.size for domain in domains]
        largest = max(sizes)
        valid = None
        if min(sizes) < largest:
            index = torch.arange(largest, device=device)
            valid = torch.stack([index < size for size in sizes])

        # Padding has position 0 and mass 0.
        positions = [_pad_rows(domain.positions, largest) for domain in domains]
        masses = [_pad_rows(domain.measure[:, None], largest)[:, 0] for domain in domains]
        shape = None
        if all(domain.shape == first.shape for domain in domains):
            shape = first.shape
        return cls(
            positions=torch.stack(positions),
            measure=torch.stack(masses),
            valid=valid,
            pairs=collate_pairs([domain.pairs for domain in domains], sizes, device),
            causal=first.causal,
            shape=shape,
            kind=first.kind,
            reach=first.reach,
            timed=first.timed,
        )

    @classmethod
    def _build(
        cls,
        positions: Tensor,
        measure: str | Tensor,
        spacing: float | None,
        *,
        causal: bool = False,
        shape: tuple[int, ...] | None = None,
        valid: Tensor | None = None,
        pairs: Pairs = None,
    ) -> Domain:
        """Return a domain whose shapes are checked. ``spacing`` is the distance between points
        where it is one number, so that a measure of that name exists.
        """
        masses = None
        if isinstance(measure, Tensor):
            masses = measure
        mask = None
        if isinstance(pairs, Tensor):
            mask = pairs
        check_shapes(positions, masses, valid, mask)
        if isinstance(pairs, Edges):
            check_edges(pairs, positions)
        if valid is not None:
            positions = torch.where(valid[..., None], positions, 0.0)
        if isinstance(measure, Tensor):
            return cls(positions, measure, valid, pairs, causal, shape, "weighted")

        mass_of_name = {"uniform": 1.0, "counting": 1.0}
        if spacing is not None:
            mass_of_name["spacing"] = spacing
        if measure not in mass_of_name:
            raise DomainError(
                f"expected a measure of this domain or a tensor of masses, got the unknown measure "
                f"{measure!r}{suggest(str(measure), mass_of_name)}"
            )
        masses = torch.full(
            positions.shape[-2:-1],
            mass_of_name[measure],
            device=positions.device,
            dtype=positions.dtype,
        )
        return cls(positions, masses, valid, pairs, causal, shape, measure)

    # --- in shards --------------------------------------------------------------------------------

    def shard(
        self,
        mesh: Any,
        *,
        dimension: str | None = None,
        sizes: Sequence[int] | None = None,
    ) -> Domain:
        """Return this rank's part of a domain of which every rank has a copy: a run of consecutive
        points, in the order of the ranks.

        Every rank calls this, with the same domain. Then every rank calls the operator with its
        part and with the features of its points, ``op(u[:, part], domain.shard(mesh))``. The
        responses are those that the operator has at these points on the complete domain. Sharding
        itself exchanges a few facts and checksums per rank, in one message, and no points.

        Args:
            mesh: a torch ``DeviceMesh``.
            dimension: the name of the mesh's dimension to shard over, where it has several.
            sizes: points of each rank, 0 allowed; by default as even as they can be.

        Raises:
            DomainError: no process group, no such mesh or dimension, more ranks than points, sizes
                that do not add up, or another domain on another rank; it names the part of the
                domain that differs, and the ranks.
        """
        self.refuse_shards("shard")
        shards = Shards.over(mesh, dimension)
        if sizes is None:
            parts = even_sizes(self.size, shards.count)
        else:
            parts = checked_sizes(sizes, self.size, shards.count)

        # Ranks with different domains would compute a wrong integral without an error.
        facts = {
            **self._common_facts(),
            "points": self.size,
            "sizes": parts,
            "shape": self.shape,
            **self.kept("checksums", self._checksums),
        }
        agreed({"same": facts}, shards)

        # A part of a grid is not a grid, so it has no shape. The shards have the complete extents.
        shards = replace(shards, sizes=parts, extents=self.shape)
        part = slice(shards.start, shards.start + shards.size)
        valid = None
        if self.valid is not None:
            valid = self.valid[:, part]
        return replace(
            self,
            positions=self.positions[..., part, :],
            measure=self.measure[..., part],
            valid=valid,
            pairs=self._pairs_of(part),
            shape=None,
            shards=shards,
        )

    def _pairs_of(self, part: slice) -> Tensor | Edges | None:
        """Return the pairs of the queries in ``part`` with all N keys: rows of the mask or bias,
        (…, n, N), or the edges of these queries.
        """
        if self.pairs is None:
            return None
        if isinstance(self.pairs, Tensor):
            return self.pairs[..., part, :]

        # The queries of a part are numbered from 0 again, so that places no longer tell which keys
        # come later. In causal order the edges from later points are hidden first, in the domain.
        times = self._times(None, AllKeys(self.size))
        edges = self._ordered(self.pairs, times)
        return edges.stretch(part.start, part.stop)

    @staticmethod
    def _ordered(edges: Edges, times: Times) -> Edges:
        """Return edges without those from later points, where there is an order."""
        if times.query is None or times.key is None:
            return edges
        return hide_later(edges, times.query, times.key)

    @classmethod
    def from_shard(
        cls,
        part: Domain,
        mesh: Any,
        *,
        dimension: str | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Domain:
        """Return the part of a rank that has only its own points: the whole domain is the union of
        all ranks' parts, in their order.

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
        if part._has_clock:
            raise DomainError(
                "expected masses that a rank knows by itself, got those of timestamps: the first "
                "cell of a part reaches back to a point of the rank before; shard the whole "
                "domain, or give masses: Domain.points(..., measure=masses)"
            )
        shards = Shards.over(mesh, dimension)
        same = {**part._common_facts(), "shape": shape}
        facts_of_ranks = agreed({"same": same, "points": part.size}, shards)
        sizes = tuple(facts["points"] for facts in facts_of_ranks)
        total = sum(sizes)
        if total < shards.count:
            even_sizes(total, shards.count)  # raises: there are more ranks than points
        mask = part._mask
        if mask is not None and mask.shape[-2:] != (part.size, total):
            raise ShapeError(
                f"expected pairs of a part of shape (..., {part.size}, {total}), its queries and "
                f"all keys, got {tuple(mask.shape)}"
            )
        shards = replace(shards, sizes=sizes, extents=shape)
        return replace(part, shape=None, shards=shards)

    def _common_facts(self) -> dict[str, Any]:
        """Return the facts that all parts of one domain share."""
        mask = self._mask
        pairs = None
        if mask is not None:
            pairs = tuple(mask.shape[:-2])
        return {
            "dimension": self.dim,
            "dtype": str(self.positions.dtype),
            "batch": self.batch,
            "batch of positions": tuple(self.positions.shape[:-2]),
            "batch of masses": tuple(self.measure.shape[:-1]),
            "dtype of masses": str(self.measure.dtype),
            "measure": self.kind,
            "causal": self.causal,
            "padding": self.valid is not None,
            "reach": self.reach,
            "timed": self.timed,
            "pairs": pairs,
        }

    def _checksums(self) -> dict[str, str | tuple | None]:
        """Return checksums of everything that operators read of the domain's tensors, by name."""
        positions = self.positions
        measure = self.measure
        if self.valid is not None:
            # Padding may hold anything.
            positions = torch.where(self.valid[..., None], positions, 0.0)
            measure = torch.where(self.valid, measure, 0.0)
        sums = {
            "values of valid": checksum(self.valid),
            "values of positions": checksum(positions),
            "values of measure": checksum(measure),
            "values of pairs": checksum(self._mask),
            "edges": None,
        }
        edges = None
        if isinstance(self.pairs, Edges):
            edges = self.pairs
            sums["edges"] = (edges.batch, checksum(edges.ptr), checksum(edges.source))
        for name in ("log_density", "features", "shift"):
            sums[f"{name} of edges"] = checksum(getattr(edges, name, None))
        return sums

    def refuse_shards(self, caller: str) -> None:
        """DomainError where ``caller`` needs the whole domain and this is one rank's part of it."""
        if self.shards is not None:
            raise DomainError(
                f"expected a whole domain for {caller}, got a part of {self.shards.total} points "
                f"that lie over {self.shards.count} ranks; call it before sharding"
            )

    # --- facts ------------------------------------------------------------------------------------

    @property
    def sparse(self) -> bool:
        """Whether a point sees few others: by edges or within a reach."""
        return isinstance(self.pairs, Edges) or self.reach is not None

    @property
    def _has_clock(self) -> bool:
        """Whether positions are times, and masses the time between them."""
        return self.timed and self.kind == "spacing" and self.dim == 1

    @property
    def _mask(self) -> Tensor | None:
        """The pairs where they are a dense mask or bias."""
        if isinstance(self.pairs, Tensor):
            return self.pairs
        return None

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
        """Batch size of positions, masses or padding, or None where every batch element shares the
        domain.
        """
        batches = [self.positions.shape[:-2], self.measure.shape[:-1]]
        if self.valid is not None:
            batches.append(self.valid.shape[:-1])
        sizes = [shape[0] for shape in batches if shape]
        if not sizes:
            return None
        return max(sizes)

    def same_as(self, other: Domain) -> bool:
        """Return whether another domain is this one, or a copy that has the same tensors and facts.

        Tensors are compared as objects, and no value is read: domains that were built twice from
        equal numbers are different ones.

        Example:
            >>> line = Domain.line(4)
            >>> line.same_as(line.to("cpu")), line.same_as(Domain.line(4))
            (True, False)
        """
        return other is self or _same_fields(self, other)

    def _rules(self) -> MeasureRules:
        """Return the rules of the domain's measure."""
        if self.kind not in MEASURES:
            raise DomainError(
                f"expected a known kind of measure, got {self.kind!r}"
                f"{suggest(str(self.kind), MEASURES)}"
            )
        return MEASURES[self.kind]

    def __repr__(self) -> str:
        """Sizes and facts, no positions.

        Example:
            >>> Domain.grid(2, 3)
            Domain(6 points in 2 dimensions, grid 2 × 3, uniform measure, float32, cpu)
        """
        facts = []
        if self.batch is not None:
            facts.append(f"batch of {self.batch}")
        dimensions = "1 dimension"
        if self.dim != 1:
            dimensions = f"{self.dim} dimensions"
        facts.append(f"{self.size} points in {dimensions}")
        if self.shape is not None:
            name = "grid"
            if len(self.shape) == 1:
                name = "line"
            facts.append(f"{name} {' × '.join(map(str, self.shape))}")
        facts.append(f"{self.kind} measure")
        if self.causal:
            facts.append("causal")
        if self.valid is not None:
            facts.append("padding")
        if isinstance(self.pairs, Edges):
            facts.append(f"{self.pairs.count} edges")
        elif self.pairs is not None:
            facts.append("pairs")
        if self.reach is not None:
            facts.append(f"reach {self.reach}")
        if self.shards is not None:
            facts.append(f"rank {self.shards.rank} of {self.shards.count}")
        facts.append(str(self.positions.dtype).removeprefix("torch."))
        facts.append(str(self.positions.device))
        return f"Domain({', '.join(facts)})"

    def _valid_or_true(self, batch: int) -> Tensor:
        """Return which points are real, (batch, N), also where all are."""
        if self.valid is None:
            return torch.ones(
                batch,
                self.size,
                dtype=torch.bool,
                device=self.positions.device,
            )
        return self.valid.expand(batch, -1)

    # --- change -----------------------------------------------------------------------------------

    def replace(self, **changes) -> Domain:
        """Return a copy with some fields changed, unchecked: ``domain.replace(causal=True)``.

        New masses on a domain of equal ones make it ``probability`` (renormalised as before) or
        ``weighted``.
        """
        fields = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in fields:
                raise DomainError(
                    f"expected a field of a domain, got {name!r}{suggest(name, fields)}"
                )
        rules = self._rules()
        if "measure" in changes and rules.equal:
            kind = _kind_of_masses(rules.renormalised)
            changes.setdefault("kind", kind)
        return replace(self, **changes)

    def unpadded(self) -> Domain:
        """Return the same points without a mask that hides none of them: operators then take their
        forms for whole samples.

        The mask is read on the CPU, in eager code. Elsewhere, and on a part of a sharded domain,
        whose other parts may have padding, the domain is returned as it is.

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
        if not bool(valid.all()):
            return self
        return replace(self, valid=None)

    @checked(DomainError)
    def with_masses(self, measure: Tensor, *, normalised: bool = False) -> Domain:
        """Return the same points with other masses, taken as they are or renormalised over what a
        query sees.
        """
        return replace(self, measure=measure, kind=_kind_of_masses(normalised))

    def to(self, *args, **kwargs) -> Domain:
        """Move tensors as :meth:`torch.Tensor.to` does; masks keep their dtype."""
        return replace(self, **moved_fields(self, *args, **kwargs))

    def dense(self) -> Domain:
        """Return the same domain with its edges or reach written out as a mask or bias of all
        pairs: O(N²) memory.

        Raises:
            DomainError: more pairs than fit into memory; edges with features or periodic images,
                which a mask cannot represent.

        Example:
            >>> Domain.line(3, reach=0).dense().pairs.tolist()
            [[True, False, False], [False, True, False], [False, False, True]]
        """
        if self.reach is not None:
            # A reach has no other pairs beside it, so the density is 1 where a point is seen.
            density = self.quadrature().dense().density
            assert density is not None
            pairs = density > 0

            # A reach counts real points only: samples with different padding have their own masks,
            # (B, 1, N, N). Otherwise one mask (N, N) serves all.
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
        """Return the sub-domain at a slice of indices; ``domain[:t]`` is the prefix that a causal
        operator has seen after t points. A point sees those of them that it saw before.

        Raises:
            DomainError: another index than a forward slice; steps on a domain with a reach and
                padding.
        """
        if not isinstance(index, slice) or (index.step is not None and index.step < 1):
            raise DomainError(
                f"expected a forward slice of a domain, such as domain[:t], got {index!r}"
            )
        self.refuse_shards("a slice")
        positions = self.positions[..., index, :]
        valid = None
        if self.valid is not None:
            valid = self.valid[..., index]
        step = index.step or 1
        reach = self.reach
        if reach is not None and step > 1:
            if valid is not None:
                raise DomainError(
                    f"expected a slice without steps of a domain with padding and a reach, got a "
                    f"step of {step}: a reach counts real points, and real neighbours would lie "
                    "at different distances; slice domain.dense() instead"
                )
            reach = reach // step
        is_line = self.shape is not None and len(self.shape) == 1
        shape = None
        if is_line and step == 1:
            shape = (positions.shape[-2],)
        return replace(
            self,
            positions=positions,
            measure=self.measure[..., index],
            valid=valid,
            pairs=slice_pairs(self.pairs, index, self.size),
            shape=shape,
            reach=reach,
        )

    # --- results cached with a domain -------------------------------------------------------------

    def kept(self, key: object, make: Callable[[], Kept]) -> Kept:
        """Return ``make()``, a function of this domain alone, cached until one of its tensors is
        written to.

        It is called anew where autograd follows a tensor, under tracing, transforms and modes.
        Copies, pickles and :meth:`replace` begin with an empty cache.
        """
        tensors = [self.positions, self.measure, self.valid, self._mask]
        if isinstance(self.pairs, Edges):
            tensors += self.pairs.tensors()
        now = _versions(tensors)
        if now is None:
            return make()
        memo = self.__dict__.get("_memo")
        if memo is None or memo[0] != now:
            memo = (now, {})
            object.__setattr__(self, "_memo", memo)
        results = memo[1]
        if key not in results:
            # A cached result may meet autograd later, which an inference tensor must not.
            with torch.inference_mode(False):
                results[key] = make()
        return results[key]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_memo"}

    # --- integration ------------------------------------------------------------------------------

    def quadrature(
        self,
        query_domain: Domain | None = None,
        *,
        dtype: torch.dtype | None = None,
    ) -> Quadrature:
        """Return the weights with which a query of ``query_domain`` (default: this domain)
        integrates over this domain.

        Measure, padding, causality and pairs are combined here. O(N) unless ``pairs`` is given or
        two domains are compared in time. ``pairs`` of this domain are used for both; their shape
        must fit the queries. Queries on :meth:`the same domain <same_as>` are in the order of its
        places, and all others in that of first coordinates.

        Raises:
            DomainError: queries on another domain beside ``reach``, which counts places of this
                one.
        """
        self.refuse_shards("quadrature()")
        if query_domain is not None and not isinstance(query_domain, Domain):
            raise DomainError(refuse_kind("query_domain", query_domain, "a Domain"))
        if query_domain is None or self.same_as(query_domain):
            return self.kept(("quadrature", dtype), lambda: self._quadrature(None, dtype=dtype))
        return self._quadrature(query_domain, dtype=dtype)

    def _quadrature(
        self,
        query_domain: Domain | None,
        keys: AllKeys | None = None,
        *,
        dtype: torch.dtype | None = None,
    ) -> Quadrature:
        """Return the weights before any cache, normalised over ``keys``.

        Args:
            query_domain: None for the points of this domain.
            keys: None for those of this domain; else those of all ranks, of which this domain has a
                part. ``density`` and ``log_density`` then have a column for each of them, and in
                causal order ``query_time`` and ``key_time`` are places among them.
            dtype: None for that of the measure.
        """
        if self.size == 0:
            raise DomainError("expected a domain of at least one point to integrate over, got none")
        if keys is None:
            keys = AllKeys(self.size)
        rules = self._rules()
        dtype = dtype or self.measure.dtype
        own_points = query_domain is None
        queries = self.size
        if query_domain is not None:
            queries = query_domain.size

        mass = self.measure.to(dtype).reshape(-1, self.size)
        if self.valid is not None:
            mass = torch.where(self.valid, mass, 0.0)
        times = self._times(query_domain, keys)
        quadrature = Quadrature(
            mass=mass,
            query_time=times.query,
            key_time=times.key,
            valid=self.valid,
            equal=rules.equal and not self.measure.requires_grad,
            triangular=self.causal and own_points,
            clock=self._clock(query_domain),
        )
        if isinstance(self.pairs, Edges):
            return self._on_edges(quadrature, self.pairs, queries)
        if self.reach is not None:
            if query_domain is not None:
                raise DomainError(
                    "expected queries at the domain's own points beside reach, got queries on "
                    f"{query_domain!r}; leave query_domain out, or use near(queries, radius=...)"
                )
            return self._in_reach(quadrature, self.reach)

        density = None
        log_density = None
        if self.pairs is not None:
            density, log_density = self._density(dtype, queries, keys.count)
        scale = None
        if rules.renormalised:
            if log_density is None and times.query is None:
                # Where every query sees every key, one sum serves all, and the masses take it.
                mass = mass * reciprocal(keys.total(mass))
            elif log_density is None and own_points:
                # A point sees the keys up to its own place.
                seen = keys.running_total(mass)
                scale = reciprocal(seen)[:, None]
            else:
                seen = keys.mass_seen(mass, times, log_density, own_points=own_points)
                scale = reciprocal(seen)
        return replace(
            quadrature,
            mass=mass,
            scale=scale,
            density=density,
            log_density=log_density,
        )

    def _on_edges(self, quadrature: Quadrature, edges: Edges, queries: int) -> Quadrature:
        """Return the quadrature of a domain with edges: nothing in it is N²."""
        if (edges.queries, edges.keys) != (queries, self.size):
            raise ShapeError(
                f"expected edges of {queries} queries and {self.size} keys, got {edges!r}; "
                "search with source.near(queries, ...) for queries on another domain"
            )
        times = Times(quadrature.query_time, quadrature.key_time)
        edges = self._ordered(edges, times)
        scale = None
        if self._rules().renormalised:
            seen = mass_on_edges(quadrature.mass, edges)
            scale = reciprocal(seen)
        return replace(quadrature, scale=scale, edges=edges)

    def _in_reach(self, quadrature: Quadrature, reach: int) -> Quadrature:
        """Return the quadrature of a domain with a reach: nothing in it is N²."""
        mass = quadrature.mass
        after = reach
        if self.causal:
            after = 0

        # Padding is not counted: the rank of a point is its number among the real ones.
        rank = torch.arange(self.size, device=mass.device)[None]
        if self.valid is not None:
            rank = self.valid.long().cumsum(-1) - 1
        scale = None
        if self._rules().renormalised:
            seen = mass_in_reach(mass, self.valid, reach, after)
            scale = reciprocal(seen)[:, None]
        return replace(
            quadrature,
            scale=scale,
            reach=(reach, after),
            rank=rank,
        )

    def _clock(self, query_domain: Domain | None) -> Tensor | None:
        """Return the times of the points, (1 | B, N), in an order of :meth:`timestamps`; None where
        points are steps, as on a line.
        """
        if not (self._has_clock and self.causal) or query_domain is not None:
            return None
        return self.positions.reshape(-1, self.size)

    def _times(self, query_domain: Domain | None, keys: AllKeys) -> Times:
        """Return the times that an order compares: places within one domain, first coordinates
        between two.
        """
        if not self.causal:
            return Times(None, None)
        if query_domain is None:
            places = keys.places(self.positions.device)
            return Times(places, places)
        return Times(query_domain._first_coordinate(), self._first_coordinate())

    def _first_coordinate(self) -> Tensor:
        return self.positions[..., 0].detach().reshape(-1, self.size)

    def _density(self, dtype: torch.dtype, queries: int, keys: int) -> PairDensity:
        """Return the density of a dense mask or bias."""
        pairs = self.pairs
        assert isinstance(pairs, Tensor)
        if pairs.shape[-2:] != (queries, keys):
            raise ShapeError(
                f"expected pairs (..., {queries}, {keys}) for these queries, got "
                f"{tuple(pairs.shape)}"
            )
        if pairs.dim() != 4:
            pairs = pairs.reshape(-1, 1, queries, keys)
        if pairs.dtype == torch.bool:
            return PairDensity.of_mask(pairs, dtype)
        pairs = pairs.to(dtype)
        return PairDensity(pairs.exp(), pairs)

    def validate(self) -> Domain:
        """Check values, eagerly, where data enters; returns the domain itself.

        Raises:
            DomainError: an empty domain, non-finite positions, negative or non-finite masses, zero
                total mass, unsorted or repeated timestamps, NaN in pairs.
            ShapeError: shapes or devices that do not fit.
        """
        check_shapes(self.positions, self.measure, self.valid, self._mask)
        if isinstance(self.pairs, Edges):
            self.pairs.check()
        check_values(
            self.positions,
            self.measure,
            self.valid,
            self._mask,
            sorted_=self._has_clock,
        )
        return self


# --- lines that operators make --------------------------------------------------------------------


def default_line(
    n: int,
    *,
    length: float | None = None,
    causal: bool = False,
    measure: str = "uniform",
    device: torch.device,
    dtype: torch.dtype,
) -> Domain:
    """Return :meth:`Domain.line` for an operator that was called without a domain: the same object
    for the same arguments, as long as nobody writes to its tensors.

    Example:
        >>> place = {"device": torch.device("cpu"), "dtype": torch.float32}
        >>> default_line(4, **place) is default_line(4, **place)
        True
    """
    options = {
        "length": length,
        "causal": causal,
        "measure": measure,
        "device": device,
        "dtype": dtype,
    }
    if _versions(()) is None:
        return Domain.line(n, **options)
    line = _cached_line(n, **options)
    tensors = (line.positions, line.measure)
    if any(tensor._version or tensor.requires_grad for tensor in tensors):
        _cached_line.cache_clear()
        line = _cached_line(n, **options)
    return line


@lru_cache(maxsize=64)
def _cached_line(n: int, **options: Any) -> Domain:
    with torch.inference_mode(False):
        return Domain.line(n, **options)


# --- when results may be cached -------------------------------------------------------------------


def _transformed() -> bool:
    """Whether a transform of torch.func or a level of forward mode is open."""
    return _functorch.get_dynamic_layer_stack_depth() > 0 or forward_ad._current_level >= 0


def _versions(tensors: Iterable[Tensor | None]) -> list[int] | None:
    """Return the version counters of the tensors, or None where nothing may be cached.

    PyTorch raises a tensor's counter with each write in place. Results that were computed from the
    tensors stay valid as long as all counters are the same.

    Nothing is cached

    - while code is compiled or exported, under a transform of ``torch.func``, or under a
      ``TorchDispatchMode``, whose tensors may be stand-ins without values of their own;
    - for a tensor that autograd records, because a cached result would hold on to its graph;
    - for a tensor subclass, and for an inference tensor, which has no version counter;
    - while a CUDA graph is captured, whose kernels have not run yet.
    """
    # `_len_torch_dispatch_stack` counts the active TorchDispatchModes.
    if torch.compiler.is_compiling() or _transformed() or torch._C._len_torch_dispatch_stack():
        return None
    versions = []
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) is not Tensor or tensor.requires_grad or tensor.is_inference():
            return None
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        versions.append(tensor._version)
    return versions


# --- comparing domains ----------------------------------------------------------------------------


def _same_fields(a: Domain | Edges, b: Domain | Edges) -> bool:
    """Return whether two records of one class have the same tensors and equal other fields."""
    for field in dataclasses.fields(a):
        one = getattr(a, field.name)
        other = getattr(b, field.name)
        if isinstance(one, Edges) and isinstance(other, Edges):
            same = _same_fields(one, other)
        elif isinstance(one, Tensor) or isinstance(other, Tensor):
            same = one is other
        else:
            same = one == other
        if not same:
            return False
    return True


# --- parts of constructors ------------------------------------------------------------------------


def _kind_of_masses(normalised: bool) -> str:
    """Return the kind of a measure with masses of its own."""
    if normalised:
        return "probability"
    return "weighted"


def _check_join(
    a: Domain,
    b: Domain,
    balance: tuple[float, float] | None,
) -> None:
    """Error where two domains have no union."""
    if balance is not None and min(balance) < 0:
        raise DomainError(f"expected masses of 0 or more in balance, got {tuple(balance)}")
    for domain in (a, b):
        domain.refuse_shards("join")
    if a.dim != b.dim:
        raise DomainError(
            f"expected two domains in one space to join, got positions of dimension {a.dim} and "
            f"{b.dim}"
        )
    for domain in (a, b):
        if domain.causal or domain.pairs is not None or domain.reach is not None:
            raise DomainError(
                f"expected domains without order or pairs or reach to join, got {domain!r}; set "
                "them on the union with replace(...)"
            )
    if None not in (a.batch, b.batch) and a.batch != b.batch:
        raise ShapeError(f"expected domains of one batch size, got {a.batch} and {b.batch}")
    if balance is not None:
        return

    # Each side's masses are relative to its own total, so that the union has no total to divide by.
    renormalised = MEASURES[a.kind].renormalised or MEASURES[b.kind].renormalised
    if a.kind == "probability" or (a.kind != b.kind and renormalised):
        raise DomainError(
            f"expected a balance for the union of {a.kind} and {b.kind} measures, got none; give "
            "balance=(mass of a, mass of b), such as (0.5, 0.5)"
        )


def _check_collate(domains: Sequence[Domain]) -> None:
    """DomainError where domains do not make a batch."""
    if not domains:
        raise DomainError("expected at least one domain to collate, got none")
    for number, domain in enumerate(domains):
        domain.refuse_shards("collate")
        if domain.batch:
            raise DomainError(
                f"expected unbatched domains to collate, got domain {number} with a batch of "
                f"{domain.batch} by its positions, measure or valid; leave padding out of it, "
                "which collate marks itself"
            )
    common = {
        "measure": [domain.kind for domain in domains],
        "order": [domain.causal for domain in domains],
        "reach": [domain.reach for domain in domains],
        "timed (timestamps or not)": [domain.timed for domain in domains],
        "dimension of positions": [domain.dim for domain in domains],
    }
    for name, values in common.items():
        if len(set(values)) > 1:
            raise DomainError(f"expected domains of one {name} to collate, got {values}")


def _share_of_mass(mass: Tensor, valid: Tensor | None, batch: int) -> Tensor:
    """Return masses as shares of the total mass of real points."""
    if valid is not None:
        mass = torch.where(valid, mass.expand(batch, -1), 0.0)
    return mass * reciprocal(mass.sum(-1, keepdim=True))


def _pad_rows(x: Tensor, rows: int) -> Tensor:
    """Return a matrix with rows of zeros added, up to ``rows``."""
    return torch.nn.functional.pad(x, (0, 0, 0, rows - x.shape[0]))


register_dataclass(Domain, serialized_type_name="fredholm.Domain")
