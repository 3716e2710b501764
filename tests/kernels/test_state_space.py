"""State space kernels: rules of discretisation, forms, refusals. The contract suite and
tests/layers/test_equality.py compare them with their recurrences.
"""

from __future__ import annotations

import pytest
import torch

from fredholm.domain import Domain
from fredholm.errors import DomainError, OptionError, ShapeError, StrategyError
from fredholm.integral import FFT, Exact, Scan
from fredholm.kernels import (
    ContinuousStateSpaceKernel,
    DiagonalStateSpaceKernel,
    MLPKernel,
    SelectiveKernel,
    StateSpaceKernel,
)
from fredholm.operators import IntegralOperator

from ..tolerances import assert_close

DOUBLE = {"dtype": torch.float64}
KERNELS = {
    "dense": lambda: StateSpaceKernel(torch.randn(3, 3) / 2, torch.randn(3, 4), torch.randn(4, 3)),
    "diagonal": lambda: DiagonalStateSpaceKernel(1, 4, state=3),
    "selective": lambda: SelectiveKernel(4, 3),
    "continuous": lambda: ContinuousStateSpaceKernel(
        torch.randn(3, 3), torch.randn(3, 4), torch.randn(4, 3)
    ),
}


def operator(kernel, **options) -> IntegralOperator:
    return IntegralOperator(
        kernel.d_in * (kernel.heads if not kernel.whole else 1),
        kernel.heads,
        kernel=kernel,
        **options,
    )


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]().double()


def test_refusals_name_what_is_needed(kernel):
    op = operator(kernel).double()
    u = torch.randn(2, 5, 4, **DOUBLE)
    with pytest.raises(DomainError, match="causal=True"):
        op(u, Domain.line(5, measure="counting", **DOUBLE))
    hidden = Domain.line(5, causal=True, measure="counting", **DOUBLE).replace(
        pairs=torch.ones(5, 5).bool()
    )
    with pytest.raises(DomainError, match="pairs"):
        op(u, hidden)
    if isinstance(kernel, ContinuousStateSpaceKernel):
        return
    with pytest.raises(DomainError, match="query_domain"):
        op(u, query=u, query_domain=Domain.line(5, causal=True, **DOUBLE))


def test_selective_coefficients_are_per_step_so_only_unit_masses_mean_something():
    op = operator(SelectiveKernel(4, 3))
    u = torch.randn(2, 5, 4)
    with pytest.raises(DomainError, match="'counting', got 'spacing'"):
        op(u, Domain.line(5, causal=True, measure="spacing"))


def test_wrong_options_are_refused():
    with pytest.raises(OptionError, match="did you mean 'bilinear'"):
        DiagonalStateSpaceKernel(2, discretization="bilinar")
    with pytest.raises(OptionError, match="simplified"):
        SelectiveKernel(4, discretization="euler")
    with pytest.raises(OptionError, match="state >= 1"):
        DiagonalStateSpaceKernel(2, state=0)
    with pytest.raises(ShapeError, match=r"A \(S, S\)"):
        StateSpaceKernel(torch.randn(3, 3), torch.randn(2, 1))
    with pytest.raises(ShapeError, match="DiagonalStateSpaceKernel"):
        StateSpaceKernel(torch.randn(2, 2) + 0j, torch.randn(2, 1))
    with pytest.raises(DomainError, match="one coordinate"):
        operator(KERNELS["continuous"]())(torch.randn(1, 4, 4), Domain.grid(2, 2, causal=True))


def test_strategies_agree_and_name_their_path():
    op = operator(KERNELS["dense"]()).double()
    u = torch.randn(2, 9, 4, **DOUBLE)
    domain = op.kernel.default_domain(9, device=u.device, dtype=u.dtype)
    expected = op.dense(u)
    for strategy, path in (
        (FFT(), "FFT"),
        (Scan(), "scan"),
        (Exact(), "dense"),
        ("fft", "FFT"),
        ("scan", "scan"),
    ):
        op.strategy = strategy
        assert path in op.plan(domain).path
        assert_close(op(u), expected, path)


def test_auto_convolves_small_taps_and_scans_large_ones():
    domain = Domain.line(5, causal=True, measure="counting")
    assert "FFT" in operator(DiagonalStateSpaceKernel(4, state=3)).plan(domain).path
    wide = StateSpaceKernel(torch.randn(3, 3), torch.randn(3, 16), torch.randn(16, 3))
    assert "scan" in operator(wide).plan(domain).path
    irregular = Domain.timestamps(torch.tensor([0.0, 1.0, 1.5, 3.0, 4.0]))
    continuous = operator(KERNELS["continuous"]())
    assert "scan" in continuous.plan(irregular).path
    assert "FFT" in continuous.plan(domain).path
    assert "dense" in continuous.plan(irregular, Domain.timestamps(torch.tensor([2.0]))).path


def test_strategies_refuse_unsupported_kernels():
    domain = Domain.line(5, causal=True, measure="counting")
    with pytest.raises(StrategyError, match=r"FFT cannot integrate MLPKernel.*LagTaps"):
        IntegralOperator(4, kernel=MLPKernel(1, 4), strategy="fft").plan(domain)
    with pytest.raises(StrategyError, match="FFT cannot integrate SelectiveKernel"):
        IntegralOperator(4, kernel=SelectiveKernel(4), strategy=FFT()).plan(domain)
    with pytest.raises(StrategyError, match=r"Scan cannot integrate MLPKernel.*StateScan"):
        IntegralOperator(4, kernel=MLPKernel(1, 4), strategy=Scan()).plan(domain)


@pytest.mark.parametrize("rule", ["zoh", "bilinear", "euler"])
def test_rules_converge_to_real_time_at_their_order(rule):
    """For a smooth signal that is held, averaged or sampled, the bilinear rule is of order two, the
    others of order one.
    """
    a = torch.tensor([[0.0, 1.0], [-2.0, -0.5]], **DOUBLE)
    b, c = torch.tensor([[0.0], [1.0]], **DOUBLE), torch.tensor([[1.0, 0.0]], **DOUBLE)
    errors = []
    for n in (40, 80):
        step = 2.0 / n
        # y' + ... for u = e^{-t}: h = (A + 1)^{-1} (e^{At} - e^{-t}) ... B, from rest
        one = torch.eye(2, **DOUBLE)
        end = torch.tensor(2.0, **DOUBLE)
        exact = (
            c
            @ torch.linalg.solve(a + one, torch.linalg.matrix_exp(a * end) - torch.exp(-end) * one)
            @ b
        )
        t = torch.arange(n, **DOUBLE) * step
        u = torch.exp(-t - step / 2) if rule == "bilinear" else torch.exp(-t)
        kernel = StateSpaceKernel(a, b, c, discretization=rule, step=step).double()
        y = operator(kernel, residual=False, projection=False)(u[None, :, None])[0, -1, 0]
        errors.append(float((y - exact).detach().abs()))
    assert (
        0.8 < torch.tensor(errors[0] / errors[1]).log2() / (2 if rule == "bilinear" else 1) < 1.25
    ), errors


def test_poles_of_half_precision_weights_are_not_rounded():
    """Rounded to bfloat16, e^0.7 loses its third digit."""
    kernel = SelectiveKernel(4, 3).bfloat16()
    with torch.no_grad():
        kernel.log_decay.fill_(0.7)
    poles = kernel.terms(torch.randn(1, 2, 4).bfloat16()).poles
    assert poles.dtype == torch.float32
    assert_close(poles, -kernel.log_decay.float().exp())


def test_zoh_needs_no_inverse():
    """An integrator has a singular A: B̄ is the step."""
    kernel = StateSpaceKernel(torch.zeros(1, 1), torch.ones(1, 1), discretization="zoh", step=0.25)
    assert_close(kernel.lags(3).flatten(), torch.full((3,), 0.25))


def test_a_pole_at_zero_forgets_everything():
    kernel = DiagonalStateSpaceKernel(
        1, state=1, discretization="euler", conjugate=False, steps=(1.0, 1.0)
    ).double()
    with torch.no_grad():
        kernel.log_decay.zero_()
    taps = kernel.lags(4)
    assert taps[0, 1:].abs().max() < 1e-300 < taps[0, 0].abs().max()
    (gradient,) = torch.autograd.grad(taps.sum(), kernel.readout)
    assert gradient.isfinite().all()


def test_parameters_are_the_passed_objects():
    a = torch.nn.Parameter(torch.randn(2, 2))
    b = torch.randn(2, 1)
    step = torch.nn.Parameter(torch.tensor(0.1))
    kernel = StateSpaceKernel(a, b, discretization="euler", step=step)
    assert kernel.state_matrix is a
    assert dict(kernel.named_parameters())["step"] is step
    assert isinstance(kernel.input_matrix, torch.nn.Parameter)


def test_queries_at_other_times_integrate_earlier_points():
    """A decaying system at times between the samples, against the formula."""
    one = torch.ones(1, 1, **DOUBLE)
    op = operator(ContinuousStateSpaceKernel(-one, one, one), residual=False, projection=False)
    times, other = torch.tensor([0.0, 1.0, 2.0], **DOUBLE), torch.tensor([-1.0, 0.5, 3.0], **DOUBLE)
    u = torch.randn(1, 3, 1, **DOUBLE)
    out = op(u, Domain.timestamps(times), query_domain=Domain.timestamps(other))[0, :, 0]
    seen = (times <= other[:, None]).double()
    assert_close(out, (seen * torch.exp(times - other[:, None])) @ u[0, :, 0])


def test_an_unstable_system_is_finite_where_it_reads_nothing():
    kernel = ContinuousStateSpaceKernel(torch.eye(1) * -800.0, torch.ones(1, 1), torch.ones(1, 1))
    op = operator(kernel, residual=False, projection=False)
    u = torch.randn(1, 4, 1)
    domain = Domain.timestamps(torch.arange(4.0))
    assert op.dense(u, domain).isfinite().all()
    assert_close(op(u, domain), op.dense(u, domain))


def test_a_long_horizon_is_accurate_in_float32():
    """Both forms keep single precision over a thousand steps: the one with powers, and the one that
    multiplies step by step.
    """
    op = operator(DiagonalStateSpaceKernel(4, state=8), residual=False, projection=False)
    u = torch.randn(1, 1000, 4)
    with torch.no_grad():
        single = {}
        for form in ("fft", "scan"):
            op.strategy = form
            single[form] = op(u).double()
        exact = op.double()(u.double())
    errors = {
        form: float((y - exact).abs().max() / exact.abs().max()) for form, y in single.items()
    }
    assert errors["scan"] < 1e-5, errors
    assert errors["fft"] < 1e-5, errors


def steps(layer, u, domain):
    state = layer.init_state(len(u), domain)
    outs = []
    for t in range(u.shape[1]):
        out, state = layer.step(u[:, t], state)
        outs.append(out)
    return torch.stack(outs, 1)


def growing() -> IntegralOperator:
    a = torch.tensor([[0.1, 1.0], [-1.0, 0.1]])
    return operator(ContinuousStateSpaceKernel(a, torch.randn(2, 3), torch.randn(2, 2)), out_dim=2)


def test_times_keep_float64_precision_beside_float32_features():
    """float32 features, seconds since 1970 in float64."""
    layer = growing()
    u = torch.randn(2, 6, 3)
    domain = Domain.timestamps(1.7e9 + torch.arange(6, **DOUBLE))
    near = Domain.timestamps(torch.arange(6.0))
    for out in (layer(u, domain), layer.dense(u, domain), steps(layer, u, domain)):
        assert out.dtype == torch.float32
        assert_close(out, layer(u, near))


def test_no_time_passes_before_the_first_point():
    layer = growing()
    u = torch.randn(2, 6, 3)
    domain = Domain.timestamps(1000 + torch.arange(6.0))
    assert_close(steps(layer, u, domain), layer(u, domain))


def test_padding_between_points_leaves_gradients_finite():
    """A padded point stands at time 0; a system that decays would grow on the way back there."""
    a = torch.tensor([[-1.0, 0.3], [0.0, -2.0]])
    kernel = ContinuousStateSpaceKernel(a, torch.randn(2, 3), torch.randn(2, 2))
    layer = operator(kernel, out_dim=2)
    u = torch.randn(1, 10, 3)
    valid = (torch.arange(10) != 4)[None]
    domain = Domain.timestamps(torch.linspace(0, 200, 10)[None], valid=valid)
    weights = list(kernel.parameters())
    expected = torch.autograd.grad(layer(u, domain).square().sum(), weights)
    for way in (steps(layer, u, domain), layer.dense(u, domain)):
        for f, e in zip(torch.autograd.grad(way.square().sum(), weights), expected):
            assert_close(f, e)


def test_no_time_passes_before_the_first_point_behind_padding():
    layer = growing()
    u = torch.randn(2, 6, 3)
    valid = torch.stack([torch.arange(6) > 1, torch.arange(6) > -1])
    for start in (1e5, -1e5):
        domain = Domain.timestamps((start + torch.arange(6.0)).expand(2, -1), valid=valid)
        expected = layer.dense(u, domain)
        assert expected.isfinite().all()
        for out in (layer(u, domain), steps(layer, u, domain)):
            assert_close(out, expected)
