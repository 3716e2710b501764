"""Layers with torch's signatures: equal to torch for softmax, and any operator inside torch's
encoder.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fredholm.nn
from fredholm.errors import ConversionError, OptionError, ShapeError

OPERATORS = [
    "softmax",
    "linear_attention",
    "luna",
    "itnet",
    "itnet_low_rank",
    "infsa",
    "linear_infsa",
    "ckconv",
]
SMALL = {
    "itnet": {"width": 4, "frequencies": 2},
    "luna": {"channels": 2, "directions": 2, "hidden": 4},
}


def attention(operator: str = "softmax", **options) -> fredholm.nn.MultiheadAttention:
    return fredholm.nn.MultiheadAttention(
        8, 2, batch_first=True, operator=operator, **SMALL.get(operator, {}), **options
    ).double()


def causal_mask(n: int, dtype: torch.dtype) -> torch.Tensor:
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    if dtype == torch.bool:
        return hidden
    return torch.zeros(n, n, dtype=dtype).masked_fill(hidden, -torch.inf)


def test_every_operator_is_covered():
    # Other tests may have registered operators of their own in this process.
    ours = {name for name in fredholm.list_operators() if not name.startswith("tests-")}
    assert set(OPERATORS) == ours


@pytest.fixture
def pair():
    """Return a layer of torch and one of the library with equal weights."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True).double()
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    return theirs, attention().load_torch(theirs)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"average_attn_weights": False},
        {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
        {"attn_mask": causal_mask(5, torch.bool)},
        {"attn_mask": causal_mask(5, torch.float64)},
        {"attn_mask": torch.eye(5, dtype=torch.bool)},
        {"attn_mask": torch.linspace(-1, 1, 25, dtype=torch.float64).reshape(5, 5)},
        {"attn_mask": causal_mask(5, torch.bool), "is_causal": True},
    ],
    ids=["plain", "heads", "padding", "causal", "causal float", "mask", "bias", "hint"],
)
def test_softmax_attention_equals_torchs(pair, arguments):
    theirs, ours = pair
    u = torch.randn(2, 5, 8, dtype=torch.float64)
    expected, weights = theirs(u, u, u, **arguments)
    actual, found = ours(u, u, u, **arguments)
    real = ~arguments.get("key_padding_mask", torch.zeros(2, 5, dtype=torch.bool))
    torch.testing.assert_close(actual[real], expected[real])
    rows = real if weights.dim() == 3 else real[:, None].expand(2, 2, 5)
    torch.testing.assert_close(found[rows], weights[rows])


def test_cross_attention_equals_torchs(pair):
    theirs, ours = pair
    query, u = torch.randn(2, 3, 8).double(), torch.randn(2, 5, 8).double()
    for mask in (None, torch.rand(3, 5) < 0.3):
        expected, weights = theirs(query, u, u, attn_mask=mask)
        actual, found = ours(query, u, u, attn_mask=mask)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(found, weights)


def test_length_first_and_unbatched_sequences_equal_torchs(pair):
    theirs, ours = pair
    u = torch.randn(5, 2, 8).double()
    theirs.batch_first = ours.batch_first = False
    torch.testing.assert_close(ours(u, u, u)[0], theirs(u, u, u)[0])
    alone = u[:, 0]
    torch.testing.assert_close(ours(alone, alone, alone), theirs(alone, alone, alone))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_torchs_encoder_is_causal_around_any_operator(operator, norm_first):
    layer = fredholm.nn.TransformerEncoderLayer(
        8,
        2,
        16,
        batch_first=True,
        norm_first=norm_first,
        operator=operator,
        **SMALL.get(operator, {}),
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    for weight in encoder.parameters():
        nn.init.normal_(weight, std=0.3)
    u = torch.randn(2, 6, 8, dtype=torch.float64)
    mask = causal_mask(6, torch.float64)
    whole = encoder(u, mask=mask, is_causal=True)
    changed = torch.cat([u[:, :4], torch.randn(2, 2, 8, dtype=torch.float64)], 1)
    torch.testing.assert_close(encoder(changed, mask=mask)[:, :4], whole[:, :4])
    assert not torch.allclose(encoder(u)[:, :4], whole[:, :4])


@pytest.mark.parametrize("operator", ["softmax", "luna", "itnet"])
def test_padding_changes_no_output(operator):
    layer = fredholm.nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True, operator=operator, **SMALL.get(operator, {})
    )
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).double().eval()
    u = torch.randn(1, 6, 8, dtype=torch.float64)
    hidden = torch.tensor([[False] * 4 + [True] * 2])
    other = torch.cat([u[:, :4], torch.randn(1, 2, 8, dtype=torch.float64)], 1)
    first = encoder(u, src_key_padding_mask=hidden)[:, :4]
    torch.testing.assert_close(encoder(other, src_key_padding_mask=hidden)[:, :4], first)


def test_kernels_without_weights_warn_once():
    layer = attention("itnet")
    u = torch.randn(1, 4, 8).double()
    with pytest.warns(UserWarning, match=r"no number for each pair.*need_weights=False"):
        assert layer(u, u, u)[1] is None
    assert layer(u, u, u)[1] is None


def test_bias_false_removes_every_bias():
    layer = fredholm.nn.MultiheadAttention(8, 2, bias=False)
    assert [name for name, _ in layer.named_parameters() if "bias" in name] == []


@pytest.mark.parametrize(
    "options",
    [{"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 4}, {"vdim": 4}, {"dropout": 0.1}],
)
def test_unsupported_options_are_refused(options):
    with pytest.raises(OptionError, match=f"{next(iter(options))}: expected torch's default"):
        fredholm.nn.MultiheadAttention(8, 2, **options)


def test_unsupported_masks_and_values_are_refused():
    layer = attention()
    u = torch.randn(2, 5, 8).double()
    with pytest.raises(OptionError, match="value: expected the same tensor as key"):
        layer(u, u, u.clone())
    with pytest.raises(OptionError, match=r"one mask \(L, S\) for all heads"):
        layer(u, u, u, attn_mask=torch.zeros(4, 5, 5))
    with pytest.raises(ShapeError, match=r"attn_mask: expected \(5, 5\), got \(4, 5\)"):
        layer(u, u, u, attn_mask=torch.zeros(4, 5))
    with pytest.raises(ShapeError, match=r"key_padding_mask: expected \(2, 5\)"):
        layer(u, u, u, key_padding_mask=torch.zeros(2, 4, dtype=torch.bool))
    with pytest.raises(OptionError, match="key_padding_mask must be boolean"):
        layer(u, u, u, key_padding_mask=torch.ones(2, 5).double())
    with pytest.raises(OptionError, match="expected no order between queries and other keys"):
        layer(u.clone(), u, u, is_causal=True)


def test_projections_of_torchs_layer_load_or_are_refused():
    theirs = nn.MultiheadAttention(8, 2).double()
    luna = attention("luna").load_torch(theirs)
    torch.testing.assert_close(luna.operator.kernel.key.weight, theirs.in_proj_weight[8:16])
    with pytest.raises(ConversionError, match="expected an operator with queries, keys and values"):
        attention("itnet").load_torch(theirs)
    with pytest.raises(ConversionError, match="expected 8 features in 2 heads"):
        attention().load_torch(nn.MultiheadAttention(8, 4))


def test_weights_of_torchs_layer_load():
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).double().eval()
    for weight in theirs.parameters():
        nn.init.normal_(weight, std=0.3)
    ours = fredholm.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).double().eval()
    u = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(ours.load_torch(theirs)(u), theirs(u))
    narrow = fredholm.nn.TransformerEncoderLayer(8, 2, 12, batch_first=True).double()
    with pytest.raises(ConversionError, match=r"expected linear1 of the sizes .*out_features=12"):
        narrow.load_torch(theirs)


@pytest.mark.parametrize("causal", [True, False])
def test_a_continuous_convolution_runs_at_another_rate(causal):
    torch.manual_seed(0)
    layer = fredholm.nn.ContinuousConv1d(2, 3, length=64, causal=causal, omega=5.0).double()

    def signal(n: int) -> torch.Tensor:
        time = torch.arange(n, dtype=torch.float64) / n
        return torch.stack([torch.sin(6 * time), torch.cos(9 * time)])[None]

    coarse, fine = layer(signal(64)), layer(signal(256), rate=4)
    assert coarse.shape == (1, 3, 64)
    error = (fine[..., ::4] - coarse).abs().max() / coarse.abs().max()
    assert error < 0.1
    if causal:
        later = signal(64)
        later[..., 40:] = 0
        torch.testing.assert_close(layer(later)[..., :40], coarse[..., :40])
    with pytest.raises(OptionError, match="rate: expected a positive number"):
        layer(signal(8), rate=0)
