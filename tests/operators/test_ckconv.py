"""CKConv: scale at initialisation, lengths, rates, timestamps, wrong input, memory."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from fredholm import inference
from fredholm.domain import Domain
from fredholm.errors import DomainError, OptionError, ShapeError
from fredholm.families.ckconv.grid_convolution import fft
from fredholm.kernels import ContinuousConvolutionKernel, LowRankKernel, StateSpaceKernel
from fredholm.operators import CKConv, IntegralOperator, ITNetOperator

from ..autocast import gradients_in_and_outside
from ..tolerances import assert_close

DOUBLE = {"dtype": torch.float64}
ALONE = {"residual": False, "projection": False}
KERNEL_ALONE = {"start": 0.0, "epsilon": 1.0}


def line(n: int, length: int = 16, **options) -> Domain:
    return Domain.line(n, length=length, causal=True, measure="counting", **DOUBLE, **options)


def layer(
    dim: int = 2, out_dim: int = 3, length: int = 16, omega: float = 6.0, **options
) -> CKConv:
    torch.manual_seed(1)
    return CKConv(dim, out_dim=out_dim, length=length, omega=omega, width=8, **options).double()


@pytest.mark.parametrize("activation", ["sine", "gelu", "rff"])
def test_white_noise_keeps_its_variance(activation):
    variances = []
    for seed in range(8):
        torch.manual_seed(seed)
        operator = CKConv(8, out_dim=16, length=64, activation=activation, omega=10.0)
        variances.append(float(operator(torch.randn(64, 64, 8))[:, -1].detach().var()))
    assert 0.5 < sum(variances) / 8 < 2.0
    torch.manual_seed(0)
    assert (
        CKConv(8, length=64, unit_variance=False, preset="released")(torch.randn(16, 64, 8))[
            :, -1
        ].std()
        > 3
    )


def test_calls_of_different_lengths_are_independent():
    operator = layer()
    u = torch.randn(2, 16, 2, **DOUBLE)
    whole = operator(u)
    for n in (5, 16, 1, 9):
        assert_close(operator(u[:, :n]), whole[:, :n], f"prefix of {n}")
        assert_close(operator(u[:, :n]), operator.dense(u[:, :n]))
    assert_close(copy.deepcopy(operator)(u), whole, "a copy after a call")


def test_one_sample_equals_its_formula():
    operator = layer()
    u = torch.randn(2, 1, 2, **DOUBLE)
    weight, bias = operator.kernel.readout()
    h = operator.kernel.lag_features(torch.zeros(1, 1, **DOUBLE))[0]
    assert_close(operator(u)[:, 0], u[:, 0] @ (weight[0] @ h + bias[0]).mT + operator.kernel.bias)
    stamped = Domain.timestamps(torch.tensor([[3.0], [4.0]], **DOUBLE))
    assert_close(operator(u, stamped), operator(u))


def test_the_scale_of_positions_is_saved():
    operator = layer(extent=2.0)
    assert "kernel.extent" in operator.state_dict()
    other = layer()
    other.load_state_dict(operator.state_dict(), strict=True)
    domain = line(16)
    u = torch.randn(1, 16, 2, **DOUBLE)
    assert_close(other(u, domain), operator(u, domain))
    with pytest.raises(RuntimeError, match=r"kernel\.extent"):
        other.load_state_dict(
            {k: v for k, v in operator.state_dict().items() if k != "kernel.extent"}
        )


def test_signals_longer_than_the_kernels_length_warn_once():
    operator = layer(length=8)
    u = torch.randn(1, 12, 2, **DOUBLE)
    with pytest.warns(
        UserWarning, match=r"displacements of 1\.375 are longer than the 1 the kernel was built for"
    ):
        operator(u)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        operator(u)
        layer(length=8)(u[:, :8])
        # A finer rate is not a longer signal.
        layer(length=8)(u, line(12, 12))
    with pytest.warns(UserWarning, match="longer than"):
        layer(length=8)(u, Domain.timestamps(torch.arange(12, **DOUBLE) / 8, step=1 / 8))


@pytest.mark.parametrize("ratio", [2.0, 0.5, 2 / 3, 1.3])
def test_other_rates_converge_to_the_same_integral(ratio):
    """Sample a smooth signal that begins at zero `ratio` times as often: the error is that of a
    Riemann sum.
    """
    operator = layer(omega=2.0, length=64)

    def at(rate: float) -> torch.Tensor:
        n = round(62 * rate) + 1
        t = torch.arange(n, **DOUBLE) / rate
        signal = torch.stack([torch.sin(t / 62 * 3).square(), (t / 62).square()], -1)[None]
        domain = Domain.line(n, length=64 * rate, causal=True, measure="counting", **DOUBLE)
        return operator(signal, domain.with_masses(domain.measure / rate))[:, -1]

    exact = at(256.0)
    first, second = (float((at(r) - exact).detach().abs().max()) for r in (ratio, 4 * ratio))
    assert second < 0.35 * first
    assert first < 0.1 * float(exact.abs().max())


def test_a_coarser_sequence_is_not_stretched():
    """seq[::8] of length 182 ends at 177, not at 182."""
    operator = layer(length=182, omega=3.0)
    t = torch.arange(182, **DOUBLE)
    coarse = t[::8]
    assert int(coarse[-1]) == 176
    regular = Domain.line(len(coarse), length=182 / 8, causal=True, measure="counting", **DOUBLE)
    stamped = Domain.timestamps(coarse / 182, step=1 / 182)
    u = torch.randn(1, len(coarse), 2, **DOUBLE)
    masses = stamped.measure
    assert masses.tolist() == pytest.approx([1.0] + [8.0] * (len(coarse) - 1))
    assert_close(operator(u, regular.with_masses(masses)), operator(u, stamped))


def test_timestamps_in_ragged_batches_equal_the_definition():
    operator = layer()
    u = torch.randn(2, 7, 2, **DOUBLE)
    times = torch.rand(2, 7, **DOUBLE).cumsum(1) / 16
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[0, 4:] = False
    u[0, 4:], times[0, 4:] = torch.nan, torch.nan
    domain = Domain.timestamps(times, step=1 / 16, valid=valid)
    out = operator(u, domain.validate())
    assert out.isfinite().all()
    assert_close(out, operator.dense(u, domain))
    for b, n in ((0, 4), (1, 7)):
        alone = Domain.timestamps(times[b, :n], step=1 / 16)
        assert_close(out[b : b + 1, :n], operator(u[b : b + 1, :n], alone), f"element {b} alone")


def test_unsorted_or_repeated_timestamps_are_refused():
    with pytest.raises(DomainError, match="do not go back"):
        Domain.timestamps(torch.tensor([0.0, 2.0, 1.0]))
    with pytest.raises(DomainError, match="increase strictly"):
        Domain.timestamps(torch.tensor([0.0, 1.0, 1.0])).validate()


def test_float64_positions_beside_float32_features_agree():
    operator = layer().float()
    u = torch.randn(1, 6, 2)
    for domain in (line(6), Domain.timestamps(torch.arange(6, **DOUBLE) / 16, step=1 / 16)):
        assert_close(operator(u, domain).float(), operator(u))


def test_invalid_rates_and_lengths_are_refused():
    for length in (0.0, -1.0):
        with pytest.raises(DomainError, match="expected a positive length"):
            Domain.line(4, length=length)
        with pytest.raises(OptionError, match="expected extent and length above zero"):
            CKConv(2, extent=length)
    with pytest.raises(DomainError, match="at least one point"):
        Domain.line(0)
    with pytest.raises(DomainError):
        CKConv(2)(torch.zeros(1, 0, 2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "make", [layer, lambda origin: ITNetOperator(2, width=4, frequencies=2).double()]
)
def test_padding_on_a_shared_grid_equals_the_definition(causal, make):
    """Positions stay those of the grid where samples of the batch are padded."""
    operator = make(origin="start" if causal else "centre")
    domain = Domain.line(6, length=16, causal=causal, measure="counting", **DOUBLE)
    valid = torch.tensor([[True] * 4 + [False] * 2, [True] * 6, [False] * 6])
    u = torch.randn(3, 6, 2, **DOUBLE)
    u[0, 4:] = torch.nan
    out = operator(u, domain.replace(valid=valid))
    assert_close(out, operator.dense(u, domain.replace(valid=valid)))
    assert_close(out[:1, :4], operator(u[:1, :4], domain[:4]))
    assert_close(out[1:2], operator(u[1:2], domain))


def test_a_linear_recurrence_is_a_convolution_with_powers():
    """h_t = W h_{t-1} + U x_t has ψ(τ) = W^τ U."""
    from fredholm.convert import as_operator

    torch.manual_seed(0)
    w = 0.4 * torch.randn(3, 3, **DOUBLE)
    u_matrix = torch.randn(3, 2, **DOUBLE)
    x = torch.rand(2, 6, 2, **DOUBLE)
    kernel = StateSpaceKernel(w, u_matrix)
    operator = IntegralOperator(
        2, kernel=kernel, out_dim=3, residual=False, projection=False
    ).double()
    powers = [torch.linalg.matrix_power(w, tau) @ u_matrix for tau in range(6)]
    expected = torch.stack(
        [sum(x[:, t - tau] @ powers[tau].mT for tau in range(t + 1)) for t in range(6)], 1
    )
    assert_close(operator(x, line(6)), expected)
    rnn = nn.RNN(2, 3, nonlinearity="relu", bias=False, batch_first=True).double()
    with torch.no_grad():
        rnn.weight_hh_l0.copy_(w.abs())
        rnn.weight_ih_l0.copy_(u_matrix.abs())  # all positive: the rectifier does nothing
    matrix = as_operator(rnn).kernel_matrix(x, rows=[5])[0, 0, 0]
    for tau in range(6):
        assert_close(
            matrix[5 - tau], torch.linalg.matrix_power(w.abs(), tau) @ u_matrix.abs(), f"ψ({tau})"
        )


def test_the_direct_form_saves_no_pairs_for_the_backward():
    operator = CKConv(2, width=8)
    saved = []

    def held(n: int) -> int:
        saved.clear()
        domain = Domain.timestamps(torch.rand(1, n).cumsum(1) / n)
        u = torch.randn(1, n, 2, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: (saved.append(x.numel()), x)[1], lambda x: x
        ):
            operator(u, domain)
        return sum(saved)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small, large = held(1024), held(4096)
    assert large < 6 * small


def steps(operator: CKConv, u: torch.Tensor, domain: Domain) -> torch.Tensor:
    state = operator.init_state(len(u), domain)
    outs = []
    for t in range(u.shape[1]):
        y, state = operator.step(u[:, t], state)
        outs.append(y)
    assert {v.shape[1] for v in state.keys.values()} <= {operator.kernel.memory}
    return torch.stack(outs, 1)


@pytest.mark.parametrize("horizon", [1, 3, 20])
def test_a_horizon_ends_the_kernel(horizon):
    operator = layer(horizon=horizon)
    u = torch.randn(2, 12, 2, **DOUBLE)
    whole = layer()
    whole.load_state_dict(operator.state_dict(), strict=True)
    out = operator(u)
    assert operator.plan(line(12)).path == "direct convolution"
    assert operator.plan(line(256)).path == "FFT convolution, hidden units first"
    assert_close(out, operator.dense(u))
    band = torch.ones(12, 12).tril().triu(1 - horizon).bool()
    assert_close(out, whole(u, line(12).replace(pairs=band)))
    assert_close(steps(operator, u, line(12)), out)


def test_steps_with_padding_timestamps_and_masses_equal_the_forward():
    operator = layer(horizon=4)
    u = torch.randn(2, 9, 2, **DOUBLE)
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[1, [2, 3, 8]] = False
    times = torch.cat([torch.zeros(2, 1), (1 + torch.rand(2, 8)).cumsum(1)], 1).double() / 16
    for domain in (
        line(9).replace(valid=valid),
        Domain.timestamps(times, step=1 / 16, valid=valid),
        Domain.line(9, length=16, causal=True, **DOUBLE),
    ):
        assert_close(steps(operator, u, domain), operator(u, domain))


def test_steps_of_a_horizon_keep_float64_times():
    """float32 features and seconds since 1970 in float64; empty slots of the memory are not points
    at time 0.
    """
    torch.manual_seed(0)
    u = torch.randn(2, 12, 3)
    for start, spacing in ((1.7e9, 60.0), (1.7e9, 1.0), (1e3, 1.0)):
        operator = CKConv(3, length=100, horizon=4, extent=100 * spacing)
        domain = Domain.timestamps(start + spacing * torch.arange(12, **DOUBLE), step=spacing)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # displacements longer than the training's
            found = steps(operator, u, domain)
        assert found.dtype == torch.float32
        assert_close(found, operator(u, domain))


def test_steps_of_a_horizon_accumulate_float16_in_float32():
    torch.manual_seed(0)
    operator, u = CKConv(3, length=300, horizon=300).half(), (400 + torch.randn(1, 300, 3)).half()
    domain = line(300, 300)
    expected = copy.deepcopy(operator).float()(u.float(), line(300, 300))
    assert_close(steps(operator, u, domain).float(), expected, dtype=torch.float16)


@pytest.mark.parametrize("activation", ["relu", "silu", "sine"])
def test_a_network_of_one_unit_is_finite(activation):
    operator = CKConv(2, length=20, width=1, activation=activation)
    assert operator(torch.randn(1, 20, 2)).isfinite().all()


def test_more_points_than_memory_within_the_horizon_are_refused():
    u = torch.randn(1, 12, 2, **DOUBLE)
    fine = line(12, 32)
    with pytest.raises(
        DomainError, match="at most 4 points within the horizon of 4 training steps"
    ):
        steps(layer(horizon=4), u, fine)
    operator = layer(horizon=4, memory=8)
    assert_close(steps(operator, u, fine), operator(u, fine))
    for options in ({"horizon": 0}, {"horizon": 2, "memory": 0}, {"horizon": 2, "position_dim": 2}):
        with pytest.raises(OptionError, match="horizon"):
            layer(**options)


def test_blur_is_a_gaussian_over_the_samples():
    operator = layer(length=16, omega=8.0)
    kernel = operator.kernel
    lags = torch.arange(12, **DOUBLE)[:, None] / 32
    plain = kernel.lag_features
    kernel.blur = 0.5
    weights = torch.exp(-2.0 * torch.arange(-2, 3, **DOUBLE).square())
    blurred = kernel.lag_features(lags)
    kernel.blur = None
    expected = sum(w * plain(lags + k / 32) for k, w in zip(range(-2, 3), weights / weights.sum()))
    assert_close(blurred, expected)
    with pytest.raises(OptionError, match=r"expected a blur in .*, got 2\.0"):
        layer(blur=2.0)
    with pytest.raises(OptionError, match=r"got 0\.5 on 2 axes"):
        layer(blur=0.5, position_dim=2, origin="centre")


@pytest.mark.parametrize(("points", "windows"), [(12, True), (12, False), (256, True)])
def test_the_blur_may_change_under_inference(points, windows, monkeypatch):
    monkeypatch.setattr(fft, "WINDOWS", fft.WINDOWS if windows else 0)
    operator = layer(2, 2, heads=2, extent=points / 16)
    u = torch.randn(2, points, operator.dim, **DOUBLE)
    domain = line(points)
    with inference(operator), torch.no_grad():
        for blur in (None, 0.5, 0.25, None):
            operator.kernel.blur = blur
            assert_close(operator(u, domain), operator.dense(u, domain), f"blur {blur}")


def test_blur_removes_frequencies_above_the_training_grid():
    """A component that alternates between samples of the finer grid vanishes on the training grid;
    the blurred kernel suppresses it.
    """
    operator = layer(dim=1, out_dim=1, length=32)
    kernel = operator.kernel
    kernel._features = lambda d: torch.cos(torch.pi * 64 * d)  # (-1)^k at 64 samples
    fine = torch.arange(64, **DOUBLE)[:, None] / 64
    assert float(kernel.lag_features(fine).abs().min()) > 0.99
    kernel.blur = 0.5
    assert float(kernel.lag_features(fine).abs().max()) < 0.6


def test_a_separable_convolution_equals_the_definition():
    operator = layer(dim=4, out_dim=6, separable=True)
    u = torch.randn(2, 9, 4, **DOUBLE)
    assert operator.heads == 4
    assert operator.kernel.readout_layer.direction.shape == (4, 8)
    assert_close(operator(u), operator.dense(u))
    taps = operator.kernel.matrix(operator.problem(u, line(9)))[0, :, 8, :, 0, 0]  # ψ_c(8 - j)
    last = torch.einsum("cj,bjc->bc", taps, u) + operator.kernel.bias
    assert_close(operator(u)[:, 8], last @ operator.projection.weight.mT + operator.projection.bias)
    with pytest.raises(OptionError, match=r"expected 4 heads in a separable convolution, .* got 2"):
        layer(dim=4, heads=2, separable=True)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [2, 4])
def test_the_form_by_windows_equals_the_convolution(heads, causal, monkeypatch):
    operator = layer(8, 12, heads=heads, origin="start" if causal else "centre")
    domain = line(11).replace(causal=causal)
    u = torch.randn(3, 11, 8, **DOUBLE)
    with torch.no_grad():
        windows = operator(u, domain)
        monkeypatch.setattr(fft, "_by_windows", None)  # would be called
        with pytest.raises(TypeError):
            operator(u, domain)
        monkeypatch.setattr(fft, "WINDOWS", 0)
        assert_close(windows, operator(u, domain))
        assert_close(windows, operator.dense(u, domain))


@pytest.mark.parametrize(
    "make",
    [
        lambda: CKConv(8, length=64, omega=60.0),
        lambda: CKConv(8, length=64, omega=60.0, bias=False),
        lambda: CKConv(8, length=64, activation="rff", omega=60.0),
        lambda: ITNetOperator(8, 2, sigma=30.0, **KERNEL_ALONE),
        lambda: ITNetOperator(8, 2, sigma=30.0, learned_frequencies=True, **KERNEL_ALONE),
        lambda: IntegralOperator(
            8, 2, kernel=LowRankKernel(2, 4, learned_frequencies=True), **ALONE
        ),
    ],
)
def test_half_precision_keeps_the_frequencies(make):
    """A whole operator in bfloat16 differs from float32 by bfloat16's own rounding."""
    torch.manual_seed(0)
    operator = make()
    u = torch.randn(2, 64, 8)
    expected = operator(u)
    found = copy.deepcopy(operator).to(torch.bfloat16)(u.bfloat16())
    assert found.dtype == torch.bfloat16
    with pytest.raises(ShapeError, match=r"expected the dtype .*bfloat16, got torch.float32"):
        copy.deepcopy(operator).to(torch.bfloat16)(u)
    error = (found.float() - expected).norm() / expected.norm()
    assert float(error.detach()) < 0.01  # 0.06 to 1.1 where frequencies are rounded


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_extent(half):
    """The extent scales displacements; in float32, lags and the horizon stay exact."""
    torch.manual_seed(0)
    whole = CKConv(4, length=512, extent=1.3, horizon=500, omega=5.0)
    low = copy.deepcopy(whole).to(half)
    assert low.kernel.extent.dtype == torch.float32
    assert torch.equal(low.kernel.extent, whole.kernel.extent)
    assert low.kernel.bias.dtype == half
    lags = torch.arange(512.0)[:, None] * 1.3 / 512
    assert int((low.kernel.lag_features(lags)[:, -1] != 0).sum()) == 500
    assert low.double().kernel.extent.dtype == torch.float64
    assert low.to(half).kernel.extent.dtype == torch.float32
    assert CKConv(4).to("meta").to_empty(device="cpu").kernel.extent.device.type == "cpu"
    u = torch.randn(2, 512, 4)
    expected = whole(u)
    found = copy.deepcopy(whole).to(half)(u.to(half))
    assert found.dtype == half
    assert_close(found.float(), expected, dtype=half)


def test_sums_of_steps_beyond_float16_are_accurate():
    torch.manual_seed(0)
    single = CKConv(4, length=40, width=4)
    u = 3000 + torch.randn(1, 40, 4)
    line = Domain.line(40, length=40, causal=True, measure="counting")
    low = copy.deepcopy(single).half()
    double = copy.deepcopy(single).half().double()
    expected = double(u.half().double(), line.to(torch.float64))[:, -1]

    def last(operator: CKConv, u: torch.Tensor) -> torch.Tensor:
        _, state = operator.prefill(u[:, :-1], operator.init_state(1, line))
        return operator.step(u[:, -1], state)[0].double()

    assert_close(last(low, u.half()), expected, dtype=torch.float16)
    with torch.autocast("cpu", dtype=torch.float16):
        assert_close(last(single, u), expected, dtype=torch.bfloat16)


@pytest.mark.parametrize("strategy", ["exact", "fft", "auto"])
def test_large_masses_in_causal_order_keep_half_precision_finite(strategy):
    """The queries' scale divides them again, after the sum."""
    torch.manual_seed(0)
    single = CKConv(4, length=24, width=4, strategy=strategy)
    u = torch.randn(1, 24, 4)
    line = Domain.line(24, causal=True).with_masses(torch.full((24,), 1e5), normalised=True)
    op = copy.deepcopy(single).half()
    found = op(u.half(), line)
    torch.testing.assert_close(found.float(), single(u, line), rtol=0.02, atol=0.01)


def test_a_backward_under_autocast_equals_one_outside():
    op = CKConv(4, length=64, width=4, strategy="fft")
    u = torch.randn(2, 64, 4)
    outside, inside = gradients_in_and_outside(op, u)
    readout = [name for name in outside if "readout" in name]
    assert readout
    for name in readout:
        assert_close(inside[name], outside[name], name)


def test_a_step_of_a_finite_horizon_agrees_under_autocast_and_vmap():
    torch.manual_seed(0)
    op = CKConv(4, length=40, width=4, horizon=40)
    u = 3000 + torch.randn(1, 40, 4)
    state = op.init_state(1, Domain.line(40, causal=True))
    _, half = op.prefill(u[:, :39], state)
    expected, _ = op.step(u[:, 39], half)
    with torch.autocast("cpu", dtype=torch.float16):
        found, _ = op.step(u[:, 39], half)
    torch.testing.assert_close(found.float(), expected, rtol=1e-3, atol=1.0)

    def last(x):
        return op.step(x[None], op.prefill(u[:, :39], state)[1])[0][0]

    found = torch.func.vmap(last)(u[:, 39].repeat(3, 1))
    assert_close(found, expected.expand(3, -1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"preset": "released", "unit_variance": False},
        {"learned_omega": True, "omega": 12.0},
        {"activation": "gelu"},
        {"activation": "relu", "knots": "zero"},
        {"activation": "rff"},
    ],
)
def test_reset_parameters_draws_the_values_of_construction(options):
    torch.manual_seed(7)
    kernel = ContinuousConvolutionKernel(2, 3, 2, length=16, extent=2.0, **options)
    built = {name: x.clone() for name, x in kernel.state_dict().items()}
    with torch.no_grad():
        for x in kernel.state_dict().values():
            x.fill_(float("nan"))
    torch.manual_seed(7)
    kernel.reset_parameters()
    for name, x in kernel.state_dict().items():
        assert torch.equal(x, built[name]), name
