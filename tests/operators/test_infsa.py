"""Strategies of InfSA: plans, refusals, reports, and convergence in the number of hops."""

from __future__ import annotations

import copy

import pytest
import torch
from evidence.infsa.speed import definition, quadratic

from fredholm.distributed import Shards
from fredholm.domain import Domain
from fredholm.errors import ConvergenceError, DomainError, OptionError, StrategyError
from fredholm.families.infsa import centres
from fredholm.families.infsa.graph import edge_product
from fredholm.families.infsa.graph.solve import Convergence, _check
from fredholm.kernels import Layout
from fredholm.models import create_model, from_pretrained
from fredholm.operators import (
    Exact,
    InfSA,
    LinearInfSA,
    Neumann,
    Resolvent,
    SoftmaxAttention,
    create_operator,
)
from tests.parts import parts

from ..tolerances import assert_close

DIM, HEADS, N = 8, 2, 12


def features(scale=1.0):
    return scale * torch.randn(
        2, N, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )


@pytest.mark.parametrize(
    ("strategy", "causal", "path"),
    [
        ("auto", False, "one hop over tiles"),
        (Neumann(4), True, "hops over tiles"),
        ("resolvent", False, "iterations over tiles"),
        (Resolvent(), True, "forward substitution by blocks"),
    ],
)
def test_plans_name_the_form_that_runs(strategy, causal, path):
    plan = InfSA(DIM, HEADS, strategy=strategy).plan(Domain.line(N, causal=causal))
    assert plan.path == path
    assert plan.reason


@pytest.mark.parametrize("causal", [False, True])
def test_more_hops_converge_at_the_rate_of_the_decay(causal):
    op = InfSA(DIM, HEADS, strategy=Resolvent(tol=1e-12)).double()
    u = features()
    domain = Domain.line(N, causal=causal, dtype=torch.float64)
    errors = []
    with torch.no_grad():
        limit = op(u, domain)
        for hops in (1, 4, 16):
            op.strategy = Neumann(hops)
            errors.append((op(u, domain) - limit).abs().max().item())
        op.strategy = "auto"
        assert (op(u, domain) - limit).abs().max().item() == pytest.approx(errors[0])
    assert errors[2] < 0.7**12 * errors[1] * 10 < errors[1] < errors[0]


def test_convergence_is_reported():
    op = InfSA(DIM, HEADS, strategy=Resolvent(tol=1e-8)).double()
    u = features()
    report = op.convergence(u)
    matrix = op.weights(u)
    assert report.residual <= 1e-8
    assert report.method == "neumann"
    assert report.radius == pytest.approx(torch.linalg.eigvals(matrix).abs().max().item(), rel=0.02)
    causal = op.convergence(u, Domain.line(N, causal=True, dtype=torch.float64))
    assert causal.method == "substitution"
    with pytest.raises(StrategyError, match="expected the strategy Resolvent"):
        InfSA(DIM, HEADS).convergence(u.float())


def test_non_convergence_is_an_error_with_both_methods():
    op = InfSA(
        DIM, HEADS, decay=0.99, tied=True, strategy=Resolvent(tol=1e-12, max_iterations=3)
    ).double()
    with pytest.raises(ConvergenceError, match="after 3 products"):
        op(features())
    op.strategy = Resolvent(tol=1e-12, max_iterations=3, method="gmres")
    with pytest.raises(ConvergenceError, match="spectral radius about"):
        op(features())


def test_an_error_of_convergence_prints_the_tolerance_as_it_is():
    """Rounded to one digit, 1.9e-06 would be 2e-06, above the residual."""
    report = Convergence("neumann", 3, 1.95e-6, 0.5)
    with pytest.raises(ConvergenceError, match=r"at most 1.9e-06, got 1.95e-06 after 3"):
        _check(report, 1.9e-6)


def test_precision_bounds_the_tolerance():
    op = InfSA(DIM, HEADS, strategy=Resolvent(tol=1e-14, max_iterations=100))
    assert op.convergence(features().float()).residual <= 16 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("strategy", [Neumann(2), Resolvent()])
def test_kernels_without_a_graph_are_refused(strategy):
    for op in (
        SoftmaxAttention(DIM, HEADS, strategy=strategy),
        LinearInfSA(DIM, HEADS, strategy=strategy),
    ):
        with pytest.raises(StrategyError, match="a token graph"):
            op(features().float())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Neumann(hops=0), "one hop or more, got hops=0"),
        (lambda: Resolvent(tol=0.0), r"expected tol in \(0, 1\) .*, got 0.0 and 500"),
        (lambda: Resolvent(max_iterations=1), "max_iterations of 2 or more, got 1e-05 and 1"),
        (lambda: Resolvent(method="cg"), "unknown method 'cg'"),
        (
            lambda: create_operator("linear_infsa", DIM, HEADS, causal="stream"),
            "did you mean 'streaming'",
        ),
        (lambda: create_operator("infsa", DIM, HEADS, decays=0.5), "did you mean 'decay'"),
    ],
)
def test_wrong_options_are_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()


def test_the_resolvent_refuses_traced_code(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(StrategyError, match=r"Neumann\(hops"):
        InfSA(DIM, HEADS, strategy="resolvent").double()(features())


def test_sharded_edges_are_refused_by_their_name():
    graph = Domain.graph(torch.arange(4).expand(2, -1), 4, sparse=True)
    part = graph.replace(shards=Shards(None, 0, (4,)))
    with pytest.raises(DomainError, match="expected edges in one process, got edges in shards"):
        InfSA(8, 2).kernel.check(Layout.of(part))


def test_the_linear_response_is_equal_for_all_queries_and_writable():
    op = LinearInfSA(DIM, HEADS).double()
    out = op(features())
    assert out.is_contiguous()
    assert (out == out[:, :1]).all()
    with torch.no_grad():
        op(features()).add_(1.0)


@pytest.mark.parametrize("causal", ["exact", "streaming"])
@pytest.mark.parametrize("hidden", ["order", "pairs"])
def test_the_linear_form_keeps_to_the_memory_of_its_strategy(causal, hidden, monkeypatch):
    domain = Domain.line(N, causal=True, dtype=torch.float64)
    if hidden == "pairs":
        pairs = torch.ones(N, N, dtype=torch.bool).tril()
        domain = Domain.line(N, pairs=pairs, dtype=torch.float64)
    elif causal == "streaming":
        pytest.skip("in causal order the streaming form has no pairs")
    u = features()
    op = LinearInfSA(DIM, HEADS, causal=causal).double()
    expected = op(u, domain)
    budgets = []

    def product(*tensors):
        budgets.append(tensors[-1].memory)
        return edge_product(*tensors)

    monkeypatch.setattr(centres, "edge_product", product)
    op.strategy = Exact(memory=512)
    assert_close(op(u, domain), expected)
    assert budgets == [512]


def test_the_benchmarks_references_equal_the_operator():
    op = InfSA(DIM, HEADS).double()
    u = features()
    assert_close(quadratic(op, u), op(u, Domain.line(N, measure="counting", dtype=torch.float64)))
    linear = LinearInfSA(DIM, HEADS).double()
    assert_close(definition(linear, u), linear(u))


def test_a_recipe_names_a_strategy_and_its_options(tmp_path):
    op = create_operator("infsa", DIM, HEADS, strategy={"name": "neumann", "hops": 3})
    assert op.strategy == Neumann(3)
    assert (
        create_operator("infsa", DIM, HEADS, strategy={"name": "resolvent", "tol": 1e-4})
        .convergence(features().float())
        .residual
        < 1e-4
    )
    for name in ("softmax", "linear_infsa", "linear_attention", "luna", "ckconv", "itnet_low_rank"):
        assert create_operator(name, DIM, HEADS, strategy={"name": "exact"}).strategy == Exact()
    with pytest.raises(OptionError, match="Neumann has no option 'hop'; did you mean 'hops'"):
        create_operator("infsa", DIM, HEADS, strategy={"name": "neumann", "hop": 3})
    with pytest.raises(OptionError, match=r"expected a name, .*; did you mean 'neumann'"):
        create_operator("infsa", DIM, HEADS, strategy={"name": "neuman"})
    model = create_model(
        "infvit_pure_pico", **parts(operator_options={"strategy": {"name": "neumann", "hops": 2}})
    )
    model.save_pretrained(tmp_path)
    assert [op.strategy for op in from_pretrained(tmp_path).body.operators] == [Neumann(2)] * 4


@pytest.mark.parametrize("name", ["infsa", "linear_infsa"])
def test_steps_of_small_features_are_accurate_under_autocast(name):
    """Their scores underflow in float16."""
    torch.manual_seed(0)
    op = create_operator(name, 8)
    u = 1e-4 * torch.randn(1, 24, 8)
    line = Domain.line(24, causal=True).with_masses(torch.full((24,), 1e5))
    state = op.init_state(1, line)
    with torch.autocast("cpu", dtype=torch.float16):
        first, state = op.prefill(u[:, :20], state)
        last, _ = op.step(u[:, 20], state)
    expected = copy.deepcopy(op).double()(u.double(), line.to(torch.float64))[:, :21]
    found = torch.cat([first, last[:, None]], 1).double() * 1e4
    assert_close(found, expected * 1e4, dtype=torch.float16)
