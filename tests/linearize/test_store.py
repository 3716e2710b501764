"""A store beside the window: earlier tokens with the state's largest errors, read by softmax."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from fredholm.convert import (
    cache_size,
    load_linearized,
    replace_attention,
    save_linearized,
    smaller_from,
)
from fredholm.errors import ConversionError, OptionError
from fredholm.integral.feature_map import FEATURE_MAPS
from fredholm.linearization import LinearHeads
from fredholm.linearization import cache as cache_module
from fredholm.linearization.heads import Seen, clean
from fredholm.linearization.state import advance
from fredholm.ops.linear_attention import stored_naive

from .library import decoder
from .models import bert, torch_encoder

pytest.importorskip("transformers")
from transformers import DynamicCache

from fredholm.linearization.cache import LinearState

from .test_cache import EXACT, ROUNDED, generated, prompt
from .test_rollback import recording

MAPS = ["hedgehog", "luna", "elu", "performer"]
LONG = torch.arange(3, 29)[None] * 7 % 37
# Window, sinks, store: fewer points than a block, more, and sinks of a number of their own.
SIZES = [(3, 0, 2), (3, 1, 5), (4, 2, 1)]
N = 23


def points(n: int = N) -> list[Tensor]:
    """Return queries of four heads, keys and values of two."""
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(2, h, n, 8, generator=draw, dtype=torch.float64) for h in (4, 2, 2)]


def holes(n: int = N) -> Tensor:
    return torch.rand(2, n, generator=torch.Generator().manual_seed(3)) > 0.3


def padded(n: int = N) -> Tensor:
    return torch.arange(n) >= torch.tensor([[0], [4]])


def heads_of(to: str = "hedgehog", sizes: tuple[int, int, int] = (3, 1, 2)) -> LinearHeads:
    torch.manual_seed(0)
    window, sinks, store = sizes
    options = {"window": window, "sinks": sinks, "store": store}
    return LinearHeads(4, 8, feature_map=to, **options).double()


def dense(heads: LinearHeads, query, key, value, valid: Tensor | None) -> Tensor:
    """Return the output by the weights of all pairs."""
    key, value = clean(key, valid), clean(value, valid)
    seen = Seen(valid, causal=True)
    weights = heads.student_weights(query, heads.share(key), seen, 8**-0.5, value)
    return weights @ heads.share(value)


def real(valid: Tensor | None) -> Tensor:
    if valid is None:
        valid = torch.ones(2, N, dtype=torch.bool)
    return valid[:, None, :, None]


MASKS = {"all": lambda: None, "left": padded, "holes": holes}

# --- one layer ------------------------------------------------------------------------------------


def test_the_store_keeps_the_tokens_with_the_largest_error():
    """A window of one, a store of one, and equal features.

    The state's output is then the mean of its values. Each token is decided when it leaves the
    window.
    """
    value = torch.tensor([1.0, 1.0, 9.0, 2.0, -30.0, 3.0, 0.0]).view(1, 1, 7, 1)
    key, visible = torch.ones(1, 1, 7, 1), torch.ones(1, 7, dtype=torch.bool)
    seen = stored_naive(key, value, visible, window=1, sinks=0, store=1)[0, 0]
    # The first token is alone, then 1 beside a state of nothing: both err by 1, the older stays.
    assert [row.nonzero().flatten().tolist() for row in seen] == [[], [0], [0], [2], [2], [4], [4]]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("to", MAPS)
def test_a_layer_equals_its_definition_in_values_and_gradients(to, sizes, mask):
    heads = heads_of(to, sizes)
    valid = MASKS[mask]()
    inputs = [x.requires_grad_() for x in points()]
    found = heads(*inputs, Seen(valid, causal=True)) * real(valid)
    expected = dense(heads, *inputs, valid) * real(valid)
    torch.testing.assert_close(found, expected, **EXACT)
    leaves = [*inputs, *heads.parameters()]
    for g, h in zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in (found, expected))):
        torch.testing.assert_close(g, h, atol=1e-8, rtol=1e-8)


def test_a_store_changes_the_answer_and_each_token_counts_once():
    heads = heads_of()
    query, key, value = points()
    weights = heads.student_weights(query, heads.share(key), Seen(causal=True), 8**-0.5, value)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, N).double(), **EXACT)
    # With equal values every output equals that value, wherever a token is kept.
    out = heads(query, key, torch.ones_like(value), Seen(causal=True))
    torch.testing.assert_close(out, torch.ones_like(out), **EXACT)
    without = LinearHeads(4, 8, feature_map="hedgehog", window=3, sinks=1).double()
    without.load_state_dict(heads.state_dict())
    found, other = (x(query, key, value, Seen(causal=True)) for x in (heads, without))
    assert (found - other).abs().max() > 0.01


def test_a_store_of_all_tokens_is_softmax():
    heads = heads_of(sizes=(3, 1, N))
    inputs = points()
    found = heads(*inputs, Seen(causal=True))
    heads.mode = "softmax"
    torch.testing.assert_close(found, heads(*inputs, Seen(causal=True)), **EXACT)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("parts", [[1] * N, [2, 1, 20], [9, 14]], ids=["ones", "mixed", "two"])
@pytest.mark.parametrize("sizes", SIZES)
def test_any_split_gives_values_gradients_and_state_of_one_prefill(sizes, parts, mask):
    heads = heads_of(sizes=sizes)
    query, key, value = points()
    valid = MASKS[mask]()
    key.requires_grad_()
    expected, state = advance(heads, query, key, value, valid, {})
    memory = {}
    found = []
    start = 0
    for size in parts:
        span = slice(start, start + size)
        some = None if valid is None else valid[:, span]
        out, memory = advance(heads, *(x[:, :, span] for x in (query, key, value)), some, memory)
        found.append(out)
        start += size
    found = torch.cat(found, 2)
    torch.testing.assert_close(found * real(valid), expected * real(valid), **EXACT)
    assert memory.keys() - {"sinks_filled"} == state.keys() - {"sinks_filled"}
    for name in state.keys() & memory.keys():
        torch.testing.assert_close(memory[name], state[name], **EXACT)
    grads = [torch.autograd.grad((y * real(valid)).sum(), key)[0] for y in (found, expected)]
    torch.testing.assert_close(*grads, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("parts", [[1] * N, [2, *[1] * 12, 9], [8, *[1] * 15]])
def test_in_place_steps_of_a_cache_equal_one_prefill(parts, mask):
    heads = heads_of()
    tensors = points()
    valid = MASKS[mask]()
    expected, memory = advance(heads, *tensors, valid, {})
    state = LinearState()
    found = []
    start = 0
    for size in parts:
        some = [x[:, :, start : start + size] for x in tensors]
        given = None if valid is None else valid[:, : start + size].long()
        found.append(state.advance(heads, *some, given, None))
        start += size
    torch.testing.assert_close(torch.cat(found, 2) * real(valid), expected * real(valid), **EXACT)
    for name, x in state.memory().items():
        torch.testing.assert_close(x, memory[name], **EXACT)


@torch.no_grad()
def test_a_token_within_a_block_allocates_no_state():
    heads = heads_of(sizes=(8, 1, 3))
    tensors = points()
    state = LinearState()
    state.advance(heads, *(x[:, :, :12] for x in tensors), None, None)
    places = {name: x.data_ptr() for name, x in state._tensors().items()}
    for at in range(12, 17):  # with one sink the next block begins at token 18
        state.advance(heads, *(x[:, :, at : at + 1] for x in tensors), None, None)
        assert {name: x.data_ptr() for name, x in state._tensors().items()} == places
    state.advance(heads, *(x[:, :, 17:18] for x in tensors), None, None)
    assert {name: x.data_ptr() for name, x in state._tensors().items()} != places


def test_blocks_of_64_tokens_are_decided_together():
    """The window is longer than a block; one call and two give the same."""
    heads = heads_of(sizes=(70, 2, 5))
    tensors = points(150)
    found = heads(*tensors, Seen(causal=True))
    torch.testing.assert_close(found, dense(heads, *tensors, None), **EXACT)


def test_outputs_do_not_depend_on_later_tokens():
    heads = heads_of()
    query, key, value = points()
    for later in (5, 8, 12):
        changed = [x.clone() for x in (key, value)]
        for x in changed:
            x[:, :, later:] = 20.0
        found, expected = (heads(query, *x, Seen(causal=True)) for x in (changed, (key, value)))
        torch.testing.assert_close(found[:, :, :later], expected[:, :, :later], **EXACT)


def test_masks_of_pairs_equal_order_and_padding():
    heads = heads_of()
    query, key, value = points()
    expected = heads(query, key, value, Seen(causal=True))
    order = torch.ones(N, N, dtype=torch.bool).tril()
    found = heads(query, key, value, Seen(pairs=order[None, None]))
    torch.testing.assert_close(found, expected, **EXACT)
    step = heads(query[:, :, -1:], key, value, Seen())
    torch.testing.assert_close(step, expected[:, :, -1:], **EXACT)
    order[9, 2] = False
    with pytest.raises(ConversionError, match="expected a mask of order and padding beside a st"):
        heads(query, key, value, Seen(pairs=order[None, None]))


# --- models ---------------------------------------------------------------------------------------

VARIANTS = {
    "store": {"window": 3, "sinks": 1, "store": 2},
    "no sinks": {"window": 3, "sinks": 0, "store": 4},
    "kept": {"window": 3, "sinks": 1, "store": 2, "keep": "0.1"},
}


def converted(variant: str = "store", name: str = "llama", to: str = "hedgehog"):
    torch.manual_seed(0)
    model = replace_attention(decoder(name), to, **VARIANTS[variant]).model.double()
    for part in model.modules():  # makes the state matter
        if getattr(part, "gain", None) is not None:
            part.gain.data += 6.0
    return model.eval()


@pytest.mark.parametrize(
    ("name", "to", "variant"),
    [("llama", "hedgehog", "store"), ("gpt2", "luna", "no sinks"), ("llama", "elu", "kept")],
)
def test_generate_equals_the_forward(name, to, variant):
    model = converted(variant, name, to)
    new = 9
    out, logits = generated(model, new=new)
    mask = torch.cat([prompt()["attention_mask"], torch.ones(2, new, dtype=torch.long)], 1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        whole = model(out.sequences, attention_mask=mask, position_ids=positions, use_cache=False)
    expected = whole.logits[:, -new - 1 : -1].float()
    torch.testing.assert_close(logits, expected, **ROUNDED)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_beams_and_chunks_agree_without_a_cache(name):
    model = converted(name=name)
    options = {"num_beams": 3, "output_scores": True, "new": 8}
    found, _ = generated(model, **options)
    expected, _ = generated(model, use_cache=False, **options)
    assert found.sequences.equal(expected.sequences)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)
    found, expected = (generated(model, prefill_chunk_size=x)[1] for x in (2, None))
    torch.testing.assert_close(found, expected, **ROUNDED)


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_removed_tokens_leave_no_trace_and_copies_are_independent(monkeypatch, variant):
    monkeypatch.setattr(cache_module, "PENDING", 3)
    model = converted(variant)
    expected = model(LONG, use_cache=False).logits
    cache = recording(model, LONG[:, :9])
    for at in range(9, 14):
        model(LONG[:, at : at + 1], past_key_values=cache)
    fork = copy.deepcopy(cache)
    model((LONG[:, 14:16] + 11) % 37, past_key_values=cache)
    cache.crop(-3)
    for one, start in ((cache, 13), (fork, 14)):
        found = [model(LONG[:, start : start + 1], past_key_values=one).logits]
        found.append(model(LONG[:, start + 1 :], past_key_values=one).logits)
        torch.testing.assert_close(torch.cat(found, 1), expected[:, start:], **ROUNDED)


@torch.no_grad()
def test_the_cache_size_is_fixed_and_counted():
    model = converted().float()
    sizes = []
    for tokens in (8, 26):
        cache = DynamicCache()
        model(LONG[:, :tokens], past_key_values=cache)
        sizes.append(cache_size(cache).linear_bytes)
    assert sizes[0] == sizes[1]
    # Two layers. Of four states 16 features, 8 + 1 values and an exponent; of 3 + 1 tokens two keys
    # and values and a mass; of two stores 2 keys, values and numbers; and how many came.
    numbers = 4 * (16 * 9 + 1) + 4 * (2 * 2 * 8 + 1) + 2 * 2 * (2 * 8 + 1) + 1
    assert sizes[0] == 2 * 4 * numbers
    first = smaller_from(4, 16, 8, groups=2, window=3, sinks=1, store=2)
    assert 2 * 2 * 8 * 4 * (first - 1) <= 4 * numbers < 2 * 2 * 8 * 4 * first


@torch.no_grad()
def test_a_saved_model_keeps_its_store(tmp_path):
    replaced = replace_attention(decoder("llama"), "luna", window=3, sinks=1, store=5)
    save_linearized(replaced, tmp_path)
    loaded = load_linearized(tmp_path)
    assert [m.store for m in loaded.modules() if isinstance(m, LinearHeads)] == [5, 5]
    assert loaded(LONG).logits.equal(replaced.model(LONG).logits)
    assert "and a store of 5 per group of heads" in (tmp_path / "README.md").read_text()


@torch.no_grad()
def test_attention_weights_include_the_store():
    model = converted()
    model.config.get_text_config()._attn_implementation_internal = "fredholm_linear"
    out = model(LONG, output_attentions=True, use_cache=False)
    assert len(out.attentions) == 2
    torch.testing.assert_close(out.attentions[0].sum(-1), torch.ones(1, 4, 26).double(), **EXACT)


def test_distillation_trains_maps_beside_a_store():
    replaced = replace_attention(decoder("llama"), "hedgehog", window=3, store=2)
    with replaced.mode("calibrate"):
        replaced.model(LONG)
    with replaced.mode("distil"):
        replaced.model(LONG)
        torch.stack(list(replaced.losses().values())).mean().backward()
    for name, p in replaced.new_parameters().items():
        assert p.grad is not None, name
        assert p.grad.abs().max() > 0, name


def test_an_exported_program_has_no_store():
    heads = heads_of()
    inputs = tuple(points())

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = heads

        def forward(self, query, key, value):
            return self.heads(query, key, value, Seen(causal=True))

    with pytest.raises(ConversionError, match="expected a layer without a store in an exported"):
        torch.export.export(Layer(), inputs)


def test_wrong_stores_are_refused(monkeypatch):
    for wrong in (-1, True):
        with pytest.raises(OptionError, match="expected store as a number of tokens, at least 0"):
            replace_attention(decoder("llama"), store=wrong)
    with pytest.raises(OptionError, match="expected a window beside store=4"):
        replace_attention(decoder("llama"), window=0, store=4)
    with pytest.raises(OptionError, match="expected a window beside store=4"):
        replace_attention(decoder("llama"), "infsa", store=4)
    with pytest.raises(ConversionError, match=r"has no causal order.* and store=4 between them"):
        replace_attention(bert(), store=4)
    with pytest.raises(ConversionError, match="expected store=4 with causal layers of transf"):
        replace_attention(torch_encoder(), store=4)
    monkeypatch.setattr(FEATURE_MAPS["hedgehog"], "pointwise", False)
    with pytest.raises(OptionError, match="features of a key depend on that key alone"):
        LinearHeads(4, 8, feature_map="hedgehog", window=3, store=2)
    monkeypatch.undo()
    heads = heads_of()
    query, key, _ = points()
    with pytest.raises(ConversionError, match="expected values beside store=2"):
        heads.weights(query, key, Seen(causal=True))
