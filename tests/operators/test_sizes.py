"""Forms that are taken by size agree on both sides of their crossovers, in values and gradients."""

import pytest
import torch

from fredholm import Domain, create_operator
from fredholm.families.ckconv.grid_convolution import fft
from fredholm.families.infsa.graph import token_graph
from fredholm.families.itnet.hidden_first import tiled
from fredholm.ops.feature_map import bank
from fredholm.ops.linear_attention import chunked

from ..tolerances import assert_close

N, DIM = 7, 8


def line(**options):
    return Domain.line(N, **options)


PADDED = torch.tensor([[True] * N, [True] * 4 + [False] * 3])
WHERE = {
    "a line": line(),
    "causal": line(causal=True),
    "padded": line(causal=True, valid=PADDED),
    "pairs": line(pairs=torch.rand(N, N, generator=torch.manual_seed(1)).log()),
    "a plane": Domain.grid(3, 2),
    "points": Domain.points(torch.rand(2, N, 2, generator=torch.manual_seed(2))),
}
SIZES = {
    "itnet": [(tiled, "FEW"), (tiled, "FEW_RECORDED"), (tiled, "ROW")],
    "ckconv": [(fft, "FEW")],
    "infsa": [(token_graph, "FEW")],
    "luna": [(bank, "FEW"), (bank, "FEW_RECORDED")],
}


def results(name, domain, gradients):
    torch.manual_seed(0)
    options = {"position_dim": domain.dim} if name in ("itnet", "ckconv") else {}
    operator = create_operator(name, DIM, 2, **options).double()
    with torch.set_grad_enabled(gradients):
        u = torch.randn(2, domain.size, DIM, dtype=torch.double, requires_grad=gradients)
        out = operator(u, domain)
        if not gradients:
            return [out]
        leaves = [u, *(p for p in operator.parameters() if p.requires_grad)]
        grads = torch.autograd.grad(out.sin().sum(), leaves, allow_unused=True)
        return [out, *(g for g in grads if g is not None)]


@pytest.mark.parametrize("gradients", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("name", SIZES)
def test_few_points_are_integrated_as_many_are(name, gradients, monkeypatch):
    for where, domain in WHERE.items():
        if name == "ckconv" and where == "pairs":
            continue  # neither form takes them
        few = results(name, domain, gradients)
        with monkeypatch.context() as patch:
            for module, constant in SIZES[name]:
                patch.setattr(module, constant, 0)
            many = results(name, domain, gradients)
        for a, b in zip(few, many, strict=True):
            assert_close(a, b, where)


@pytest.mark.parametrize("where", ["a line", "causal", "padded"])
@pytest.mark.parametrize("gradients", [False, True], ids=["values", "gradients"])
def test_linear_attention_by_pairs_is_that_by_moments(where, gradients, monkeypatch):
    domain = WHERE[where]
    like = torch.ones(1, 1, 4, 4)
    assert chunked.wants_pairs(like, like, like, domain.causal, 64)
    few = results("linear_attention", domain, gradients)
    monkeypatch.setattr(chunked, "wants_pairs", lambda *sizes: False)
    many = results("linear_attention", domain, gradients)
    for a, b in zip(few, many, strict=True):
        assert_close(a, b, where)


@pytest.mark.parametrize("where", ["a line", "causal"])
@pytest.mark.parametrize("gradients", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("pairs", [False, True], ids=["moments", "pairs"])
def test_heads_as_one_dimension_are_heads_apart(where, gradients, pairs, monkeypatch):
    domain = WHERE[where]
    monkeypatch.setattr(chunked, "wants_pairs", lambda *sizes: pairs)
    one = results("linear_attention", domain, gradients)
    monkeypatch.setattr(chunked, "_is_plain", lambda *tensors: False)
    apart = results("linear_attention", domain, gradients)
    for a, b in zip(one, apart, strict=True):
        assert_close(a, b, where)


def test_the_floor_follows_masses_that_are_written_to():
    u = torch.rand(1, 1, 4, 3)
    quadrature = Domain.line(4, measure="counting").quadrature()
    for mass in (1.0, 0.5):
        quadrature.mass.fill_(mass)
        out = chunked.linear_attention(u, u, u, quadrature, floor=10.0)
        assert_close(out, (u @ u.mT * mass) @ u / (mass * (u @ u.mT).sum(-1, True)).clamp_min(10.0))


def test_a_plan_says_which_convolution_runs():
    operator = create_operator("ckconv", DIM, 2)
    paths = [operator.plan(Domain.line(n, causal=True)).path for n in (16, 1024)]
    assert paths == ["direct convolution", "FFT convolution, hidden units first"]
