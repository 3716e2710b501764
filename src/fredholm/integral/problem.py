"""One integral: the static facts that are known before any number is, and the tensors.

:meth:`Problem.of` reads both from the arguments of an operator. It is the only place that checks
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..arguments import describe, refuse_kind
from ..distributed import Shards
from ..distributed.part import fill_empty, part_quadrature
from ..domain import MEASURES, Domain
from ..edges import Edges
from ..errors import DomainError, ShapeError
from ..ops.backend import at_least_single, cast, followed, promoted
from ..quadrature import Quadrature, Rows, take_rows
from .heads import weighed

if TYPE_CHECKING:
    from .contract import Kernel

RENORMALISED = tuple(name for name, (_, renormalised) in MEASURES.items() if renormalised)


class OperatorFacts(NamedTuple):
    """What an operator requires of its arguments, beside what its kernel does.

    Attributes:
        dim: width of u, and of the features at the queries.
        dtype: of the operator's parameters, which u must have; None where it has no parameters.
        pointwise: the pointwise term W reads the features at the queries.
        layer: the class of the layer that the operator was made from, or None.
    """

    dim: int
    dtype: torch.dtype | None = None
    pointwise: bool = False
    layer: str | None = None


@dataclass(frozen=True)
class Layout:
    """Where keys and queries live, as far as it is static: what a kernel may refuse.

    Attributes:
        keys, queries: extents of the regular grids that keys and queries form, or None; of a domain
            over several processes, those of the whole.
        cross: queries live on another domain than keys.
        given: that domain came from the caller, not from the kernel's ``output_domain``.
        causal, pairs, padded: whether there is an order, a pair mask or bias, padding.
        measure: the measure's name, as in :class:`fredholm.Domain`.
        fixed: positions are shared by the batch and need no gradient.
        stepping: one point at a time.
        sharded: keys and queries are one rank's part of a domain over several processes.
        edges: the pairs are edges, so that a query sees few keys; ``pairs`` is then true as well.
        reach: how far a query sees along a line, or None; ``pairs`` is then true as well.
        images: keys are seen at their nearest image in a periodic box.
    """

    keys: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None
    cross: bool = False
    given: bool = False
    causal: bool = False
    pairs: bool = False
    padded: bool = False
    measure: str = "uniform"
    fixed: bool = True
    stepping: bool = False
    sharded: bool = False
    edges: bool = False
    reach: int | None = None
    images: bool = False

    @classmethod
    def of(
        cls,
        domain: Domain,
        query_domain: Domain | None = None,
        *,
        given: bool = False,
        stepping: bool = False,
    ) -> Layout:
        """The layout of integrating over ``domain`` at the points of ``query_domain`` (default: the
        same).
        """
        if query_domain is None and not (given or stepping):
            return domain.kept("layout", lambda: cls._of(domain, None, False, False))
        return cls._of(domain, query_domain, given, stepping)

    @classmethod
    def _of(
        cls, domain: Domain, query_domain: Domain | None, given: bool, stepping: bool
    ) -> Layout:
        target = domain if query_domain is None else query_domain
        fixed = domain.positions.dim() == 2 and not followed(domain.positions)
        return cls(
            keys=grid_of(domain),
            queries=grid_of(target),
            cross=query_domain is not None,
            given=given,
            causal=domain.causal,
            pairs=domain.pairs is not None or domain.reach is not None,
            padded=domain.valid is not None,
            measure=domain.kind,
            fixed=fixed,
            stepping=stepping,
            sharded=domain.shards is not None,
            edges=isinstance(domain.pairs, Edges),
            reach=domain.reach,
            images=isinstance(domain.pairs, Edges) and domain.pairs.shift is not None,
        )

    @property
    def sparse(self) -> bool:
        """Whether a query sees few keys, by edges or within a reach."""
        return self.edges or self.reach is not None

    def dense(self) -> Layout:
        """The layout of the same domain with a mask of all pairs."""
        return replace(self, edges=False, reach=None, images=False) if self.sparse else self

    @property
    def grid(self) -> tuple[int, ...] | None:
        """The regular grid at fixed positions that queries and keys share, or None."""
        return self.keys if self.fixed and not (self.cross or self.stepping) else None


class Facts(NamedTuple):
    """All that the choice of a form may depend on: static, so that traced code takes the same form
    as eager code, and never the value of a tensor.

    Attributes:
        layout: where keys and queries live.
        queries, keys: how many there are. Traced lengths may be symbols: comparing them fixes them.
        dtype, device: of the features; the device's type, as ``"cpu"``.
        training: the kernel's mode.
        batch: how many samples come at once.
        tracing: inside torch.compile or torch.export.
        gradients: whether autograd records.
        sparse: whether a query sees few keys, by edges or within a reach.
    """

    layout: Layout
    queries: int = 0
    keys: int = 0
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    training: bool = False
    tracing: bool = False
    gradients: bool = False
    batch: int = 1
    sparse: bool = False

    @classmethod
    def of(cls, layout: Layout, ux: Tensor, uy: Tensor, training: bool) -> Facts:
        """The facts about features ``ux`` and ``uy``, with points on dimension -2 and samples on
        the first of three or more.
        """
        return cls(
            layout,
            ux.shape[-2],
            uy.shape[-2],
            uy.dtype,
            uy.device.type,
            training,
            torch.compiler.is_compiling(),
            torch.is_grad_enabled(),
            uy.shape[0] if uy.dim() > 2 else 1,
            layout.sparse,
        )

    @classmethod
    def on(
        cls,
        kernel: Kernel,
        domain: Domain,
        query_domain: Domain | None = None,
        *,
        operator: OperatorFacts,
        stepping: bool = False,
    ) -> Facts:
        """Return the facts of a call on ``domain`` before there are features.

        Raises:
            DomainError: arguments that are not domains, or domains that the kernel refuses.
        """
        given = query_domain is not None
        check_domains(domain=domain, **({"query_domain": query_domain} if given else {}))
        if query_domain is None and not stepping:
            query_domain = kernel.output_domain(domain)
        layout = Layout.of(domain, query_domain, given=given, stepping=stepping)
        check_layout(kernel, layout, operator.layer)
        target = domain if query_domain is None else query_domain
        return cls.of(layout, target.positions, domain.positions, kernel.training)


class Place(NamedTuple):
    """What a domain alone decides about integrals over it at its own points. It is kept with the
    domain, so that a call looks it up once.

    Attributes:
        layout: the static facts.
        size, batch: of the domain.
        x: positions (1 | B, N, p), in the dtype that they meet the features in.
        quadrature: in the features' working precision.
    """

    layout: Layout
    size: int
    batch: int | None
    x: Tensor
    quadrature: Quadrature

    @classmethod
    def of(cls, domain: Domain, dtype: torch.dtype) -> Place:
        """The place of features of a dtype."""
        return cls(
            Layout.of(domain),
            domain.size,
            domain.batch,
            cast(positions(domain), promoted(dtype, domain.positions.dtype)),
            domain.quadrature().to(dtype),
        )


class Stretch(NamedTuple):
    """The next points of a causal domain, as :meth:`Form.step` and :meth:`Form.prefill` take them.

    Attributes:
        x: positions (1 | B, n, p).
        u: features by head, (B, H, n, d).
        query: the same features, (B, n, dim), for the pointwise term W.
        real: points that are not padding, (B, n), or None where all are.
    """

    x: Tensor
    u: Tensor
    query: Tensor
    real: Tensor | None

    @classmethod
    def of(
        cls, kernel: Kernel, u: Tensor, domain: Domain, seen: int, *, operator: OperatorFacts
    ) -> Stretch:
        """Read features (B, n, dim) of the points of ``domain`` behind the first ``seen``.

        Raises:
            ShapeError: features of another dtype.
            DomainError: more points than the domain has left.
        """
        check_dtype(u, "u", operator.dtype)
        stop = seen + u.shape[1]
        if stop > domain.size:
            raise DomainError(
                f"the state's domain has {domain.size} points and "
                f"{'all' if seen == domain.size else seen} were seen; build a longer domain"
            )
        real = None if domain.valid is None else domain.valid[:, seen:stop]
        u = clean(u, real)
        x = batched(clean(domain.positions[..., seen:stop, :], real), 2)
        if x.dtype != u.dtype or x.device != u.device:
            x = x.to(u.device, torch.promote_types(u.dtype, x.dtype))
        return cls(x, by_head_of(kernel, u), u, real)


class Point(NamedTuple):
    """One point of a causal step: position (1 | B, p), features (B, H, d), mass (1 | B,) and scale
    (1 | B, 1 | H) or None, both in float32 at least; in which samples it is no padding (1 | B,),
    None where in all.
    """

    x: Tensor
    u: Tensor
    mass: Tensor
    scale: Tensor | None
    real: Tensor | None = None

    @classmethod
    def at(cls, x: Tensor, u: Tensor, quadrature: Quadrature, t: int) -> Point:
        """Point t of a quadrature, at x (1 | B, 1, p) with features u (B, H, 1, d)."""
        dtype = at_least_single(u.dtype)
        scale = None if quadrature.scale is None else quadrature.scale[..., t].to(dtype)
        real = None if quadrature.valid is None else quadrature.valid[:, t]
        return cls(x[:, 0], u[:, :, 0], quadrature.mass[:, t].to(dtype), scale, real)

    def weighed(self) -> Tensor:
        """:func:`weighed` of the one point, (B, H, d)."""
        return weighed(self.u[:, :, None], self.mass[:, None])[:, :, 0]

    def scaled(self, out: Tensor) -> Tensor:
        """The sum (B, H, d) of a query here, times its scale."""
        return out if self.scale is None else out * self.scale[..., None]


QUADRATURE_TENSORS = (
    *("mass", "scale", "query_time", "key_time"),
    *("density", "log_density", "valid"),
)


@dataclass(eq=False)  # nobody writes to one; a frozen class takes three times as long to build
class Problem:
    """What one integral is about, all heads at once: both ends' positions and features, and the
    quadrature between them.

    Per-head parameters of shape (H, a, b) meet the features in a plain matrix product,
    ``ux @ weight`` with ``weight`` (H, d, e): heads are dimension -3 of both.

    Attributes:
        x, y: positions of queries and keys, (1 | B, Nq, p) and (1 | B, Nk, p).
        ux, uy: features, (B, H, Nq, d) and (B, H, Nk, d); H is 1 where every head reads all
            features.
        quadrature: who sees whom with which weight.
        layout: its static facts.
        index: which of the layout's queries these are, or None for all.
        whole: the problem that these queries were taken from, for kernels with a functional of all
            pairs; or None.
        real: queries that are not padding, or None where all are.
        domain: where the keys live, with what it keeps between calls; None where the queries are
            others, or some of them.
        query: all features at the queries, (B, Nq, dim), which the pointwise term W reads; None
            where nothing reads them, and in a part.
        shards: which rank has which points, where these are one rank's points of a domain over
            several processes; None where all points are here.
        asked: of the queries of a rank's points, how many the caller asked for: none where the rank
            has no points, and answers at a point of padding.
        training: the kernel is in training.
        pair_features: what the domain's edges say of each pair, (1 | B, Nq, Nk, f), zero where
            there is no edge; None without such edges, and where the quadrature has them still.
    """

    x: Float[Tensor, "#b q p"]
    y: Float[Tensor, "#b k p"]
    ux: Float[Tensor, "#b #h q d"]
    uy: Float[Tensor, "#b #h k d"]
    quadrature: Quadrature
    layout: Layout = field(default_factory=Layout)
    index: Tensor | None = None
    whole: Problem | None = None
    real: Bool[Tensor, "#b q"] | None = None
    domain: Domain | None = None
    query: Tensor | None = None
    shards: Shards | None = None
    asked: int | None = None
    training: bool = False
    pair_features: Float[Tensor, "#b q k f"] | None = None

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        u,
        domain=None,
        *,
        query=None,
        query_domain=None,
        operator: OperatorFacts,
    ) -> Problem:
        """Check and read the arguments of an operator, once.

        Padding becomes zero, heads are split, and what was not given is filled in: the kernel's
        default domain, and its output domain.

        Raises:
            ShapeError: features that are not tensors; shapes, dtypes or devices that do not fit.
            DomainError: arguments that are not domains, or domains that the kernel refuses.
        """
        check_kinds(u, domain, query, query_domain)
        if u.dim() != 3 or u.shape[2] != operator.dim:
            raise ShapeError(f"u must have shape (B, N, {operator.dim}), got {tuple(u.shape)}")
        dtype = u.dtype
        if dtype != operator.dtype:
            check_dtype(u, "u", operator.dtype)

        placed = domain is not None
        if domain is None:
            domain = default_domain(kernel, u)
        given = query is not None or query_domain is not None
        if not given:
            query_domain = kernel.output_domain(domain)
        if given or query_domain is not None or domain.shards is not None:
            query_domain = check_arguments(
                kernel, u, domain, query, query_domain, given, placed, operator
            )
            return cls._read(kernel, u, domain, query, query_domain, given=given)

        # The queries are the domain's own points: what the domain decides about them is kept with
        # it. A problem of few points costs no more than these lines, so that they call little.
        place = domain.kept(("place", dtype), lambda: Place.of(domain, dtype))
        batch, size = u.shape[:2]
        fits = size == place.size and place.batch in (None, 1, batch)
        if not fits or domain.positions.device != u.device:
            check_fit(u, domain, "u", "domain")
        kernel.check(place.layout)
        if operator.layer is not None:
            check_measure(kernel, place.layout, operator.layer)
        if place.layout.pairs:
            check_pairs(domain, batch, kernel.heads)
        if domain.valid is not None:
            u = clean(u, domain.valid)
        x, ux = place.x, by_head_of(kernel, u)
        return cls(
            x=x,
            y=x,
            ux=ux,
            uy=ux,
            quadrature=place.quadrature,
            layout=place.layout,
            real=domain.valid,
            domain=domain,
            query=u,
            training=kernel.training,
        )

    @classmethod
    def _read(
        cls,
        kernel: Kernel,
        u: Tensor,
        domain: Domain,
        query: Tensor | None,
        query_domain: Domain | None,
        *,
        given: bool,
    ) -> Problem:
        """The problem of checked arguments. ``query_domain`` is None where the queries are the
        domain's own points, and ``query`` where nothing reads features at the queries.
        """
        u = clean(u, domain.valid)
        if query_domain is None:
            query = u
        elif query is not None:
            query = clean(query, query_domain.valid)
        pointwise, asked = query, None

        if domain.shards is None:
            quadrature = domain.quadrature(query_domain)
        else:
            asked = domain.size if query_domain is None else query_domain.size
            # A rank without points gets one of padding, so that all ranks compute and send alike.
            u, domain, query, query_domain = fill_empty(u, domain, query, query_domain)
            quadrature = part_quadrature(domain, query_domain)

        dtype = promoted(u.dtype, domain.positions.dtype)
        x = y = positions(domain).to(dtype)
        ux = uy = by_head_of(kernel, u)
        target = domain
        if query_domain is not None:
            target = query_domain
            x = positions(target).to(dtype)
            if query is None:
                ux = uy.new_zeros(()).expand(*uy.shape[:2], target.size, uy.shape[3])
            else:
                ux = by_head_of(kernel, query)
        return cls(
            x=x,
            y=y,
            ux=ux,
            uy=uy,
            quadrature=quadrature.to(u.dtype),
            layout=Layout.of(domain, query_domain, given=given),
            real=target.valid,
            domain=domain if query_domain is None else None,
            query=pointwise,
            shards=domain.shards,
            asked=asked,
            training=kernel.training,
        )

    @property
    def complete(self) -> bool:
        """Whether all points are here, so that statistics of a call may be taken of them."""
        return self.shards is None

    @property
    def facts(self) -> Facts:
        """The static facts, on which the choice of a form depends."""
        return Facts.of(self.layout, self.ux, self.uy, self.training)

    def dense(self) -> Problem:
        """The same problem with all pairs written out, for definitions. O(Nq·Nk)."""
        if not self.quadrature.sparse:
            return self
        edges = self.quadrature.edges
        features = None
        if edges is not None:
            features = _features_of_rows(edges, torch.arange(edges.queries, device=self.x.device))
        return replace(
            self,
            quadrature=self.quadrature.dense(),
            layout=self.layout.dense(),
            domain=None,
            pair_features=features,
        )

    def displacements(self) -> tuple[Tensor, Tensor]:
        """:func:`grid_displacements` of the layout's grid, kept with the domain."""
        grid, x = self.layout.grid, self.x[0]
        assert grid is not None
        if self.domain is None:
            return grid_displacements(x, grid)
        name = ("displacements", x.dtype)
        return self.domain.kept(name, lambda: grid_displacements(x, grid))

    def rows(self, rows: Rows) -> Problem:
        """The same problem for some of the queries."""
        if rows is None:
            return self
        index = torch.as_tensor(rows, device=self.x.device)
        features = None
        if self.pair_features is not None:
            features = take_rows(self.pair_features, rows, 1)
        elif self.quadrature.edges is not None:
            features = _features_of_rows(self.quadrature.edges, index)
        return Problem(
            x=take_rows(self.x, rows, 1),
            y=self.y,
            ux=take_rows(self.ux, rows, 2),
            uy=self.uy,
            quadrature=self.quadrature.rows(rows),
            layout=replace(self.layout.dense(), cross=True),
            index=index if self.index is None else self.index[index],
            whole=self if self.whole is None else self.whole,
            real=None if self.real is None else take_rows(self.real, rows, 1),
            pair_features=features,
        )

    def tile(self, rows: Tensor, keys: Tensor, quadrature: Quadrature) -> Problem:
        """The same problem for some of the queries, each over keys of its own: a batch of B · r
        problems with one query and k keys.

        Args:
            rows: the queries, (r,).
            keys: the keys that each of them sees, (r, k); any key where ``quadrature`` has no mass.
            quadrature: the weights, with a batch of r or of B · r: mass (r, k), scale (r, 1 | H, 1)
                and density (r, 1 | H, 1, k).

        Example:
            >>> from fredholm import Domain, SoftmaxAttention
            >>> operator, u = SoftmaxAttention(8, heads=2), torch.randn(3, 5, 8)
            >>> problem = operator.problem(u, Domain.line(5))
            >>> keys = torch.tensor([[0, 1], [3, 4]])
            >>> tile = problem.tile(torch.tensor([0, 4]), keys, Quadrature(torch.ones(2, 2)))
            >>> tile.x.shape, tile.y.shape, tile.uy.shape
            (torch.Size([6, 1, 1]), torch.Size([6, 2, 1]), torch.Size([6, 1, 2, 8]))
        """
        batch, count = max(self.ux.shape[0], self.uy.shape[0]), rows.shape[0]

        def rows_of_batch(x: Tensor) -> Tensor:
            """(1 | B, r, ...) to (B · r, ...)."""
            return x.expand(batch, *x.shape[1:]).flatten(0, 1)

        def weights_of_batch(x: Tensor | None) -> Tensor | None:
            """(r | B · r, ...) to (B · r, ...)."""
            if x is None or x.shape[0] == batch * count:
                return x
            return x.repeat(batch, *[1] * (x.dim() - 1))

        parts = {name: getattr(quadrature, name) for name in QUADRATURE_TENSORS}
        tiled = {name: weights_of_batch(x) for name, x in parts.items()}
        layout = replace(
            self.layout, keys=None, queries=None, cross=True, pairs=quadrature.density is not None
        )
        real = None if self.real is None else rows_of_batch(self.real[:, rows, None])
        return Problem(
            x=rows_of_batch(self.x[:, rows, None]),
            y=rows_of_batch(self.y[:, keys]),
            ux=rows_of_batch(self.ux[:, :, rows, None].transpose(1, 2)),
            uy=rows_of_batch(self.uy[:, :, keys].transpose(1, 2)),
            quadrature=replace(quadrature, **tiled),
            layout=layout,
            real=real,
        )


def _features_of_rows(edges: Edges, rows: Tensor) -> Tensor | None:
    """Features of all pairs of some queries, (G, r, Nk, f).

    Raises:
        DomainError: keys that are seen at their image in a periodic box: at all pairs at once a key
            has one place.
    """
    if edges.shift is not None:
        raise DomainError(
            "expected keys with one place each, got the images of a periodic box; all pairs at "
            "once are not defined there, forward is"
        )
    if edges.features is None:
        return None
    graph = torch.arange(edges.batch, device=rows.device)
    flat = (graph[:, None] * edges.queries + rows).flatten()
    dense = edges.dense_features(flat)
    assert dense is not None
    return dense.unflatten(0, (edges.batch, rows.shape[0]))


# --- what comes in is checked and cleaned ---------------------------------------------------------


def batched(x: Tensor, dims: int) -> Tensor:
    """``x`` with a batch of one in front where its ``dims`` dimensions leave none for it."""
    return x[None] if x.dim() == dims else x


def grid_of(domain: Domain) -> tuple[int, ...] | None:
    """The extents of the regular grid that a domain is, or is a part of."""
    return domain.shape if domain.shards is None else domain.shards.extents


def positions(domain: Domain) -> Tensor:
    """Positions (1 | B, N, p). Those of one grid stay the grid's, whatever is padding on it: fast
    forms read displacements there.
    """
    x = domain.positions
    grid = grid_of(domain)
    if domain.valid is not None and (grid is None or x.dim() == 3):
        x = clean(x, domain.valid)
    return batched(x, 2)


def clean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Zero at padding, by ``where``, so that NaN there is harmless."""
    if valid is None:
        return x
    return torch.where(valid[..., None], x, torch.zeros((), dtype=x.dtype, device=x.device))


def default_domain(kernel: Kernel, u: Tensor) -> Domain:
    """The kernel's domain for features u (B, N, dim) that came without one."""
    dtype = torch.float64 if u.dtype == torch.float64 else torch.float32
    return kernel.default_domain(u.shape[1], device=u.device, dtype=dtype)


def check_kinds(u: object, domain: object, query: object, query_domain: object) -> None:
    """ShapeError for features that are not tensors, DomainError for what is not a domain."""
    if not isinstance(u, Tensor):
        check_features(u=u)
    if query is not None:
        check_features(query=query)
    if domain is not None and not isinstance(domain, Domain):
        check_domains(domain=domain)
    if query_domain is not None and not isinstance(query_domain, Domain):
        check_domains(query_domain=query_domain)


def check_arguments(
    kernel: Kernel,
    u: Tensor,
    domain: Domain,
    query: Tensor | None,
    query_domain: Domain | None,
    given: bool,
    placed: bool,
    operator: OperatorFacts,
) -> Domain | None:
    """Check that features and domains fit each other and the kernel.

    Returns where the queries lie: None for the domain's own points. ``given``: the caller gave
    queries; ``placed``: the caller gave a domain, which is not the kernel's default.
    """
    check_fit(u, domain, "u", "domain")
    if query is not None and query_domain is None:
        _check_width(query, query.shape[1] if query.dim() > 1 else "Nq", operator.dim)
        query_domain = _points_of(kernel, query, domain, placed)
    check_layout(kernel, Layout.of(domain, query_domain, given=given), operator.layer)
    check_pairs(domain, u.shape[0], kernel.heads)
    if query_domain is not None:
        _check_query(kernel, u, domain, query, query_domain, operator)
    return query_domain


def _points_of(kernel: Kernel, query: Tensor, domain: Domain, placed: bool) -> Domain:
    """Where features lie that came without a domain: as the keys do, by default or at the same
    points; anywhere, where it plays no role.

    Raises:
        ShapeError: keys on a domain of the caller's that has another number of points.
    """
    n, place = query.shape[1], {"device": query.device, "dtype": domain.positions.dtype}
    if not placed:
        return kernel.default_domain(n, **place)
    if not kernel.reads_position and not domain.causal:
        return Domain.points(torch.zeros(n, domain.dim, **place))
    if n != domain.size:
        raise ShapeError(
            f"query: received {n} points beside a domain of {domain.size}; needs query_domain, "
            "which says where they lie"
        )
    return domain


def _check_query(
    kernel: Kernel,
    u: Tensor,
    domain: Domain,
    query: Tensor | None,
    target: Domain,
    operator: OperatorFacts,
) -> None:
    """ShapeError where features at the queries lack, or do not fit their domain."""
    if query is None:
        if operator.pointwise or kernel.reads_query:
            what = "W" if operator.pointwise else type(kernel).__name__
            need = f"(B, {target.size}, {operator.dim})"
            raise ShapeError(f"{what} reads features at the queries: pass query={need}")
        check_sizes(u, u.shape[1], target.batch, "u", "query_domain")
        check_device(u, target, "u", "query_domain")
    else:
        _check_width(query, target.size, operator.dim)
        check_fit(query, target, "query", "query_domain")
        check_dtype(query, "query", operator.dtype)
        if query.shape[0] != u.shape[0]:
            raise ShapeError(
                f"query has batch size {query.shape[0]} and u {u.shape[0]}; they must be equal"
            )
    if target.dim != domain.dim:
        raise ShapeError(
            f"domain and query_domain have positions of dimension {domain.dim} and {target.dim}"
        )


def _check_width(query: Tensor, queries: int | str, dim: int) -> None:
    if query.dim() != 3 or query.shape[-1] != dim:
        need = f"(B, {queries}, {dim})"
        raise ShapeError(f"query must have shape {need}, got {tuple(query.shape)}")


def check_dtype(u: Tensor, name: str, dtype: torch.dtype | None) -> None:
    """ShapeError for features that are not floating-point numbers, or of another dtype than the
    parameters where autocast does not bring them together.
    """
    if not u.is_floating_point():
        raise ShapeError(
            f"{name} must hold floating-point numbers, got {u.dtype}: pass {name}.float()"
        )
    if dtype is None or dtype == u.dtype:
        return
    double = torch.float64 in (dtype, u.dtype)
    if double or u.is_meta or not torch.is_autocast_enabled(u.device.type):
        raise ShapeError(
            f"{name} is {u.dtype} and the operator's parameters are {dtype}: pass "
            f"{name}.to({dtype}), or convert the operator with operator.to({u.dtype})"
        )


def check_layout(kernel: Kernel, layout: Layout, layer: str | None) -> None:
    """DomainError for a domain on which the kernel means nothing, or the layer it was made from."""
    kernel.check(layout)
    if layer is not None:
        check_measure(kernel, layout, layer)


def check_measure(kernel: Kernel, layout: Layout, layer: str) -> None:
    """DomainError where a layer that adds up its points is given a measure that divides by them."""
    if kernel.sums and layout.measure in RENORMALISED:
        raise DomainError(
            f"{layer} adds up its points with a mass of one each; the measure "
            f"{layout.measure!r} would divide that sum by what a query sees. Build the domain "
            "with measure='counting', or set operator.layer = None to take the kernel as an "
            "integral over this measure"
        )


def check_features(**tensors: object) -> None:
    """ShapeError where features are no tensors."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise ShapeError(refuse_kind(name, x, "a tensor of features"))


def check_domains(**domains: object) -> None:
    """DomainError where domains are no domains."""
    for name, x in domains.items():
        if not isinstance(x, Domain):
            raise DomainError(refuse_kind(name, x, "a Domain"))


def check_pairs(domain: Domain, batch: int, heads: int) -> None:
    """ShapeError where a domain's pairs are for other batch entries or heads."""
    if isinstance(domain.pairs, Edges):
        edges, density = domain.pairs, domain.pairs.log_density
        by_head = 1 if density is None or density.dim() == 1 else density.shape[1]
        for size, need, what in ((edges.batch, batch, "graphs"), (by_head, heads, "heads")):
            if size not in (1, need):
                raise ShapeError(f"expected edges of {need} {what} or of one, got {size}")
        return
    if domain.pairs is None or domain.pairs.dim() == 2:
        return
    shape = tuple(domain.pairs.shape)
    for size, need, what in zip(shape[:-2], (batch, heads), ("batch entries", "heads")):
        if size not in (1, need):
            raise ShapeError(f"pairs {shape} are for {size} {what}, there are {need}")


def check_rows(rows: Rows, queries: int) -> None:
    """ShapeError unless ``rows`` names some of the queries."""
    if rows is None:
        return
    whole = isinstance(rows, Tensor) and rows.dim() == 1 and not rows.is_floating_point()
    given = rows.tolist() if whole and isinstance(rows, Tensor) else rows
    plain = isinstance(given, (list, tuple)) and all(type(row) is int for row in given)
    if not plain or not given or any(not 0 <= row < queries for row in given):
        got = f"{given}" if plain else describe(rows)
        raise ShapeError(
            f"rows is a list of queries, one at least, each from 0 to {queries - 1}; got {got}"
        )


def by_head_of(kernel: Kernel, u: Tensor) -> Tensor:
    """Features (B, N, dim) as the kernel's heads read them: a slice each, or all of them."""
    return u.unsqueeze(1) if kernel.whole else split_heads(u, kernel.heads)


def split_heads(u: Float[Tensor, "b n d"], heads: int) -> Float[Tensor, "b h n c"]:
    """(B, N, H·c) to (B, H, N, c)."""
    if heads == 1:
        return u.unsqueeze(1)
    batch, points, width = u.shape
    return u.view(batch, points, heads, width // heads).transpose(1, 2)


def merge_heads(u: Float[Tensor, "b h n c"]) -> Float[Tensor, "b n d"]:
    """(B, H, N, c) to (B, N, H·c)."""
    return u.squeeze(1) if u.shape[1] == 1 else u.transpose(1, 2).flatten(2)


def check_fit(u: Tensor, domain: Domain, name: str, domain_name: str) -> None:
    """ShapeError where features ``u`` and their domain differ in points, batch or device."""
    check_sizes(u, domain.size, domain.batch, name, domain_name)
    check_device(u, domain, name, domain_name)


def check_device(u: Tensor, domain: Domain, name: str, domain_name: str) -> None:
    """ShapeError where features ``u`` and their domain are on different devices."""
    if domain.positions.device != u.device:
        where = f"{domain.positions.device}, {name} on {u.device}"
        raise ShapeError(
            f"{domain_name} is on {where}; move it with {domain_name}.to({str(u.device)!r})"
        )


def check_sizes(u: Tensor, points: int, batch: int | None, name: str, domain_name: str) -> None:
    """ShapeError where features ``u`` are for other points or batch entries than a domain."""
    shape = u.shape
    if shape[1] != points:
        raise ShapeError(
            f"{name} has {shape[1]} points and its {domain_name} {points}; they must be equal"
        )
    if batch is not None and batch != 1 and batch != shape[0]:
        raise ShapeError(
            f"{name} has batch size {shape[0]} and its {domain_name} {batch}; they must be equal"
        )


# --- regular grids --------------------------------------------------------------------------------


def grid_displacements(positions: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """All displacements of a regular grid, (D, p) with D = ∏(2n - 1), and each point's index c (N,)
    into them.

    The displacement x_i - x_j is row ``c_i - c_j + D // 2``.

    Example:
        >>> table, index = grid_displacements(torch.tensor([[0.0], [0.5]]), (2,))
        >>> table.squeeze(1).tolist(), index.tolist()
        ([-0.5, 0.0, 0.5], [0, 1])
    """
    device = positions.device
    lattice = torch.zeros(
        (*(2 * n - 1 for n in grid), positions.shape[-1]), dtype=positions.dtype, device=device
    )
    index = torch.zeros(grid, dtype=torch.int64, device=device)
    stride = 1
    for axis in reversed(range(len(grid))):
        n = grid[axis]
        shape = [1] * len(grid)
        shape[axis] = -1
        if n > 1:
            last = positions[(n - 1) * prod(grid[axis + 1 :])] - positions[0]
            steps = torch.arange(1 - n, n, device=device, dtype=positions.dtype).reshape(
                *shape, 1
            ) / (n - 1)
            lattice = lattice + steps * last
        index = index + torch.arange(n, device=device).reshape(shape) * stride
        stride *= 2 * n - 1
    return lattice.flatten(0, -2), index.flatten()
