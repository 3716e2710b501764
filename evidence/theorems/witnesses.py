"""Operators that convolution or attention provably cannot be, and an integral operator is; those of
recurrences are in ``evidence.unification.witnesses_recurrence``.
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
    """Of u ↦ σ(⟨u(x), u(x₀)⟩) u(x). All relative: our operator's error; how far the map is from
    additive and from shift-equivariant, both zero for every convolution; the error of the best
    convolution with taps as long as the signal, on new signals.
    """

    operator: float
    additive: float
    equivariant: float
    convolution: float


@dataclass(frozen=True)
class Smoothing:
    """Of Gaussian smoothing that is not normalised, on a constant signal: our operator's error, and
    the relative spread of the output over the points, of the smoothing and of attention.
    """

    operator: float
    spread: float
    attention: float


@dataclass(frozen=True)
class Distance:
    """Of weighting by distance: our operator's error, and how far exchanging features is from
    exchanging outputs.
    """

    operator: float
    exchange: float
    attention: float


class SimilarityKernel(PairKernel):
    r"""σ(⟨u(x), u(y)⟩) u(x) u(y)ᵀ / |u(y)|²: under a unit mass at x₀ alone it answers σ(⟨u(x),
    u(x₀)⟩) u(x).

    A function of its four arguments, where the paper's own kernel (Eq. 40) reads u(x₀) beside them
    and needs a Dirac delta.
    """

    def __init__(self, dim: int):
        super().__init__(1, dim)

    def forward(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        gate = torch.sigmoid((ux * uy).sum(-1, keepdim=True))
        return (gate * ux)[..., None] * (uy / uy.square().sum(-1, keepdim=True))[..., None, :]


class GaussianKernel(PairKernel):
    """exp(-|x - y|² / 2 scale²), times the identity."""

    reads_query = False

    def __init__(self, dim: int, scale: float):
        super().__init__(1, dim)
        self.scale = scale

    def forward(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        square = ((x - y) ** 2).sum(-1)[..., None, None]
        return torch.exp(-0.5 * square / self.scale**2) * torch.eye(self.d_in, **DOUBLE)


class DistanceKernel(PairKernel):
    """|x - y|, times the identity."""

    reads_query = False

    def __init__(self, dim: int):
        super().__init__(1, dim)

    def forward(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x - y, dim=-1)[..., None, None] * torch.eye(
            self.d_in, **DOUBLE
        )


def similarity(n: int = 12, dim: int = 3, place: int = 4) -> Similarity:
    """ITNet C.4: neither linear nor shift-equivariant, so no convolution.

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
    return Similarity(
        operator=_relative(
            operator(test, Domain.line(n, **DOUBLE).with_masses(mass)), witness(test)
        ),
        additive=_relative(witness(u) + witness(v), witness(u + v)),
        equivariant=_relative(witness(u.roll(1, 1)), witness(u).roll(1, 1)),
        convolution=_best_convolution(train, witness(train), test, witness(test)),
    )


@torch.no_grad()
def smoothing(n: int = 24, scale: float = 0.3) -> Smoothing:
    """ITNet D.5: attention averages, so it maps a constant to a constant; a smoothing that is not
    normalised falls off at the ends.

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
    return Smoothing(
        _relative(answer, expected), _spread(answer), _spread(_attention(4)(u, u, u)[0])
    )


@torch.no_grad()
def distance(n: int = 8) -> Distance:
    """ITNet D.6: attention without position codes answers exchanged features with exchanged
    outputs; distances stay where they are.

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
    """Least squares over all taps, channels and a bias of a circular convolution as long as the
    signal.
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
