"""A decay of converted decoders: the state decays, and softmax's part does not."""

from __future__ import annotations

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
from fredholm.linearization import LinearHeads
from fredholm.linearization import cache as cache_module
from fredholm.linearization.heads import Seen, clean
from fredholm.linearization.state import advance

from ..tolerances import assert_close
from .library import decoder
from .models import bert, torch_encoder

pytest.importorskip("transformers")
from transformers import DynamicCache

from .test_cache import EXACT, ROUNDED, generated, prompt
from .test_rollback import recording

N = 23
# Window, sinks and store.
SIZES = {"none": (None, 0, 0), "window": (3, 0, 0), "sinks": (4, 2, 0), "store": (3, 1, 2)}
MAPS = ["hedgehog", "luna", "elu"]
LONG = torch.arange(3, 29)[None] * 7 % 37


def points() -> list[Tensor]:
    """Return queries of four heads, keys and values of two."""
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(2, h, N, 8, generator=draw, dtype=torch.float64) for h in (4, 2, 2)]


MASKS = {
    "all": lambda: None,
    "left": lambda: torch.arange(N) >= torch.tensor([[0], [4]]),
    "holes": lambda: torch.rand(2, N, generator=torch.Generator().manual_seed(3)) > 0.3,
}


def heads_of(to: str, size: str, decay: str = "token") -> LinearHeads:
    torch.manual_seed(0)
    window, sinks, store = SIZES[size]
    options = {"window": window, "sinks": sinks, "store": store, "decay": decay, "groups": 2}
    heads = LinearHeads(4, 8, feature_map=to, **options).double()
    hasten(heads)
    return heads


def hasten(model: torch.nn.Module) -> None:
    """Set rates that matter within few tokens, with a different one per group."""
    for name, p in model.named_parameters():
        with torch.no_grad():
            if name.endswith("decay.log_rate"):
                p.copy_(torch.linspace(-1.5, -0.5, len(p)))
            elif name.endswith("decay.bias"):
                p.fill_(0.5)
            elif name.endswith("decay.weight"):
                p.normal_(generator=torch.Generator().manual_seed(5))


def real(valid: Tensor | None) -> Tensor:
    if valid is None:
        valid = torch.ones(2, N, dtype=torch.bool)
    return valid[:, None, :, None]


def converted(size: str, decay: str = "token", name: str = "llama", to: str = "hedgehog", **more):
    window, sinks, store = SIZES[size]
    torch.manual_seed(0)
    options = {"window": window or 0, "sinks": sinks, "store": store, "decay": decay, **more}
    model = replace_attention(decoder(name), to, **options).model.double()
    hasten(model)
    for part in model.modules():  # makes the state matter
        if getattr(part, "gain", None) is not None:
            part.gain.data += 6.0
    return model.eval()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("to", MAPS)
def test_a_layer_equals_its_definition_in_values_and_gradients(to, size, mask):
    heads = heads_of(to, size)
    valid = MASKS[mask]()
    inputs = [x.requires_grad_() for x in points()]
    found = heads(*inputs, Seen(valid, causal=True)) * real(valid)
    query = inputs[0]
    key = clean(inputs[1], valid)
    value = clean(inputs[2], valid)
    weights = heads.weights(query, key, Seen(valid, causal=True), value=value)
    expected = (weights @ heads.share(value)) * real(valid)
    torch.testing.assert_close(found, expected, **EXACT)
    leaves = [*inputs, *heads.parameters()]
    gradients = [torch.autograd.grad(y.square().sum(), leaves) for y in (found, expected)]
    for g, h in zip(*gradients):
        torch.testing.assert_close(g, h, atol=1e-8, rtol=1e-8)
    decays = [p for name, p in heads.named_parameters() if name.startswith("decay.")]
    assert len(decays) == 3
    assert all(g.abs().max() > 0 for g in gradients[0][-3:] if mask == "all")


@pytest.mark.parametrize("split", [[1] * N, [7, 1, 1, 14]])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("to", MAPS)
@torch.no_grad()
def test_any_split_of_a_sequence_equals_one_forward(to, size, mask, split):
    heads = heads_of(to, size)
    valid = MASKS[mask]()
    query, key, value = points()
    whole = heads(query, key, value, Seen(valid, causal=True)) * real(valid)
    outs = []
    memory = {}
    start = 0
    for count in split:
        part = slice(start, start + count)
        points_of_part = (x[:, :, part] for x in (query, key, value))
        seen = None if valid is None else valid[:, part]
        out, memory = advance(heads, *points_of_part, seen, memory)
        outs.append(out)
        start += count
    torch.testing.assert_close(torch.cat(outs, 2) * real(valid), whole, **EXACT)


def test_softmax_weights_do_not_decay():
    """With very large rates only the window and the sinks keep weight."""
    heads = heads_of("hedgehog", "sinks", "head")
    torch.nn.init.constant_(heads.decay.log_rate, 6.0)
    weights = heads.weights(*points()[:2], Seen(causal=True), value=points()[2])
    last = weights[0, 0, -1]
    assert (last[[0, 1, N - 4, N - 3, N - 2, N - 1]] > 0).all()
    assert last[2 : N - 4].abs().max() < 1e-30
    torch.testing.assert_close(last.sum(), torch.ones((), dtype=torch.float64))


@torch.no_grad()
def test_points_of_the_store_decay_only_after_joining_the_state():
    """With very large rates only the window, the sink and the store keep weight."""
    heads = heads_of("hedgehog", "store", "head")
    torch.nn.init.constant_(heads.decay.log_rate, 6.0)
    query, key, value = points()
    weights = heads.weights(query, key, Seen(causal=True), value=value)
    window, sinks, store = SIZES["store"]
    present = (weights[:, :, -1] > 1e-30).sum(-1)
    assert present.eq(window + sinks + store).all()
    answer = heads(query, key, value, Seen(causal=True))
    torch.testing.assert_close(answer, weights @ heads.share(value), **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("parts", [[1] * N, [2, *[1] * 12, 9]])
def test_decayed_in_place_steps_of_a_store_equal_one_prefill(parts, mask):
    heads = heads_of("hedgehog", "store")
    tensors = points()
    valid = MASKS[mask]()
    expected, memory = advance(heads, *tensors, valid, {})
    state = cache_module.LinearState()
    found = []
    start = 0
    for size in parts:
        some = [x[:, :, start : start + size] for x in tensors]
        given = None if valid is None else valid[:, : start + size].long()
        found.append(state.advance(heads, *some, given, None))
        start += size
    torch.testing.assert_close(torch.cat(found, 2) * real(valid), expected * real(valid), **EXACT)
    assert "store_age" in memory
    for name, x in state.memory().items():
        torch.testing.assert_close(x, memory[name], **EXACT)


@pytest.mark.parametrize(
    ("name", "to", "size", "decay", "more"),
    [
        ("llama", "hedgehog", "sinks", "token", {}),
        ("gpt2", "luna", "window", "head", {}),
        ("llama", "elu", "none", "token", {}),
        ("llama", "hedgehog", "sinks", "token", {"keep": "0.1"}),
        ("llama", "hedgehog", "store", "token", {}),
        ("gpt2", "luna", "store", "head", {"keep": "0.1"}),
    ],
)
def test_generate_equals_the_forward(name, to, size, decay, more):
    model = converted(size, decay, name, to, **more)
    new = 9
    out, logits = generated(model, new=new)
    mask = torch.cat([prompt()["attention_mask"], torch.ones(2, new, dtype=torch.long)], 1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        whole = model(out.sequences, attention_mask=mask, position_ids=positions, use_cache=False)
    torch.testing.assert_close(logits, whole.logits[:, -new - 1 : -1].float(), **ROUNDED)


@torch.no_grad()
@pytest.mark.parametrize("size", SIZES)
def test_removed_tokens_leave_no_trace(monkeypatch, size):
    monkeypatch.setattr(cache_module, "PENDING", 3)
    model = converted(size)
    expected = model(LONG, use_cache=False).logits
    cache = recording(model, LONG[:, :9])
    for at in range(9, 14):
        model(LONG[:, at : at + 1], past_key_values=cache)
    model((LONG[:, 14:16] + 11) % 37, past_key_values=cache)
    cache.crop(-3)
    found = [model(LONG[:, at : at + 1], past_key_values=cache).logits for at in (13, 14)]
    found.append(model(LONG[:, 15:], past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(found, 1), expected[:, 13:], **ROUNDED)


@torch.no_grad()
def test_the_cache_size_is_fixed_and_counted():
    model = converted("sinks").float()
    sizes = []
    for tokens in (8, 26):
        cache = DynamicCache()
        model(LONG[:, :tokens], past_key_values=cache)
        sizes.append(cache_size(cache).linear_bytes)
    assert sizes[0] == sizes[1]
    # Two layers, each with four states of 16 features, 8 + 1 values, an exponent and 4 ages, and
    # 4 + 2 tokens of two keys and values and a mass.
    numbers = 4 * (16 * 9 + 1 + 4) + 6 * (2 * 2 * 8 + 1)
    assert sizes[0] == 2 * 4 * numbers
    first = smaller_from(4, 16, 8, groups=2, window=4, sinks=2, decay=True)
    assert 2 * 2 * 8 * 4 * (first - 1) <= 4 * numbers < 2 * 2 * 8 * 4 * first


@torch.no_grad()
def test_the_ages_of_a_store_are_counted():
    model = converted("store").float()
    cache = DynamicCache()
    model(LONG, past_key_values=cache)
    # Two layers. Of four states 16 features, 8 + 1 values, an exponent and 3 ages; of 3 + 1 tokens
    # two keys and values and a mass; of 2 tokens of the store two keys, values, numbers and ages;
    # and how many tokens came.
    numbers = 4 * (16 * 9 + 1 + 3) + 4 * (2 * 2 * 8 + 1) + 2 * 2 * (2 * 8 + 2) + 1
    assert cache_size(cache).linear_bytes == 2 * 4 * numbers
    first = smaller_from(4, 16, 8, groups=2, window=3, sinks=1, store=2, decay=True)
    assert 2 * 2 * 8 * 4 * (first - 1) <= 4 * numbers < 2 * 2 * 8 * 4 * first


@torch.no_grad()
def test_a_saved_model_keeps_its_decay(tmp_path):
    replaced = replace_attention(decoder("llama"), "luna", window=3, decay="token")
    hasten(replaced.model)
    save_linearized(replaced, tmp_path)
    loaded = load_linearized(tmp_path)
    assert loaded(LONG).logits.equal(replaced.model(LONG).logits)
    assert "whose state fades" in (tmp_path / "README.md").read_text()


def test_distillation_trains_the_rates():
    replaced = replace_attention(decoder("llama"), "hedgehog", window=3, decay="token")
    with replaced.mode("distil"):
        replaced.model(LONG)
        torch.stack(list(replaced.losses().values())).mean().backward()
    rates = [p for name, p in replaced.model.named_parameters() if ".decay." in name]
    assert len(rates) == 6
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in rates)


def test_only_a_decay_adds_parameters():
    model = replace_attention(decoder("llama"), "hedgehog").model
    assert not [name for name in model.state_dict() if "decay" in name]


def test_wrong_options_are_refused():
    with pytest.raises(OptionError, match="expected decay='head', 'token' or None"):
        replace_attention(decoder("llama"), "hedgehog", decay="heads")
    with pytest.raises(OptionError, match="beside a feature map"):
        replace_attention(decoder("llama"), "linear_infsa", decay="head")
    with pytest.raises(ConversionError, match="causal layers"):
        replace_attention(torch_encoder(), "hedgehog", decay="head")
    with pytest.raises(ConversionError, match="no causal order"):
        replace_attention(bert(), "hedgehog", decay="head")


@torch.no_grad()
@pytest.mark.parametrize("gate", ["head", "token"])
def test_calibration_gives_the_decayed_state_the_weight_of_softmax(gate):
    """Sums over the tokens before the window equal those of softmax in the geometric mean."""
    heads = heads_of("hedgehog", "window", gate)
    query, key, value = points()
    seen = Seen(causal=True)
    heads.calibrate(query, heads.share(key), seen, 8**-0.5, value)
    before = torch.ones(N, N).tril(-SIZES["window"][0]).bool()
    query = query[:, :, 3:]
    key = heads.share(key)
    softmax = (query @ key.mT * 8**-0.5).masked_fill(~before[3:], -torch.inf).logsumexp(-1)
    far = heads.far(query, 8**-0.5)
    features, shift = far.keys(key, None, None)
    pairs = far.query @ features.mT * heads._fading(value, seen, N)[:, :, 3:]
    state = torch.where(before[3:], pairs, 0.0).sum(-1).log()
    for exponent in (far.exponent, None if shift is None else shift[..., None]):
        if exponent is not None:
            state = state + exponent
    assert_close(state.mean((0, 2)), softmax.mean((0, 2)), dtype=torch.float32)
