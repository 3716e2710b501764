"""LUNA's features on a GPU: a bank of scalar networks is evaluated in registers, where its values
are used, and never stored.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from ...forms.separable import Chunks, SeparableForm, Sums, expanded
from ...integral import Problem, Separable, with_offset
from ...integral.capabilities import capability
from ...ops.backend import wants_triton
from ...ops.linear_attention import banked_attention


@capability
class Banked(Separable):
    """The features are a bank of scalar networks at projections, which a GPU evaluates where they
    are used and does not keep.
    """

    @abstractmethod
    def banked(self, problem: Problem) -> dict[str, Any] | None:
        """Scalars, banks and rules of :func:`fredholm.ops.linear_attention.banked_attention`; None
        where more acts on the features.
        """


class BankedForm(SeparableForm):
    """Base of both: Triton's kernels where they are asked for and the features are a bank."""

    def respond(self, kernel: Banked, problem: Problem) -> Tensor:
        options = self.strategy
        bank = kernel.banked(problem) if wants_triton(options.backend) else None
        if bank is None:
            return super().respond(kernel, problem)
        out = banked_attention(
            value=kernel.values(problem.y, problem.uy),
            quadrature=problem.quadrature,
            floor=kernel.floor,
            chunk=options.chunk,
            backend=options.backend,
            **bank,
        )
        return with_offset(expanded(kernel, problem, out), kernel, problem)


class BankedSums(BankedForm, Sums):
    """Two sums over the keys."""


class BankedChunks(BankedForm, Chunks):
    """Causal chunks."""
