"""Text encoder: tokens on a line, padding, and read-outs."""

from __future__ import annotations

import pytest
import torch

from fredholm.encoders import TextEncoder, TokenEncoder
from fredholm.errors import OptionError, ShapeError
from fredholm.models import create_model, read_out
from fredholm.operators import create_operator, list_operators
from tests.parts import parts

from ...tolerances import assert_close

TEXT = torch.tensor([[3, 5, 2, 4], [6, 2, 0, 0]])


def make(**options) -> TextEncoder:
    return TextEncoder(
        **{"vocabulary": 7, "dim": 8, "max_length": 6, "frequencies": 4, **options}
    ).double()


@pytest.mark.parametrize("positions", ["fourier", "learned", "none"])
def test_features_are_embedding_plus_position(positions):
    encoder = make(positions=positions)
    features, domain = encoder(TEXT)
    assert_close(domain.positions[:, 0], torch.arange(4).double() / 6)
    assert domain.valid.equal(TEXT != 0)
    assert domain.shape == (4,)
    expected = encoder.embed.weight[TEXT]
    if positions == "fourier":
        expected = expected + encoder.position(encoder.fourier(domain.positions))
    if positions == "learned":
        expected = expected + encoder.table[:4]
    assert_close(features, expected)
    assert encoder.embed.weight[0].eq(0).all()


@pytest.mark.parametrize("positions", ["fourier", "learned"])
@pytest.mark.parametrize("pool", ["mean", "cls", "last"])
def test_padding_changes_no_output(positions, pool):
    encoder = make(positions=positions, class_token=pool == "cls")
    operator = create_operator("softmax", 8, 2).double()
    outputs = []
    for text in (TEXT, torch.nn.functional.pad(TEXT, (0, 2))):
        features, domain = encoder(text)
        outputs.append(read_out(operator(features, domain), domain, pool))
    assert_close(outputs[1], outputs[0])


@pytest.mark.parametrize("name", list_operators())
def test_every_operator_ignores_padding_of_texts(name):
    encoder = make()
    options = {"position_dim": 1, "width": 4} if name == "itnet" else {}
    operator = create_operator(name, 8, 2, **options).double()
    features, domain = encoder(TEXT)
    features.retain_grad()
    out = operator(features, domain)
    assert_close(out, operator.dense(features, domain))
    out[1, :2].sum().backward()
    assert features.grad is not None
    assert features.grad[1, 2:].eq(0).all()
    assert features.grad[1, :2].ne(0).any()


def test_read_outs_ignore_padding():
    features = torch.randn(2, 4, 8, dtype=torch.float64)
    for pool, expected in (
        ("mean", torch.stack([features[0].mean(0), features[1, :2].mean(0)])),
        ("last", torch.stack([features[0, 3], features[1, 1]])),
    ):
        encoder = make()
        domain = encoder.domain(TEXT)
        poisoned = torch.where(domain.valid[..., None], features, torch.nan)
        assert_close(read_out(poisoned, domain, pool), expected)
        empty = encoder.domain(torch.zeros(2, 4, dtype=torch.int64))
        assert read_out(features, empty, pool).eq(0).all()
        assert_close(
            read_out(features, domain.replace(valid=None), pool),
            features.mean(1) if pool == "mean" else features[:, 3],
        )


def test_tokens_do_not_read_the_class_token():
    encoder = make(class_token=True)
    operator = create_operator("softmax", 8, 2).double()
    features, domain = encoder(TEXT)
    assert features.shape == (2, 5, 8)
    weights = domain.quadrature().weights()[:, 0, 0]
    assert_close(weights, torch.tensor([[0, 1, 1, 1, 1], [0, 2, 2, 0, 0]]).double() / 4)
    changed = features.clone()
    changed[:, 0] += 9.0
    before, after = operator(features, domain), operator(changed, domain)
    assert after[:, 1:].equal(before[:, 1:])
    assert read_out(before, domain, "cls").equal(before[:, 0])
    changed = features.clone()
    changed[1, 2] += 1.0
    assert (operator(changed, domain)[1, 0] - before[1, 0]).abs().max() > 1e-4


def test_an_ordinary_class_token_has_the_measure_of_a_token():
    torch.manual_seed(0)
    options = {"vocabulary": 500, "dim": 64, "max_length": 4}
    encoder = TextEncoder(**options, class_token=True, token="ordinary", initial=0.02)
    weights = encoder(TEXT)[1].quadrature().weights()[:, 0, 0]
    assert_close(weights, torch.tensor([[0.2] * 5, [1 / 3, 1 / 3, 1 / 3, 0, 0]]))
    assert encoder.embed.weight[1:].std().item() == pytest.approx(0.02, rel=0.02)
    assert encoder.embed.weight[0].abs().max() == 0
    with pytest.raises(OptionError, match="token: expected a known name, got 'own'"):
        TextEncoder(**options, token="own")


def test_causal_texts_do_not_depend_on_later_tokens():
    encoder = make(causal=True)
    operator = create_operator("softmax", 8, 2).double()
    features, domain = encoder(TEXT)
    assert domain.causal
    prefix, short = encoder(TEXT[:, :2])
    assert_close(operator(prefix, short), operator(features, domain)[:, :2])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: make(positions="sine"),
            OptionError,
            "positions: expected a known name, got 'sine'",
        ),
        (
            lambda: make(causal=True, class_token=True),
            OptionError,
            "choose pool='last'",
        ),
        (
            lambda: make().domain(torch.zeros(1, 3)),
            ShapeError,
            r"integers \(B, N\), got \(1, 3\) of torch.float32",
        ),
        (lambda: make().domain(torch.zeros(3, dtype=torch.int64)), ShapeError, r"got \(3,\)"),
        (lambda: make().domain(torch.zeros(1, 0, dtype=torch.int64)), ShapeError, r"got \(1, 0\)"),
        (
            lambda: make(positions="learned")(torch.ones(1, 7, dtype=torch.int64)),
            ShapeError,
            "at most 6, where learned positions end, got 7",
        ),
    ],
)
def test_wrong_options_and_inputs_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("encoder", [TextEncoder, TokenEncoder])
def test_positions_stay_float32_in_half_precision(encoder):
    """In bfloat16 4,096 tokens would have 769 different positions."""
    options = {"vocabulary": 10, "dim": 8, "causal": True}
    options["max_length" if encoder is TextEncoder else "length"] = 4096
    built = encoder(**options).bfloat16()
    features, domain = built(torch.ones(1, 4096, dtype=torch.int64))
    assert features.dtype == torch.bfloat16
    for line in (domain, built.line(4096)):
        assert line.positions.dtype == torch.float32
        assert len(line.positions.unique()) == 4096
    assert encoder(**options).double().line(8).positions.dtype == torch.float64
    there = built.point(torch.tensor([1]), line.positions[4000])
    assert there.equal(features[:, 4000])


@pytest.mark.parametrize("name", ["itnet_nano", "ckcnn_ptb"])
def test_steps_of_a_half_precision_model_equal_its_forward(name):
    options = {"vocabulary": 9, "num_classes": 9, "max_length": 12}
    if name == "itnet_nano":
        options |= {
            "encoder": "text",
            "causal": True,
            "pool": "every",
            "operator": "itnet_low_rank",
        }
    else:
        options |= {"embedding": 4, "widths": (5, 4)}
    model = create_model(name, **parts(**options)).eval().bfloat16()
    numbers = torch.randint(1, 9, (2, 6))
    whole = model(numbers)
    first, state = model.prefill(numbers[:, :4], model.init_state(12, 2))
    last, _ = model.step(numbers[:, 4], state)
    assert_close(torch.cat([first, last[:, None]], 1), whole[:, :5], dtype=torch.bfloat16)


@pytest.mark.parametrize("number", [9, -1])
def test_numbers_outside_the_vocabulary_are_named(number):
    for encoder in (
        TextEncoder(vocabulary=9, dim=8, max_length=4),
        TokenEncoder(vocabulary=9, dim=8, length=4),
    ):
        with pytest.raises(ShapeError, match=f"tokens: expected 0 to 8, got {number}"):
            encoder(torch.tensor([[1, number]]))
