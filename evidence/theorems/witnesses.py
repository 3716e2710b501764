"""Integral operators that convolution or attention provably cannot express.

Those that recurrences cannot express are in ``evidence.unification.witnesses_recurrence``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fredholm import Domain, IntegralOperator
from fredholm.kernels import Kernel, PairKernel

DOUBLE = {"dtype": torch.float64}


@dataclass(frozen=True)
class Similarity:
    """Relative errors for u ↦ σ(⟨u(x), u(x₀)⟩) u(x).

    Attributes:
        operator: of our operator.
        additive: deviation of the map from additivity, zero for every convolution.
        equivariant: deviation from shift equivariance, zero for every convolution.
        convolution: of the best convolution, with taps as long as the signal, on new signals.
    """

    operator: float
    additive: float
    equivariant: float
    convolution: float


@dataclass(frozen=True)
class Smoothing:
    """Results for Gaussian smoothing without normalisation, on a constant signal.

    Attributes:
        operator: relative error of our operator.
        spread: relative spread of its output over the points.
        attention: the same spread of attention.
    """

    operator: float
    spread: float
    attention: float


@dataclass(frozen=True)
class Distance:
    """Results for a weight that is the distance.

    Attributes:
        operator: relative error of our operator.
        exchange: relative difference between permuting its inputs and permuting its outputs.
        attention: the same difference of attention.
    """

    operator: float
    exchange: float
    attention: float


class SimilarityKernel(PairKernel):
    r"""K = σ(⟨u(x), u(y)⟩) u(x) u(y)ᵀ / |u(y)|².

    With a unit mass at x₀ and no other mass, the answer is σ(⟨u(x), u(x₀)⟩) u(x). The kernel is a
    function of its four arguments; the paper's (Eq. 40) also reads u(x₀) and needs a Dirac delta.
    """

    def __init__(self, dim: int):
        super().__init__(1, dim)

    def forward(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        gate = torch.sigmoid((ux * uy).sum(-1, keepdim=True))
        return (gate * ux)[..., None] * (uy / uy.square().sum(-1, keepdim=True))[..., None, :]


class GaussianKernel(PairKernel):
    """K = exp(-|x - y|² / 2 scale²) I."""

    reads_query = False

    def __init__(self, dim: int, scale: float):
        super().__init__(1, dim)
        self.scale = scale

    def forward(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        square = ((x - y) ** 2).sum(-1)[..., None, None]
        return torch.exp(-0.5 * square / self.scale**2) * torch.eye(self.d_in, **DOUBLE)


class DistanceKernel(PairKernel):
    """K = |x - y| I."""

    reads_query = False

    def __init__(self, dim: int):
        super().__init__(1, dim)

    def forward(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        distance = torch.linalg.vector_norm(x - y, dim=-1)[..., None, None]
        return distance * torch.eye(self.d_in, **DOUBLE)


def similarity(n: int = 12, dim: int = 3, place: int = 4) -> Similarity:
    """Measure a map that is neither linear nor shift-equivariant (ITNet, C.4).

    Example:
        >>> found = similarity()
        >>> found.operator < 1e-12, min(found.additive, found.equivariant, found.convolution) > 0.05
        (True, True)
    """
    signals = torch.randn(400, n, dim, generator=torch.Generator().manual_seed(0), **DOUBLE)

    def witness(u: Tensor) -> Tensor:
        return torch.sigmoid((u * u[:, place : place + 1]).sum(-1, keepdim=True)) * u

    mass = torch.zeros(n, **DOUBLE)
    mass[place] = 1
    operator = _operator(SimilarityKernel(dim))
    train, test = signals[:300], signals[300:]
    u, v = signals[:50], signals[50:100]
    answer = operator(test, Domain.line(n, **DOUBLE).with_masses(mass))
    return Similarity(
        operator=_relative(answer, witness(test)),
        additive=_relative(witness(u) + witness(v), witness(u + v)),
        equivariant=_relative(witness(u.roll(1, 1)), witness(u).roll(1, 1)),
        convolution=_best_convolution(train, witness(train), test, witness(test)),
    )


@torch.no_grad()
def smoothing(n: int = 24, scale: float = 0.3) -> Smoothing:
    """Measure a smoothing without normalisation, which decreases towards the ends (ITNet, D.5).

    Attention is an average and maps a constant to a constant.

    Example:
        >>> found = smoothing()
        >>> found.operator < 1e-12, found.spread > 0.1, found.attention < 1e-12
        (True, True, True)
    """
    domain = Domain.grid(n, measure="spacing", **DOUBLE)
    u = torch.tensor([1.0, -2.0, 0.5, 1.5], **DOUBLE).expand(1, n, 4)
    x = domain.positions
    expected = torch.exp(-0.5 * (x - x.mT) ** 2 / scale**2) @ u / n
    answer = _operator(GaussianKernel(4, scale))(u, domain)
    attended, _ = _attention(4)(u, u, u)
    return Smoothing(_relative(answer, expected), _spread(answer), _spread(attended))


@torch.no_grad()
def distance(n: int = 8) -> Distance:
    """Measure a weight that is the distance (ITNet, D.6).

    Attention without position codes is permutation-equivariant; distances don't permute.

    Example:
        >>> found = distance()
        >>> found.operator < 1e-12, found.exchange > 0.1, found.attention < 1e-12
        (True, True, True)
    """
    domain = Domain.grid(n, **DOUBLE)
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(16, n, 4, generator=generator, **DOUBLE)
    order = torch.randperm(n, generator=generator)
    operator, attention = _operator(DistanceKernel(4)), _attention(4)
    expected = (domain.positions - domain.positions.mT).abs() @ u / n

    def exchange(call) -> float:
        return _relative(call(u[:, order]), call(u)[:, order])

    return Distance(
        _relative(operator(u, domain), expected),
        exchange(lambda v: operator(v, domain)),
        exchange(lambda v: attention(v, v, v)[0]),
    )


def _operator(kernel: Kernel) -> IntegralOperator:
    return IntegralOperator(kernel.d_in, kernel=kernel, residual=False, projection=False)


def _attention(dim: int) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(dim, 2, batch_first=True).double().eval()
    nn.init.normal_(layer.in_proj_bias)
    return layer


def _best_convolution(u: Tensor, y: Tensor, new: Tensor, expected: Tensor) -> float:
    """Fit a circular convolution as long as the signal, with a bias, by least squares.

    Returns its relative error on new signals.
    """

    def design(signal: Tensor) -> Tensor:
        shifts = torch.cat([signal.roll(s, 1) for s in range(signal.shape[1])], -1)
        return torch.cat([shifts, torch.ones_like(shifts[..., :1])], -1).flatten(0, 1)

    taps = torch.linalg.lstsq(design(u), y.flatten(0, 1)).solution
    return _relative((design(new) @ taps).view_as(expected), expected)


def _relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def _spread(y: Tensor) -> float:
    return float((y - y.mean(1, keepdim=True)).norm() / y.norm())
