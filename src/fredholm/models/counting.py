"""True parameter and FLOP counts."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count(model: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype | None = None) -> tuple[int, int]:
    """Parameters, and FLOPs of one forward pass on ``input_shape`` (2 a multiply-add; matrix products only).

    The forward pass is run on tensors without data, so what is counted is what is computed, in no memory and next to no time. The
    model may have no data either: ``with torch.device("meta"): model = create_model("itnet_l")``. The input's ``dtype`` is by
    default the model's own: token numbers where ``model.config.encoder`` is text, else floats.

    Example:
        >>> count(nn.Linear(3, 5), (2, 3))
        (20, 60)
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if dtype is None:
        dtype = torch.int64 if getattr(getattr(model, "config", None), "encoder", "") == "text" else torch.float32
    was_training = model.training
    counter = FlopCounterMode(display=False)
    try:
        model.eval()
        # Fused attention on a CPU has no FLOP formula; its plain form is the same matrix products.
        with FakeTensorMode(), torch.no_grad(), counter, sdpa_kernel(SDPBackend.MATH):
            empty = {name: torch.empty(t.shape, dtype=t.dtype, device="cpu") for name, t in tensors.items()}
            torch.func.functional_call(model, empty, (torch.zeros(input_shape, dtype=dtype),))
    finally:
        model.train(was_training)
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()
