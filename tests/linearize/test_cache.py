"""A converted decoder's state: equal to running without a cache, and of fixed size."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import Tensor

from fredholm.convert import cache_size, replace_attention, smaller_from
from fredholm.errors import ConversionError, DomainError, OptionError
from fredholm.linearization import LinearHeads
from fredholm.linearization.heads import Seen
from fredholm.linearization.state import advance

from .library import DECODERS, GROUPED, MODELS, decoder, inputs, library
from .models import spread

pytest.importorskip("transformers")
from transformers import DynamicCache, StaticCache

from fredholm.linearization.cache import LinearState

N, PAD = 9, 4
EXACT = {"atol": 1e-10, "rtol": 1e-10}
ROUNDED = {"atol": 1e-6, "rtol": 1e-6}  # generate gives logits in float32


@cache
def converted(name: str, to: str = "hedgehog", window: int | None = None):
    """Return a fully converted decoder in float64, shared by tests, which must not change it."""
    torch.manual_seed(0)
    return replace_attention(decoder(name), to, window=window).model.double()


@cache
def mixed():
    """Return a decoder with softmax in its second layer."""
    layers = ["model.layers.0.self_attn"]
    return replace_attention(
        decoder("llama"), "hedgehog", layers=layers, window=None
    ).model.double()


@cache
def prompt() -> dict[str, Tensor]:
    """Return two sequences, the second padded on the left."""
    ids = torch.randint(3, 40, (2, N), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, :PAD] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def generated(model, arguments: dict[str, Tensor] | None = None, *, new: int = 4, **options):
    """Return the output of ``generate``, and the logits of each new token."""
    kept = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    kept |= {"max_new_tokens": new, "min_new_tokens": new}
    with torch.no_grad():
        out = model.generate(**(arguments or prompt()), **kept | options)
    return out, torch.stack(out.logits, 1)


@torch.no_grad()
def whole(model, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the logits of one forward pass without a cache."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    options = {"attention_mask": mask, "position_ids": positions, "use_cache": False}
    return model(input_ids=ids, **options).logits


# --- with and without a cache ---------------------------------------------------------------------


@pytest.mark.parametrize("name", DECODERS)
def test_generate_equals_the_forward(name):
    model = converted(name)
    out, logits = generated(model)
    assert all(isinstance(layer, LinearState) for layer in out.past_key_values.layers)
    mask = torch.cat([prompt()["attention_mask"], torch.ones(2, 4, dtype=torch.long)], 1)
    expected = whole(model, out.sequences, mask)[:, N - 1 : -1].float()
    torch.testing.assert_close(logits, expected, **ROUNDED)


@pytest.mark.parametrize("name", DECODERS)
def test_steps_and_prefills_equal_the_forward(name):
    model = converted(name)
    ids = prompt()["input_ids"][:1]
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        for sizes in ([1] * N, [4, 1, 4]):
            kept = DynamicCache()
            found = []
            for part in ids.split(sizes, 1):
                found.append(model(part, past_key_values=kept, use_cache=True).logits)
            torch.testing.assert_close(torch.cat(found, 1), expected, **EXACT)
            assert kept.get_seq_length() == N


@pytest.mark.parametrize("name", DECODERS)
def test_a_left_padded_row_equals_the_row_alone(name):
    _, together = generated(converted(name))
    alone = {key: x[1:, PAD:] for key, x in prompt().items()}
    torch.testing.assert_close(together[1:], generated(converted(name), alone)[1], **ROUNDED)


@pytest.mark.parametrize("name", DECODERS)
def test_beam_search_with_and_without_a_cache_agree(name):
    options = {"num_beams": 3, "output_scores": True}
    found, _ = generated(converted(name), **options)
    expected, _ = generated(converted(name), use_cache=False, **options)
    assert found.sequences.equal(expected.sequences)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)


# Two chunks of the second row are only padding.
@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_chunked_prompt_equals_one_prefill(name, size):
    found, expected = (generated(converted(name), prefill_chunk_size=x)[1] for x in (size, None))
    torch.testing.assert_close(found, expected, **ROUNDED)


def test_sampling_with_and_without_a_cache_agrees():
    model = converted("llama")
    found = []
    for kept in (True, False):
        torch.manual_seed(3)
        options = {"do_sample": True, "num_return_sequences": 2, "use_cache": kept}
        found.append(generated(model, **options)[0].sequences)
    assert found[0].shape == (4, N + 4)
    assert found[0].equal(found[1])


@pytest.mark.parametrize("to", ["luna", "elu", "performer", "t2r", "rff"])
def test_every_feature_map_agrees_with_and_without_a_cache(to):
    model = converted("llama", to)
    found, expected = (generated(model, use_cache=kept)[1] for kept in (True, False))
    torch.testing.assert_close(found, expected, **ROUNDED)


def test_a_second_turn_continues_with_the_cache():
    model = converted("llama")
    first = prompt()["input_ids"][:1]
    out, _ = generated(model, {"input_ids": first, "attention_mask": torch.ones_like(first)})
    ids = torch.cat([out.sequences, first], 1)
    arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    _, found = generated(model, arguments, past_key_values=out.past_key_values)
    torch.testing.assert_close(found, generated(model, arguments, use_cache=False)[1], **ROUNDED)


@torch.no_grad()
def test_a_copied_cache_is_independent():
    model = converted("gpt2")
    ids = prompt()["input_ids"][:1]
    kept = model(ids).past_key_values
    fork = copy.deepcopy(kept)
    token = ids[:, :1]
    expected = model(token, past_key_values=kept).logits
    model(token + 1, past_key_values=kept)
    assert model(token, past_key_values=fork).logits.equal(expected)


def test_the_state_of_a_bfloat16_model_is_float32():
    model = replace_attention(decoder("llama"), "hedgehog", window=None).model.bfloat16()
    out, logits = generated(model, new=3)
    layer = out.past_key_values.layers[0]
    assert layer.memory()["moment"].dtype == torch.float32
    mask = torch.cat([prompt()["attention_mask"], torch.ones(2, 3, dtype=torch.long)], 1)
    expected = whole(model, out.sequences, mask)[:, N - 1 : -1]
    torch.testing.assert_close(logits.float(), expected.float(), atol=0.05, rtol=0.05)


@torch.no_grad()
def test_a_state_continues_in_another_precision():
    model = replace_attention(decoder("gpt2"), "hedgehog").model
    ids = prompt()["input_ids"][:1]
    expected = model(ids, use_cache=False).logits[:, 5:]
    for first, then in [(torch.float32, torch.float64), (torch.float64, torch.float32)]:
        kept = model.to(first)(ids[:, :5]).past_key_values
        found = model.to(then)(ids[:, 5:], past_key_values=kept).logits
        assert found.dtype == kept.layers[0].memory()["moment"].dtype == then
        torch.testing.assert_close(found.float(), expected, atol=1e-4, rtol=1e-4)


def test_training_caches_keys_instead_of_states():
    model = replace_attention(decoder("llama"), "hedgehog", window=None).model.train()
    out = model(prompt()["input_ids"], use_cache=True)
    assert cache_size(out.past_key_values).linear_layers == 0


# --- beside layers with softmax -------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 2])
def test_layers_with_state_and_with_keys_agree_without_a_cache(size):
    out, found = generated(mixed(), prefill_chunk_size=size)
    torch.testing.assert_close(found, generated(mixed(), use_cache=False)[1], **ROUNDED)
    kinds = [type(layer) is LinearState for layer in out.past_key_values.layers]
    assert kinds == [True, False]


@pytest.mark.parametrize("size", [None, 5])
def test_layers_with_state_and_with_windows_agree_without_a_cache(size):
    model = replace_attention(library("gemma3"), "hedgehog", keep_refused=True).model.double()
    mask = torch.ones_like(inputs("gemma3")["input_ids"])
    mask[1, :3] = 0
    arguments = {"input_ids": inputs("gemma3")["input_ids"] * mask, "attention_mask": mask}
    _, found = generated(model, arguments, new=6, prefill_chunk_size=size)
    torch.testing.assert_close(
        found, generated(model, arguments, new=6, use_cache=False)[1], **ROUNDED
    )


@pytest.mark.parametrize("beams", [1, 3])
def test_a_decoder_with_cross_attention_agrees_without_a_cache(beams):
    model = library("bart")
    arguments = inputs("bart")
    replaced = replace_attention(model.get_decoder(), "hedgehog", keep_refused=True)
    model.model.decoder = replaced.model
    out, found = generated(model.double(), arguments, num_beams=beams)
    kept = cache_size(out.past_key_values.self_attention_cache)
    assert (kept.linear_layers, kept.softmax_layers) == (2, 0)
    whole = cache_size(out.past_key_values)
    assert (whole.linear_bytes, whole.softmax_layers) == (kept.linear_bytes, 2)
    assert whole.softmax_bytes > 0, "of cross attention"
    torch.testing.assert_close(
        found, generated(model, arguments, num_beams=beams, use_cache=False)[1], **ROUNDED
    )


# --- size -----------------------------------------------------------------------------------------


@torch.no_grad()
def size_after(model, tokens: int):
    kept = DynamicCache()
    for part in (tokens - 1, 1):
        model(torch.ones(1, part, dtype=torch.long), past_key_values=kept, use_cache=True)
    return cache_size(kept)


def test_the_cache_size_does_not_grow_with_the_tokens():
    short, long = (size_after(converted("llama"), n) for n in (16, 512))
    assert short.linear_bytes == long.linear_bytes > 0
    assert (long.softmax_layers, long.softmax_bytes, long.tokens) == (0, 0, 512)


def test_layers_with_softmax_are_counted_separately():
    short, long = (size_after(mixed(), n) for n in (16, 512))
    assert short.linear_bytes == long.linear_bytes
    assert long.softmax_bytes == 32 * short.softmax_bytes == 512 * 2 * 2 * 8 * 8
    assert "1 layers with keys, " in str(long)


@pytest.mark.parametrize(("to", "states"), [("hedgehog", 4), ("elu", 2), ("performer", 2)])
def test_heads_with_shared_keys_and_map_share_a_state(to, states):
    layer = generated(converted("llama", to))[0].past_key_values.layers[0]
    assert layer.memory()["moment"].shape[:2] == (2, states)


def test_smaller_from_counts_numbers_of_state_and_keys():
    # 9 heads, 128 features, width 64, keys of 3 heads: 9·128·65 numbers are 195 · 2·3·64.
    assert smaller_from(9, 128, 64, groups=3, exponential=False) == 196
    assert smaller_from(9, 128, 64, groups=3) == 196
    assert smaller_from(3, 128, 64, groups=3, exponential=False) == 66
    assert smaller_from(9, 128, 64, groups=3, exponential=False, cache_bytes=2) == 391
    # The keys and values of a window equal 64 tokens of a cache; 64 masses are less than one.
    assert smaller_from(9, 128, 64, groups=3, exponential=False, window=64) == 196 + 64
    with pytest.raises(OptionError, match="at least 1"):
        smaller_from(0, 128, 64, groups=3)
    with pytest.raises(OptionError, match="or 0, got -1"):
        smaller_from(9, 128, 64, groups=3, window=-1)


def test_smaller_from_matches_a_real_cache():
    model = converted("llama")  # hedgehog: 16 features of width 8
    n = smaller_from(4, 16, 8, groups=2, state_bytes=8, cache_bytes=8)
    state = size_after(model, 16).linear_bytes - 2 * 8  # without each layer's number of tokens
    softmax = [2 * 2 * 2 * 8 * 8 * tokens for tokens in (n - 1, n)]
    assert softmax[0] <= state < softmax[1]


# --- states without a model -----------------------------------------------------------------------


def test_any_split_gives_the_values_and_gradients_of_one_forward():
    torch.manual_seed(0)
    heads = LinearHeads(4, 8, feature_map="hedgehog").double()
    query, key, value = (torch.randn(2, h, 7, 8, dtype=torch.float64) for h in (4, 2, 2))
    key.requires_grad_()
    expected = heads(query, key, value, Seen(causal=True))
    (grad,) = torch.autograd.grad(expected.square().sum(), key)
    for sizes in ([7], [3, 1, 3], [1] * 7):
        memory, found = {}, []
        for part in zip(*(x.split(sizes, 2) for x in (query, key, value))):
            out, memory = advance(heads, *part, None, memory)
            found.append(out)
        torch.testing.assert_close(torch.cat(found, 2), expected, **EXACT)
        (mine,) = torch.autograd.grad(torch.cat(found, 2).square().sum(), key)
        torch.testing.assert_close(mine, grad, **EXACT)


@pytest.mark.parametrize("to", ["hedgehog", "performer"])
def test_a_later_larger_key_changes_no_earlier_output(to):
    torch.manual_seed(0)
    heads = LinearHeads(2, 4, feature_map=to).double()
    query, key, value = (torch.randn(1, 2, 6, 4, dtype=torch.float64) for _ in range(3))
    key[:, :, 4:] *= 15
    found = heads(query, key, value, Seen(causal=True))
    before = heads(*(x[:, :, :4] for x in (query, key, value)), Seen(causal=True))
    torch.testing.assert_close(found[:, :, :4], before, **EXACT)
    pairs = heads(
        query, key, value, Seen(pairs=torch.ones(6, 6, dtype=torch.bool).tril()[None, None])
    )
    torch.testing.assert_close(found, pairs, **EXACT)
    first, memory = advance(heads, *(x[:, :, :5] for x in (query, key, value)), None, {})
    last, _ = advance(heads, *(x[:, :, 5:] for x in (query, key, value)), None, memory)
    torch.testing.assert_close(torch.cat([first, last], 2), found, **EXACT)


def test_padding_before_keys_of_tiny_features_changes_no_output():
    torch.manual_seed(0)
    heads = LinearHeads(1, 4, feature_map="performer")
    query, key, value = (torch.randn(1, 1, 5, 4) for _ in range(3))
    key = 40 + key / 100  # exponents near -1,600
    valid = torch.tensor([[False, False, True, True, True]])
    expected = heads(query, key, value, Seen(valid, causal=True))
    memory, found = {}, []
    for at in range(5):
        part = (x[:, :, at : at + 1] for x in (query, key, value))
        out, memory = advance(heads, *part, valid[:, at : at + 1], memory)
        found.append(out)
    assert expected[:, :, 2:].abs().min() > 0
    torch.testing.assert_close(torch.cat(found, 2), expected)


# --- refusals -------------------------------------------------------------------------------------


@torch.no_grad()
def test_caches_without_states_are_refused():
    model = converted("llama")
    ids = prompt()["input_ids"][:1]
    filled = decoder("llama").double()(ids, use_cache=True).past_key_values
    with pytest.raises(ConversionError, match="DynamicCache holds the keys of 9 tokens"):
        model(ids, past_key_values=filled)
    static = StaticCache(config=model.config, max_cache_len=16)
    with pytest.raises(ConversionError, match="StaticCache has a StaticLayer there"):
        model(ids, past_key_values=static)
    for kept in (DynamicCache(), DynamicCache(config=model.config)):
        assert model(ids, past_key_values=kept).past_key_values is kept
        assert cache_size(kept).linear_layers == 2


@torch.no_grad()
def test_hybrid_caches_and_models_that_read_keys_are_refused():
    from transformers import FalconH1Config, FalconH1ForCausalLM

    mamba = {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
    source = spread(FalconH1ForCausalLM(FalconH1Config(**GROUPED, **mamba, mamba_chunk_size=4)))
    model = replace_attention(source, "hedgehog").model
    ids = prompt()["input_ids"]
    with pytest.raises(ConversionError, match=r"cannot hold it\. Pass use_cache=False"):
        model(ids)
    assert model(ids, use_cache=False).logits.shape == (2, N, 40)
    model = replace_attention(library("whisper"), "hedgehog", keep_refused=True).model
    arguments = inputs("whisper") | {"max_new_tokens": 3, "return_dict_in_generate": True}
    with pytest.raises(ConversionError, match="keys and values were asked of a layer with linear"):
        model.generate(**arguments)
    assert model.generate(**arguments, use_cache=False).sequences.shape[0] == 2


@torch.no_grad()
def test_masks_of_pairs_over_the_past_are_refused():
    model = converted("llama")
    ids = prompt()["input_ids"][:1]
    kept = model(ids).past_key_values
    pairs = torch.ones(1, 1, 2, N + 2, dtype=torch.bool)
    with pytest.raises(ConversionError, match=r"a mask of pairs, \(1, 1, 2, 11\), reaches back"):
        model(ids[:, :2], attention_mask=pairs, past_key_values=kept)
    with pytest.raises(ConversionError, match="holds 1 sequences, and the call has 2"):
        model(prompt()["input_ids"], past_key_values=kept)


def step(model, kept, mask):
    """Process the next token of each sequence, at the position after its real tokens."""
    mask = torch.cat([mask, torch.ones(len(mask), 1, dtype=torch.long)], 1)
    options = {"attention_mask": mask, "position_ids": mask.sum(1, keepdim=True) - 1}
    return model(mask[:, -1:] + 6, past_key_values=kept, **options)


@torch.no_grad()
def test_masks_that_hide_tokens_of_the_state_are_refused():
    """Right padding that the first call did not mask, and a turn that unmasks padding."""
    model = converted("llama", window=3)
    ids = prompt()["input_ids"]
    right = prompt()["attention_mask"].flip(1)
    with pytest.raises(ConversionError, match=r"hides \[0, 4\] tokens of the past.* hid 0 when"):
        step(model, model(ids).past_key_values, right)
    kept = model(**prompt()).past_key_values
    kept.batch_repeat_interleave(2)
    kept.reorder_cache(torch.tensor([3, 0]))
    with pytest.raises(ConversionError, match=r"hides \[0, 0\] tokens of the past.* \[4, 0\]"):
        model(ids, attention_mask=torch.ones(2, 2 * N), past_key_values=kept)
    for tokens in (ids, ids[:, :1]):
        with pytest.raises(ConversionError, match=r"without a mask hides \[0, 0\].* \[4, 0\]"):
            model(tokens, past_key_values=kept)
    step(model, kept, prompt()["attention_mask"].flip(0))
    padding = torch.cat([prompt()["attention_mask"].flip(0), torch.tensor([[1, 0], [1, 1]])], 1)
    # Single tokens are counted too.
    model(ids[:, :1], attention_mask=padding, past_key_values=kept)
    whole = torch.cat([padding, torch.ones(2, 2)], 1)
    model(ids[:, :2], attention_mask=whole, past_key_values=kept)


@torch.no_grad()
def test_a_right_padded_batch_with_its_mask_equals_each_row_alone():
    model = converted("llama")
    ids = prompt()["input_ids"]
    right = prompt()["attention_mask"].flip(1)
    found = step(model, model(ids, attention_mask=right).past_key_values, right).logits[1]
    alone = torch.cat([ids[1:, : N - PAD], torch.tensor([[7]])], 1)
    torch.testing.assert_close(found, model(alone, use_cache=False).logits[0, -1:], **EXACT)


@torch.no_grad()
def test_attention_that_runs_twice_per_pass_is_refused():
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

    source = spread(DiffLlamaForCausalLM(DiffLlamaConfig(**GROUPED)))
    model = replace_attention(source, "hedgehog").model
    ids = prompt()["input_ids"]
    with pytest.raises(ConversionError, match=r"DiffLlamaAttention asks .* more than once a pass"):
        model(ids)
    assert model(ids, use_cache=False).logits.isfinite().all()


@torch.no_grad()
def test_a_cache_with_surplus_layers_works():
    """For a decoder of an encoder-decoder, the library creates a layer per layer of the encoder."""
    from transformers import BartConfig, BartForCausalLM

    chosen = MODELS["bart"][2] | {"encoder_layers": 4}
    source = spread(BartForCausalLM(BartConfig(**chosen)))
    layers = ["*.self_attn"]
    model = replace_attention(source, "hedgehog", layers=layers).model
    found, expected = (generated(model.double(), use_cache=x)[1] for x in (True, False))
    torch.testing.assert_close(found, expected, **ROUNDED)


def test_prompts_beyond_learned_positions_are_refused():
    ids = torch.ones(1, 70, dtype=torch.long)
    arguments = {"input_ids": ids[:, :60], "attention_mask": ids[:, :60]}
    with pytest.raises(DomainError, match="70 tokens, and the model has learned 64 positions"):
        converted("gpt2")(ids)
    with pytest.raises(DomainError, match="65 tokens, and the model has learned 64 positions"):
        generated(converted("gpt2"), arguments, new=8)
    out, found = generated(converted("llama"), arguments | {"attention_mask": None})  # rotary
    mask = torch.ones_like(out.sequences)
    torch.testing.assert_close(
        found, whole(converted("llama"), out.sequences, mask)[:, 59:-1].float(), **ROUNDED
    )


@torch.no_grad()
def test_reserved_rows_of_position_tables_are_respected():
    """OPT's and BART's tables reserve two rows."""
    from transformers import OPTConfig, OPTForCausalLM

    ids = torch.ones(1, 40, dtype=torch.long)
    sizes = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48, "num_hidden_layers": 1}
    config = OPTConfig(vocab_size=40, max_position_embeddings=32, num_attention_heads=4, **sizes)
    opt = replace_attention(spread(OPTForCausalLM(config)), "hedgehog").model
    bart = replace_attention(library("bart"), "hedgehog", keep_refused=True).model
    for model, names in ((opt, ["input_ids"]), (bart, ["input_ids", "decoder_input_ids"])):
        assert model(**dict.fromkeys(names, ids[:, :32])).logits.shape[1] == 32
        for name in names:
            arguments = dict.fromkeys(names, ids[:, :3]) | {name: ids[:, :33]}
            with pytest.raises(DomainError, match="33 tokens, and the model has learned 32"):
                model(**arguments)
    with pytest.raises(DomainError, match="33 tokens, and the model has learned 32"):
        opt.generate(ids[:, :30] + 3, max_new_tokens=5, min_new_tokens=5)


@torch.no_grad()
def test_the_softmax_mode_needs_a_cache_of_keys():
    replaced = replace_attention(decoder("llama"), "elu")
    ids = prompt()["input_ids"]
    kept = replaced.model(ids).past_key_values
    with replaced.mode("softmax"):
        with pytest.raises(ConversionError, match="the mode is 'softmax', which needs keys"):
            replaced.model(ids[:, :1], past_key_values=kept)
        found, expected = (generated(replaced.model, use_cache=x)[1] for x in (True, False))
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_a_cache_can_be_repeated_selected_and_reset():
    model = converted("llama")
    ids = prompt()["input_ids"]
    kept = model(ids).past_key_values
    before = kept.layers[1].memory()
    kept.batch_repeat_interleave(2)
    kept.batch_select_indices(torch.tensor([3]))
    for name, value in kept.layers[1].memory().items():
        assert value.equal(before[name][1:])
    kept.reset()
    assert kept.get_seq_length() == 0
    assert model(ids, past_key_values=kept).logits.equal(model(ids).logits)
