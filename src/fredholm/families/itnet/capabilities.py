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
    """A first layer that splits into a query term, a key term, a product and a displacement term,
    so that nothing wide is computed per pair.

    The dictionaries hold the arguments, by name, of
    :func:`fredholm.families.itnet.hidden_first.mlp_kernel`.
    """

    @abstractmethod
    def key_terms(
        self,
        y: Tensor,
        uy: Tensor,
        *,
        columns: bool,
    ) -> dict[str, Tensor]:
        """Return the terms of the keys, points on dimension -2. With ``columns`` the displacement
        term is among them, as appended columns.
        """

    @abstractmethod
    def query_terms(
        self,
        x: Tensor,
        ux: Tensor,
        *,
        columns: bool,
    ) -> dict[str, Any]:
        """Return the terms of the queries and of the layer itself."""

    def both_terms(self, problem: Problem) -> dict[str, Any]:
        """Return both ends' terms without columns of displacements. A kernel may override it to
        compute shared parts once.
        """
        of_keys = self.key_terms(problem.y, problem.uy, columns=False)
        terms: dict[str, Any] = dict(of_keys)
        of_queries = self.query_terms(problem.x, problem.ux, columns=False)
        return terms | of_queries

    @abstractmethod
    def table(self, displacements: Tensor) -> Tensor | None:
        """Return the displacement term at given displacements (D, p), as (1 | H, w, D), or None
        where there is no such term.
        """


@capability
class Pooled(Expanded):
    """Two factors whose last layers are linear, so that where all queries see all keys their hidden
    units are integrated first.
    """

    @abstractmethod
    def pooled(
        self,
        problem: Problem,
        total: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Return ∫ K u dμ, (B, H, Nq, d_out). Where the problem is one rank's part of a larger one,
        ``total`` returns the moment of the larger one from that of the part.
        """
