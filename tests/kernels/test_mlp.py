"""ITNet's kernel: its groups, its sizes, its initialisation, and the split form against the literal
one.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch

from fredholm.domain import Domain
from fredholm.errors import OptionError, ShapeError
from fredholm.kernels import GROUPS, FourierFeatures, MLPKernel, ablations
from fredholm.operators import IntegralOperator, ITNetOperator

from ..tolerances import assert_close

DOUBLE = {"dtype": torch.float64}


def shaken(operator: torch.nn.Module, scale: float = 0.3) -> torch.nn.Module:
    """Return it in float64, its parameters moved off their initial values: every term counts."""
    operator = operator.double()
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return operator


def assert_is_the_definition(operator, u, domain):
    inputs = [u.requires_grad_(), *operator.parameters()]
    fast = operator(u, domain)
    dense = operator.dense(u, domain)
    assert_close(fast, dense)
    direction = torch.randn_like(fast)
    found = [torch.autograd.grad(y, inputs, direction, allow_unused=True) for y in (fast, dense)]
    for x, g, e in zip(inputs, *found):
        assert_close(
            torch.zeros_like(x) if g is None else g,
            torch.zeros_like(x) if e is None else e,
            "gradient",
        )


@pytest.mark.parametrize("name", list(ablations()))
@pytest.mark.parametrize("where", ["grid", "causal points"])
def test_every_ablation_equals_the_definition(name, where):
    groups = ablations()[name]
    operator = shaken(
        ITNetOperator(6, 2, position_dim=2, width=4, frequencies=3, sigma=1.0, groups=groups)
    )
    points = torch.rand(2, 6, 2, **DOUBLE)
    domain = Domain.grid(2, 3, **DOUBLE) if where == "grid" else Domain.points(points, causal=True)
    assert_is_the_definition(operator, torch.randn(2, 6, 6, **DOUBLE), domain)


def test_the_thirteen_ablations_are_different():
    chosen = list(ablations().values())
    assert len(chosen) == len(set(chosen)) == 13
    assert all(set(groups) <= set(GROUPS) for groups in chosen)


@pytest.mark.parametrize(
    ("groups", "inputs"),
    [
        (GROUPS, 577),
        (ablations()["no distance"], 576),
        (ablations()["no product"], 513),
        (ablations()["content only"], 192),
        (ablations()["position only"], 385),
        (("distance",), 1),
        ((), 0),
    ],
)
def test_the_input_width_follows_the_groups(groups, inputs):
    kernel = MLPKernel(2, 64, groups=groups)
    assert kernel.weight1.shape == (1, 128, inputs)
    assert kernel.weight2.shape == (2, 64, 64, 128)
    assert MLPKernel(2, 8, width=5, groups=groups, per_head_hidden=True).weight1.shape[0] == 2


def test_hidden_units_equal_the_network_of_the_concatenated_groups():
    kernel = shaken(MLPKernel(1, 3, position_dim=2, width=5, frequencies=2, sigma=1.0))
    x, y, ux, uy = (torch.randn(d, **DOUBLE) for d in (2, 2, 3, 3))
    gamma = kernel.fourier
    z = torch.cat([gamma(x), gamma(y), gamma(x - y), (x - y).norm()[None], ux, uy, ux * uy])
    h = torch.nn.functional.gelu(kernel.weight1[0] @ z + kernel.bias1[0])
    expected = torch.einsum("oiw,w->oi", kernel.weight2[0], h) + kernel.bias2[0]
    found = kernel(*(t.reshape(1, 1, 1, 1, -1) for t in (x, y, ux, uy)))
    assert_close(found[0, 0, 0, 0], expected)


def test_the_order_of_groups_does_not_matter():
    assert MLPKernel(1, 2, groups=["key", "query"]).groups == ("query", "key")


@pytest.mark.parametrize("groups", [(), ("query", "relative"), ("relative",)])
def test_reads_query_only_where_it_does(groups):
    assert MLPKernel(1, 2, groups=groups).reads_query == ("query" in groups)


def test_constant_kernel_is_a_constant_matrix_times_the_mean():
    operator = shaken(ITNetOperator(4, 2, width=3, groups=()))
    domain = Domain.points(torch.rand(5, 1, **DOUBLE))
    u = torch.randn(2, 5, 4, **DOUBLE)
    matrix = operator.kernel_matrix(u, domain)
    assert (matrix - matrix[:1, :, :1, :1]).abs().max() == 0
    mean = u.mean(1).unflatten(-1, (2, 2))
    of_heads = torch.einsum("hoi,bhi->bho", matrix[0, :, 0, 0], mean).flatten(1)
    expected = (operator.projection(of_heads)[:, None] + operator.residual(u)).detach()
    assert_close(operator(u, domain).detach(), expected)


def test_compact_output_is_diagonal_plus_low_rank():
    kernel = shaken(MLPKernel(2, 4, width=3, frequencies=2, sigma=1.0, output="compact", rank=2))
    weight, bias = kernel.readout()
    assert weight.shape == (2, 4, 4, 3)
    for h in range(2):
        for k in range(3):
            expected = (
                torch.diag(kernel.diagonal[h, :, k])
                + kernel.left[h, :, :, k] @ kernel.right[h, :, :, k].T
            )
            assert_close(weight[h, :, :, k], expected)
    full = MLPKernel(2, 4, width=3, frequencies=2, sigma=1.0).double()
    full.load_state_dict(
        {
            name: x
            for name, x in kernel.state_dict().items()
            if name.split("_")[0] not in ("diagonal", "left", "right")
        }
        | {"weight2": weight, "bias2": bias}
    )
    u = torch.randn(2, 5, 8, **DOUBLE)
    domain = Domain.line(5, **DOUBLE)
    operators = [
        IntegralOperator(8, 2, kernel=k, projection=False, residual=False).double()
        for k in (kernel, full)
    ]
    assert_close(operators[0](u, domain), operators[1](u, domain))
    assert_is_the_definition(operators[0], u, domain)


def test_depth_three_equals_the_definition_and_has_one_more_layer():
    operator = shaken(ITNetOperator(4, 2, width=3, depth=3, frequencies=2, sigma=1.0))
    kernel = operator.kernel
    assert [tuple(w.shape) for w in kernel.mid_weights] == [(3, 3)]
    u = torch.randn(2, 4, 4, **DOUBLE)
    domain = Domain.line(4, **DOUBLE)
    before = operator(u, domain)
    assert_is_the_definition(operator, u, domain)
    with torch.no_grad():
        kernel.mid_biases[0].add_(1.0)
    assert (operator(u, domain) - before).abs().max() > 1e-3


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu", "tanh", "sin"])
def test_every_activation_equals_the_definition(activation):
    operator = shaken(ITNetOperator(4, 2, width=3, frequencies=2, sigma=1.0, activation=activation))
    assert_is_the_definition(operator, torch.randn(1, 4, 4, **DOUBLE), Domain.line(4, **DOUBLE))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": ("query", "prodcut")}, "'prodcut'.*did you mean 'product'"),
        ({"activation": "gleu"}, "'gleu'.*did you mean 'gelu'"),
        ({"output": "fulll"}, "'fulll'.*did you mean 'full'"),
        ({"width": 0}, "width=....: expected 1 or more, got 0"),
        ({"depth": 1}, "depth: expected at least 2.*got 1"),
        ({"rank": 0, "output": "compact"}, "rank: expected at least 1, got 0"),
        ({"frequencies": -1}, "frequencies: expected 0 or more, got -1"),
        ({"epsilon": -1.0}, "epsilon: expected a finite scale of 0 or more, got -1.0"),
        ({"sigma": -1.0}, "positive sizes and scale"),
        ({"position_dim": 0}, "position_dim=....: expected 1 or more, got 0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        MLPKernel(2, 4, **options)


# --- initialisation -------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["full", "compact"])
def test_initial_weights_have_their_documented_scales(output):
    torch.manual_seed(0)
    operator = ITNetOperator(128, 2, output=output, rank=4)
    kernel = operator.kernel
    assert kernel.bias2.equal(torch.eye(64).expand(2, 64, 64))
    assert operator.residual.weight.equal(torch.eye(128))
    assert kernel.bias1.abs().sum() == 0
    assert operator.projection.bias.abs().sum() == 0
    assert kernel.weight1.std().item() == pytest.approx(0.02, rel=0.02)
    readout = kernel.readout()[0]
    off_diagonal = readout[:, ~torch.eye(64).bool()]
    assert off_diagonal.std().item() == pytest.approx(0.01 / 128**0.5, rel=0.05)
    bound = (6 / 256) ** 0.5
    assert bound * 0.98 < operator.projection.weight.abs().max().item() <= bound


@pytest.mark.parametrize("output", ["full", "compact"])
def test_operator_starts_near_the_mean_plus_identity(output):
    operator = ITNetOperator(32, 4, output=output)
    u = torch.randn(3, 10, 32)
    expected = operator.projection(u.mean(1, keepdim=True)) + u
    assert_close(operator(u), expected, "mean plus identity", torch.bfloat16)
    causal = Domain.line(10, causal=True)
    means = u.cumsum(1) / torch.arange(1, 11)[:, None]
    assert_close(
        operator(u, causal),
        operator.projection(means) + u,
        "causal mean plus identity",
        torch.bfloat16,
    )


# --- Fourier features -----------------------------------------------------------------------------


def test_fourier_features_equal_their_formula():
    features = FourierFeatures(2, frequencies=3, sigma=2.0)
    x = torch.rand(5, 2)
    angle = 2 * torch.pi * x @ features.matrix.T
    assert_close(features(x), torch.cat([angle.cos(), angle.sin()], -1))
    assert FourierFeatures(1, frequencies=4000, sigma=5.0).matrix.std().item() == pytest.approx(
        5.0, rel=0.05
    )


def test_frequencies_are_the_same_in_every_layer_and_follow_the_global_seed():
    torch.manual_seed(1)
    first = MLPKernel(2, 4).fourier.matrix
    torch.rand(7)
    state = torch.get_rng_state()
    second = FourierFeatures(1)
    assert torch.get_rng_state().equal(state)
    assert first.equal(second.matrix)
    assert first is not second.matrix
    assert not list(second.parameters())
    torch.manual_seed(2)
    assert not FourierFeatures(1).matrix.equal(first)
    assert FourierFeatures(1, seed=1).matrix.equal(first)


def test_learned_frequencies_receive_a_gradient():
    operator = ITNetOperator(
        4, 2, width=4, frequencies=2, sigma=1.0, learned_frequencies=True
    ).double()
    matrix = operator.kernel.fourier.matrix
    assert isinstance(matrix, torch.nn.Parameter)
    operator(torch.randn(1, 5, 4, **DOUBLE), Domain.line(5, **DOUBLE)).square().sum().backward()
    assert matrix.grad.abs().min() > 0


def test_positions_of_another_dimension_are_refused():
    operator = ITNetOperator(4, 2, width=3, position_dim=2)
    with pytest.raises(
        ShapeError, match="dimension 2, for which these Fourier features were built, got 1"
    ):
        operator(torch.randn(1, 5, 4))


@pytest.mark.parametrize("offset", [1e5, 1.7e9])
@pytest.mark.parametrize("points", [12, 200])
def test_distant_positions_keep_their_differences_in_float32(offset, points):
    """Seconds since 1970 in float64: a float32 operator reads their differences, few points or
    many.
    """
    torch.manual_seed(0)
    operator = ITNetOperator(8, 2, width=6, frequencies=4, sigma=1.0)
    domain = Domain.points(offset + 3 * torch.rand(points, 1, **DOUBLE))
    u = torch.randn(1, points, 8)
    whole = copy.deepcopy(operator).double()
    assert_close(operator(u, domain), whole.dense(u.double(), domain).float())


def test_distant_positions_keep_their_phase():
    """Only the fraction of a turn counts; positions themselves are exact in float32 here."""
    features = FourierFeatures(1, frequencies=16, sigma=1.0)
    x = torch.tensor([[1e5], [1e6 + 0.25]])
    turns = x.double() @ features.matrix.double().mT
    expected = torch.cat([(turns % 1 * 2 * math.pi).cos(), (turns % 1 * 2 * math.pi).sin()], -1)
    assert features(x).dtype == torch.float32
    assert_close(features(x), expected.float())
