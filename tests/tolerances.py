"""One tolerance table by dtype, the same for every op and operator."""

from __future__ import annotations

import torch

RELATIVE = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.bfloat16: 2e-2,
    # Three bits more than bfloat16.
    torch.float16: 2.5e-3,
}


def assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    what: str = "values",
    dtype: torch.dtype | None = None,
) -> None:
    """Check the largest difference, relative to the largest expected magnitude.

    NaN fails, and so does an infinity where the same infinity is not expected.
    """
    assert actual.shape == expected.shape, (
        f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    )
    tolerance = RELATIVE[dtype or expected.dtype]
    same = actual.isinf() & (actual == expected)
    actual, expected = actual[~same], expected[~same]
    scale = max(float(expected.detach().abs().max()) if expected.numel() else 0.0, 1e-3)
    error = 0.0
    if expected.numel():
        difference = actual.detach().double() - expected.detach().double()
        error = float(difference.abs().max()) / scale
    assert error <= tolerance, f"{what}: relative difference {error:.2e}, allowed {tolerance:.0e}"
