"""``nn.MultiheadAttention`` as an operator: weights, causal steps, and refusals."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fredholm.convert import as_operator
from fredholm.domain import Domain
from fredholm.errors import ConversionError, OptionError, ShapeError

from ..tolerances import assert_close

DIM, HEADS, N = 8, 2, 5


def module(**options) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(DIM, HEADS, batch_first=True, **options).double().eval()


def signal(n: int = N) -> torch.Tensor:
    return torch.randn(2, n, DIM, dtype=torch.float64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"add_bias_kv": True},
            r"MultiheadAttention\(add_bias_kv=True\).*supported: add_bias_kv=False",
        ),
        ({"add_zero_attn": True}, r"add_zero_attn=True"),
        ({"kdim": 6}, r"kdim=6, vdim=8.*kdim=vdim=None; embed_dim is 8"),
        ({"vdim": 6}, r"kdim=8, vdim=6"),
    ],
)
def test_unsupported_options_are_refused(options, message):
    with pytest.raises(ConversionError, match=message):
        as_operator(module(**options))


class Softer(nn.MultiheadAttention):
    def forward(self, *args, **options):
        return super().forward(*args, **options)


class Named(nn.MultiheadAttention):
    """A subclass that computes the same."""


def test_unsupported_classes_are_refused():
    with pytest.raises(ConversionError, match="Softer overrides forward of MultiheadAttention"):
        as_operator(Softer(DIM, HEADS))
    with pytest.raises(ConversionError, match="quantised"):
        as_operator(torch.ao.nn.quantizable.MultiheadAttention(DIM, HEADS))
    with pytest.raises(ConversionError, match="TransformerEncoderLayer is not understood"):
        as_operator(nn.TransformerEncoderLayer(DIM, HEADS, 4))
    u = signal()
    same = Named(DIM, HEADS, batch_first=True).double()
    assert_close(as_operator(same)(u), same(u, u, u)[0])
    with pytest.raises(OptionError, match="no option 'causal'"):
        as_operator(module(), causal=True)


def test_unsupported_output_layers_are_refused():
    hooked, adapted = module(), module()
    hooked.out_proj.register_forward_hook(lambda *_: None)
    with pytest.raises(ConversionError, match="at 'out_proj' has hooks"):
        as_operator(hooked)
    adapted.out_proj = nn.Sequential(nn.Linear(DIM, DIM))
    with pytest.raises(
        ConversionError, match=r"out_proj=torch.nn.modules.container.Sequential.*torch.nn.Linear"
    ):
        as_operator(adapted)


def test_active_dropout_is_refused():
    layer = module(dropout=0.1)
    operator = as_operator(layer)
    u = signal()
    assert_close(operator(u), layer(u, u, u)[0])
    with pytest.raises(ConversionError, match=r"dropout=0.1 in training mode.*eval"):
        as_operator(layer.train())
    with pytest.raises(ConversionError, match=r"got dropout=0\.1; it is active"):
        operator.train()(u)
    assert as_operator(module().train()).training


def test_mismatched_shapes_are_refused():
    operator = as_operator(module())
    with pytest.raises(ShapeError, match=r"\(B, N, 8\), got \(2, 5, 7\)"):
        operator(signal()[..., :-1])
    with pytest.raises(ShapeError, match="expected the 4 points of its domain, got 5"):
        operator(signal(), Domain.line(4))
    with pytest.raises(ShapeError, match="pass query"):
        operator(signal(), query_domain=Domain.line(3))


def test_weights_are_the_modules_attention_weights():
    layer = module()
    u = signal()
    query = signal(3)
    operator = as_operator(layer)
    weights = layer(query, u, u, average_attn_weights=False)[1]
    assert_close(operator.weights(u, query=query), weights)
    assert_close(operator.weights(u, query=query, rows=[2, 0]), weights[:, :, [2, 0]])
    matrix = operator.kernel_matrix(u, query=query, rows=[1])
    value = layer.in_proj_weight[2 * DIM :].unflatten(0, (HEADS, -1))
    assert_close(
        matrix,
        N * weights[:, :, [1], :, None, None] * value[:, None, None],
        "densities against the measure",
    )


def test_parameters_are_shared_or_copied():
    layer = module()
    u = signal()
    shared, copied = as_operator(layer), as_operator(layer, parameters="copied")
    assert {id(p) for p in shared.parameters()} == {id(p) for p in layer.parameters()}
    assert not {id(p) for p in copied.parameters()} & {id(p) for p in layer.parameters()}
    before = copied(u).detach()
    optimizer = torch.optim.SGD(shared.parameters(), lr=0.1)
    shared(u).square().sum().backward()
    optimizer.step()
    assert_close(shared(u), layer(u, u, u)[0])
    assert (shared(u) - before).abs().max() > 1e-3
    assert_close(copied(u), before)
    assert_close(copy.deepcopy(shared)(u), shared(u))


def test_steps_equal_the_masked_module():
    layer = module()
    u = signal()
    operator = as_operator(layer)
    domain = Domain.line(N, causal=True, dtype=torch.float64)
    state = operator.init_state(2, domain)
    outputs = []
    for t in range(N):
        y, state = operator.step(u[:, t], state)
        outputs.append(y)
    mask = nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64)
    assert_close(torch.stack(outputs, 1), layer(u, u, u, attn_mask=mask, is_causal=True)[0])


def test_the_plan_names_fused_attention():
    plan = as_operator(module()).plan(Domain.line(N))
    assert (plan.strategy, plan.path) == ("Exact(memory=None, backend='auto')", "fused attention")


def test_masses_weight_the_keys():
    layer = module()
    u = signal()
    twice = torch.tensor([0, 0, 1, 2, 3, 4])
    masses = torch.tensor([2.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    domain = Domain.line(N, dtype=torch.float64).with_masses(masses)
    assert_close(as_operator(layer)(u, domain), layer(u, u[:, twice], u[:, twice])[0])
