"""A window of exact softmax beside linear attention: decoders with their last tokens and a state of
all earlier ones, under one normaliser.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fredholm.convert import cache_size, load_linearized, replace_attention, save_linearized
from fredholm.errors import ConversionError, OptionError
from fredholm.linearization import LinearHeads
from fredholm.linearization.divergence import divergence
from fredholm.linearization.heads import Seen
from fredholm.linearization.state import advance

from .library import DECODERS, decoder, library
from .models import bert, torch_encoder

pytest.importorskip("transformers")
from transformers import DynamicCache

from fredholm.linearization.cache import LinearState

from .test_cache import EXACT, PAD, ROUNDED, N, converted, generated, prompt, whole

WINDOW = 3
MAPS = ["hedgehog", "luna", "elu", "performer", "t2r"]


def points(n: int = 11, width: int = 8, spread: float = 1.0) -> list[Tensor]:
    """Return queries of four heads, keys and values of two."""
    generator = torch.Generator().manual_seed(1)
    options = {"generator": generator, "dtype": torch.float64}
    return [spread * torch.randn(2, h, n, width, **options) for h in (4, 2, 2)]


def heads_of(to: str, window: int | None = WINDOW, **options) -> LinearHeads:
    torch.manual_seed(0)
    heads = LinearHeads(4, 8, feature_map=to, window=window, **options).double()
    with torch.no_grad():
        heads.gain.add_(torch.randn(4))
    return heads


def naive(heads: LinearHeads, query, key, value, valid: Tensor) -> Tensor:
    """Return the output by the definition, without stabilisation."""
    key, value = (x.repeat_interleave(2, 1) for x in (key, value))
    n = query.shape[2]
    distance = torch.arange(n)[:, None] - torch.arange(n)
    maps = heads.feature_map, heads.feature_map if heads.key_map is None else heads.key_map
    far = maps[0](query) @ maps[1](key).mT * heads.gain.exp()[:, None, None]
    near = (query @ key.mT * query.shape[-1] ** -0.5).exp()
    weights = torch.where(distance < heads.window, near, far)
    weights = torch.where((distance >= 0) & valid[:, None, None], weights, 0.0)
    real = valid[:, None, :, None]
    mass = torch.where(real, weights.sum(-1, keepdim=True), 1.0)
    return torch.where(real, weights @ value / mass, 0.0)


# --- one layer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", MAPS)
def test_a_layer_equals_its_definition_in_values_and_gradients(to):
    """With left padding, and a length that the window does not divide."""
    heads = heads_of(to, tied=to != "hedgehog")
    inputs = points()
    inputs = [x.requires_grad_() for x in inputs]
    valid = torch.arange(11) >= torch.tensor([[0], [4]])
    real = valid[:, None, :, None]
    expected = naive(heads, *inputs, valid)
    found = torch.where(real, heads(*inputs, Seen(valid, causal=True)), 0.0)
    torch.testing.assert_close(found, expected, **EXACT)
    leaves = [*inputs, *heads.parameters()]
    for g, h in zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in (found, expected))):
        torch.testing.assert_close(g, h, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("to", MAPS)
@pytest.mark.parametrize("sizes", [[1] * 11, [2, 1, 8], [5, 6]])
def test_any_split_gives_values_gradients_and_state_of_one_prefill(to, sizes):
    heads = heads_of(to)
    query, key, value = points()
    key.requires_grad_()
    valid = torch.arange(11) >= torch.tensor([[0], [4]])
    expected, state = advance(heads, query, key, value, valid, {})
    torch.testing.assert_close(
        expected[:, :, 4:], heads(query, key, value, Seen(valid, causal=True))[:, :, 4:], **EXACT
    )
    memory, found = {}, []
    parts = zip(*(x.split(sizes, 2) for x in (query, key, value)), valid.split(sizes, 1))
    for *part, real in parts:
        out, memory = advance(heads, *part, real, memory)
        found.append(out)
    torch.testing.assert_close(torch.cat(found, 2), expected, **EXACT)
    assert memory.keys() == state.keys()
    for name, x in memory.items():
        torch.testing.assert_close(x, state[name], **EXACT)
    grads = [torch.autograd.grad(y.sum(), key)[0] for y in (torch.cat(found, 2), expected)]
    torch.testing.assert_close(*grads, **EXACT)


@pytest.mark.parametrize("to", ["hedgehog", "luna"])
def test_a_window_as_long_as_the_text_equals_softmax(to):
    heads = heads_of(to, 11)
    inputs = points()
    found = heads(*inputs, Seen(causal=True))
    heads.mode = "softmax"
    torch.testing.assert_close(found, heads(*inputs, Seen(causal=True)), **EXACT)


@pytest.mark.parametrize("size", [30.0, 1e-3])
@pytest.mark.parametrize("to", ["hedgehog", "performer"])
def test_large_and_small_exponents_stay_finite(to, size):
    """In float32, plain exponentials of both parts would overflow or underflow."""
    heads = heads_of(to).float()
    inputs = [x.float() * size for x in points()]
    inputs[0].requires_grad_()
    out = heads(*inputs, Seen(causal=True))
    dense = heads.student_weights(*(heads.share(x) for x in inputs[:2]), Seen(causal=True), 8**-0.5)
    torch.testing.assert_close(out, dense @ heads.share(inputs[2]), atol=1e-4 * size, rtol=1e-4)
    (grad,) = torch.autograd.grad(out.square().sum(), inputs[0])
    assert out.isfinite().all()
    assert grad.isfinite().all()


def test_outputs_do_not_depend_on_later_tokens():
    heads = heads_of("hedgehog")
    query, key, value = points()
    for later in (5, 8):
        changed = [x.clone() for x in (key, value)]
        for x in changed:
            x[:, :, later:] = 20.0
        found, expected = (heads(query, *x, Seen(causal=True)) for x in (changed, (key, value)))
        torch.testing.assert_close(found[:, :, :later], expected[:, :, :later], **EXACT)


def test_masks_of_pairs_equal_the_causal_form():
    """The dense form with pairs, and for a step over cached keys."""
    heads = heads_of("luna")
    query, key, value = points()
    expected = heads(query, key, value, Seen(causal=True))
    order = torch.ones(11, 11, dtype=torch.bool).tril()
    found = heads(query, key, value, Seen(pairs=order[None, None]))
    torch.testing.assert_close(found, expected, **EXACT)
    step = heads(query[:, :, -1:], key, value, Seen())
    torch.testing.assert_close(step, expected[:, :, -1:], **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("least", [torch.finfo(torch.float64).min, -1e9, -torch.inf])
def test_large_negative_additive_masks_hide_pairs(least):
    """Libraries use different numbers; the window follows the visible pairs."""
    model = converted("llama", window=WINDOW)
    ids = prompt()["input_ids"]
    pairs = torch.ones(2, 1, N, N, dtype=torch.bool).tril()
    pairs[1, :, PAD:, :PAD] = False
    added = torch.zeros(pairs.shape, dtype=torch.float64).masked_fill(~pairs, least)
    found, expected = (
        model(ids, attention_mask=mask, use_cache=False).logits for mask in (added, pairs)
    )
    torch.testing.assert_close(found, expected, **EXACT)
    found = model(ids, attention_mask=prompt()["attention_mask"], use_cache=False).logits
    torch.testing.assert_close(found[1, PAD:], expected[1, PAD:], **EXACT)


@pytest.mark.parametrize("to", ["hedgehog", "luna", "t2r", "performer"])
def test_initial_weights_before_the_window_match_softmax(to):
    """Of 60 tokens, 8 are in the window. Initial maps give the earlier ones about as much weight as
    softmax; without a gain Hedgehog gives them nearly all.
    """
    torch.manual_seed(0)
    heads = LinearHeads(2, 32, feature_map=to, window=8)
    query, key = torch.randn(2, 1, 2, 60, 32)
    seen = Seen(causal=True)
    student = heads.student_weights(query, key, seen, 32**-0.5)[0, :, -1]
    teacher = heads.teacher_weights(query, key, seen, 32**-0.5)[0, :, -1]
    shares = [x[:, -8:].sum(-1).mean() for x in (teacher, student)]
    assert abs(shares[0] - shares[1]) < 0.12
    if to == "hedgehog":
        with torch.no_grad():
            heads.gain.zero_()
        assert heads.student_weights(query, key, seen, 32**-0.5)[0, :, -1, -8:].sum(-1).max() < 0.02


def test_a_conversion_starts_with_the_window_and_is_calibrated():
    """The state of untrained maps has a thousandth of its weight."""
    source = decoder("llama").eval()
    ids = prompt()["input_ids"]
    replaced = replace_attention(source, "hedgehog", window=3, sinks=1)
    fresh = LinearHeads(4, 8, feature_map="hedgehog", window=3, sinks=1)
    for part in replaced.parts.values():
        torch.testing.assert_close(part.gain, fresh.gain - math.log(1000))

    with torch.no_grad():
        query, key = torch.randn(2, 1, 4, 40, 8)
        shares = part.student_weights(query, key, Seen(causal=True), 8**-0.5)[0, :, -1, 1:-3]
        assert 0 < shares.sum(-1).max() < 0.05
        quiet = [part.gain.clone() for part in replaced.parts.values()]
        with replaced.mode("calibrate"):
            replaced.model(ids)
        for part, gain in zip(replaced.parts.values(), quiet):
            assert (part.gain - gain).min() > 2.0


def test_a_longer_window_lowers_the_divergence_from_the_teacher():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 2, 40, 16)
    seen = Seen(causal=True)
    distances = []
    for window in (None, 8, 24, 40):
        heads = LinearHeads(2, 16, feature_map="hedgehog", window=window)
        teacher = heads.teacher_weights(query, key, seen, 0.25)
        student = heads.student_weights(query, key, seen, 0.25)
        distances.append(float(divergence(teacher, student.detach())))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-4


# --- decoders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DECODERS)
def test_generate_equals_the_forward(name):
    """With left padding, and for the row alone."""
    model = converted(name, window=WINDOW)
    out, logits = generated(model)
    mask = torch.cat([prompt()["attention_mask"], torch.ones(2, 4, dtype=torch.long)], 1)
    expected = whole(model, out.sequences, mask)[:, N - 1 : -1].float()
    torch.testing.assert_close(logits, expected, **ROUNDED)
    alone = {key: x[1:, PAD:] for key, x in prompt().items()}
    torch.testing.assert_close(logits[1:], generated(model, alone)[1], **ROUNDED)


@pytest.mark.parametrize("name", DECODERS)
def test_steps_and_prefills_equal_the_forward(name):
    model = converted(name, window=WINDOW)
    ids = prompt()["input_ids"][:1]
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        for sizes in ([1] * N, [4, 1, 4]):
            kept = DynamicCache()
            found = []
            for part in ids.split(sizes, 1):
                found.append(model(part, past_key_values=kept, use_cache=True).logits)
            torch.testing.assert_close(torch.cat(found, 1), expected, **EXACT)


@pytest.mark.parametrize("name", DECODERS)
def test_beam_search_with_and_without_a_cache_agree(name):
    model = converted(name, window=WINDOW)
    options = {"num_beams": 3, "output_scores": True}
    found, _ = generated(model, **options)
    expected, _ = generated(model, use_cache=False, **options)
    assert found.sequences.equal(expected.sequences)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)


@pytest.mark.parametrize("size", [2, 5])
def test_a_chunked_prompt_equals_one_prefill(size):
    model = converted("llama", window=WINDOW)
    found, expected = (generated(model, prefill_chunk_size=x)[1] for x in (size, None))
    torch.testing.assert_close(found, expected, **ROUNDED)


def test_sampling_with_and_without_a_cache_agrees():
    model = converted("llama", "luna", WINDOW)
    found = []
    for kept in (True, False):
        torch.manual_seed(3)
        options = {"do_sample": True, "num_return_sequences": 2, "use_cache": kept}
        found.append(generated(model, **options)[0].sequences)
    assert found[0].equal(found[1])


def test_bfloat16_keys_stay_beside_a_float32_state():
    model = replace_attention(decoder("llama"), "hedgehog", window=WINDOW).model.bfloat16()
    out, logits = generated(model, new=3)
    memory = out.past_key_values.layers[0].memory()
    assert memory["moment"].dtype == torch.float32
    assert memory["near_key"].dtype == torch.bfloat16
    mask = torch.cat([prompt()["attention_mask"], torch.ones(2, 3, dtype=torch.long)], 1)
    expected = whole(model, out.sequences, mask)[:, N - 1 : -1]
    torch.testing.assert_close(logits.float(), expected.float(), atol=0.05, rtol=0.05)


@torch.no_grad()
def test_the_cache_size_is_equal_after_256_and_8192_tokens():
    model = converted("llama", window=64)
    found = {}
    kept = DynamicCache()
    for stop in (256, 8192):
        while (seen := kept.get_seq_length()) < stop:
            more = torch.ones(1, min(2048, stop - seen), dtype=torch.long)
            model.model(more, past_key_values=kept, use_cache=True)
        found[stop] = cache_size(kept)
    assert found[8192].tokens == 8192
    assert found[256].linear_bytes == found[8192].linear_bytes
    # Four states of 16 features, 8 + 1 values and an exponent; 64 tokens and 4 sinks of two keys
    # and values.
    numbers = 4 * (16 * 9 + 1) + (64 + 4) * (2 * 2 * 8 + 1)
    assert found[256].linear_bytes == 2 * 8 * numbers
    assert found[256].softmax_layers == 0


# --- options --------------------------------------------------------------------------------------


def windows(replaced) -> list[int | None]:
    return [part.window for part in replaced.parts.values()]


def test_causal_layers_have_a_window_by_default():
    assert windows(replace_attention(decoder("llama"))) == [64, 64]
    for none in (None, 0):
        assert windows(replace_attention(decoder("llama"), window=none)) == [None, None]
    assert windows(replace_attention(decoder("llama"), "rff")) == [None, None]
    replaced = replace_attention(bert())
    assert windows(replaced) == [None, None]
    assert replaced.window is None
    with pytest.raises(ConversionError, match="has no causal order, along which window=8"):
        replace_attention(bert(), window=8)
    with pytest.raises(ConversionError, match="window=8 is of causal layers of transformers"):
        replace_attention(torch_encoder(), window=8)


def test_decoders_have_sinks_by_default():
    def sinks(replaced) -> list[int]:
        return [part.sinks for part in replaced.parts.values()]

    assert sinks(replace_attention(decoder("llama"))) == [4, 4]
    assert sinks(replace_attention(decoder("llama"), sinks=0)) == [0, 0]
    assert sinks(replace_attention(decoder("llama"), window=0)) == [0, 0]
    assert sinks(replace_attention(bert())) == [0, 0]
    with pytest.raises(ConversionError, match="sinks=2 at its beginning"):
        replace_attention(bert(), sinks=2)
    with pytest.raises(ConversionError, match="expected sinks=2 with causal layers"):
        replace_attention(torch_encoder(), sinks=2)
    with pytest.raises(OptionError, match="expected a window beside sinks=2"):
        replace_attention(decoder("llama"), window=0, sinks=2)
    for wrong in (-1, True, "all"):
        with pytest.raises(OptionError, match="expected sinks as a number of tokens"):
            replace_attention(decoder("llama"), sinks=wrong)


@pytest.mark.parametrize("window", [-1, True, "all"])
def test_wrong_windows_are_refused(window):
    with pytest.raises(OptionError, match="a number of tokens, 0 or 'auto', got"):
        replace_attention(decoder("llama"), window=window)


def test_maps_without_a_shared_normaliser_are_refused():
    with pytest.raises(OptionError, match="features that may be negative"):
        replace_attention(decoder("llama"), "rff", window=8)
    with pytest.raises(OptionError, match="no feature map beside which a window could stand"):
        replace_attention(decoder("llama"), "infsa", window=8)


def test_sliding_windows_of_the_model_are_refused():
    with pytest.raises(ConversionError, match="a sliding window"):
        replace_attention(library("gemma3"), "hedgehog", window=8)


@torch.no_grad()
def test_layers_with_softmax_agree_without_a_cache():
    layers = ["model.layers.0.self_attn"]
    replaced = replace_attention(decoder("llama"), "hedgehog", layers=layers, window=WINDOW)
    model = replaced.model.double()
    out, found = generated(model)
    torch.testing.assert_close(found, generated(model, use_cache=False)[1], **ROUNDED)
    size = cache_size(out.past_key_values)
    assert (size.linear_layers, size.softmax_layers) == (1, 1)


@torch.no_grad()
def test_a_saved_model_keeps_its_window(tmp_path):
    replaced = replace_attention(decoder("llama"), "luna", window=WINDOW, sinks=2)
    for part in replaced.parts.values():
        part.gain += 1.0
    save_linearized(replaced, tmp_path)
    loaded = load_linearized(tmp_path)
    heads = [m for m in loaded.modules() if isinstance(m, LinearHeads)]
    assert [(m.window, m.sinks) for m in heads] == [(WINDOW, 2)] * 2
    ids = prompt()["input_ids"]
    assert loaded(ids).logits.equal(replaced.model(ids).logits)
    assert "softmax on the last 3 tokens and the first 2" in (tmp_path / "README.md").read_text()


def test_distillation_trains_gain_and_maps():
    replaced = replace_attention(decoder("llama"), "hedgehog", window=WINDOW)
    learned = list(replaced.new_parameters().values())
    optimizer = torch.optim.Adam(learned, lr=0.02)
    losses = []
    with replaced.mode("distil"):
        for _ in range(15):
            replaced.model(prompt()["input_ids"][:1])
            loss = torch.stack(list(replaced.losses().values())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in learned if p.dim() == 1)


@pytest.mark.parametrize("window", [WINDOW, None])
@pytest.mark.parametrize("name", ["elu", "softplus", "relu"])
@torch.no_grad()
def test_functions_as_maps_decode_in_bfloat16(name, window):
    model = replace_attention(decoder("llama").bfloat16(), name, window=window).model
    out, logits = generated(model, new=3)
    mask = torch.cat([prompt()["attention_mask"], torch.ones(2, 3, dtype=torch.long)], 1)
    expected = whole(model, out.sequences, mask)[:, N - 1 : -1]
    torch.testing.assert_close(logits.float(), expected.float(), atol=0.05, rtol=0.05)


# --- hidden tokens, and sinks ---------------------------------------------------------------------


def last_visible(valid: Tensor, window: int, sinks: int) -> Tensor:
    """Return the pairs of softmax's part, by loops over rows and queries."""
    near = torch.zeros(*valid.shape, valid.shape[1], dtype=torch.bool)
    for row, visible in enumerate(valid.tolist()):
        for query in range(len(visible)):
            seen = [j for j in range(query + 1) if visible[j]]
            near[row, query, [*seen[:sinks], *seen[-window:]]] = True
    return near


HOLES = torch.tensor(
    [[1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 1], [0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 1]], dtype=torch.bool
)


@pytest.mark.parametrize("sinks", [0, 2])
@pytest.mark.parametrize("to", MAPS)
def test_a_window_is_of_visible_tokens(to, sinks):
    """Hidden tokens do not count toward the window."""
    heads = heads_of(to, sinks=sinks)
    query, key, value = points()
    near = last_visible(HOLES, WINDOW, sinks)[:, None]
    maps = heads.feature_map, heads.feature_map if heads.key_map is None else heads.key_map
    shared = [x.repeat_interleave(2, 1) for x in (key, value)]
    far = maps[0](query) @ maps[1](shared[0]).mT * heads.gain.exp()[:, None, None]
    weights = torch.where(near, (query @ shared[0].mT * 8**-0.5).exp(), far)
    visible = HOLES[:, None, None] & torch.ones(11, 11, dtype=torch.bool).tril()
    weights = torch.where(visible, weights, 0.0)
    expected = weights @ shared[1] / weights.sum(-1, keepdim=True)
    real = HOLES[:, None, :, None]
    found = heads(query, key, value, Seen(HOLES, causal=True))
    torch.testing.assert_close(
        torch.where(real, found, 0.0), torch.where(real, expected, 0.0), **EXACT
    )


@torch.no_grad()
@pytest.mark.parametrize("sinks", [0, 2])
@pytest.mark.parametrize("to", ["hedgehog", "performer"])
def test_hidden_tokens_in_steps_equal_one_prefill(to, sinks):
    """Rows have different oldest tokens once only one of them hides a token."""
    heads = heads_of(to, sinks=sinks)
    tensors = points()
    expected, memory = advance(heads, *tensors, HOLES, {})
    for sizes in ([1] * 11, [3, 1, 1, 1, 1, 2, 1, 1], [2, 9]):
        state = LinearState()
        found = []
        start = 0
        for size in sizes:
            part = [x[:, :, start : start + size] for x in tensors]
            found.append(state.advance(heads, *part, HOLES[:, : start + size].long(), None))
            start += size
        torch.testing.assert_close(torch.cat(found, 2), expected, **EXACT)
        for name, x in state.memory().items():
            torch.testing.assert_close(x, memory[name], **EXACT)


@torch.no_grad()
def test_rows_with_different_oldest_tokens_can_be_reordered_and_repeated():
    heads = heads_of("hedgehog")
    tensors = points()
    state = LinearState()
    for at in range(7):
        part = [x[:, :, at : at + 1] for x in tensors]
        state.advance(heads, *part, HOLES[:, : at + 1].long(), None)
    assert isinstance(state.oldest, Tensor)
    assert len(set(state.oldest.tolist())) == 2
    before = state.memory()
    state.batch_repeat_interleave(2)
    state.reorder_cache(torch.tensor([3, 0]))
    for name, x in state.memory().items():
        torch.testing.assert_close(x, before[name][[1, 0]], rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("sinks", [0, 2])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_hidden_tokens_in_the_past_of_a_decoder_are_ignored(name, sinks):
    """A second turn after right padding, so that the mask has a hole."""
    replaced = replace_attention(decoder(name), "hedgehog", window=WINDOW, sinks=sinks)
    model = replaced.model.double()
    ids = prompt()["input_ids"][:1].clamp_min(3)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 1, 1, 1]])
    kept = mask[0].bool()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    expected = model(ids[:, kept], use_cache=False).logits
    for sizes in ([N], [4, 1, 1, 3], [1] * N):
        cache = DynamicCache()
        found = []
        start = 0
        for part in ids.split(sizes, 1):
            stop = start + part.shape[1]
            found.append(
                model(
                    part,
                    attention_mask=mask[:, :stop],
                    position_ids=positions[:, start:stop],
                    past_key_values=cache,
                ).logits
            )
            start = stop
        torch.testing.assert_close(torch.cat(found, 1)[:, kept], expected, **EXACT)
