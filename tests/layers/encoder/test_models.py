"""Complete models as an evolution of their layers and final norm, from embeddings to the last
hidden state; and saved evolutions.
"""

from __future__ import annotations

import importlib
import importlib.util

import pytest
import torch
from torch import nn

from fredholm.errors import ConversionError, OptionError
from fredholm.layers.encoder import from_encoder
from fredholm.layers.encoder.encoder_evolution import EncoderEvolution
from fredholm.models.pretrained import from_pretrained

from ...tolerances import assert_close

D = 8
TEXT = {
    "vocab_size": 11,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
IMAGE = {k: v for k, v in TEXT.items() if k != "vocab_size"} | {"image_size": 4, "patch_size": 2}
MODELS = {
    "BertModel": ("bert", TEXT),
    "RobertaModel": ("roberta", TEXT),
    "ElectraModel": ("electra", TEXT | {"embedding_size": 6}),
    "XLMRobertaModel": ("xlm_roberta", TEXT),
    "ViTModel": ("vit", IMAGE),
    "DeiTModel": ("deit", IMAGE),
    "CLIPVisionModel": ("clip", IMAGE),
}


def make(name: str) -> nn.Module:
    package = importlib.import_module(f"transformers.models.{MODELS[name][0]}")
    config = getattr(package, name.replace("Model", "Config"))
    model = getattr(package, name)(config(**MODELS[name][1]))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


@pytest.mark.parametrize("name", MODELS)
def test_an_evolution_maps_embeddings_to_the_last_hidden_state(name):
    pytest.importorskip("transformers")
    model = make(name)
    inputs = torch.randint(11, (3, 6)) if "vocab_size" in MODELS[name][1] else None
    inputs = torch.randn(3, 3, 4, 4).double() if inputs is None else inputs
    u = model.embeddings(inputs)
    for part in ("embeddings_project", "pre_layrnorm"):
        u = getattr(model, part)(u) if hasattr(model, part) else u
    evolution = from_encoder(model)
    assert_close(evolution(u), model(inputs).last_hidden_state)
    assert evolution.horizon == 2
    expected = sum(p.numel() for p in evolution.parameters())
    assert expected < sum(p.numel() for p in model.parameters())  # without embeddings


def test_heads_and_decoders_are_refused_by_name():
    bert = pytest.importorskip("transformers.models.bert")
    config = bert.BertConfig(**TEXT)
    with pytest.raises(ConversionError, match="BertForMaskedLM is not an encoder layer"):
        from_encoder(bert.BertForMaskedLM(config).eval())
    config.is_decoder = True
    with pytest.raises(ConversionError, match="BertLayer as a decoder"):
        from_encoder(bert.BertModel(config).eval())


def test_patched_and_hooked_models_are_refused():
    pytest.importorskip("transformers")
    model = make("BertModel")
    model.forward = lambda *a, **k: None
    with pytest.raises(ConversionError, match="BertModel has its forward replaced"):
        from_encoder(model)
    model = make("ViTModel")
    model.register_forward_hook(lambda *a: None)
    with pytest.raises(ConversionError, match="ViTModel has hooks"):
        from_encoder(model)
    model = make("BertModel")
    layer = model.encoder.layer[1].output.dense
    layer.forward = lambda u: 2 * nn.Linear.forward(layer, u)
    with pytest.raises(ConversionError, match="forward replaced"):
        from_encoder(model)


def test_a_patched_class_is_refused(monkeypatch):
    layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True).eval()
    network = nn.TransformerEncoderLayer._ff_block
    monkeypatch.setattr(
        nn.TransformerEncoderLayer, "_ff_block", lambda self, x: 1.5 * network(self, x)
    )
    with pytest.raises(ConversionError, match=r"TransformerEncoderLayer .*off by .*%"):
        from_encoder(layer)
    from_encoder(layer, probe=False)


def test_the_probe_changes_no_random_state_gradient_or_mode():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0), 2).train()
    state = torch.get_rng_state()
    with torch.random.fork_rng():
        from_encoder(encoder, probe=False)
        without = torch.get_rng_state()
    from_encoder(encoder)
    assert torch.equal(torch.get_rng_state(), without)
    assert not torch.equal(state, without)  # new terms draw their initial values
    assert all(p.grad is None for p in encoder.parameters())
    assert encoder.training


def timm_model(**options):
    from evidence.unification.attention import timm_layers

    timm_layers()
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 4, "patch_size": 2, "embed_dim": D, "depth": 2, "num_heads": 2}
    return VisionTransformer(num_classes=3, **sizes, **options).double().eval()


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
def test_a_vision_transformer_of_timm_equals_its_evolution():
    model = timm_model()
    images = torch.randn(2, 3, 4, 4).double()
    u = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    assert_close(from_encoder(model)(u), model.forward_features(images))
    for options, match in (
        ({"init_values": 1e-2}, "ls1 is a LayerScale"),
        ({"qk_norm": True}, "q_norm"),
    ):
        with pytest.raises(ConversionError, match=match):
            from_encoder(timm_model(**options))


# --- folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_first": True, "activation": "gelu"},
        {"bias": False, "layer_norm_eps": 0.3},
    ],
    ids=["post", "pre", "no bias"],
)
@pytest.mark.parametrize("shared", [False, True])
def test_a_saved_evolution_loads_with_equal_outputs(tmp_path, options, shared):
    layer = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0, batch_first=True, **options)
    encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(D, eps=0.1)).double()
    if shared:
        encoder.layers = nn.ModuleList([encoder.layers[0]] * 3)
    evolution = from_encoder(encoder)
    u = torch.randn(2, 5, D).double()
    evolution.save_pretrained(tmp_path)
    found = EncoderEvolution.from_pretrained(tmp_path)
    assert torch.equal(found(u), evolution(u))
    assert not found.training
    assert from_pretrained(tmp_path, overrides={"steps": 6}).steps == 6


def test_the_current_scheme_and_steps_are_saved(tmp_path):
    from fredholm.families.continuous.splitting import Strang
    from fredholm.families.continuous.splitting.schemes import Hybrid

    evolution = from_encoder(nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0, norm_first=True))
    evolution.scheme = Strang()
    evolution.steps = 4
    evolution.save_pretrained(tmp_path)
    found = EncoderEvolution.from_pretrained(tmp_path)
    u = torch.randn(2, 5, D)
    assert (str(found.scheme), found.steps) == ("Strang()", 4)
    assert torch.equal(found(u), evolution(u))
    evolution.scheme = "parallel"
    evolution.save_pretrained(tmp_path)
    assert str(EncoderEvolution.from_pretrained(tmp_path).scheme) == "Parallel()"
    evolution.scheme = Hybrid(groups=((0, 1),))
    with pytest.raises(OptionError, match=r"Hybrid.* has no name"):
        evolution.save_pretrained(tmp_path)


def test_saving_an_unnamed_activation_is_refused(tmp_path):
    layer = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0, activation=nn.Hardswish())
    with pytest.raises(OptionError, match=r"activation of knot 0 is a module without a name"):
        from_encoder(layer).save_pretrained(tmp_path)
