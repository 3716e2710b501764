"""Stencils built by hand: the kernel against loops, the grids they write to, padding, order and
direct use.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fredholm.domain import Domain
from fredholm.errors import DomainError, OptionError
from fredholm.kernels import Window
from fredholm.layers.convolution import StencilKernel
from fredholm.layers.pooling import AdaptivePoolKernel, AveragePoolKernel
from fredholm.operators import IntegralOperator

from ..tolerances import assert_close

DOUBLE = {"dtype": torch.float64}
COUNTING = {"measure": "counting", "dtype": torch.float64}


def operator(kernel, **options) -> IntegralOperator:
    dim, out = kernel.heads * kernel.d_in, kernel.heads * kernel.d_out
    return IntegralOperator(
        dim,
        kernel.heads,
        kernel=kernel,
        out_dim=out,
        **{"residual": False, "projection": False} | options,
    )


def stencil(channels=(2, 4), taps=(3,), bias=True, heads=1, **options) -> IntegralOperator:
    c_in, c_out = channels
    shape = (c_out, c_in // heads, *taps)
    if options.get("transposed"):
        shape = (c_in, c_out // heads, *taps)
    return operator(
        StencilKernel(
            torch.randn(shape, **DOUBLE),
            torch.randn(c_out, **DOUBLE) if bias else None,
            heads=heads,
            **options,
        )
    )


def assert_is_the_definition(op, u, domain=None):
    inputs = [u.requires_grad_(), *op.parameters()]
    fast = op(u, domain)
    dense = op.dense(u, domain)
    assert_close(fast, dense)
    direction = torch.randn_like(fast)
    for g, h in zip(*(torch.autograd.grad(y, inputs, direction) for y in (fast, dense))):
        assert_close(g, h, "gradient")


def test_the_kernel_is_the_weight_at_the_centre_minus_the_displacement():
    h, w, r = 3, 4, 1
    op = stencil((2, 3), (3, 3), padding=1)
    matrix = op.kernel_matrix(torch.zeros(1, h * w, 2, **DOUBLE), Domain.grid(h, w, **COUNTING))[
        0, 0
    ]
    expected = torch.zeros(h * w, h * w, 3, 2, **DOUBLE)
    for x in range(h * w):
        for y in range(h * w):
            d = (x // w - y // w, x % w - y % w)
            if max(map(abs, d)) <= r:
                expected[x, y] = op.kernel.weight[:, :, r - d[0], r - d[1]]
    assert_close(matrix, expected)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_windows_read_the_padded_values(mode):
    n = 5
    ends = (3, 4)
    padded = F.pad(torch.arange(n, **DOUBLE)[None, None], ends, mode)[0, 0]
    window = Window(3, before=3, after=4, mode=mode)
    outputs = torch.arange(window.size(n))
    assert_close(window.sources(outputs, n).double(), padded.unfold(0, 3, 1))


@pytest.mark.parametrize("measure", ["uniform", "spacing", "counting"])
def test_masses_multiply_the_signal(measure):
    op = stencil(padding=1)
    u = torch.randn(2, 5, 2, **DOUBLE)
    mass = 1.0 if measure == "counting" else 0.2
    counted = F.conv1d(mass * u.mT, op.kernel.weight, op.kernel.bias, padding=1).mT
    assert_close(op(u, Domain.line(5, measure=measure, **DOUBLE)), counted)


def test_with_a_residual_the_operator_adds_a_map_of_every_point():
    op = stencil((3, 3), padding=1)
    op = operator(op.kernel, residual=True).double()
    nn.init.normal_(op.residual.weight)
    u = torch.randn(2, 5, 3, **DOUBLE)
    expected = (
        F.conv1d(u.mT, op.kernel.weight, op.kernel.bias, padding=1).mT + u @ op.residual.weight.T
    )
    domain = Domain.line(5, **COUNTING)
    assert_close(op(u, domain), expected)
    assert_close(op.dense(u, domain), expected)


# --- the grid of the outputs ----------------------------------------------------------------------


def test_outputs_of_a_stride_are_a_sub_grid():
    op = stencil(taps=(3, 1), stride=(2, 3), padding=(1, 0))
    domain = Domain.grid(5, 7, **COUNTING)
    target = op.kernel.output_domain(domain)
    assert target is not None
    assert target.shape == (3, 3)
    every = domain.positions.reshape(5, 7, 2)[::2, ::3].reshape(-1, 2)
    assert_close(target.positions, every)
    assert target.kind == "counting"
    assert_is_the_definition(op, torch.randn(2, 35, 2, **DOUBLE), domain)


def test_outputs_of_a_transposed_stride_are_a_finer_grid():
    op = stencil(taps=(2,), stride=2, transposed=True)
    domain = Domain.line(4, measure="spacing", **DOUBLE)
    target = op.kernel.output_domain(domain)
    assert target is not None
    assert_close(target.positions.diff(dim=0), torch.full((7, 1), 0.125, **DOUBLE))
    assert_close(target.positions.mean(), domain.positions.mean())
    assert_close(target.measure, torch.full((8,), 0.125, **DOUBLE))
    assert_is_the_definition(op, torch.randn(2, 4, 2, **DOUBLE), domain)


def test_an_adaptive_average_covers_the_line():
    kernel = AdaptivePoolKernel(2, (3,))
    target = kernel.output_domain(Domain.grid(6, **COUNTING))
    assert target is not None
    assert_close(target.positions, Domain.grid(3, **DOUBLE).positions)
    assert_is_the_definition(operator(kernel), torch.randn(1, 6, 2, **DOUBLE))


def test_outputs_of_one_weighted_point_form_a_uniform_grid():
    op = stencil(taps=(1,), padding=1)
    target = op.kernel.output_domain(Domain.line(1, **DOUBLE).with_masses(torch.ones(1, **DOUBLE)))
    assert target is not None
    assert target.kind == "uniform"
    assert target.positions.flatten().tolist() == [-1.0, 0.0, 1.0]


def test_a_stencil_of_stride_one_returns_the_same_domain():
    assert stencil(padding=1).kernel.output_domain(Domain.line(4)) is None


@pytest.mark.parametrize(
    "op",
    [
        stencil(taps=(3,), stride=2, padding=1),
        stencil(taps=(4,), stride=3),
        stencil(taps=(3,), stride=2, padding=1, output_padding=1, transposed=True),
        operator(AveragePoolKernel(2, (Window(2, 2),))),
    ],
    ids=["stride 2", "stride 3", "transposed", "average"],
)
def test_padded_lines_give_each_sample_its_own_outputs(op):
    lengths = (8, 5)
    n = 8
    valid = torch.arange(n) < torch.tensor(lengths)[:, None]
    u = torch.randn(2, n, 2, **DOUBLE)
    domain = replace(Domain.line(n, **COUNTING), valid=valid)
    dirty = torch.where(valid[..., None], u, torch.nan)
    out = op(dirty, domain)
    assert_is_the_definition(op, dirty.clone(), domain)
    for b, length in enumerate(lengths):
        alone = op(u[b : b + 1, :length])
        assert_close(out[b : b + 1, : alone.shape[1]], alone)
        assert out[b, alone.shape[1] :].abs().sum() == 0


def test_pairs_between_a_grid_and_its_sub_grid_equal_the_definition():
    op = stencil(stride=2, padding=1)
    u = torch.randn(2, 5, 2, **DOUBLE)
    pairs = torch.rand(3, 5) > 0.5
    domain = replace(Domain.line(5, **COUNTING), pairs=pairs)
    weights = pairs.double()[:, :, None, None] * op.kernel_matrix(u, domain)[0, 0]
    expected = torch.einsum("qkoi,bki->bqo", weights, u) + op.kernel.bias
    assert "dense" in op.plan(domain).path
    assert_close(op(u, domain), expected)
    assert "own form" in op.plan(replace(domain, pairs=None)).path


# --- order ----------------------------------------------------------------------------------------

CAUSAL = {
    "past only": {"padding": 4, "dilation": 2},
    "centred": {"padding": 1},
    "between": {"padding": 3, "dilation": 2},
    "uneven": {"padding": [(2, 0)]},
    "more than its taps": {"padding": 4},
    "transposed": {"transposed": True},
    "transposed centred": {"transposed": True, "padding": 1},
}


@pytest.mark.parametrize("options", CAUSAL.values(), ids=CAUSAL)
@pytest.mark.parametrize("measure", ["counting", "uniform"])
def test_causal_forms_agree(options, measure):
    op = stencil((2, 4), heads=2, **options)
    u = torch.randn(2, 7, 2, **DOUBLE)
    domain = Domain.line(7, causal=True, measure=measure, **DOUBLE)
    assert_is_the_definition(op, u, domain)
    state = op.init_state(2, domain)
    outputs = []
    for t in range(7):
        y, state = op.step(u[:, t], state)
        outputs.append(y)
    assert_close(torch.stack(outputs, 1), op(u, domain))
    assert all(memory.shape[-1] <= 4 for memory in state.keys.values()), (
        "the state grows with the prefix"
    )
    (g,) = torch.autograd.grad(op(u, domain)[:, 3].sum(), u)
    assert g[:, 4:].abs().max() == 0


def test_a_layer_of_past_taps_is_unchanged_on_a_causal_line():
    op = stencil(taps=(4,), padding=6, dilation=2)
    u = torch.randn(2, 9, 2, **DOUBLE)
    full = F.conv1d(u.mT, op.kernel.weight, op.kernel.bias, padding=6, dilation=2).mT
    assert_close(op(u, Domain.line(9, causal=True, **COUNTING)), full[:, :9])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stride": 2, "padding": 2}, "stride 1"),
        ({"padding": 1, "padding_mode": "circular"}, "zero padding"),
        ({"padding": 0}, "2 fewer"),
        ({"padding": 2, "transposed": True}, "2 fewer"),
        ({"taps": (3, 3), "padding": 1}, "one axis"),
    ],
)
def test_unsupported_causal_domains_are_refused(options, named):
    op = stencil(**options)
    domain = Domain.grid(2, 3, causal=True) if "taps" in options else Domain.line(6, causal=True)
    with pytest.raises(DomainError, match=named):
        op(torch.zeros(1, 6, 2, **DOUBLE), domain)
    with pytest.raises(DomainError, match=named):
        op.init_state(1, domain)


# --- built by hand --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"padding": [(0, 2)]},
        {"padding": [(3, 1)], "padding_mode": "circular", "stride": 2},
        {"padding": [(0, 2)], "transposed": True, "stride": 2},
        {"padding": [(2, 1)], "transposed": True, "stride": 2},
        {"padding": [(2, 0), (0, 1)], "transposed": True, "stride": (3, 1), "taps": (3, 2)},
    ],
)
def test_uneven_padding_equals_the_definition(options):
    op = stencil(**options)
    domain = Domain.grid(3, 4, **COUNTING) if "taps" in options else Domain.line(6, **COUNTING)
    assert_is_the_definition(op, torch.randn(2, domain.size, 2, **DOUBLE), domain)


def test_a_passed_parameter_is_used_without_a_copy():
    weight = nn.Parameter(torch.ones(1, 1, 3))
    assert StencilKernel(weight).weight is weight


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"padding_mode": "mirror"}, "reflect"),
        ({"stride": 0}, "stride: expected at least 1, got 0"),
        ({"stride": (1, 1)}, "one value, or 1 for 1 axes"),
        ({"output_padding": 1}, "transposed"),
        ({"output_padding": 2, "stride": 2, "transposed": True}, "less than stride"),
        ({"padding_mode": "reflect", "transposed": True}, "padding_mode"),
        ({"heads": 3}, "divide"),
        ({"bias": torch.zeros(3)}, r"\(4,\)"),
    ],
)
def test_wrong_options_are_named(options, named):
    with pytest.raises(OptionError, match=named):
        StencilKernel(torch.zeros(4, 4, 3), **options)


def test_more_than_three_axes_are_refused():
    with pytest.raises(OptionError, match="1, 2 or 3 axes, got 4"):
        StencilKernel(torch.zeros(1, 1, 1, 1, 1, 1))


def test_rows_of_a_large_layer_do_not_allocate_the_kernel():
    kernel = StencilKernel(torch.randn(16, 16, 3, 3), padding=1)
    op, domain = (
        operator(kernel),
        Domain.grid(96, 96, measure="counting"),
    )  # all rows would be 87 GB
    rows = op.influence(torch.zeros(1, 96 * 96, 16), domain, rows=[0, 5000])
    assert (rows > 0).sum(-1).tolist() == [[[4, 9]]]


def test_a_pointwise_term_beside_a_grid_of_the_kernels_own_is_refused():
    """The error names what can be done: features at the outputs cannot be passed."""
    kernel = StencilKernel(torch.randn(4, 4, 3, **DOUBLE), None, stride=(2,))
    op = operator(kernel, residual=True).double()
    u = torch.randn(1, 8, 4, **DOUBLE)
    with pytest.raises(OptionError, match=r"StencilKernel, which writes to a grid.*residual=False"):
        op(u)
    with pytest.raises(DomainError, match="leave query and query_domain out"):
        op(u, query=u)
