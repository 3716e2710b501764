"""LUNA as an operator: equal forms, wrong input, precision, and the adapter for call sites of
MultiheadAttention.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fredholm.domain import Domain
from fredholm.errors import DomainError, OptionError, ShapeError
from fredholm.families.luna import naive
from fredholm.kernels import FEATURE_MAPS
from fredholm.linearization.heads import LinearHeads, Seen
from fredholm.operators import (
    LinearAttention,
    LunaAttention,
    MultiheadAdapter,
    SoftmaxAttention,
    create_operator,
)

from ..autocast import gradients_in_and_outside
from ..tolerances import assert_close

DIM, HEADS, N = 8, 2, 9


def luna(**options):
    return LunaAttention(
        DIM, HEADS, **{"directions": 2, "channels": 3, "hidden": 5, **options}
    ).double()


def signal(n: int = N) -> torch.Tensor:
    return torch.randn(2, n, DIM, dtype=torch.float64)


@pytest.mark.parametrize("strategy", ["auto", "exact"])
@pytest.mark.parametrize("options", [{}, {"nonneg": False, "activation": "gelu"}])
@pytest.mark.parametrize("equal", [False, True])
def test_the_operator_equals_equations_9_to_11(strategy, options, equal):
    """Values, and gradients of u and every weight, with tied and untied feature maps."""
    torch.manual_seed(2)
    operator = luna(bias=False, floor=1e-12, strategy=strategy, **options)
    kernel, phi = operator.kernel, operator.kernel.feature_map
    with torch.no_grad():
        phi.bias.normal_()
        phi.bank_shift.add_(2.0)  # denominators away from zero, also without the last ReLU
        if equal:
            kernel.key.weight.copy_(kernel.query.weight)
    leaves = [kernel.query.weight, kernel.key.weight, kernel.value.weight, phi.weight, phi.bias]
    leaves += [phi.bank_weight, phi.bank_bias, phi.bank_readout, phi.bank_shift]
    u = signal().requires_grad_()
    query, key, value = (x.unflatten(0, (HEADS, -1)) for x in leaves[:3])
    weight, bias, readout, shift = (x[0] for x in leaves[5:])
    networks = naive.Networks(weight, bias, readout[:, 0], shift[:, 0])
    response = naive.luna(u, query, key, value, phi.weight[0], phi.bias[0], networks, **options)
    expected = operator.projection(response.transpose(1, 2).flatten(2))
    found = operator(u, Domain.line(N, dtype=torch.float64))
    assert_close(found, expected)
    direction = torch.randn_like(expected)
    both = (torch.autograd.grad(y, [u, *leaves], direction) for y in (found, expected))
    for a, b in zip(*both, strict=True):
        assert_close(a, b, "gradient")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", list(FEATURE_MAPS))
def test_any_map_runs_in_the_linear_operator(name, causal):
    operator = LinearAttention(DIM, HEADS, feature_map=name).double()
    u = signal()
    domain = Domain.line(N, causal=causal, dtype=torch.float64)
    assert operator.plan(domain).path == ("causal chunks" if causal else "two sums")
    expected = operator.dense(u, domain)
    assert_close(operator(u, domain), expected)
    operator.strategy = "exact"
    assert_close(operator(u, domain), expected, "the quadratic form")


@pytest.mark.parametrize("cap", ["running", "batch"])
def test_caps_are_equal_in_every_form(cap):
    operator = luna(cap=cap).eval()
    u = 3 * signal()
    domain = Domain.line(N, dtype=torch.float64)
    expected = operator(u, domain)
    assert_close(operator.dense(u, domain), expected)
    operator.strategy = "exact"
    assert_close(operator(u, domain), expected)
    rows = [5, 2]
    assert_close(operator.weights(u, domain, rows=rows), operator.weights(u, domain)[:, :, rows])


@pytest.mark.parametrize("strategy", ["linear", "exact"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_running_cap_ignores_padding(strategy, tied):
    """No amount of padding enters the running average."""
    u = 3 * signal()
    alone = luna(cap="running", tied=tied, strategy=strategy)
    padded = copy.deepcopy(alone)
    valid = torch.arange(N + 9) < N
    more = torch.cat([u, torch.full((len(u), 9, DIM), 50.0, dtype=u.dtype)], 1)
    domain = Domain.line(N, dtype=torch.float64)
    longer = Domain.line(N + 9, dtype=torch.float64).replace(valid=valid.expand(len(u), -1))
    before = {k: v.clone() for k, v in alone.named_buffers() if "mean_square" in k}
    for _ in range(3):
        alone(u, domain)
        padded(more, longer)
    after = dict(alone.named_buffers())
    assert len(before) == 2 - tied
    for name, start in before.items():
        assert not torch.equal(after[name], start)
        assert_close(dict(padded.named_buffers())[name], after[name])
    padded(more, longer.replace(valid=torch.zeros_like(longer.valid)))
    assert_close(dict(padded.named_buffers())[name], after[name], "nothing to follow")
    for operator in (alone, padded):
        operator.eval()(u, domain)
    assert torch.equal(dict(alone.named_buffers())[name], after[name])


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
def test_the_running_cap_reaches_its_target_at_any_scale(scale):
    torch.manual_seed(0)
    operator = luna(cap="running")
    feature_map = operator.kernel.feature_map
    domain = Domain.line(N, dtype=torch.float64)
    for _ in range(300):
        operator(scale * signal(), domain)
    size = feature_map(scale * torch.randn(2, HEADS, 99, DIM // HEADS, dtype=torch.float64))
    root = size.unflatten(-1, (3, 2)).square().mean((0, 1, 2, 4)).mul(2).sqrt()
    assert root.max() < 1.5 * feature_map.target


def test_a_map_in_evaluation_mode_does_not_update_its_running_cap():
    operator = luna(cap="running").train()
    feature_map = operator.kernel.feature_map.eval()
    before = feature_map.mean_square.clone()
    operator(signal(), Domain.line(N, dtype=torch.float64))
    assert torch.equal(feature_map.mean_square, before)
    heads = LinearHeads(4, 8, feature_map="luna", options={"cap": "running"})
    before = heads.feature_map.eval().mean_square.clone()
    heads(*torch.randn(3, 2, 4, 5, 8), Seen())
    assert torch.equal(heads.feature_map.mean_square, before)


def test_the_running_cap_of_converted_heads_ignores_padding():
    torch.manual_seed(0)
    options = {"feature_map": "luna", "options": {"cap": "running"}}
    heads = LinearHeads(4, 8, **options)
    twin = copy.deepcopy(heads)
    q, k, v = torch.randn(3, 2, 4, 5, 8)
    start = heads.feature_map.mean_square.clone()
    more = [torch.cat([x, torch.full((2, 4, 3, 8), 50.0)], 2) for x in (q, k, v)]
    valid = (torch.arange(8) < 5).expand(2, -1)
    for mode in ("linear", "distil"):
        heads.mode = twin.mode = mode
        heads(q, k, v, Seen())
        twin(*more, Seen(valid))
        assert_close(twin.feature_map.mean_square, heads.feature_map.mean_square, mode)
    assert not torch.equal(heads.feature_map.mean_square, start)


def test_the_batch_cap_refuses_order_padding_and_pairs():
    operator = luna(cap="batch")
    u = signal()
    domain = Domain.line(N, dtype=torch.float64)
    for what, wrong in (
        ("an order", domain.replace(causal=True)),
        ("padding", domain.replace(valid=torch.ones(2, N, dtype=torch.bool))),
        ("pairs", domain.replace(pairs=torch.ones(N, N, dtype=torch.bool))),
    ):
        with pytest.raises(DomainError, match=f"{what}; use cap="):
            operator(u, wrong)
    with pytest.raises(DomainError, match="an order"):
        operator.init_state(2, domain.replace(causal=True))


@pytest.mark.parametrize("causal", [False, True])
def test_zero_features_give_the_offset(causal):
    operator = luna()
    with torch.no_grad():
        operator.kernel.feature_map.bank.shift.fill_(-1e3)
        operator.kernel.value.bias.fill_(2.0)
    u = signal().requires_grad_()
    domain = Domain.line(N, causal=causal, dtype=torch.float64)
    out = operator(u, domain)
    assert_close(out, operator.projection(torch.full_like(out, 2.0)))
    assert torch.autograd.grad(out.square().sum(), u)[0].isfinite().all()


def test_fully_padded_rows_are_zero_and_finite():
    operator = luna()
    u = signal().requires_grad_()
    valid = torch.tensor([[True] * N, [False] * N])
    for causal in (False, True):
        domain = Domain.line(N, causal=causal, dtype=torch.float64).replace(valid=valid)
        out = operator(u, domain)
        assert out[1].abs().max() == 0
        assert torch.autograd.grad(out.sum(), u)[0].isfinite().all()


def test_wrong_options_are_refused():
    with pytest.raises(OptionError, match="expected a divisor of the width 8, got 3"):
        LunaAttention(DIM, 3)
    with pytest.raises(OptionError, match="no option 'chanels'; did you mean 'channels'"):
        create_operator("luna", DIM, HEADS, chanels=3)
    with pytest.raises(OptionError, match="no option 'feature_mp'"):
        create_operator("linear_attention", DIM, HEADS, feature_mp="elu")


def test_statistics_stay_in_float32_under_autocast():
    operator = LunaAttention(DIM, HEADS)
    domain = Domain.line(3000)
    u = torch.randn(1, 3000, DIM)
    expected = operator(u, domain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(operator(u, domain).float(), expected, dtype=torch.bfloat16)


def test_the_adapter_equals_the_operator():
    operator = luna(channels=8)
    u = signal()
    query = signal(4)
    layer = MultiheadAdapter(operator)
    padding = torch.zeros(2, N, dtype=torch.bool)
    padding[1, 5:] = True
    domain = Domain.line(N, length=1.0, dtype=torch.float64)
    assert_close(layer(u, u, u, need_weights=False)[0], operator(u, domain))
    found, weights = layer(query, u, u, key_padding_mask=padding)
    ends = {"query": query, "query_domain": Domain.line(4, length=1.0, dtype=torch.float64)}
    assert_close(found, operator(u, domain.replace(valid=~padding), **ends))
    assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert weights[1, :, 5:].abs().max() == 0
    assert layer(u, u, u, average_attn_weights=False)[1].shape == (2, HEADS, N, N)
    floats = torch.zeros(2, N).masked_fill(padding, -torch.inf)
    assert_close(layer(u, u, u, floats)[0], layer(u, u, u, padding)[0])
    turned = MultiheadAdapter(operator, batch_first=False)
    v = u.transpose(0, 1)
    assert_close(turned(v, v, v)[0].transpose(0, 1), operator(u, domain))


def test_the_adapter_accepts_only_causal_masks():
    operator = luna()
    u = signal()
    layer = MultiheadAdapter(operator)
    domain = Domain.line(N, length=1.0, causal=True, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(N)
    for call in (
        {"attn_mask": mask},
        {"attn_mask": mask == -torch.inf},
        {"attn_mask": mask, "is_causal": True},
    ):
        assert_close(layer(u, u, u, **call)[0], operator(u, domain))
    for wrong in (torch.zeros(N, N), mask + 1, mask.triu(2), mask.expand(2, N, N), mask[:-1]):
        with pytest.raises(OptionError, match="attn_mask must be None or the causal mask"):
            layer(u, u, u, attn_mask=wrong)
    with pytest.raises(OptionError, match="same tensor as key and value"):
        layer(u, u, u.clone())
    with pytest.raises(ShapeError, match="key_padding_mask"):
        layer(u, u, u, torch.zeros(N, 2, dtype=torch.bool))
    padded = torch.arange(N).expand(2, N) >= N - 2
    both = [padded, torch.zeros(2, N).masked_fill(padded, -torch.inf)]
    first, second = (layer(u, u, u, mask)[0] for mask in both)
    assert torch.equal(first, second)
    for wrong in ((~padded).long(), (~padded).double(), both[1] - 1.0):
        with pytest.raises(OptionError, match="key_padding_mask must be boolean"):
            layer(u, u, u, wrong)


def test_the_adapter_runs_in_torchs_transformer_layers():
    encoder = nn.TransformerEncoderLayer(DIM, HEADS, 16, batch_first=True, dropout=0.0).double()
    decoder = nn.TransformerDecoderLayer(DIM, HEADS, 16, batch_first=True, dropout=0.0).double()
    encoder.self_attn = MultiheadAdapter(luna())
    decoder.self_attn, decoder.multihead_attn = MultiheadAdapter(luna()), MultiheadAdapter(luna())
    u, target = signal(), signal(4)
    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    for layer in (encoder, decoder):
        arguments, options = (u,), {}
        if layer is decoder:
            arguments, options = (target, u), {"tgt_mask": mask, "tgt_is_causal": True}
        training = layer.train()(*arguments, **options)
        # In evaluation mode, torch would run a fused path with its own weights.
        assert_close(layer.eval()(*arguments, **options), training)


def test_the_adapter_of_softmax_attention_agrees_with_torch():
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True).double()
    ours = SoftmaxAttention(DIM, HEADS).double()
    with torch.no_grad():
        for i, part in enumerate((ours.kernel.query, ours.kernel.key, ours.kernel.value)):
            part.weight.copy_(theirs.in_proj_weight.chunk(3)[i])
            part.bias.copy_(theirs.in_proj_bias.chunk(3)[i])
        ours.projection.load_state_dict(theirs.out_proj.state_dict())
    u, query = signal(), signal(4)
    padding = torch.zeros(2, N, dtype=torch.bool)
    padding[1, 6:] = True
    for a, b in zip(MultiheadAdapter(ours)(query, u, u, padding), theirs(query, u, u, padding)):
        assert_close(a, b)


def test_a_backward_under_autocast_equals_one_outside():
    operator = LunaAttention(8, 2)
    u = torch.randn(1, 5, 8)
    outside, inside = gradients_in_and_outside(operator, u)
    assert outside.keys() == inside.keys() == dict(operator.named_parameters()).keys()
    for name, expected in outside.items():
        error = (inside[name] - expected).norm() / expected.norm().clamp(min=1e-9)
        assert error < 0.05, name
