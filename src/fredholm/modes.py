"""A model in evaluation mode, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model in evaluation mode, without torch's fused encoder, which calls no layer; afterwards
    all is as it was, each module in the mode that it had.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with evaluating(model):
        ...     assert not any(module.training for module in model.modules())
        >>> [module.training for module in model]
        [True, False]
    """
    training, fused = (
        [m for m in model.modules() if m.training],
        torch.backends.mha.get_fastpath_enabled(),
    )
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module in training:
            module.training = True
