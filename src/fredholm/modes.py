"""Mode and device of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, without torch's fused encoder, which calls no layer. After
    the block each module is in its former mode.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with evaluating(model):
        ...     assert not any(module.training for module in model.modules())
        >>> [module.training for module in model]
        [True, False]
    """
    training = [module for module in model.modules() if module.training]
    fused = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module in training:
            module.training = True


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's weights, and the CPU for a model without weights."""
    for tensor in chain(model.parameters(), model.buffers()):
        return tensor.device
    return torch.device("cpu")
