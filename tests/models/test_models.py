"""Named models: sizes, optimiser groups, traces, and counts of parameters and FLOPs."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fredholm.configuration import Configuration
from fredholm.domain import Domain
from fredholm.encoders import ENCODERS
from fredholm.errors import FredholmError, OptionError
from fredholm.families.ckconv.position_network import WeightNormLinear
from fredholm.models import (
    Model,
    ModelConfig,
    count,
    create_model,
    list_models,
    model_config,
    read_out,
)
from fredholm.models.heads import LinearConfig
from tests.parts import parts

from ..tolerances import assert_close


def test_models_are_listed_by_name():
    sizes = [f"itnet_{size}{kind}" for size in ("pc", "s", "b", "l") for kind in ("", "_compact")]
    assert set(sizes) | {"itnet_nano", "itnet_micro"} == set(list_models("itnet_*"))
    assert list_models() == sorted(list_models())
    assert list_models("*_compact") == [
        "itnet_b_compact",
        "itnet_l_compact",
        "itnet_pc_compact",
        "itnet_s_compact",
    ]
    assert list_models("resnet*") == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: create_model("itnet_nanoo"), "'itnet_nanoo'; did you mean 'itnet_nano'"),
        (
            lambda: create_model("itnet_nano", **parts(dpeth=3)),
            "no option 'dpeth'; did you mean 'depth'",
        ),
        (lambda: create_model("itnet_nano", depth=3), "no option 'depth'; did you mean body.depth"),
        (lambda: create_model("itnet_nano", dpeth=3), "did you mean body.depth"),
        (lambda: create_model("itnet_nano", encoder={"kind": "grap"}), "did you mean 'graph'"),
        (
            lambda: create_model("itnet_nano", encoder={"kind": "pixels"}),
            "for the body .*, got 'pixels'",
        ),
        (
            lambda: create_model("itnet_nano", encoder={"positions": "learned", "sigma": 1.0}),
            "sigma: plays no role with positions='learned'; remove it",
        ),
        (
            lambda: create_model("itnet_nano", **parts(depth=0)),
            "depth: expected a positive integer, got 0",
        ),
        (
            lambda: create_model("itnet_nano", **parts(depth=True)),
            "depth: expected a positive integer, got True",
        ),
        (
            lambda: create_model("itnet_nano", **parts(dim=30, heads=4)),
            "expected heads that divide dim=30, got heads=4",
        ),
        (
            lambda: create_model("itnet_nano", **parts(patch=5)),
            "expected a patch that divides the image of 28x28, got 5x5",
        ),
        (
            lambda: create_model("itnet_nano", **parts(image_size=(28, 30))),
            "expected a patch that divides the image of 28x30, got 4x4",
        ),
        (
            lambda: create_model("itnet_nano", **parts(dropout=1.5)),
            r"dropout: expected a rate in \[0, 1\), got 1.5",
        ),
        (
            lambda: create_model("itnet_nano", **parts(drop_path=-0.5)),
            "drop_path: expected a rate.*, got -0.5",
        ),
        (
            lambda: create_model("itnet_nano", **parts(mlp_ratio=-1.0)),
            "mlp_ratio: expected a number.*, got -1.0",
        ),
        (lambda: create_model("itnet_nano", **parts(operator="sotfmax")), "did you mean 'softmax'"),
        (lambda: create_model("itnet_nano", **parts(operator_options={"widht": 3})), "'widht'"),
        (
            lambda: create_model("itnet_nano", **parts(pool="max")),
            "head.pool: expected one of mean, points, cls, every for image, got 'max'",
        ),
    ],
)
def test_wrong_options_are_refused(call, message):
    with pytest.raises(OptionError, match=message) as caught:
        call()
    assert isinstance(caught.value, FredholmError)


def test_a_user_defined_encoder_is_used_only_by_name(monkeypatch):
    """Its name does not make it the default encoder of any data."""
    entries = dict(ENCODERS) | {"aaa": type("Mine", (ENCODERS["pixels"],), {"kind": "aaa"})}
    order = sorted(entries, key="aaa".__eq__)  # registered last
    monkeypatch.setattr(ENCODERS, "_entries", {name: entries[name] for name in order})
    images = {"kind": "image", "image_size": (8, 8), "channels": 1}
    assert model_config("ckcnn_small", data=images).encoder.kind == "pixels"
    named = model_config("ckcnn_small", data=images, encoder={"kind": "aaa"})
    assert named.encoder.kind == "aaa"


@pytest.mark.parametrize("value", ["false", None, 2])
def test_flags_accept_only_booleans(value):
    @dataclass(frozen=True)
    class Part(Configuration):
        causal: bool = False

    with pytest.raises(OptionError, match=r"causal: expected true or false, got .*"):
        Part(causal=value)
    assert Part(causal=True).causal


def test_configurations_survive_json():
    for name in list_models():
        config = model_config(name)
        assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


# Millions of parameters without embeddings and head: compact as the paper states, full as the sum
# of its Table 11 (L: 459 with them).
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("itnet_s_compact", 21.9), ("itnet_b_compact", 85.3), ("itnet_l_compact", 308.7),
        ("itnet_s", 56.7), ("itnet_b", 148), ("itnet_l", 456.6), ("itnet_pc", 2.77),
    ],
)  # fmt: skip
def test_parameter_counts(name, millions):
    with torch.device("meta"):
        model = create_model(name)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    found = sum(p.numel() for p in model.body.blocks.parameters()) / 1e6
    digits = len(str(millions).partition(".")[2])
    assert round(found, digits) == millions


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"operator": "softmax", "operator_options": {}, "pool": "cls"},
        {
            "operator_options": {
                "width": 4,
                "output": "compact",
                "depth": 3,
                "learned_frequencies": True,
            }
        },
        {"operator_options": {"width": 4, "per_head_hidden": True}},
    ],
)
def test_weight_decay_groups(options):
    model = create_model("itnet_nano", **parts(**options))
    groups = model.weight_decay_groups(0.05)
    assert [g["weight_decay"] for g in groups] == [0.05, 0.0]
    members = [id(p) for g in groups for p in g["params"]]
    assert len(members) == len(set(members))
    assert set(members) == {id(p) for p in model.parameters()}
    decayed = {id(p) for p in groups[0]["params"]}
    exempt = ("bias", "norm", "fourier.matrix", "token")
    for name, parameter in model.named_parameters():
        free = any(part in name for part in exempt)
        assert (id(parameter) in decayed) == (not free), name
    torch.optim.AdamW(groups)


def test_weight_decay_shrinks_weight_normalised_layers():
    model = create_model("ckcnn_small", **parts(channels=1, num_classes=3))
    layers = [m for m in model.modules() if isinstance(m, WeightNormLinear)]
    before = [layer.weight.detach().clone() for layer in layers]
    optimizer = torch.optim.AdamW(model.weight_decay_groups(0.5), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert layers
    for layer, weight in zip(layers, before):
        torch.testing.assert_close(layer.weight, 0.95 * weight)


def test_residual_projections_are_scaled_by_depth_at_initialisation():
    model = create_model("itnet_micro", **parts(depth=4, dim=64, drop_path=0.3))
    assert model.head.weight.abs().sum() == 0
    assert [round(b.drop_path.rate, 6) for b in model.body.blocks] == [0.0, 0.1, 0.2, 0.3]
    for block in model.body.blocks:
        bound = (6 / (64 + 64)) ** 0.5 / 8**0.5
        assert 0.97 * bound < block.operator.projection.weight.abs().max().item() <= bound
        bound = (6 / (64 + 256)) ** 0.5 / 8**0.5
        assert 0.97 * bound < block.feed_forward.contract.weight.abs().max().item() <= bound
    matrices = [block.operator.kernel.fourier.matrix for block in model.body.blocks]
    assert all(m.equal(matrices[0]) for m in matrices)


@pytest.mark.parametrize("pool", ["Mean", "max", "class"])
def test_an_unknown_read_out_is_refused(pool):
    with pytest.raises(OptionError, match="pool: expected one of mean, points, cls, first"):
        read_out(torch.randn(1, 3, 2), Domain.line(3), pool)


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_a_trace_has_the_inputs_of_every_operator(pool):
    model = create_model("itnet_nano", **parts(pool=pool)).eval()
    images = torch.rand(2, 1, 28, 28)
    seen = []
    for block in model.body.blocks:
        block.operator.register_forward_pre_hook(lambda module, args: seen.append((module, *args)))
    # A trace runs under no_grad, where another form may run.
    with torch.no_grad():
        logits = model(images)
    expected = list(seen)
    seen[:] = []
    found = model.trace(images)
    assert len(found) == len(expected) == 2
    for (module, u, domain), (module_, u_, domain_) in zip(found, expected):
        assert module is module_
        assert u.equal(u_)
        assert domain.positions.equal(domain_.positions)
        assert not u.requires_grad
    tokens, domain = model.features(images)
    assert tokens.shape == (2, domain.size, 32)
    assert_close(model.head(read_out(tokens, domain, pool)), logits)


def test_every_parameter_receives_a_gradient_and_other_sizes_work():
    model = create_model("itnet_nano", **parts(pool="cls"))
    torch.nn.init.normal_(model.head.weight)
    assert model(torch.rand(1, 1, 20, 36)).shape == (1, 10)
    model(torch.rand(2, 1, 28, 28)).square().sum().backward()
    assert [
        n for n, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0
    ] == []


@pytest.mark.parametrize("name", ["softmax", "itnet"])
def test_counts_equal_those_by_hand(name):
    b, n, d, heads, layers, width, m = 2, 16, 32, 2, 2, 16, 16
    groups = ["query", "key", "product"]
    options = {"width": width, "groups": groups} if name == "itnet" else {}
    model = create_model("itnet_nano", **parts(patch=7, operator=name, operator_options=options))
    tokens, c, pairs = b * n, d // heads, b * heads * n * n
    # Patch embedding, γ's angles and their projection (shared by the batch), read-out.
    around = tokens * 49 * d + n * 2 * m + n * 2 * m * d + b * d * 10
    if name == "softmax":
        operator = 4 * tokens * d * d + 2 * pairs * c
        weights = 4 * (d * d + d)
    else:
        # W and W_O, a and b of the first layer, the product and the moment per pair, W2 per query,
        # b2 per head.
        operator = 2 * tokens * d * d + 2 * tokens * heads * c * width + 2 * pairs * width * c
        operator += b * heads * n * width * c * c + b * heads * c * c
        weights = 2 * d * d + d + width * 3 * c + width + heads * c * c * (width + 1)
    feed_forward = 2 * tokens * d * 4 * d
    flops = 2 * (around + layers * (operator + feed_forward))
    weights = (
        layers * (weights + 8 * d * d + 5 * d + 4 * d)
        + 49 * d
        + d
        + 2 * m * d
        + 2 * d
        + 10 * d
        + 10
    )
    assert count(model, (b, 1, 28, 28)) == (weights, flops)


def test_counting_keeps_the_mode_and_scales_with_the_batch():
    model = create_model("itnet_nano").train()
    model.body.eval()
    one, two = count(model, (1, 1, 28, 28)), count(model, (2, 1, 28, 28))
    assert model.training
    assert not model.body.training
    assert one[0] == two[0]
    assert one[1] < two[1] <= 2 * one[1]


def test_the_counter_counts_transforms_and_fused_recurrences():
    from fredholm.models import counter

    with counter() as found:
        torch.fft.fft(torch.zeros(3, 16, dtype=torch.complex64))
    assert found.get_total_flops() == 3 * 5 * 16 * 4
    with counter() as found:
        torch.fft.irfft(torch.fft.rfft(torch.zeros(2, 16)), n=16)
    assert found.get_total_flops() == 2 * 5 * 16 * 4  # two real ones
    lstm = torch.nn.LSTM(3, 5, batch_first=True, bidirectional=True)
    with counter() as found, torch.no_grad():
        lstm(torch.zeros(2, 7, 3))
    assert found.get_total_flops() == 2 * 2 * 7 * 2 * (4 * 5 * 3 + 4 * 5 * 5)


# --- batches without padding ----------------------------------------------------------------------

SERIES = {"kind": "sequence", "channels": 2, "length": 12}
WORDS = {"kind": "text", "vocabulary": 9, "max_length": 12}


def whole_batch(encoder):
    if encoder["kind"] == "text":
        return torch.randint(1, 9, (3, 12))
    return torch.randn(3, 12, 2)


@pytest.mark.parametrize("encoder", [SERIES, WORDS], ids=["series", "words"])
@pytest.mark.parametrize("operator", ["softmax", "luna", "itnet", "infsa", "linear_infsa"])
def test_a_batch_without_padding_has_no_mask_and_equal_outputs(encoder, operator, monkeypatch):
    body = {"operator": operator, "dim": 8, "heads": 2, "depth": 2}
    model = create_model("backbone_nano", encoder=encoder, body=body, head={"outputs": 3}).eval()
    inputs = whole_batch(encoder)
    seen = []
    answer = type(model).answer
    monkeypatch.setattr(
        type(model),
        "answer",
        lambda self, u, d, **k: seen.append(d.valid) or answer(self, u, d, **k),
    )

    def gradients(masked):
        out = model.answer(*model.encoder(inputs)) if masked else model(inputs)
        parameters = [p for p in model.parameters() if p.requires_grad]
        return out, torch.autograd.grad(out.square().sum(), parameters, allow_unused=True)

    (expected, expected_grad), (found, found_grad) = gradients(True), gradients(False)
    assert seen[0].all()
    assert seen[1] is None
    assert_close(found, expected, dtype=torch.float32)
    for f, e in zip(found_grad, expected_grad):
        assert (f is None) == (e is None)
        if f is not None:
            assert_close(f, e, "gradient", dtype=torch.float32)


@pytest.mark.parametrize("tracer", ["export", "make_fx", "vmap"])
def test_a_traced_model_keeps_its_mask_for_padded_inputs(tracer):
    body = {"operator": "softmax", "dim": 8}
    model = create_model("backbone_nano", encoder=SERIES, body=body, head={"outputs": 3}).eval()
    whole = whole_batch(SERIES)
    padded = whole.clone()
    padded[0, 8:] = float("nan")
    if tracer == "export":
        traced = torch.export.export(model, (whole,)).module()
    elif tracer == "make_fx":
        traced = make_fx(model)(whole)
    else:
        traced = torch.func.vmap(lambda sample: model(sample[None])[0])
    assert_close(traced(padded), model(padded), dtype=torch.float32)


def test_an_offset_is_added_in_float32_and_saved(tmp_path):
    head = {"outputs": 2, "pool": "every", "offset": [300.0, -1.0]}
    body = {"operator": "softmax", "dim": 8}
    torch.manual_seed(0)
    model = create_model("itnet_nano", encoder={"kind": "field"}, body=body, head=head).eval()
    torch.nn.init.normal_(model.head.weight)
    x = torch.randn(1, 1, 4, 4)
    features, _ = model.features(x)
    assert_close(model(x), model.head(features) + torch.tensor([300.0, -1.0]))
    model.save_pretrained(tmp_path)
    assert torch.equal(type(model).from_pretrained(tmp_path)(x), model(x))
    half = copy.deepcopy(model).to(torch.bfloat16)(x.bfloat16())
    assert half.dtype == torch.float32
    deviation = model(x)[..., 0] - 300.0
    assert_close(half[..., 0] - 300.0, deviation, dtype=torch.bfloat16)
    assert model.double()(x.double()).dtype == torch.float64
    with pytest.raises(
        OptionError, match=r"offset: expected a number for each of 2 outputs.*got 1"
    ):
        create_model("itnet_nano", head=head | {"offset": [1.0]})


EXPORTED = """
import torch
from torch.export import Dim, export
from fredholm.models import create_model

body = {"operator": "softmax", "dim": 8, "depth": 1, "heads": 2}
cloud = {"kind": "points", "channels": 3, "neighbours": 4}
timed = {"kind": "sequence", "channels": 2, "length": 16, "timed": True}
for encoder, x in ((cloud, torch.rand(3, 12, 3)), (timed, torch.rand(3, 12, 3).cumsum(1))):
    model = create_model("backbone_nano", encoder=encoder, body=body, head={"outputs": 3}).eval()
    traced = export(model, (x,), dynamic_shapes=({0: Dim("b", min=2, max=64)},)).module()
    y = torch.cat([x, x])
    torch.testing.assert_close(traced(y), model(y))
print("same")
"""


@pytest.mark.slow
@pytest.mark.compile
def test_clouds_and_timed_sequences_export_for_any_batch():
    done = subprocess.run(
        [sys.executable, "-c", EXPORTED], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.strip() == "same", done.stderr[-3000:]


def test_operator_options_reach_the_kernel_of_a_body():
    text = {"kind": "text", "causal": True, "vocabulary": 11, "max_length": 40}
    body = {"operator": "linear_infsa", "operator_options": {"causal": "streaming"}}
    model = create_model(
        "itnet_nano", encoder=text, body=body, head={"pool": "every", "outputs": 11}
    )
    assert type(model.body.blocks[0].operator.kernel).__name__ == "StreamingCentreKernel"


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_every_point_of_several_views_is_refused(head):
    pair = {"kind": "text", "views": 2}
    with pytest.raises(OptionError, match=r"head\.pool: .*, got 'every' beside encoder\.views=2"):
        model_config("itnet_nano", encoder=pair, head={"kind": head, "pool": "every"})
    assert model_config("itnet_nano", encoder=pair, head={"kind": head}).pool == "mean"


def test_data_without_a_kind_describe_those_of_the_present_encoder():
    base = model_config("lra_skyformer")
    changed = base.replace(data={"vocabulary": 9})
    assert changed == base.replace(encoder={"vocabulary": 9})
    assert changed.encoder.vocabulary == 9
    named = base.replace(data={"vocabulary": 9}, encoder={"max_length": 5}).encoder
    assert (named.vocabulary, named.max_length) == (9, 5)
    assert base.replace(data={}) == base
    with pytest.raises(OptionError, match="has no option 'vocabularies'; did you mean"):
        base.replace(data={"vocabularies": 9})
    with pytest.raises(OptionError, match="no description of the data beside a complete encoder"):
        base.replace(data={"vocabulary": 9}, encoder=base.encoder)


def test_changing_the_data_keeps_shared_options_of_the_encoder():
    base = create_model("itnet_nano").config
    text = base.replace(data={"kind": "text", "vocabulary": 9, "max_length": 5})
    assert (text.encoder.kind, text.encoder.frequencies, text.encoder.sigma) == ("text", 16, 3.0)
    points = base.replace(data={"kind": "points", "channels": 2})
    assert points.encoder.sigma is None, "raw features have no sigma"
    cnn = create_model("ckcnn_small").config
    for kind, reader in (("text", "tokens"), ("image", "pixels"), ("sequence", "samples")):
        assert cnn.replace(data={"kind": kind}, head={"pool": None}).encoder.kind == reader
    with pytest.raises(OptionError, match="for the body 'ckcnn', got 'points'"):
        cnn.replace(data={"kind": "points"})
    classes = ModelConfig(head=LinearConfig(pool="cls"))
    field = classes.replace(data={"kind": "field", "channels": 1})
    assert field.pool == "every", "a class token that a field does not have"
    assert Model(field)(torch.zeros(1, 1, 3, 2)).shape == (1, 6, 10)
