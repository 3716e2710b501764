"""The launch of a Triton kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """``kernel[grid](*arguments, **options)`` on the device of the first tensor among the arguments.

    Example:
        >>> class Kernel:
        ...     def __getitem__(self, grid):
        ...         return lambda x, **options: print(grid, options)
        >>> launch(Kernel(), (2, 3), torch.ones(1), BLOCK=16)
        (2, 3) {'BLOCK': 16}
    """
    with torch.cuda.device_of(next(x for x in arguments if isinstance(x, Tensor))):
        kernel[grid](*arguments, **options)
