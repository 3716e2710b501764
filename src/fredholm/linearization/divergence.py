"""How far a student's attention is from its teacher's: what distillation minimises and what a
report shows.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.backend import full_precision

FLOOR = (
    1e-6  # of a student's weight inside the logarithm: a ReLU's zero must not make a loss infinite
)


def divergence(
    teacher: Float[Tensor, "b h q k"],
    student: Float[Tensor, "b h q k"],
    real: Bool[Tensor, "b q"] | None = None,
) -> Float[Tensor, ""]:
    r"""Mean over real queries and heads of
    :math:`\mathrm{KL}(p \| s) = \sum_j p_j (\log p_j - \log(s_j + \varepsilon))`, in nats.

    Args:
        teacher, student: weights that a query gives its keys; each row sums to one. The teacher
            gets no gradient.
        real: queries that are no padding; the others count nothing.

    Cost: O(Nq·Nk) a head. In float32 at least.

    Reference: LUNA, §10.2: the student's distribution is matched to the teacher's.

    Example:
        >>> p = torch.tensor([[[[0.5, 0.5]]]])
        >>> q = torch.tensor([[[[1.0, 0.0]]]])
        >>> abs(float(divergence(p, p))) < 1e-5, float(divergence(p, q)) > 1
        (True, True)
    """
    with full_precision(teacher):
        p = teacher.detach().to(torch.promote_types(teacher.dtype, torch.float32))
        s = student.to(p.dtype)
        rows = (torch.special.xlogy(p, p) - p * (s + FLOOR).log()).sum(-1)
        if real is None:
            return rows.mean()
        rows = torch.where(real[:, None], rows, 0.0)
        return rows.sum() / (real.sum() * rows.shape[1]).clamp(min=1)


class Noted:
    """What a layer diverged by on one forward pass: the mean over its calls, of which a model with
    shared layers (ALBERT) makes several.
    """

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self.read = False

    def add(self, value: Tensor) -> None:
        """Another call; the first after a reading begins a new pass."""
        if self.read:
            self.clear()
        self.values.append(value)

    def mean(self) -> Tensor | None:
        """Of the calls noted since the pass before was read; None without any."""
        self.read = True
        return torch.stack(self.values).mean() if self.values else None

    def clear(self) -> None:
        """Forget the pass."""
        self.values, self.read = [], False
