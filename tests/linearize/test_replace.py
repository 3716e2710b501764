"""Replaced attention: the softmax mode is exact, padding and order are respected, unsupported
attention is named.
"""

from __future__ import annotations

import fnmatch
import json
import ntpath
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fredholm.convert import replace_attention
from fredholm.domain import Domain
from fredholm.errors import ConversionError, OptionError
from fredholm.kernels import CentreKernel, HopKernel
from fredholm.linearization import ConversionReport, LinearHeads, divergence
from fredholm.linearization.divergence import exact_divergence
from fredholm.linearization.graph_heads import GraphHeads
from fredholm.linearization.heads import Seen
from fredholm.linearization.interface import NAME
from fredholm.linearization.mask_interface import padding_mask
from fredholm.models import create_model, list_models
from fredholm.operators import IntegralOperator

from . import models

pytest.importorskip("transformers")
MAPS = ["luna", "hedgehog", "t2r", "performer", "elu", "rff", "infsa", "linear_infsa"]
OURS = {"torch": (models.torch_encoder, 16), "timm": (models.timm_like, 16)}


@torch.no_grad()
def logits(model, **inputs):
    return model(**inputs).logits


@pytest.mark.parametrize("build", [models.bert, models.gpt2, models.llama])
def test_the_softmax_mode_equals_the_source(build):
    source = build()
    inputs = models.padded()
    seen = inputs["attention_mask"].bool()
    replaced = replace_attention(source, window=None)
    shape = (slice(None),) if build is models.bert else seen
    for mode in ("softmax", "distil"):
        with replaced.mode(mode):
            assert torch.allclose(
                logits(replaced.model, **inputs)[shape], logits(source, **inputs)[shape], atol=1e-5
            )
    assert source.config._attn_implementation != NAME, "the source stays as it was"
    assert not torch.allclose(
        logits(replaced.model, **inputs)[shape], logits(source, **inputs)[shape], atol=1e-3
    )


@pytest.mark.parametrize("build", [models.vit, models.dinov2])
def test_converted_image_models_equal_the_source_in_softmax_mode(build):
    source = build()
    pixels = torch.randn(2, 3, 8, 8)
    replaced = replace_attention(source, "hedgehog")
    with replaced.mode("softmax"):
        assert torch.allclose(
            logits(replaced.model, pixel_values=pixels),
            logits(source, pixel_values=pixels),
            atol=1e-6,
        )
    assert [layer.heads for layer in replaced.layers] == [2, 2]
    assert logits(replaced.model, pixel_values=pixels).isfinite().all()


@pytest.mark.parametrize("to", MAPS)
def test_padding_changes_no_output(to):
    replaced = replace_attention(models.bert(), to)
    inputs = models.padded()
    together = logits(replaced.model, **inputs)
    alone = logits(replaced.model, input_ids=inputs["input_ids"][-1:, : models.N - 4])
    assert torch.allclose(together[-1:], alone, atol=1e-4)


@pytest.mark.parametrize("build", [models.gpt2, models.llama])
def test_a_decoder_is_causal_and_generates_with_its_cache(build):
    replaced = replace_attention(build(), "luna")
    ids = models.tokens(2)
    changed = ids.clone()
    changed[:, 6:] = 1
    assert torch.allclose(
        logits(replaced.model, input_ids=ids)[:, :6],
        logits(replaced.model, input_ids=changed)[:, :6],
        atol=1e-5,
    )
    assert not torch.allclose(
        logits(replaced.model, input_ids=ids)[:, 6:],
        logits(replaced.model, input_ids=changed)[:, 6:],
    )
    options = {
        "max_new_tokens": 4,
        "do_sample": False,
        "attention_mask": torch.ones_like(ids),
        "pad_token_id": 0,
    }
    with torch.no_grad():
        assert replaced.model.generate(ids, **options).equal(
            replaced.model.generate(ids, use_cache=False, **options)
        )


def test_left_padding_of_a_decoder_changes_no_output():
    replaced = replace_attention(models.llama(), "luna")
    ids = models.tokens(1)
    mask = torch.ones_like(ids)
    mask[:, :3] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    left = logits(replaced.model, input_ids=ids, attention_mask=mask, position_ids=positions)[:, 3:]
    assert torch.allclose(left, logits(replaced.model, input_ids=ids[:, 3:]), atol=1e-4)


@pytest.mark.parametrize("to", ["luna", "infsa", "linear_infsa"])
@pytest.mark.parametrize("name", OURS)
def test_modules_of_torch_and_timm_are_converted(name, to):
    build, dim = OURS[name]
    source = build()
    x = torch.randn(2, 7, dim)
    replaced = replace_attention(source, to)
    with torch.no_grad():
        expected = source(x)
        for mode in ("softmax", "distil"):
            with replaced.mode(mode):
                assert torch.allclose(replaced.model(x), expected, atol=1e-5)
        assert not torch.allclose(replaced.model(x), expected, atol=1e-3)
    assert len(replaced.layers) == 2
    kept = {
        id(p) for layer in replaced.layers for n, p in source.named_parameters() if n in layer.kept
    }
    assert len(kept) == 8, "two packed projections and two output layers, weights and biases"
    assert set(replaced.new_parameters()) == {n for layer in replaced.layers for n in layer.new}
    assert len(list(replaced.model.parameters())) == len(list(source.parameters())) + len(
        replaced.new_parameters()
    )


@torch.no_grad()
def test_dropout_of_timms_attention_is_kept_or_reported():
    source = models.timm_like().train()
    replaced = replace_attention(source)
    report = ConversionReport.of(replaced, "timm")
    assert [row.dropped for row in report.layers] == [0.1, 0.1]
    assert any("dropped: dropout on attention weights (0.1)" in x for x in report.summary())

    attention = replaced.model[0].attn
    x = torch.randn(50, 7, 16)
    zeros = (attention(x) == 0).float().mean()
    assert abs(float(zeros) - 0.2) < 0.03
    assert (attention.eval()(x) != 0).all()
    with replaced.mode("softmax"):
        # The teacher's weights come without its dropout, also in training.
        weights = attention.train().operator.weights(x[:1])
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)

    source[0].attn.proj_drop = nn.AlphaDropout(0.2)
    with pytest.raises(ConversionError, match=r"proj_drop must be a plain .*, got AlphaDropout"):
        replace_attention(source)


@torch.no_grad()
def test_attention_weights_follow_the_mode():
    source = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(2, 6, 16)
    replaced = replace_attention(source, "hedgehog")
    expected = source(x, x, x)[1]
    for mode in ("softmax", "distil"):
        with replaced.mode(mode):
            torch.testing.assert_close(replaced.model(x, x, x)[1], expected)
    assert (replaced.model(x, x, x)[1] - expected).abs().max() > 1e-3


def test_padding_of_torchs_encoder_changes_no_output():
    replaced = replace_attention(models.torch_encoder(), "luna")
    x = torch.randn(2, 7, 16)
    mask = torch.zeros(2, 7, dtype=torch.bool)
    mask[1, 4:] = True
    with torch.no_grad():
        together, alone = replaced.model(x, src_key_padding_mask=mask), replaced.model(x[1:, :4])
    assert torch.allclose(together[1:, :4], alone, atol=1e-5)


def test_models_of_fredholm_receive_a_configuration():
    source = models.own()
    x = torch.randn(2, 1, 8, 8)
    replaced = replace_attention(source, "hedgehog", tied=False)
    assert replaced.model.config.body.operator == "linear_attention"
    with torch.no_grad(), replaced.mode("softmax"):
        assert torch.allclose(replaced.model(x), source(x), atol=1e-5)
    assert all(
        ".kernel.key_map." in n or ".kernel.feature_map." in n for n in replaced.new_parameters()
    )
    with torch.no_grad(), replaced.mode("distil"):
        replaced.model(x)
        assert all(loss > 0 for loss in replaced.losses().values())


@pytest.mark.parametrize("to", ["luna", "hedgehog", "infsa"])
def test_a_converted_operator_keeps_the_options_of_its_source(to):
    source = models.own(operator_options={"bias": False, "strategy": "exact"})
    x = torch.randn(2, 1, 8, 8)
    replaced = replace_attention(source, to)
    options = replaced.model.config.body.operator_options
    assert options["bias"] is False
    assert "strategy" not in options
    with torch.no_grad(), replaced.mode("softmax"):
        assert torch.allclose(replaced.model(x), source(x), atol=1e-5)
    report = ConversionReport.of(replaced, "fredholm")
    line = f"dropped: options of softmax that do not apply to {to} (strategy='exact')"
    assert line in report.summary()
    assert ConversionReport.from_dict(report.to_dict()) == report


@pytest.mark.parametrize("to", ["luna", "infsa", "linear_infsa"])
def test_a_vision_transformer_of_fredholm_is_converted(to):
    source = models.spread(create_model("infvit_softmax_pico"))
    x = torch.randn(2, 1, 56, 56)
    replaced = replace_attention(source, to)
    assert replaced.model.config.body.operator == to
    with torch.no_grad():
        with replaced.mode("softmax"):
            assert torch.allclose(replaced.model(x), source(x), atol=1e-4)
        if to != "luna":
            # As elsewhere: γ of a layer is learned from 0.95 on, and not raised to a power.
            for block in replaced.model.body.blocks:
                kernel = block.operator.kernel
                assert kernel.power == 1
                assert torch.allclose(kernel.decay(), torch.tensor(0.95))
            chosen = replace_attention(source, to, options={"decay": 0.6}).model.config.body
            assert (chosen.decay, chosen.learned_decay) == (0.6, True)


def test_infsa_in_an_accumulated_stack_is_refused():
    source = create_model("infvit_softmax_pico", body={"depth_rule": "accumulated"})
    assert replace_attention(source, "luna").model.config.body.operator == "luna"
    with pytest.raises(ConversionError, match="accumulated' has one γ for all layers, and infsa"):
        replace_attention(source, "infsa")


@pytest.mark.parametrize("to", ["infsa", "linear_infsa"])
def test_infsa_on_heads_equals_the_converted_attention(to):
    """Equal queries, keys and values, once as heads of BERT and once in torch's attention."""
    from fredholm.linearization.graph_heads import GraphHeads

    attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    replaced = replace_attention(nn.ModuleList([attention]), to)
    x = torch.randn(2, 6, 16)
    q, k, v = (
        part.unflatten(-1, (2, 8)).transpose(1, 2)
        for part in (x @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, -1)
    )
    with torch.no_grad():
        expected = replaced.model[0](x, x, x)[0]
        heads = GraphHeads(2, 8, to)(q, k, v, Seen())
        assert torch.allclose(
            attention.out_proj(heads.transpose(1, 2).flatten(2)), expected, atol=1e-5
        )
    assert not replaced.distils
    with pytest.raises(ConversionError, match="one set of tokens"):
        GraphHeads(2, 8, to)(q[:, :, :1], k, v, Seen())
    with pytest.raises(OptionError, match="no option 'hops'"):
        GraphHeads(2, 8, to, {"hops": 2})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("to", ["infsa", "linear_infsa"])
def test_infsa_on_shared_keys_equals_repeated_keys(to, causal):
    from fredholm.linearization.graph_heads import GraphHeads

    query, key, value = (torch.randn(2, h, 5, 8) for h in (4, 2, 2))
    heads = GraphHeads(4, 8, to)
    seen = Seen(causal=causal)
    expected = heads(query, heads.share(key), heads.share(value), seen)
    torch.testing.assert_close(heads(query, key, value, seen), expected)


@pytest.mark.parametrize("to", ["luna", "performer"])
def test_selected_layers_are_converted(to):
    source, inputs = models.bert(), models.padded()
    replaced = replace_attention(source, to, layers=["*.layer.1.*"])
    assert [layer.name for layer in replaced.layers] == ["bert.encoder.layer.1.attention.self"]
    with replaced.mode("softmax"):
        assert torch.allclose(logits(replaced.model, **inputs), logits(source, **inputs), atol=1e-5)
    with pytest.raises(OptionError, match="fits no attention"):
        replace_attention(source, to, layers=["*.layer.7.*"])


def test_patterns_are_case_sensitive_on_every_system(monkeypatch):
    """On Windows, fnmatch.filter and fnmatch.fnmatch ignore case."""
    monkeypatch.setattr(fnmatch, "os", SimpleNamespace(path=ntpath))
    assert fnmatch.filter(["bert"], "BERT") == ["bert"]
    with pytest.raises(OptionError, match=r"'\*\.LAYER\.1\.\*' fits no attention"):
        replace_attention(models.bert(), layers=["*.LAYER.1.*"], probe=False)
    assert list_models("itnet_s*") == ["itnet_s", "itnet_s_compact"]
    assert list_models("ITNET_S*") == []


def test_new_maps_receive_gradients_beside_frozen_weights():
    replaced = replace_attention(models.bert(), "luna")
    inputs = models.padded()
    replaced.model.requires_grad_(False)
    for parameter in replaced.new_parameters().values():
        parameter.requires_grad_(True)
    with replaced.mode("distil"):
        replaced.model(**inputs)
        torch.stack(list(replaced.losses().values())).sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for p in replaced.new_parameters().values()
    )


def test_the_divergence_counts_only_real_queries():
    p = torch.rand(2, 3, 4, 5).softmax(-1)
    s = torch.rand(2, 3, 4, 5).softmax(-1)
    real = torch.tensor([[True, True, False, False], [True, True, True, True]])
    rows = (p * (p * (1 + 5e-6) / (s + 1e-6)).log()).sum(-1)
    expected = torch.cat([rows[0, :, :2].flatten(), rows[1].flatten()]).mean()
    assert torch.allclose(divergence(p, s, real), expected, atol=1e-5)


@pytest.mark.parametrize("keys", [5, 5000])
def test_the_training_divergence_compares_normalised_distributions(keys):
    """ε mixes in the uniform distribution for any number of keys, so the divergence is never
    negative.
    """
    visible = torch.arange(keys) < keys - 2
    p = torch.rand(1, 2, 3, keys, dtype=torch.float64).masked_fill(~visible, -torch.inf)
    p = p.softmax(-1)
    mixed = (p + 1e-6 * visible.double()) / (1 + (keys - 2) * 1e-6)
    expected = (p[..., :-2] * (p / mixed)[..., :-2].log()).sum(-1).mean()
    found = divergence(p, p, visible=visible[None, None, None])
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=1e-9)
    assert found >= 0


def test_the_exact_divergence_has_no_floor_and_counts_infinite_rows():
    """An ε of 1e-6 in the logarithm would subtract 0.005 at 5,000 keys."""
    keys = 5000
    p = torch.rand(1, 2, 3, keys).softmax(-1)
    s = torch.rand(1, 2, 3, keys).softmax(-1)
    wide = [x.double() / x.double().sum(-1, keepdim=True) for x in (p, s)]
    expected = (wide[0] * (wide[0] / wide[1]).log()).sum(-1)
    s[0, 1, 2, 7] = 0.0
    found = exact_divergence(p, s)
    assert (found.rows, found.zero_rows) == (5, 1)
    kept = expected.flatten()[:5]
    assert abs(found.mean - float(kept.mean())) < 1e-12
    one = exact_divergence(p, s, torch.tensor([[True, False, False]]))
    assert (one.rows, one.zero_rows) == (2, 0)


@torch.no_grad()
def test_the_report_has_exact_divergences_and_infinite_rows():
    """Rows are infinite for a map whose features may all be zero, and the report counts them."""
    replaced = replace_attention(models.bert(), "relu")
    with replaced.mode("measure"):
        replaced.model(**models.padded())
        found = replaced.exact_divergences()
    report = ConversionReport.of(replaced, "BertModel")
    report.measured("before", found)
    again = ConversionReport.from_dict(json.loads(json.dumps(report.to_dict())))
    assert any(x.zero_rows for x in found.values())
    for row in again.layers:
        assert row.zeros_before == found[row.name].zero_rows
        assert abs(row.before - found[row.name].mean) < 1e-12
    assert "rows infinite" in str(again)
    report.measured("after", {row.name: 0.5 for row in report.layers})  # as an older folder has it
    assert [(row.after, row.zeros_after) for row in report.layers] == [(0.5, None)] * 2


def test_rows_without_keys_give_zero_and_finite_gradients():
    heads = LinearHeads(2, 4)
    x = torch.randn(2, 2, 3, 4, requires_grad=True)
    seen = Seen(valid=torch.tensor([[True, True, False], [False, False, False]]))
    for mode in ("linear", "distil"):
        heads.mode = mode
        out = heads(x, x, x, seen)
        assert out.isfinite().all()
        assert out[1].abs().max() == 0
    assert heads.loss is not None
    heads.loss.backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_padding_may_contain_nan():
    heads = LinearHeads(2, 4, feature_map="performer")
    x = torch.randn(1, 2, 5, 4)
    poisoned = x.clone()
    poisoned[:, :, 3:] = torch.nan
    seen = Seen(valid=torch.tensor([[True, True, True, False, False]]))
    assert heads(x, poisoned, poisoned, seen).equal(heads(x, x, x, seen))


# --- refusals -------------------------------------------------------------------------------------


def test_mismatched_numbers_of_heads_are_refused():
    heads = LinearHeads(4, 8)
    x = torch.randn(1, 4, 5, 8)
    with pytest.raises(
        ConversionError, match="3 heads of keys and values do not divide 4 heads of queries"
    ):
        heads(x, x[:, :3], x[:, :3], Seen())
    with pytest.raises(ConversionError, match="for 4 heads of width 8, the model gives 2"):
        heads(x[:, :2], x, x, Seen())
    wrong = models.timm_like()
    wrong[0].attn.num_heads = 3
    with pytest.raises(ConversionError, match="3 heads do not divide"):
        replace_attention(wrong)


def test_models_without_attention_and_wrong_maps_are_refused():
    with pytest.raises(ConversionError, match="nothing to convert, it has no attention"):
        replace_attention(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    with pytest.raises(OptionError, match="did you mean 'hedgehog'"):
        replace_attention(models.torch_encoder(), "hedgehoge")
    with pytest.raises(OptionError, match=r"has no options"):
        replace_attention(models.torch_encoder(), "elu", options={"features": 3})


def relative_bias():
    class WindowAttention(models.Attention):
        def __init__(self):
            super().__init__(16)
            self.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))

    return nn.Sequential(WindowAttention())


def foreign():
    class FlashAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.to_q, self.to_kv = nn.Linear(4, 4), nn.Linear(4, 8)

    return nn.Sequential(FlashAttention())


def rotary():
    class EvaAttention(models.Attention):
        def forward(self, x, rope=None, attn_mask=None, is_causal=False):
            return super().forward(x, attn_mask, is_causal)

    return nn.Sequential(EvaAttention(16))


REFUSED = {
    "rotary": (rotary, "called with rope"),
    "relative bias": (relative_bias, "relative position bias"),
    "qk_norm": (lambda: models.timm_like(qk_norm=True), "qk_norm"),
    "kdim": (lambda: nn.ModuleList([nn.MultiheadAttention(8, 2, kdim=4)]), "kdim=4"),
    "bias_kv": (
        lambda: nn.ModuleList([nn.MultiheadAttention(8, 2, add_bias_kv=True)]),
        "add_bias_kv",
    ),
    "unknown": (foreign, "FlashAttention with the parts to_q, to_kv"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_attention_is_named(name):
    build, message = REFUSED[name]
    with pytest.raises(ConversionError, match=message):
        replace_attention(build())
    mixed = nn.ModuleList([build(), models.torch_encoder()])
    with pytest.raises(ConversionError, match="keep_refused=True"):
        replace_attention(mixed)
    replaced = replace_attention(mixed, keep_refused=True)
    assert len(replaced.layers) == 2
    assert replaced.refused
    assert all(message in why or "qk_norm" in why for why in replaced.refused.values())


def test_models_outside_the_interface_are_refused():
    from transformers import MistralConfig, MistralForCausalLM, T5Config, T5EncoderModel

    sizes = {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 16}
    with pytest.raises(ConversionError, match="T5EncoderModel"):
        replace_attention(T5EncoderModel(T5Config(vocab_size=9, **sizes)))
    small = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    with pytest.raises(ConversionError, match="sliding window"):
        replace_attention(
            MistralForCausalLM(MistralConfig(vocab_size=9, sliding_window=4, **small))
        )


def test_masks_of_pairs_equal_the_causal_form():
    heads = LinearHeads(2, 4)
    x = torch.randn(2, 2, 5, 4)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    assert torch.allclose(
        heads(x, x, x, Seen(pairs=causal)), heads(x, x, x, Seen(causal=True)), atol=1e-5
    )
    with pytest.raises(ConversionError, match="neither causal nor none"):
        padding_mask(1, 4, 4, mask_function=lambda *_: True)


def test_bfloat16_autocast_stays_near_float32():
    replaced = replace_attention(models.bert(), "luna")
    inputs = models.padded()
    exact = logits(replaced.model, **inputs)
    with torch.autocast("cpu", torch.bfloat16):
        half = logits(replaced.model, **inputs)
    assert torch.allclose(half.float(), exact, atol=0.15)


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_converted_torch_encoder_ignores_padding_in_evaluation(norm_first):
    """torch would switch to nested tensors, which only its own attention supports."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, norm_first=norm_first)
    model = models.spread(torch.nn.TransformerEncoder(layer, 2)).eval()
    replaced = replace_attention(model, "hedgehog")
    u = torch.randn(2, 9, 16)
    empty = torch.arange(9) >= torch.tensor([9, 5])[:, None]
    out = replaced.model(u, src_key_padding_mask=empty)
    alone = replaced.model(u[1:, :5])
    torch.testing.assert_close(out[1:, :5], alone, atol=1e-5, rtol=1e-5)
    replaced.switch("softmax")
    expected = model.train().eval()(u)
    torch.testing.assert_close(replaced.model(u), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("to", ["infsa", "linear_infsa"])
def test_infsa_on_heads_equals_the_definition(to, causal, padded):
    """Values, and gradients of features, maps and γ, with causal order and with padding."""
    packed = nn.Linear(16, 48)
    heads = GraphHeads(2, 8, to)
    kind = HopKernel if to == "infsa" else CentreKernel
    kernel = kind(16, 2, projections=packed, decay=0.95, learned_decay=True, tied=False)
    operator = IntegralOperator(16, 2, kernel=kernel, residual=False, projection=False)
    x = torch.randn(2, 6, 16, requires_grad=True)
    valid = torch.arange(6) < torch.tensor([[6], [4]])
    mask = valid if padded else None
    parts = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in packed(x).chunk(3, -1))
    found = heads(*parts, Seen(mask, causal=causal)).transpose(1, 2).flatten(2)
    expected = operator.dense(x, Domain.line(6, causal=causal, valid=mask))
    real = valid if padded else torch.ones_like(valid)
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)
    direction = torch.randn(2, 6, 16) * real[..., None]
    gradients = [
        torch.autograd.grad((y * direction).sum(), [x, packed.weight, g], retain_graph=True)
        for y, g in ((found, heads.decay_logit), (expected, kernel.decay_logit))
    ]
    for a, b in zip(*gradients):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()
