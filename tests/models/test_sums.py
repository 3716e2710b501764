"""Sums of operators: values, recipes, saving, refusals."""

from __future__ import annotations

import copy

import pytest
import torch

from fredholm import Domain
from fredholm.convert import as_operator
from fredholm.errors import DomainError, OptionError, RecipeError
from fredholm.explain.attention import operator_inputs
from fredholm.integral.addition import SumKernel
from fredholm.kernels import MLPKernel
from fredholm.lab.training.build import build_dataset, build_model
from fredholm.models import create_model, from_pretrained, save_pretrained
from fredholm.models.baselines import make_baseline
from fredholm.operators import IntegralOperator, OperatorSum, create_operator
from fredholm.training import load_recipe

from ..tolerances import assert_close

PARTS = ["luna", {"name": "convolution", "depthwise": True, "taps": 3}]


def moved(operator: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return operator.double()


@pytest.mark.parametrize("causal", [False, True])
def test_a_sum_equals_its_parts_in_values_gradients_and_steps(causal):
    torch.manual_seed(0)
    operator = moved(OperatorSum(8, 2, parts=["itnet", *PARTS], causal=causal))
    u = torch.randn(2, 6, 8, dtype=torch.float64, requires_grad=True)
    line = Domain.line(6, causal=causal, measure="counting", dtype=torch.float64)
    added = operator(u, line)
    alone = sum(part(u, line) for part in operator.parts)
    assert_close(added, alone)
    inputs = [u, *operator.parameters()]
    for g, h in zip(*(torch.autograd.grad(y.square().sum(), inputs) for y in (added, alone))):
        assert_close(g, h)
    plan = operator.plan(line)
    assert [part.plan(line).path for part in operator.parts] == plan.path.split(" + ")
    if causal:
        state = operator.init_state(2, line)
        first, state = operator.prefill(u[:, :4], state)
        last, state = operator.step(u[:, 4], state)
        assert_close(torch.cat([first, last[:, None]], 1), alone[:, :5])


def test_parts_keep_their_strategies_unless_the_sum_has_one():
    parts = [{"name": "luna", "strategy": "exact"}, "linear_attention"]
    operator = create_operator("sum", 8, 2, parts=parts)
    line = Domain.line(5)
    assert operator.plan(line).path == "weights by query block + two sums"
    operator.strategy = "exact"
    assert operator.plan(line).path == "weights by query block + weights by query block"


def test_parts_update_their_statistics_as_alone():
    """A running cap updates in training, also within nested sums, but not for parts in evaluation
    mode.
    """
    torch.manual_seed(0)
    capped = {"name": "luna", "cap": "running"}
    inner = {"name": "sum", "parts": [capped, "linear_attention"]}
    operator = create_operator("sum", 8, 2, parts=["softmax", capped, inner]).train()
    alone = copy.deepcopy([operator.parts[1], operator.parts[2].parts[0]])
    valid = torch.tensor([[True] * 16, [True] * 9 + [False] * 7])
    u = 100 * torch.randn(2, 16, 8)
    line = Domain.line(16, valid=valid)
    size = "kernel.feature_map.mean_square"
    for _ in range(2):
        operator(u, line)
        for part in alone:
            part(u, line)
    for part, one in zip((operator.parts[1], operator.parts[2].parts[0]), alone):
        assert_close(part.get_buffer(size), one.get_buffer(size))
    before = operator.parts[1].get_buffer(size).clone()
    assert before.max() > 10
    operator.parts[1].eval()
    operator(u, line)
    assert torch.equal(operator.parts[1].get_buffer(size), before)


def test_a_part_in_evaluation_mode_draws_no_keys():
    torch.manual_seed(0)
    drawn = {"name": "itnet", "width": 4, "strategy": {"name": "monte_carlo", "samples": 3}}
    operator = create_operator("sum", 8, 2, parts=[drawn, "softmax"]).train()
    u = torch.randn(2, 16, 8)
    line = Domain.line(16)
    assert "sampled keys" in operator.plan(line).path
    assert not operator(u, line).equal(operator(u, line))

    operator.parts[0].eval()
    assert "evenly spread keys" in operator.plan(line).path
    assert_close(operator(u, line), operator.parts[0](u, line) + operator.parts[1](u, line))


def test_a_depthwise_convolution_equals_torchs():
    torch.manual_seed(0)
    operator = make_baseline("convolution", 6, 2, position_dim=2, causal=False, depthwise=True)
    u = torch.randn(2, 12, 6)
    grid = Domain.grid(3, 4, measure="counting")
    kernel = operator.kernel
    image = u.mT.unflatten(-1, (3, 4))
    expected = torch.conv2d(image, kernel.weight, kernel.bias, padding=1, groups=6)
    assert kernel.weight.shape == (6, 1, 3, 3)
    assert_close(operator(u, grid), expected.flatten(2).mT)


def test_unsupported_sums_are_refused():
    with pytest.raises(OptionError, match="order of its own"):
        OperatorSum(8, parts=["softmax", "gru"])
    with pytest.raises(OptionError, match="at least one operator, got none"):
        OperatorSum(8, parts=[])
    with pytest.raises(OptionError, match="a list of names"):
        OperatorSum(8, parts="softmax")
    with pytest.raises(OptionError, match="did you mean 'luna'"):
        OperatorSum(8, parts=["lunaa"])
    masked = Domain.line(4).replace(pairs=torch.ones(4, 4).bool())
    with pytest.raises(DomainError, match=r"of 2 heads, .* got one of 8"):
        OperatorSum(8, 2, parts=PARTS)(torch.zeros(1, 4, 8), masked)


def test_a_model_of_a_recipes_sum_can_be_saved(tmp_path):
    text = "operator={sum: [luna, {name: convolution, depthwise: true}]}"
    recipe = load_recipe("digits", ["model=backbone_nano", text])
    assert recipe.operator.name == "sum"
    model = build_model(recipe, build_dataset(recipe, "train")).eval()
    operator = model.body.blocks[0].operator
    assert [type(part).__name__ for part in operator.parts] == ["LunaAttention", "Convolution"]
    save_pretrained(model, tmp_path / "model")
    pixels = torch.rand(2, *model.config.input_shape)
    assert torch.equal(from_pretrained(tmp_path / "model")(pixels), model(pixels))
    with pytest.raises(RecipeError, match=r"operator\.sum: expected an operator .*, got 'lunaa'"):
        load_recipe("digits", ["operator={sum: [lunaa]}"])


@pytest.mark.parametrize("name", ["backbone_nano", "itnet_nano"])
def test_parts_of_a_sum_may_differ_from_block_to_block(name):
    text = "{sum: [luna, {name: convolution, taps: 3, dilation: {blocks: [1, 4]}}]}"
    recipe = load_recipe("digits", [f"model={name}", f"operator={text}", "model.body.depth=3"])
    model = build_model(recipe, build_dataset(recipe, "train"))
    parts = [block.operator.parts[1] for block in model.body.blocks]
    assert [part.kernel.windows[0].dilation for part in parts] == [1, 4, 1]


def test_residual_blocks_scale_all_projections_of_a_sum():
    torch.manual_seed(0)
    options = {"operator": "sum", "operator_options": {"parts": ["softmax", *PARTS]}}
    model = create_model("itnet_nano", body=options, head={"outputs": 3})
    _, seen, domain = model.body.trace(*model.encoder(torch.rand(1, 1, 28, 28)))[0]
    assert domain.kind == "counting"
    assert float(domain.measure.max()) == 1.0
    first = model.body.blocks[0].operator.parts
    bound = [p.projection.weight.abs().max().item() for p in first if p.projection is not None]
    assert len(bound) == 2
    assert max(bound) < (6 / 64) ** 0.5 / 4**0.5 + 1e-6
    assert seen.shape[-1] == 32


BODIES = {
    "infvit": ("itnet_nano", {"kind": "infvit", "dim": 16, "heads": 2, "depth": 2}),
    "accumulated": (
        "itnet_nano",
        {"kind": "infvit", "dim": 16, "heads": 2, "depth": 2, "depth_rule": "accumulated"},
    ),
    "continuous": (
        "itnet_nano",
        {"kind": "continuous", "dim": 16, "heads": 2, "depth": 2, "dropout": 0.0},
    ),
    "stages": ("continuous_cvt_micro", {"stages": ((16, 1, 2, 4), (16, 2, 2, 2))}),
}


@pytest.mark.parametrize("kind", BODIES)
def test_every_body_counts_points_for_a_convolution(kind):
    name, body = BODIES[kind]
    sum_of_parts = {"operator": "sum", "operator_options": {"parts": PARTS}}
    model = create_model(name, body=body | sum_of_parts, head={"pool": "mean"})
    domains = []
    sums = [module for module in model.modules() if isinstance(module, OperatorSum)]
    for module in sums:
        module.register_forward_pre_hook(lambda _, given: domains.append(given[1]))
    model(torch.rand(1, *model.config.input_shape))
    assert len(domains) == len(sums)
    assert {domain.kind for domain in domains} == {"counting"}
    assert {float(mass) for domain in domains for mass in domain.measure} == {1.0}
    for _, _, domain in model.trace(torch.rand(1, *model.config.input_shape)):
        assert domain.kind == "counting"


@pytest.mark.parametrize("kind", ["infvit", "accumulated", "continuous"])
def test_a_convolution_reaches_back_on_causal_texts_in_every_body(kind):
    torch.manual_seed(0)
    name, body = BODIES[kind]
    text = {"kind": "text", "vocabulary": 9, "max_length": 8, "causal": True}
    sum_of_parts = {"operator": "sum", "operator_options": {"parts": PARTS[1:]}, "depth": 1}
    model = create_model(name, encoder=text, body=body | sum_of_parts, head={"pool": "every"})
    model = moved(model).eval()
    u, domain = model.encoder(torch.randint(1, 9, (1, 8)))
    u = u.detach().requires_grad_()
    features, _ = model.body(u, domain)
    (read,) = torch.autograd.grad(features[0, 5].square().sum(), u)
    # Three taps: the point itself and the two before it.
    assert read[0].abs().sum(-1).nonzero().flatten().tolist() == [3, 4, 5]


def test_a_replaced_projection_is_used():
    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    own = Doubled(8, 8)
    operator = IntegralOperator(8, kernel=MLPKernel(1, 8, width=4), projection=own)
    assert operator.projection is own
    total = OperatorSum(8, 2, parts=["softmax", "luna"])
    layer = torch.nn.Module()
    layer.in_features = layer.out_features = 8
    layer.forward = torch.zeros_like
    total.kernel.parts[0].projection = layer
    u = torch.randn(1, 5, 8)
    assert total(u).isfinite().all()
    with pytest.raises(OptionError, match="whose forward would not run"):
        total.dense(u, Domain.line(5))


def test_a_sum_follows_replaced_parameters():
    conv = torch.nn.Conv1d(4, 4, 3, padding=1)
    part = as_operator(conv)
    total = IntegralOperator(4, kernel=SumKernel([part]), residual=False, projection=False)
    u = torch.randn(1, 5, 4)
    line = Domain.line(5, measure="counting")
    conv.weight = torch.nn.Parameter(torch.zeros_like(conv.weight))
    assert_close(total(u, line), part(u, line))
    assert_close(total(u, line), conv.bias.expand(1, 5, 4))


def test_inspection_uses_the_domain_of_the_call():
    summed = OperatorSum(8, 2, parts=["softmax", {"name": "convolution"}])
    local = create_operator("linear_attention", 8, window=3)
    u = torch.randn(1, 5, 8)
    for operator in (summed, local):
        ((_, _, _, domain),) = operator_inputs(torch.nn.Sequential(operator), u)
        assert_close(operator(u, domain), operator(u))
