"""Convolution on grids by FFT, hidden units first: values and gradients against the double sum."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from fredholm.errors import ShapeError
from fredholm.families.ckconv.grid_convolution import (
    grid_convolution,
    grid_convolution_naive,
    spectrum,
)
from fredholm.families.ckconv.grid_convolution.fft import direct_convolution
from fredholm.families.ckconv.grid_convolution.registration import fast_size

from ..tolerances import assert_close

GRIDS = [
    ((1,), True),
    ((7,), True),
    ((8,), True),
    ((1,), False),
    ((5,), False),
    ((6,), False),
    ((2, 3), False),
]
GRIDS += [((1, 4), False), ((2, 1, 3), False)]


def tensors(
    grid, causal, *, batch=2, heads=2, d_in=2, d_out=3, width=4, dtype=torch.float64
) -> list[torch.Tensor]:
    points = lags = 1
    for n in grid:
        points, lags = points * n, lags * (n if causal else 2 * n - 1)
    shapes = (batch, heads, points, d_in), (lags, width), (heads, d_out, d_in, width)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("block", [1, spectrum.CACHE])
@pytest.mark.parametrize(("grid", "causal"), GRIDS)
def test_the_convolution_equals_the_double_sum(grid, causal, block, monkeypatch):
    monkeypatch.setattr(spectrum, "CACHE", block)
    inputs = tensors(grid, causal)
    actual, expected = (
        f(*inputs, grid, causal=causal) for f in (grid_convolution, grid_convolution_naive)
    )
    assert_close(actual, expected)
    probe = torch.randn_like(expected)
    for g, h in zip(*(torch.autograd.grad(y, inputs, probe) for y in (actual, expected))):
        assert_close(g, h, "gradient")


@pytest.mark.parametrize(("grid", "causal"), GRIDS)
def test_the_direct_convolution_of_exported_programs_equals_the_double_sum(grid, causal):
    inputs = tensors(grid, causal)
    actual = direct_convolution(*inputs, grid, causal)
    expected = grid_convolution_naive(*inputs, grid, causal=causal)
    assert_close(actual, expected)
    probe = torch.randn_like(expected)
    for g, h in zip(*(torch.autograd.grad(y, inputs, probe) for y in (actual, expected))):
        assert_close(g, h, "gradient")


@pytest.mark.parametrize(("grid", "causal"), [((5,), True), ((3,), False), ((2, 2), False)])
def test_gradients_pass_gradcheck(grid, causal):
    assert gradcheck(
        lambda *x: grid_convolution(*x, grid, causal=causal), tensors(grid, causal, heads=1)
    )
    channelwise = tensors(grid, causal, heads=3, d_in=1, d_out=1)
    assert gradcheck(lambda *x: grid_convolution(*x, grid, causal=causal), channelwise)


@pytest.mark.parametrize("needed", range(3))
def test_each_gradient_alone_equals_all_together(needed):
    inputs = tensors((4,), True)
    whole = torch.autograd.grad(grid_convolution(*inputs, (4,), causal=True).square().sum(), inputs)
    alone = [x if i == needed else x.detach() for i, x in enumerate(inputs)]
    one = torch.autograd.grad(
        grid_convolution(*alone, (4,), causal=True).square().sum(), alone[needed]
    )[0]
    assert_close(one, whole[needed])


def test_depthwise_channels_equal_the_double_sum():
    signal, hidden, readout = tensors((6,), True, heads=5, d_in=1, d_out=1)
    out = grid_convolution(signal, hidden, readout, (6,), causal=True)
    assert_close(out, grid_convolution_naive(signal, hidden, readout, (6,), causal=True))


def test_outputs_do_not_depend_on_later_points():
    signal, hidden, readout = tensors((9,), True)
    before = grid_convolution(signal, hidden, readout, (9,), causal=True)
    later = signal.detach().clone()
    later[:, :, 5:] += 100.0
    assert_close(
        grid_convolution(later, hidden, readout, (9,), causal=True)[:, :, :5], before[:, :, :5]
    )
    cut = grid_convolution(signal[:, :, :5], hidden[:5], readout, (5,), causal=True)
    assert_close(cut, before[:, :, :5], "prefix")


def test_lower_precision_is_transformed_in_float32():
    inputs = [x.detach().bfloat16() for x in tensors((8,), True)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = grid_convolution(*inputs, (8,), causal=True)
    assert out.dtype == torch.float32
    assert_close(out, grid_convolution_naive(*(x.float() for x in inputs), (8,), causal=True))


def test_transforms_are_padded_to_fast_sizes():
    assert [fast_size(n) for n in (1, 7, 11, 121, 2 * 4093)] == [1, 8, 12, 125, 8192]


def test_the_custom_op_passes_opcheck():
    inputs = tensors((4,), True)
    torch.library.opcheck(torch.ops.fredholm.grid_convolution, (*inputs, [4], True))


@pytest.mark.parametrize(
    ("grid", "causal", "message"),
    [
        ((4,), False, "4 points and 7 displacements on the grid .*, got 4 and 4;"),
        ((3,), True, "3 points and 3 displacements on the grid .*, got 4 and"),
        ((2, 2), True, "one axis in causal order, got"),
    ],
)
def test_mismatched_shapes_are_refused(grid, causal, message):
    with pytest.raises(ShapeError, match=message):
        grid_convolution(*tensors((4,), True), grid, causal=causal)
