"""True parameter and FLOP counts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count(model: nn.Module, input_shape: tuple[int, ...]) -> tuple[int, int]:
    """Parameters, and FLOPs of one forward pass on zeros of ``input_shape`` (2 a multiply-add; matrix products only).

    The forward pass really runs (on the model's device), so what is counted is what is computed.

    Example:
        >>> count(nn.Linear(3, 5), (2, 3))
        (20, 60)
    """
    parameters = sum(p.numel() for p in model.parameters())
    device = next(model.parameters()).device
    was_training = model.training
    counter = FlopCounterMode(display=False)
    try:
        model.eval()
        # Fused attention on a CPU has no FLOP formula; its plain form is the same matrix products.
        with torch.no_grad(), counter, sdpa_kernel(SDPBackend.MATH):
            model(torch.zeros(input_shape, device=device))
    finally:
        model.train(was_training)
    return parameters, counter.get_total_flops()
