"""The probe: a layer compared with its conversion on a small random signal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ..errors import ConversionError

# Largest difference, relative to the norm of the layer's result. Layers round otherwise than
# operators do, and some compute in float32 whatever their dtype; a wrong reading is off by far
# more.
TOLERANCE = {
    torch.float64: 1e-5,
    torch.float32: 1e-3,
    torch.float16: 2e-2,
    torch.bfloat16: 5e-2,
}
BATCH = 2
SEED = 20


class Results(NamedTuple):
    """The same quantity from the conversion and from the layer."""

    actual: Tensor
    expected: Tensor


def probe(
    source: nn.Module,
    original: Callable[[Tensor], Tensor | None],
    converted: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    *,
    advice: str,
) -> float | None:
    """Return the relative difference of a layer and its conversion on one random signal: the larger
    of those of output and input gradient. None where nothing was compared.

    Nothing is left behind: random state, buffers and gradients of ``source`` stay as they are.
    Parameters without values (on the meta device, or fake) give nothing to compare.

    Args:
        source: the converted layer, in the mode in which it was converted.
        original: the layer on u; it returns None where it computes another function on purpose, or
            cannot be called.
        converted: its operator, or evolution, on u.
        shape: of u.
        advice: a sentence for errors, about how the layer was called.

    Raises:
        ConversionError: a difference above :data:`TOLERANCE`, or a layer that cannot be called.
    """
    tensors = list(chain(source.parameters(), source.buffers()))
    if any(x.is_meta or isinstance(x, FakeTensor) for x in tensors):
        return None
    dtype, device = _precision(source)
    # Inference tensors cannot be saved for a backward.
    differentiable = not any(x.is_inference() for x in tensors)
    name = type(source).__name__

    with _undisturbed(source, device, differentiable):
        # Drawn in float64 on the CPU, so that every dtype and device has the same signal.
        generator = torch.Generator().manual_seed(SEED)
        u = torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)
        u.requires_grad_(differentiable)

        # With the random state that the conversion meets too, so that both draw the same.
        with torch.random.fork_rng(_devices_with_random_state(device)):
            expected = _call(original, u, f"{name} cannot be called on a signal {shape}", advice)
        if expected is None:
            return None
        no_response = f"what {name} was converted to has no response"
        actual = _call(converted, u, no_response, advice)
        _check_shapes(name, shape, actual, expected, advice)

        results = {"output": Results(actual, expected)}
        if differentiable:
            weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
            weights = weights.to(device, expected.dtype)
            gradients = Results(_gradient(actual, u, weights), _gradient(expected, u, weights))
            results["gradient"] = gradients

        tolerance = TOLERANCE.get(dtype, TOLERANCE[torch.bfloat16])
        return max(_compare(name, quantity, pair, tolerance) for quantity, pair in results.items())


def _check_shapes(
    name: str,
    shape: tuple[int, ...],
    actual: Tensor,
    expected: object,
    advice: str,
) -> None:
    """Raise ConversionError where the layer returns something else than a tensor of that shape."""
    if isinstance(expected, Tensor) and expected.shape == actual.shape:
        return
    got = type(expected).__name__
    if isinstance(expected, Tensor):
        got = str(tuple(expected.shape))
    raise ConversionError(
        f"{name} gives {got} on a signal {shape}, what it was converted to gives "
        f"{tuple(actual.shape)}; {advice}"
    )


def _precision(source: nn.Module) -> tuple[torch.dtype, torch.device]:
    """Return the least precise dtype of the parameters (of the buffers, where there are none), and
    the device of the first.
    """
    numbers = [
        x
        for x in chain(source.parameters(), source.buffers())
        if x.is_floating_point() or x.is_complex()
    ]
    parameters = [x for x in numbers if isinstance(x, nn.Parameter)]
    dtypes = [x.dtype.to_real() for x in parameters or numbers]
    if not dtypes:
        return torch.get_default_dtype(), torch.device("cpu")
    return min(dtypes, key=lambda dtype: torch.finfo(dtype).bits), numbers[0].device


def _call(
    function: Callable,
    u: Tensor,
    problem: str,
    advice: str,
):
    """Return ``function(u)``; whatever it raises is the cause of a ConversionError."""
    try:
        return function(u)
    except Exception as error:
        raise ConversionError(f"{problem} ({type(error).__name__}: {error}); {advice}") from error


def _gradient(output: Tensor, u: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of ⟨weights, output⟩ with respect to u alone, so that no parameter
    receives one.
    """
    if not output.requires_grad:
        return torch.zeros_like(u)
    (gradient,) = torch.autograd.grad(output, u, weights.to(output.dtype), allow_unused=True)
    if gradient is None:
        return torch.zeros_like(u)
    return gradient


def _compare(
    name: str,
    quantity: str,
    results: Results,
    tolerance: float,
) -> float:
    """Return the difference of two results, relative to the norm of the expected one.

    Raises:
        ConversionError: a difference above the tolerance, or an expected result with infinities.
    """
    actual, expected = results.actual.detach().double(), results.expected.detach().double()
    if not expected.isfinite().all():
        raise ConversionError(
            f"{name} has a {quantity} that is not finite on a small random signal, so that its "
            "operator cannot be compared with it; look at its weights, or pass probe=False"
        )

    size = expected.norm().item()
    error = (actual - expected).norm().item()
    # The floor compares zero with zero. NaN fails every comparison, hence `not error <= ...`.
    scale = max(size, 1e-6)
    if not error <= tolerance * scale:
        off = f"{error:.2g}, where the layer gives zero,"
        if size:
            off = f"{error / size:.1%}"
        raise ConversionError(
            f"{name} was converted as its class says, but on a small random signal the {quantity} "
            f"is off by {off}: this layer computes something else. Look for code that its class "
            "does not show (an adapter, a patch, a wrapped tensor), or a converter that misses a "
            "part; probe=False takes the result as it is"
        )
    return error / scale


def _devices_with_random_state(device: torch.device) -> list[torch.device]:
    """Return the devices beside the CPU whose random state has to be restored."""
    if device.type == "cuda":
        return [device]
    return []


@contextmanager
def _undisturbed(
    source: nn.Module,
    device: torch.device,
    differentiable: bool,
) -> Iterator[None]:
    """Switch gradients on where there may be any, and autocast off; afterwards restore random state
    and buffers.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(_devices_with_random_state(device)))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(differentiable))
        stack.enter_context(torch.autocast(device.type, enabled=False))
        if device.type == "cuda":
            # cuDNN has no backward of recurrences in evaluation mode.
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(_restored_buffers(source))
        yield


class SavedBuffer(NamedTuple):
    """A buffer, where it is registered, and a copy of its values; None where it is None."""

    owner: nn.Module
    name: str
    buffer: Tensor | None
    values: Tensor | None


@contextmanager
def _restored_buffers(source: nn.Module) -> Iterator[None]:
    """Restore buffers, such as running statistics, with their values afterwards."""
    saved = []
    for owner in source.modules():
        for name, buffer in owner._buffers.items():
            values = None
            if buffer is not None:
                values = buffer.detach().clone()
            saved.append(SavedBuffer(owner, name, buffer, values))
    try:
        yield
    finally:
        for owner, name, buffer, values in saved:
            owner._buffers[name] = buffer
            if buffer is None or values is None or torch.equal(buffer, values):
                continue
            # An inference tensor may be written to in inference mode alone.
            with torch.no_grad(), torch.inference_mode(buffer.is_inference()):
                buffer.copy_(values)
