"""Monte Carlo for ITNet's kernel: hidden units of the drawn pairs from terms of either end."""

from __future__ import annotations

from torch import Tensor

from ...forms.monte_carlo.drawn import DrawnKeys, LatticeKeys, SampledKeys, Samples
from ...integral import Memory, Problem
from ...integral.place import grid_displacements
from ...ops.anchors import sampled_mlp_kernel
from .capabilities import SplitHidden


class HiddenDraws(DrawnKeys):
    """Base of both: the first layer splits, so that nothing wide is computed per pair."""

    def numbers_per_pair(self, kernel: SplitHidden) -> int:
        return getattr(kernel, "width", 64) + 4 * kernel.d_in + 64

    def key_terms(self, kernel: SplitHidden, problem: Problem) -> Memory:
        """Terms of the keys in the hidden units: on a regular grid a table of displacements
        instead of columns for them.
        """
        grid = problem.layout.grid
        if grid is None:
            return kernel.key_terms(problem.y, problem.uy, columns=True)
        displacements, index = grid_displacements(problem.x[0], grid)
        table = kernel.table(displacements)
        lookup = {} if table is None else {"table": table.mT, "place": index}
        return kernel.key_terms(problem.y, problem.uy, columns=False) | lookup

    def integral(
        self, kernel: SplitHidden, problem: Problem, samples: Samples, keys: Memory
    ) -> Tensor:
        readout, bias = kernel.readout()
        on_grid = (problem if problem.parent is None else problem.parent).layout.grid is not None
        queries = kernel.query_terms(problem.x, problem.ux, columns=not on_grid)
        if "place" in keys:
            place = keys["place"]
            queries["place"] = place if problem.index is None else place[problem.index]
        return sampled_mlp_kernel(
            samples.index, samples.weight, problem.uy, readout, bias, keys, queries
        )


class HiddenSamples(HiddenDraws, SampledKeys):
    """Keys drawn from the proposal."""


class HiddenLattice(HiddenDraws, LatticeKeys):
    """Keys at an even lattice of the proposal's levels."""
