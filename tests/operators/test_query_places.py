"""Queries without a domain of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fredholm import Domain
from fredholm.errors import DomainError, ShapeError
from fredholm.operators import (
    CKConv,
    ITNetOperator,
    LunaAttention,
    SoftmaxAttention,
    create_operator,
)

from ..tolerances import assert_close

U = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize(
    "make",
    [
        lambda: CKConv(4, length=12),
        lambda: ITNetOperator(4, 2, width=8),
        lambda: LunaAttention(4, 2),
        lambda: SoftmaxAttention(4, 2),
    ],
)
def test_queries_equal_to_the_features_are_the_points_themselves(make):
    torch.manual_seed(0)
    operator = make().double()
    for domain in (
        None,
        Domain.line(6, length=20, dtype=torch.float64),
        Domain.line(6, length=20, causal=True, dtype=torch.float64),
        Domain.timestamps(torch.tensor([0.0, 1.0, 1.5, 4.0, 9.0, 11.0]).double()),
    ):
        assert_close(operator(U, domain, query=U), operator(U, domain))


@pytest.mark.parametrize("n", [1, 5, 16])
@pytest.mark.parametrize("name", ["softmax", "luna", "linear_attention"])
def test_operators_without_positions_accept_any_number_of_queries(name, n):
    """Domains of every dimension give the same result as a line."""
    torch.manual_seed(0)
    operator = create_operator(name, 4, 2).double()
    u, query = torch.randn(2, 16, 4).double(), torch.randn(2, n, 4).double()
    u, query = u.requires_grad_(), query.requires_grad_()
    line = Domain.line(16, dtype=torch.float64)
    for domain in (
        Domain.grid(4, 4, dtype=torch.float64),
        Domain.points(torch.rand(2, 16, 3, dtype=torch.float64)),
        Domain.grid(2, 2, 4, dtype=torch.float64),
    ):
        out, expected = operator(u, domain, query=query), operator(u, line, query=query)
        assert out.shape == (2, n, 4)
        assert_close(out, operator.dense(u, domain, query=query), "definition")
        assert_close(out, expected)
        grads = [torch.autograd.grad(y.square().sum(), (u, query)) for y in (out, expected)]
        for g, h in zip(*grads):
            assert_close(g, h, "gradient")


def test_a_query_domain_must_match_the_features():
    operator = CKConv(4, length=12).double()
    domain = Domain.points(torch.rand(6, 1).double())
    three = Domain.points(torch.rand(3, 5, 1).double())
    for u in (U, U[:1]):
        with pytest.raises(ShapeError, match=rf"batch size of its query_domain, 3, got {len(u)}"):
            operator(u, domain, query_domain=three)
    with pytest.raises(ShapeError, match="query_domain: expected the device of u, cpu, got meta"):
        operator(U, domain, query_domain=Domain.points(torch.rand(5, 1)).to("meta"))


def test_queries_at_other_points_need_a_query_domain():
    query = U[:, :4]
    causal = Domain.line(6, causal=True)
    for operator, domain in (
        (CKConv(4, length=12).double(), Domain.line(6, length=20, dtype=torch.float64)),
        (SoftmaxAttention(4, 2).double(), causal),
    ):
        with pytest.raises(ShapeError, match="6 points of domain, got 4; pass query_domain"):
            operator(U, domain, query=query)
    free = SoftmaxAttention(4, 2).double()
    assert_close(free(U, Domain.line(6), query=query), free(U)[:, :4])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["softmax", "luna", "itnet", "ckconv", "linear_attention"])
def test_queries_within_a_reach_lie_at_the_points_of_the_keys(name, causal):
    torch.manual_seed(0)
    options = {"length": 6} if name == "ckconv" else {}
    heads = 1 if name == "ckconv" else 2
    operator = create_operator(name, 4, heads, **options).double()
    valid = torch.tensor([[True] * 6, [True, False] + [True] * 4])
    line = Domain.line(6, causal=causal, reach=1, dtype=torch.float64)
    query = torch.randn_like(U)
    for domain in (line, line.replace(valid=valid)):
        assert_close(operator(U, domain, query=U), operator(U, domain))
        out = operator(U, domain, query=query)
        assert_close(out, operator(U, domain.dense(), query=query, query_domain=domain.dense()))
        assert_close(out, operator(U, domain, query=query, query_domain=domain))
    with pytest.raises(ShapeError, match="6 points of domain, got 4"):
        operator(U, line, query=query[:, :4])
    with pytest.raises(DomainError, match="own points beside reach, got queries on Domain"):
        operator(U, line, query=query, query_domain=Domain.line(6, dtype=torch.float64))


@pytest.mark.parametrize(
    "domain",
    [
        Domain.grid(2, 3, causal=True, dtype=torch.float64),
        Domain.line(6, causal=True, reach=2, dtype=torch.float64),
        Domain.points(
            torch.rand(6, 2, dtype=torch.float64, generator=torch.manual_seed(0)),
            causal=True,
            neighbours=3,
            box=(1.0, 1.0),
        ),
    ],
    ids=["grid", "reach", "images"],
)
def test_queries_on_a_copy_of_the_domain_are_those_on_the_domain(domain):
    """A copy has the same tensors, as where a domain is passed twice to a compiled program."""
    operator = SoftmaxAttention(4, 2).double()
    query = torch.randn_like(U)
    copy = domain.to(domain.positions.device)
    expected = operator(U, domain, query=query, query_domain=domain)
    assert operator(U, domain, query=query, query_domain=copy).equal(expected)


TWICE = """
import torch
from fredholm import Domain
from fredholm.operators import SoftmaxAttention

class Crossed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.operator = SoftmaxAttention(4, 2)

    def forward(self, u, domain, query, query_domain):
        return self.operator(u, domain, query=query, query_domain=query_domain)

module, domain = Crossed(), Domain.grid(2, 3, causal=True)
inputs = (torch.randn(2, 6, 4), domain, torch.randn(2, 6, 4), domain)
program = torch.export.export(module, inputs).module()
torch.testing.assert_close(program(*inputs), module(*inputs))
"""


@pytest.mark.compile
def test_a_program_whose_inputs_are_one_domain_twice_knows_that_it_is_one():
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_queries_of_an_operator_without_positions_are_not_padding():
    """They may be other tokens than the keys, of the same number."""
    operator = SoftmaxAttention(4, 2).double()
    valid = torch.tensor([[True] * 5 + [False]] * 2)
    domain = Domain.line(6, valid=valid, dtype=torch.float64)
    out = operator(U, domain, query=U)
    assert_close(out[:, :5], operator(U, domain)[:, :5])
    assert out[:, 5].abs().min() > 0
    assert operator(U, domain.replace(causal=True), query=U)[:, 5].abs().max() == 0
