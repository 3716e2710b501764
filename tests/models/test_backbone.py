"""The backbone: every operator and baseline in it, on every kind of input."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.domain import Domain
from fredholm.encoders import SequenceConfig
from fredholm.errors import DomainError, OptionError
from fredholm.layers import Convolution, Recurrence
from fredholm.layers.baselines import in_reading_order
from fredholm.models import (
    BackboneConfig,
    create_model,
    from_pretrained,
    list_baselines,
    save_pretrained,
)
from fredholm.models.bodies.backbone import make_layer, suited
from fredholm.operators import list_operators
from tests.parts import parts
from tests.tolerances import assert_close

SMALL = {"itnet": {"width": 4}, "itnet_low_rank": {"width": 4, "rank": 2}, "ckconv": {"width": 4}}
NAMES = [*list_operators(), *list_baselines()]
NAN = float("nan")


def make(name: str, **fields):
    torch.manual_seed(0)
    model = create_model(
        "backbone_nano",
        **parts(
            operator=name, operator_options=SMALL.get(name, {}), dim=8, num_classes=3, **fields
        ),
    )
    nn.init.normal_(model.head.weight)
    return model.eval()


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_output(name):
    text = make(name, encoder="text", vocabulary=9, max_length=6)
    alone, padded = (
        torch.tensor([[3, 1, 4, 1]]),
        torch.tensor([[3, 1, 4, 1, 0, 0], [2, 7, 1, 8, 2, 8]]),
    )
    assert_close(text(padded)[:1], text(alone), "text")
    sequence = make(name, encoder="sequence", length=6, channels=2)
    x = torch.randn(2, 6, 2)
    x[0, 4:] = NAN
    assert_close(sequence(x)[:1], sequence(x[:1, :4]), "sequence")


@pytest.mark.parametrize("name", NAMES)
def test_outputs_do_not_depend_on_later_points(name):
    model = make(name, encoder="sequence", length=7, channels=2, causal=True, head="every")
    x = torch.randn(1, 7, 2)
    changed = x.clone()
    changed[:, 5:] += 1.0
    before, after = model(x), model(changed)
    assert before.shape == (1, 7, 3)
    assert_close(after[:, :5], before[:, :5])
    assert not torch.allclose(after[:, 5:], before[:, 5:])


@pytest.mark.parametrize("name", ["ckconv", "softmax", *list_baselines()])
def test_image_models_train_every_parameter_and_can_be_saved(name, tmp_path):
    model = make(name, image_size=(8, 8), patch=2)
    images = torch.randn(4, 1, 8, 8)
    model(images).square().sum().backward()
    exempt = {"kernel.key.bias", "key_bias"} if name == "softmax" else set()
    without = [key for key, p in model.named_parameters() if p.grad is None]
    assert without == [], without
    silent = [
        k
        for k, p in model.named_parameters()
        if not p.grad.abs().sum() and not any(e in k for e in exempt)
    ]
    assert silent == []
    save_pretrained(model, tmp_path)
    assert_close(from_pretrained(tmp_path)(images), model(images))
    trace = model.trace(images)
    assert [len(part) for part in trace] == [3, 3]
    assert all(operator.plan(domain).path for operator, _, domain in trace)


def test_baselines_equal_torchs_layers():
    torch.manual_seed(0)
    u = torch.randn(2, 6, 8)
    recurrence = Recurrence("lstm", 8)
    layer = recurrence.kernel.layer
    assert_close(
        recurrence(u, Domain.grid(2, 3)),
        recurrence.projection(layer(u)[0]),
        "lstm in reading order",
    )
    causal = Recurrence("gru", 8, causal=True)
    expected = causal.projection(causal.kernel.layer(u)[0])
    assert_close(causal(u, Domain.line(6, causal=True)), expected, "gru")
    assert recurrence.plan(Domain.grid(2, 3)).path == recurrence.plan(Domain.line(6)).path
    grid = Convolution(8, position_dim=2)
    image = u.mT.unflatten(-1, (2, 3))
    expected = (
        nn.functional.conv2d(image, grid.kernel.weight, grid.kernel.bias, padding=1).flatten(2).mT
    )
    assert_close(grid(u, suited(grid, Domain.grid(2, 3))), expected, "convolution")


def test_a_recurrence_refuses_a_reach():
    """A state remembers all points before, also those that the domain hides."""
    domain = Domain.line(6, causal=True, reach=1)
    layer = Recurrence("gru", 8, causal=True)
    with pytest.raises(DomainError, match="cannot hide or weigh pairs"):
        layer(torch.randn(2, 6, 8), domain)
    with pytest.raises(DomainError, match="cannot hide or weigh pairs"):
        layer.init_state(2, domain)


def test_reading_order_moves_padding_and_pairs():
    valid = torch.ones(1, 4, dtype=torch.bool)
    pairs = torch.ones(4, 4, dtype=torch.bool)
    moved = in_reading_order(Domain.line(4, valid=valid, pairs=pairs), torch.device("meta"))
    tensors = (moved.positions, moved.measure, moved.valid, moved.pairs)
    assert [x.device.type for x in tensors] == ["meta"] * 4


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_steps_of_recurrences_equal_the_forward(cell):
    """For any measure and positions, and with padding between points."""
    layer = Recurrence(cell, 8, causal=True).double()
    u = torch.randn(2, 6, 8, dtype=torch.float64)
    places = torch.rand(6, 2, dtype=torch.float64)
    valid = torch.tensor([[True, False, True, True, False, True]])
    for domain in (
        Domain.line(6, causal=True),
        Domain.points(places, causal=True, valid=valid),
        Domain.grid(2, 3, causal=True),
    ):
        first, state = layer.prefill(u[:, :4], layer.init_state(2, domain))
        fifth, state = layer.step(u[:, 4], state)
        last, _ = layer.step(u[:, 5], state)
        out = torch.cat([first, fifth[:, None], last[:, None]], 1)
        assert_close(out, layer(u, domain))
        assert_close(out, layer.dense(u, domain))


@pytest.mark.parametrize("causal", [True, False])
def test_dilations_double_from_block_to_block(causal, tmp_path):
    options = {"taps": 3, "dilation": {"blocks": [1, 2, 4]}}
    torch.manual_seed(0)
    shape = {"encoder": "sequence", "length": 32, "channels": 2, "causal": causal, "head": "every"}
    fields = {"operator": "convolution", "operator_options": options, "dim": 8, "num_classes": 3}
    model = create_model("backbone_nano", **parts(depth=4, **fields, **shape)).double().eval()
    nn.init.normal_(model.head.weight)
    layers = [block.operator for block in model.body.blocks]
    assert [layer.kernel.windows[0].dilation for layer in layers] == [1, 2, 4, 1]
    u = torch.randn(1, 32, 8, dtype=torch.float64)
    line = Domain.line(32, causal=causal, measure="counting", dtype=torch.float64)
    for layer, dilation in zip(layers, (1, 2, 4, 1)):
        kernel = layer.kernel
        ends = (2 * dilation, 0) if causal else (dilation, dilation)
        padded = nn.functional.pad(u.mT, ends)
        plain = nn.functional.conv1d(padded, kernel.weight, kernel.bias, dilation=dilation).mT
        assert_close(layer(u, line), plain, "torch")
        assert_close(layer.dense(u, line), plain, "definition")
    # The receptive field: 2 (1 + 2 + 4 + 1) points before a point, or half as many on both sides.
    x = torch.randn(1, 32, 2, dtype=torch.float64, requires_grad=True)
    (reach,) = torch.autograd.grad(model(x)[0, 20].sum(), x)
    seen = reach[0].abs().sum(1).nonzero().flatten()
    assert (int(seen.min()), int(seen.max())) == ((4, 20) if causal else (12, 28))
    again = from_pretrained(save_pretrained(model, tmp_path / "model"))
    assert_close(again.double()(x), model(x), "saved")


def test_steps_of_dilated_convolutions_equal_the_forward():
    layer = Convolution(8, causal=True, taps=3, dilation=2).double()
    u = torch.randn(2, 12, 8)
    line = Domain.line(12, causal=True, measure="counting", dtype=u.dtype)
    u = u.double()
    out, state = layer.prefill(u[:, :5], layer.init_state(2, line))
    rest = []
    for point in range(5, 12):
        one, state = layer.step(u[:, point], state)
        rest.append(one[:, None])
    assert_close(torch.cat([out, *rest], 1), layer(u, line), "point by point")
    with pytest.raises(OptionError, match="dilation: expected 1 or more, got 0"):
        Convolution(8, dilation=0)


@pytest.mark.parametrize("values", [[], 3, "ab"])
def test_options_per_block_must_be_a_list(values):
    options = {"dilation": {"blocks": values}}
    with pytest.raises(
        OptionError, match=r"dilation.blocks: expected a list of a value for each block"
    ):
        create_model("backbone_nano", body={"operator": "convolution", "operator_options": options})


def test_operators_run_with_their_default_measure():
    line, times = (
        Domain.line(5, measure="counting"),
        Domain.timestamps(torch.tensor([0.0, 1.0, 3.0]), causal=False),
    )
    kinds = {}
    for name in ("softmax", "itnet", "ckconv", "convolution"):
        layer = make_layer(
            BackboneConfig(operator=name, dim=8, operator_options=SMALL.get(name, {})),
            1,
            SequenceConfig(length=5),
        )
        kinds[name] = [suited(layer, d).kind for d in (line, Domain.line(5), times)]
    assert kinds["softmax"] == kinds["itnet"] == ["uniform", "uniform", "probability"]
    assert kinds["ckconv"] == kinds["convolution"] == ["counting", "counting", "spacing"]
    mean = suited(nn.Identity(), line)
    total = line
    assert mean is total  # unknown modules keep the domain


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"encoder": "sound"}, OptionError, "unknown encoder 'sound'"),
        ({"head": "each"}, OptionError, "head.pool: expected one of .*, got 'each'"),
        ({"dim": 0}, OptionError, "dim: expected a positive integer, got 0"),
        ({"dim": 9}, OptionError, "expected heads that divide dim"),
        ({"causal": True}, OptionError, "'image' has no option 'causal'"),
        ({"patch": 5}, OptionError, "expected a patch that divides the image"),
        ({"dropout": 1.0}, OptionError, "dropout: expected a rate in .*, got 1.0"),
        ({"mlp_ratio": -1}, OptionError, "mlp_ratio: expected a number of 0 or more, got -1"),
        ({"operator": "gru", "dim": 9, "heads": 1}, OptionError, "expected an even width"),
        (
            {"operator": "gru", "operator_options": {"taps": 3}},
            OptionError,
            "expected its own options, got",
        ),
        (
            {"operator": "convolution", "operator_options": {"taps": 4}},
            OptionError,
            "taps: expected an odd number, .* got 4",
        ),
        ({"operator": "softmaks"}, OptionError, "did you mean 'softmax'"),
    ],
)
def test_wrong_options_are_refused(fields, error, message):
    with pytest.raises(error, match=message):
        create_model("backbone_nano", **parts(**fields))


def test_a_convolution_refuses_points_without_a_grid():
    model = make("convolution", encoder="points", channels=3)
    with pytest.raises(DomainError, match="needs a regular grid"):
        model(torch.randn(1, 5, 3))


@pytest.mark.parametrize("name", ["ckconv", "softmax", *list_baselines()])
def test_a_field_has_an_output_at_every_point_of_any_grid(name):
    model = make(name, encoder="field", channels=2)
    assert model(torch.randn(1, 2, 4, 4)).shape == (1, 16, 3)
    assert model(torch.randn(1, 2, 6, 5)).shape == (1, 30, 3)
