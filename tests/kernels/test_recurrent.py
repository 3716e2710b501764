"""Recurrences along their trajectory: slopes, products of transitions, responses, and the
linearizations that are not exact.
"""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fredholm.domain import Domain
from fredholm.errors import ConversionError, DomainError, OptionError, ShapeError
from fredholm.layers.recurrence import RecurrentKernel
from fredholm.layers.trajectory import (
    CELLS,
    LINEARIZATIONS,
    Weights,
    pull,
    push,
    tanh_secant,
)
from fredholm.operators import IntegralOperator

from ..tolerances import assert_close
from .trajectory_naive import kernel_naive

DOUBLE = {"dtype": torch.float64}
LAYERS = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}


def operator_of(layer: nn.RNNBase, **options) -> IntegralOperator:
    kernel = RecurrentKernel(layer, **options)
    return IntegralOperator(
        layer.input_size, kernel=kernel, out_dim=kernel.d_out, residual=False, projection=False
    )


def line(mode: str, linearization: str = "secant", projected: bool = False, n: int = 5):
    """Return one layer's trajectory and its inputs: (trajectory, x, (s, y) before it, leaves)."""
    gates = LAYERS[mode]
    d = 2
    width = 3
    m = 2 if projected else width
    shapes = [(gates * width, d), (gates * width, m), (gates * width,), (gates * width,)] + [
        (m, width)
    ] * projected
    leaves = [torch.randn(shape, **DOUBLE).requires_grad_() for shape in shapes]
    x = torch.randn(2, n, d, **DOUBLE).requires_grad_()
    state = [torch.randn(2, m, **DOUBLE).requires_grad_()]
    if mode == "LSTM":
        state.append(torch.randn(2, width, **DOUBLE).requires_grad_())
    made = CELLS[mode](Weights(*leaves), x, tuple(state), linearization)
    return made, x, (state[-1], state[0]), [*leaves, x, *state]


# --- slopes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("z", [0.0, 1e-300, -1e-8, 1e-3, 0.2499999, -0.2500001, 1.0, -3.0, 30.0])
def test_secant_and_its_two_derivatives_are_accurate(z):
    x = torch.tensor(z, **DOUBLE, requires_grad=True)
    value = tanh_secant(x)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    with mpmath.workdps(40):
        # Taylor coefficients at z of tanh(z)/z, from those of the even series near 0, which the
        # quotient does not resolve
        if abs(z) < 0.3:
            even = mpmath.taylor(mpmath.tanh, 0, 81)[1::2]
            w = mpmath.mpf(z)
            expected = [
                sum(c * w ** (2 * k) for k, c in enumerate(even)),
                sum(c * 2 * k * w ** (2 * k - 1) for k, c in enumerate(even) if k),
                sum(c * 2 * k * (2 * k - 1) * w ** (2 * k - 2) for k, c in enumerate(even) if k),
            ]
        else:
            expected = [mpmath.diff(lambda v: mpmath.tanh(v) / v, z, k) for k in range(3)]
    for got, want in zip((value, first, second), expected):
        assert abs(got.item() - float(want)) <= 1e-13 * max(abs(float(want)), 1e-300)


def test_secant_is_twice_differentiable_and_finite():
    z = torch.tensor(
        [-40.0, -0.3, -0.25, -1e-9, 0.0, 1e-4, 0.25, 2.0], **DOUBLE, requires_grad=True
    )
    assert torch.autograd.gradcheck(tanh_secant, z)
    assert torch.autograd.gradgradcheck(tanh_secant, z)
    far = torch.tensor([1e4, -1e30], requires_grad=True)
    (slope,) = torch.autograd.grad(tanh_secant(far).sum(), far)
    assert slope.isfinite().all()


# --- trajectories ---------------------------------------------------------------------------------


@pytest.mark.parametrize("linearization", LINEARIZATIONS)
@pytest.mark.parametrize(
    ("mode", "projected"), [*((mode, False) for mode in CELLS), ("LSTM", True)]
)
def test_pull_equals_the_product_of_transitions(mode, linearization, projected):
    made, x, _, leaves = line(mode, linearization, projected)
    n, m = x.shape[1], made.output.shape[-1]
    every = torch.eye(n, **DOUBLE)[:, :, None, None] * torch.eye(m, **DOUBLE)
    fast = pull(made, every.expand(2, -1, -1, -1, -1))
    naive = kernel_naive(made)
    assert_close(fast, naive)
    direction = torch.randn(naive.shape, **DOUBLE)
    found = [
        torch.autograd.grad(k, leaves, direction, retain_graph=True, allow_unused=True)
        for k in (fast, naive)
    ]
    for a, b in zip(*found):
        assert (a is None) == (b is None)
        if a is not None:
            assert_close(a, b, "gradient")


@pytest.mark.parametrize("mode", list(CELLS))
def test_the_secant_response_equals_the_recurrence(mode):
    made, x, start, leaves = line(mode)
    response, (s, y) = push(made, x, start)
    assert_close(response, made.output)
    assert_close(y, made.state[0])
    assert_close(s, made.state[-1])
    kernel = kernel_naive(made)
    offset, _ = push(made, None, start)
    assert_close(torch.einsum("btsod,bsd->bto", kernel, x) + offset, made.output)
    direction = torch.randn(response.shape, **DOUBLE)
    found = [
        torch.autograd.grad(y, leaves, direction, retain_graph=True)
        for y in (response, made.output)
    ]
    for a, b in zip(*found):
        assert_close(a, b, "gradient")


class Largest(TorchDispatchMode):
    """Record the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return out


def test_rows_allocate_no_tensor_of_all_pairs():
    op = operator_of(nn.GRU(2, 3, num_layers=2).double())
    n = 200
    u = torch.randn(1, n, 2, **DOUBLE)
    rows = [n - 1, 7]
    with Largest() as largest:
        part = op.kernel_matrix(u, rows=rows)
    assert part.shape == (1, 1, 2, n, 3, 2)
    assert largest.numel < n * n / 2
    assert_close(part, op.kernel_matrix(u)[:, :, rows])


def test_a_zero_signal_has_correct_gradients():
    # Without biases every argument of tanh is 0, where the secant is a limit, and relu is not
    # differentiable.
    for mode in ("tanh", "relu"):
        layer = nn.RNN(2, 3, nonlinearity=mode, bias=False, batch_first=True).double()
        u = torch.zeros(1, 4, 2, **DOUBLE, requires_grad=True)
        got, want = (
            torch.autograd.grad(y.sum(), [u, *layer.parameters()])
            for y in (operator_of(layer).dense(u), layer(u)[0])
        )
        for a, b in zip(got, want):
            assert_close(a, b, f"gradient with {mode}")


def test_the_explicit_kernel_is_twice_differentiable():
    op = operator_of(nn.LSTM(1, 2).double())
    u = torch.randn(1, 3, 1, **DOUBLE, requires_grad=True)
    assert torch.autograd.gradgradcheck(op.dense, u)
    assert torch.autograd.gradcheck(lambda u: op.kernel_matrix(u, rows=[2]), u)


# --- linearizations -------------------------------------------------------------------------------


def test_how_far_the_papers_forms_are_off():
    """A random LSTM, torch's own initialisation: tangents are a quarter off, gates alone a third;
    the secant is exact.
    """
    layer = nn.LSTM(8, 32).double()
    u = torch.randn(4, 32, 8, **DOUBLE)

    def errors(u):
        kernels = {name: RecurrentKernel(layer, linearization=name) for name in LINEARIZATIONS}
        return {name: kernel.linearization_error(u).item() for name, kernel in kernels.items()}

    error, quiet = errors(u), errors(u / 100)
    assert error["secant"] < 1e-14
    assert 0.2 < error["tangent"] < 0.3
    assert 0.28 < error["gates"] < 0.4
    assert quiet["tangent"] < 0.5 * error["tangent"], (
        "the tangent is a better slope of a smaller signal"
    )
    assert quiet["gates"] > 0.6 * error["gates"], (
        "the transition that was left out does not get smaller"
    )


def test_a_tangent_of_relu_is_its_secant():
    kernel = RecurrentKernel(nn.RNN(2, 5, nonlinearity="relu").double(), linearization="tangent")
    assert kernel.linearization_error(torch.randn(2, 9, 2, **DOUBLE)).item() < 1e-14


@pytest.mark.parametrize("linearization", ["tangent", "gates"])
@pytest.mark.parametrize(
    "layer", [nn.LSTM(2, 4, num_layers=2, proj_size=3), nn.GRU(2, 3, num_layers=2)]
)
def test_an_inexact_kernel_equals_its_operator(layer, linearization):
    op = operator_of(layer.double(), linearization=linearization)
    valid = torch.tensor([[True] * 5, [False, True, True, True, False]])
    domain = Domain.line(5, causal=True, measure="counting", valid=valid)
    u = torch.randn(2, 5, 2, **DOUBLE, requires_grad=True)
    fast = op(u, domain)
    dense = op.dense(u, domain)
    state = op.init_state(2, domain)
    steps = []
    for t in range(5):
        y, state = op.step(u[:, t], state)
        steps.append(y)
    direction = torch.randn(fast.shape, **DOUBLE)
    inputs = [u, *op.parameters()]
    # Only the gates know h, so that gradients to some weights may pass a linearization by.
    wanted = torch.autograd.grad(dense, inputs, direction, allow_unused=True)
    for name, out in {"forward": fast, "step": torch.stack(steps, 1)}.items():
        assert_close(out, dense, name)
        for a, b in zip(torch.autograd.grad(out, inputs, direction, allow_unused=True), wanted):
            assert_close(
                *(torch.zeros(1, **DOUBLE) if g is None else g for g in (a, b)),
                f"gradient of {name}",
            )
    exact = operator_of(layer)(u, domain)
    error = ((fast - exact).norm() / exact.norm()).item()
    assert error > 0.01
    assert abs(error - op.kernel.linearization_error(u, valid).item()) < 1e-12


def test_an_inexact_bidirectional_kernel_equals_its_operator():
    op = operator_of(nn.GRU(2, 3, bidirectional=True).double(), linearization="tangent")
    u = torch.randn(2, 5, 2, **DOUBLE)
    assert_close(op(u), op.dense(u))


# --- options, domains, states ---------------------------------------------------------------------

LINE = {"causal": True, "measure": "counting"}


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (Domain.line(6, causal=True), "the measure 'uniform'"),
        (Domain.line(6, causal=True, measure="spacing"), "the measure 'spacing'"),
        (Domain.line(6, **LINE).with_masses(torch.ones(6)), "the measure 'weighted'"),
        (Domain.line(6, **LINE, pairs=torch.ones(6, 6).bool()), "without pairs"),
        (Domain.line(6, measure="counting"), "has no order"),
        (Domain.grid(2, 3, **LINE), "a grid of 2 axes"),
        (Domain.points(torch.rand(6, 1), **LINE), "points without one"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_other_domains_are_refused_by_name(domain, message):
    op = operator_of(nn.LSTM(2, 3))
    for call in (lambda: op(torch.zeros(1, 6, 2), domain), lambda: op.plan(domain)):
        with pytest.raises(DomainError, match=message) as error:
            call()
        assert "LSTM" in str(error.value)
        assert "Domain.line(n, causal=True, measure='counting')" in str(error.value)


def test_bidirectional_layers_refuse_causal_domains_and_steps():
    op = operator_of(nn.GRU(2, 3, bidirectional=True))
    domain = Domain.line(4, **LINE)
    for call in (lambda: op(torch.zeros(1, 4, 2), domain), lambda: op.init_state(1, domain)):
        with pytest.raises(
            DomainError, match="bidirectional GRU cannot live on a domain that is causal"
        ):
            call()
    with pytest.raises(DomainError, match="leave query"):
        op(torch.zeros(1, 4, 2), query_domain=Domain.line(3, measure="counting"))


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (
            nn.LSTM(2, 3),
            {"initial_state": torch.zeros(1, 3)},
            r"a pair of tensors \(h, c\), got a tensor \(1, 3\)",
        ),
        (nn.GRU(2, 3), {"initial_state": (torch.zeros(1, 3),) * 2}, "one tensor h, got tuple of"),
        (
            nn.GRU(2, 3, 2),
            {"initial_state": torch.zeros(1, 3)},
            r"\(2, 3\) or \(2, B, 3\), got \(1, 3\)",
        ),
        (
            nn.LSTM(2, 4, proj_size=3),
            {"initial_state": (torch.zeros(1, 3),) * 2},
            r"c of shape \(1, 4\)",
        ),
        (
            nn.GRU(2, 3),
            {"initial_state": torch.zeros(1, 3).double()},
            "h of the layer's dtype torch.float32, got torch.float64",
        ),
        (nn.GRU(2, 3), {"linearization": "secants"}, "did you mean 'secant'"),
        (nn.RNN(2, 3), {"linearization": "gates"}, "an RNN has none"),
        (nn.Linear(2, 3), {}, "got Linear"),
    ],
)
def test_wrong_options_are_refused(layer, options, message):
    with pytest.raises(OptionError, match=message):
        RecurrentKernel(layer, **options)


def test_gradients_reach_the_initial_state():
    layer = nn.LSTM(2, 3, num_layers=2).double()
    source = torch.randn(3, **DOUBLE, requires_grad=True)
    state = (
        source.expand(2, 3).cos(),
        source.expand(2, 4, 3).sin(),
    )  # computed from another tensor, one of them per element
    op = operator_of(layer, initial_state=state)
    u = torch.randn(4, 5, 2, **DOUBLE)
    given = (state[0][:, None].repeat(1, 4, 1), state[1].contiguous())
    outputs = op(u), op.dense(u), layer(u.transpose(0, 1), given)[0].transpose(0, 1)
    found = [torch.autograd.grad(y.square().sum(), source, retain_graph=True)[0] for y in outputs]
    assert_close(outputs[1], outputs[2])
    for g in found[:2]:
        assert_close(g, found[2], "gradient of the initial state")
    with pytest.raises(ShapeError, match="a batch of 3, like u, got one for a batch of 4"):
        op(u[:3])


def test_the_state_does_not_grow():
    op = operator_of(nn.LSTM(2, 3, num_layers=2))
    state = op.init_state(1, Domain.line(5, **LINE))
    sizes = []
    for _ in range(5):
        _, state = op.step(torch.randn(1, 2), state)
        sizes.append({name: x.shape for name, x in state.keys.items()})
    assert sizes[0] == sizes[-1]
    assert set(sizes[0]) == {"h0", "c0", "h1", "c1"}


def test_a_sequence_of_padding_alone_gives_zeros():
    for layer in (nn.GRU(2, 3, bidirectional=True), nn.GRU(2, 3)):
        op = operator_of(layer.double())
        both = layer.bidirectional
        valid = torch.tensor([[True, False, True], [False] * 3])
        domain = Domain.line(3, causal=not both, measure="counting", valid=valid)
        u = torch.randn(2, 3, 2, **DOUBLE)
        out = op(u, domain)
        assert out[~valid].abs().max() == 0
        assert_close(out, op.dense(u, domain))
        assert_close(out[:1, [0, 2]], op(u[:1, [0, 2]]), "the real points alone")


def test_dropout_is_refused_when_it_becomes_active():
    op = operator_of(nn.LSTM(2, 3, num_layers=2, dropout=0.25)).eval()
    u = torch.randn(1, 4, 2)
    assert_close(op(u), op.dense(u))
    with pytest.raises(ConversionError, match=r"dropout=0\.25"):
        op.train()(u)
    op.kernel.layer.dropout = 0.0
    assert op(u).shape == (1, 4, 3)
