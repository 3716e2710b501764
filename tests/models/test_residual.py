"""Residual blocks, feed-forward networks and stochastic depth."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.domain import Domain
from fredholm.errors import OptionError
from fredholm.integral import DefaultLine
from fredholm.integral.registry import OPERATORS
from fredholm.kernels import MLPKernel
from fredholm.models import create_model
from fredholm.models.bodies.residual import ResidualBody
from fredholm.models.depth import FeedForward, ResidualBlock
from fredholm.operators import (
    CKConv,
    IntegralOperator,
    ITNetOperator,
    create_operator,
    register_operator,
)
from fredholm.stochastic_depth import StochasticDepth

from ..tolerances import assert_close


def test_stochastic_depth_keeps_the_mean_and_drops_whole_samples():
    layer = StochasticDepth(0.3)
    branch = torch.ones(20_000, 2, 3)
    out = layer(branch)
    per_sample = out.flatten(1)
    assert (per_sample == per_sample[:, :1]).all()
    assert per_sample.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    standard_error = (0.3 / 0.7 / 20_000) ** 0.5
    assert abs(per_sample[:, 0].mean().item() - 1.0) < 4 * standard_error


def test_stochastic_depth_is_the_identity_in_evaluation_and_at_rate_zero():
    branch = torch.randn(4, 2)
    assert StochasticDepth(0.9).eval()(branch) is branch
    assert StochasticDepth(0.0).train()(branch) is branch


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_wrong_drop_rates_are_refused(rate):
    with pytest.raises(OptionError, match=rf"\[0, 1\), got {rate}"):
        StochasticDepth(rate)


@pytest.mark.parametrize("rates", [[0.0], [0.0, 0.1, 0.2]])
def test_a_body_needs_one_drop_rate_per_operator(rates):
    operators = [create_operator("softmax", 4) for _ in range(2)]
    with pytest.raises(OptionError, match=rf"drop_path: .* {len(rates)} rates"):
        ResidualBody(operators, 4, ratio=0.0, drop_path=rates)


@pytest.mark.parametrize("ratio", [4.0, 0.0])
def test_a_block_equals_its_formula(ratio):
    operator = create_operator("itnet", 8, 2, width=4)
    block = ResidualBlock(operator, 8, ratio=ratio, dropout=0.5, drop_path=0.5).eval()
    for norm in (block.norm1, block.norm2) if ratio else (block.norm1,):
        nn.init.normal_(norm.weight)
    u = torch.randn(2, 5, 8)
    domain = Domain.line(5)
    v = u + operator(block.norm1(u), domain)
    if ratio:
        inner = torch.nn.functional.gelu(block.feed_forward.expand(block.norm2(v)))
        assert inner.shape[-1] == 32
        v = v + block.feed_forward.contract(inner)
    assert_close(block(u, domain), v)
    assert (block.feed_forward is None) == (ratio == 0.0)


def test_dropping_every_path_gives_the_input():
    block = ResidualBlock(create_operator("softmax", 8, 2), 8, drop_path=0.5)
    block.drop_path.rate = 1 - 1e-9
    u = torch.randn(2, 5, 8)
    assert block(u, Domain.line(5)).equal(u)
    assert not block.eval()(u, Domain.line(5)).equal(u)


def test_dropout_acts_after_the_operator_and_inside_the_network():
    class One(nn.Module):
        def forward(self, u, domain):
            return torch.ones_like(u)

    block = ResidualBlock(One(), 8, ratio=0.0, dropout=0.25)
    out = block(torch.zeros(50, 20, 8), Domain.line(20))
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    network = FeedForward(8, ratio=2.0, dropout=0.5)
    u = torch.randn(1, 3, 8)
    assert not network(u).equal(network(u))
    assert network.eval()(u).equal(network(u))


def test_feed_forward_starts_xavier_uniform_with_zero_biases():
    network = FeedForward(64)
    bound = (6 / (64 + 256)) ** 0.5
    for layer in (network.expand, network.contract):
        assert bound * 0.98 < layer.weight.abs().max().item() <= bound
        assert layer.bias.abs().sum() == 0


def test_a_chunked_network_equals_the_network():
    whole, part = FeedForward(6, ratio=3), FeedForward(6, ratio=3, chunk=4)
    part.load_state_dict(whole.state_dict())
    u = torch.randn(2, 10, 6, requires_grad=True)
    with torch.no_grad():
        assert_close(part(u), whole(u))
    found = [torch.autograd.grad(f(u).square().sum(), [u, *f.parameters()]) for f in (whole, part)]
    for one, other in zip(*found):
        assert_close(one, other)
    dropped = FeedForward(6, dropout=0.5, chunk=4).double()
    u = u.detach().double().requires_grad_()

    def answer(x):
        torch.manual_seed(3)
        return dropped(x).square().sum()

    assert torch.autograd.gradcheck(answer, u)  # the second computation drops the same units
    with pytest.raises(OptionError, match="chunk: expected 1 point at once or more, got 0"):
        FeedForward(6, chunk=0)


@pytest.fixture
def own_operators(monkeypatch):
    """Let a test register operators of its own."""
    monkeypatch.setattr(OPERATORS, "_entries", dict(OPERATORS))


@pytest.mark.parametrize("preset", ["itnet_nano", "backbone_nano"])
def test_a_kernel_that_counts_points_does_so_in_every_residual_model(preset, own_operators):
    class Summed(MLPKernel):
        line = DefaultLine(measure="counting")

    @register_operator("tests-summed")
    class SummedOperator(IntegralOperator):
        def __init__(self, dim, heads=1, *, position_dim: int = 1):
            kernel = Summed(heads, dim // heads, position_dim=position_dim, width=4)
            super().__init__(dim, heads, kernel=kernel)

    kinds = {}
    for operator in ("tests-summed", "itnet"):
        model = create_model(preset, body={"operator": operator})
        picture = torch.rand(1, 1, *model.config.encoder.image_size)
        kinds[operator] = model.trace(picture)[0][2].kind
    assert kinds == {"tests-summed": "counting", "itnet": "uniform"}


@pytest.mark.parametrize("preset", ["itnet_nano", "backbone_nano"])
def test_a_forward_moves_nothing_between_devices(preset):
    """Tensors of the device "meta" cannot be copied to another one."""
    with torch.device("meta"):
        model = create_model(preset, body={"operator": "ckconv"})
        picture = torch.rand(1, 1, *model.config.encoder.image_size)
        assert model(picture).is_meta


def test_options_that_a_constructor_passes_on_get_the_dimension_of_positions(own_operators):
    @register_operator("tests-passing-on")
    class PassesOn(ITNetOperator):
        def __init__(self, dim, heads=1, *, sharp: bool = False, **options):
            super().__init__(dim, heads, **options)

    model = create_model("itnet_nano", body={"operator": "tests-passing-on"})
    assert model.body.operators[0].kernel.position_dim == 2


@pytest.mark.parametrize("preset", ["itnet_nano", "backbone_nano", "continuous_text_micro"])
def test_a_constructor_may_set_an_option_that_follows_from_the_data(preset, own_operators):
    @register_operator("tests-fixed")
    class Fixed(ITNetOperator):
        def __init__(self, dim, heads=1, **options):
            super().__init__(dim, heads, position_dim=3, **options)

    model = create_model(preset, body={"operator": "tests-fixed"})
    kernels = [each.kernel for each in model.modules() if isinstance(each, Fixed)]
    assert {kernel.position_dim for kernel in kernels} == {3}
    summed = create_operator("sum", 8, 2, parts=["tests-fixed"], position_dim=2)
    assert summed.parts[0].kernel.position_dim == 3
    with pytest.raises(OptionError, match="Fixed sets 'position_dim' itself; leave it out"):
        create_operator("tests-fixed", 8, position_dim=2)


def test_a_convolution_of_ones_own_gets_its_length_from_the_data_unless_it_sets_it(own_operators):
    @register_operator("tests-passing-length")
    class PassesLength(CKConv):
        def __init__(self, dim, heads=1, **options):
            super().__init__(dim, heads, **options)

    @register_operator("tests-fixed-length")
    class FixedLength(CKConv):
        def __init__(self, dim, heads=1, **options):
            super().__init__(dim, heads, length=24, **options)

    lengths = {}
    for name in ("tests-passing-length", "tests-fixed-length"):
        model = create_model("backbone_nano", body={"operator": name})
        lengths[name] = model.body.operators[0].kernel.length
    points = model.config.encoder.points
    assert lengths == {"tests-passing-length": points, "tests-fixed-length": 24}
