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
from .errors import DomainError, ShapeError, suggest
from .quadrature import Quadrature, reciprocal
from .validation import cheap_to_read, check_forward, check_shapes, check_values, positive

Kept = TypeVar("Kept")

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
            (Nq, Nk), (B, Nq, Nk) or (B | 1, H | 1, Nq, Nk), or None.
        causal: within the domain a point sees the points up to its own index; from another domain,
            those whose first coordinate (time) is not later.
        shape: extents of a regular grid in row-major order, or None.
        kind: the measure's name. ``uniform``: equal masses, total mass 1 over what a query sees;
            ``counting``: mass 1 a point; ``spacing``: the distance to the neighbours, never
            renormalised; ``weighted``: masses as given; ``probability``: masses as given,
            renormalised over what a query sees.
        shards: where these are one rank's points of a domain over several processes, who has which;
            see :meth:`shard`. ``pairs`` then has this rank's queries and all keys.

    Example:
        >>> domain = Domain.grid(2, 3)
        >>> domain.positions.shape, float(domain.quadrature().weights().sum())
        (torch.Size([6, 2]), 1.0)
    """

    positions: Tensor
    measure: Tensor
    valid: Tensor | None = None
    pairs: Tensor | None = None
    causal: bool = False
    shape: tuple[int, ...] | None = None
    kind: str = "uniform"
    shards: Shards | None = None

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
        pairs: Tensor | None = None,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Domain:
        """n points at ``index / length``; ``length`` (default n) is a fixed scale, so that a prefix
        keeps its positions.

        Example:
            >>> Domain.line(4).positions.squeeze(-1).tolist()
            [0.0, 0.25, 0.5, 0.75]
        """
        positive(n, "line(n)")
        if length is not None and not length > 0:
            raise DomainError(f"line(length=...) needs a positive scale, got {length}")
        step = 1.0 / (n if length is None else length)
        dtype = dtype or torch.get_default_dtype()
        positions = torch.arange(n, device=device, dtype=dtype)[:, None] * step
        return cls._build(
            positions, measure, step, causal=causal, shape=(n,), valid=valid, pairs=pairs
        )

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
        pairs: Tensor | None = None,
    ) -> Domain:
        """Any points: ``positions`` (N, p) or (B, N, p); ``measure`` a name or a tensor of masses
        taken as they are.

        Example:
            >>> Domain.points(torch.rand(2, 5, 3)).size
            5
        """
        return cls._build(positions, measure, None, causal=causal, valid=valid, pairs=pairs)

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
        causal: bool = False,
        measure: str | Tensor = "uniform",
        valid: Tensor | None = None,
    ) -> Domain:
        """n nodes whose ``edge_index`` (2, E), rows (source, target), says which sources a target
        sees.

        An edge that comes k times counts k times, as in message passing: ``pairs`` is then the
        logarithm of the count, otherwise a mask. With ``self_loops`` every node sees itself once.
        Without ``positions`` every node sits at the origin: a graph has no coordinates of its own.
        Memory O(n²).

        Example:
            >>> Domain.graph(torch.tensor([[0], [1]]), 2).pairs.tolist()
            [[True, False], [True, True]]
        """
        positive(n, "graph(n)")
        if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.is_floating_point():
            got = f"{tuple(edge_index.shape)} {edge_index.dtype}"
            raise DomainError(
                f"graph needs integer edge_index (2, E), rows (source, target); got {got}"
            )
        if edge_index.numel() and (int(edge_index.min()) < 0 or int(edge_index.max()) >= n):
            low, high = int(edge_index.min()), int(edge_index.max())
            raise DomainError(
                f"graph edges must name nodes 0 to {n - 1}, got indices from {low} to {high}"
            )
        if positions is None:
            positions = torch.zeros(n, 1, device=edge_index.device)
        check_shapes(positions)
        edges = torch.zeros(n, n, dtype=positions.dtype, device=edge_index.device)
        one = torch.ones((), dtype=edges.dtype, device=edges.device)
        edges.index_put_((edge_index[1], edge_index[0]), one, accumulate=True)
        if self_loops:
            edges.fill_diagonal_(1.0)
        # A message passes once per edge, so that a repeated edge is a pair of larger density.
        pairs = edges.log() if bool((edges > 1).any()) else edges > 0
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
        if a.causal or b.causal or a.pairs is not None or b.pairs is not None:
            raise DomainError(
                "join takes domains without order or pairs; set them on the union with replace(...)"
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
        )

    @classmethod
    def _build(
        cls, positions, measure, spacing, *, causal=False, shape=None, valid=None, pairs=None
    ) -> Domain:
        check_shapes(positions, measure if isinstance(measure, Tensor) else None, valid, pairs)
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
            pairs=None if self.pairs is None else self.pairs[..., part, :],
            shape=None,
            shards=shards,
        )

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
        if part.pairs is not None and part.pairs.shape[-2:] != (part.size, sum(sizes)):
            raise ShapeError(
                f"pairs of a part must have shape (..., {part.size}, {sum(sizes)}), its queries "
                f"and all keys; got {tuple(part.pairs.shape)}"
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
            "pairs": None if self.pairs is None else tuple(self.pairs.shape[:-2]),
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
            if isinstance(value, Tensor):
                result = value.to(*args, **kwargs)
                moved[field.name] = result if value.is_floating_point() else value.to(result.device)
        return replace(self, **moved)

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
            pairs=None if self.pairs is None else self.pairs[..., index, index],
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
        now = _versions((self.positions, self.measure, self.valid, self.pairs))
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
        check_shapes(self.positions, self.measure, self.valid, self.pairs)
        timestamps = self.kind == "spacing" and self.dim == 1 and not self.shape
        check_values(self.positions, self.measure, self.valid, self.pairs, sorted_=timestamps)
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


def _collate_pairs(domains: Sequence[Domain], n: int) -> Tensor | None:
    """Pairs (B, H | 1, n, n) of unbatched domains; where only some are log-densities, masks become
    0 and -inf.
    """
    if all(d.pairs is None for d in domains):
        return None
    stack = []
    for d in domains:
        pairs = d.pairs
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


def _normalised(mass: Tensor, domain: Domain, batch: int) -> Tensor:
    mass = mass if domain.valid is None else torch.where(domain.valid, mass.expand(batch, -1), 0.0)
    return mass * reciprocal(mass.sum(-1, keepdim=True))


register_dataclass(Domain, serialized_type_name="fredholm.Domain")
