"""Maps of pretrained vision transformers, against the attention weights of transformers."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch
from torch import Tensor, nn

from fredholm import Domain, as_operator
from fredholm.errors import ConversionError, DomainError, OptionError, ShapeError
from fredholm.explain import Samples, Traced, attention_quality, image_grid, image_maps, report
from fredholm.explain.kernels import class_token
from fredholm.lab.cli.main import main
from fredholm.lab.report.sources import input_size
from fredholm.linearization.transformers_folder import picture_scale

from ..tolerances import assert_close

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
SIZES |= {"intermediate_size": 24, "image_size": (28, 42), "patch_size": 7}
ROWS, COLUMNS = 4, 6
KINDS = {"Dinov2": 1, "ViT": 1, "DeiT": 2, "Dinov2WithRegisters": 5}  # tokens before the patches
SQUARE = "Dinov2", "Dinov2WithRegisters"  # of transformers, at the size that they are built for


def classifier(kind: str, head: str = "ForImageClassification", **sizes):
    library = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = ({"image_size": 28} if kind in SQUARE else {}) | sizes
    config = getattr(library, f"{kind}Config")(**SIZES | sizes, num_labels=3)
    config._attn_implementation = "eager"
    model = getattr(library, f"{kind}{head}")(config).eval()
    for parameter in model.parameters():  # fresh ones would attend to all patches alike
        nn.init.normal_(parameter, std=0.3)
    return model


def pictures(count: int = 3, columns: int = COLUMNS) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, 7 * ROWS, 7 * columns, generator=generator)


class Plain(nn.Module):
    """A vision transformer of torch's layers. It may read half of the patches, have one more token
    behind them, or mask some. Another strided convolution precedes its patch embedding.
    """

    def __init__(self, windows: bool = False, after: bool = False, masked: bool = False):
        super().__init__()
        self.windows, self.after, self.masked = windows, after, masked
        self.coarse = nn.Conv2d(3, 4, 14, stride=14)
        self.patches = nn.Conv2d(3, 8, 7, stride=7)
        self.norm = nn.LayerNorm(8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        scale = 1 + 0 * self.coarse(images).mean()
        u = self.norm(scale * self.patches(images).flatten(2).mT)
        u = u[:, : u.shape[1] // 2] if self.windows else u
        u = torch.cat([u, u[:, :1] * 0 + 1], 1) if self.after else u
        hidden = torch.zeros(u.shape[:2], dtype=torch.bool)
        hidden[:, -2:] = True
        u = self.encoder(u, src_key_padding_mask=hidden if self.masked else None)
        return self.head(u.mean(1))


@pytest.mark.parametrize("kind", KINDS)
def test_maps_equal_the_attention_of_transformers(kind):
    columns = ROWS if kind in SQUARE else COLUMNS
    model = classifier(kind)
    images = pictures(columns=columns)
    before = KINDS[kind]
    with torch.no_grad():
        attentions = model(images, output_attentions=True).attentions
    means = [one.double().mean(1) for one in attentions]
    taken = means[-1][:, 0, before:]
    expected = (taken / taken.sum(1, keepdim=True)).view(3, ROWS, columns)
    assert_close(image_maps(model, images), expected, dtype=torch.float32)
    # Rollout by its definition: half of each layer stays.
    walk = torch.eye(means[0].shape[1], dtype=torch.float64)
    for one in means:
        walk = (0.5 * torch.eye(len(walk[0]), dtype=torch.float64) + 0.5 * one) @ walk
    taken = walk[:, 0, before:]
    expected = (taken / taken.sum(1, keepdim=True)).view(3, ROWS, columns)
    found = image_maps(model, images, method="rollout")
    assert_close(found, expected, dtype=torch.float32)
    assert image_maps(model, images, method="incoming").shape == (3, ROWS, columns)


def test_the_operator_of_a_layer_equals_the_layer():
    model = classifier("Dinov2WithRegisters")
    images = pictures(columns=ROWS)
    seen = Traced(model).trace(images)
    assert len(seen) == 2
    for operator, u, domain in seen:
        assert u.shape == (3, 5 + ROWS * ROWS, 16)
        assert class_token(domain) == 0
        grid = image_grid(domain)
        assert grid is not None
        assert grid.tolist()[0] == [5, 6, 7, 8]
        weights = operator.weights(u, domain)
        assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_quality_is_measured_on_the_maps():
    model = classifier("ViT")
    images = pictures(5)
    masks = torch.zeros(5, 28, 42, dtype=torch.bool)
    masks[:, 7:21, 7:28] = True
    found = attention_quality(model, images, masks=masks, steps=3)
    assert set(found.maps) == {"attention", "rollout", "incoming"}
    inside = found.maps["attention"][:, 1:3, 1:4].sum((1, 2))
    assert_close(found.localisation["attention"]["mask"]["mass"], inside)
    curve = found.degradation["attention"].curves["morf"]
    with torch.no_grad():
        logits = model(images).logits
        gone = model(torch.zeros_like(images)).logits
    chosen = logits.argmax(1, keepdim=True)
    expected = gone.softmax(1).gather(1, chosen) / logits.softmax(1).gather(1, chosen)
    assert_close(curve[:, -1:].float(), expected)


def test_torchs_layers_have_maps_and_are_not_changed():
    torch.manual_seed(0)
    model = Plain().train()
    images = pictures()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert image_maps(model, images).shape == (3, ROWS, COLUMNS)
    assert model.training
    assert all(model.state_dict()[name].equal(tensor) for name, tensor in before.items())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
@pytest.mark.parametrize("registers", [0, 4])
def test_maps_equal_the_attention_of_timm(registers):
    from evidence.unification.attention import timm_layers

    timm_layers()
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    sizes = {"embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3, "init_values": 1.0}
    size = {"img_size": (7 * ROWS, 7 * COLUMNS), "patch_size": 7, "reg_tokens": registers}
    model = VisionTransformer(**sizes, **size).eval()
    images = pictures()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    found = image_maps(model, images)
    seen = []
    attention = model.blocks[-1].attn
    attention.fused_attn = False  # its weights are then what dropout reads
    attention.attn_drop.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    with torch.no_grad():
        model(images)
    taken = seen[0].double().mean(1)[:, 0, 1 + registers :]
    expected = (taken / taken.sum(1, keepdim=True)).view(3, ROWS, COLUMNS)
    assert_close(found, expected, dtype=torch.float32)


def test_a_backbone_has_maps_but_no_removal_curves(tmp_path):
    library = pytest.importorskip("transformers")
    model = library.CLIPVisionModel(library.CLIPVisionConfig(**SIZES | {"image_size": 28})).eval()
    images = pictures(columns=ROWS)
    assert image_maps(model, images).shape == (3, 4, 4)
    assert attention_quality(model, images, steps=0).degradation == {}
    with pytest.raises(ShapeError, match="needs a model with a classifier; without one take"):
        attention_quality(model, images, steps=2)
    text = report(model, Samples(images), out_dir=tmp_path).read_text()
    assert "<title>What CLIPVisionModel learned</title>" in text
    assert "CLIPVisionModel, 2 layers of softmax attention" in text
    assert "Attention maps" in text
    assert "Removing patches" not in text


def test_models_of_pictures_and_texts_are_explained_by_their_vision_tower(tmp_path, capsys):
    library = pytest.importorskip("transformers")
    vision = SIZES | {"image_size": 28}
    texts = {k: v for k, v in SIZES.items() if k not in ("image_size", "patch_size")}
    texts |= {"vocab_size": 9, "max_position_embeddings": 8, "eos_token_id": 8}
    config = library.CLIPConfig(vision_config=vision, text_config=texts)
    library.CLIPModel(config).save_pretrained(tmp_path / "clip")
    given = ["--shape", "2,3,28,28", "--out", str(tmp_path / "page")]
    assert main(["explain", str(tmp_path / "clip"), *given]) == 0
    text = (tmp_path / "page" / "index.html").read_text()
    assert "2 layers of softmax attention" in text
    numbers = json.loads((tmp_path / "page" / "numbers.json").read_text())
    assert numbers["attention"]["skipped"] == {}


def test_models_without_maps_are_refused():
    with pytest.raises(OptionError, match="Linear has no layer of attention that as_operator"):
        image_maps(nn.Linear(2, 2), torch.zeros(1, 2))
    for model, message in (
        (Plain(windows=True), "found no convolution whose outputs, its patches, are points of"),
        (Plain(after=True), "no points behind them"),
        (Plain(masked=True), "was called with a mask"),
    ):
        with pytest.raises(DomainError, match=message):
            image_maps(model, pictures())
    with pytest.raises(OptionError, match="layer: received 5; needs one of 2"):
        image_maps(Plain(), pictures(), layer=5)
    model = classifier("ViT")
    layer = model.vit.layers[0].attention
    forward = layer.forward
    layer.forward = lambda u, **given: (2.0 * forward(u, **given)[0], None)
    with pytest.raises(ConversionError, match="has its forward replaced on the instance"):
        image_maps(model, pictures())


def test_a_converted_model_is_refused():
    """Maps of softmax would belong to another model."""
    from fredholm import linearize

    model = linearize(classifier("ViT"), "luna").model
    with pytest.raises((ConversionError, OptionError)):
        image_maps(model, pictures())


def test_tokens_before_the_patches_are_counted():
    grid = Domain.grid(2, 3)
    middle = torch.full((1, 2), 0.5)
    for count in (1, 2, 5):
        domain = Domain.join(Domain.points(middle.expand(count, 2)), grid)
        found = image_grid(domain)
        assert found is not None
        assert found.flatten().tolist() == list(range(count, count + 6))
        assert class_token(domain) == 0
    apart = Domain.join(Domain.points(torch.tensor([[0.1, 0.2], [0.5, 0.5]])), grid)
    assert image_grid(apart) is None
    assert class_token(apart) is None


def test_the_command_line_explains_a_folder_of_transformers(tmp_path, capsys):
    folder, page = tmp_path / "vit", tmp_path / "page"
    classifier("ViT", image_size=28).save_pretrained(folder)
    facts = {"do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    facts |= {"size": {"height": 28, "width": 28}}
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    assert main(["explain", str(folder), "--data", "digits", "--out", str(page)]) == 2
    assert "have 1 channels; ViTForImageClassification needs 3" in capsys.readouterr().err
    given = ["--shape", "4,3,28,28", "--out", str(page)]
    assert main(["explain", str(folder), *given]) == 0
    assert capsys.readouterr().out == f"report: {page / 'index.html'}\n"
    text = (page / "index.html").read_text()
    assert "Where vit looks: random normal numbers (4, 3, 28, 28)" in text
    assert "Removing patches" in text
    numbers = json.loads((page / "numbers.json").read_text())
    assert numbers["attention"]["degradation"]["rollout"]["morf"]["n"] == 4
    # Without --module, flags of runs are refused.
    assert main(["explain", str(tmp_path), "--shape", "4,3,28,28"]) == 2


def test_folders_of_other_models_are_refused_with_advice(tmp_path, capsys):
    library = pytest.importorskip("transformers")
    sizes = {key: SIZES[key] for key in ("num_hidden_layers", "num_attention_heads", "hidden_size")}
    library.BertModel(library.BertConfig(vocab_size=9, **sizes)).save_pretrained(tmp_path / "bert")
    assert main(["explain", str(tmp_path / "bert")]) == 2
    assert (
        "its page is one of pictures (N, C, H, W), got several tensors" in capsys.readouterr().err
    )
    folder = tmp_path / "vit"
    classifier("ViT", image_size=30).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"do_normalize": false}')
    assert main(["explain", str(folder), "--shape", "2,3,30,30", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "index.html").read_text()
    assert "No attention maps: the grid of 4x4 points does not divide images of 30x30" in text


@pytest.mark.parametrize(
    ("said", "size"),
    [
        ({"size": {"height": 24, "width": 32}}, (24, 32)),
        ({"size": 24}, (24, 24)),
        ({"size": {"shortest_edge": 24}}, None),
        ({"size": 30, "do_center_crop": True, "crop_size": {"height": 24, "width": 24}}, (24, 24)),
        ({"size": {"height": 30, "width": 30}, "crop_size": 24, "do_center_crop": False}, (30, 30)),
        ({"size": 30, "crop_size": 24}, (24, 24)),
    ],
)
def test_the_crop_size_is_read_from_the_processor(said, size, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    facts = picture_scale(tmp_path)
    assert facts.get("picture_size") == size
    model = Plain()
    model.extra = facts
    assert input_size(model) == size


def test_both_files_of_a_processor_are_read(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"size": 24}')
    scale = {"image_mean": [0.1], "image_std": [0.2]}
    text = json.dumps({"image_processor": scale | {"size": 30}})
    (tmp_path / "processor_config.json").write_text(text)
    assert picture_scale(tmp_path) == {"picture_size": (24, 24), "mean": [0.1], "std": [0.2]}


def test_nested_attention_is_captured_once():
    model = classifier("Dinov2")
    assert Traced(model).paths == [f"dinov2.encoder.layer.{i}.attention" for i in (0, 1)]
    assert as_operator(model.dinov2.encoder.layer[0].attention).has_weights
