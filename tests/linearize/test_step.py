"""One token of a converted decoder updates the state in place: equal to a prefill, in few calls."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fredholm
from fredholm.convert import replace_attention
from fredholm.integral import answering
from fredholm.linearization import LinearHeads
from fredholm.linearization.state import advance

from .library import decoder
from .test_cache import prompt

pytest.importorskip("transformers")
from transformers import DynamicCache

from fredholm.linearization.cache import LinearState

EXACT = {"atol": 1e-10, "rtol": 1e-10}
MAPS = {
    "hedgehog": ("hedgehog", {}),
    "shares": ("hedgehog", {"softmax": True}),
    "performer": ("performer", {}),
    "luna": ("luna", {}),
    "elu": ("elu", {}),
}
N = 16


def heads_of(name: str, window: int | None) -> LinearHeads:
    torch.manual_seed(0)
    to, options = MAPS[name]
    return LinearHeads(4, 8, feature_map=to, options=options, tied=False, window=window).double()


def points(n: int = N) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(2, h, n, 8, generator=draw, dtype=torch.float64) for h in (4, 2, 2)]


@torch.no_grad()
@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("name", MAPS)
def test_single_tokens_and_prefills_equal_one_prefill(name, window, answers):
    heads = heads_of(name, window)
    tensors = points()
    mask = torch.ones(2, N, dtype=torch.long)
    mask[1, :4] = 0  # left padding
    expected, memory = advance(heads, *tensors, mask.bool(), {})
    state = LinearState()
    found = []
    start = 0
    with fredholm.inference(heads) if answers else torch.no_grad():
        for size in [1, 2, *[1] * 8, 2, *[1] * 3]:  # wraps around the window twice
            part = [x[:, :, start : start + size] for x in tensors]
            found.append(state.advance(heads, *part, mask[:, : start + size], None))
            start += size
    real = mask.bool()[:, None, :, None]
    torch.testing.assert_close(torch.cat(found, 2) * real, expected * real, **EXACT)
    for key, x in state.memory().items():
        torch.testing.assert_close(x, memory[key], **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 3])
def test_a_token_allocates_no_state(window):
    heads = heads_of("shares", window)
    query, key, value = points()
    state = LinearState()
    state.advance(heads, query[:, :, :8], key[:, :, :8], value[:, :, :8], None, None)
    places = {name: x.data_ptr() for name, x in state._tensors().items()}
    for at in range(8, N):
        part = (x[:, :, at : at + 1] for x in (query, key, value))
        state.advance(heads, *part, None, None)
    assert {name: x.data_ptr() for name, x in state._tensors().items()} == places


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 3])
def test_a_state_does_not_keep_the_memory_of_its_prefill(window):
    heads = heads_of("shares", window)
    tensors = points(200)
    state = LinearState()
    state.advance(heads, *tensors, None, None)
    for x in state._tensors().values():
        assert x.untyped_storage().nbytes() == x.numel() * x.element_size()


class Calls(TorchDispatchMode):
    """Count the operations of torch, without views."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_a_token_needs_few_calls_of_torch():
    """Softmax needs about 10; an earlier version of the step needed 140."""
    heads = LinearHeads(4, 8, feature_map="hedgehog", options={"softmax": True}, window=3)
    tensors = [x[:1].float() for x in points()]
    state = LinearState()
    state.advance(heads, *(x[:, :, :8] for x in tensors), None, None)
    with fredholm.inference(heads):
        for at in (8, 9):
            with Calls() as calls:
                state.advance(heads, *(x[:, :, at : at + 1] for x in tensors), None, None)
    assert 10 < calls.count <= 35


def test_gradients_flow_through_single_tokens():
    """Nothing is updated in place while gradients are recorded."""
    heads = heads_of("hedgehog", 3)
    tensors = points(6)
    tensors[1].requires_grad_()
    expected = advance(heads, *tensors, None, {})[0].square().sum()
    state = LinearState()
    found = [
        state.advance(heads, *(x[:, :, at : at + 1] for x in tensors), None, None)
        for at in range(6)
    ]
    grads = [
        torch.autograd.grad(loss, tensors[1])[0]
        for loss in (expected, torch.cat(found, 2).square().sum())
    ]
    torch.testing.assert_close(*grads, **EXACT)


def test_generate_runs_inside_inference_and_leaves_it():
    model = replace_attention(decoder("llama"), "hedgehog", window=3).model.train()
    seen = []
    part = next(m for m in model.modules() if isinstance(m, LinearHeads))
    handle = model.register_forward_pre_hook(lambda *_: seen.append(answering(part)))
    model.generate(**prompt(), max_new_tokens=2, do_sample=False)
    handle.remove()
    assert seen == [True, True]
    assert model.training
    assert not answering(part)
    out = model(**prompt(), use_cache=False)  # and can be trained further
    out.logits.sum().backward()


@torch.inference_mode()
def test_a_cache_of_inference_mode_continues_outside():
    model = replace_attention(decoder("llama"), "hedgehog", window=3).model
    ids = prompt()
    kept = DynamicCache()
    ids = ids["input_ids"]
    model(ids[:, :6], past_key_values=kept)
    with torch.inference_mode(False), torch.no_grad():
        found = model(ids[:, 6:7].clone(), past_key_values=kept).logits
    expected = model(ids[:, :7], use_cache=False).logits[:, 6:]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
