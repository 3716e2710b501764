"""Static facts of an integral, known before any number is: what the choice of a form depends on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..domain import Domain
from ..edges import Edges
from ..ops.backend import followed
from .checks import check_domains, check_layout

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
    """Static facts about the domains of keys and queries, which a kernel may refuse.

    Attributes:
        keys, queries: extents of the regular grids that keys and queries form, or None; of a domain
            over several processes, those of all ranks together.
        cross: queries live on another domain than keys, have features of their own, or are one
            rank's, whose edges lead to the keys of all ranks.
        given: the caller passed that domain; it is not the kernel's ``output_domain``.
        causal, pairs, padded: whether there is an order, a pair mask or bias, padding.
        measure: the measure's name, as in :class:`fredholm.Domain`.
        fixed: the keys' positions are shared by the batch and need no gradient.
        stepping: one point at a time.
        sharded: keys and queries are one rank's part of a domain over several processes.
        edges: the pairs are edges, so that a query sees few keys; ``pairs`` is then true as well.
        reach: how far a query sees along a line, or None; ``pairs`` is then true as well.
        images: a query sees the nearest image of each key in a periodic box.
        sparse: a query sees few keys, by edges or within a reach; follows from both.
        grid: the regular grid at fixed positions that queries and keys share, or None; follows.
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
    sparse: bool = field(init=False)
    grid: tuple[int, ...] | None = field(init=False)

    def __post_init__(self) -> None:
        sparse = self.edges or self.reach is not None
        object.__setattr__(self, "sparse", sparse)
        grid = None
        if self.fixed and not self.cross and not self.stepping:
            grid = self.keys
        object.__setattr__(self, "grid", grid)

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
        cls,
        domain: Domain,
        query_domain: Domain | None,
        given: bool,
        stepping: bool,
    ) -> Layout:
        """Return :meth:`of` without its cache. ``given`` and ``stepping`` are attributes of the
        result.
        """
        target = query_domain
        if target is None:
            target = domain
        fixed = domain.positions.dim() == 2 and not followed(domain.positions)
        edges = None
        if isinstance(domain.pairs, Edges):
            edges = domain.pairs
        return cls(
            keys=grid_of(domain),
            queries=grid_of(target),
            # Edges of a sharded domain lead from this rank's queries to the keys of all ranks, so
            # queries and keys are different points.
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

    def dense(self) -> Layout:
        """Return the layout of the same domain with a mask of all pairs."""
        if not self.sparse:
            return self
        return replace(self, edges=False, reach=None, images=False)


class Facts(NamedTuple):
    """All facts that the choice of a form may depend on.

    They are static, so that traced code takes the same form as eager code: never the value of a
    tensor.

    Attributes:
        layout: where keys and queries live.
        keys: how many there are. Traced lengths may be symbols: comparing them fixes them.
        device: the type of the features' device, as ``"cpu"``.
        training: the kernel's mode.
        batch: how many samples come at once.
        tracing: inside torch.compile or torch.export.
        sparse: whether a query sees few keys, by edges or within a reach.
    """

    layout: Layout
    keys: int = 0
    device: str = "cpu"
    training: bool = False
    tracing: bool = False
    batch: int = 1
    sparse: bool = False

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

        batch = 1
        if domain.positions.dim() > 2:
            batch = domain.positions.shape[0]
        return cls(
            layout,
            keys=domain.size,
            device=domain.positions.device.type,
            training=kernel.training,
            tracing=torch.compiler.is_compiling(),
            batch=batch,
            sparse=layout.sparse,
        )


def grid_of(domain: Domain) -> tuple[int, ...] | None:
    """Return the extents of the regular grid that a domain is, or is a part of; or None."""
    if domain.shards is None:
        return domain.shape
    return domain.shards.extents
