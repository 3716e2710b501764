"""Decayed accumulation: its formulas, its limit, the resolvent, and any operator inside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.domain import Domain
from fredholm.errors import OptionError
from fredholm.models.depth import Accumulation
from fredholm.operators import create_operator

from ..tolerances import assert_close

DIM, N = 8, 5


def features():
    return torch.randn(2, N, DIM, dtype=torch.float64)


class Fixed(nn.Module):
    """A linear operator on the points, the same for every input."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.rand(N, N, dtype=torch.float64) / N)

    def forward(self, u, domain):
        return self.matrix @ u


def test_the_series_of_one_operator_is_its_truncated_resolvent():
    operator = Fixed()
    u = features()
    gamma = 0.7
    series = Accumulation([operator] * 3, DIM, decay=gamma, residual=False)
    walk = gamma * operator.matrix
    assert_close(series(u, Domain.line(N)), (walk + walk @ walk + walk @ walk @ walk) @ u)
    long = Accumulation([operator] * 80, DIM, decay=gamma, residual=False)
    assert_close(long(u, Domain.line(N)), torch.linalg.solve(torch.eye(N).double() - walk, u) - u)


def test_the_series_of_different_operators_equals_equation_9():
    operators = [Fixed() for _ in range(3)]
    u = features()
    a, b, c = (o.matrix for o in operators)
    expected = 0.5 * a @ u + 0.25 * b @ a @ u + 0.125 * c @ b @ a @ u
    assert_close(
        Accumulation(operators, DIM, decay=0.5, residual=False)(u, Domain.line(N)), expected
    )


@pytest.mark.parametrize("ratio", [4.0, 0.0])
@pytest.mark.parametrize("name", ["softmax", "itnet", "infsa", "linear_infsa"])
def test_a_residual_stack_equals_its_formula_for_any_operator(name, ratio):
    options = {"width": 4} if name == "itnet" else {"power": 0} if "infsa" in name else {}
    stack = Accumulation(
        [create_operator(name, DIM, 2, **options) for _ in range(3)], DIM, decay=0.6, ratio=ratio
    ).double()
    u = features()
    domain = Domain.line(N, causal=True, dtype=torch.float64)
    h = u
    total = torch.zeros_like(u)
    for layer in range(3):
        part = 0.6 ** (layer + 1) * stack.operators[layer](stack.norms[layer](h), domain)
        total, h = total + part, h + part
        if ratio:
            h = h + stack.networks[layer](stack.network_norms[layer](h))
    out, accumulated = stack.accumulate(u, domain)
    assert_close(out, h)
    assert_close(accumulated, total, "S_L")
    assert_close(stack(u, domain), h, "forward")


@pytest.mark.parametrize("residual", [True, False])
def test_a_learned_decay_receives_a_gradient(residual):
    stack = Accumulation(
        [Fixed(), Fixed()], DIM, decay=0.4, learned_decay=True, residual=residual
    ).double()
    fixed = Accumulation(stack.operators, DIM, decay=0.4, residual=residual).double()
    fixed.load_state_dict({k: v for k, v in stack.state_dict().items() if k != "decay_logit"})
    u = features()
    domain = Domain.line(N)
    assert_close(stack(u, domain), fixed(u, domain), "start", torch.float32)
    logit = stack.decay_logit.detach().clone().requires_grad_()
    call = lambda x: torch.func.functional_call(stack, {"decay_logit": x}, (u, domain))  # noqa: E731
    assert torch.autograd.gradcheck(call, (logit,))
    assert torch.autograd.grad(call(logit).square().sum(), logit)[0].abs() > 1e-6


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, 2.0])
def test_wrong_decays_and_empty_stacks_are_refused(decay):
    with pytest.raises(OptionError, match=rf"\(0, 1\), got {decay}"):
        Accumulation([Fixed()], DIM, decay=decay)
    with pytest.raises(OptionError, match="operators: expected one or more, got none"):
        Accumulation([], DIM)
