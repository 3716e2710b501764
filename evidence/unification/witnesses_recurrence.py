"""Integral operators that recurrences provably cannot express: those that read both sides of a
point, and those that remember more than a recurrence's state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fredholm import Domain, IntegralOperator
from fredholm.kernels import DiagonalStateSpaceKernel, PairKernel

DOUBLE = {"dtype": torch.float64}


@dataclass(frozen=True)
class Smoothing:
    """Relative errors in the root mean square on white noise.

    Attributes:
        operator: of our operator.
        causal: of the best causal operator.
        fitted: of a fitted state space model.
    """

    operator: float
    causal: float
    fitted: float


@dataclass(frozen=True)
class Memory:
    """Relative errors of later outputs as functions of earlier inputs.

    Attributes:
        operator: of our operator.
        bound: by state size, the smallest error of any recurrence.
        fitted: by state size, the error of a fitted linear recurrence with free matrices at every
            step.
    """

    operator: float
    bound: dict[int, float]
    fitted: dict[int, float]


class TwoSided(PairKernel):
    """K = e^{-|x - y| / scale}."""

    reads_query = False

    def __init__(self, scale: float):
        super().__init__(1, 1)
        self.scale = scale

    def forward(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        return (-(x - y).abs() / self.scale).exp()[..., None]


class Expansion(PairKernel):
    """K = φ_1(x) φ_1(y) + ... + φ_R(x) φ_R(y).

    The φ are cosines, which are orthogonal on each half of the unit interval too.
    """

    reads_query = False

    def __init__(self, rank: int):
        super().__init__(1, 1)
        self.rank = rank

    def features(self, x: Tensor) -> Tensor:
        """Return φ(x), (..., R)."""
        k = torch.arange(self.rank, dtype=x.dtype)
        return (2 * torch.pi * k * x).cos() * torch.where(k == 0, 1.0, 2.0).sqrt()

    def forward(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        return (self.features(x) * self.features(y)).sum(-1)[..., None, None]


def two_sided_smoothing(
    n: int = 48, scale: float = 6.0, *, states: int = 4, steps: int = 40
) -> Smoothing:
    """Compare exponential smoothing over both sides (ITNet, E.9) with causal systems.

    For white noise the best causal operator is the kernel's causal half: each missing entry is an
    independent error. The reference is the classical filter with two passes, which needs the
    complete signal before its first output.

    Example:
        >>> found = two_sided_smoothing(16, steps=2)
        >>> found.operator < 1e-12 < 0.5 < found.causal <= found.fitted
        True
    """
    domain = Domain.line(n, length=1.0, measure="counting", **DOUBLE)
    u = torch.randn(64, n, 1, generator=torch.Generator().manual_seed(0), **DOUBLE)
    operator = IntegralOperator(1, kernel=TwoSided(scale), residual=False, projection=False)
    expected = two_passes(u, scale)
    target = operator.kernel_matrix(u[:1], domain)[0, 0, :, :, 0, 0]
    torch.manual_seed(0)
    kernel = DiagonalStateSpaceKernel(1, state=states, steps=(0.1, 1.0)).double()
    lag = torch.arange(n)[:, None] - torch.arange(n)

    def misfit() -> Tensor:
        system = torch.where(lag >= 0, kernel.lags(n)[0, lag.clamp(min=0), 0, 0], 0.0)
        return (system - target).norm() / target.norm()

    return Smoothing(
        operator=_relative(operator(u, domain), expected),
        causal=float(target.triu(1).norm() / target.norm()),
        fitted=_fit(misfit, list(kernel.parameters()), steps),
    )


def two_passes(u: Tensor, scale: float) -> Tensor:
    """Smooth a signal (B, N, 1) forwards and backwards."""
    decay = torch.exp(torch.tensor(-1.0 / scale, **DOUBLE))

    def one_pass(signal: Tensor) -> Tensor:
        state, out = torch.zeros_like(u[:, 0]), []
        for u_t in signal.unbind(1):
            state = decay * state + u_t
            out.append(state)
        return torch.stack(out, 1)

    # Both passes have the point itself.
    return one_pass(u) + one_pass(u.flip(1)).flip(1) - u


def state_against_rank(rank: int = 6, n: int = 24, *, steps: int = 200) -> Memory:
    """Compare a kernel of rank R with recurrences of N < R states (ITNet, E.10).

    Outputs after a point depend on inputs before it only through the N numbers of the state. That
    block of a recurrence's kernel therefore has rank N at most, and its error is at least the norm
    of the block's singular values beyond N.

    Example:
        >>> found = state_against_rank(3, 12, steps=3)
        >>> found.operator < 1e-12, all(found.fitted[size] >= found.bound[size] > 0.02 for size in (1, 2))
        (True, True)
    """
    domain = Domain.line(n, measure="counting", **DOUBLE)
    kernel = Expansion(rank)
    operator = IntegralOperator(1, kernel=kernel, residual=False, projection=False)
    u = torch.randn(8, n, 1, generator=torch.Generator().manual_seed(0), **DOUBLE)
    phi = kernel.features(domain.positions)
    cut = n // 2
    target = (phi @ phi.mT)[cut:, :cut]
    values = torch.linalg.svdvals(target)
    bound = {size: float(values[size:].norm() / values.norm()) for size in range(1, rank + 1)}
    fitted = {size: _fit_recurrence(target, size, steps) for size in range(1, rank + 1)}
    return Memory(_relative(operator(u, domain), phi @ (phi.mT @ u)), bound, fitted)


def _fit_recurrence(target: Tensor, size: int, steps: int) -> float:
    """Fit h_t = A_t h_{t-1} + b_t u_t, y_t = c_t h_t to the block of later outputs and earlier
    inputs, with all A, b and c learned; return the relative error.
    """
    later, earlier = target.shape
    generator = torch.Generator().manual_seed(size)
    moves = torch.eye(size, **DOUBLE).repeat(later + earlier, 1, 1).requires_grad_()
    reads = torch.randn(later, size, generator=generator, **DOUBLE).requires_grad_()
    writes = torch.randn(earlier, size, generator=generator, **DOUBLE).requires_grad_()

    def misfit() -> Tensor:
        states = writes[:1].mT
        for s in range(1, earlier):
            states = torch.cat([moves[s] @ states, writes[s, :, None]], 1)
        rows = []
        for t in range(later):
            states = moves[earlier + t] @ states
            rows.append(reads[t] @ states)
        return (torch.stack(rows) - target).norm() / target.norm()

    return _fit(misfit, [moves, reads, writes], steps)


def _fit(misfit, parameters: list[Tensor], steps: int) -> float:
    """Minimise a misfit by L-BFGS and return it."""
    options = {"line_search_fn": "strong_wolfe", "tolerance_grad": 1e-12, "tolerance_change": 0.0}
    optimizer = torch.optim.LBFGS(parameters, max_iter=steps, history_size=50, **options)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = misfit().square()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        return float(misfit())


def _relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())
