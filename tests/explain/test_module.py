"""One layer of any model: the captured call, the operator's error on the page, and refusals."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fredholm import as_operator
from fredholm.errors import CheckpointError, ConversionError, DataError, OptionError, ShapeError
from fredholm.explain import report_module
from fredholm.explain.calls import _sequence, capture, convertible_layers
from fredholm.explain.kernels import kernel_map, kernel_profile, output_points
from fredholm.lab.report.module import check_kernel, check_output, explain_module
from fredholm.lab.report.sources import load_inputs, load_model, load_state

from .chromium import BROWSER, open_page
from .layers import Unused, Wrapped, resnet

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SIGNAL = torch.randn(4, 7, 6, generator=torch.Generator().manual_seed(1))
FUTURE = torch.ones(7, 7).triu(1).bool()
PADDED = torch.arange(7) >= torch.tensor([[7], [3], [7], [5]])
BIAS = torch.randn(7, 7, generator=torch.Generator().manual_seed(2))


def compare(model, path, inputs, **options):
    """Return the call, the operator, its domain, and the errors of the operator and its kernel."""
    layer = model.get_submodule(path)
    call = capture(model, path, inputs)
    operator = as_operator(layer.eval(), **options)
    domain = call.domain(operator.kernel)
    return (
        call,
        operator,
        domain,
        check_output(operator, call, domain, path),
        check_kernel(operator, call, domain),
    )


def attention(**options):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(6, 2, **options)
    nn.init.normal_(layer.in_proj_bias)
    return Wrapped(layer)


same = {"query": SIGNAL, "key": SIGNAL, "value": SIGNAL}
turned = {name: u.transpose(0, 1) for name, u in same.items()}
LAYOUTS = {
    "conv": (resnet, "layer1.0.conv1", IMAGES, {}),
    "strided conv": (resnet, "layer1.1.conv1", IMAGES, {}),
    "pool": (resnet, "maxpool", IMAGES, {"dim": 4}),
    "linear": (resnet, "fc", IMAGES, {}),
    "linear of points": (lambda: Wrapped(nn.Linear(6, 2)), "layer", SIGNAL[:, :, None], {}),
    "conv, no batch": (lambda: Wrapped(nn.Conv2d(3, 2, 3)), "layer", IMAGES[0], {}),
    "batch first": (lambda: attention(batch_first=True), "layer", (SIGNAL, SIGNAL, SIGNAL), {}),
    "sequence first": (attention, "layer", turned, {}),
    "no batch": (attention, "layer", (SIGNAL[0], SIGNAL[0], SIGNAL[0]), {}),
    "boolean mask": (lambda: attention(batch_first=True), "layer", {**same, "attn_mask": FUTURE}, {}),
    "float mask": (lambda: attention(batch_first=True), "layer", {**same, "attn_mask": BIAS}, {}),
    "mask a head": (
        lambda: attention(batch_first=True), "layer", {**same, "attn_mask": BIAS.repeat(8, 1, 1)}, {},
    ),
    "padding": (attention, "layer", {**turned, "key_padding_mask": PADDED}, {}),
    "lstm": (lambda: Wrapped(nn.LSTM(6, 3)), "layer", SIGNAL.transpose(0, 1), {}),
    "gru, batch first, two directions": (
        lambda: Wrapped(nn.GRU(6, 3, batch_first=True, bidirectional=True)), "layer", (SIGNAL, torch.zeros(2, 4, 3)), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "path", "inputs", "options"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_operator_reproduces_the_captured_call(make, path, inputs, options):
    call, operator, domain, error, kernel_error = compare(make(), path, inputs, **options)
    assert error <= 1e-5
    assert kernel_error is not None
    assert kernel_error <= 1e-5
    assert call.unread == ()
    assert call.output.shape[-1] == operator.out_dim
    assert call.u.shape[1] == domain.size


def test_capturing_a_padded_encoder_layer_keeps_its_fast_path():
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)
    _, _, domain, error, _ = compare(model, "layers.1.self_attn", (SIGNAL, None, PADDED))
    assert error <= 1e-5
    assert domain.valid is not None
    assert torch.equal(domain.valid, ~PADDED)
    assert torch.backends.mha.get_fastpath_enabled()


def test_modes_and_hooks_are_restored():
    model = resnet()
    model.layer1[0].bn1.eval()
    before = [m.training for m in model.modules()]
    capture(model, "layer1.0.conv1", IMAGES)
    assert [m.training for m in model.modules()] == before
    assert not any(m._forward_hooks for m in model.modules())
    with pytest.raises(ShapeError, match="does not take"):
        capture(model, "layer1.0.conv1", IMAGES[:, :2])
    assert [m.training for m in model.modules()] == before
    assert not any(m._forward_hooks for m in model.modules())


def test_pictures_of_a_strided_layer_show_its_queries():
    call, operator, domain, _, _ = compare(resnet(), "layer1.1.conv1", IMAGES)
    assert (domain.size, output_points(operator, domain).size) == (16, 4)
    row = kernel_map(operator, call.u, domain, queries=[3])[0, 0, 0].reshape(4, 4)
    assert (row > 0).tolist() == [
        [i > 0 and j > 0 for j in range(4)] for i in range(4)
    ]  # taps about (2, 2)
    profile = kernel_profile(operator, call.u, domain, queries=9)
    assert profile.queries == 4
    assert float(profile.count.sum()) == len(call.u) * 4 * 16
    with pytest.raises(OptionError, match="0 to 3"):
        kernel_map(operator, call.u, domain, queries=[4])


def test_the_page_has_figures_numbers_and_errors(tmp_path):
    model = resnet()
    page = report_module(model, "layer1.0.conv1", IMAGES, tmp_path, samples=3)
    text = page.read_text()
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert re.findall(r'<section id="(\w+)"', text) == [
        "identity",
        "explore",
        "maps",
        "profile",
        "shares",
    ]
    assert "profile-weights" not in text  # the same numbers
    assert "StencilKernel" in text
    assert numbers["error"] <= 1e-6
    assert numbers["kernel error"] <= 1e-6
    assert numbers["variance"]["layer1.0.conv1"]["share"] == pytest.approx(1, abs=1e-6)


def test_the_page_of_a_recurrence_names_what_is_left_out(tmp_path):
    torch.manual_seed(0)
    model = Wrapped(nn.LSTM(6, 3, batch_first=True))
    text = report_module(model, "layer", SIGNAL, tmp_path, source="a test").read_text()
    assert "an offset (biases, initial state)" in text
    assert "causal" in text
    assert "LSTM of Wrapped from a test" in text


@pytest.mark.chromium
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: apt-get install chromium")
def test_the_page_renders_in_a_browser(tmp_path):
    page = report_module(resnet(), "layer1.1.conv1", IMAGES, tmp_path, samples=3)
    found, console = open_page(page, tmp_path, width=500)
    assert console == []
    assert found["drawn"] == found["pictures"] == str(len(list(tmp_path.glob("*.png"))))
    assert (found["requests"], found["overflow"]) == ("0", "false")


# --- Hugging Face ---------------------------------------------------------------------------------


def hugging_face(kind, **sizes):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes))


TEXT = {"vocab_size": 20, "num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": 8}
MODELS = {
    "bert": ("Bert", "encoder.layer.0.attention.self", {**TEXT, "intermediate_size": 8}),
    "gpt2": (
        "GPT2",
        "h.0.attn",
        {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 9},
    ),
    "llama": (
        "Llama",
        "layers.0.self_attn",
        {**TEXT, "intermediate_size": 8, "num_key_value_heads": 1},
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_attention_of_transformers_is_captured(name, padded):
    kind, path, sizes = MODELS[name]
    inputs = {"input_ids": torch.randint(20, (3, 7), generator=torch.Generator().manual_seed(3))}
    if padded:
        inputs["attention_mask"] = (torch.arange(7) < torch.tensor([[7], [4], [6]])).long()
    assert compare(hugging_face(kind, **sizes), path, inputs)[3] <= 1e-5


def test_square_masks_are_told_apart_by_their_names():
    """As many samples as points: (B, N) of transformers, (N, N) of torch."""
    u = torch.randn(3, 3, 4)
    mask = torch.arange(3) < torch.tensor([[3], [1], [2]])
    of_samples = _sequence(nn.Identity(), u, u, {"x": u, "attention_mask": mask.long()})
    assert of_samples.pairs.equal(mask[:, None, None].expand(-1, 1, 3, -1))
    of_pairs = _sequence(nn.Identity(), u, u, {"x": u, "attn_mask": mask})
    assert of_pairs.pairs.equal(mask)


def test_a_folder_of_hugging_face_is_explained(tmp_path):
    kind, path, sizes = MODELS["bert"]
    hugging_face(kind, **sizes).save_pretrained(tmp_path / "bert")
    page = explain_module(str(tmp_path / "bert"), path, samples=3)
    assert page.parent == tmp_path / "bert" / f"report-{path}"
    assert "random inputs, seed 0" in page.read_text()
    (tmp_path / "bert" / "model.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="cannot load"):
        load_model(str(tmp_path / "bert"))


# --- refusals -------------------------------------------------------------------------------------


def test_unknown_layers_are_refused_with_a_list():
    with pytest.raises(
        OptionError, match=r"did you mean 'layer1.0.conv[12]'\?\n(.|\n)*layer1.1.conv2 \(Conv2d\)"
    ):
        capture(resnet(), "layer1.0.conv", IMAGES)
    assert ("layer1.0.bn1", "BatchNorm2d") not in convertible_layers(resnet())
    with pytest.raises(OptionError, match="converted:\nnone"):
        capture(nn.Sequential(nn.ReLU()), "1", IMAGES)


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(ConversionError, match="BatchNorm2d is not understood"):
        report_module(resnet(), "layer1.0.bn1", IMAGES, tmp_path)
    with pytest.raises(ConversionError, match="was not called"):
        report_module(Unused(), "spare", SIGNAL, tmp_path)
    with pytest.raises(OptionError, match="samples=0"):
        report_module(resnet(), "conv1", IMAGES, tmp_path, samples=0)
    with pytest.raises(ConversionError, match="another key"):
        capture(attention(), "layer", (SIGNAL, SIGNAL[:2], SIGNAL[:2]))
    with pytest.raises(ConversionError, match="initial state hx"):
        capture(Wrapped(nn.GRU(6, 3)), "layer", (SIGNAL, torch.ones(1, 7, 3)))
    with pytest.raises(ConversionError, match="given Tensor and answered NoneType"):
        capture(Wrapped(Silent()), "layer", SIGNAL)
    assert not (tmp_path / "index.html").exists()


class Silent(nn.Module):
    def forward(self, x):
        return None


def test_an_operator_with_another_output_is_refused(tmp_path):
    """The output size of a transposed convolution changes the output, and the operator ignores it."""
    model = Wrapped(nn.ConvTranspose2d(3, 2, 3, stride=2))
    image = IMAGES
    with pytest.raises(ConversionError, match="answers"):
        report_module(model, "layer", (image, [18, 18]), tmp_path)
    call, operator, domain, _, _ = compare(Wrapped(nn.Conv1d(6, 2, 1)), "layer", SIGNAL.mT)
    operator.kernel.bias.data += 1.0
    with pytest.raises(ConversionError, match="differs from the layer by"):
        check_output(operator, call, domain, "layer")


# --- sources --------------------------------------------------------------------------------------


def test_models_load_by_name(tmp_path):
    model = load_model("tests.explain.layers:resnet")
    assert not model.training
    assert isinstance(load_model("tests.explain.layers:module_object"), nn.Sequential)
    for source, message in (
        ("tests.explain.layers:resent", "resent"),
        ("no.such.place:model", "no.such"),
        ("tests.explain.layers:no_module", "gives a int"),
        ("resnet", "package.module:factory"),
    ):
        with pytest.raises(OptionError, match=message):
            load_model(source)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_model(str(tmp_path))


def test_missing_and_unsafe_weights_are_refused(tmp_path):
    model, other = resnet(), resnet()
    nn.init.ones_(other.fc.weight)
    save_file(other.state_dict(), tmp_path / "weights.safetensors")
    torch.save({"state_dict": other.state_dict()}, tmp_path / "weights.pt")
    for name in ("weights.safetensors", "weights.pt"):
        loaded = load_model("tests.explain.layers:resnet", tmp_path / name)
        assert torch.equal(loaded.fc.weight, other.fc.weight)
    torch.save(model, tmp_path / "pickled.pt")
    save_file({"fc.weight": torch.ones(3, 6)}, tmp_path / "part.safetensors")
    for name, message in (
        ("pickled.pt", "weights_only|Weights only"),
        ("part.safetensors", "Missing"),
        ("none", "no weights"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_state(model, tmp_path / name)


def test_inputs_come_from_files_data_sets_or_random_numbers(tmp_path):
    model = resnet()
    np.save(tmp_path / "x.npy", IMAGES.double().numpy())
    save_file(
        {"input_ids": torch.ones(2, 3).long(), "attention_mask": torch.ones(2, 3)},
        tmp_path / "x.safetensors",
    )
    np.savez(tmp_path / "x.npz", image=IMAGES.numpy())
    for name in ("x.npy", "x.npz"):
        assert torch.equal(load_inputs(model, inputs=tmp_path / name)[0], IMAGES)
    assert sorted(load_inputs(model, inputs=tmp_path / "x.safetensors")[0]) == [
        "attention_mask",
        "input_ids",
    ]
    digits, phrase = load_inputs(model, data="digits", samples=3)
    assert (tuple(digits.shape), phrase) == ((3, 1, 8, 8), "the first 3 test samples of digits")
    first, again = (load_inputs(model, shape=(2, 5), seed=4)[0] for _ in range(2))
    assert torch.equal(first, again)
    with pytest.raises(OptionError, match="exclude one another"):
        load_inputs(model, data="digits", shape=(1,))
    with pytest.raises(OptionError, match="does not say what it takes"):
        load_inputs(model)
    (tmp_path / "x.txt").write_text("1")
    (tmp_path / "bad.npy").write_text("1")
    for name, message in (
        ("x.txt", "not .txt"),
        ("none.npy", "no inputs at"),
        ("bad.npy", "not a valid .npy file"),
    ):
        with pytest.raises(DataError, match=message):
            load_inputs(model, inputs=tmp_path / name)


@pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="pillow is not installed")
def test_an_image_is_preprocessed_for_the_model(tmp_path):
    from PIL import Image

    from .conftest import MEAN, STD, tiny_model

    model = tiny_model("softmax")
    model.extra = {"mean": MEAN, "std": STD}
    Image.new("RGB", (20, 10), (255, 255, 255)).save(tmp_path / "white.png")
    found, _ = load_inputs(model, inputs=tmp_path / "white.png")
    assert found.shape == (1, 1, 8, 8)
    assert found.mean() == pytest.approx((1 - MEAN[0]) / STD[0])
    assert load_inputs(model, samples=2)[0].shape == (2, 1, 8, 8)


@pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="pillow is not installed")
def test_a_picture_is_preprocessed_as_in_training(tmp_path):
    from PIL import Image

    from fredholm.lab.data.kinds.picture_files import read_picture, read_plain

    from .conftest import tiny_model

    model = tiny_model("softmax")
    model.extra = {"mean": [0.25], "std": [0.5]}
    ramp = np.linspace(0, 65_535, 128).round().astype(np.uint16).reshape(8, 16)
    exif = Image.Exif()
    exif[0x0112] = 6  # held sideways
    file = tmp_path / "ramp.png"
    Image.fromarray(ramp).save(file, exif=exif)
    found, _ = load_inputs(model, inputs=file)
    assert torch.equal(found[0], (read_plain(file, 1, (8, 8)) - 0.25) / 0.5)
    assert found[0].mean() == pytest.approx(0.5, abs=0.01), "all shades"
    assert found[0, 0, 0].diff().lt(0).all(), "turned"
    model = tiny_model("softmax")
    model.config = replace(model.config, encoder=replace(model.config.encoder, channels=3))
    model.extra = {"mean": [0.25], "std": [0.5], "fit": "cover"}
    found, phrase = load_inputs(model, inputs=file)
    assert torch.equal(found[0], (read_picture(file, (8, 8)) / 255 - 0.25) / 0.5), "cut"
    assert phrase == "inputs from ramp.png"
    model.extra = {"mean": [0.25, 0.25], "std": [0.5, 0.5]}
    with pytest.raises(DataError, match=r"3 channels.* and 2 means"):
        load_inputs(model, inputs=file)


@pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="pillow is not installed")
def test_a_picture_is_preprocessed_by_the_folders_processor(tmp_path):
    from PIL import Image

    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=8, image_size=8, patch_size=4)
    transformers.ViTModel(config).save_pretrained(tmp_path)
    Image.new("RGB", (8, 8), (255, 255, 255)).save(tmp_path / "white.png")

    def read():
        return load_inputs(load_model(str(tmp_path)), inputs=tmp_path / "white.png")

    found, phrase = read()
    assert found.unique().tolist() == [1.0]
    assert "a mean and a deviation of 0.5, which are assumed" in phrase
    scale = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.25, 0.5, 0.5]}
    for name, content in (
        ("processor_config.json", {"image_processor": scale}),
        ("preprocessor_config.json", {"do_normalize": True} | scale),
    ):
        (tmp_path / name).write_text(json.dumps(content))
        found, phrase = read()
        assert found[0, :, 0, 0].tolist() == pytest.approx([2.0, 1.2, 1.4])
        assert phrase == "inputs from white.png"
    (tmp_path / "preprocessor_config.json").write_text('{"do_normalize": false}')
    assert read()[0].unique().tolist() == [1.0]
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json: expected JSON"):
        read()


def test_a_folder_of_this_library_is_explained(tmp_path):
    from .conftest import tiny_model

    tiny_model("softmax").save_pretrained(tmp_path / "run" / "model")
    path = "body.blocks.0.feed_forward.expand"
    assert (
        explain_module(str(tmp_path / "run"), path, samples=3).parent
        == tmp_path / "run" / f"report-{path}"
    )
    with pytest.raises(OptionError, match="is an operator already"):
        explain_module(str(tmp_path / "run"), "body.blocks.0.operator")


def test_a_data_set_is_read_at_the_models_size():
    from fredholm import models
    from fredholm.lab import data

    small = data.create_dataset("digits", "test", image_size=16)
    model = models.create_model("backbone_nano", data=small.encoder())
    got, _ = load_inputs(model, data="digits", samples=2)
    assert torch.equal(got, small.batch([0, 1])[0])


def test_a_layer_that_runs_twice_is_explained_by_its_first_call(tmp_path):
    """A layer that continues from its own state starts without one only in its first call."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(4, 4, batch_first=True)

        def forward(self, x):
            y, state = self.layer(x)
            return self.layer(y, state)[0]

    page = report_module(Twice(), "layer", torch.randn(3, 5, 4), tmp_path)
    assert "LSTM of Twice" in page.read_text()
