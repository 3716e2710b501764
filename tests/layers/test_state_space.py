"""Linear systems by their matrices, and witnesses of what they cannot represent."""

from __future__ import annotations

import pytest
import torch
from evidence.unification.state_space import LoopedDiagonal, LoopedSystem
from evidence.unification.witnesses_recurrence import state_against_rank, two_sided_smoothing

from fredholm.convert import as_operator
from fredholm.domain import Domain
from fredholm.errors import OptionError, ShapeError
from fredholm.kernels import DiagonalStateSpaceKernel
from fredholm.layers import diagonal_system, linear_system

from ..tolerances import assert_close

DOUBLE = {"dtype": torch.float64}


def test_a_linear_system_agrees_with_scipy():
    """scipy's simulation reads u one step later and outputs before the update: x_{k+1} = A x_k + B
    u_k, y_k = C x_k.
    """
    signal = pytest.importorskip("scipy.signal")
    a = torch.randn(3, 3, **DOUBLE) / 2
    b = torch.randn(3, 2, **DOUBLE)
    c = torch.randn(1, 3, **DOUBLE)
    u = torch.randn(9, 2, **DOUBLE)
    _, y, _ = signal.dlsim(
        (a.numpy(), b.numpy(), c.numpy(), torch.zeros(1, 2).numpy(), 1.0), u.numpy()
    )
    assert_close(linear_system(a, b, c)(u[None])[0, :-1], torch.from_numpy(y)[1:])


@pytest.mark.parametrize("rule", ["zoh", "bilinear", "euler"])
def test_diagonal_and_dense_are_one_system(rule):
    pole = torch.tensor([-0.4 + 2j, -1.0 + 0.5j]).to(torch.complex128)
    b = torch.randn(2, 3) + 0j
    c = torch.randn(2, 2) + 1j
    d = torch.randn(2, 3, **DOUBLE)
    diagonal = diagonal_system(pole, b, c, d, discretization=rule, step=0.3)
    # a conjugate pair α ± iβ is the real block [[α, -β], [β, α]], read by (Re, -Im) of twice C B
    blocks = [torch.tensor([[p.real, -p.imag], [p.imag, p.real]], **DOUBLE) for p in pole]
    inputs = torch.stack([b.real, b.imag], 1).flatten(0, 1).double()
    outputs = torch.stack([2 * c.real, -2 * c.imag], -1).flatten(1).double()
    dense = linear_system(
        torch.block_diag(*blocks), inputs, outputs, d, discretization=rule, step=0.3
    )
    u = torch.randn(2, 7, 3, **DOUBLE)
    assert_close(diagonal(u), dense(u))


def test_wrong_options_and_shapes_are_refused():
    a = torch.randn(2, 2)
    one = torch.ones(1, 1)
    with pytest.raises(OptionError, match="real time is not discretised"):
        linear_system(a, a, a, continuous=True, discretization="zoh")
    with pytest.raises(OptionError, match=r"step: expected none without.*got 0\.1"):
        linear_system(a, a, a, step=0.1)
    with pytest.raises(OptionError, match="real time reads its steps off the domain, got 0"):
        linear_system(a, a, a, continuous=True, step=0.1)
    with pytest.raises(OptionError, match="steps: expected none without a discretization"):
        DiagonalStateSpaceKernel(2, discretization=None, steps=(0.1, 0.2))
    with pytest.raises(OptionError, match="a rule of discretization and a step above 0"):
        diagonal_system(torch.tensor([-1 + 1j]), one + 0j, one + 0j, step=0.0)
    with pytest.raises(ShapeError, match="feedthrough"):
        linear_system(a, a, a, one)
    with pytest.raises(OptionError, match="Re < 0"):
        diagonal_system(torch.tensor([1j]), one + 0j, one + 0j)
    with pytest.raises(ShapeError, match=r"poles \(S,\)"):
        diagonal_system(torch.tensor([-1 + 1j]), a + 0j, one + 0j)


def test_shared_parameters_follow_the_module_and_copies_do_not():
    module = LoopedSystem(3, 2, 2, "zoh")
    shared, copied = as_operator(module), as_operator(module, parameters="copied")
    u = torch.randn(1, 5, 2)
    before = copied(u)
    with torch.no_grad():
        module.a.mul_(0.5)
        module.d.add_(1.0)  # type: ignore[union-attr]
    assert_close(shared(u), module(u))
    assert_close(copied(u), before)
    assert not torch.allclose(shared(u), before)


def test_rows_equal_those_of_the_kernel_matrix():
    module = LoopedDiagonal(3, 2, "bilinear").double()
    op = as_operator(module)
    u = torch.randn(2, 6, 3, **DOUBLE)
    assert_close(op.kernel_matrix(u, rows=[5, 1]), op.kernel_matrix(u)[:, :, [5, 1]])


def test_the_kernel_is_a_function_of_the_lag():
    a = torch.randn(3, 3, **DOUBLE) / 2
    matrix = linear_system(a, torch.eye(3, **DOUBLE), torch.eye(3, **DOUBLE)).kernel_matrix(
        torch.zeros(1, 5, 3, **DOUBLE)
    )
    for t in range(5):
        for s in range(t + 1):
            assert_close(matrix[0, 0, t, s], torch.linalg.matrix_power(a, t - s))
    assert matrix[0, 0][torch.ones(5, 5).triu(1).bool()].abs().max() == 0


def test_real_time_equals_steps_at_equal_spacing():
    a, b, c = torch.randn(3, 3, **DOUBLE), torch.randn(3, 2, **DOUBLE), torch.randn(2, 3, **DOUBLE)
    u = torch.randn(2, 6, 2, **DOUBLE)
    domain = Domain.line(6, length=5.0, causal=True, measure="counting", **DOUBLE)
    steps = linear_system(torch.linalg.matrix_exp(a / 5), b, c)
    assert_close(linear_system(a, b, c, continuous=True)(u, domain), steps(u))


def test_causal_operators_cannot_smooth_both_sides():
    found = two_sided_smoothing(steps=15)
    assert found.operator < 1e-12
    assert 0.6 < found.causal <= found.fitted < found.causal + 0.05


def test_recurrences_remember_at_most_their_state():
    found = state_against_rank(4, 16, steps=25)
    assert found.operator < 1e-12
    assert found.bound[4] < 1e-12
    assert all(found.fitted[size] >= found.bound[size] > 0.3 for size in (1, 2, 3))
    assert found.fitted[3] < 1.5 * found.bound[3]
