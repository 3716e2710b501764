"""The continuous transformer: an ordinary encoder at its depth, and other numbers of steps with the
same weights.
"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fredholm.errors import CheckpointError, OptionError, ShapeError
from fredholm.models import (
    Model,
    ModelConfig,
    create_model,
    from_pretrained,
    model_config,
    save_pretrained,
)
from fredholm.operators import list_operators
from tests.parts import parts

from ..tolerances import assert_close

TEXT = torch.tensor([[3, 5, 2, 4, 1], [6, 2, 7, 0, 0]])


def text_model(**options) -> Model:
    """Return a small float64 model of texts, with parameters moved off their initial values."""
    base = {
        "vocabulary": 9,
        "max_length": 8,
        "dim": 8,
        "heads": 2,
        "depth": 3,
        "frequencies": 4,
        "dropout": 0.0,
    }
    model = create_model("continuous_text_micro", **parts(**base | options)).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" not in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def torch_encoder(model: Model) -> nn.TransformerEncoder:
    """Return torch's encoder with the weights of the model's evolution."""
    c = model.config.body
    layer = nn.TransformerEncoderLayer(
        c.dim,
        c.heads,
        round(c.mlp_ratio * c.dim),
        0.0,
        c.activation,
        batch_first=True,
        norm_first=c.norm == "pre",
    )
    encoder = (
        nn.TransformerEncoder(layer, c.depth, model.body.evolution.norm, enable_nested_tensor=False)
        .double()
        .eval()
    )
    with torch.no_grad():
        for into, knot in zip(encoder.layers, model.body.evolution.knots):
            kernel, operator = knot[0].operator.kernel, knot[0].operator
            into.self_attn.in_proj_weight.copy_(
                torch.cat([kernel.query.weight, kernel.key.weight, kernel.value.weight])
            )
            into.self_attn.in_proj_bias.copy_(
                torch.cat([kernel.query.bias, kernel.key.bias, kernel.value.bias])
            )
            into.self_attn.out_proj.load_state_dict(operator.projection.state_dict())
            network = knot[1] if c.norm == "pre" else knot[2]
            into.linear1.load_state_dict(network.layers[0].state_dict())
            into.linear2.load_state_dict(network.layers[1].state_dict())
            norms = (knot[0].norm, knot[1].norm) if c.norm == "pre" else (knot[1], knot[3])
            for target, source in zip((into.norm1, into.norm2), norms):
                target.weight.copy_(source.weight)
                target.bias.copy_(source.bias)
    return encoder


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_model_equals_torchs_encoder_at_its_depth(norm, activation):
    model = text_model(norm=norm, activation=activation)
    u, domain = model.encoder(TEXT)
    expected = torch_encoder(model)(u, src_key_padding_mask=~domain.valid)
    expected = torch.where(domain.valid[..., None], expected, 0.0)
    assert_close(model.features(TEXT)[0], expected)
    assert_close(model(TEXT), model.head(expected.sum(1) / domain.valid.sum(1, keepdim=True)))


SMOOTH = [
    {"norm": "soft", "scheme": "strang"},
    {"control": "linear"},
    {"control": "shared", "scheme": "parallel"},
]


@pytest.mark.parametrize("options", SMOOTH)
def test_smooth_models_converge_in_their_steps(options):
    model = text_model(depth=2, **options)
    u, domain = model.encoder(TEXT)
    with torch.no_grad():
        fine = model.body.evolution(u, domain, steps=64, scheme="strang")
        errors = [
            float((model.features(TEXT, steps=steps)[0] - fine).norm()) for steps in (4, 16, 64)
        ]
    assert errors[0] > 1e-3, "the number of steps matters"
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 2


def test_steps_and_scheme_may_change_without_retraining(tmp_path):
    model = text_model(scheme="parallel")
    folder = save_pretrained(model, tmp_path / "model")
    twice = from_pretrained(folder, overrides={"body": {"steps": 6}})
    assert twice.config.body.steps == 6
    assert_close(twice(TEXT), model(TEXT, steps=6))
    assert (twice(TEXT) - model(TEXT)).abs().max() > 1e-4
    other = from_pretrained(folder, overrides={"body": {"scheme": "strang", "control": "linear"}})
    assert other.state_dict().keys() == model.state_dict().keys()
    with pytest.raises(OptionError, match="did you mean 'steps'"):
        from_pretrained(folder, overrides={"body": {"step": 6}})
    with pytest.raises(CheckpointError, match="expected the weights of its configuration"):
        from_pretrained(folder, overrides={"body": {"depth": 4}})


def test_training_may_draw_its_number_of_steps():
    model = text_model(steps=3, train_steps=[2, 5])
    tokens = torch.tensor([[4, 2, 3]])
    taken = []
    evolution = model.body.evolution
    evolution.register_forward_pre_hook(
        lambda module, arguments, options: taken.append(options["steps"]), with_kwargs=True
    )
    torch.manual_seed(0)
    for _ in range(60):
        model.train()(tokens)
    assert set(taken) == {2, 3, 4, 5}
    taken.clear()
    model.eval()(tokens)
    model.train()(tokens, steps=7)
    assert taken == [None, 7]
    with pytest.raises(OptionError, match="train_steps: expected the least and the largest"):
        text_model(train_steps=[5, 2])


def test_shared_controls_have_one_set_of_parameters():
    shared, own = text_model(control="shared"), text_model()
    count = [
        sum(p.numel() for p in model.body.evolution.knots.parameters()) for model in (shared, own)
    ]
    assert count[1] == 3 * count[0]
    assert shared.body.evolution.horizon == own.body.evolution.horizon == 3.0
    assert shared.body.evolution.steps == 3


@pytest.mark.parametrize("scheme", ["lie", "strang", "parallel", ((0, 1),), ((1,), (0,))])
@pytest.mark.parametrize("pool", ["mean", "cls", "last"])
def test_padding_and_batching_change_no_output(scheme, pool):
    model = text_model(scheme=scheme, pool=pool)
    together = model(TEXT)
    assert_close(model(nn.functional.pad(TEXT, (0, 2))), together)
    assert_close(model(TEXT[1:, :3]), together[1:])


@pytest.mark.parametrize("name", list_operators())
def test_any_operator_can_be_the_attention_term(name):
    options = {"width": 4, "frequencies": 2} if name == "itnet" else {}
    model = text_model(operator=name, operator_options=options).train()
    model(TEXT, steps=4).square().sum().backward()
    missing = [
        n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()
    ]
    assert missing == []


def test_a_trace_has_the_inputs_of_attention():
    for scheme in ("lie", "strang"):
        model = text_model(scheme=scheme)
        found = model.trace(TEXT)
        assert len(found) == 3
        operator, u, domain = found[0]
        assert operator is model.body.evolution.knots[0][0].operator
        start, _ = model.encoder(TEXT)
        norm = model.body.evolution.knots[0][0].norm
        assert_close(u, norm(torch.where(domain.valid[..., None], start, 0.0)))
        assert found[2][0] is model.body.evolution.knots[2][0].operator
    assert len(text_model(steps=7).trace(TEXT)) == 7


def test_gradients_pass_gradcheck():
    model = text_model(depth=2, scheme="strang", control="linear", dim=4, heads=1)
    u, domain = model.encoder(TEXT)
    u = u.detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: model.body.evolution(v, domain, steps=1).sum(), (u,))


def test_image_models_run_at_any_size_and_depth():
    model = create_model(
        "continuous_vit_micro", **parts(num_classes=3, image_size=(8, 12), depth=2)
    ).double()
    images = torch.randn(2, 1, 8, 12, dtype=torch.float64)
    assert model(images, steps=5).shape == (2, 3)
    assert model.trace(images)[1][2].shape == (2, 3)
    cls = create_model(
        "continuous_vit_micro", **parts(image_size=(8, 8), pool="cls", norm="post", depth=1)
    )
    assert cls(torch.randn(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("operator", ["softmax", "itnet"])
def test_stages_reduce_the_number_of_tokens(operator, tmp_path):
    options = {"width": 4, "frequencies": 2} if operator == "itnet" else {}
    stages = ((4, 1, 1, 2), (8, 3, 2, 2))
    model = create_model(
        "continuous_cvt_micro",
        **parts(stages=stages, operator=operator, operator_options=options),
    )
    nn.init.normal_(model.head.weight)
    images = torch.randn(2, 1, 12, 8)
    assert model(images).shape == (2, 10)
    u, domain = model.features(images)
    assert (domain.shape, u.shape) == ((3, 2), (2, 6, 8))
    seen = []
    model(images, steps=6, observer=seen.append)
    taken = [len({s.time for s in seen if s.before.shape[-1] == width}) for width in (4, 8)]
    assert taken == [2, 6], "each stage takes steps of the same length"
    assert [u.shape for _, u, _ in model.trace(images)] == [(2, 6, 8)] * 3
    model(images).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    again = from_pretrained(save_pretrained(model, tmp_path), overrides={"body": {"steps": 6}})
    assert_close(again(images), model.eval()(images, steps=6))
    with pytest.raises(ShapeError, match=r"\(B, 1, H, W\)"):
        model.features(images.expand(-1, 3, -1, -1))


def test_biases_norms_and_frequencies_have_no_weight_decay():
    groups = text_model(norm="soft").weight_decay_groups(0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert all(p.dim() >= 2 for p in groups[0]["params"])
    assert sum(len(g["params"]) for g in groups) == len(list(text_model(norm="soft").parameters()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "batch"}, "norm: expected a known name, got 'batch'"),
        ({"control": "steps"}, "control: expected a known name, got 'steps'"),
        ({"penalty": 1.0}, "penalty: plays no role with norm='pre'"),
        ({"steps": 0}, "steps: expected a positive integer, got 0"),
        ({"horizon": 0.0}, "horizon: expected a number above 0, got 0.0"),
        ({"norm": "soft", "penalty": -1.0}, "penalty: expected a number above 0, got -1.0"),
        ({"dropout": 1.0}, "dropout: expected a rate .*, got 1.0"),
        ({"heads": 3}, "expected heads that divide dim=64, got heads=3"),
        ({"patch": 5}, "expected a patch that divides the image of 28x28, got 5x5"),
        ({"stages": ((64, 4, 3, 2),)}, r"stages: expected .*, got \(64, 4, 3, 2\)"),
        ({"stages": ()}, r"stages: expected .*, got \(\)"),
        (
            {"stages": ((64, 4, 4, 2),), "encoder": "tokens"},
            "expected one of pixels for",
        ),
        ({"stages": ((64, 4, 4, 2),), "pool": "cls"}, "expected one of mean, .* for pixels"),
        ({"stages": ((64, 4, 4, 2),), "dim": 8}, "'stages' has no option 'dim'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    name = "cvt" if "stages" in options else "vit"
    with pytest.raises(OptionError, match=message):
        create_model(f"continuous_{name}_micro", **parts(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "leapfrog"}, "unknown scheme 'leapfrog'"),
        ({"scheme": "relaxed", "steps": 8}, r"expected steps of 1 .*got 0\.5"),
        ({"scheme": ((0,),)}, "name each of the terms 0 to 1 once"),
        ({"operator": "sofmax"}, "did you mean 'softmax'"),
    ],
)
def test_wrong_options_of_parts_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        create_model("continuous_vit_micro", **parts(**options))


def test_configurations_survive_json():
    for name in ("continuous_text_base", "continuous_cvt_13"):
        config = model_config(name, **parts(scheme=((0,), (1,))))
        assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_weights_of_another_kind_of_dtype_are_refused(tmp_path):
    folder = save_pretrained(text_model(), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    for dtype in (torch.int32, torch.complex64):
        save_file({**tensors, name: tensors[name].to(dtype)}, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=rf"{name} {dtype} for torch.float"):
            from_pretrained(folder)
