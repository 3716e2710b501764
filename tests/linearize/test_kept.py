"""Groups of heads with full softmax beside linear ones in the same layer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from fredholm.convert import cache_size, load_linearized, replace_attention, save_linearized
from fredholm.errors import ConversionError, OptionError
from fredholm.linearization import LinearHeads
from fredholm.linearization.heads import Seen
from fredholm.linearization.kept import MixedHeads

from .library import decoder
from .models import bert, torch_encoder

pytest.importorskip("transformers")
from transformers import DynamicCache

from fredholm.linearization.cache import LinearState

from .test_cache import EXACT, PAD, ROUNDED, N, generated, prompt, whole
from .test_window import HOLES, points

KEEP = "0.1,1.0"
DECODERS = ["llama", "gpt2"]


def heads_of(window: int | None = 3, sinks: int = 1, kept=(1,)) -> MixedHeads:
    torch.manual_seed(0)
    options = {"window": window, "sinks": sinks, "feature_map": "hedgehog", "tied": False}
    return MixedHeads(LinearHeads(4 - 2 * len(kept), 8, **options), kept, 2).double()


def converted(name: str, to: str = "hedgehog", **options):
    torch.manual_seed(0)
    options = {"window": 3, "sinks": 1, "keep": KEEP} | options
    return replace_attention(decoder(name), to, **options).model.double()


def by_group(heads: MixedHeads, query, key, value, seen: Seen) -> Tensor:
    """Return the outputs group by group, by the definitions of softmax and of linear attention."""
    outs = []
    for group in range(2):
        q, k, v = query[:, 2 * group : 2 * group + 2], key[:, [group]], value[:, [group]]
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        one = heads.linear if group not in heads.kept else heads
        weigh = one.student_weights if one is heads.linear else heads.teacher_weights
        outs.append(weigh(q, k, seen, 8**-0.5).to(v.dtype) @ torch.where(_real(seen, v), v, 0.0))
    return torch.cat(outs, 1)


def _real(seen: Seen, like: Tensor) -> Tensor:
    valid = seen.valid
    if valid is None:
        valid = torch.ones(len(like), like.shape[2], dtype=torch.bool)
    return valid[:, None, :, None]


@pytest.mark.parametrize("valid", [None, HOLES], ids=["all", "holes"])
@pytest.mark.parametrize("window", [3, None])
@pytest.mark.parametrize("kept", [(0,), (1,)])
def test_a_layer_equals_its_definition_in_values_and_gradients(kept, window, valid):
    heads = heads_of(window, 1 if window else 0, kept)
    inputs = points()
    inputs = [x.requires_grad_() for x in inputs]
    seen = Seen(valid, causal=True)
    real = _real(seen, inputs[0])
    expected = by_group(heads, *inputs, seen)
    found = heads(*inputs, seen)
    torch.testing.assert_close(found * real, expected * real, **ROUNDED)
    leaves = [*inputs, *heads.parameters()]
    grads = [torch.autograd.grad((x * real).square().sum(), leaves) for x in (found, expected)]
    for g, h in zip(*grads):
        torch.testing.assert_close(g, h, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("valid", [None, HOLES], ids=["all", "holes"])
@pytest.mark.parametrize("sizes", [[1] * 11, [2, 1, 8], [5, 6]])
def test_any_split_gives_the_values_and_state_of_one_prefill(sizes, valid):
    heads = heads_of()
    tensors = points()
    mask = torch.ones(2, 11).long() if valid is None else valid.long()
    whole = LinearState()
    expected = whole.advance(heads, *tensors, None if valid is None else mask, None)
    state = whole.memory()
    torch.testing.assert_close(
        expected, heads(*tensors, Seen(valid, causal=True)), equal_nan=True, **ROUNDED
    )
    cache = LinearState()
    found = []
    start = 0
    for size in sizes:
        part = [x[:, :, start : start + size] for x in tensors]
        past = None if valid is None else mask[:, : start + size]
        found.append(cache.advance(heads, *part, past, None))
        start += size
    torch.testing.assert_close(torch.cat(found, 2), expected, **EXACT)
    for name, x in cache.memory().items():
        torch.testing.assert_close(x, state[name], **EXACT)


@pytest.mark.parametrize(
    ("name", "to"), [("llama", "hedgehog"), ("gpt2", "hedgehog"), ("llama", "elu")]
)
def test_generate_equals_the_forward(name, to):
    """Heads of a group may share a feature map and its state."""
    model = converted(name, to)
    out, logits = generated(model)
    mask = torch.cat([prompt()["attention_mask"], torch.ones(2, 4, dtype=torch.long)], 1)
    expected = whole(model, out.sequences, mask)[:, N - 1 : -1].float()
    torch.testing.assert_close(logits, expected, **ROUNDED)
    alone = {key: x[1:, PAD:] for key, x in prompt().items()}
    torch.testing.assert_close(logits[1:], generated(model, alone)[1], **ROUNDED)


@pytest.mark.parametrize("name", DECODERS)
def test_beams_and_chunks_agree_without_a_cache(name):
    model = converted(name)
    options = {"num_beams": 3, "output_scores": True}
    found, _ = generated(model, **options)
    expected, _ = generated(model, use_cache=False, **options)
    assert found.sequences.equal(expected.sequences)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)
    found, expected = (generated(model, prefill_chunk_size=x)[1] for x in (2, None))
    torch.testing.assert_close(found, expected, **ROUNDED)


@torch.no_grad()
@pytest.mark.parametrize("name", DECODERS)
def test_the_softmax_mode_equals_the_source(name):
    source = decoder(name).double().eval()
    replaced = replace_attention(source, "hedgehog", window=3, keep=KEEP)
    ids = prompt()["input_ids"]
    expected = source(ids).logits
    with replaced.mode("softmax"):
        torch.testing.assert_close(replaced.model.double()(ids).logits, expected, **ROUNDED)
    layer = next(iter(replaced.parts.values()))
    groups = ",".join(f"1.{g}" for g in range(getattr(layer, "groups", 4)))
    whole_layer = replace_attention(source, "hedgehog", keep=groups)
    assert len(whole_layer.layers) == 1
    assert list(whole_layer.refused.values()) == ["keep names all of its groups"]


@torch.no_grad()
def test_the_bytes_of_states_and_keys_are_counted_separately():
    model = converted("llama")
    sizes = []
    for tokens in (8, 16):
        kept = DynamicCache()
        model(torch.ones(1, tokens, dtype=torch.long), past_key_values=kept)
        sizes.append(cache_size(kept))
    assert sizes[0].linear_bytes == sizes[1].linear_bytes
    # In each of two layers one group caches a key and a value of width 8 in float64.
    assert [x.softmax_bytes for x in sizes] == [2 * n * 2 * 8 * 8 for n in (8, 16)]
    fork = copy.deepcopy(kept)
    again = [model(torch.ones(1, 1, dtype=torch.long), past_key_values=x) for x in (kept, fork)]
    assert again[0].logits.equal(again[1].logits)


@torch.no_grad()
def test_a_saved_model_keeps_its_softmax_groups(tmp_path):
    replaced = replace_attention(decoder("llama"), "luna", window=3, keep=["0.1"])
    save_linearized(replaced, tmp_path)
    loaded = load_linearized(tmp_path)
    found = [m.kept for m in loaded.modules() if isinstance(m, MixedHeads)]
    assert found == [(1,)]
    ids = prompt()["input_ids"]
    assert loaded(ids).logits.equal(replaced.model(ids).logits)
    assert "1 groups of heads keep softmax" in (tmp_path / "README.md").read_text()


def test_distillation_trains_the_maps_of_the_linear_groups():
    replaced = replace_attention(decoder("llama"), "hedgehog", window=3, keep=KEEP)
    with replaced.mode("calibrate"):
        replaced.model(prompt()["input_ids"])
    with replaced.mode("distil"):
        replaced.model(prompt()["input_ids"])
        torch.stack(list(replaced.losses().values())).mean().backward()
    for name, p in replaced.new_parameters().items():
        assert p.grad is not None, name
        assert p.grad.abs().max() > 0, name


def test_wrong_groups_are_refused():
    for wrong in ("0.2", "5.0", "0", "x", ["0.1", "0.9"], ""):
        with pytest.raises(OptionError, match=r"expected keep as layer\.group among 0\.0 … 1\.1"):
            replace_attention(decoder("llama"), "hedgehog", keep=wrong)
    with pytest.raises(ConversionError, match=r"expected keep=0\.1 in a causal layer"):
        replace_attention(bert(), "hedgehog", keep="0.1")
    with pytest.raises(ConversionError, match="with causal layers of transformers"):
        replace_attention(torch_encoder(), "hedgehog", keep="0.1")
    with pytest.raises(OptionError, match="expected keep beside a feature map"):
        replace_attention(decoder("llama"), "infsa", keep="0.1")
    with pytest.raises(OptionError, match="expected some of 2 groups, not all"):
        MixedHeads(LinearHeads(2, 8), (0, 1), 2)
