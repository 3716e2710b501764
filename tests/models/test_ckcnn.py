"""CKCNN: sizes of the paper, order, rates, missing data, heads."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fredholm.domain import Domain
from fredholm.errors import OptionError
from fredholm.models import Model, count, create_model, from_pretrained, model_config
from fredholm.models.bodies.ckcnn import WholeNorm
from fredholm.operators import CKConv
from tests.parts import parts

from ..tolerances import assert_close

SMALL = {
    "widths": (6, 5),
    "length": 12,
    "channels": 2,
    "num_classes": 3,
    "operator_options": {"omega": 5.0, "width": 8},
}


def small(**changes) -> Model:
    torch.manual_seed(0)
    return (
        create_model(
            "ckcnn_small", **parts(**{**SMALL, "dropout": 0.0, "input_dropout": 0.0, **changes})
        )
        .double()
        .eval()
    )


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ckcnn_copy", 15526),
        ("ckcnn_adding", 70587),
        ("ckcnn_small", 98286),
        ("ckcnn_speech_raw", 98286),
        ("ckcnn_speech", 118236),
        ("ckcnn_big", 1030546),
        ("ckcnn_ptb", 1804438),
    ],
)
def test_sizes_match_the_paper(name, parameters):
    with FakeTensorMode():
        model = create_model(name)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_sepsis_model_has_more_weights_than_its_table():
    """178,857 with 39 measurements and their masks; Table 9 has 175.71 thousand, the count for 75
    inputs.
    """

    def weights(channels: int, **encoder) -> int:
        with FakeTensorMode():
            model = create_model(
                "ckcnn_small",
                encoder={"channels": channels, "length": 72, **encoder},
                head={"outputs": 1},
            )
        return sum(p.numel() for p in model.parameters())

    assert weights(39, mask="channel") == 178_857
    assert weights(75) == 175_707


def test_kernels_as_long_as_the_signal_would_have_so_many_weights():
    """2.14 and 43.68 million; the paper has 46.68 and a ratio of 445.71, which belongs to 43.68."""
    with FakeTensorMode():
        small, raw = create_model("ckcnn_small"), create_model("ckcnn_speech_raw")
    weights = []
    for model in (small, raw):
        layers = [module for module in model.modules() if isinstance(module, CKConv)]
        assert all(layer.heads == 1 for layer in layers)
        weights.append(sum(layer.dim * layer.out_dim for layer in layers))
    assert weights == [2730, 2730]
    assert round(784 * 2730 / 1e6, 2) == 2.14
    assert round(16000 * 2730 / 1e6, 2) == 43.68
    assert round(784 * 2730 / 98e3, 2) == 21.84
    assert round(16000 * 2730 / 98e3, 2) == 445.71


@pytest.mark.parametrize("name", ["ckcnn_small", "ckcnn_ptb", "ckcnn_image"])
def test_counting_parameters_needs_no_data(name):
    model = create_model(name)
    parameters, _ = count(model, (1, *model.config.input_shape))
    assert parameters == sum(p.numel() for p in model.parameters())


def test_outputs_do_not_depend_on_later_points():
    model = small(head="every")
    inputs = torch.randn(2, 12, 2, dtype=torch.float64)
    out = model(inputs)
    later = inputs.clone()
    assert out.shape == (2, 12, 3)
    later[:, 7:] += 1.0
    assert_close(model(later)[:, :7], out[:, :7])
    assert_close(model(inputs[:, :7]), out[:, :7], "prefix")


def test_padding_and_batching_change_no_output():
    model = small()
    sequence = torch.randn(1, 6, 2, dtype=torch.float64)
    both = torch.full((2, 9, 2), torch.nan, dtype=torch.float64)
    both[0, :6] = sequence[0]
    both[1] = torch.randn(9, 2)
    out = model(both)
    assert out.isfinite().all()
    assert_close(out[:1], model(sequence))


def test_every_parameter_receives_a_gradient():
    model = small(input_dropout=0.2).train()
    model(torch.randn(4, 12, 2, dtype=torch.float64)).square().sum().backward()
    silent = [
        n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0
    ]
    assert [n for n in silent if not n.endswith("network.layers.0.direction")] == [], (
        "with one input it is a sign"
    )


def test_outputs_converge_with_the_sampling_rate():
    """The response at finer rates converges: masses count training steps, and positions are not
    rescaled.
    """
    model = small(length=64, operator_options={"omega": 2.0, "width": 8})

    @torch.no_grad()
    def at(spacing: float) -> torch.Tensor:
        t = torch.arange(0, 60 + 1e-9, spacing, dtype=torch.float64)
        other = create_model(
            "ckcnn_small",
            **parts(
                **{
                    **SMALL,
                    "length": 64,
                    "spacing": spacing,
                    "operator_options": {"omega": 2.0, "width": 8},
                }
            ),
        )
        other.double().eval().load_state_dict(model.state_dict())
        return other(torch.stack([torch.sin(t / 9), torch.cos(t / 7)], -1)[None])

    finest = at(1 / 16)
    errors = [float((at(s) - finest).abs().max()) for s in (4.0, 1.0, 0.25)]
    assert errors[1] < 0.7 * errors[0], errors
    assert errors[2] < 0.4 * errors[1], errors


def test_timestamps_of_a_regular_grid_equal_the_grid():
    grid = small()
    timed = small(timed=True, step=0.25)
    timed.load_state_dict(grid.state_dict())
    values = torch.randn(2, 9, 2, dtype=torch.float64)
    times = (0.25 * torch.arange(9, dtype=torch.float64)).expand(2, 9)[..., None]
    assert_close(timed(torch.cat([times, values], -1)), grid(values))


def test_a_grid_with_gaps_equals_timestamps():
    """Outputs and gradients by FFT with gaps, and by direct sums with timestamps."""
    grid, timed = small(), small(timed=True)
    timed.load_state_dict(grid.state_dict())
    values = torch.randn(2, 12, 2, dtype=torch.float64)
    lost = torch.tensor(
        [[1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 1, 0], [0, 1, 0, 1, 0, 0, 0, 1, 1, 0, 0, 1]]
    ).bool()
    left = torch.full((2, 7, 3), torch.nan, dtype=torch.float64)
    for i in range(2):
        times = (~lost[i]).nonzero().double()
        left[i, : len(times)] = torch.cat([times, values[i, ~lost[i]]], -1)
    answers = grid(values.masked_fill(lost[..., None], torch.nan)), timed(left)
    assert_close(*answers)
    gradients = [
        torch.autograd.grad(y.square().sum(), m.parameters())
        for m, y in zip((grid, timed), answers)
    ]
    for g, h in zip(*gradients):
        assert_close(g, h, "gradient")


def test_masks_add_channels():
    model = small(timed=True, mask="point")
    inputs = torch.cat([torch.rand(2, 7, 1).cumsum(1), torch.randn(2, 7, 2)], -1).double()
    inputs[0, 3, 1:] = torch.nan
    assert model(inputs).isfinite().all()
    assert model.encoder.dim == 3


def test_the_released_norm_is_refused_in_causal_order():
    with pytest.raises(OptionError, match=r"expected 'paper' beside encoder\.causal=True"):
        create_model("ckcnn_small", **parts(norm="released"))
    model = small(norm="released", causal=False, head="mean")
    assert isinstance(model.body.blocks[0].norms[0], WholeNorm)
    assert model(torch.randn(2, 12, 2, dtype=torch.float64)).shape == (2, 3)
    x = torch.randn(2, 5, 6)
    assert_close(
        WholeNorm(6)(x),
        (x - x.mean((1, 2), keepdim=True)) / x.var((1, 2), keepdim=True, unbiased=False).sqrt(),
    )


def test_the_released_norm_ignores_padding():
    """A sample with padding behind and between its points equals the sample alone."""
    body = small(norm="released", causal=False, head="mean").body
    with torch.no_grad():
        for parameter in body.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    width = body.operators[0].dim
    u = torch.randn(2, 9, width, dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([[1, 0, 1, 1, 0, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0, 0]]).bool()
    points = torch.rand(2, 9, 1, dtype=torch.float64)
    padded = Domain.points(points, measure="counting", valid=valid)
    dirty = torch.where(valid[..., None], u, 7.0)
    out = body(dirty, padded)[0]
    alone = [
        body(u[b : b + 1, real], Domain.points(points[b, real], measure="counting"))[0][0]
        for b, real in enumerate(valid)
    ]
    assert_close(out[valid], torch.cat(alone))
    inputs = [u, *body.parameters()]
    found = torch.autograd.grad(out[valid].square().sum(), inputs)
    expected = torch.autograd.grad(torch.cat(alone).square().sum(), inputs)
    for g, h in zip(found, expected):
        assert_close(g, h, "gradient")
    norm = body.blocks[0].norms[0]
    none = norm(u[..., :1].expand(-1, -1, 6), torch.zeros(1, 9, dtype=torch.bool))
    assert none.abs().max() == 0


def test_images_have_kernels_of_two_dimensions():
    model = create_model(
        "ckcnn_image",
        **parts(image_size=(5, 6), widths=(4,), channels=3, operator_options={"width": 8}),
    )
    assert model(torch.randn(2, 3, 5, 6)).shape == (2, 10)
    assert model.body.blocks[0].operators[0].kernel.network.position_dim == 2
    assert model(torch.randn(1, 3, 4, 4)).shape == (1, 10)
    with pytest.raises(OptionError, match=r"head\.pool: expected one of .* for pixels, got 'last'"):
        create_model("ckcnn_image", **parts(head="last"))


def test_a_language_model_ties_head_and_embedding():
    options = {"vocabulary": 7, "num_classes": 7, "embedding": 5, "widths": (6, 5), "max_length": 9}
    model = create_model("ckcnn_ptb", **parts(**options, operator_options={"width": 8})).eval()
    out = model(torch.randint(7, (2, 9)))
    assert out.shape == (2, 9, 7)
    model.encoder.embed.weight.grad = None
    out.sum().backward()
    assert (model.encoder.embed.weight.grad.abs().sum(1) > 0).all()
    with pytest.raises(OptionError, match=r"last width equal to encoder\.dim"):
        create_model("ckcnn_ptb", **parts(**{**options, "widths": (6, 6)}))
    with pytest.raises(OptionError, match=r"head\.outputs: expected the vocabulary, 7"):
        create_model("ckcnn_ptb", **parts(**{**options, "num_classes": 8}))


def test_a_model_can_be_saved_copied_and_traced(tmp_path):
    model = small()
    inputs = torch.randn(2, 12, 2, dtype=torch.float64)
    model.save_pretrained(tmp_path, classes=["a", "b", "c"])
    assert_close(from_pretrained(tmp_path)(inputs), model(inputs))
    assert_close(
        from_pretrained(tmp_path, overrides={"encoder": {"spacing": 2.0}})(inputs[:, ::2])
        .isfinite()
        .double(),
        torch.ones(2, 3).double(),
    )
    assert_close(copy.deepcopy(model)(inputs), model(inputs))
    operator, u, domain = model.trace(inputs)[1]
    assert operator is model.body.blocks[1].operators[0]
    assert u.shape == (2, 12, 6)
    assert domain.size == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "sample"}, "did you mean 'samples'"),
        ({"widths": ()}, "widths: expected a positive integer, got 0"),
        ({"dropout": 1.0}, "dropout: expected a rate .*, got 1.0"),
        ({"head": "first"}, "head.pool: expected one of .*, got 'first'"),
    ],
)
def test_wrong_configurations_are_refused(changes, message):
    with pytest.raises(OptionError, match=message):
        model_config("ckcnn_small", **parts(**changes))


def test_operators_other_than_convolutions_are_refused():
    with pytest.raises(
        OptionError, match=r"expected a convolution with out_dim and length, got 'softmax'"
    ):
        create_model("ckcnn_small", **parts(operator="softmax"))


def test_a_prefill_equals_the_forward():
    body = small().body
    u = torch.randn(2, 9, 2, dtype=torch.float64)
    line = Domain.line(9, causal=True, dtype=torch.float64)
    expected, _ = body(u, line)
    assert_close(body.prefill(u, body.init_state(2, line))[0], expected)
