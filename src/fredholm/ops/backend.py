"""Decisions at every call of an op: the implementation that runs, and the precision.

The implementation is PyTorch's operations, the op's own Triton kernel, or its plain form where a
derivative is taken that the op lacks.

An op that has a Triton kernel takes ``backend``, and so does the strategy or operator that calls
it, as an option of its construction. The choice follows static facts alone (device, dtype, shapes),
never the values of tensors:

- ``"auto"``: PyTorch's operations on every device, until the kernels have passed their tests on a
  GPU;
- ``"torch"``: PyTorch's operations;
- ``"triton"``: the Triton kernel, or a :class:`~fredholm.errors.BackendError` with the reason why
  it cannot run;
- ``"checked"``: the Triton kernel, whose values and gradients every call compares with PyTorch's
  operations (:mod:`.checked`).

Triton is imported by the kernels' own files alone (``ops/<name>/triton_*.py``,
``families/<name>/triton/``), when one is first used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from importlib.util import find_spec
from typing import Any, TypeVar
from typing import cast as typed

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from ..errors import BackendError, DerivativeError, OptionError, suggest

Op = Callable[..., Any]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

BACKENDS = ("auto", "torch", "triton", "checked")
OLDEST_CAPABILITY = (8, 0)
"""The first compute capability with matrix products in bfloat16."""
INSTALLED = find_spec("triton") is not None
UNCHANGED = nullcontext()
"""A context that changes nothing. One object serves all calls, for making one takes time."""
ORDINARY = (Tensor, torch.nn.Parameter)
MACHINES = ("cpu", "cuda")
SUMMED = (torch.float32, torch.float64)
"""The dtypes that sums accumulate in."""


def constant_when_traced(function: FunctionT) -> FunctionT:
    """Make torch.compile treat the result of ``function`` as a constant.

    This sets the mark of :func:`torch.compiler.assume_constant_result`. Calling that function
    imports ``torch._dynamo``, a second at start-up for code that may never be compiled.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


# --- the implementation that runs -----------------------------------------------------------------


def check_backend(name: str) -> str:
    """Return ``name`` if it is one of :data:`BACKENDS`; constructors call this on their option.

    Raises:
        OptionError: for any other name.

    Example:
        >>> check_backend("auto")
        'auto'
    """
    if name not in BACKENDS:
        raise OptionError(f"unknown backend {name!r}{suggest(name, BACKENDS)}")
    return name


def wants_triton(name: str) -> bool:
    """Return whether the backend ``name`` asks for Triton kernels.

    Example:
        >>> wants_triton("auto"), wants_triton("checked")
        (False, True)
    """
    return name in ("triton", "checked")


def choose_backend(
    requested: str,
    op: str,
    device: torch.device,
    refusal: Callable[[], str | None],
) -> str:
    """Return ``"torch"`` or ``"triton"`` for one call of ``op`` on ``device``.

    Args:
        requested: one of :data:`BACKENDS`.
        op: the op's name, for messages.
        device: of its tensors.
        refusal: returns why this op's Triton kernel cannot take the call, or None where it can.
            Called only on a machine that runs Triton kernels.

    Raises:
        OptionError: for an unknown backend.
        BackendError: where Triton was requested and cannot run.

    Example:
        >>> choose_backend("auto", "an op", torch.device("cpu"), lambda: None)
        'torch'
    """
    check_backend(requested)
    if not wants_triton(requested):
        return "torch"

    reason = machine_refusal(device) or refusal()
    if reason is None:
        return "triton"
    raise BackendError(
        f"backend={requested!r} cannot run {op}: {reason}; backend='auto' takes PyTorch's "
        "operations"
    )


def checkable(op: str) -> Callable[[FunctionT], FunctionT]:
    """Decorate an op with an option ``backend`` so that it takes ``backend="checked"`` as well.

    Args:
        op: the op's name, for messages.

    Raises:
        BackendError: a checked call inside ``torch.compile`` or a transform.
    """

    def decorate(function: FunctionT) -> FunctionT:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if options.get("backend") != "checked":
                return function(*args, **options)

            # There tensors have no values, or none that may be read, and nothing can be compared.
            if torch.compiler.is_compiling() or transforms():
                raise BackendError(
                    f"expected a plain call of {op} under backend='checked', got one inside "
                    "torch.compile or a transform of torch.func; use backend='triton' there"
                )

            # Imported here, because every call crosses this file and few are checked.
            from .checked import checked_call

            del options["backend"]
            return checked_call(op, function, args, options)

        return typed(FunctionT, call)

    return decorate


def machine_refusal(device: torch.device) -> str | None:
    """Return why no Triton kernel runs on tensors of ``device`` on this machine, or None.

    Without a GPU, kernels run on the CPU through Triton's interpreter if ``TRITON_INTERPRET=1`` was
    in the environment before the first of them was imported: slow, for tests.
    """
    if not INSTALLED:
        return "the package triton is not installed (pip install 'fredholm[triton]')"

    if interpreted():
        if device.type == "cpu":
            return None
        return f"TRITON_INTERPRET=1 runs kernels on CPU tensors, got {device.type}"

    if device.type != "cuda":
        return (
            f"the tensors are on {device.type}, it needs a CUDA device (or TRITON_INTERPRET=1, "
            "which is for tests)"
        )

    capability = _capability(device.index or 0)
    if capability < OLDEST_CAPABILITY:
        needed = ".".join(map(str, OLDEST_CAPABILITY))
        present = ".".join(map(str, capability))
        return f"the GPU has compute capability {present}, it needs {needed} or newer"
    return None


def interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels, on the CPU.

    Example:
        >>> isinstance(interpreted(), bool)
        True
    """
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


@constant_when_traced
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


# --- derivatives that no fast implementation has --------------------------------------------------


def guarded_call(
    name: str,
    op: Op,
    plain: Op | None,
    forward: Op | None = None,
) -> Op:
    """Return the function that calls a custom op, or its plain form where the op has no rule.

    The plain form runs where a transform of ``torch.func`` or forward mode differentiates, and
    where a backward is of several gradients at once (``is_grads_batched``). ``vmap`` alone calls
    the op once for each element.

    Args:
        name: the op's, for messages.
        op: the registered op.
        plain: its plain form, or None.
        forward: its implementation. It is called directly where only values are wanted: on small
            problems torch's dispatcher takes as long as the arithmetic.

    Raises:
        DerivativeError: when called under such a transform without a plain form.
    """

    def call(*arguments: Any) -> Any:
        if not several_gradients(arguments):
            if forward is not None and values_alone(arguments):
                return forward(*arguments)
            if not transforms() or not any(map(_differentiated, flat_arguments(arguments))):
                return op(*arguments)
        if plain is not None:
            return plain(*arguments)
        raise DerivativeError(
            f"expected an ordinary call of {name}, got one under torch.func.grad, torch.func.jvp, "
            "forward-mode differentiation or is_grads_batched=True, for which custom ops have no "
            "rule; use torch.autograd.grad or backward(), or register the op with plain=, the same "
            "in torch's operations"
        )

    return call


def values_alone(arguments: Sequence[Any]) -> bool:
    """Return whether a call with these arguments wants nothing but values.

    Then nothing records, traces, transforms or counts the call, and its tensors are ordinary ones
    with memory of their own.
    """
    if torch.compiler.is_compiling() or transforms():
        return False
    # Modes such as the FLOP counter see only what passes through torch's dispatcher.
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False

    recorded = torch.is_grad_enabled()
    for x in flat_arguments(arguments):
        if not isinstance(x, Tensor):
            continue
        if type(x) not in ORDINARY or x.device.type not in MACHINES:
            return False
        if recorded and x.requires_grad:
            return False
    return True


def unrecorded() -> bool:
    """Return whether autograd, tracing and transforms are all off.

    Example:
        >>> unrecorded()
        False
        >>> with torch.no_grad():
        ...     unrecorded()
        True
    """
    return not (torch.is_grad_enabled() or torch.compiler.is_compiling() or transforms())


def transforms() -> bool:
    """Return whether the call is inside a transform of :mod:`torch.func` or in forward mode.

    Transforms are ``grad``, ``jvp``, ``vmap`` and functions built on them; forward mode is a
    ``dual_level`` of :mod:`torch.autograd.forward_ad`. Costs 0.1 µs; compiled code may call it as
    well.

    Example:
        >>> transforms()
        False
        >>> torch.func.vmap(lambda x: x * transforms())(torch.ones(2)).tolist()
        [1.0, 1.0]
    """
    if torch.compiler.is_compiling():
        return _transforms_when_traced()
    # Levels of forward mode are numbered from 0; outside of all it is -1.
    return _functorch.get_dynamic_layer_stack_depth() > 0 or forward_ad._current_level >= 0


@constant_when_traced
def _transforms_when_traced() -> bool:
    """:func:`transforms` during tracing, of transforms inside the compiled code."""
    return _functorch.get_dynamic_layer_stack_depth() > 0 or forward_ad._current_level >= 0


def followed(x: Tensor) -> bool:
    """Return whether a derivative with respect to ``x`` is being taken, in whichever mode.

    Example:
        >>> followed(torch.ones(1)), followed(torch.ones(1, requires_grad=True))
        (False, True)
    """
    return x.requires_grad or (transforms() and _differentiated(x))


def _differentiated(x: Any) -> bool:
    """Return whether an open transform takes a derivative with respect to ``x``.

    A tracer cannot look into its tensors, so that under tracing the answer is yes for all of them.
    """
    if not isinstance(x, Tensor) or torch.compiler.is_compiling():
        return isinstance(x, Tensor)

    # Each level of torch.func wraps all tensors made inside it, also those that it does not
    # differentiate. Only the outermost wrapper shows whether it has a derivative; an inner one
    # counts as differentiated.
    outermost = True
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_gradtrackingtensor(x) and (not outermost or _has_derivative(x)):
            return True
        x = _functorch.get_unwrapped(x)
        outermost = False
    return _has_derivative(x)


def _has_derivative(x: Tensor) -> bool:
    """Return whether ``x`` has a gradient of torch.func or a tangent of forward mode."""
    wrapped = _functorch.is_functorch_wrapped_tensor(x)
    return (wrapped and x.requires_grad) or forward_ad.unpack_dual(x).tangent is not None


def several_gradients(arguments: Sequence[Any]) -> bool:
    """Return whether the call comes from a backward that takes several gradients at once.

    ``torch.autograd.grad(..., is_grads_batched=True)`` runs the backward once, on tensors that each
    stand for a batch of gradients. Custom ops have no rule for such tensors, so that a caller takes
    the plain form, or raises.

    Args:
        arguments: of the op: tensors, lists of tensors, and options.
    """
    if torch.compiler.is_compiling():
        return False
    # The id is negative where no backward is running: the quick answer for almost every call.
    if torch._C._current_graph_task_id() < 0:
        return False
    tensors = (x for x in flat_arguments(arguments) if isinstance(x, Tensor))
    return any(map(_functorch.is_legacy_batchedtensor, tensors))


def flat_arguments(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments with each list or tuple replaced by its elements, one level deep.

    Example:
        >>> flat_arguments(["a", ["b", "c"]])
        ['a', 'b', 'c']
    """
    flat: list[Any] = []
    for x in arguments:
        if isinstance(x, (list, tuple)):
            flat.extend(x)
        else:
            flat.append(x)
    return flat


# --- precision ------------------------------------------------------------------------------------


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that sums accumulate in: float32 for the half precisions, else ``dtype``.

    Example:
        >>> at_least_single(torch.bfloat16), at_least_single(torch.float64)
        (torch.float32, torch.float64)
    """
    if dtype in SUMMED:
        return dtype
    return torch.promote_types(dtype, torch.float32)


def unrounded(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a change of a module's tensors (``nn.Module._apply``) that never rounds to a half
    precision.

    It moves tensors as ``change`` does, and converts to float32 where ``change`` would round.

    Example:
        >>> change = unrounded(lambda x: x.to(torch.bfloat16))
        >>> change(torch.ones(1)).dtype, change(torch.ones(1, dtype=torch.float64)).dtype
        (torch.float32, torch.float32)
    """

    def apply(x: Tensor) -> Tensor:
        y = change(x)
        if not y.is_floating_point() or y.dtype in SUMMED or x.dtype not in SUMMED:
            return y
        return x.to(y.device, torch.float32)

    return apply


def promoted(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """Return ``torch.promote_types(a, b)``, without a call where they agree.

    Example:
        >>> promoted(torch.float32, torch.float64)
        torch.float64
    """
    if a == b:
        return a
    return torch.promote_types(a, b)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``x.to(dtype)``, without a call where nothing changes.

    Example:
        >>> cast(torch.ones(1), torch.float64).dtype
        torch.float64
    """
    if x.dtype == dtype:
        return x
    return x.to(dtype)


def full_precision(like: Tensor) -> AbstractContextManager:
    """Return a context without autocast on the device of ``like``.

    Example:
        >>> x = torch.eye(2)
        >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(x):
        ...     (x @ x).dtype
        torch.float32
    """
    kind = like.device.type
    # The meta device has no autocast.
    if kind == "meta":
        return UNCHANGED
    # A traced program may run under autocast later, also if there is none now.
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return UNCHANGED


def result_dtype(u: Tensor) -> torch.dtype:
    """Return the dtype of a layer's response to features ``u``: theirs or autocast's, as in
    ``nn.Linear``.

    Example:
        >>> u = torch.ones(2)
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     result_dtype(u), result_dtype(u.double())
        (torch.bfloat16, torch.float64)
    """
    kind = u.device.type
    if kind == "meta" or u.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return u.dtype
    return torch.get_autocast_dtype(kind)


# --- small calls ----------------------------------------------------------------------------------


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b`` for (B, H, m, k) and (B, H, k, n) by a single call.

    The operator ``@`` expands and reshapes four dimensions first, which on small problems takes as
    long as the product. Traced code has ``@``.

    Example:
        >>> product(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 4, 5)).shape
        torch.Size([1, 2, 3, 5])
    """
    if torch.compiler.is_compiling():
        return a @ b
    batch, heads, rows, _ = a.shape
    out = torch.bmm(
        a.flatten(0, 1),
        b.flatten(0, 1),
    )
    return out.view(batch, heads, rows, b.shape[3])


def sum_of_product(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return ``c + a @ b`` by a single call, with a and b as in :func:`product`.

    Args:
        c: (B, H, 1, n), one row that is added to all.
        a, b: (B, H, m, k) and (B, H, k, n).

    Example:
        >>> ones = torch.ones(1, 2, 3, 4)
        >>> sum_of_product(torch.ones(1, 2, 1, 3), ones, ones.mT).unique()
        tensor([5.])
    """
    if torch.compiler.is_compiling():
        return c + a @ b
    batch, heads, rows, _ = a.shape
    out = torch.baddbmm(
        c.flatten(0, 1),
        a.flatten(0, 1),
        b.flatten(0, 1),
    )
    return out.view(batch, heads, rows, b.shape[3])


NUMBERS: dict[tuple[float, torch.dtype], Tensor] = {}
KEPT_NUMBERS = 256


def number(value: float, like: Tensor) -> Tensor | float:
    """Return ``value`` in the form that is quickest beside ``like``.

    On a CPU that is a tensor without dimensions, made once: an operation takes half as long with it
    as with a Python number. Under tracing and modes it is the number.

    Example:
        >>> float(torch.ones(2).add(number(0.5, torch.ones(2)))[0])
        1.5
    """
    ordinary = like.device.type == "cpu" and type(like) is Tensor
    if not ordinary or torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return value

    kept = NUMBERS.get((value, like.dtype))
    if kept is None:
        # The tensor may meet autograd in a later call, where inference tensors are refused.
        with torch.inference_mode(False):
            kept = torch.tensor(value, dtype=like.dtype, device="cpu")
        # A program with ever new numbers must not fill the memory.
        if len(NUMBERS) < KEPT_NUMBERS:
            NUMBERS[value, like.dtype] = kept
    return kept
