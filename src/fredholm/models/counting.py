"""Exact counts of parameters and FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..modes import evaluating


def _transform(shape: torch.Size, dims: list[int], size: int, share: float) -> int:
    """Return 5 N log2 N per complex transform of N points (``share`` 1), half of it per real one,
    for all signals of a tensor.
    """
    points = math.prod(shape[d] for d in dims[:-1]) * size
    signals = math.prod(shape) // math.prod(shape[d] for d in dims)
    return round(share * 5 * signals * points * math.log2(max(points, 2)))


def _real_to_complex(x: torch.Size, dims: list[int], *_: Any, **__: Any) -> int:
    return _transform(x, dims, x[dims[-1]], 0.5)


def _complex_to_real(x: torch.Size, dims: list[int], norm: int, size: int, **_: Any) -> int:
    return _transform(x, dims, size, 0.5)


def _complex_to_complex(x: torch.Size, dims: list[int], *_: Any, **__: Any) -> int:
    return _transform(x, dims, x[dims[-1]], 1.0)


def _recurrent_layer(
    x: torch.Size,
    inputs: torch.Size,
    hidden: torch.Size,
    *_: Any,
    **__: Any,
) -> int:
    """Count two products per step, as oneDNN's LSTM layer evaluates them in one operation."""
    return 2 * x[0] * x[1] * (math.prod(inputs) + math.prod(hidden))


# Operations that torch's counter does not know. The formulas receive shapes instead of tensors.
FORMULAS: dict[Any, Callable[..., int]] = {
    torch.ops.aten._fft_r2c: _real_to_complex,
    torch.ops.aten._fft_c2r: _complex_to_real,
    torch.ops.aten._fft_c2c: _complex_to_complex,
    torch.ops.aten.mkldnn_rnn_layer: _recurrent_layer,
}

# Errors of models that read a value of a tensor, or derive a shape from one: they are not counted.
UNCOUNTED = (DataDependentOutputException, DynamicOutputShapeException)


def counter() -> FlopCounterMode:
    """Return torch's FLOP counter, which here also knows Fourier transforms (5 N log2 N, half for
    real signals) and fused LSTM layers.

    Example:
        >>> with counter() as found:
        ...     _ = torch.fft.rfft(torch.zeros(3, 8))
        >>> found.get_total_flops()
        180
    """
    return FlopCounterMode(display=False, custom_mapping=FORMULAS)


def _encoder(model: nn.Module) -> Any:
    """Return the configuration of a model's encoder, or None."""
    return getattr(getattr(model, "config", None), "encoder", None)


def count(
    model: nn.Module,
    input_shape: tuple[int, ...],
    dtype: torch.dtype | None = None,
) -> tuple[int, int]:
    """Return the number of parameters, and the FLOPs of one forward pass on ``input_shape`` (2 per
    multiply-add; of matrix products and Fourier transforms, not of elementwise functions).

    The forward pass runs on tensors without data, so the actual computation is counted, without
    memory and in almost no time. The model may have no data either: ``with torch.device("meta"):
    model = create_model("itnet_l")``. The input's ``dtype`` is by default that of
    the model's encoder (``input_dtype``: token numbers are integers), otherwise float.

    Example:
        >>> count(nn.Linear(3, 5), (2, 3))
        (20, 60)
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if dtype is None:
        dtype = getattr(_encoder(model), "input_dtype", torch.float32)
    counting = counter()
    # Fused attention on a CPU has no FLOP formula; its plain form is the same matrix products.
    with (
        evaluating(model),
        FakeTensorMode(),
        torch.no_grad(),
        counting,
        sdpa_kernel(SDPBackend.MATH),
    ):
        empty = {
            name: torch.empty(t.shape, dtype=t.dtype, device="cpu") for name, t in tensors.items()
        }
        torch.func.functional_call(model, empty, (torch.zeros(input_shape, dtype=dtype),))
    return sum(p.numel() for p in model.parameters()), counting.get_total_flops()
