"""What the tests of Triton kernels share: the device they run on, and output buffers
full of NaN.
"""

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
    """Every uninitialised buffer is full of NaN, and every op deterministic: PyTorch's
    deterministic mode does both.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(2).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)
