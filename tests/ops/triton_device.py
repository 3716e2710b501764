"""The device of the tests of Triton kernels, and output buffers full of NaN."""

from __future__ import annotations

import pytest
import torch

from fredholm.ops.backend import interpreted

devices = pytest.mark.parametrize(
    "device",
    [
        pytest.param(
            "cpu", marks=pytest.mark.skipif(not interpreted(), reason="kernels run on the GPU here")
        ),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)


@pytest.fixture
def poisoned():
    """Fill every uninitialised buffer with NaN, by PyTorch's deterministic mode."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(2).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)
