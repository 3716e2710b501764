"""The launch of a Triton kernel, and the size of its grid."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LARGEST_GRID = 65_535
"""Programs that CUDA allows along the second and third axis of a grid."""


def grid_refusal(pairs: int) -> str | None:
    """Return why (batch, head) pairs do not fit the second axis of a grid, or None.

    Example:
        >>> grid_refusal(70_000)
        'it takes up to 65535 heads of all batch entries together, got 70000'
    """
    if pairs > LARGEST_GRID:
        return f"it takes up to {LARGEST_GRID} heads of all batch entries together, got {pairs}"
    return None


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *arguments: object,
    **options: object,
) -> None:
    """Launch ``kernel[grid](*arguments, **options)`` on the device of its first tensor.

    Args:
        kernel: a function decorated with ``triton.jit``, which Triton leaves without a type.
        grid: programs along each axis.
        arguments, options: tensors and numbers of the kernel, and its compile-time constants.

    Example:
        >>> class Kernel:
        ...     def __getitem__(self, grid):
        ...         return lambda x, **options: print(grid, options)
        >>> launch(Kernel(), (2, 3), torch.ones(1), BLOCK=16)
        (2, 3) {'BLOCK': 16}
    """
    first = next(x for x in arguments if isinstance(x, Tensor))
    # Triton launches on the current device, which need not be that of the tensors.
    with torch.cuda.device_of(first):
        kernel[grid](*arguments, **options)
