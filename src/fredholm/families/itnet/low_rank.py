"""ITNet's kernel of low rank: a product of two small networks, one of each end."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import OptionError
from ...integral import FourierFeatures, PairKernel, Problem
from ...integral.contract import Part
from ...ops.backend import at_least_single, cast, full_precision, product, sum_of_product
from ...ops.tiles import ACTIVATIONS, find_activation
from .capabilities import Pooled
from .pooled import HiddenPooled

EPSILON = 0.01
"""Scale of the readouts at first, beside a constant of size 1."""


class LinearMap(NamedTuple):
    """A linear map of hidden units, for each sample and head.

    Attributes:
        gain: G = Σ_r W2_r z_r, (B, H, w, d).
        shift: Σ_r b2_r z_r, (B, H, 1, d).
    """

    gain: Tensor
    shift: Tensor


class UnitsOfEnds(NamedTuple):
    """Hidden units h_ψ of the keys and h_φ of the queries, (B, H, N, w)."""

    key: Tensor
    query: Tensor


class FactorNetwork(nn.Module):
    r"""One factor of a low-rank kernel:
    :math:`\Phi = \mathrm{reshape}(W_2\,\mathrm{GELU}(W_1 [\gamma(x), u(x)] + b_1) + b_2)`.

    W1, b1 are shared by the heads, W2, b2 are per head: as in
    :class:`fredholm.kernels.MLPKernel`.

    Shape: positions' features (..., 2m) and features (..., dim), heads on dimension 1, to (...,
    dim, rank).

    Example:
        >>> factor = FactorNetwork(2, 4, 3, 8, 6, "gelu")
        >>> factor(torch.zeros(1, 1, 5, 6), torch.zeros(1, 2, 5, 4)).shape
        torch.Size([1, 2, 5, 4, 3])
    """

    def __init__(
        self,
        heads: int,
        dim: int,
        rank: int,
        width: int,
        columns: int,
        activation: str,
    ):
        super().__init__()
        self.columns = columns
        self.activation = activation
        inputs = columns + dim
        self.weight1 = nn.Parameter(torch.empty(width, inputs))
        self.bias1 = nn.Parameter(torch.empty(width))
        self.weight2 = nn.Parameter(torch.empty(heads, dim, rank, width))
        self.bias2 = nn.Parameter(torch.empty(heads, dim, rank))

    def units(self, gamma: Tensor, u: Tensor) -> Tensor:
        """Return the hidden units h = act(W1 [γ(x), u(x)] + b1), (..., w).

        All heads share the positions, so that W1's columns of γ are multiplied once for all of
        them.
        """
        columns = gamma.shape[-1]
        rest = self.weight1.shape[1] - columns
        of_gamma, of_u = self.weight1.split_with_sizes((columns, rest), 1)
        position = F.linear(
            cast(gamma, u.dtype),
            cast(of_gamma, u.dtype),
            self.bias1,
        )
        content = F.linear(u, of_u)
        activate = ACTIVATIONS[self.activation].function
        return activate(position + content)

    def read(self, moment: Tensor, total: Tensor) -> Tensor:
        """Return Σ_i W2_i M_i + b2_i U_i, (H, B, r), of moments (B, H, d, w) and totals (B, H, d):
        the factor, transposed, on pooled hidden units.
        """
        weight = cast(self.weight2, moment.dtype)
        bias = cast(self.bias2, moment.dtype)
        heads, dim, rank = bias.shape

        # One product per head and channel i reads W2 as it lies in memory; then the sum over i.
        batch = moment.shape[0]
        rows = moment.flatten(1, 2)
        rows = rows.transpose(0, 1)
        matrices = weight.flatten(0, 1)
        of_channels = torch.bmm(rows, matrices.mT)
        of_channels = of_channels.view(heads, dim, batch, rank)
        out = of_channels.sum(1)
        totals = total.transpose(0, 1)
        return torch.baddbmm(out, totals, bias)

    def spread(self, z: Tensor) -> LinearMap:
        """Return the linear map of hidden units that the factor makes of z (H, B, r)."""
        weight = cast(self.weight2, z.dtype)
        bias = cast(self.bias2, z.dtype)
        heads, dim, _, width = weight.shape
        batch = z.shape[1]

        # Heads first, so that a head's matrix meets all samples.
        by_channel = z.repeat_interleave(dim, 0)
        gain = torch.bmm(by_channel, weight.flatten(0, 1))
        gain = gain.view(heads, dim, batch, width)
        gain = gain.permute(2, 0, 3, 1)
        shift = torch.bmm(z, bias.mT)
        shift = shift.transpose(0, 1)
        shift = shift[:, :, None]
        return LinearMap(gain, shift)

    def forward(self, gamma: Tensor, u: Tensor) -> Tensor:
        units = self.units(gamma, u)
        heads, dim, rank, width = self.weight2.shape
        # Dimensions of size 1 between the heads and the points of u.
        ones = [1] * (u.dim() - 4)
        outputs = dim * rank
        weight = self.weight2.reshape(heads, *ones, outputs, width)
        bias = self.bias2.reshape(heads, *ones, 1, outputs)
        factor = units @ weight.mT + bias
        return factor.unflatten(-1, (dim, rank))


class LowRankKernel(PairKernel, Pooled):
    r"""A matrix kernel of rank r: :math:`K_h(x, y) = \Phi_h(x, u(x))\,\Psi_h(y, u(y))^T`, with
    :math:`\Phi, \Psi \in R^{d \times r}`.

    Args:
        heads: H.
        dim: features d of the slice of u that a head reads.
        rank: r, per head. It bounds the rank of the whole matrix over a domain, not only of a
            pair's, so it may exceed ``dim``; beyond N·dim on a domain of N points it adds nothing.
        position_dim: p.
        width: hidden width w of both networks.
        frequencies, sigma, learned_frequencies: of γ, see :class:`FourierFeatures`.
        activation: a name of :data:`fredholm.families.itnet.hidden_first.ACTIVATIONS`.

    Initialisation: as :class:`MLPKernel`, and b2 of both factors the same semi-orthogonal matrix V:
    the operator starts as the mean, seen in r directions (all of it where r ≥ d).

    Cost: bidirectional, hidden units first, O(N·w·d); causal O(N·w·d·r); a step has a state of r
    numbers per head.

    Raises:
        OptionError: an unknown activation, or sizes that are not positive.

    Reference: ITNet §3.3; hidden units first is ours.

    Example:
        >>> LowRankKernel(heads=2, dim=4, rank=3).rank
        3
    """

    forms = (HiddenPooled, *PairKernel.forms)
    fourier = Part()
    query = Part()
    key = Part()

    floor = None

    def __init__(
        self,
        heads: int,
        dim: int,
        *,
        rank: int = 16,
        position_dim: int = 1,
        width: int = 128,
        frequencies: int = 64,
        sigma: float = 10.0,
        learned_frequencies: bool = False,
        activation: str = "gelu",
    ):
        super().__init__(heads, dim)
        if rank < 1:
            raise OptionError(f"rank: expected at least 1, got {rank}")
        find_activation(activation)
        self.rank = rank
        self.width = width
        self.fourier = FourierFeatures(position_dim, frequencies, sigma, learned_frequencies)
        columns = 2 * frequencies
        self.query = FactorNetwork(
            heads,
            dim,
            rank,
            width,
            columns,
            activation,
        )
        self.key = FactorNetwork(
            heads,
            dim,
            rank,
            width,
            columns,
            activation,
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw near-linear hidden units, and factors that start as one semi-orthogonal matrix."""
        for network in (self.query, self.key):
            nn.init.normal_(network.weight1, std=0.02)
            nn.init.zeros_(network.bias1)
            std = EPSILON * self.width**-0.5
            nn.init.normal_(network.weight2, std=std)

        with torch.no_grad():
            for bias in self.query.bias2:
                # The QR decomposition behind it has no half precision.
                dtype = at_least_single(bias.dtype)
                draws = torch.empty_like(bias, dtype=dtype)
                bias.copy_(nn.init.orthogonal_(draws))
            self.key.bias2.copy_(self.query.bias2)

    # --- the definition ---------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        ux: Tensor,
        uy: Tensor,
    ) -> Tensor:
        query_gamma = self.fourier(x)
        left = self.query(query_gamma, ux)
        key_gamma = self.fourier(y)
        right = self.key(key_gamma, uy)
        return left @ right.mT

    # --- separable --------------------------------------------------------------------------------

    # The values already carry Ψ, and ``expand`` applies Φ: what is left between two points is 1.

    def query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        queries = ux.shape[2]
        return ux.new_ones(1, 1, queries, 1)

    def key_features(self, y: Tensor, uy: Tensor) -> Tensor:
        keys = uy.shape[2]
        return uy.new_ones(1, 1, keys, 1)

    def values(self, y: Tensor, uy: Tensor) -> Tensor:
        """Return Ψ(y)ᵀ u(y), (B, H, Nk, r)."""
        gamma = self.fourier(y)[:, None]
        factor = self.key(gamma, uy)
        z = factor.mT @ uy[..., None]
        return z.squeeze(-1)

    def expand(
        self,
        x: Tensor,
        ux: Tensor,
        response: Tensor,
    ) -> Tensor:
        """Return Φ(x) z, (B, H, Nq, d)."""
        gamma = self.fourier(x)[:, None]
        factor = self.query(gamma, ux)
        z = response[..., None].to(factor.dtype)
        out = factor @ z
        return out.squeeze(-1)

    def pooled(
        self,
        problem: Problem,
        total: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        r"""Return ∫ K u dμ, hidden units first: :math:`M = \int h_\psi \otimes u\,d\mu`,
        :math:`z = W_{2\psi} : M`, :math:`G = W_{2\phi} z`, and :math:`G h_\phi`.

        Neither factor is formed at any point. Moments are in float32 or better. Where the problem
        is a part of a larger one, ``total`` returns the moment of the larger one from that of the
        part, (B, H, d, w + 1).
        """
        uy = problem.uy
        dtype = at_least_single(uy.dtype)
        units = self._units(problem)
        with full_precision(uy):
            mass = cast(problem.quadrature.mass, dtype)
            mass = mass.view(-1, 1, mass.shape[-1], 1)
            signal = cast(uy, dtype) * mass
            key_units = cast(units.key, dtype)
            moment = product(signal.mT, key_units)
            mean = signal.sum(2)
            if total is not None:
                # One message between ranks: the mean as a last column of the moment.
                column = mean[..., None]
                columns = torch.cat([moment, column], -1)
                joined = total(columns)
                moment = joined[..., :-1]
                mean = joined[..., -1]

            z = self.key.read(moment, mean)
            gain, shift = self.query.spread(z)
            query_units = cast(units.query, dtype)
            out = sum_of_product(shift, query_units, gain)
            return cast(out, uy.dtype)

    def _units(self, p: Problem) -> UnitsOfEnds:
        """Return the hidden units of both networks, each at its own end."""
        key_gamma = self.fourier.on(p.domain, p.y)
        key_gamma = key_gamma.unsqueeze(1)
        # Where queries are keys, their sines, a good part of the cost, are computed once.
        query_gamma = key_gamma
        if p.layout.cross:
            query_gamma = self.fourier(p.x)
            query_gamma = query_gamma.unsqueeze(1)
        key_units = self.key.units(key_gamma, p.uy)
        query_units = self.query.units(query_gamma, p.ux)
        return UnitsOfEnds(key_units, query_units)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, width={self.width}"
