"""Capabilities of kernels that ITNet's forms ask for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...integral import HiddenReadout, Problem
from ...integral.capabilities import Expanded, capability


@capability
class SplitHidden(HiddenReadout):
    """The first layer splits into a query term, a key term, a product and a displacement term:
    nothing wide per pair.

    The dictionaries hold the arguments, by name, of
    :func:`fredholm.families.itnet.hidden_first.mlp_kernel`.
    """

    @abstractmethod
    def key_terms(self, y: Tensor, uy: Tensor, *, columns: bool) -> dict[str, Tensor]:
        """Terms of the keys, points on dimension -2; ``columns``: the displacement term as
        appended columns.
        """

    @abstractmethod
    def query_terms(self, x: Tensor, ux: Tensor, *, columns: bool) -> dict[str, Any]:
        """Terms of the queries and of the layer itself."""

    def both_terms(self, problem: Problem) -> dict[str, Any]:
        """Both ends' terms without columns of displacements; what they share may be made once."""
        p = problem
        terms: dict[str, Any] = dict(self.key_terms(p.y, p.uy, columns=False))
        return terms | self.query_terms(p.x, p.ux, columns=False)

    @abstractmethod
    def table(self, displacements: Tensor) -> Tensor | None:
        """Displacement term at given displacements (D, p), as (1 | H, w, D), or None where there is
        no such term.
        """


@capability
class Pooled(Expanded):
    """Both factors' last layers are linear, so that where all queries see all keys their hidden
    units are integrated first.
    """

    @abstractmethod
    def pooled(self, problem: Problem, total: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """∫ K u dμ, (B, H, Nq, d_out); of a part of a problem, with the moment of the whole, which
        ``total`` makes from that of the part.
        """
