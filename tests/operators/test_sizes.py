"""Choices by size that the contract suite does not cover."""

import pytest
import torch

from fredholm import Domain, create_operator
from fredholm.ops.linear_attention import chunked

from ..tolerances import assert_close

N, DIM = 7, 8


WHERE = {"a line": Domain.line(N), "causal": Domain.line(N, causal=True)}


def results(name, domain, gradients):
    torch.manual_seed(0)
    operator = create_operator(name, DIM, 2).double()
    with torch.set_grad_enabled(gradients):
        u = torch.randn(2, domain.size, DIM, dtype=torch.double, requires_grad=gradients)
        out = operator(u, domain)
        if not gradients:
            return [out]
        leaves = [u, *(p for p in operator.parameters() if p.requires_grad)]
        grads = torch.autograd.grad(out.sin().sum(), leaves, allow_unused=True)
        return [out, *(g for g in grads if g is not None)]


@pytest.mark.parametrize("where", ["a line", "causal"])
@pytest.mark.parametrize("gradients", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("pairs", [False, True], ids=["moments", "pairs"])
def test_heads_in_one_batch_equal_separate_heads(where, gradients, pairs, monkeypatch):
    domain = WHERE[where]
    monkeypatch.setattr(chunked, "wants_pairs", lambda *sizes: pairs)
    one = results("linear_attention", domain, gradients)
    monkeypatch.setattr(chunked, "_fits_one_batch", lambda *tensors: False)
    apart = results("linear_attention", domain, gradients)
    for a, b in zip(one, apart, strict=True):
        assert_close(a, b, where)


def test_the_floor_follows_in_place_changes_of_masses():
    u = torch.rand(1, 1, 4, 3)
    quadrature = Domain.line(4, measure="counting").quadrature()
    for mass in (1.0, 0.5):
        quadrature.mass.fill_(mass)
        out = chunked.linear_attention(u, u, u, quadrature, floor=10.0)
        assert_close(out, (u @ u.mT * mass) @ u / (mass * (u @ u.mT).sum(-1, True)).clamp_min(10.0))


def test_the_plan_names_the_convolution_that_runs():
    operator = create_operator("ckconv", DIM, 2)
    paths = [operator.plan(Domain.line(n, causal=True)).path for n in (16, 1024)]
    assert paths == ["direct convolution", "FFT convolution, hidden units first"]
