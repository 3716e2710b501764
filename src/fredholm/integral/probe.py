"""The probe: what was converted and the result, on a small random signal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ..errors import ConversionError

# Relative to the norm of what the layer gives. Layers round otherwise than operators do, and some
# compute in float32 whatever their dtype; a wrong reading is off by far more.
TOLERANCE = {
    torch.float64: 1e-5,
    torch.float32: 1e-3,
    torch.float16: 2e-2,
    torch.bfloat16: 5e-2,
}
BATCH = 2
SEED = 20


def probe(
    source: nn.Module,
    original: Callable[[Tensor], Tensor | None],
    converted: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    *,
    advice: str,
) -> float | None:
    """The larger of the differences of output and input gradient, relative to the layer's, or None
    where nothing was compared; ConversionError unless two functions of u have the same output and
    the same gradient with respect to u, on one random signal.

    Nothing is left behind: random state, buffers and gradients of ``source`` stay as they are.
    Parameters without values (on the meta device, or fake) give nothing to compare, and then
    nothing is compared.

    Args:
        source: what was converted, in the mode in which it was converted.
        original: the layer on u; None says that it computes another function on purpose, or cannot
            be called here.
        converted: its operator, or evolution, on u.
        shape: of u.
        advice: what an error says about how the layer was called.
    """
    tensors = list(chain(source.parameters(), source.buffers()))
    if any(x.is_meta or isinstance(x, FakeTensor) for x in tensors):
        return None
    dtype, device = _precision(source)
    differentiable = not any(x.is_inference() for x in tensors)
    name = type(source).__name__
    with _undisturbed(source, device, differentiable):
        generator = torch.Generator().manual_seed(SEED)
        u = torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)
        u.requires_grad_(differentiable)
        with torch.random.fork_rng(_devices(device)):  # both draw the same, where they draw
            expected = _call(original, u, f"{name} cannot be called on a signal {shape}", advice)
        if expected is None:
            return None
        actual = _call(converted, u, f"what {name} was converted to has no response", advice)
        if not isinstance(expected, Tensor) or expected.shape != actual.shape:
            got = tuple(expected.shape) if isinstance(expected, Tensor) else type(expected).__name__
            raise ConversionError(
                f"{name} gives {got} on a signal {shape}, what it was converted to gives "
                f"{tuple(actual.shape)}; {advice}"
            )
        result = {"output": (actual, expected)}
        if differentiable:
            weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
            weights = weights.to(device, expected.dtype)
            result["gradient"] = (_gradient(actual, u, weights), _gradient(expected, u, weights))
        tolerance = TOLERANCE.get(dtype, TOLERANCE[torch.bfloat16])
        return max(_compare(name, what, *pair, tolerance) for what, pair in result.items())


def _precision(source: nn.Module) -> tuple[torch.dtype, torch.device]:
    """The least precise dtype of the parameters (of the buffers, where there are none), and the
    first one's device.
    """
    result = [
        x
        for part in (source.parameters(), source.buffers())
        for x in part
        if x.is_floating_point() or x.is_complex()
    ]
    dtypes = [x.dtype.to_real() for x in result if isinstance(x, nn.Parameter)]
    dtypes = dtypes or [x.dtype.to_real() for x in result] or [torch.get_default_dtype()]
    device = result[0].device if result else torch.device("cpu")
    return min(dtypes, key=lambda dtype: torch.finfo(dtype).bits), device


def _call(function: Callable, u: Tensor, what: str, advice: str):
    try:
        return function(u)
    except Exception as error:
        raise ConversionError(f"{what} ({type(error).__name__}: {error}); {advice}") from error


def _gradient(output: Tensor, u: Tensor, weights: Tensor) -> Tensor:
    """The gradient of ⟨weights, output⟩ with respect to u alone, so that no parameter has one."""
    if not output.requires_grad:
        return torch.zeros_like(u)
    (gradient,) = torch.autograd.grad(output, u, weights.to(output.dtype), allow_unused=True)
    return torch.zeros_like(u) if gradient is None else gradient


def _compare(name: str, what: str, actual: Tensor, expected: Tensor, tolerance: float) -> float:
    """The relative difference, or a ConversionError."""
    actual, expected = actual.detach().double(), expected.detach().double()
    if not expected.isfinite().all():
        raise ConversionError(
            f"{name} has a {what} that is not finite on a small random signal, so that its "
            "operator cannot be compared with it; look at its weights, or pass probe=False"
        )
    size, error = expected.norm().item(), (actual - expected).norm().item()
    # NaN compares as false, so that it is refused here; zero is compared with zero.
    scale = max(size, 1e-6)
    if not error <= tolerance * scale:
        off = f"{error / size:.1%}" if size else f"{error:.2g}, where the layer gives zero,"
        raise ConversionError(
            f"{name} was converted as its class says, but on a small random signal the {what} is "
            f"off by {off}: this layer computes something else. Look for code that its class does "
            "not show (an adapter, a patch, a wrapped tensor), or a converter that misses a part; "
            "probe=False takes the result as it is"
        )
    return error / scale


def _devices(device: torch.device) -> list[torch.device]:
    """Those beside the processor that have random numbers of their own."""
    return [device] if device.type == "cuda" else []


@contextmanager
def _undisturbed(source: nn.Module, device: torch.device, differentiable: bool) -> Iterator[None]:
    """Gradients on where there may be any, autocast off, and afterwards random state and buffers
    as they were.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(_devices(device)))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(differentiable))
        stack.enter_context(torch.autocast(device.type, enabled=False))
        if device.type == "cuda":  # cuDNN differentiates no recurrence in evaluation mode
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(_kept_buffers(source))
        yield


@contextmanager
def _kept_buffers(source: nn.Module) -> Iterator[None]:
    """Buffers, running statistics for example, in their places and with their values afterwards."""
    kept = [
        (part, name, buffer, None if buffer is None else buffer.detach().clone())
        for part in source.modules()
        for name, buffer in part._buffers.items()
    ]
    try:
        yield
    finally:
        for part, name, buffer, value in kept:
            part._buffers[name] = buffer
            if buffer is None or value is None:
                continue
            if not torch.equal(buffer, value):
                with torch.no_grad(), torch.inference_mode(buffer.is_inference()):
                    buffer.copy_(value)
