"""Corollaries and propositions of the papers that need no training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fredholm import Domain
from fredholm.models import counter
from fredholm.operators import ITNetOperator

POINTS, DIM = 12, 4
Map = Callable[[Tensor], Tensor]


# --- ITNet, Corollary F.1 -------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """A member of a classical family, and how far a map is from what all of its members keep."""

    member: Map
    defect: Callable[[Map], float]


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def draw() -> Tensor:
    return torch.randn(2, POINTS, DIM, dtype=torch.float64)


def not_linear(one: Map) -> float:
    """A convolution without bias is additive."""
    u, v = draw(), draw()
    return relative(one(u + v), one(u) + one(v))


def not_permuted(one: Map) -> float:
    """Attention without positions exchanges outputs as its inputs are exchanged."""
    u = draw()
    order = torch.randperm(POINTS)
    return relative(one(u[:, order]), one(u)[:, order])


def not_causal(one: Map) -> float:
    """A recurrence's outputs do not see later inputs."""
    u = draw()
    half = POINTS // 2
    later = u.clone()
    later[:, half:] = draw()[:, half:]
    return relative(one(later)[:, :half], one(u)[:, :half])


def families() -> dict[str, Family]:
    torch.manual_seed(0)
    taps = torch.randn(DIM, DIM, 5, dtype=torch.float64)
    cell = nn.LSTM(DIM, DIM, batch_first=True).double()

    def convolution(u: Tensor) -> Tensor:
        around = functional.pad(u.mT, (2, 2), mode="circular")
        return functional.conv1d(around, taps).mT

    def attention(u: Tensor) -> Tensor:
        return (u @ u.mT).softmax(-1) @ u

    return {
        "convolution": Family(convolution, not_linear),
        "attention": Family(attention, not_permuted),
        "recurrence": Family(lambda u: cell(u)[0].detach(), not_causal),
    }


def test_the_classical_families_are_pairwise_incomparable():
    """A member of each lacks what all members of the others keep."""
    known = families()
    for name, family in known.items():
        assert family.defect(family.member) < 1e-12, name
        for other, another in known.items():
            if other != name:
                assert another.defect(family.member) > 0.05, f"{name} is not a {other}"


def test_the_proofs_example_of_a_convolution_is_not_one():
    """The proof names a spatially varying filter, which does not commute with shifts."""
    u = draw()
    place = torch.linspace(0.5, 2, POINTS, dtype=torch.float64)[:, None]
    assert relative(place * u.roll(1, 1), (place * u).roll(1, 1)) > 0.05


# --- ITNet, Proposition 10 ------------------------------------------------------------------------


def test_the_kernels_network_costs_more_than_its_product_with_the_signal():
    """H.8 says that per pair the matrix-vector product dominates.

    The last layer of the network makes the matrix, with that many multiplications per hidden unit.
    Applying it to the signal first, as here, saves the matrix and is still the larger part.
    """
    dim, heads, points = 32, 4, 16
    operator = ITNetOperator(dim, heads, width=64, position_dim=1, strategy="exact")
    with counter() as counted:
        operator(torch.randn(1, points, dim), Domain.line(points))
    product = 2 * points**2 * dim * dim // heads
    assert counted.get_total_flops() > 5 * product


# --- LUNA, Proposition 10 -------------------------------------------------------------------------


def share_beyond(shift: float, slope: float, epsilon: float) -> float:
    """P(|f² - E f²| ≥ ε) of f(ω) = shift + slope ω with a standard normal ω."""
    # f² - E f² = 2 shift slope ω + slope² (ω² - 1) has two roots at +ε, and two or none at -ε.
    a, b = slope**2, 2 * shift * slope

    def between(level: float) -> float:
        """P(a ω² + b ω - a ≤ level)."""
        root = b**2 + 4 * a * (a + level)
        if root <= 0:
            return 0.0
        low, high = ((-b + sign * math.sqrt(root)) / (2 * a) for sign in (-1, 1))
        return 0.5 * (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2)))

    return 1 - between(epsilon) + between(-epsilon)


def bound(slope: float, epsilon: float, c: float) -> float:
    """The proposition's bound with its constant c."""
    ratio = epsilon / slope**2
    return 2 * math.exp(-c * min(ratio, ratio**2))


@pytest.mark.parametrize("c", [1e-3, 0.1, 1.0])
def test_concentration_of_products_fails_without_centred_functions(c):
    """The proof bounds a function's norm by its Lipschitz constant.

    A constant summand changes the norm and not that constant: whatever c is, a large one breaks the
    bound.
    """
    epsilon = 0.5
    slope = math.sqrt(c * epsilon / 10)
    assert bound(slope, epsilon, c) < 1e-3
    assert share_beyond(100 / slope, slope, epsilon) > 0.99


def test_concentration_of_products_holds_for_centred_functions():
    for slope in (0.05, 0.2, 1.0):
        for epsilon in (0.01, 0.1, 0.5, 0.9):
            assert share_beyond(0.0, slope, epsilon) <= bound(slope, epsilon, 0.25)
