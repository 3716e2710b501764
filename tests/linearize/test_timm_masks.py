"""Converted layers interpret masks of timm's attention as torch does."""

from __future__ import annotations

import torch

from fredholm.linearization.linearized import TimmAdapter
from fredholm.operators import create_operator


def test_masks_of_three_dimensions_are_per_head():
    """With as many samples as heads, a mask per sample would have the same shape."""
    torch.manual_seed(0)
    layer = TimmAdapter(create_operator("softmax", 8, heads=2).double())
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    mask = torch.rand(2, 5, 5) > 0.5
    mask[..., 0] = True
    torch.testing.assert_close(layer(x, mask), layer(x, mask[None]))
    assert not torch.allclose(layer(x, mask), layer(x, mask[:, None]))
