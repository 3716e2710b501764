"""Attention of Hugging Face: refusals, rotary angles of Llama, layers inside a complete model."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from evidence.unification.attention import hugging_face
from torch import nn

from fredholm.convert import as_operator, convertible
from fredholm.domain import Domain
from fredholm.errors import ConversionError, DomainError

from ..tolerances import assert_close

pytest.importorskip("transformers")
DIM, N = 8, 5
GPT2, BERT, LLAMA = (
    ("gpt2", "GPT2Attention"),
    ("bert", "BertSelfAttention"),
    ("llama", "LlamaAttention"),
)


def signal() -> torch.Tensor:
    return torch.randn(2, N, DIM)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (GPT2, {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn=True"),
        (
            BERT,
            {"attn_implementation": "flash_attention_5"},
            "attn_implementation='flash_attention_5'.*softmax attention",
        ),
        (
            LLAMA,
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type='linear'",
        ),
        (
            LLAMA,
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            r"rope_parameters with \['partial_rotary_factor'\]",
        ),
    ],
)
def test_unsupported_options_are_refused(source, options, message):
    extra = {"layer_idx": 0} if source is LLAMA else {}
    layer = hugging_face(
        *source, **extra, **{k: v for k, v in options.items() if k != "attn_implementation"}
    )().eval()
    layer.config._attn_implementation = options.get("attn_implementation", "sdpa")
    with pytest.raises(ConversionError, match=message):
        as_operator(layer)


def test_gpt2_cross_attention_is_refused():
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention, GPT2Config

    layer = GPT2Attention(
        GPT2Config(hidden_size=DIM, num_attention_heads=2), is_cross_attention=True, layer_idx=0
    )
    with pytest.raises(ConversionError, match="is_cross_attention=True"):
        as_operator(layer.eval())


@pytest.mark.parametrize(
    "source",
    [
        BERT,
        GPT2,
        ("vit", "ViTAttention", "attention_probs_dropout_prob"),
        (*LLAMA, "attention_dropout"),
    ],
)
def test_active_dropout_is_refused(source):
    options = dict.fromkeys(source[2:], 0.1) | ({"layer_idx": 0} if source[0] == "llama" else {})
    layer = hugging_face(*source[:2], **options)()
    with pytest.raises(ConversionError, match=r"dropout=0.1 in training mode"):
        as_operator(layer.train())
    operator = as_operator(layer.eval())
    with pytest.raises(ConversionError, match=r"got dropout=0\.1; it is active"):
        operator.train()(signal())


def test_unsupported_layers_are_refused():
    adapted, quantised, hooked = (hugging_face(*BERT)().eval() for _ in range(3))
    adapted.query = nn.Sequential(adapted.query)
    with pytest.raises(ConversionError, match=r"query=torch.nn.modules.container.Sequential"):
        as_operator(adapted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch is moving its quantisation to another package
        quantised = torch.ao.quantization.quantize_dynamic(quantised, {nn.Linear})
    with pytest.raises(
        ConversionError, match=r"query=torch.ao.nn.quantized.dynamic.*supported: torch.nn.Linear"
    ):
        as_operator(quantised)
    hooked.value.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(ConversionError, match="at 'value' has hooks"):
        as_operator(hooked)
    wide = hugging_face(*BERT)().eval()
    wide.key = nn.Linear(DIM + 2, DIM)
    with pytest.raises(ConversionError, match="query of 8, key of 10, value of 8"):
        as_operator(wide)
    dense = hugging_face(*GPT2)().eval()
    dense.c_attn = nn.Linear(DIM, 3 * DIM)
    with pytest.raises(ConversionError, match=r"c_attn=torch.nn.modules.linear.Linear.*Conv1D"):
        as_operator(dense)
    whole = hugging_face("bert", "BertAttention")().eval()
    with pytest.raises(ConversionError, match="BertAttention is not understood"):
        as_operator(whole)


def test_gpt2_requires_a_causal_domain():
    layer = hugging_face(*GPT2)().eval()
    operator = as_operator(layer)
    u = signal()
    with pytest.raises(DomainError, match="causal=True"):
        operator(u, Domain.line(N))
    assert {id(p) for p in operator.parameters()} == {id(p) for p in layer.parameters()}


def test_llama_rotates_as_its_model_does():
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    layer = hugging_face(*LLAMA, num_key_value_heads=1, layer_idx=0)().eval()
    u = signal()
    expected = layer(u, LlamaRotaryEmbedding(layer.config)(u, torch.arange(N)[None]))[0]
    assert_close(as_operator(layer)(u), expected)
    times = torch.tensor([0.0, 3.0, 4.0, 9.0, 11.0])
    expected = layer(u, LlamaRotaryEmbedding(layer.config)(u, times[None]))[0]
    assert_close(
        as_operator(layer)(u, Domain.points(times[:, None], causal=True)),
        expected,
        "other positions",
    )


@pytest.mark.parametrize("source", [("mistral", "MistralAttention"), ("qwen2", "Qwen2Attention")])
@pytest.mark.parametrize(
    ("window", "causal", "message"),
    [
        (2, False, r"Attention\(sliding_window=2, is_causal=False\) cannot be converted"),
        (0, True, r"Attention\(sliding_window=0\) cannot be converted; .* 1 or more"),
    ],
)
def test_a_window_that_counts_no_points_before_is_refused(source, window, causal, message):
    layer = hugging_face(*source, num_key_value_heads=1, layer_idx=0)().eval()
    layer.config.sliding_window = layer.sliding_window = window
    layer.is_causal = causal
    with pytest.raises(ConversionError, match=message):
        as_operator(layer)


def test_mistral_attends_within_its_window():
    source = ("mistral", "MistralAttention")
    layer = hugging_face(*source, num_key_value_heads=1, layer_idx=0, head_dim=4, sliding_window=2)
    operator = as_operator(layer().eval())
    u = signal()
    weights = operator.weights(u)[0, 0]
    assert torch.equal(weights > 0, torch.ones(N, N).tril().triu(-1) > 0)
    with pytest.raises(DomainError, match="hide all but 2 points"):
        operator(u, Domain.line(N, causal=True))
    short = u[:, :2]
    assert_close(operator(short, Domain.line(2, length=1.0, causal=True)), operator(short))


MODELS = {
    "GPT2": lambda model: model.h[0].attn,
    "Llama": lambda model: model.layers[0].self_attn,
    "Mistral": lambda model: model.layers[0].self_attn,
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_decoder_without_order_converts_to_an_operator_without_order(kind, attention):
    """The model reads is_causal of its configuration; its layers say True all the same."""
    library = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(library, f"{kind}Config")(
        hidden_size=DIM,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=8,
        vocab_size=9,
        sliding_window=None,
        is_causal=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=attention,
    )
    model = getattr(library, f"{kind}Model")(config).eval()
    layer = MODELS[kind](model)
    seen = []

    def note(_, args, named, out):
        seen.append((named.get("hidden_states", *args[:1]), out[0]))

    hook = layer.register_forward_hook(note, with_kwargs=True)
    model(torch.tensor([[3, 1, 4, 1, 5]]))
    hook.remove()
    operator = as_operator(layer)
    assert not operator.kernel.causal
    ((u, expected),) = seen
    assert_close(operator(u), expected)


def test_a_window_without_order_is_refused():
    source = ("mistral", "MistralAttention")
    options = {"num_key_value_heads": 1, "layer_idx": 0, "head_dim": 4, "sliding_window": 2}
    layer = hugging_face(*source, **options)().eval()
    layer.config.is_causal = False
    with pytest.raises(ConversionError, match="sliding_window=2, is_causal=False"):
        as_operator(layer)


def test_attention_with_further_terms_is_refused():
    with pytest.raises(ConversionError, match="Gemma2Attention is not understood; did you mean"):
        as_operator(hugging_face("gemma2", "Gemma2Attention", layer_idx=0, head_dim=4)().eval())
    layer = hugging_face("qwen3", "Qwen3Attention", layer_idx=0, head_dim=4)().eval()
    layer.q_norm = nn.Identity()
    with pytest.raises(ConversionError, match="q_norm=Identity"):
        as_operator(layer)


def test_the_probe_detects_a_patched_library(monkeypatch):
    """Kernels for transformers replace functions of its modules in this way."""
    from transformers.models.llama import modeling_llama

    layer = hugging_face(*LLAMA, num_key_value_heads=1, layer_idx=0)().eval()
    as_operator(layer)
    monkeypatch.setattr(modeling_llama, "rotate_half", lambda x: 0.0 * x)
    with pytest.raises(ConversionError, match=r"LlamaAttention .*off by"):
        as_operator(layer)


def test_a_bert_layer_agrees_inside_its_model():
    from transformers import BertConfig, BertModel

    sizes = {
        "hidden_size": DIM,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 4,
    }
    model = (
        BertModel(BertConfig(vocab_size=11, attn_implementation="sdpa", **sizes)).double().eval()
    )
    layer = model.encoder.layer[1].attention.self
    seen = {}
    words = torch.randint(11, (2, N))
    mask = torch.tensor([[1] * N, [1, 1, 1, 0, 0]])
    operator = as_operator(layer)
    layer.register_forward_hook(
        lambda m, args, kwargs, out: seen.update(u=(args or list(kwargs.values()))[0], y=out[0]),
        with_kwargs=True,
    )
    model(words, attention_mask=mask)
    valid = mask.bool()
    out = operator(seen["u"], Domain.line(N, dtype=torch.float64).replace(valid=valid))
    assert_close(out[valid], seen["y"][valid])


def test_the_library_does_not_import_transformers():
    code = (
        "import sys, fredholm.convert; "
        "sys.exit(int(any(m in sys.modules for m in ('transformers', 'timm'))))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert "transformers.models.bert.modeling_bert.BertSelfAttention" in convertible()
