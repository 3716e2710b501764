"""The launch of a Triton kernel, and what its grid holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LARGEST_GRID = 65_535  # programs along the second and third axis of a grid


def grid_refusal(pairs: int) -> str | None:
    """Why (batch, head) pairs do not fit the second axis of a grid, or None.

    Example:
        >>> grid_refusal(70_000)
        'it takes up to 65535 heads of all batch entries together, got 70000'
    """
    if pairs > LARGEST_GRID:
        return f"it takes up to {LARGEST_GRID} heads of all batch entries together, got {pairs}"
    return None


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """``kernel[grid](*arguments, **options)`` on the device of the first tensor among the
    arguments.

    Example:
        >>> class Kernel:
        ...     def __getitem__(self, grid):
        ...         return lambda x, **options: print(grid, options)
        >>> launch(Kernel(), (2, 3), torch.ones(1), BLOCK=16)
        (2, 3) {'BLOCK': 16}
    """
    with torch.cuda.device_of(next(x for x in arguments if isinstance(x, Tensor))):
        kernel[grid](*arguments, **options)
