"""How far a student's attention is from its teacher's: what distillation minimises and what a
report shows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.backend import full_precision

# ε of the training loss: a ReLU's zero must not make it infinite.
FLOOR = 1e-6


def divergence(
    teacher: Float[Tensor, "b h q k"],
    student: Float[Tensor, "b h q k"],
    real: Bool[Tensor, "b q"] | None = None,
    visible: Bool[Tensor, "#b #h #q k"] | None = None,
) -> Float[Tensor, ""]:
    r"""Return the training loss: the mean over real queries and heads of
    :math:`\sum_j p_j \big(\log p_j - \log\frac{s_j + \varepsilon}{1 + n\varepsilon}\big)` over a
    query's n visible keys, in nats.

    The student's weights are mixed with ε = 1e-6 of each visible key, so that they stay a
    distribution: the loss is a divergence, never negative.

    Args:
        teacher, student: weights that a query gives its keys; each row sums to one. The teacher
            gets no gradient.
        real: queries that are not padding; the others do not count.
        visible: the keys that a query sees; None for all.

    Cost: O(Nq·Nk) per head. In float32 at least.

    Reference: LUNA, §10.2: the student's distribution is matched to the teacher's.

    Example:
        >>> p = torch.tensor([[[[0.5, 0.5]]]])
        >>> q = torch.tensor([[[[1.0, 0.0]]]])
        >>> abs(float(divergence(p, p))) < 1e-6, float(divergence(p, q)) > 1
        (True, True)
    """
    with full_precision(teacher):
        dtype = torch.promote_types(teacher.dtype, torch.float32)
        p = teacher.detach().to(dtype)
        s = student.to(dtype)
        count = torch.full_like(p[..., :1], s.shape[-1])
        if visible is not None:
            count = visible.sum(-1, keepdim=True).to(dtype)

        # Where p = 0, s + ε is positive and the term is zero.
        terms = torch.special.xlogy(p, p) - p * (s + FLOOR).log()
        log_total = (count[..., 0] * FLOOR).log1p()
        # (B, H, Nq)
        rows = terms.sum(-1) + p.sum(-1) * log_total
        if real is None:
            return rows.mean()

        heads = rows.shape[1]
        rows = torch.where(real[:, None], rows, 0.0)
        counted = (real.sum() * heads).clamp(min=1)
        return rows.sum() / counted


class ExactDivergence(NamedTuple):
    """KL(teacher ‖ student) without an ε, of the rows where it is finite.

    Attributes:
        total: the sum over rows, a query and a head each.
        rows: their number.
        zero_rows: further rows, in which the student gives nothing to a key that the teacher
            weighs: their divergence is infinite.
    """

    total: float
    rows: int
    zero_rows: int

    @property
    def mean(self) -> float:
        """The mean over the finite rows; NaN where there is none."""
        if not self.rows:
            return float("nan")
        return self.total / self.rows

    def __add__(self, other: object) -> ExactDivergence:
        if not isinstance(other, ExactDivergence):
            return NotImplemented
        return ExactDivergence(
            self.total + other.total,
            self.rows + other.rows,
            self.zero_rows + other.zero_rows,
        )


@torch.no_grad()
def exact_divergence(
    teacher: Float[Tensor, "b h q k"],
    student: Float[Tensor, "b h q k"],
    real: Bool[Tensor, "b q"] | None = None,
) -> ExactDivergence:
    r"""Return :math:`\mathrm{KL}(p\,\|\,s) = \sum_j p_j\log(p_j/s_j)` of each row in float64, the
    rows where it is infinite apart.

    Args:
        teacher, student, real: see :func:`divergence`. Rows are divided by their sums in float64.

    Example:
        >>> p = torch.tensor([[[[0.5, 0.5], [1.0, 0.0]]]])
        >>> q = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
        >>> found = exact_divergence(p, q)
        >>> round(found.mean, 4), found.rows, found.zero_rows
        (0.6931, 1, 1)
    """
    p = _rows_of_one(teacher.double())
    s = _rows_of_one(student.double())
    terms = torch.special.xlogy(p, p) - torch.special.xlogy(p, s)
    rows = terms.sum(-1)
    counted = torch.ones_like(rows, dtype=torch.bool)
    if real is not None:
        counted = real[:, None].expand_as(rows)

    finite = counted & rows.isfinite()
    infinite = counted & ~rows.isfinite()
    total = torch.where(finite, rows, 0.0).sum()
    return ExactDivergence(
        total=float(total),
        rows=int(finite.sum()),
        zero_rows=int(infinite.sum()),
    )


def _rows_of_one(weights: Tensor) -> Tensor:
    """Return weights whose rows sum to one; a row of zeros stays as it is."""
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


class Noted:
    """Divergences of a layer on one forward pass, in which a model with shared layers (ALBERT)
    calls it several times.
    """

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self.exact: ExactDivergence | None = None
        self.read = False

    def add(self, value: Tensor) -> None:
        """Add the divergence of a call; the first after :meth:`mean` begins a new pass."""
        if self.read:
            self.clear()
        self.values.append(value)

    def measure(self, value: ExactDivergence) -> None:
        """Add an exact divergence to those since the last :meth:`clear`."""
        if self.exact is not None:
            value = self.exact + value
        self.exact = value

    def mean(self) -> Tensor | None:
        """Return the mean over the calls of the pass, and end it; None without any."""
        self.read = True
        if not self.values:
            return None
        return torch.stack(self.values).mean()

    def clear(self) -> None:
        """Forget the pass."""
        self.values = []
        self.exact = None
        self.read = False
