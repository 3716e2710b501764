"""What happens when an op is called: which implementation runs, PyTorch's operations, the op's own
Triton kernel, or its plain form where another derivative is taken than the op has; and in which
precision.

An op that has a Triton kernel takes ``backend``, and so does the strategy or operator that calls
it, as an option of its construction. The choice follows static facts alone (device, dtype, shapes),
never the values of tensors:

- ``"auto"``: PyTorch's operations on every device, until the kernels have passed their tests on a
  GPU;
- ``"torch"``: PyTorch's operations;
- ``"triton"``: the Triton kernel, or a :class:`~fredholm.errors.BackendError` that says what stands
  in the way;
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
OLDEST_CAPABILITY = (8, 0)  # bfloat16 matrix products
INSTALLED = find_spec("triton") is not None
UNCHANGED = nullcontext()
ORDINARY = (Tensor, torch.nn.Parameter)
MACHINES = ("cpu", "cuda")
SUMMED = (torch.float32, torch.float64)


def constant_when_traced(function: FunctionT) -> FunctionT:
    """Make torch.compile take a function's result for a constant.

    This sets the mark of :func:`torch.compiler.assume_constant_result`, which imports
    ``torch._dynamo`` when it is called: a second at start-up for code that may never be compiled.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def check_backend(name: str) -> str:
    """``name`` where it is one of :data:`BACKENDS`; for the construction of what takes a backend.

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
    requested: str, op: str, device: torch.device, refusal: Callable[[], str | None]
) -> str:
    """``"torch"`` or ``"triton"`` for one call of ``op`` on ``device``.

    Args:
        requested: one of :data:`BACKENDS`.
        op: the op's name, for people.
        device: where its tensors are.
        refusal: why this op's Triton kernel cannot take the call, or None where it can. Called
            only on a machine that runs Triton kernels.

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
    """Give an op with an option ``backend`` the backend ``"checked"``.

    Args:
        op: the op's name, for people.

    Raises:
        BackendError: a checked call inside ``torch.compile`` or a transform.
    """

    def decorate(function: FunctionT) -> FunctionT:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if options.get("backend") != "checked":
                return function(*args, **options)
            if torch.compiler.is_compiling() or transforms():
                raise BackendError(
                    f"expected a plain call of {op} under backend='checked', got one inside "
                    "torch.compile or a transform of torch.func; use backend='triton' there"
                )
            # Few calls are checked, and every call crosses this file.
            from .checked import checked_call

            del options["backend"]
            return checked_call(op, function, args, options)

        return typed(FunctionT, call)

    return decorate


def machine_refusal(device: torch.device) -> str | None:
    """Why no Triton kernel runs on tensors of ``device`` here, or None.

    Without a GPU, kernels run on the CPU through Triton's interpreter where ``TRITON_INTERPRET=1``
    was in the environment before the first of them was imported: slow, for tests.
    """
    if not INSTALLED:
        return "the package triton is not installed (pip install 'fredholm[triton]')"
    if interpreted():
        return (
            None
            if device.type == "cpu"
            else f"TRITON_INTERPRET=1 runs kernels on CPU tensors, got {device.type}"
        )
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
    """Whether Triton kernels are run by its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


@constant_when_traced
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


# --- derivatives that no fast implementation has --------------------------------------------------


def guarded_call(name: str, op: Op, plain: Op | None, forward: Op | None = None) -> Op:
    """The function that calls a custom op, or its plain form where a transform of ``torch.func`` or
    forward mode differentiates, or a backward is of several gradients at once
    (``is_grads_batched``); ``vmap`` alone calls the op once for each element. Where nothing but the
    op's values is wanted, its implementation ``forward`` is called at once: torch's dispatcher
    takes as long as small problems do.

    Raises:
        DerivativeError: when called there without a plain form.
    """

    def call(*arguments: Any) -> Any:
        if not several_gradients(arguments):
            if forward is not None and values_alone(arguments):
                return forward(*arguments)
            if not transforms() or not any(map(_differentiated, spread(arguments))):
                return op(*arguments)
        if plain is not None:
            return plain(*arguments)
        raise DerivativeError(
            f"{name} was called under torch.func.grad, torch.func.jvp, forward-mode "
            "differentiation or is_grads_batched=True, for which custom ops have no rule: use "
            "torch.autograd.grad or backward(), which it supports, or register it with plain=, the "
            "same in torch's operations"
        )

    return call


def values_alone(arguments: Sequence[Any]) -> bool:
    """Whether a call with these arguments is about values alone: nothing records, traces,
    transforms or counts it, and its tensors are ordinary ones with memory of their own.
    """
    if torch.compiler.is_compiling() or transforms():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False
    recorded = torch.is_grad_enabled()
    for x in spread(arguments):
        if not isinstance(x, Tensor):
            continue
        if type(x) not in ORDINARY or x.device.type not in MACHINES:
            return False
        if recorded and x.requires_grad:
            return False
    return True


def unrecorded() -> bool:
    """Whether nothing but values comes of what is computed now: no autograd, tracing, transform.

    Example:
        >>> unrecorded()
        False
        >>> with torch.no_grad():
        ...     unrecorded()
        True
    """
    return not (torch.is_grad_enabled() or torch.compiler.is_compiling() or transforms())


def transforms() -> bool:
    """Whether a transform of :mod:`torch.func` (``grad``, ``jvp``, ``vmap``, what is built on them)
    or a level of :mod:`torch.autograd.forward_ad` is open. 0.1 µs; compiled code may ask as well.

    Example:
        >>> transforms()
        False
        >>> torch.func.vmap(lambda x: x * transforms())(torch.ones(2)).tolist()
        [1.0, 1.0]
    """
    if torch.compiler.is_compiling():
        return _traced()
    return _functorch.get_dynamic_layer_stack_depth() > 0 or forward_ad._current_level >= 0


@constant_when_traced
def _traced() -> bool:
    """The same while compiled code is traced, inside the transforms that it contains."""
    return _functorch.get_dynamic_layer_stack_depth() > 0 or forward_ad._current_level >= 0


def followed(x: Tensor) -> bool:
    """Whether a derivative with respect to ``x`` is being taken, in whichever mode."""
    return x.requires_grad or (transforms() and _differentiated(x))


def _differentiated(x: Any) -> bool:
    """Whether an open transform takes a derivative with respect to ``x``; a tracer cannot look, and
    takes every tensor for one.

    Each level of torch.func wraps all tensors made inside it, also those it does not differentiate.
    Only the outermost wrapper shows whether it has a tangent; an inner one counts as followed.
    """
    if not isinstance(x, Tensor) or torch.compiler.is_compiling():
        return isinstance(x, Tensor)
    outermost = True
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_gradtrackingtensor(x) and (not outermost or _has_derivative(x)):
            return True
        x, outermost = _functorch.get_unwrapped(x), False
    return _has_derivative(x)


def _has_derivative(x: Tensor) -> bool:
    wrapped = _functorch.is_functorch_wrapped_tensor(x)
    return (wrapped and x.requires_grad) or forward_ad.unpack_dual(x).tangent is not None


def several_gradients(arguments: Sequence[Any]) -> bool:
    """Whether a backward of several gradients in one calls, as ``torch.autograd.grad`` makes it for
    ``is_grads_batched=True``: custom ops have no rule for such tensors.
    """
    if torch.compiler.is_compiling() or torch._C._current_graph_task_id() < 0:
        return False
    tensors = (x for x in spread(arguments) if isinstance(x, Tensor))
    return any(map(_functorch.is_legacy_batchedtensor, tensors))


def spread(arguments: Sequence[Any]) -> list[Any]:
    """The arguments with the elements of lists in the lists' places."""
    spread: list[Any] = []
    for x in arguments:
        spread.extend(x) if isinstance(x, (list, tuple)) else spread.append(x)
    return spread


# --- precision ------------------------------------------------------------------------------------


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """float32 for the half precisions, else the dtype itself: those that sums are made in.

    Example:
        >>> at_least_single(torch.bfloat16), at_least_single(torch.float64)
        (torch.float32, torch.float64)
    """
    return dtype if dtype in SUMMED else torch.promote_types(dtype, torch.float32)


def unrounded(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A change of a module's tensors (``nn.Module._apply``) that moves them as it does, and leaves
    float32 where it would round to a half precision.

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
    """``torch.promote_types``, without a call where they agree.

    Example:
        >>> promoted(torch.float32, torch.float64)
        torch.float64
    """
    return a if a == b else torch.promote_types(a, b)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)``, without a call where nothing changes."""
    return x if x.dtype == dtype else x.to(dtype)


def product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of four dimensions each, the first two alike: one call, where ``@`` expands and
    reshapes before it, which takes small problems as long again. Traced code has ``@``.

    Example:
        >>> product(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 4, 5)).shape
        torch.Size([1, 2, 3, 5])
    """
    if torch.compiler.is_compiling():
        return a @ b
    shape = a.shape
    out = torch.bmm(a.flatten(0, 1), b.flatten(0, 1))
    return out.view(shape[0], shape[1], shape[2], b.shape[3])


NUMBERS: dict[tuple[float, torch.dtype], Tensor] = {}
KEPT_NUMBERS = 256


def number(value: float, like: Tensor) -> Tensor | float:
    """``value`` as it is quickest beside ``like``: on a CPU a tensor of no dimension, made once,
    which takes half as long as a Python number; the number itself under tracing and modes.

    Example:
        >>> float(torch.ones(2).add(number(0.5, torch.ones(2)))[0])
        1.5
    """
    plain = like.device.type == "cpu" and type(like) is Tensor
    if not plain or torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return value
    kept = NUMBERS.get((value, like.dtype))
    if kept is None:
        with torch.inference_mode(False):  # what is kept may meet autograd later
            kept = torch.tensor(value, dtype=like.dtype, device="cpu")
        if len(NUMBERS) < KEPT_NUMBERS:
            NUMBERS[value, like.dtype] = kept
    return kept


def sum_of_product(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``c + a @ b``, a and b as :func:`product` takes them and c with one row for all: one call.

    Example:
        >>> ones = torch.ones(1, 2, 3, 4)
        >>> sum_of_product(torch.ones(1, 2, 1, 3), ones, ones.mT).unique()
        tensor([5.])
    """
    if torch.compiler.is_compiling():
        return c + a @ b
    out = torch.baddbmm(c.flatten(0, 1), a.flatten(0, 1), b.flatten(0, 1))
    return out.view(*a.shape[:3], b.shape[3])


def full_precision(like: Tensor) -> AbstractContextManager:
    """A context without autocast on the device of ``like``: nothing at all where there is none.

    Example:
        >>> x = torch.eye(2)
        >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(x):
        ...     (x @ x).dtype
        torch.float32
    """
    kind = like.device.type
    if kind == "meta":  # has no autocast
        return UNCHANGED
    # a traced program may run under autocast later
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return UNCHANGED


def result_dtype(u: Tensor) -> torch.dtype:
    """The dtype in which a layer answers features ``u``: theirs, or autocast's, as ``nn.Linear``.

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
