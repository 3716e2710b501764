"""One integral: positions, features, the quadrature between them, and what is static about them.

:meth:`Problem.of` makes it from the arguments of an operator. It is the only place that reads
arguments; ``checks.py`` has the errors that it raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..distributed import Shards
from ..distributed.part import read_part
from ..domain import Domain
from ..errors import ShapeError
from ..ops.backend import promoted
from ..quadrature import Quadrature, Rows
from . import subproblems
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
from .facts import Facts, Layout, OperatorFacts
from .features import clean
from .place import (
    Place,
    default_domain,
    grid_displacements,
    points_of,
    positions,
    without_images,
)

if TYPE_CHECKING:
    from .contract import Kernel


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
        quadrature: which query sees which key, and with which weight.
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
        if domain.pairs is not None and not kernel.reads_position:
            plain = without_images(domain)
            if query_domain is not None and domain.same_as(query_domain):
                query_domain = plain
            domain = plain
        given = query is not None or query_domain is not None
        if not given and domain.shards is None:
            return cls._at_own_points(kernel, u, domain, operator)
        if not given:
            query_domain = kernel.output_domain(domain)
        return cls._at_queries(
            kernel,
            u,
            domain,
            query,
            query_domain,
            operator,
            given=given,
            default=default,
        )

    @classmethod
    def _at_own_points(
        cls,
        kernel: Kernel,
        u: Tensor,
        domain: Domain,
        operator: OperatorFacts,
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

        This is the path for queries other than the domain's own points, and for sharded domains.
        :meth:`_at_own_points` is the faster one for all other calls.

        Args:
            kernel, u, domain, query, operator: as of :meth:`of`.
            query_domain: the points of the queries. None where they are the domain's own points.
                It is also None where the caller passed ``query`` alone; the points then follow from
                ``domain``.
            given: whether the caller chose the queries. Otherwise they are the kernel's
                ``output_domain``, or the points of ``domain``.
            default: whether ``domain`` is the kernel's default, because the caller passed none.
        """
        check_fit(u, domain, "u", "domain")
        if query is not None and query_domain is None:
            # ``query`` is not checked yet and may have no second dimension.
            queries: int | str = "Nq"
            if query.dim() > 1:
                queries = query.shape[1]
            check_width(query, queries, operator.dim)
            query_domain = points_of(kernel, query, domain, default=default)

        check_layout(kernel, Layout.of(domain, query_domain, given=given), operator.layer)
        check_pairs(domain, u.shape[0], kernel.heads)
        if query_domain is not None:
            check_query(kernel, u, domain, query, query_domain, operator, given=given)
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
        # Every call makes one, so the fields are passed by position, which is faster.
        return Facts(
            self.layout,
            self.uy.shape[-2],
            self.uy.device.type,
            self.training,
            torch.compiler.is_compiling(),
            self.uy.shape[0],
            self.layout.sparse,
        )

    def dense(self) -> Problem:
        """Return the same problem with all pairs written out, for definitions. O(Nq·Nk)."""
        if not self.quadrature.sparse:
            return self
        return subproblems.dense(self)

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
        return subproblems.rows(self, rows)


def _check_kinds(
    u: object,
    domain: object,
    query: object,
    query_domain: object,
) -> None:
    """Raise ShapeError for features that are not tensors, DomainError for domains that are not."""
    if not isinstance(u, Tensor):
        check_features(u=u)
    if query is not None:
        check_features(query=query)
    if domain is not None and not isinstance(domain, Domain):
        check_domains(domain=domain)
    if query_domain is not None and not isinstance(query_domain, Domain):
        check_domains(query_domain=query_domain)


def _features_at_queries(
    kernel: Kernel,
    query: Tensor | None,
    uy: Tensor,
    queries: int,
) -> Tensor:
    """Return features at the queries by head, like those at the keys, ``uy``.

    They are zeros without memory where ``query`` is None because nothing reads them.
    """
    if query is None:
        return uy.new_zeros(()).expand(*uy.shape[:2], queries, uy.shape[3])
    return by_head_of(kernel, query)


# --- features by head -----------------------------------------------------------------------------


def by_head_of(kernel: Kernel, u: Tensor) -> Tensor:
    """Give each head of the kernel its part of the features u (B, N, dim).

    Returns one slice per head, (B, H, N, dim / H). A kernel that is ``whole`` reads all features in
    every head: (B, 1, N, dim), which broadcasts over the heads.
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
