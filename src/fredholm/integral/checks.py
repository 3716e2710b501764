"""Checks of an operator's arguments and of its layers: each raises the error that names the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..arguments import describe, refuse_kind
from ..domain import MEASURES, Domain
from ..edges import Edges
from ..errors import ConversionError, DomainError, OptionError, ShapeError
from ..quadrature import Rows
from ..registry import qualified_name

if TYPE_CHECKING:
    from .contract import Kernel
    from .facts import Layout, OperatorFacts

# Measures that divide by the mass that a query sees.
RENORMALISED = tuple(name for name, (_, renormalised) in MEASURES.items() if renormalised)


# --- kinds and sizes ------------------------------------------------------------------------------


def check_features(**tensors: object) -> None:
    """Raise ShapeError for features that are not tensors, named in the error by their keywords."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise ShapeError(refuse_kind(name, x, "a tensor of features"))


def check_domains(**domains: object) -> None:
    """Raise DomainError where domains are not of class :class:`fredholm.Domain`."""
    for name, x in domains.items():
        if not isinstance(x, Domain):
            raise DomainError(refuse_kind(name, x, "a Domain"))


def check_width(query: Tensor, queries: int | str, dim: int) -> None:
    """Raise ShapeError unless features at the queries have the shape (B, Nq, dim)."""
    if query.dim() != 3 or query.shape[-1] != dim:
        raise ShapeError(
            f"query: expected shape (B, {queries}, {dim}), got {tuple(query.shape)}; its last "
            "dimension is the width of u"
        )


def check_dtype(
    u: Tensor,
    name: str,
    dtype: torch.dtype | None,
) -> None:
    """Check that features are floating-point numbers of the parameters' dtype.

    Under autocast they may be of another dtype, except float64, which autocast does not convert.

    Raises:
        ShapeError: other features.
    """
    if not u.is_floating_point():
        raise ShapeError(
            f"{name}: expected floating-point numbers, got {u.dtype}; pass {name}.float()"
        )
    if dtype is None or dtype == u.dtype:
        return

    double = torch.float64 in (dtype, u.dtype)
    if double or u.is_meta or not torch.is_autocast_enabled(u.device.type):
        raise ShapeError(
            f"{name}: expected the dtype of the operator's parameters, {dtype}, got {u.dtype}; "
            f"pass {name}.to({dtype}), or convert the operator with operator.to({u.dtype})"
        )


def check_fit(
    u: Tensor,
    domain: Domain,
    name: str,
    domain_name: str,
) -> None:
    """Raise ShapeError where features and their domain differ in points, batch or device."""
    check_sizes(u, domain.size, domain.batch, name, domain_name)
    check_device(u, domain, name, domain_name)


def check_device(
    u: Tensor,
    domain: Domain,
    name: str,
    domain_name: str,
) -> None:
    """Raise ShapeError where features and their domain are on different devices."""
    device = domain.positions.device
    if device != u.device:
        raise ShapeError(
            f"{domain_name}: expected the device of {name}, {u.device}, got {device}; move it with "
            f"{domain_name}.to({str(u.device)!r})"
        )


def check_sizes(
    u: Tensor,
    points: int,
    batch: int | None,
    name: str,
    domain_name: str,
) -> None:
    """Raise ShapeError where features are for other points or samples than a domain."""
    samples, rows = u.shape[:2]
    if rows != points:
        raise ShapeError(
            f"{name}: expected the {points} points of its {domain_name}, got {rows}; pass features "
            "of these points, or build the domain for them"
        )
    if batch is not None and batch != 1 and batch != samples:
        raise ShapeError(
            f"{name}: expected the batch size of its {domain_name}, {batch}, got {samples}; pass "
            "both for the same samples"
        )


def check_pairs(domain: Domain, batch: int, heads: int) -> None:
    """Raise ShapeError where a domain's pairs are for other samples or heads."""
    if isinstance(domain.pairs, Edges):
        _check_edges(domain.pairs, batch, heads)
        return
    if domain.pairs is None or domain.pairs.dim() == 2:
        return

    shape = tuple(domain.pairs.shape)
    for size, need, unit in zip(shape[:-2], (batch, heads), ("samples", "heads")):
        if size not in (1, need):
            raise ShapeError(
                f"pairs: expected {need} {unit} or one for all, got {size} in shape {shape}; "
                f"build the domain with pairs for these {unit}"
            )


def _check_edges(edges: Edges, batch: int, heads: int) -> None:
    density = edges.log_density
    by_head = 1
    if density is not None and density.dim() > 1:
        by_head = density.shape[1]

    for size, need, unit in ((edges.batch, batch, "graphs"), (by_head, heads, "heads")):
        if size not in (1, need):
            raise ShapeError(
                f"expected edges of {need} {unit} or of one, got {size}; build the domain with "
                f"edges for these {unit}"
            )


def check_steps(kernel: Kernel, domain: Domain) -> None:
    """Raise DomainError for edges that causal steps do not read: a step takes keys at their own
    positions, and no features of pairs.
    """
    edges = domain.pairs
    if not isinstance(edges, Edges):
        return
    if edges.shift is not None and kernel.reads_position:
        raise DomainError(
            f"init_state: expected keys at their own positions, got {edges!r} in a periodic box, "
            f"and {type(kernel).__name__} reads positions; call the operator on the domain instead"
        )
    if edges.features is not None:
        raise DomainError(
            f"init_state: expected edges without features, got {edges!r}; call the operator on the "
            "domain instead, or leave the features out"
        )


def check_query(
    kernel: Kernel,
    u: Tensor,
    domain: Domain,
    query: Tensor | None,
    target: Domain,
    operator: OperatorFacts,
    *,
    given: bool,
) -> None:
    """Raise ShapeError where features at the queries are missing, or do not fit their domain.

    Args:
        kernel, operator: either may read features at the queries.
        u, domain: features at the keys, and where they lie.
        query, target: the same of the queries; ``query`` is None where the call has none.
        given: whether the caller chose the queries; else they are the kernel's own output grid.

    Raises:
        OptionError: a pointwise term beside a kernel that writes to a grid of its own.
    """
    if query is None:
        if operator.pointwise and not given:
            raise OptionError(
                f"residual: expected residual=False beside {type(kernel).__name__}, which writes "
                "to a grid of its own, got a pointwise term W, which reads features there, and u "
                "has none; build the operator with residual=False"
            )
        if operator.pointwise or kernel.reads_query:
            reader = type(kernel).__name__
            if operator.pointwise:
                reader = "W"
            raise ShapeError(
                f"query: expected features at the queries, which {reader} reads, got none; pass "
                f"query=(B, {target.size}, {operator.dim})"
            )
        check_sizes(u, u.shape[1], target.batch, "u", "query_domain")
        check_device(u, target, "u", "query_domain")
    else:
        check_width(query, target.size, operator.dim)
        check_fit(query, target, "query", "query_domain")
        check_dtype(query, "query", operator.dtype)
        if query.shape[0] != u.shape[0]:
            raise ShapeError(
                f"query: expected the batch size of u, {u.shape[0]}, got {query.shape[0]}; pass "
                "both for the same samples"
            )

    if target.dim != domain.dim:
        raise ShapeError(
            f"query_domain: expected positions of dimension {domain.dim}, as in domain, got "
            f"{target.dim}; build both in one space"
        )


def check_rows(rows: Rows, queries: int) -> None:
    """Raise ShapeError unless ``rows`` is None, or a list of some of the queries."""
    if rows is None:
        return

    listed: object = rows
    if isinstance(rows, Tensor) and rows.dim() == 1 and not rows.is_floating_point():
        listed = rows.tolist()
    plain = isinstance(listed, (list, tuple)) and all(type(row) is int for row in listed)
    if plain and listed and all(0 <= row < queries for row in listed):  # type: ignore[union-attr]
        return

    got = describe(rows)
    if plain:
        got = f"{listed}"
    raise ShapeError(
        f"rows: expected a list of queries, at least one, each from 0 to {queries - 1}, got {got}; "
        "leave rows out for all queries"
    )


# --- the kernel's conditions ----------------------------------------------------------------------


def check_layout(kernel: Kernel, layout: Layout, layer: str | None) -> None:
    """Raise DomainError for a domain on which the kernel, or the layer that it was made from, has
    no meaning.
    """
    kernel.check(layout)
    if layer is not None:
        check_measure(kernel, layout, layer)


def check_measure(kernel: Kernel, layout: Layout, layer: str) -> None:
    """Raise DomainError for a measure that divides by the mass of the points, on a layer that adds
    its points up.
    """
    if kernel.sums and layout.measure in RENORMALISED:
        raise DomainError(
            f"{layer}: expected measure='counting', got {layout.measure!r}; the layer adds up its "
            "points with a mass of one each, and this measure would divide the sum by the mass "
            "that a query sees. Build the domain with measure='counting', or set "
            "operator.layer = None to take the kernel as an integral over this measure"
        )


# --- layers of the caller's -----------------------------------------------------------------------


def check_affine(layer: nn.Module, name: str) -> None:
    """Check that a layer computes W x + b of its ``weight`` and ``bias``: a linear layer of torch,
    or a class that declares so by ``affine = True``.

    Raises:
        OptionError: another layer.
    """
    kind = type(layer)
    if kind.forward is nn.Linear.forward or getattr(kind, "affine", False):
        return
    raise OptionError(
        f"{name}: expected an nn.Linear, got {qualified_name(kind)}, whose forward would not run, "
        "because its weight and bias alone are read. Merge what was added to it (PEFT: "
        "merge_and_unload), leave it out of quantisation, or write the change with "
        "torch.nn.utils.parametrize. A class of your own whose weight and bias give all that it "
        "computes declares so by affine = True"
    )


def check_dropout(training: bool, rate: float) -> None:
    """Raise ConversionError where dropout is active: a random layer is not an integral operator."""
    if training and rate:
        raise ConversionError(
            f"expected no dropout in training mode, got dropout={rate}; it is active there, and a "
            "random layer is not an integral operator: call .eval(), or set the dropout to 0 to "
            "train without it"
        )
