"""Layers that commute with the shifts of a periodic grid: K(x, y) = κ(x - y mod 1).

A Fourier multiplier is one. The kernel reads κ off the layer's response to an impulse; then the
converter of ``neuralop``'s ``SpectralConv``.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..domain import Domain
from ..errors import DomainError
from ..integral import IntegralOperator, LatticeKernel, Layout, OwnForm, Problem
from ..integral.conversion import refuse_unless, register_converter
from ..integral.lattice import call_on_grid, read_grid, write_points
from ..integral.window import Window
from .parts import at_queries, bind


class PeriodicKernel(LatticeKernel, OwnForm):
    r"""A translation-invariant kernel on a periodic grid, under a mass of one per point:
    :math:`K(x, y) = \kappa(x - y \bmod 1)`.

    The layer is affine and commutes with the grid's shifts, so that its response to an impulse at
    the origin is all of κ:
    :math:`\kappa\,e_i = \text{layer}(\delta e_i) - \text{layer}(0)`. A Fourier multiplier is one.

    Args:
        layer: ``(B, d_in, *grid)`` to ``(B, d_out, *grid)``.
        d_in, d_out: channels.
        axes: number of axes of the grid.
        even: axes whose number of points must be even for the layer to commute with shifts.

    Shape: u (B, N, d_in) with N points of the grid in row-major order to (B, N, d_out).

    Cost: that of the layer in the fast form; the definition is d_in responses and O(N²·d_out·d_in)
    memory.

    Raises:
        DomainError: no regular grid with as many axes, a causal one, or padding.

    Reference: Li et al. 2021, Fourier Neural Operator, Definition 3; ITNet Theorem 1.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> layer = nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular")
        >>> kernel = PeriodicKernel(layer, 1, 1, axes=1)
        >>> op = IntegralOperator(1, kernel=kernel, residual=False, projection=False)
        >>> u = torch.randn(2, 5, 1)
        >>> torch.allclose(op.dense(u), layer(u.mT).mT, atol=1e-6)
        True
    """

    def __init__(
        self,
        layer: nn.Module,
        d_in: int,
        d_out: int,
        *,
        axes: int,
        even: tuple[int, ...] = (),
    ):
        windows = (Window(1, mode="circular"),) * axes
        super().__init__(1, d_in, d_out, windows)
        self.layer = layer
        self.even = even

    def check(self, layout: Layout) -> None:
        super().check(layout)
        extents = layout.keys or ()
        odd = {}
        for axis in self.even:
            if extents and extents[axis] % 2:
                odd[axis] = extents[axis]
        if odd:
            raise DomainError(
                f"{type(self.layer).__name__} is not a convolution on an odd number of points: "
                f"it moves modes along axes {list(odd)}, of extents {list(odd.values())}; use even "
                "numbers"
            )

    def matrix(self, problem: Problem) -> Tensor:
        grid = problem.layout.keys or ()
        # κ by input, output and displacement.
        responses = self._responses(problem)
        kappa = responses[1:] - responses[:1]
        kappa = kappa.flatten(2)

        # The displacement of every pair as one number, (Nq, *grid).
        index = torch.zeros((), dtype=torch.int64, device=kappa.device)
        for axis, (outputs, n) in enumerate(zip(self.outputs(problem), grid)):
            later = grid[axis + 1 :]
            ones = (1,) * len(later)
            keys = torch.arange(n, device=kappa.device)
            keys = keys.reshape(-1, *ones)
            # Displacements go around: a grid of n points has n of them.
            all_ones = (1,) * len(grid)
            column = outputs.reshape(-1, *all_ones)
            away = (column - keys) % n
            index = index + away * prod(later)

        dense = kappa[:, :, index.flatten(1)]
        dense = dense.permute(2, 3, 1, 0)
        batch = problem.uy.shape[0]
        return dense.expand(batch, 1, -1, -1, -1, -1)

    def offset(self, problem: Problem) -> Tensor | None:
        response = self._responses(problem, impulses=False)
        offset = write_points(response, 1)
        return at_queries(offset, problem)

    def evaluates(self, layout: Layout) -> bool:
        return not layout.pairs

    def evaluate(self, problem: Problem) -> Tensor:
        """Return the layer's own output at all points of the grid, (B, 1, N, d_out).

        It includes the layer's response to zero, which is the :meth:`offset` of the definition.
        """
        # With masses the image is float32, which a layer in half precision does not take.
        image = read_grid(problem)
        image = image.to(problem.uy.dtype)
        # `read_grid` makes a line an image of one row, (B, d_in, 1, N). The layer of a line takes
        # (B, d_in, N).
        if len(self.windows) == 1:
            image = image.squeeze(2)
        return write_points(self.layer(image), 1)

    def _responses(self, problem: Problem, *, impulses: bool = True) -> Tensor:
        """Return the responses to zero and, one per channel, to impulses at the origin,
        (1 + d_in, d_out, *grid).
        """
        n = problem.uy.shape[2]
        signals = 1 + impulses * self.d_in
        inputs = problem.uy.new_zeros(signals, self.d_in, n)
        if impulses:
            inputs[1:, :, 0] = torch.eye(
                self.d_in,
                dtype=inputs.dtype,
                device=inputs.device,
            )
        grid = problem.layout.keys or ()
        return self.layer(inputs.unflatten(-1, grid))


def _grid(module: Any) -> Domain:
    """Return a periodic grid that has all of the layer's modes, and an even number of points."""
    extents = []
    for modes in module.n_modes:
        at_least_two = max(2, int(modes))
        extents.append(2 * at_least_two)
    return Domain.grid(*extents, measure="counting")


@register_converter(
    "neuralop.layers.spectral_convolution.SpectralConv",
    call=call_on_grid,
    domain=_grid,
)
def spectral_convolution(module: nn.Module) -> IntegralOperator:
    """Convert a Fourier multiplier on a periodic grid, with any factorisation of its weights; on
    ``Domain.grid(..., measure="counting")``.

    The library computes in single precision. It shifts modes in a way that loses the convolution on
    an odd number of points along all axes but the last, which is refused.
    """
    layer: Any = module
    expected = {
        "complex_data": False,
        "resolution_scaling_factor": None,
        "fno_block_precision": "full",
    }
    refuse_unless(module, expected)
    even = tuple(range(layer.order - 1))
    kernel = PeriodicKernel(
        module,
        layer.in_channels,
        layer.out_channels,
        axes=layer.order,
        even=even,
    )
    return bind(kernel)
