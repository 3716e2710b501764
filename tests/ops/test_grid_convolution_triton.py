"""The convolution with its product of spectra in a Triton kernel equals the double sum, values and
gradients.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fredholm.errors import BackendError
from fredholm.families.ckconv.grid_convolution import grid_convolution, grid_convolution_naive

from ..tolerances import assert_close
from .test_grid_convolution import tensors
from .triton_device import devices, poisoned  # noqa: F401

pytest.importorskip("triton")
pytestmark = [pytest.mark.usefixtures("poisoned"), devices]


def drawn(device, grid, causal, dtype=torch.float32, **sizes):
    return [x.detach().to(device, dtype).requires_grad_() for x in tensors(grid, causal, **sizes)]


@pytest.mark.parametrize(
    ("grid", "causal"), [((1,), True), ((9,), True), ((6,), False), ((2, 3), False)]
)
@pytest.mark.parametrize("sizes", [{}, {"heads": 3, "d_in": 1, "d_out": 1, "batch": 1}])
def test_the_kernel_equals_the_double_sum(device, grid, causal, sizes):
    inputs = drawn(device, grid, causal, **sizes)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    actual = grid_convolution(*inputs, grid, causal=causal, backend="triton")
    expected = grid_convolution_naive(*exact, grid, causal=causal)
    assert_close(actual.double(), expected, dtype=torch.float32)
    probe = torch.randn_like(expected)
    found = torch.autograd.grad(actual, inputs, probe.float())
    for a, b in zip(found, torch.autograd.grad(expected, exact, probe)):
        assert_close(a.double(), b, "gradient", torch.float32)


def test_several_blocks_in_every_dimension_agree_with_torch(device):
    inputs = drawn(device, (80,), True, batch=5, heads=1, d_in=2, d_out=17, width=18)
    found, expected = (
        grid_convolution(*inputs, (80,), causal=True, backend=b) for b in ("triton", "torch")
    )
    assert_close(found, expected)
    probe = torch.randn_like(expected)
    for a, b in zip(*(torch.autograd.grad(y, inputs, probe) for y in (found, expected))):
        assert_close(a, b, "gradient")


@pytest.mark.parametrize("needed", range(3))
def test_each_gradient_alone_equals_all_together(device, needed):
    inputs = drawn(device, (4,), True)
    whole = torch.autograd.grad(
        grid_convolution(*inputs, (4,), causal=True, backend="triton").square().sum(), inputs
    )
    alone = [x if i == needed else x.detach() for i, x in enumerate(inputs)]
    out = grid_convolution(*alone, (4,), causal=True, backend="triton").square().sum()
    assert torch.equal(torch.autograd.grad(out, alone[needed])[0], whole[needed])


def test_flops_equal_those_of_the_torch_form(device):
    import fredholm.families.ckconv.triton.op  # noqa: F401  a counter knows the formulas that are there when it starts

    counts = []
    for backend in ("torch", "triton"):
        with FlopCounterMode(display=False) as counter:
            grid_convolution(
                *drawn(device, (4,), True), (4,), causal=True, backend=backend
            ).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_the_custom_op_passes_opcheck(device):
    import fredholm.families.ckconv.triton.op  # noqa: F401  registers the op

    torch.library.opcheck(
        torch.ops.fredholm.grid_convolution_triton,
        (*drawn(device, (4,), True, batch=1, heads=1), [4], True),
    )


def test_unsupported_dtypes_and_widths_are_refused(device):
    with pytest.raises(
        BackendError, match=r"spectra are in complex64, and the tensors are in torch\.float64"
    ):
        grid_convolution(
            *drawn(device, (4,), True, torch.float64), (4,), causal=True, backend="triton"
        )
    with pytest.raises(BackendError, match="up to 128 hidden units, got 130"):
        grid_convolution(*drawn(device, (4,), True, width=130), (4,), causal=True, backend="triton")
