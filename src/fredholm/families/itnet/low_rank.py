"""ITNet's kernel of low rank: a product of two small networks, one of each end."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import OptionError, suggest
from ...integral import FourierFeatures, PairKernel, Pooled, Problem
from ...ops.backend import at_least_single, cast, full_precision
from ...parallel import Shards, summed
from .hidden_first import ACTIVATIONS
from .pooled import HiddenPooled


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

    def __init__(self, heads: int, dim: int, rank: int, width: int, columns: int, activation: str):
        super().__init__()
        self.columns, self.activation = columns, activation
        self.weight1 = nn.Parameter(torch.empty(width, columns + dim))
        self.bias1 = nn.Parameter(torch.empty(width))
        self.weight2 = nn.Parameter(torch.empty(heads, dim, rank, width))
        self.bias2 = nn.Parameter(torch.empty(heads, dim, rank))

    def units(self, gamma: Tensor, u: Tensor) -> Tensor:
        """h, (..., w)."""
        of_position, of_content = self.weight1.split(
            [self.columns, self.weight1.shape[1] - self.columns], 1
        )
        of_position = F.linear(cast(gamma, u.dtype), cast(of_position, u.dtype), self.bias1)
        return ACTIVATIONS[self.activation].function(of_position + F.linear(u, of_content))

    def read(self, moment: Tensor, total: Tensor) -> Tensor:
        """Σ_i W2_i M_i + b2_i U_i, (B, H, r), of moments (B, H, d, w) and totals (B, H, d): the
        factor, transposed, on pooled hidden units. A product per head and channel reads W2 as it
        lies.
        """
        weight, bias = (cast(x, moment.dtype).flatten(0, 1) for x in (self.weight2, self.bias2))
        rows = moment.permute(1, 2, 0, 3).flatten(0, 1)
        each = total.permute(1, 2, 0).flatten(0, 1)[..., None] * bias[:, None]
        out = torch.baddbmm(each, rows, weight.mT)
        heads, dim, _ = self.bias2.shape
        return out.view(heads, dim, *out.shape[1:]).sum(1).transpose(0, 1)

    def spread(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """G = Σ_r W2_r z_r, (B, H, w, d), and Σ_r b2_r z_r, (B, H, 1, d), of z (B, H, r)."""
        weight, bias = (cast(x, z.dtype) for x in (self.weight2, self.bias2))
        heads, dim, _, width = weight.shape
        rows = z.transpose(0, 1)  # heads first, so that a head's matrix meets all samples
        many = rows[:, None].expand(-1, dim, -1, -1).flatten(0, 1)
        gain = torch.bmm(many, weight.flatten(0, 1)).view(heads, dim, rows.shape[1], width)
        shift = torch.bmm(rows, bias.mT)
        return gain.permute(2, 0, 3, 1), shift.transpose(0, 1)[:, :, None]

    def forward(self, gamma: Tensor, u: Tensor) -> Tensor:
        units, (heads, dim, rank, _) = self.units(gamma, u), self.weight2.shape
        ones = [1] * (u.dim() - 4)
        weight = self.weight2.view(heads, *ones, dim * rank, -1).mT
        return (units @ weight + self.bias2.view(heads, *ones, 1, -1)).unflatten(-1, (dim, rank))


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
        if rank < 1 or width < 1:
            raise OptionError(f"rank and width must be at least 1, got {rank} and {width}")
        if activation not in ACTIVATIONS:
            raise OptionError(
                f"unknown activation {activation!r}{suggest(activation, ACTIVATIONS)}"
            )
        self.rank, self.width = rank, width
        self.fourier = FourierFeatures(position_dim, frequencies, sigma, learned_frequencies)
        self.query = FactorNetwork(heads, dim, rank, width, 2 * frequencies, activation)
        self.key = FactorNetwork(heads, dim, rank, width, 2 * frequencies, activation)
        self.reset_parameters()

    def reset_parameters(self, epsilon: float = 0.01) -> None:
        """Near-linear hidden units, and factors that start as one semi-orthogonal matrix."""
        for network in (self.query, self.key):
            nn.init.normal_(network.weight1, std=0.02)
            nn.init.zeros_(network.bias1)
            nn.init.normal_(network.weight2, std=epsilon * self.width**-0.5)
        with torch.no_grad():
            for h in range(self.heads):
                nn.init.orthogonal_(self.query.bias2[h])
            self.key.bias2.copy_(self.query.bias2)

    # --- the definition ---------------------------------------------------------------------------

    def forward(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        left, right = self.query(self.fourier(x), ux), self.key(self.fourier(y), uy)
        return left @ right.mT

    # --- separable --------------------------------------------------------------------------------

    # The values already carry Ψ, and ``expand`` applies Φ: what is left between two points is 1.

    def query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        return ux.new_ones(1, 1, ux.shape[2], 1)

    def key_features(self, y: Tensor, uy: Tensor) -> Tensor:
        return uy.new_ones(1, 1, uy.shape[2], 1)

    def values(self, y: Tensor, uy: Tensor) -> Tensor:
        """Ψ(y)ᵀ u(y), (B, H, Nk, r)."""
        return (self.key(self.fourier(y)[:, None], uy).mT @ uy[..., None]).squeeze(-1)

    def expand(self, x: Tensor, ux: Tensor, response: Tensor) -> Tensor:
        """Φ(x) z, (B, H, Nq, d)."""
        factor = self.query(self.fourier(x)[:, None], ux)
        return (factor @ response[..., None].to(factor.dtype)).squeeze(-1)

    def pooled(self, problem: Problem, shards: Shards | None = None) -> Tensor:
        r"""Hidden units first: :math:`M = \int h_\psi \otimes u\,d\mu`, :math:`z = W_{2\psi} : M`,
        :math:`G = W_{2\phi} z`, and
        :math:`G h_\phi`; neither factor is formed at any point. Moments in float32 at least; of
        a domain in shards they are sums over the ranks.
        """
        p = problem
        dtype = at_least_single(p.uy.dtype)
        there = self.fourier(p.y)[:, None]
        # The sines are a good part of the cost: once, where queries are keys.
        here = self.fourier(p.x)[:, None] if p.layout.cross else there
        units, read = self.key.units(there, p.uy), self.query.units(here, p.ux)
        with full_precision(p.uy):
            signal = cast(p.uy, dtype) * cast(p.quadrature.mass, dtype)[:, None, :, None]
            moment, total = signal.mT @ cast(units, dtype), signal.sum(2)
            if shards is not None:  # one message
                both = summed(torch.cat([moment, total[..., None]], -1), shards)
                moment, total = both[..., :-1], both[..., -1]
            z = self.key.read(moment, total)
            gain, shift = self.query.spread(z)
            return cast(cast(read, dtype) @ gain + shift, p.uy.dtype)

    def pooled_numbers(self) -> int:
        heads, dim, _, width = self.key.weight2.shape
        return heads * dim * (width + 1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, width={self.width}"
