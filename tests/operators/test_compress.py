"""Compression: a low-rank matrix is recovered, the report's numbers equal their definitions, and a
run is reproducible.
"""

from __future__ import annotations

import pytest
import torch

from fredholm.domain import Domain
from fredholm.errors import ConversionError, OptionError
from fredholm.families.itnet import compress
from fredholm.families.itnet.compress import Fitting
from fredholm.kernels import LinearAttentionKernel
from fredholm.operators import IntegralOperator, ITNetOperator, create_operator

DIM, HEADS, N = 8, 2, 6


def teacher(**options):
    options = {"width": 6, "frequencies": 3, "sigma": 1.0} | options
    operator = ITNetOperator(DIM, HEADS, **options).double()
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return operator


def signals(seed: int, count: int = 2, **options):
    generator = torch.Generator().manual_seed(seed)
    domain = Domain.line(N, dtype=torch.float64, **options)
    return [
        (torch.randn(2, N, DIM, generator=generator, dtype=torch.float64), domain)
        for _ in range(count)
    ]


def whole(operator, u, domain):
    """Return the matrix (B, H, N·d, N·d) of a uniform measure, by loops."""
    blocks = operator.kernel_matrix(u, domain)
    b, h, n, _, d, _ = blocks.shape
    out = torch.zeros(b, h, n * d, n * d, dtype=blocks.dtype)
    for i in range(n):
        for j in range(n):
            out[:, :, i * d : (i + 1) * d, j * d : (j + 1) * d] = blocks[:, :, i, j] / n
    return out


def test_a_constant_kernel_is_recovered():
    low, report = compress(
        teacher(groups=()), 4, signals(0), held_out=signals(1), steps=5, width=4, lr=1e-9
    )
    assert max(report.matrix_error, report.response_error) < 0.01, "up to the initial scale of W2"
    assert report.optimum < 1e-12
    assert low.kernel.rank == 4


def test_fitting_lowers_both_errors():
    exact = teacher()
    fitted = signals(0, 6)
    short, long = (
        compress(exact, 4, fitted, held_out=fitted, steps=steps, width=16)[1] for steps in (1, 150)
    )
    assert long.response_error < 0.8 * short.response_error
    assert long.matrix_error < 0.9 * short.matrix_error
    assert long.optimum == short.optimum


@pytest.mark.parametrize("causal", [False, True])
def test_the_report_is_the_definition(causal):
    exact = teacher()
    unseen = signals(1, causal=causal)
    low, report = compress(exact, 3, signals(0, causal=causal), held_out=unseen, steps=2, width=4)
    error = power = tail = bound = response = total = 0.0
    for u, domain in unseen:
        for k, r in zip(whole(exact, u, domain).flatten(0, 1), whole(low, u, domain).flatten(0, 1)):
            left, values, right = torch.linalg.svd(k)
            best = (left[:, :3] * values[:3]) @ right[:3]
            error += (k - r).square().sum()
            power += k.square().sum()
            tail += (k - best).square().sum()
            bound += values.sum() ** 2 / 4
        bare = exact.dense(u, domain) - exact.residual(u) - exact.projection.bias
        wrong = low.dense(u, domain) - exact.dense(u, domain)
        # Responses are measured before the projection.
        inverse = torch.linalg.inv(exact.projection.weight.mT)
        response += (wrong @ inverse).square().sum()
        total += (bare @ inverse).square().sum()
    expected = [
        float((x / y).detach().sqrt())
        for x, y in ((response, total), (error, power), (tail, power), (bound, power))
    ]
    found = [report.response_error, report.matrix_error, report.optimum, report.bound]
    assert found == pytest.approx(expected, rel=1e-8)
    assert report.optimum <= min(report.matrix_error, report.bound)
    assert (report.rank, report.steps) == (3, 2)
    assert f"{report.matrix_error:.3f}" in str(report)


def test_a_run_is_reproducible_and_changes_only_the_kernel():
    exact = teacher()
    before = {k: v.clone() for k, v in exact.state_dict().items()}
    state = torch.get_rng_state()
    runs = [
        compress(exact, 2, signals(0), held_out=signals(1), steps=4, width=4, seed=s)
        for s in (0, 0, 1)
    ]
    (a, first), (b, second), (_, third) = runs
    assert first == second != third
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
    assert torch.equal(state, torch.get_rng_state())
    assert exact.training
    for name, value in exact.state_dict().items():
        assert torch.equal(value, before[name]), name
    for part in ("residual.weight", "projection.weight", "projection.bias"):
        assert torch.equal(a.state_dict()[part], before[part]), f"{part} is copied, not trained"


def test_progress_is_reported_and_training_stops_early():
    seen = []
    _, report = compress(
        teacher(groups=()),
        2,
        signals(0),
        held_out=signals(1),
        steps=100,
        lr=1e-12,
        patience=5,
        width=4,
        progress=lambda step, loss: seen.append((step, loss)),
    )
    assert [step for step, _ in seen] == list(range(1, report.steps + 1))
    assert report.steps == 10, "nothing improves, so the second window of five ends it"
    assert all(loss > 0 for _, loss in seen)


def test_padding_changes_no_report():
    exact = teacher()
    valid = torch.tensor([[True] * N, [True] * 4 + [False] * 2])
    domain = Domain.points(torch.rand(2, N, 1, dtype=torch.float64), valid=valid)
    u = torch.randn(2, N, DIM, dtype=torch.float64)
    dirty = torch.where(valid[..., None], u, float("nan"))
    reports = [
        compress(exact, 2, [(v, domain)], held_out=[(v, domain)], steps=3, width=4)[1]
        for v in (u, dirty)
    ]
    assert reports[0] == reports[1]


@pytest.mark.parametrize(
    ("rank", "batches", "error", "message"),
    [
        (25, signals(0), OptionError, "at most N·d_h = 24.*got 25"),
        (0, signals(0), OptionError, "at least 1, got 0"),
        (2, [], OptionError, "got 0 and 0"),
        (
            2,
            [(torch.zeros(1, 1025, DIM), Domain.line(1025))],
            OptionError,
            "side 4096 at most, got 4100.*cut the signals",
        ),
    ],
)
def test_wrong_input_is_refused(rank, batches, error, message):
    with pytest.raises(error, match=message):
        compress(teacher(), rank, batches, held_out=batches)


@pytest.mark.parametrize("options", [{"steps": 0}, {"patience": 0}, {"steps": -1}])
def test_a_fit_without_steps_is_refused(options):
    operator = ITNetOperator(8, 2, width=4)
    batches = [(torch.randn(1, 3, 8), Domain.line(3))]
    name = next(iter(options))
    with pytest.raises(OptionError, match=f"{name}: expected 1"):
        compress(operator, 2, batches, held_out=batches, width=4, **options)


def test_unsupported_kernels_are_refused():
    affine = IntegralOperator(DIM, HEADS, kernel=LinearAttentionKernel(DIM, HEADS))
    for operator in (affine, create_operator("ckconv", DIM, 2)):
        with pytest.raises(ConversionError, match="cannot be compressed"):
            compress(operator.double(), 2, signals(0), held_out=signals(1))


def test_a_half_precision_operator_has_a_finite_report():
    exact = teacher().to(torch.bfloat16)
    fitted, held_out = (
        [(u.bfloat16(), domain.to(torch.float32)) for u, domain in signals(seed)] for seed in (0, 1)
    )
    low, report = compress(exact, 4, fitted, held_out=held_out, steps=2, width=4)
    assert next(low.parameters()).dtype == torch.bfloat16
    assert 0 < report.optimum < report.matrix_error < 2


def test_fitting_keeps_float64_positions_and_training_modes():
    torch.manual_seed(0)
    exact = ITNetOperator(8, 2, width=8)
    exact.kernel.eval()
    data = [(torch.randn(2, 6, 8), Domain.line(6))]
    fitting = Fitting(exact.to(torch.bfloat16), 2, data, held_out=data)
    fitting.finish(1)
    assert (exact.training, exact.kernel.training) == (True, False)
    times = Domain.timestamps(1.7e9 + torch.arange(6, dtype=torch.float64))
    fitting = Fitting(exact, 2, [(data[0][0], times)], held_out=data)
    assert fitting.batches[0][1].positions.dtype == torch.float64
