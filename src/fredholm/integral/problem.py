"""One integral: the static facts that are known before any number is, and the tensors.

:meth:`Problem.of` makes both from the arguments of an operator. It is the only place that reads
arguments; ``checks.py`` has the errors that it raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..distributed import Shards
from ..distributed.part import read_part
from ..domain import Domain
from ..edges import Edges
from ..errors import DomainError, OptionError, ShapeError
from ..ops.backend import at_least_single, cast, followed, promoted
from ..quadrature import Quadrature, Rows, take_rows
from .checks import (
    check_domains,
    check_dtype,
    check_features,
    check_fit,
    check_layout,
    check_measure,
    check_pairs,
    check_query,
    check_width,
)

if TYPE_CHECKING:
    from .contract import Kernel


class OperatorFacts(NamedTuple):
    """Requirements of an operator on its arguments, beside those of its kernel.

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
    """Where keys and queries live, as far as it is static: the facts that a kernel may refuse.

    Attributes:
        keys, queries: extents of the regular grids that keys and queries form, or None; of a domain
            over several processes, those of all ranks together.
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
        """Return the layout of integrating over ``domain`` at the points of ``query_domain``
        (default: at its own points).
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
        edges = domain.pairs if isinstance(domain.pairs, Edges) else None
        return cls(
            keys=grid_of(domain),
            queries=grid_of(target),
            # A rank's rows of edges meet the keys of all ranks.
            cross=query_domain is not None or (domain.shards is not None and edges is not None),
            given=given,
            causal=domain.causal,
            pairs=domain.pairs is not None or domain.reach is not None,
            padded=domain.valid is not None,
            measure=domain.kind,
            fixed=fixed,
            stepping=stepping,
            sharded=domain.shards is not None,
            edges=edges is not None,
            reach=domain.reach,
            images=edges is not None and edges.shift is not None,
        )

    @property
    def sparse(self) -> bool:
        """Whether a query sees few keys, by edges or within a reach."""
        return self.edges or self.reach is not None

    def dense(self) -> Layout:
        """Return the layout of the same domain with a mask of all pairs."""
        if not self.sparse:
            return self
        return replace(self, edges=False, reach=None, images=False)

    @property
    def grid(self) -> tuple[int, ...] | None:
        """The regular grid at fixed positions that queries and keys share, or None."""
        if not self.fixed or self.cross or self.stepping:
            return None
        return self.keys


class Facts(NamedTuple):
    """All facts that the choice of a form may depend on.

    They are static, so that traced code takes the same form as eager code: never the value of a
    tensor.

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
        """Return the facts about features ``ux`` and ``uy``, with points on dimension -2 and
        samples on the first of three or more.
        """
        batch = uy.shape[0] if uy.dim() > 2 else 1
        # Every call makes one, so the fields are passed by position, which is faster.
        return cls(
            layout,
            ux.shape[-2],
            uy.shape[-2],
            uy.dtype,
            uy.device.type,
            training,
            torch.compiler.is_compiling(),
            torch.is_grad_enabled(),
            batch,
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
        check_domains(domain=domain)
        given = query_domain is not None
        if given:
            check_domains(query_domain=query_domain)

        if query_domain is None and not stepping:
            query_domain = kernel.output_domain(domain)
        layout = Layout.of(domain, query_domain, given=given, stepping=stepping)
        check_layout(kernel, layout, operator.layer)

        target = domain if query_domain is None else query_domain
        return cls.of(layout, target.positions, domain.positions, kernel.training)


class Place(NamedTuple):
    """Facts and tensors that a domain alone decides about integrals over it at its own points.

    It is cached with the domain, so that a call looks it up once.

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
        """Return the place for features of a dtype."""
        position_dtype = promoted(dtype, domain.positions.dtype)
        return cls(
            Layout.of(domain),
            domain.size,
            domain.batch,
            cast(positions(domain), position_dtype),
            domain.quadrature().to(dtype),
        )


QUADRATURE_TENSORS = (
    "mass",
    "scale",
    "query_time",
    "key_time",
    "density",
    "log_density",
    "valid",
)


# Nobody writes to a problem, but it is not frozen: a frozen class takes three times as long to
# build, and every call builds one (docs/log.md, "Calls on eight points").
@dataclass(eq=False)
class Problem:
    """One integral, all heads at once: both ends' positions and features, and the quadrature
    between them.

    Per-head parameters of shape (H, a, b) meet the features in a plain matrix product,
    ``ux @ weight`` with ``weight`` (H, d, e): heads are dimension -3 of both.

    Attributes:
        x, y: positions of queries and keys, (1 | B, Nq, p) and (1 | B, Nk, p).
        ux, uy: features, (B, H, Nq, d) and (B, H, Nk, d); H is 1 where every head reads all
            features.
        quadrature: who sees whom with which weight.
        layout: its static facts.
        index: which of the layout's queries these are, or None for all.
        parent: the problem that these queries were taken from, for kernels with a functional of all
            pairs; or None.
        real: queries that are not padding, or None where all are.
        domain: where the keys live, with its cache; None where the queries are other points, or
            some of the domain's.
        query: all features at the queries, (B, Nq, dim), which the pointwise term W reads; None
            where nothing reads them, and in a part.
        shards: which rank has which points, where these are one rank's points of a domain over
            several processes; None where all points are here.
        answered: the queries that the caller asked for, on one rank of several. It may have others:
            a point of padding where it has none, and its neighbours' points within a reach. None
            without shards, where all were asked for.
        training: the kernel is in training.
        pair_features: features of each pair on the domain's edges, (1 | B, Nq, Nk, f), zero where
            there is no edge; None without such edges, and where the quadrature has them still.
    """

    x: Float[Tensor, "#b q p"]
    y: Float[Tensor, "#b k p"]
    ux: Float[Tensor, "#b #h q d"]
    uy: Float[Tensor, "#b #h k d"]
    quadrature: Quadrature
    layout: Layout = field(default_factory=Layout)
    index: Tensor | None = None
    parent: Problem | None = None
    real: Bool[Tensor, "#b q"] | None = None
    domain: Domain | None = None
    query: Tensor | None = None
    shards: Shards | None = None
    answered: slice | None = None
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

        Padding becomes zero, heads are split, and arguments that were left out are filled in: the
        kernel's default domain, and its output domain.

        Raises:
            ShapeError: features that are not tensors; shapes, dtypes or devices that do not fit.
            DomainError: arguments that are not domains, or domains that the kernel refuses.
        """
        _check_kinds(u, domain, query, query_domain)
        if u.dim() != 3 or u.shape[2] != operator.dim:
            raise ShapeError(
                f"u: expected shape (B, N, {operator.dim}), got {tuple(u.shape)}; points are its "
                "second dimension and features its last"
            )
        if u.dtype != operator.dtype:
            check_dtype(u, "u", operator.dtype)

        default = domain is None
        if domain is None:
            domain = default_domain(kernel, u)
        given = query is not None or query_domain is not None
        if not given and domain.shards is None:
            return cls._at_own_points(kernel, u, domain, operator)
        if not given:
            query_domain = kernel.output_domain(domain)
        return cls._at_queries(
            kernel, u, domain, query, query_domain, operator, given=given, default=default
        )

    @classmethod
    def _at_own_points(
        cls, kernel: Kernel, u: Tensor, domain: Domain, operator: OperatorFacts
    ) -> Problem:
        """Return the problem of a call without queries, on a domain that is not sharded.

        Unless the kernel writes to another domain, the queries are the domain's own points, and
        the domain caches everything that it alone decides about them. On few points a call costs
        little more than these lines, so they call few functions.
        """
        output_domain = kernel.output_domain(domain)
        if output_domain is not None:
            return cls._at_queries(kernel, u, domain, None, output_domain, operator, given=False)

        place = domain.kept(("place", u.dtype), lambda: Place.of(domain, u.dtype))

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
        x = place.x
        ux = by_head_of(kernel, u)
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
    def _at_queries(
        cls,
        kernel: Kernel,
        u: Tensor,
        domain: Domain,
        query: Tensor | None,
        query_domain: Domain | None,
        operator: OperatorFacts,
        *,
        given: bool,
        default: bool = False,
    ) -> Problem:
        """Check that all arguments fit each other and the kernel, and return their problem.

        Args:
            kernel, u, domain, query, operator: as of :meth:`of`.
            query_domain: None where the queries are the domain's own points, or where ``query``
                came without a domain.
            given: the caller chose the queries, not the kernel's ``output_domain``.
            default: ``domain`` is the kernel's default one.
        """
        check_fit(u, domain, "u", "domain")
        if query is not None and query_domain is None:
            queries = query.shape[1] if query.dim() > 1 else "Nq"
            check_width(query, queries, operator.dim)
            query_domain = _points_of(kernel, query, domain, default=default)
        check_layout(kernel, Layout.of(domain, query_domain, given=given), operator.layer)
        check_pairs(domain, u.shape[0], kernel.heads)
        if query_domain is not None:
            check_query(kernel, u, domain, query, query_domain, operator)
        return cls._read(kernel, u, domain, query, query_domain, given=given)

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
        """Return the problem of checked arguments, with padding set to zero.

        ``query`` is None where nothing reads features at the queries, or where they are u.
        """
        u = clean(u, domain.valid)
        if query_domain is None:
            query = u
        elif query is not None:
            query = clean(query, query_domain.valid)
        # W reads the caller's queries, without the point of padding that a rank may get below.
        pointwise = query

        shards, answered = None, None
        if domain.shards is None:
            quadrature = domain.quadrature(query_domain)
        else:
            part = read_part(u, domain, query, query_domain)
            u, domain, query, query_domain = part.u, part.domain, part.query, part.query_domain
            quadrature, shards, answered = part.quadrature, part.shards, part.answered

        # Both ends: positions, and features by head.
        dtype = promoted(u.dtype, domain.positions.dtype)
        x = y = positions(domain).to(dtype)
        ux = uy = by_head_of(kernel, u)
        target, shared_domain = domain, domain
        if query_domain is not None:
            target, shared_domain = query_domain, None
            x = positions(target).to(dtype)
            ux = _features_at_queries(kernel, query, uy, target.size)

        layout = Layout.of(domain, query_domain, given=given)
        if shards is not None:
            # The part of a sparse domain is complete, so that its domain has no shards any more.
            layout = replace(layout, sharded=True)
        return cls(
            x=x,
            y=y,
            ux=ux,
            uy=uy,
            quadrature=quadrature.to(u.dtype),
            layout=layout,
            real=target.valid,
            domain=shared_domain,
            query=pointwise,
            shards=shards,
            answered=answered,
            training=kernel.training,
        )

    @property
    def answered_real(self) -> Tensor | None:
        """Which of the queries that the caller asked for are not padding; None where all are."""
        if self.real is None or self.answered is None:
            return self.real
        return self.real[:, self.answered]

    @property
    def complete(self) -> bool:
        """Whether all points are here, so that statistics of a call may be taken of them."""
        return self.shards is None

    @property
    def facts(self) -> Facts:
        """The static facts, on which the choice of a form depends."""
        return Facts.of(self.layout, self.ux, self.uy, self.training)

    def dense(self) -> Problem:
        """Return the same problem with all pairs written out, for definitions. O(Nq·Nk)."""
        if not self.quadrature.sparse:
            return self

        edges = self.quadrature.edges
        features = None
        if edges is not None:
            all_queries = torch.arange(edges.queries, device=self.x.device)
            features = _dense_pair_features(edges, all_queries)
        return replace(
            self,
            quadrature=self.quadrature.dense(),
            layout=self.layout.dense(),
            domain=None,
            pair_features=features,
        )

    def displacements(self) -> tuple[Tensor, Tensor]:
        """Return :func:`grid_displacements` of the layout's grid, cached with the domain."""
        grid, x = self.layout.grid, self.x[0]
        assert grid is not None
        if self.domain is None:
            return grid_displacements(x, grid)
        name = ("displacements", x.dtype)
        return self.domain.kept(name, lambda: grid_displacements(x, grid))

    def rows(self, rows: Rows) -> Problem:
        """Return the problem of some of the queries, over all keys."""
        if rows is None:
            return self

        index = torch.as_tensor(rows, device=self.x.device)
        features = None
        if self.pair_features is not None:
            features = take_rows(self.pair_features, rows, 1)
        elif self.quadrature.edges is not None:
            features = _dense_pair_features(self.quadrature.edges, index)
        real = None
        if self.real is not None:
            real = take_rows(self.real, rows, 1)

        # Rows of rows are numbered as queries of the first problem, which stays the parent.
        if self.index is not None:
            index = self.index[index]
        parent = self if self.parent is None else self.parent

        return Problem(
            x=take_rows(self.x, rows, 1),
            y=self.y,
            ux=take_rows(self.ux, rows, 2),
            uy=self.uy,
            quadrature=self.quadrature.rows(rows),
            layout=replace(self.layout.dense(), cross=True),
            index=index,
            parent=parent,
            real=real,
            pair_features=features,
        )

    def tile(self, rows: Tensor, keys: Tensor, quadrature: Quadrature) -> Problem:
        """Return the problem of some of the queries, each over keys of its own: a batch of B · r
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
        batch = max(self.ux.shape[0], self.uy.shape[0])
        count = rows.shape[0]

        def rows_of_batch(x: Tensor) -> Tensor:
            """(1 | B, r, ...) to (B · r, ...)."""
            return x.expand(batch, *x.shape[1:]).flatten(0, 1)

        def weights_of_batch(x: Tensor | None) -> Tensor | None:
            """(r | B · r, ...) to (B · r, ...)."""
            if x is None or x.shape[0] == batch * count:
                return x
            return x.repeat(batch, *[1] * (x.dim() - 1))

        tensors = {name: getattr(quadrature, name) for name in QUADRATURE_TENSORS}
        tiled = {name: weights_of_batch(x) for name, x in tensors.items()}
        layout = replace(
            self.layout, keys=None, queries=None, cross=True, pairs=quadrature.density is not None
        )
        real = None
        if self.real is not None:
            real = rows_of_batch(self.real[:, rows, None])

        # Points come before heads in the batch: (B, H, r, ...) is (B, r, H, ...) here.
        return Problem(
            x=rows_of_batch(self.x[:, rows, None]),
            y=rows_of_batch(self.y[:, keys]),
            ux=rows_of_batch(self.ux[:, :, rows, None].transpose(1, 2)),
            uy=rows_of_batch(self.uy[:, :, keys].transpose(1, 2)),
            quadrature=replace(quadrature, **tiled),
            layout=layout,
            real=real,
        )


def _dense_pair_features(edges: Edges, rows: Tensor) -> Tensor | None:
    """Return the features of all pairs of some queries, (G, r, Nk, f), zero where there is no edge.

    Raises:
        DomainError: keys that are seen at their image in a periodic box. A key then has a position
            for each query, and the matrix of all pairs has only one.
    """
    if edges.shift is not None:
        raise DomainError(
            "expected keys with one place each, got the images of a periodic box; all pairs at "
            "once are not defined there, forward is"
        )
    if edges.features is None:
        return None

    graph = torch.arange(edges.batch, device=rows.device)
    rows_of_graphs = (graph[:, None] * edges.queries + rows).flatten()
    dense = edges.dense_features(rows_of_graphs)
    assert dense is not None
    return dense.unflatten(0, (edges.batch, rows.shape[0]))


# --- reading arguments ----------------------------------------------------------------------------


def _check_kinds(u: object, domain: object, query: object, query_domain: object) -> None:
    """Raise ShapeError for features that are not tensors, DomainError for domains that are not."""
    if not isinstance(u, Tensor):
        check_features(u=u)
    if query is not None:
        check_features(query=query)
    if domain is not None and not isinstance(domain, Domain):
        check_domains(domain=domain)
    if query_domain is not None and not isinstance(query_domain, Domain):
        check_domains(query_domain=query_domain)


def _points_of(kernel: Kernel, query: Tensor, domain: Domain, *, default: bool) -> Domain:
    """Return the domain of queries that came without one.

    Where the keys came without one too, it is the kernel's default domain; else the domain of the
    keys. A kernel that reads no positions may have any number of queries: they lie at the origin.

    Raises:
        ShapeError: keys on a domain of the caller's that has another number of points.
    """
    n = query.shape[1]
    if default:
        return kernel.default_domain(n, device=query.device, dtype=domain.positions.dtype)
    if not kernel.reads_position and not domain.causal:
        origin = torch.zeros(n, domain.dim, device=query.device, dtype=domain.positions.dtype)
        return Domain.points(origin)
    if n != domain.size:
        raise ShapeError(
            f"query: expected the {domain.size} points of domain, got {n}; pass query_domain, "
            "which says where they lie"
        )
    return domain


def _features_at_queries(kernel: Kernel, query: Tensor | None, uy: Tensor, queries: int) -> Tensor:
    """Return features at the queries by head, like those at the keys, ``uy``.

    They are zeros without memory where ``query`` is None because nothing reads them.
    """
    if query is None:
        return uy.new_zeros(()).expand(*uy.shape[:2], queries, uy.shape[3])
    return by_head_of(kernel, query)


def default_domain(kernel: Kernel, u: Tensor) -> Domain:
    """Return the kernel's domain for features u (B, N, dim) that came without one."""
    dtype = torch.float64 if u.dtype == torch.float64 else torch.float32
    return kernel.default_domain(u.shape[1], device=u.device, dtype=dtype)


def batched(x: Tensor, dims: int) -> Tensor:
    """Return ``x`` with a batch of one in front, where its ``dims`` dimensions are without one."""
    if x.dim() == dims:
        return x[None]
    return x


def grid_of(domain: Domain) -> tuple[int, ...] | None:
    """Return the extents of the regular grid that a domain is, or is a part of; or None."""
    if domain.shards is None:
        return domain.shape
    return domain.shards.extents


def positions(domain: Domain) -> Tensor:
    """Return positions (1 | B, N, p), zero at padding.

    On a grid that all samples share they stay as they are, at padding too: fast forms read the
    grid's displacements from its last points.
    """
    x = domain.positions
    shared_grid = grid_of(domain) is not None and x.dim() == 2
    if domain.valid is not None and not shared_grid:
        x = clean(x, domain.valid)
    return batched(x, 2)


def clean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Set padding to zero: ``x`` (..., N, c) where ``valid`` (..., N) is False.

    A product with the mask would leave NaN where padding is NaN, so this is ``where``.
    """
    if valid is None:
        return x
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.where(valid[..., None], x, zero)


# --- features by head -----------------------------------------------------------------------------


def head_width(dim: int, heads: int) -> int:
    """Return the width of one head's slice, dim / heads.

    Raises:
        OptionError: heads that do not divide the width.

    Example:
        >>> head_width(12, 3)
        4
    """
    if heads < 1 or dim % heads:
        raise OptionError(
            f"heads: expected a divisor of the width {dim}, got {heads}; change one of the two"
        )
    return dim // heads


def by_head_of(kernel: Kernel, u: Tensor) -> Tensor:
    """Return features (B, N, dim) as the kernel's heads read them: a slice each, (B, H, N, d), or
    all features for all heads, (B, 1, N, dim).
    """
    if kernel.whole:
        return u.unsqueeze(1)
    return split_heads(u, kernel.heads)


def split_heads(u: Float[Tensor, "b n d"], heads: int) -> Float[Tensor, "b h n c"]:
    """Return (B, N, H·c) as (B, H, N, c), a view.

    Example:
        >>> split_heads(torch.zeros(1, 5, 6), 2).shape
        torch.Size([1, 2, 5, 3])
    """
    if heads == 1:
        return u.unsqueeze(1)
    batch, points, width = u.shape
    return u.view(batch, points, heads, width // heads).transpose(1, 2)


def merge_heads(u: Float[Tensor, "b h n c"]) -> Float[Tensor, "b n d"]:
    """Return (B, H, N, c) as (B, N, H·c).

    Example:
        >>> merge_heads(torch.zeros(1, 2, 5, 3)).shape
        torch.Size([1, 5, 6])
    """
    if u.shape[1] == 1:
        return u.squeeze(1)
    return u.transpose(1, 2).flatten(2)


def weighed(u: Float[Tensor, "#b h n c"], mass: Float[Tensor, "#b n"]) -> Float[Tensor, "_ h n c"]:
    """Multiply features by the masses of their points, (B, H, N, c).

    The product is in float32 or better, because a mass may lie outside the range of float16.

    Example:
        >>> weighed(torch.ones(1, 1, 1, 2).half(), torch.full((1, 1), 1e5)).tolist()
        [[[[100000.0, 100000.0]]]]
    """
    dtype = at_least_single(u.dtype)
    return cast(mass, dtype)[:, None, :, None] * cast(u, dtype)


def heads_apart(u: Float[Tensor, "b h i"], weight: Float[Tensor, "h o i"]) -> Tensor:
    """Multiply one point's features by a matrix for each head, (B, H, o).

    All samples of a head are one matrix product. On a CPU, ``weight @ u[..., None]`` takes twenty
    times as long: it makes a product for each sample.

    Example:
        >>> heads_apart(torch.ones(1, 2, 3), torch.ones(2, 4, 3)).shape
        torch.Size([1, 2, 4])
    """
    return torch.bmm(u.transpose(0, 1), weight.mT).transpose(0, 1)


def by_head(x: Float[Tensor, "b h n i"], weight: Float[Tensor, "h o i"]) -> Tensor:
    """Multiply every point's features by a matrix for each head, (B, H, N, o).

    All samples of a head are one matrix product, so that no matrix is copied for each sample.

    Example:
        >>> by_head(torch.ones(1, 2, 5, 3), torch.ones(2, 4, 3)).shape
        torch.Size([1, 2, 5, 4])
    """
    batch, heads, points, _ = x.shape
    rows = x.transpose(0, 1).flatten(1, 2)
    out = torch.bmm(rows, weight.mT)
    return out.view(heads, batch, points, out.shape[-1]).transpose(0, 1)


# --- regular grids --------------------------------------------------------------------------------


def grid_displacements(positions: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return all displacements of a regular grid, (D, p) with D = ∏(2n - 1), and each point's index
    c (N,) into them.

    The displacement x_i - x_j is row ``c_i - c_j + D // 2``: a grid of N points has N² pairs of
    points but only D < 2^p·N displacements.

    Args:
        positions: of the grid's points, (N, p), the last axis fastest.
        grid: extents n.

    Example:
        >>> table, index = grid_displacements(torch.tensor([[0.0], [0.5]]), (2,))
        >>> table.squeeze(1).tolist(), index.tolist()
        ([-0.5, 0.0, 0.5], [0, 1])
    """
    device, dtype = positions.device, positions.dtype
    extents = [2 * n - 1 for n in grid]
    table = torch.zeros((*extents, positions.shape[-1]), dtype=dtype, device=device)
    index = torch.zeros(grid, dtype=torch.int64, device=device)

    # A regular grid is affine: every displacement is a sum of one displacement per axis, and its
    # row in the table is a sum of one index per axis, times the stride of the axis.
    stride = 1
    for axis in reversed(range(len(grid))):
        n = grid[axis]
        shape = [1] * len(grid)
        shape[axis] = -1
        if n > 1:
            last_point = (n - 1) * prod(grid[axis + 1 :])
            length = positions[last_point] - positions[0]
            steps = torch.arange(1 - n, n, device=device, dtype=dtype) / (n - 1)
            table = table + steps.reshape(*shape, 1) * length
        index = index + torch.arange(n, device=device).reshape(shape) * stride
        stride *= 2 * n - 1
    return table.flatten(0, -2), index.flatten()
