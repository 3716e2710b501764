"""Shared parameters: the operator follows or refuses replacements by the layer."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from evidence.unification.attention import hugging_face
from torch import nn

from fredholm.convert import as_operator
from fredholm.errors import ConversionError

from ..tolerances import assert_close

LAYERS = {
    "linear": lambda: nn.Linear(8, 8),
    "convolution": lambda: nn.Conv1d(8, 8, 3, padding=1),
    "transposed": lambda: nn.ConvTranspose1d(8, 8, 3, padding=1),
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "recurrence": lambda: nn.LSTM(8, 8, batch_first=True),
    "BERT": lambda: hugging_face("bert", "BertSelfAttention")().eval(),
    "GPT-2": lambda: hugging_face("gpt2", "GPT2Attention")().eval(),
}


def respond(layer: nn.Module, u: torch.Tensor) -> torch.Tensor:
    if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d):
        return layer(u.mT).mT
    out = layer(u, u, u) if isinstance(layer, nn.MultiheadAttention) else layer(u)
    return out if isinstance(out, torch.Tensor) else out[0]


@pytest.fixture(params=LAYERS)
def layer(request):
    if request.param in ("BERT", "GPT-2"):
        pytest.importorskip("transformers")
    return LAYERS[request.param]()


def test_parameters_loaded_by_assignment_are_followed(layer):
    operator = as_operator(layer)
    u = torch.randn(2, 5, 8)
    other = {k: torch.randn_like(v) for k, v in layer.state_dict().items()}
    layer.load_state_dict(other, assign=True)
    assert_close(operator(u), respond(layer, u))
    assert {id(p) for p in operator.parameters()} == {id(p) for p in layer.parameters()}


def test_changes_of_precision_are_followed(layer):
    operator = as_operator(layer)
    u = torch.randn(2, 5, 8)
    layer.double()
    assert_close(operator(u.double()), respond(layer, u.double()))
    operator.float()
    assert_close(operator(u), respond(layer, u))


def test_replaced_parameters_are_followed(layer):
    operator = as_operator(layer)
    u = torch.randn(2, 5, 8)
    for part in layer.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(torch.randn_like(parameter)))
    assert_close(operator(u), respond(layer, u))
    out = operator(u).square().mean()
    gradients = torch.autograd.grad(out, list(layer.parameters()), allow_unused=True)
    assert all(g is not None for g in gradients)


def test_steps_follow_replaced_parameters():
    layer = nn.Conv1d(4, 4, 3, padding=2)
    operator = as_operator(layer)
    from fredholm.domain import Domain

    domain = Domain.line(5, causal=True, measure="counting")
    state = operator.init_state(1, domain)
    u = torch.randn(1, 5, 4)
    layer.weight = nn.Parameter(torch.randn(4, 4, 3))
    out, _ = operator.step(u[:, 0], state)
    assert_close(out, layer(u.mT).mT[:, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "in_proj_bias", None), "'in_proj_bias' was removed"),
        (
            lambda m: setattr(m, "in_proj_weight", nn.Parameter(torch.randn(12, 8))),
            r"went from \(24, 8\) to \(12, 8\)",
        ),
        (lambda m: setattr(m, "out_proj", nn.Linear(8, 8)), "its layer 'out_proj' was replaced"),
    ],
)
def test_other_replacements_are_refused(change, message):
    layer = nn.MultiheadAttention(8, 2)
    operator = as_operator(layer)
    change(layer)
    with pytest.raises(ConversionError, match=f"MultiheadAttention.*{message}.*Convert"):
        operator(torch.randn(1, 3, 8))


def test_a_later_parametrisation_is_refused():
    layer = nn.Conv1d(2, 2, 3)
    operator = as_operator(layer)
    torch.nn.utils.parametrizations.weight_norm(layer)
    with pytest.raises(ConversionError, match="'weight' was removed"):
        operator(torch.randn(1, 5, 2))


def test_copies_share_no_parameter():
    layer = nn.Conv1d(8, 8, 3, padding=1)
    u = torch.randn(2, 5, 8)
    expected = respond(layer, u)
    operator = as_operator(layer)
    others = [as_operator(layer, parameters="copied"), copy.deepcopy(operator)]
    file = io.BytesIO()
    torch.save(operator, file)
    file.seek(0)
    others.append(torch.load(file, weights_only=False))
    layer.weight = nn.Parameter(torch.randn(8, 8, 3))
    for other in others:
        assert_close(other(u), expected)


def test_functional_calls_do_not_change_the_parameters():
    """Parameters of one call are neither a change nor stored."""
    layer = nn.Conv1d(8, 8, 3, padding=1)
    u = torch.randn(2, 5, 8)
    operator = as_operator(layer)
    other = {k: torch.randn_like(v) for k, v in operator.named_parameters()}
    out = torch.func.functional_call(operator, other, (u,))
    expected = torch.func.functional_call(
        layer, {k.removeprefix("kernel."): v for k, v in other.items()}, (u.mT,)
    )
    assert_close(out, expected.mT)
    assert_close(operator(u), respond(layer, u))


def test_parameters_replaced_on_the_operator_are_independent():
    """A parameter that was replaced on the operator no longer follows the layer."""
    layer = nn.Conv1d(8, 8, 3, padding=1)
    u = torch.randn(2, 5, 8)
    operator = as_operator(layer)
    operator.kernel.weight = nn.Parameter(torch.zeros(8, 8, 3))
    layer.weight = nn.Parameter(torch.randn(8, 8, 3))
    assert_close(operator(u), layer.bias.expand(2, 5, 8))
