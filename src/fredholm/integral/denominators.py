"""Denominators of a linear attention whose features may be negative, and a watch on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..edges import Edges
from ..ops.backend import transforms
from ..ops.linear_attention import linear_attention
from ..quadrature import Quadrature, mass_in_reach
from .feature_map import FeatureMap

# Calls in training at which denominators are counted. Each count computes the features once more.
COUNTED_CALLS = (1, 10, 100, 1_000, 10_000)

NUMBERS_AT_ONCE = 1 << 22
"""Features that are gathered along edges at a time."""


def denominators(query: Tensor, key: Tensor, quadrature: Quadrature) -> Tensor:
    r"""Return :math:`Z_i = \sum_j w_{ij}\,\phi_i\cdot\psi_j`, (B, H, Nq).

    Args:
        query, key: features φ (B, H, Nq, r) and ψ (B, H, Nk, r).
        quadrature: the weights w, with the kernel's decay where it has one.
    """
    # Weights that fade over points between two others are written out below.
    if quadrature.sparse and quadrature.decay is None:
        if quadrature.edges is not None:
            sums = _sums_on_edges(query, key, quadrature, quadrature.edges)
        else:
            sums = _sums_in_reach(query, key, quadrature)
        return quadrature.scaled(sums[..., None])[..., 0]

    # Without pairs the sums need no matrix of all pairs: O(N·r).
    ordered = quadrature.query_time is not None
    pairs = quadrature.sparse or quadrature.density is not None
    if not pairs and (quadrature.triangular or not ordered):
        ones = key.new_ones(*key.shape[:-1], 1)
        return linear_attention(query, key, ones, quadrature, floor=None)[..., 0]

    weights = quadrature.weights().to(query.dtype)
    return (query @ key.mT * weights).sum(-1)


def _sums_on_edges(
    query: Tensor,
    key: Tensor,
    quadrature: Quadrature,
    edges: Edges,
) -> Tensor:
    """Return :func:`denominators` along edges without the scale: O(E·r) time, O(N·r) memory."""
    mass = quadrature.mass.to(key.dtype)
    key = key * mass[:, None, :, None]
    if edges.batch > 1:
        # Edges number the points of all graphs through: the batch is one graph.
        query = query.movedim(0, 1).flatten(1, 2)[None]
        key = key.movedim(0, 1).flatten(1, 2)[None]

    target = edges.targets()
    source = edges.flat_source()
    sums = query.new_zeros(query.shape[:-1])
    numbers_per_edge = query[:, :, :1].numel()
    step = max(1, NUMBERS_AT_ONCE // numbers_per_edge)
    for start in range(0, edges.count, step):
        part = slice(start, start + step)
        pairs = query[:, :, target[part]] * key[:, :, source[part]]
        products = pairs.sum(-1)
        if edges.log_density is not None:
            # (E,), or (H, E) of densities by head.
            density = edges.log_density[part].exp().movedim(0, -1)
            products = products * density.to(products.dtype)
        sums = sums.index_add(2, target[part], products)

    if edges.batch > 1:
        by_graph = sums[0].unflatten(1, (edges.batch, edges.queries))
        sums = by_graph.movedim(1, 0)
    return sums


def _sums_in_reach(query: Tensor, key: Tensor, quadrature: Quadrature) -> Tensor:
    """Return :func:`denominators` within a reach without the scale: O(N·reach·r) time."""
    assert quadrature.reach is not None
    mass = quadrature.mass.to(key.dtype)
    weighed = key * mass[:, None, :, None]
    seen = mass_in_reach(weighed.mT, quadrature.valid, *quadrature.reach)
    return (query * seen.mT).sum(-1)


def counted_denominators(
    query: Tensor,
    key: Tensor,
    quadrature: Quadrature,
    real: Tensor | None,
) -> Tensor:
    """Return :func:`denominators` of the queries that are real and see a key, in one row.

    All others have a sum over no keys, which is zero, and no weights that it could spoil.

    Args:
        query, key, quadrature: see :func:`denominators`.
        real: queries that are not padding, (1 | B, Nq), or None where all are.
    """
    sums = denominators(query, key, quadrature)
    counted = torch.ones_like(sums, dtype=torch.bool)
    sees = quadrature.sees()
    if sees is not None:
        counted = counted & sees
    if real is not None:
        counted = counted & real[:, None]
    if sums.is_meta:
        return sums.flatten()
    return sums[counted]


class DenominatorWatch:
    """Warn how often the denominators of maps that are not positive are zero or negative.

    Where features may be negative, the sum over the keys can cancel. A query whose denominator is
    near zero answers with values that are orders of magnitude too large, and one whose denominator
    is negative with weights of the wrong sign.

    Args:
        names: of the maps.
    """

    def __init__(self, names: Sequence[str]):
        self.names = names
        self.calls = 0

    @classmethod
    def of(cls, *maps: Callable[[Tensor], Tensor] | None) -> DenominatorWatch | None:
        """Return a watch for maps of which one is not positive, else None."""
        known = [one for one in maps if isinstance(one, FeatureMap)]
        names = sorted({type(one).__name__ for one in known if not one.positive})
        if not names:
            return None
        return cls(names)

    @torch.no_grad()
    def observe(self, compute: Callable[[], Tensor]) -> None:
        """Count the denominators of one call in training, at the calls of :data:`COUNTED_CALLS`.

        Args:
            compute: returns them, see :func:`counted_denominators`; called only where they are
                counted.
        """
        if torch.compiler.is_compiling() or transforms():
            return
        self.calls += 1
        if self.calls not in COUNTED_CALLS:
            return
        values = compute()
        if values.is_meta:
            return
        count = values.numel()
        vanished = int((values <= 0).sum())
        if vanished:
            warnings.warn(
                f"{' and '.join(self.names)}: expected positive denominators, got "
                f"{vanished:,} of {count:,} ({vanished / count:.1%}) that are zero or negative, "
                f"at call {self.calls:,}; their queries get weights of the wrong sign or size: "
                "take a positive feature map, such as 'performer'",
                stacklevel=2,
            )
