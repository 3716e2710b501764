"""Monte Carlo for ITNet's kernel: hidden units of the drawn pairs from terms of both ends."""

from __future__ import annotations

from torch import Tensor

from ...forms.monte_carlo.drawn import DrawnKeys, LatticeKeys, SampledKeys, Samples
from ...integral import Memory, Problem
from ...integral.place import grid_displacements
from ...ops.anchors import sampled_mlp_kernel
from .capabilities import SplitHidden


class HiddenDraws(DrawnKeys):
    """Base of both forms: the first layer splits, so that nothing wide is computed per pair."""

    def numbers_per_pair(self, kernel: SplitHidden) -> int:
        width = getattr(kernel, "width", 64)
        return width + 4 * kernel.d_in + 64

    def key_terms(self, kernel: SplitHidden, problem: Problem) -> Memory:
        """Return the keys' terms of the hidden units. On a regular grid a table of displacements
        replaces the columns for them.
        """
        grid = problem.layout.grid
        if grid is None:
            return kernel.key_terms(problem.y, problem.uy, columns=True)

        displacements, index = grid_displacements(problem.x[0], grid)
        terms = kernel.key_terms(problem.y, problem.uy, columns=False)
        table = kernel.table(displacements)
        if table is not None:
            terms |= {"table": table.mT, "place": index}
        return terms

    def integral(
        self,
        kernel: SplitHidden,
        problem: Problem,
        samples: Samples,
        keys: Memory,
    ) -> Tensor:
        # Some queries of a grid are no grid themselves, but their keys have the grid's table.
        complete = problem.parent or problem
        on_grid = complete.layout.grid is not None
        queries = kernel.query_terms(
            problem.x,
            problem.ux,
            columns=not on_grid,
        )
        if "place" in keys:
            queries["place"] = keys["place"]
            if problem.index is not None:
                queries["place"] = keys["place"][problem.index]

        readout, bias = kernel.readout()
        return sampled_mlp_kernel(
            samples.index,
            samples.weight,
            problem.uy,
            readout,
            bias,
            keys,
            queries,
        )


class HiddenSamples(HiddenDraws, SampledKeys):
    """Keys drawn from the proposal."""


class HiddenLattice(HiddenDraws, LatticeKeys):
    """Keys at an even lattice of the proposal's levels."""
