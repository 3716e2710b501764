"""Denominators of a linear attention whose features may be negative, and a watch on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..ops.backend import transforms
from ..ops.linear_attention import linear_attention
from ..quadrature import Quadrature
from .feature_map import FeatureMap

# Calls in training at which denominators are counted. Each count computes the features once more.
COUNTED_CALLS = (1, 10, 100, 1_000, 10_000)


def denominators(query: Tensor, key: Tensor, quadrature: Quadrature) -> Tensor:
    r"""Return :math:`Z_i = \sum_j w_{ij}\,\phi_i\cdot\psi_j`, (B, H, Nq).

    Args:
        query, key: features φ (B, H, Nq, r) and ψ (B, H, Nk, r).
        quadrature: the weights w, with the kernel's decay where it has one.
    """
    # Without pairs the sums need no matrix of all pairs: O(N·r).
    ordered = quadrature.query_time is not None
    if quadrature.density is None and (quadrature.triangular or not ordered):
        ones = key.new_ones(*key.shape[:-1], 1)
        return linear_attention(query, key, ones, quadrature, floor=None)[..., 0]

    weights = quadrature.weights().to(query.dtype)
    return (query @ key.mT * weights).sum(-1)


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
            compute: returns them, see :func:`denominators`; called only where they are counted.
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
