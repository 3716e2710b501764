"""The strategy Linear: its form for each domain equals the definition; low-rank kernels through
``expand``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fredholm.distributed.exchanges import pairs as all_pairs
from fredholm.domain import Domain
from fredholm.errors import BackendError, OptionError, StrategyError
from fredholm.integral import Facts, choose
from fredholm.kernels import (
    Expanded,
    Layout,
    LinearAttentionKernel,
    PairKernel,
    SeparableKernel,
)
from fredholm.operators import Exact, IntegralOperator, Linear, LinearAttention, SoftmaxAttention

from ..tolerances import assert_close

DIM, HEADS, N = 6, 2, 7


class LowRank(PairKernel, Expanded):
    """K(x, y) = Φ(x, u(x)) Ψ(y, u(y))^T with matrices of rank 2: the low-rank kernel of ITNet, Eq.
    15, in its plainest form.
    """

    floor = None

    def __init__(self, heads, width):
        super().__init__(heads, width)
        self.left, self.right = (nn.Linear(width + 1, width * 2) for _ in range(2))

    def factors(self, layer, x, u):
        inputs = torch.cat([u, x[:, None].expand(u.shape[0], u.shape[1], -1, -1)], -1)
        return layer(inputs).tanh().unflatten(-1, (self.d_in, 2))

    def forward(self, x, y, ux, uy):
        left = self.factors(self.left, x[:, 0, :, 0], ux[:, :, :, 0])
        right = self.factors(self.right, y[:, 0, 0], uy[:, :, 0])
        return torch.einsum("bhqor,bhkir->bhqkoi", left, right)

    def query_features(self, x, ux):
        return ux.new_ones(1, 1, ux.shape[2], 1)

    def key_features(self, y, uy):
        return uy.new_ones(1, 1, uy.shape[2], 1)

    def values(self, y, uy):
        return torch.einsum("bhkir,bhki->bhkr", self.factors(self.right, y, uy), uy)

    def expand(self, x, ux, response):
        return torch.einsum("bhqor,bhqr->bhqo", self.factors(self.left, x, ux), response)


class OwnFeatures(SeparableKernel):
    """The kernel of CONTRIBUTING.md: features and a value map."""

    def __init__(self, heads, width):
        super().__init__(heads, width)
        self.value = nn.Parameter(torch.randn(heads, width, width))

    def query_features(self, x, ux):
        return nn.functional.softplus(ux)

    def key_features(self, y, uy):
        return nn.functional.softplus(-uy)

    def value_map(self):
        return self.value


def linear_attention():
    return IntegralOperator(
        DIM, HEADS, kernel=LinearAttentionKernel(DIM, HEADS), strategy=Linear(chunk=3)
    ).double()


def unnormalised():
    kernel = LinearAttentionKernel(DIM, HEADS, normalised=False, bias=False, feature_map="softplus")
    return IntegralOperator(DIM, HEADS, kernel=kernel, strategy=Linear(chunk=3)).double()


def low_rank():
    return IntegralOperator(
        DIM, HEADS, kernel=LowRank(HEADS, DIM // HEADS), strategy=Linear(chunk=3)
    ).double()


def own_features():
    kernel = OwnFeatures(HEADS, DIM // HEADS)
    return IntegralOperator(DIM, HEADS, kernel=kernel, strategy=Linear(chunk=3)).double()


OPERATORS = {
    "linear attention": linear_attention,
    "own features": own_features,
    "unnormalised": unnormalised,
    "low rank": low_rank,
}


def domains():
    torch.manual_seed(3)
    double = {"dtype": torch.float64}
    valid = torch.tensor([[True] * N, [True] * 4 + [False] * 3])
    padded = Domain.points(torch.rand(2, N, 1, **double), valid=valid)
    causal = Domain.line(N, causal=True, **double)
    return {
        "line": (Domain.line(N, **double), "two sums"),
        "padded": (padded, "two sums"),
        "masses": (Domain.line(N, **double).with_masses(torch.rand(N, **double)), "two sums"),
        "causal": (causal, "causal chunks"),
        "causal padded": (padded.replace(causal=True), "causal chunks"),
        "bias": (
            causal.replace(causal=False, pairs=torch.randn(1, HEADS, N, N, **double)),
            "quadratic form",
        ),
        "causal window": (causal.replace(pairs=torch.ones(N, N).triu(-2).bool()), "quadratic form"),
    }


def signal(n: int = N) -> torch.Tensor:
    return torch.randn(2, n, DIM, dtype=torch.float64, requires_grad=True)


def assert_same(actual, expected, leaves):
    assert_close(actual, expected)
    direction = torch.randn_like(expected)
    for g, e in zip(
        torch.autograd.grad(actual, leaves, direction),
        torch.autograd.grad(expected, leaves, direction),
    ):
        assert_close(g, e, "gradient")


@pytest.mark.parametrize("where", list(domains()))
@pytest.mark.parametrize("name", list(OPERATORS))
def test_forms_equal_the_definition(name, where):
    operator = OPERATORS[name]()
    u = signal()
    domain, path = domains()[where]
    assert operator.plan(domain).path == path
    assert path in str(operator.plan(domain))
    assert_same(operator(u, domain), operator.dense(u, domain), [u, *operator.parameters()])


@pytest.mark.parametrize("where", ["causal", "causal padded", "causal window"])
@pytest.mark.parametrize("name", list(OPERATORS))
def test_steps_equal_the_forward(name, where):
    operator = OPERATORS[name]()
    u = signal()
    domain, path = domains()[where]
    state = operator.init_state(2, domain)
    outputs = []
    sizes = []
    for t in range(N):
        y, state = operator.step(u[:, t], state)
        outputs.append(y)
        sizes.append(sum(x.numel() for x in state.keys.values()))
    assert (len(set(sizes)) == 1) == (path == "causal chunks"), (
        "a moment does not grow, cached keys do"
    )
    assert_same(torch.stack(outputs, 1), operator(u, domain), [u, *operator.parameters()])


@pytest.mark.parametrize(
    ("where", "path"), [("padded", "two sums"), ("causal padded", "quadratic form")]
)
@pytest.mark.parametrize("name", list(OPERATORS))
def test_queries_on_another_domain_equal_the_definition(name, where, path):
    operator = OPERATORS[name]()
    u = signal()
    query = signal(4)
    domain = domains()[where][0]
    call = {"query": query, "query_domain": Domain.points(torch.rand(4, 1, dtype=torch.float64))}
    assert operator.plan(domain, call["query_domain"]).path == path
    assert_same(
        operator(u, domain, **call),
        operator.dense(u, domain, **call),
        [u, query, *operator.parameters()],
    )


def test_auto_selects_by_capabilities():
    separable = LinearAttentionKernel(DIM, HEADS)
    whole = SoftmaxAttention(DIM, HEADS).kernel
    for layout in (
        Layout(),
        Layout(causal=True),
        Layout(pairs=True),
        Layout(causal=True, stepping=True),
    ):
        facts = Facts(layout)
        assert choose("auto", separable, facts).strategy == Linear()
        assert choose("auto", LowRank(HEADS, 3), facts).strategy == Linear()
        assert choose(Linear(), separable, facts).strategy == Linear()
        assert choose(Exact(), separable, facts).strategy == Exact()
        assert choose("auto", whole, facts).strategy == Exact()


def test_exact_integrates_separable_kernels():
    operator = linear_attention()
    u = signal()
    domain = domains()["causal padded"][0]
    expected = operator(u, domain)
    operator.strategy = "exact"
    assert operator.plan(domain).path == "weights by query block"
    assert_close(operator(u, domain), expected)


@torch.no_grad()
@pytest.mark.parametrize("backend", ["triton", "checked"])
@pytest.mark.parametrize("points", [100, 20_000])
def test_triton_is_demanded_of_any_number_of_points(monkeypatch, backend, points):
    """On a processor long sequences come in pieces, which PyTorch's operations alone make."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    operator = LinearAttention(DIM, HEADS, strategy=Linear(backend=backend))
    with pytest.raises(BackendError, match="cannot run linear attention"):
        operator(torch.randn(1, points, DIM), Domain.line(points))


def test_refusals_name_the_missing_capability():
    operator = SoftmaxAttention(DIM, HEADS, strategy="linear")
    with pytest.raises(
        StrategyError, match=r"Linear cannot integrate SoftmaxKernel.*separable.*Exact"
    ):
        operator(torch.randn(1, N, DIM))
    with pytest.raises(OptionError, match="at least one point, got 0"):
        Linear(chunk=0)
    with pytest.raises(OptionError, match=r"unknown strategy 'liner'; did you mean 'linear'"):
        SoftmaxAttention(DIM, HEADS, strategy="liner")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_map": "elo"}, "unknown feature map 'elo'; did you mean 'elu'"),
        ({"floor": 0.0}, "floor: expected a positive smallest denominator, got 0"),
        ({"normalised": False}, "without bias"),
    ],
)
def test_wrong_options_of_the_kernel_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        LinearAttentionKernel(DIM, HEADS, **options)


def test_zero_features_give_the_offset():
    kernel = LinearAttentionKernel(DIM, HEADS, feature_map="relu")
    with torch.no_grad():
        kernel.query.weight.zero_()
        kernel.query.bias.fill_(-1.0)
        kernel.value.bias.fill_(2.0)
    operator = IntegralOperator(DIM, HEADS, kernel=kernel, residual=False, projection=False)
    u = torch.randn(1, N, DIM, requires_grad=True)
    for causal in (False, True):
        out = operator(u, Domain.line(N, causal=causal))
        assert_close(out, torch.full_like(out, 2.0))
        assert torch.autograd.grad(out.sum(), u)[0].isfinite().all()


def test_sums_over_ranks_use_the_floor_of_visible_keys():
    """Keys are e^20 apart, and a query sees only the smaller; padding is above all of them."""
    op = LinearAttention(4, 1, feature_map="performer", bias=False)
    op.kernel.key.weight.data.copy_(torch.eye(4))
    op.kernel.query.weight.data.copy_(torch.eye(4))
    u = torch.zeros(1, 3, 4)
    u[0, 1, 0], u[0, 2, 0] = 20.0, 1.0
    pairs = torch.eye(3, dtype=torch.bool)
    for valid in (None, torch.tensor([[True, True, False]])):
        problem = op.problem(u, Domain.line(3, valid=valid).replace(pairs=pairs))
        shift = op.kernel.stable_key_features(problem.y, problem.uy, problem.quadrature.valid)[1]
        parts = [(all_pairs.products(op.kernel, problem, shift),)]
        silent = replace(problem.quadrature, mass=torch.zeros_like(problem.quadrature.mass))
        parts.append((all_pairs.products(op.kernel, replace(problem, quadrature=silent), shift),))
        (whole,) = all_pairs.added(*parts)
        found = all_pairs.divided(whole, shift, op.kernel.floor)
        real = slice(None) if valid is None else slice(0, 2)
        assert_close(found[:, :, real], op.kernel.values(problem.y, problem.uy)[:, :, real])


def test_the_gain_has_the_device_and_dtype_of_the_layer():
    for name in ("elu", "performer"):
        with torch.device("meta"):
            op = LinearAttention(8, 2, window=3, feature_map=name)
        assert op.kernel.gain.is_meta
    torch.set_default_dtype(torch.float64)
    try:
        assert LinearAttention(8, 2, window=3).kernel.gain.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
