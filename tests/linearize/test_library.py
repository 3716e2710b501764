"""Models of transformers: which are converted, which are refused and why, and attention weights of
converted models.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from fredholm.convert import load_linearized, replace_attention, save_linearized
from fredholm.errors import ConversionError

from . import models
from .library import IMAGE, SIZES, clip, inputs, library

pytest.importorskip("transformers")


@cache
def source(name: str):
    """Return a model shared by tests: conversions copy it."""
    builders = {"clip": clip, "bert": models.bert, "gpt2": models.gpt2, "llama": models.llama}
    return builders[name]() if name in builders else library(name)


@torch.no_grad()
def first(model, arguments):
    out = model(**arguments)
    return out.logits if hasattr(out, "logits") else out[0]


def check_teacher_inside(replaced, model, arguments):
    """Check that the softmax mode equals the source and the linear mode does not."""
    expected = first(model, arguments)
    with replaced.mode("softmax"):
        torch.testing.assert_close(first(replaced.model, arguments), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(first(replaced.model, arguments), expected, atol=1e-3)


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["swin", "beit", "beit shared"])
def test_relative_position_biases_are_refused(name):
    with pytest.raises(ConversionError, match=r"layers\.0\.\S*attention: asks for a relative pos"):
        replace_attention(source(name))
    with pytest.raises(ConversionError, match="none of its attention can be converted"):
        replace_attention(source(name), keep_refused=True)


def test_a_model_without_its_position_bias_is_converted():
    replaced = replace_attention(source("beit plain"), "hedgehog")
    assert len(replaced.layers) == 2
    check_teacher_inside(replaced, source("beit plain"), inputs("beit plain"))


def test_models_without_a_known_example_need_inputs():
    with pytest.raises(ConversionError, match=r"reads pixel_values, .* inputs={'pixel_values'"):
        replace_attention(source("videomae"))
    replaced = replace_attention(source("videomae"), "elu", inputs=inputs("videomae"))
    assert len(replaced.layers) == 2


def test_wrong_example_inputs_are_refused():
    with pytest.raises(ConversionError, match=r"cannot be called on the inputs given, pixels"):
        replace_attention(source("bert"), inputs={"pixels": torch.zeros(1)})


def test_a_converted_model_is_not_converted_again():
    with pytest.raises(ConversionError, match="was converted already; convert its source"):
        replace_attention(replace_attention(source("bert"), "elu").model)


# --- special inputs -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "layers"), [("albert", 1), ("clip", 4), ("wav2vec2", 2)])
def test_models_with_special_inputs_are_converted(name, layers):
    replaced = replace_attention(source(name), "hedgehog")
    assert len(replaced.layers) == layers
    check_teacher_inside(replaced, source(name), inputs(name))


def test_losses_of_shared_layers_average_their_calls():
    replaced = replace_attention(source("albert"), "luna")
    with torch.no_grad(), replaced.mode("distil"):
        replaced.model(**inputs("albert"))
        (part,) = replaced.parts.values()
        assert len(part.noted.values) == 2
        both = torch.stack(part.noted.values).mean()
        (loss,) = replaced.losses().values()
        assert loss == both
        replaced.model(**inputs("albert"))
        (again,) = replaced.losses().values()
        assert again == loss, "a pass that was read is over"


# --- encoders of encoder-decoders -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["whisper", "bart"])
def test_the_encoder_of_an_encoder_decoder_is_converted_alone(name, tmp_path):
    model = source(name)
    with pytest.raises(ConversionError, match=r"layers=\['\*encoder\.\*'\] beside it its encoder"):
        replace_attention(model)
    replaced = replace_attention(model.get_encoder(), "hedgehog")
    assert [x.name for x in replaced.layers] == ["layers.0.self_attn", "layers.1.self_attn"]
    check_teacher_inside(replaced, model.get_encoder(), inputs(name))
    loaded = load_linearized(save_linearized(replaced, tmp_path))
    assert first(loaded, inputs(name)).equal(first(replaced.model, inputs(name)))


@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("name", ["whisper", "bart"])
def test_converting_only_the_encoder_is_saved_with_the_model(name, base, tmp_path):
    """The saved model contains the conversion."""
    whole = library(name)
    model = whole.base_model if base else whole
    prefix = "" if base else "model."
    options = {"layers": ["*encoder.*"], "keep_refused": True}
    replaced = replace_attention(model, "hedgehog", **options)
    found = [f"{prefix}encoder.layers.{i}.self_attn" for i in range(2)]
    assert [x.name for x in replaced.layers] == found
    arguments = inputs(name) | {"decoder_input_ids": torch.arange(2, 6).expand(2, -1)}
    check_teacher_inside(replaced, model, arguments)
    loaded = load_linearized(save_linearized(replaced, tmp_path))
    with torch.no_grad():
        assert first(loaded, arguments).equal(first(replaced.model, arguments))


@pytest.mark.parametrize("copied", [True, False])
def test_a_converted_encoder_runs_inside_its_model(copied):
    model = library("bart")
    arguments = inputs("bart")
    replaced = replace_attention(model.get_encoder(), "hedgehog", copied=copied)
    if copied:
        model.model.encoder = replaced.model
    both = {**arguments, "decoder_input_ids": arguments["input_ids"][:, :5]}
    assert not torch.allclose(first(model, both), first(source("bart"), both), atol=1e-3)
    with replaced.mode("softmax"):
        torch.testing.assert_close(first(model, both), first(source("bart"), both))
    kept = {"max_new_tokens": 4, "do_sample": False}
    with torch.no_grad():
        assert model.generate(**arguments, **kept).equal(
            model.generate(**arguments, **kept, use_cache=False)
        )


@pytest.mark.parametrize("name", ["whisper", "bart"])
def test_encoder_and_decoder_are_converted_together(name, tmp_path):
    """Cross attention stays softmax; the decoder has a window and a state."""
    arguments = inputs(name)
    kept = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    arguments.pop("decoder_input_ids", None)
    replaced = replace_attention(library(name), "hedgehog", keep_refused=True, window=3)
    side = ("encoder", "decoder")
    found = [f"model.{x}.layers.{i}.self_attn" for x in side for i in range(2)]
    assert [x.name for x in replaced.layers] == found
    assert list(replaced.refused) == [f"model.decoder.layers.{i}.encoder_attn" for i in range(2)]
    assert [part.window for part in replaced.parts.values()] == [None, None, 3, 3]
    with torch.no_grad():
        out = replaced.model.generate(**arguments, **kept)
        assert out.equal(replaced.model.generate(**arguments, **kept, use_cache=False))
        with replaced.mode("softmax"):
            assert replaced.model.generate(**arguments, **kept, use_cache=False).equal(
                library(name).generate(**arguments, **kept)
            )
        loaded = load_linearized(save_linearized(replaced, tmp_path))
        assert loaded.generate(**arguments, **kept).equal(out)


def test_attention_that_the_example_does_not_reach_is_named():
    decoder = source("bart").get_decoder()
    with pytest.raises(ConversionError, match=r"layers\.0\.encoder_attn: was not reached"):
        replace_attention(decoder)
    replaced = replace_attention(decoder, keep_refused=True, window=None)
    assert [x.name for x in replaced.layers] == ["layers.0.self_attn", "layers.1.self_attn"]
    states = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(0))
    check_teacher_inside(replaced, decoder, inputs("bart") | {"encoder_hidden_states": states})


# --- windows --------------------------------------------------------------------------------------

WINDOWED = {
    "modernbert": ("layers.1.attn", "layers.0.attn"),
    "gemma2 uncapped": ("model.layers.0.self_attn", "model.layers.1.self_attn"),
    "gemma3": ("model.layers.0.self_attn", "model.layers.1.self_attn"),
    "qwen2": ("model.layers.1.self_attn", "model.layers.0.self_attn"),
}


@pytest.mark.parametrize("name", WINDOWED)
def test_sliding_windows_are_refused_beside_convertible_layers(name):
    window, full = WINDOWED[name]
    with pytest.raises(ConversionError, match=rf"\({window}: asks for a sliding window\)"):
        replace_attention(source(name))
    for options in ({"keep_refused": True}, {"layers": [full]}):
        replaced = replace_attention(source(name), "hedgehog", window=None, **options)
        assert [layer.name for layer in replaced.layers] == [full]
        check_teacher_inside(replaced, source(name), inputs(name))
    with pytest.raises(ConversionError, match="asks for a sliding window"):
        replace_attention(source(name), layers=[window])


@pytest.mark.parametrize("name", ["gemma3", "qwen2"])
def test_sliding_windows_survive_saving_and_generation(name, tmp_path):
    replaced = replace_attention(source(name), "hedgehog", keep_refused=True)
    loaded = load_linearized(save_linearized(replaced, tmp_path))
    arguments = inputs(name)
    assert first(loaded, arguments).equal(first(replaced.model, arguments))
    ids = arguments["input_ids"][:1]
    options = {"max_new_tokens": 6, "do_sample": False}
    with torch.no_grad():
        assert loaded.generate(ids, **options).equal(
            loaded.generate(ids, use_cache=False, **options)
        )


def test_capped_logits_and_sliding_windows_are_named():
    with pytest.raises(ConversionError, match=r"layers\.1\.self_attn: asks for capped logits"):
        replace_attention(source("gemma2"), keep_refused=True)
    with pytest.raises(ConversionError, match=r"sliding window.*Loaded with sliding_window=None"):
        replace_attention(source("mistral"), keep_refused=True)
    whole = library("mistral")
    whole.config.sliding_window = None
    check_teacher_inside(replace_attention(whole, "luna", window=None), whole, inputs("mistral"))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("before", ["eager", "sdpa"])
def test_layers_left_out_keep_their_softmax(name, before):
    model = {"gpt2": models.gpt2, "llama": models.llama}[name]()
    model.set_attn_implementation(before)
    replaced = replace_attention(model, "hedgehog", layers=["*.1.*attn"], window=None)
    check_teacher_inside(replaced, model, inputs(name))
    with torch.no_grad(), replaced.mode("softmax"):
        found = replaced.model(**inputs(name), output_hidden_states=True).hidden_states[1]
        expected = model(**inputs(name), output_hidden_states=True).hidden_states[1]
    torch.testing.assert_close(found, expected)


# --- modified models ------------------------------------------------------------------------------


def patched(module):
    forward = module.forward
    module.forward = lambda *args, **options: forward(*args, **options)


def wrapped(module):
    class LoRA(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.down = nn.Linear(base.in_features, 2)

        def forward(self, x):
            return self.base(x) + self.down(x).sum(-1, keepdim=True)

    module.query = LoRA(module.query)


STRANGE = {
    "forward": (lambda m: patched(m.query), "at 'query' has its forward replaced"),
    "hook": (lambda m: m.register_forward_hook(lambda *a: None), "BertSelfAttention has hooks"),
    "inner hook": (
        lambda m: m.value.register_forward_pre_hook(lambda *a: None),
        "at 'value' has hooks",
    ),
    "parametrised": (
        lambda m: nn.utils.parametrizations.weight_norm(m.key),
        "at 'key' has parametrised weights",
    ),
    "adapter": (wrapped, "LoRA at 'query' is not a layer of torch or transformers"),
    "attention": (patched, r"layer\.1\.\S+: BertSelfAttention has its forward"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_modified_attention_is_refused(name):
    change, message = STRANGE[name]
    model = models.bert()
    change(model.bert.encoder.layer[1].attention.self)
    with pytest.raises(ConversionError, match=message):
        replace_attention(model)
    replaced = replace_attention(model, "elu", keep_refused=True)
    assert list(replaced.refused) == ["bert.encoder.layer.1.attention.self"]


@pytest.mark.parametrize("change", ["forward", "hook", "parametrised"])
def test_modified_modules_of_timm_and_fredholm_are_refused(change):
    change, message = {
        "forward": (patched, "has its forward replaced"),
        "hook": (lambda m: m.register_forward_hook(lambda *a: None), "has hooks"),
        "parametrised": (nn.utils.parametrizations.weight_norm, "has parametrised weights"),
    }[change]
    timm, own = models.timm_like(), models.own()
    change(timm[0].attn.proj)
    change(next(m for m in own.modules() if isinstance(m, nn.Linear)))
    for model in (timm, own):
        with pytest.raises(ConversionError, match=message):
            replace_attention(model)


def test_the_probe_detects_other_mathematics():
    class Cosine(models.Attention):
        """timm's submodules and call, but other mathematics."""

        def forward(self, x, attn_mask=None, is_causal=False):
            return super().forward(nn.functional.normalize(x, dim=-1), attn_mask, is_causal)

    model = nn.Sequential(models.spread(Cosine(16)))
    with pytest.raises(ConversionError, match="this layer computes something else"):
        replace_attention(model)
    assert replace_attention(model, probe=False).layers


def test_the_probe_detects_a_patched_function_of_the_library(monkeypatch):
    from transformers.models.bert import modeling_bert

    def colder(module, query, key, value, mask, scaling=None, **options):
        return eager(module, query, key, value, mask, scaling=2 * scaling, **options)

    eager = modeling_bert.eager_attention_forward
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", colder)
    model = models.bert()
    model.set_attn_implementation("eager")
    with pytest.raises(ConversionError, match="BertForSequenceClassification was converted as"):
        replace_attention(model)
    assert replace_attention(model, probe=False).layers


def test_stochastic_models_are_compared_with_equal_random_numbers():
    """ViT-MAE masks random patches in every call."""
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    sizes = {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1}
    sizes |= {"decoder_num_attention_heads": 2, "decoder_intermediate_size": 24}
    config = ViTMAEConfig(**SIZES, **IMAGE, **sizes)
    replaced = replace_attention(
        models.spread(ViTMAEForPreTraining(config)), "elu", keep_refused=True
    )
    assert len(replaced.layers) == 2


def test_a_conversion_does_not_change_its_source():
    model = models.bert().train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    random = torch.get_rng_state()
    replace_attention(model, "performer", options={"features": 4})
    assert model.training
    assert all(v.equal(model.state_dict()[k]) for k, v in state.items())
    assert all(p.grad is None for p in model.parameters())
    torch.set_rng_state(random)
    replaced = replace_attention(model, "elu")
    assert torch.get_rng_state().equal(random), "elu draws nothing, and the probe leaves no trace"
    assert replaced.model.training


def test_a_failed_conversion_in_place_restores_the_model(monkeypatch):
    """The comparison runs last, after every replacement."""
    model, inputs = models.bert(), models.padded()
    parts = [set(vars(m)) for m in model.modules()]
    config = model.config
    expected = model(**inputs).logits

    def fails(*args):
        raise ConversionError("another answer")

    monkeypatch.setattr("fredholm.linearization.replace.verify", fails)
    with pytest.raises(ConversionError, match="another answer"):
        replace_attention(model, "elu", copied=False)
    assert type(model) is type(models.bert())
    assert model.config is config
    assert [set(vars(m)) for m in model.modules()] == parts
    assert model(**inputs).logits.equal(expected)
    monkeypatch.undo()
    assert replace_attention(model, "elu", copied=False).model is model


# --- attention weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["luna", "hedgehog", "infsa", "linear_infsa"])
def test_attentions_and_hidden_states_have_the_format_of_the_source(to):
    """The returned weights reproduce the output of a layer from its values."""
    teacher = models.bert().bert.eval()
    # The library's hooks stay installed.
    teacher(**models.padded(), output_hidden_states=True)
    model = replace_attention(teacher, to).model
    calls = []
    heads = model.encoder.layer[0].attention.self.linear_heads
    heads.register_forward_hook(lambda module, inputs, out: calls.append((inputs[2], out)))
    found = model(**models.padded(), output_attentions=True, output_hidden_states=True)
    layers = model.config.num_hidden_layers
    assert len(found.attentions) == layers
    assert len(found.hidden_states) == layers + 1
    (value, out), shares = calls[0], found.attentions[0]
    assert shares.shape == (3, 2, models.N, models.N)
    sums = shares.sum(-1)
    linked = sums > 0.5  # a row of a graph may have no positive edge
    assert linked.float().mean() > 0.9
    torch.testing.assert_close(sums, linked.float())
    padding = models.padded()["attention_mask"] == 0
    assert padding.any()
    assert not shares.transpose(1, 3)[padding].any()
    again = shares @ value.nan_to_num()
    if to in ("luna", "hedgehog"):
        torch.testing.assert_close(out, again, rtol=1e-4, atol=1e-6)
    else:  # up to γ and the norm of a row
        some = linked & ~padding[:, None]
        factor = out.norm(dim=-1) / again.norm(dim=-1)
        torch.testing.assert_close(
            out[some], (factor[..., None] * again)[some], rtol=1e-3, atol=1e-5
        )


def test_output_attentions_by_configuration_equals_the_argument():
    source = models.bert(attn_implementation="eager")
    source.config.output_attentions = True
    assert len(source(**models.padded()).attentions) == 2
    model = replace_attention(source, "luna").model
    expected = model(**models.padded(), output_attentions=True).attentions
    found = model(**models.padded()).attentions
    assert len(found) == 2
    assert all(x.equal(y) for x, y in zip(found, expected))


@pytest.mark.parametrize("window", [None, 3])
@torch.no_grad()
def test_attentions_are_returned_only_for_the_prefill_of_a_cache(window):
    """A decoder creates a cache by default; tokens inside a state have no weights."""
    from transformers import DynamicCache

    options = {"options": {"softmax": True}, "window": window}
    model = replace_attention(models.llama(), "hedgehog", **options).model.eval()
    expected = model(models.tokens(), output_attentions=True, use_cache=False)
    shares = expected.attentions[-1]
    torch.testing.assert_close(shares.sum(-1), torch.ones(shares.shape[:3]))
    assert not shares.triu(1).any()
    kept = DynamicCache()
    found = model(models.tokens(), output_attentions=True, past_key_values=kept)
    for x, y in zip(found.attentions, expected.attentions):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConversionError, match=r"got it after .* tokens.* use_cache=False"):
        model(models.tokens(), output_attentions=True, past_key_values=kept)
    # The refusal did not change the cache.
    again = model(models.tokens(), past_key_values=kept).logits
    twice = model(torch.cat([models.tokens()] * 2, 1), use_cache=False).logits
    torch.testing.assert_close(again, twice[:, again.shape[1] :], rtol=1e-4, atol=1e-5)


def test_a_converted_configuration_accepts_output_attentions(tmp_path):
    """The library's configuration would refuse it and advise an implementation that a conversion
    refuses.
    """
    model = replace_attention(models.llama(), "hedgehog").model.eval()
    model.config.output_attentions = True
    found = model(models.tokens())
    assert len(found.attentions) == model.config.num_hidden_layers
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert len(loaded(models.tokens()).attentions) == model.config.num_hidden_layers


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "llama"])
@torch.no_grad()
def test_every_kind_of_model_returns_requested_attentions(name):
    """GPT-2 does not pass the argument to its layers."""
    model = replace_attention(getattr(models, name)(), "hedgehog").model.eval()
    inputs = (torch.rand(2, 3, 8, 8),) if name == "vit" else (models.tokens(),)
    for kept in (model, model.base_model):
        found = kept(*inputs, output_attentions=True).attentions
        assert len(found) == 2
        torch.testing.assert_close(found[0].sum(-1), torch.ones(found[0].shape[:3]))
        assert not kept(*inputs).get("attentions")


@torch.no_grad()
def test_layers_with_softmax_return_their_attentions():
    layers = ["model.layers.0.self_attn"]
    model = replace_attention(models.llama(), "hedgehog", layers=layers).model.eval()
    found = model(models.tokens(), output_attentions=True).attentions
    torch.testing.assert_close(found[1].sum(-1), torch.ones(found[1].shape[:3]))
