"""The four definitions of a kernel, and the forms that integrate each.

A kernel inherits exactly one of them. The lists say what ``strategy="auto"`` tries, best first: a
form that needs a capability which the kernel has not refuses and is passed over.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from ..forms.dense import Dense
from ..forms.fused import Fused
from ..forms.hidden import HiddenBlocks
from ..forms.monte_carlo import AnchorKeys, LatticeKeys, SampledKeys
from ..forms.neighbourhoods.attention import NeighbourAttention
from ..forms.neighbourhoods.hidden import NeighbourMoments
from ..forms.neighbourhoods.inner_products import NeighbourSums
from ..forms.own import OwnResponse
from ..forms.quadratic import Quadratic
from ..forms.scan import StatesScan
from ..forms.separable import Chunks, RunningMoment, Sums
from ..forms.taps import TapConvolution
from ..forms.transition import Transition
from ..forms.weights import WeightBlocks
from ..ops.linear_attention import measured_density
from .capabilities import HiddenReadout, Separable, WeightedValue, measure_of
from .contract import Kernel
from .problem import Problem

# Forms exclude one another by their domains where they can (an order or none, pairs or none). Where
# several remain, the cheaper comes first: FFT, scan, then the kernel's evaluation of itself.
SEPARABLE = (Sums, Chunks, RunningMoment, Quadratic, NeighbourSums)
RECURRENT = (TapConvolution, StatesScan, Transition, OwnResponse)
# For kernels with OwnForm and no cheaper capability: the first form that is tried is the one, so
# that choosing takes no time.
OWN_FIRST = (OwnResponse, *SEPARABLE, TapConvolution, StatesScan, Transition, Dense)
SAMPLED = (SampledKeys, LatticeKeys, AnchorKeys)


class MatrixKernel(Kernel):
    """A kernel that is not a function of two ends alone (a normaliser, a trajectory, an index): it
    defines ``matrix(problem)``, all pairs at once.

    Args:
        heads, d_in, d_out: as of :class:`Kernel`.

    Cost: O(Nq·Nk·d²) by the definition.

    Example:
        >>> from fredholm.kernels import PointwiseKernel
        >>> issubclass(PointwiseKernel, MatrixKernel)
        True
    """

    forms = (*SEPARABLE, *RECURRENT, Dense)

    @abstractmethod
    def matrix(self, problem: Problem) -> Float[Tensor, "b h q k o i"]:
        """Return the kernel at all pairs, (B, H, Nq, Nk, d_out, d_in), densities against the
        measure. O(Nq·Nk).
        """


class PairKernel(Kernel):
    """A function of two ends: it defines ``forward(x, y, ux, uy)``.

    Keys may then be drawn, so that the strategy ``MonteCarlo`` integrates it too.

    Example:
        >>> class Gaussian(PairKernel):
        ...     def forward(self, x, y, ux, uy):
        ...         weight = (-(x - y).square().sum(-1)).exp()
        ...         return weight[..., None, None] * torch.eye(self.d_in)
        >>> from fredholm import Domain, IntegralOperator
        >>> operator = IntegralOperator(4, 2, kernel=Gaussian(2, 2))
        >>> operator(torch.randn(1, 5, 4), Domain.line(5)).shape
        torch.Size([1, 5, 4])
    """

    forms = (*SEPARABLE, *RECURRENT, Dense, *SAMPLED)

    pairwise = True

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        y: Tensor,
        ux: Tensor,
        uy: Tensor,
    ) -> Tensor:
        """Return K at broadcast pairs, (B, H, Nq, Nk, d_out, d_in).

        Positions are (B, 1, Nq, 1, p) and (B, 1, 1, Nk, p), features (B, H, Nq, 1, d) and
        (B, H, 1, Nk, d); a parameter of shape (H, 1, 1, ...) is one per head.
        """

    def matrix(self, problem: Problem) -> Float[Tensor, "b h q k o i"]:
        """Return the kernel at all pairs, (B, H, Nq, Nk, d_out, d_in). O(Nq·Nk)."""
        x = problem.x[:, None, :, None]
        y = problem.y[:, None, None, :]
        ux = problem.ux[:, :, :, None]
        uy = problem.uy[:, :, None, :]
        dense = self(x, y, ux, uy)
        # A kernel that reads no features, or is the same for all heads, has size 1 there.
        return dense.expand(
            problem.uy.shape[0],
            self.heads,
            problem.ux.shape[2],
            problem.uy.shape[2],
            self.d_out,
            self.d_in,
        )


class HiddenKernel(PairKernel, HiddenReadout):
    r"""A linear readout of hidden units, :math:`K = \sum_k h_k(x, y)\,R_k + R_0`: it defines
    ``hidden`` and ``readout``.

    Hidden units can then be integrated before the readout, which is applied once per query.
    """

    forms = (*RECURRENT, HiddenBlocks, NeighbourMoments, *SAMPLED)

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        ux: Tensor,
        uy: Tensor,
    ) -> Tensor:
        """Return K at broadcast pairs, see :meth:`PairKernel.forward`."""
        hidden = self.hidden(x, y, ux, uy)
        weight, bias = self.readout()
        dense = torch.einsum("bhqkw,hoiw->bhqkoi", hidden, weight.to(hidden.dtype))
        if bias is None:
            return dense
        return dense + bias[:, None, None].to(dense.dtype)


class WeightedKernel(WeightedValue, Kernel):
    r"""A scalar weight times a value map, :math:`K_h = \alpha_h(x, y; u)\,V_h`: it defines
    ``weights(problem)`` and ``value_map()``. The weight may be a functional of all pairs.
    """

    forms = (*SEPARABLE, *RECURRENT, Fused, NeighbourAttention, WeightBlocks)

    def matrix(self, problem: Problem) -> Float[Tensor, "b h q k o i"]:
        """Return the kernel at all pairs, (B, H, Nq, Nk, d_out, d_in). O(Nq·Nk)."""
        weights = self.weights(problem)
        value_map = self.value_map().to(weights.dtype)
        dense = torch.einsum("bhqk,hoi->bhqkoi", weights, value_map)
        return dense.expand(problem.uy.shape[0], self.heads, -1, -1, -1, -1)


class SeparableKernel(WeightedKernel, Separable):
    r"""A weighted kernel whose weight is an inner product of features over its integral: it defines
    ``query_features``, ``key_features`` and ``value_map``, and is integrated in O(N).

    .. math:: \alpha(x, y) = \phi(x)\cdot\psi(y) \Big/ \int \phi(x)\cdot\psi(z)\,d\mu(z)

    Attributes:
        floor: the smallest denominator, or None for none: the weight is then the product itself.
    """

    floor: float | None = 1e-6

    def weights(self, problem: Problem) -> Tensor:
        """Return α, densities (B, H, Nq, Nk), through the pairs. O(Nq·Nk·r)."""
        query = self.query_features(problem.x, problem.ux)
        key = self.key_features(problem.y, problem.uy)
        return measured_density(query, key, measure_of(self, problem), self.floor)

    def values(self, y: Tensor, uy: Tensor) -> Tensor:
        """Return V u, (B, H, Nk, d_out)."""
        return uy @ self.value_map().mT
