"""A nonlinear system affine in its input: the kernel along the driven trajectory, against a driven
solve.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from evidence.theorems.affine_system import AffineSystemKernel, affine_system

from fredholm.domain import Domain
from fredholm.errors import DomainError, OptionError
from fredholm.layers import linear_system

from ..tolerances import assert_close

torchdiffeq = pytest.importorskip("torchdiffeq")
DOUBLE = {"dtype": torch.float64}
ONE = torch.ones(1, 1, **DOUBLE)
END = 2.0


def cubic(h: torch.Tensor) -> torch.Tensor:
    """h' = -h³ - h/2 + u, the spec's example."""
    return -(h**3) - h / 2


def gauss_legendre(n: int) -> Domain:
    """Return Gauss's points and weights in time, and both ends with mass zero: the output is read
    at the end.
    """
    nodes, weights = np.polynomial.legendre.leggauss(n)
    times = torch.tensor([0.0, *(END * (nodes + 1) / 2), END], **DOUBLE)
    mass = torch.tensor([0.0, *(END * weights / 2), 0.0], **DOUBLE)
    return Domain.points(times[:, None], measure=mass, causal=True)


def driven(signal, initial: float) -> torch.Tensor:
    """Return the output at the end, by a direct solve with small fixed steps."""
    first, times = torch.tensor([initial], **DOUBLE), torch.tensor([0.0, END], **DOUBLE)
    options = {"step_size": END / 2000}
    return torchdiffeq.odeint(
        lambda t, h: cubic(h) + signal(t), first, times, method="rk4", options=options
    )[-1]


@pytest.mark.parametrize(("initial", "paper"), [(0.0, 0.4), (1.0, 0.2)])
def test_unforced_sensitivities_are_exact_unlike_driven_ones(initial, paper):
    domain = gauss_legendre(14)
    signal = torch.cos
    u = signal(domain.positions)[None]
    options = {
        "path": lambda times, u: lambda t: signal(t).reshape(1, 1),
        "method": "rk4",
        "options": {"step_size": 0.02},
    }
    expected = driven(signal, initial)
    errors = {}
    for sensitivity in ("unforced", "driven"):
        first = torch.tensor([initial], **DOUBLE)
        op = affine_system(cubic, ONE, ONE, first, sensitivity=sensitivity, **options)
        errors[sensitivity] = float(((op(u, domain)[0, -1] - expected) / expected).abs())
    assert errors["unforced"] < 2e-8, errors  # of fixed steps; 6e-12 where they are finer
    assert errors["driven"] > paper, errors


def test_an_input_matrix_with_several_channels_converges_to_a_driven_solve():
    """A Lotka-Volterra-like pair with B(h) converges with second order in the samples' spacing."""

    def field(h):
        x, y = h.unbind(-1)
        return torch.stack([y - x * y, -x - y / 2 + x**2 / 4], -1)

    def gain(h):
        x, y = h.unbind(-1)
        return torch.stack(
            [torch.stack([1 + y / 2, x], -1), torch.stack([x * y, torch.cos(x)], -1)], -2
        )

    first = torch.tensor([0.3, -0.2], **DOUBLE)
    c = torch.randn(2, 2, **DOUBLE)
    solver = {"method": "rk4", "options": {"step_size": 0.05}}
    errors = []
    for n in (11, 21):
        times = torch.linspace(0, 1, n, **DOUBLE)
        u = torch.stack([torch.sin(3 * times), torch.cos(times)], -1)[None]
        mass = torch.full((n,), 1.0 / (n - 1), **DOUBLE)
        mass[0] = mass[-1] = 0.5 / (n - 1)  # trapezoids, for the output at the end
        op = affine_system(field, gain, c, first, **solver)
        kernel = op.kernel
        assert isinstance(kernel, AffineSystemKernel)
        domain = Domain.points(times[:, None], measure=mass, causal=True)
        direct = kernel.trajectory(times, u)[:, -1] @ c.mT
        errors.append(float((op(u, domain)[:, -1] - direct).norm()))
    assert 3.0 < errors[0] / errors[1] < 5.0, errors


def test_a_linear_field_gives_the_linear_kernel():
    a, b, c = torch.randn(2, 2, **DOUBLE), torch.randn(2, 1, **DOUBLE), torch.randn(1, 2, **DOUBLE)
    h0, u = torch.randn(2, **DOUBLE), torch.randn(2, 4, 1, **DOUBLE)
    domain = Domain.timestamps(torch.tensor([0.0, 0.3, 0.5, 1.1], **DOUBLE))
    op = affine_system(lambda h: h @ a.mT, b, c, h0, rtol=1e-11, atol=1e-13)
    assert_close(
        op(u, domain), linear_system(a, b, c, initial_state=h0, continuous=True)(u, domain)
    )
    assert_close(op.kernel_matrix(u, domain, rows=[2]), op.kernel_matrix(u, domain)[:, :, [2]])


def test_gradients_reach_every_parameter():
    rate = torch.nn.Linear(2, 2).double()
    op = affine_system(
        lambda h: torch.tanh(rate(h)),
        torch.randn(2, 1, **DOUBLE),
        torch.randn(1, 2, **DOUBLE),
        torch.randn(2, **DOUBLE),
        method="rk4",
        options={"step_size": 0.25},
    )
    times = Domain.timestamps(torch.tensor([0.0, 0.5, 1.0], **DOUBLE))
    u = torch.randn(1, 3, 1, **DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u: op(u, times), (u,))
    op(u, times).sum().backward()
    for parameter in (*op.parameters(), *rate.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0


def test_unsupported_domains_and_options_are_refused():
    op = affine_system(cubic, ONE, ONE, ONE[0])
    u = torch.randn(2, 3, 1, **DOUBLE)
    line = Domain.line(3, causal=True, measure="spacing", **DOUBLE)
    with pytest.raises(DomainError, match="'spacing' or 'weighted'"):
        op(u, line.replace(kind="counting"))
    with pytest.raises(DomainError, match="without padding"):
        op(u, line.replace(valid=torch.ones(2, 3).bool()))
    with pytest.raises(DomainError, match="causal=True"):
        op(u, line.replace(causal=False))
    with pytest.raises(OptionError, match="'unforced' \\(exact\\)"):
        affine_system(cubic, ONE, ONE, ONE[0], sensitivity="paper")
