"""Removing the last tokens of a state, as speculative generation does with rejected tokens."""

from __future__ import annotations

import copy

import pytest
import torch

from fredholm.convert import cache_size, replace_attention
from fredholm.errors import ConversionError
from fredholm.linearization import cache as cache_module

from .library import decoder

pytest.importorskip("transformers")
from transformers import DynamicCache

from .test_cache import ROUNDED, generated, prompt

WINDOW = 3
VARIANTS = {
    "window": {"window": WINDOW, "sinks": 1},
    "no sinks": {"window": WINDOW, "sinks": 0},
    "no window": {"window": 0},
    "kept": {"window": WINDOW, "sinks": 1, "keep": "0.1"},
}
LONG = torch.arange(3, 23)[None] % 37


@pytest.fixture
def narrow(monkeypatch):
    """Allow removing only as many tokens as the window has, so that tests are short."""
    monkeypatch.setattr(cache_module, "PENDING", WINDOW)


def converted(variant: str, name: str = "llama"):
    torch.manual_seed(0)
    model = replace_attention(decoder(name), "hedgehog", **VARIANTS[variant]).model.double()
    for part in model.modules():  # makes the state matter
        if getattr(part, "gain", None) is not None:
            part.gain.data += 6.0
    return model.eval()


def recording(model, ids, **options):
    """Return a cache after a prompt, which records from then on."""
    cache = DynamicCache()
    model(ids, past_key_values=cache, **options)
    cache.activate_past_recording()
    return cache


@torch.no_grad()
@pytest.mark.parametrize("sizes", [[2], [1, 1, 1], [1, 4], [5, 2], [1] * 11])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cropped_cache_equals_one_without_the_tokens(narrow, variant, sizes):
    model = converted(variant)
    for removed in (1, 2, 3):
        if removed > sum(sizes):
            continue
        cache = recording(model, LONG[:, :6])
        start = 6
        for size in sizes:
            other = (LONG[:, start : start + size] + 11) % 37
            wrong = start + size > 6 + sum(sizes) - removed
            tokens = LONG[:, start : start + size].clone()
            if wrong:  # the removed tokens are other text
                keep = max(0, 6 + sum(sizes) - removed - start)
                tokens[:, keep:] = other[:, keep:]
            model(tokens, past_key_values=cache)
            start += size
        cache.crop(-removed)
        assert cache.get_seq_length() == start - removed
        rest = LONG[:, start - removed :]
        expected = model(LONG, use_cache=False).logits[:, start - removed :]
        found = model(rest[:, :1], past_key_values=cache).logits
        found = torch.cat([found, model(rest[:, 1:], past_key_values=cache).logits], 1)
        torch.testing.assert_close(found, expected, **ROUNDED)


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_are_removed_twice_and_after_a_long_prefill(narrow, variant):
    model = converted(variant)
    cache = recording(model, LONG[:, :2])
    model(LONG[:, 2:15], past_key_values=cache)  # longer than the window
    cache.crop(-1)
    cache.crop(-2)
    found = model(LONG[:, 12:], past_key_values=cache).logits
    torch.testing.assert_close(found, model(LONG, use_cache=False).logits[:, 12:], **ROUNDED)
    cache.crop(0)
    assert cache.get_seq_length() == LONG.shape[1]


@torch.no_grad()
@pytest.mark.parametrize("variant", ["window", "kept"])
def test_removed_padding_leaves_no_trace(narrow, variant):
    model = converted(variant)
    ids = torch.cat([LONG, LONG + 1]) % 37
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[1, :3] = 0
    mask[0, 9] = 0
    cache = recording(model, ids[:, :6], attention_mask=mask[:, :6])
    model(ids[:, 6:10], attention_mask=mask[:, :10], past_key_values=cache)
    cache.crop(-2)
    cache.batch_select_indices(torch.tensor([1, 0]))
    ids, mask = ids.flip(0), mask.flip(0)
    found = model(ids[:, 8:], attention_mask=mask, past_key_values=cache).logits
    expected = model(ids, attention_mask=mask, use_cache=False).logits[:, 8:]
    real = mask[:, 8:].bool()
    torch.testing.assert_close(found[real], expected[real], **ROUNDED)


@torch.no_grad()
def test_a_copied_cache_is_a_snapshot_and_recorded_bytes_are_counted():
    model = converted("window")
    plain = DynamicCache()
    model(LONG[:, :8], past_key_values=plain)
    before = cache_size(plain).linear_bytes
    fork = copy.deepcopy(plain)
    plain.activate_past_recording()
    assert cache_size(plain).linear_bytes == 2 * before
    model(LONG[:, 8:10], past_key_values=plain)
    assert cache_size(plain).linear_bytes > 2 * before
    again = copy.deepcopy(plain)
    for cache in (plain, again):
        cache.crop(-2)
    expected = model(LONG[:, 8:], past_key_values=fork).logits
    for cache in (plain, again):
        found = model(LONG[:, 8:], past_key_values=cache).logits
        torch.testing.assert_close(found, expected, **ROUNDED)


@torch.no_grad()
def test_tokens_that_cannot_be_removed_are_refused_by_name(narrow):
    model = converted("window")
    cache = model(LONG).past_key_values
    assert not cache.is_croppable
    with pytest.raises(ConversionError, match=r"records its past, got crop\(-2\) of one that does"):
        cache.crop(-2)
    cache = recording(model, LONG[:, :4])
    assert cache.is_croppable
    for i in range(4, 16):
        model(LONG[:, i : i + 1], past_key_values=cache)
    with pytest.raises(ConversionError, match=r"at most \d tokens to crop, of the last 3 or more"):
        cache.crop(-12)
    with pytest.raises(ConversionError, match="expected a negative number of tokens to crop"):
        cache.crop(2)
    cache.crop(-WINDOW)  # a refusal does not change the cache
    found = model(LONG[:, 13:], past_key_values=cache).logits
    torch.testing.assert_close(found, model(LONG, use_cache=False).logits[:, 13:], **ROUNDED)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_prompt_lookup_decoding_changes_no_token(variant, name):
    model = converted(variant, name)
    ids = {"input_ids": torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6]])}
    options = {"max_new_tokens": 12, "min_new_tokens": 12}
    expected, logits = generated(model, ids, **options)
    found, ours = generated(model, ids, prompt_lookup_num_tokens=4, **options)
    assert found.sequences.equal(expected.sequences)
    torch.testing.assert_close(ours, logits, **ROUNDED)


@torch.no_grad()
def test_assisted_decoding_changes_no_token():
    model = converted("window")
    source = decoder("llama").double().eval()
    ids = prompt()["input_ids"][:1]
    options = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    for one, other in ((model, source), (source, model), (model, converted("no window"))):
        expected = one.generate(ids, **options)
        assert one.generate(ids, assistant_model=other, **options).equal(expected)
