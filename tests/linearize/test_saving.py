"""Converted models are saved in the source's format and load strictly with identical logits in a
fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from fredholm.convert import load_linearized, replace_attention, save_linearized
from fredholm.errors import CheckpointError, ConversionError

from . import models

pytest.importorskip("transformers")

FRESH = """
import sys, torch
from fredholm.convert import load_linearized
folder = sys.argv[1]
inputs = torch.load(folder + "/inputs.pt")
with torch.no_grad():
    torch.save(load_linearized(folder)(**inputs).logits, folder + "/logits.pt")
"""


def test_a_fresh_process_gives_identical_logits(tmp_path):
    replaced = replace_attention(models.bert(), "performer", options={"features": 12})
    inputs = models.padded()
    save_linearized(replaced, tmp_path)
    torch.save(inputs, tmp_path / "inputs.pt")
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        assert torch.load(tmp_path / "logits.pt").equal(replaced.model(**inputs).logits)


@pytest.mark.parametrize("build", [models.gpt2, models.llama, models.vit])
def test_image_and_text_models_load_with_identical_logits(build, tmp_path):
    replaced = replace_attention(build(), "luna", tied=False)
    inputs = {"pixel_values": torch.randn(2, 3, 8, 8)} if build is models.vit else models.padded()
    loaded = load_linearized(save_linearized(replaced, tmp_path))
    with torch.no_grad():
        assert loaded(**inputs).logits.equal(replaced.model(**inputs).logits)


@pytest.mark.parametrize("build", [models.torch_encoder, models.timm_like])
def test_modules_load_into_a_new_one_of_their_class(build, tmp_path):
    replaced = replace_attention(build(), "t2r")
    x = torch.randn(2, 5, 16)
    save_linearized(replaced, tmp_path)
    with pytest.raises(ConversionError, match=r"model=\.\.\.\), a fresh one"):
        load_linearized(tmp_path)
    fresh = build()
    for parameter in fresh.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        assert load_linearized(tmp_path, fresh)(x).equal(replaced.model(x))


@pytest.mark.parametrize("to", ["luna", "hedgehog", "infsa", "linear_infsa"])
def test_models_of_fredholm_load_as_ordinary_ones(to, tmp_path):
    from fredholm.models import from_pretrained

    replaced = replace_attention(models.own(), to)
    x = torch.randn(2, 1, 8, 8)
    save_linearized(replaced, tmp_path)
    with torch.no_grad():
        expected = replaced.model(x)
        for loaded in (load_linearized(tmp_path), from_pretrained(tmp_path)):
            torch.testing.assert_close(
                loaded(x), expected
            )  # the alignment of a file's weights changes the rounding
            assert all(
                torch.equal(weight, replaced.model.state_dict()[name])
                for name, weight in loaded.state_dict().items()
            )


def test_class_names_means_and_vocabulary_are_saved(tmp_path):
    """Without them pictures would not be normalised."""
    from fredholm.models import from_pretrained, save_pretrained

    facts = {"classes": ["a", "b", "c"], "mean": [0.13], "std": [0.31], "vocabulary": {"x": 1}}
    source = from_pretrained(save_pretrained(models.own(), tmp_path / "source", **facts))
    replaced = replace_attention(source, "hedgehog", copied=False)
    assert replaced.model.extra == source.extra == facts
    assert replaced.model.extra is not source.extra
    assert load_linearized(save_linearized(replaced, tmp_path / "converted")).extra == facts


def test_missing_and_unknown_weights_are_refused(tmp_path):
    save_linearized(replace_attention(models.bert()), tmp_path)
    weights, adapter = (
        tmp_path / n for n in ("fredholm_linear.safetensors", "linear_attention.json")
    )
    whole = load_file(weights)
    text = adapter.read_text()
    mapped = next(name for name in whole if ".linear_heads." in name)
    kept = next(name for name in whole if name.endswith("layer.0.attention.self.query.weight"))

    def write(tensors):
        save_file(tensors, weights, {"format": "pt"})

    for name, message in ((mapped, "missing"), (kept, "query")):
        write({key: value for key, value in whole.items() if key != name})
        with pytest.raises(CheckpointError, match=message):
            load_linearized(tmp_path)
        write({**whole, name: torch.zeros(3)})
        with pytest.raises(CheckpointError, match=r"of another shape|mismatched"):
            load_linearized(tmp_path)
    write({**whole, "stray": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="stray"):
        load_linearized(tmp_path)
    weights.write_bytes(weights.read_bytes()[:40])
    with pytest.raises(CheckpointError, match="corrupt or truncated"):
        load_linearized(tmp_path)
    write(whole)

    for broken, message in (
        ("{", "no description"),
        (json.dumps({"format": 2}), "lacks"),
        (json.dumps({"format": 9}), "format 9"),
    ):
        adapter.write_text(broken)
        with pytest.raises(CheckpointError, match=message):
            load_linearized(tmp_path)
    adapter.write_text(text)
    assert load_linearized(tmp_path) is not None
    with pytest.raises(CheckpointError, match=r"no linear_attention\.json"):
        load_linearized(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["fredholm_linear.safetensors", "config.json"])
def test_a_damaged_file_is_refused(name, tmp_path):
    save_linearized(replace_attention(models.bert()), tmp_path)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    if name == "config.json":
        place = content.index(b'"layer_norm_eps": 1') + len('"layer_norm_eps": ')
    else:
        place = len(content) - 2  # within the last weight
    content[place] ^= 2
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="checksum"):
        load_linearized(tmp_path)


def test_a_folder_of_the_first_format_is_refused_by_name(tmp_path):
    """It had a softmax model of transformers and the feature maps beside it."""
    save_linearized(replace_attention(models.bert()), tmp_path)
    path = tmp_path / "linear_attention.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    with pytest.raises(CheckpointError, match="expected format 2, got format 1; read it with the"):
        load_linearized(tmp_path)


def test_a_damaged_description_is_refused(tmp_path):
    save_linearized(replace_attention(models.bert()), tmp_path)
    path = tmp_path / "linear_attention.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps(saved | {"tied": not saved["tied"]}))
    with pytest.raises(CheckpointError, match="expected the content that its checksum says"):
        load_linearized(tmp_path)
    for key in ("sha256", "configuration"):  # as the error message advises
        del saved[key]
    path.write_text(json.dumps(saved))
    assert load_linearized(tmp_path) is not None


class Shared(torch.nn.Module):
    """A module with one attention at two places, and another one."""

    def __init__(self):
        super().__init__()
        self.a, self.other = (torch.nn.MultiheadAttention(8, 2, batch_first=True) for _ in "ab")
        self.b = self.a

    def forward(self, x):
        for attention in (self.a, self.other, self.b):
            x = x + attention(x, x, x)[0]
        return x


def test_one_attention_at_two_places_stays_shared(tmp_path):
    torch.manual_seed(0)
    source = Shared().eval()
    x = torch.randn(2, 5, 8)
    replaced = replace_attention(source, "hedgehog", tied=False)
    model = replaced.model
    assert model.a is model.b
    assert type(model.a) is type(model.other) is not torch.nn.MultiheadAttention
    assert [layer.name for layer in replaced.layers] == ["a", "other"]
    with torch.no_grad(), replaced.mode("softmax"):
        torch.testing.assert_close(model(x), source(x))
    torch.nn.init.normal_(next(iter(replaced.new_parameters().values())))
    loaded = load_linearized(save_linearized(replaced, tmp_path), Shared())
    assert loaded.a is loaded.b
    with torch.no_grad():
        assert loaded(x).equal(model(x))
    separate = Shared()
    separate.b = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    with pytest.raises((CheckpointError, ConversionError)):
        load_linearized(tmp_path, separate)


def test_a_single_attention_can_be_saved(tmp_path):
    source = torch.nn.MultiheadAttention(16, 2).eval()
    x = torch.randn(5, 2, 16)
    replaced = replace_attention(source, "t2r")
    assert [layer.name for layer in replaced.layers] == [""]
    save_linearized(replaced, tmp_path)
    loaded = load_linearized(tmp_path, torch.nn.MultiheadAttention(16, 2))
    with torch.no_grad():
        assert loaded(x, x, x)[0].equal(replaced.model(x, x, x)[0])
