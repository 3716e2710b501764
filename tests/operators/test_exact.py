"""Exact by query blocks: kernels with one trait or none equal their definition, in one block or
many.
"""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn

from fredholm.domain import Domain
from fredholm.errors import OptionError
from fredholm.integral import Facts, choose
from fredholm.kernels import HiddenKernel, Kernel, Layout, PairKernel, WeightedKernel
from fredholm.operators import Exact, IntegralOperator, ITNetOperator

from ..tolerances import assert_close

HEADS, WIDTH, N = 2, 3, 7


class Plain(PairKernel):
    """Only ``forward``."""

    def __init__(self, heads, d_in, d_out=None):
        super().__init__(heads, d_in, d_out)
        self.mix = nn.Parameter(torch.randn(heads, 1, 1, self.d_out, d_in))

    def forward(self, x, y, ux, uy):
        near = torch.exp(-(x - y).square().sum(-1)) * (ux * uy).sum(-1).tanh()
        return near[..., None, None] * self.mix


class OnlyHidden(HiddenKernel):
    """Only ``hidden`` and ``readout``."""

    bias = True

    def __init__(self, heads, d_in, d_out=None):
        super().__init__(heads, d_in, d_out)
        self.width = WIDTH
        self.position = nn.Parameter(torch.randn(WIDTH))
        self.content = nn.Parameter(torch.randn(heads, 1, 1, WIDTH))
        self.out = nn.Parameter(torch.randn(heads, self.d_out, d_in, WIDTH))
        self.constant = nn.Parameter(torch.randn(heads, self.d_out, d_in)) if self.bias else None

    def hidden(self, x, y, ux, uy):
        return torch.sin(
            (x - y).sum(-1, keepdim=True) * self.position
            + (ux * uy).sum(-1, keepdim=True) * self.content
        )

    def readout(self):
        return self.out, self.constant


class HiddenAndForward(OnlyHidden):
    """The same kernel with an explicit ``forward``."""

    def forward(self, x, y, ux, uy):
        dense = torch.einsum("bhqkw,hoiw->bhqkoi", self.hidden(x, y, ux, uy), self.out)
        return dense + self.constant[:, None, None]


class WithoutBias(OnlyHidden):
    bias = False


class OnlyWeights(WeightedKernel):
    """Only ``weights`` and ``value_map``: a decay in distance with one rate per head, the same for
    every sample.
    """

    reads_query = False

    def __init__(self, heads, d_in, d_out=None):
        super().__init__(heads, d_in, d_out)
        self.rate = nn.Parameter(torch.rand(heads))
        self.value = nn.Parameter(torch.randn(heads, self.d_out, d_in))

    def weights(self, problem):
        far = (problem.x[:, :, None] - problem.y[:, None]).square().sum(-1)
        return torch.exp(-far[:, None] * self.rate[:, None, None])

    def value_map(self):
        return self.value


class WeightsAndMatrix(OnlyWeights):
    """The same kernel with an explicit ``matrix``."""

    def matrix(self, problem):
        dense = torch.einsum("bhqk,hoi->bhqkoi", self.weights(problem), self.value)
        return dense.expand(problem.uy.shape[0], -1, -1, -1, -1, -1)


class WholeWeights(OnlyWeights):
    whole = True


KERNELS = {
    "forward": (Plain, "dense blocks"),
    "hidden": (OnlyHidden, "hidden units by query block"),
    "hidden and forward": (HiddenAndForward, "hidden units by query block"),
    "hidden without bias": (WithoutBias, "hidden units by query block"),
    "weights": (OnlyWeights, "weights by query block"),
    "weights and matrix": (WeightsAndMatrix, "weights by query block"),
    "weights of all features": (WholeWeights, "weights by query block"),
}


def domains():
    torch.manual_seed(3)
    double = {"dtype": torch.float64}
    valid = torch.tensor([[True] * N, [True] * 4 + [False] * 3])
    return {
        "line": Domain.line(N, **double),
        "causal": Domain.line(N, causal=True, **double),
        "padded": Domain.points(torch.rand(2, N, 1, **double), valid=valid),
        "causal padded": Domain.points(torch.rand(2, N, 1, **double), valid=valid, causal=True),
        "bias": Domain.points(
            torch.rand(N, 1, **double), pairs=torch.randn(1, HEADS, N, N, **double)
        ),
        "masses": Domain.points(torch.rand(N, 1, **double), measure=torch.rand(N, **double)),
    }


def build(name: str, memory: int | None) -> IntegralOperator:
    kind = KERNELS[name][0]
    kernel = kind(HEADS, 6 if kind.whole else 3, 2)
    return IntegralOperator(
        6, HEADS, kernel=kernel, strategy=Exact(memory=memory), out_dim=5
    ).double()


def signal(n: int = N) -> torch.Tensor:
    return torch.randn(2, n, 6, dtype=torch.float64, requires_grad=True)


def assert_same(actual, expected, inputs):
    assert_close(actual, expected)
    direction = torch.randn_like(expected)
    for g, e in zip(
        torch.autograd.grad(actual, inputs, direction),
        torch.autograd.grad(expected, inputs, direction),
        strict=True,
    ):
        assert_close(g, e, "gradient")
        assert e.abs().max() > 0


@pytest.mark.parametrize("memory", [None, 1, 1500])
@pytest.mark.parametrize("where", list(domains()))
@pytest.mark.parametrize("name", list(KERNELS))
def test_blocks_equal_the_definition(name, where, memory, monkeypatch):
    operator = build(name, memory)
    u = signal()
    domain = domains()[where]
    assert operator.plan(domain).path == KERNELS[name][1]
    sizes = []
    module = sys.modules[
        type(choose(operator.strategy, operator.kernel, Facts(Layout()))).__module__
    ]
    whole = module._block

    def spy(kernel, problem):
        sizes.append(problem.ux.shape[2])
        return whole(kernel, problem)

    monkeypatch.setattr(module, "_block", spy)
    actual = operator(u, domain)
    assert sum(sizes) == N
    assert {None: len(sizes) == 1, 1: len(sizes) == N, 1500: len(sizes) > 1}[memory], sizes
    assert_same(actual, operator.dense(u, domain), [u, *operator.parameters()])


@pytest.mark.parametrize("name", list(KERNELS))
def test_blocks_across_domains_equal_the_definition(name):
    operator = build(name, 1)
    u = signal()
    query = signal(4)
    domain = domains()["causal padded"]
    target = Domain.points(torch.rand(4, 1, dtype=torch.float64))
    call = {"query": query, "query_domain": target}
    assert_same(
        operator(u, domain, **call),
        operator.dense(u, domain, **call),
        [u, query, *operator.parameters()],
    )


@pytest.mark.parametrize("where", ["causal", "causal padded"])
@pytest.mark.parametrize("name", list(KERNELS))
def test_steps_of_untiled_kernels_equal_the_forward(name, where):
    operator = build(name, None)
    u = signal()
    domain = domains()[where]
    state = operator.init_state(2, domain)
    outputs = []
    for t in range(N):
        y, state = operator.step(u[:, t], state)
        outputs.append(y)
    assert_same(torch.stack(outputs, 1), operator(u, domain), [u, *operator.parameters()])


def test_the_memory_budget_does_not_change_the_result():
    operator = ITNetOperator(6, HEADS, width=4, frequencies=2, sigma=1.0).double()
    u = signal()
    domain = domains()["causal padded"]
    expected = operator(u, domain)
    operator.strategy = Exact(memory=1)
    assert_same(operator(u, domain), expected, [u, *operator.parameters()])


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("strategy", [Exact(), Exact(memory=1)])
def test_itnets_sums_over_keys_beyond_float16_are_accurate(strategy, recorded):
    """The sum of masses of 100,000 is divided by the queries' scale only afterwards."""
    single = ITNetOperator(4, HEADS, width=4, frequencies=2, sigma=1.0, strategy=strategy)
    u = torch.randn(1, 24, 4)
    masses = torch.full((24,), 1e5)
    line = Domain.line(24, causal=True).with_masses(masses, normalised=True)
    pairs = Domain.points(torch.rand(24, 1), pairs=torch.rand(24, 24) < 0.8)
    pairs = pairs.with_masses(masses, normalised=True)
    low = copy.deepcopy(single).half()
    double = copy.deepcopy(single).half().double()
    for domain in (line, pairs):
        with torch.set_grad_enabled(recorded):
            expected = double(u.half().double(), domain.to(torch.float64))
            assert_close(low(u.half(), domain).double(), expected, dtype=torch.float16)
            with torch.autocast("cpu", dtype=torch.float16):
                assert_close(single(u, domain).double(), expected, dtype=torch.bfloat16)
    state = low.init_state(1, line)
    first, state = low.prefill(u[:, :-1].half(), state)
    last, _ = low.step(u[:, -1].half(), state)
    expected = double(u.half().double(), line.to(torch.float64))
    assert_close(torch.cat([first, last[:, None]], 1).double(), expected, dtype=torch.float16)


def test_a_kernel_without_a_definition_names_the_methods_to_define():
    class Empty(Kernel):
        pass

    class Scalar(Kernel):
        def weights(self, problem):
            raise NotImplementedError

        def value_map(self):
            raise NotImplementedError

    with pytest.raises(OptionError, match=r"Empty has no definition.*PairKernel \(forward\)"):
        Empty(HEADS, 3)
    with pytest.raises(OptionError, match=r"Scalar defines weights and value_map.*WeightedKernel"):
        Scalar(HEADS, 3)


def test_methods_of_a_capability_require_its_base_class():
    with pytest.raises(OptionError, match=r"write class Slip\(Plain, OwnForm\)"):

        class Slip(Plain):
            def evaluates(self, layout):
                return True

            def evaluate(self, problem):
                raise NotImplementedError


def test_weights_of_positions_alone_are_expanded_over_the_batch():
    class ByPlace(WeightedKernel):
        def weights(self, problem):
            p = problem
            return torch.exp(-(p.x[:, None, :, None] - p.y[:, None, None]).square().sum(-1))

        def value_map(self):
            return torch.eye(WIDTH).expand(HEADS, -1, -1)

    operator = IntegralOperator(HEADS * WIDTH, HEADS, kernel=ByPlace(HEADS, WIDTH))
    u = torch.randn(3, N, HEADS * WIDTH)
    domain = Domain.line(N)
    for read in (operator.weights, operator.influence):
        assert read(u, domain).shape == (3, HEADS, N, N)
        assert read(u, domain, rows=[2]).shape == (3, HEADS, 1, N)


def test_a_memory_budget_below_one_byte_is_refused():
    for memory in (0, -1):
        with pytest.raises(OptionError, match=f"at least 1 byte, or None, got {memory}"):
            Exact(memory=memory)
