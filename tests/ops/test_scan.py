"""Recurrences and causal convolutions: every form against the plain one, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from fredholm.ops.scan import (
    causal_convolution,
    causal_convolution_naive,
    krylov,
    pack,
    ranks,
    reorder,
    scan,
    scan_naive,
    transition_scan,
)
from fredholm.ops.scan.recurrence import scan_chunked, scan_steps

from ..tolerances import assert_close


def system(
    n: int, *, dtype=torch.float64, state: tuple[int, ...] = (3,)
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (2, n, *state)
    return (0.9 * torch.rand(shape, dtype=dtype)).requires_grad_(), torch.randn(
        shape, dtype=dtype, requires_grad=True
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("n", [1, 2, 5, 70])
def test_scan_is_the_recurrence(n, dtype):
    decay, drive = system(n, dtype=dtype, state=(2, 3))
    actual = scan(decay, drive)
    expected = scan_naive(decay, drive)
    probe = torch.randn_like(expected)
    assert_close(torch.view_as_real(actual) if actual.is_complex() else actual, _real(expected))
    for g, h in zip(*(torch.autograd.grad(y, (decay, drive), probe) for y in (actual, expected))):
        assert_close(_real(g), _real(h), "gradient")


def _real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


@pytest.mark.parametrize("chunk", [1, 3, 4, 11, 20])
def test_chunks_of_every_size_equal_the_recurrence(chunk):
    decay, drive = (x.detach() for x in system(11))
    assert_close(scan_chunked(decay, drive, chunk), scan_naive(decay, drive))
    assert_close(scan_steps(decay, drive), scan_naive(decay, drive))


def test_zero_and_growing_decays_equal_the_recurrence():
    decay, drive = (x.detach() for x in system(80))
    decay[:, 7], decay[:, 40:44] = 0.0, 3.0
    assert_close(scan(decay, drive), scan_naive(decay, drive))


def test_first_and_second_gradients_pass_gradcheck():
    decay, drive = system(4)
    assert gradcheck(scan, (decay, drive))
    assert gradgradcheck(scan, (decay, drive))
    shared = torch.rand(1, 1, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(scan, (shared, drive))
    decay, drive = system(3, dtype=torch.complex128)
    assert gradcheck(scan, (decay, drive))


def test_the_custom_op_passes_opcheck():
    torch.library.opcheck(torch.ops.fredholm.scan.default, system(5), raise_exception=True)


@pytest.mark.parametrize(("heads", "inputs", "outputs"), [(3, 1, 1), (2, 3, 2)])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_fourier_convolution_equals_the_direct_sum(heads, inputs, outputs, n):
    signal = torch.randn(2, heads, n, inputs, dtype=torch.float64, requires_grad=True)
    taps = torch.randn(heads, n, outputs, inputs, dtype=torch.float64, requires_grad=True)
    actual = causal_convolution(signal, taps)
    expected = causal_convolution_naive(signal, taps)
    assert_close(actual, expected)
    probe = torch.randn_like(expected)
    for g, h in zip(*(torch.autograd.grad(y, (signal, taps), probe) for y in (actual, expected))):
        assert_close(g, h, "gradient")
    assert gradcheck(causal_convolution, (signal, taps))


def test_convolution_does_not_wrap_around():
    signal = torch.zeros(1, 1, 6, 1, dtype=torch.float64)
    signal[:, :, -1] = 1.0
    out = causal_convolution(signal, torch.ones(1, 6, 1, 1, dtype=torch.float64))
    assert_close(out, signal)


def test_powers_and_transition_scans_equal_their_sums():
    a = 0.5 * torch.randn(3, 3, dtype=torch.float64)
    b = torch.randn(3, 2, dtype=torch.float64)
    powers = krylov(a, b, 7)
    for k in range(7):
        assert_close(powers[k], torch.linalg.matrix_power(a, k) @ b)
    drive = torch.randn(2, 7, 3, dtype=torch.float64)
    expected = torch.stack(
        [
            sum(torch.linalg.matrix_power(a, t - s) @ drive[0, s] for s in range(t + 1))
            for t in range(7)
        ]
    )
    assert_close(transition_scan(a[None, None], drive)[0], expected)
    assert_close(transition_scan(a.expand(2, 7, 3, 3), drive)[0], expected)


def test_ranks_and_packing_skip_padding():
    valid = torch.tensor([[True, False, True, True], [False, False, True, False]])
    assert ranks(valid, 4, valid.device).tolist() == [[0, 0, 1, 2], [-1, -1, 0, 0]]
    order, back = pack(valid)
    x = torch.arange(8.0).view(2, 1, 4, 1).expand(2, 3, 4, 2)
    packed = reorder(x, order, 2)
    assert packed[0, 0, :, 0].tolist() == [0.0, 2.0, 3.0, 1.0]
    assert_close(reorder(packed, back, 2), x.contiguous())
