"""A text model in single steps equals its forward on the full text, with a state of fixed size."""

from __future__ import annotations

import pytest
import torch

from fredholm.errors import OptionError
from fredholm.models import create_model
from tests.parts import parts

from ..tolerances import assert_close

NEXT = {
    "encoder": "text",
    "causal": True,
    "pool": "every",
    "vocabulary": 9,
    "num_classes": 9,
    "max_length": 12,
}
OPTIONS = {
    "itnet_low_rank": {"rank": 3, "width": 4, "frequencies": 3},
    "itnet": {"width": 4, "frequencies": 3},
    "luna": {},
    "softmax": {},
}


def text_model(operator: str, **changes):
    torch.manual_seed(0)
    model = create_model(
        "itnet_nano",
        **parts(operator=operator, operator_options=OPTIONS[operator], **NEXT | changes),
    ).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize("operator", OPTIONS)
def test_steps_equal_the_forward(operator):
    model = text_model(operator)
    numbers = torch.randint(1, 9, (3, 10))
    whole = model(numbers)
    state = model.init_state(12, batch=3)
    assert whole.shape == (3, 10, 9)
    for t in range(10):
        logits, state = model.step(numbers[:, t], state)
        assert_close(logits, whole[:, t], f"token {t}")
    assert_close(model(numbers[:, :4]), whole[:, :4], "a prefix")
    logits, state = model.prefill(numbers[:, :6], model.init_state(12, batch=3))
    assert_close(logits, whole[:, :6], "a stretch")
    assert_close(model.step(numbers[:, 6], state)[0], whole[:, 6], "a step after a stretch")


@pytest.mark.parametrize("tied", [True, False])
def test_steps_of_convolutions_equal_the_forward(tied):
    options = {
        "vocabulary": 9,
        "num_classes": 9,
        "max_length": 12,
        "embedding": 4,
        "widths": (5, 4),
    }
    configuration = parts(**options)
    configuration["head"]["kind"] = "tied" if tied else "linear"
    model = create_model("ckcnn_ptb", **configuration).double().eval()
    numbers = torch.randint(1, 9, (2, 10))
    state = model.init_state(12, batch=2)
    whole = model(numbers)
    for t in range(10):
        logits, state = model.step(numbers[:, t], state)
        assert_close(logits, whole[:, t], f"token {t}")
    logits, state = model.prefill(numbers[:, :6], model.init_state(12, batch=2))
    assert_close(logits, whole[:, :6], "a stretch")
    assert state.seen == 6
    with pytest.raises(OptionError, match=r"expected at most 12 tokens, .* got 13"):
        model.init_state(13)
    with pytest.raises(OptionError, match="a model of the next token"):
        create_model("ckcnn_small").init_state(4)


def test_the_state_of_a_separable_kernel_does_not_grow():
    model = text_model("itnet_low_rank")
    sizes = []
    state = model.init_state(12)
    for _step in range(12):
        _, state = model.step(torch.tensor([3]), state)
        sizes.append(sum(tensor.numel() for one in state.layers for tensor in one.keys.values()))
    assert len(set(sizes)) == 1
    assert sizes[0] == 2 * 2 * 3, "rank numbers a head and block"


def test_models_without_a_causal_state_are_refused():
    for changes in ({"causal": False}, {"pool": "mean"}):
        with pytest.raises(OptionError, match="a model of the next token"):
            text_model("itnet_low_rank", **changes).init_state(4)
    with pytest.raises(OptionError, match=r"length: expected at most 12 tokens, .* got 13"):
        text_model("itnet_low_rank").init_state(13)
    model = text_model("itnet_low_rank")
    texts = torch.tensor([[0, 0, 5], [3, 4, 5]])
    state = model.init_state(12, batch=2)
    for call, numbers in ((model.prefill, texts), (model.step, texts[:, 0])):
        with pytest.raises(OptionError, match="got 0, which is padding"):
            call(numbers, state)
    with pytest.raises(OptionError, match="'image' has no option 'causal'"):
        create_model("itnet_nano", **parts(causal=True))
