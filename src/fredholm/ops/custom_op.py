"""Registration of a custom op: schema, implementation, shapes, autograd, FLOPs, and a plain form
for the derivatives that it has no rule for.

torch's answer to a missing derivative depends on who asks. A second backward ends in a bare
RuntimeError. Forward mode is worse: torch 2.13 has no forward-mode rule for custom ops and drops
their tangents, so that ``torch.func.jvp`` returns zeros. Here the op's plain form, the same
function in torch's own operations, replaces the op under such transforms, and is differentiated the
second time. An op without one raises a :class:`~fredholm.errors.DerivativeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..errors import DerivativeError
from .backend import Op, flat_arguments, guarded_call
from .plain import in_places, list_lengths, nested_arguments, vjp

PLAIN: dict[str, Callable[..., Any]] = {}
"""The plain form of each op that has one, by the op's name in ``torch.ops.fredholm``. Programs for
other runtimes, which lack our ops, are made from them.
"""


def custom_op(
    name: str,
    schema: str,
    forward: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    plain: Callable[..., Any] | None = None,
    flops: Callable[..., int] | None = None,
    setup_context: Callable[[Any, tuple, Any], None] | None = None,
    backward: Callable[..., tuple] | None = None,
) -> Op:
    """Register the op ``fredholm::name`` and return the function that calls it.

    ``torch.func.vmap`` by itself calls the op once for each element.

    Args:
        name: within the namespace; ``torch.ops.fredholm.<name>`` is the op itself.
        schema: of its arguments and results, ``"(Tensor x, int n) -> Tensor"``. No argument is
            written to.
        forward: the implementation, which gets plain tensors.
        fake: the same without values, for tracing.
        plain: the same in torch's differentiable operations, which may need more memory. It
            replaces the op where ``torch.func`` or forward mode differentiates and where a backward
            is of several gradients at once, and is the derivative of an op without ``backward``.
        flops: FLOPs from the arguments, each tensor replaced by its shape; without it none are
            counted.
        setup_context, backward: as :func:`torch.library.register_autograd` takes them.

    Raises:
        DerivativeError: without ``plain``, when the op is called under ``torch.func.grad``, ``jvp``
            and functions built on them, with tangents of :mod:`torch.autograd.forward_ad`, or by a
            backward with ``is_grads_batched=True``; and in a backward pass through an op that has
            no ``backward`` either.

    Example:
        >>> schema = "(Tensor x) -> Tensor"
        >>> double = custom_op("example_double", schema, lambda x: 2 * x, fake=torch.empty_like)
        >>> double(torch.ones(2)).tolist()
        [2.0, 2.0]
        >>> double(torch.ones(2, requires_grad=True)).sum().backward()
        Traceback (most recent call last):
        fredholm.errors.DerivativeError: expected an op with a derivative, got ...
    """
    full_name = f"fredholm::{name}"
    if plain is not None:
        PLAIN[name] = plain

    op = torch.library.custom_op(
        full_name,
        forward,
        mutates_args=(),
        schema=schema,
    )
    op.register_fake(fake)
    op.register_vmap(partial(_one_by_one, op))

    if backward is not None:
        op.register_autograd(backward, setup_context=setup_context)
    elif plain is not None:
        op.register_autograd(partial(_backward_of, plain), setup_context=_save_inputs)
    else:
        op.register_autograd(_refusal(full_name))

    if flops is not None:
        formula = flops
        register_flop_formula(getattr(torch.ops.fredholm, name))(
            lambda *arguments, out_shape=None, **_: formula(*arguments)
        )
    return guarded_call(full_name, op, plain, forward)


def differentiable_op(
    name: str,
    *,
    tensors: str,
    options: str,
    forward: Callable[..., Any],
    backward: Callable[..., list[Tensor]],
    fake: Callable[..., Any],
    plain: Callable[..., Any] | None = None,
    fake_gradients: Callable[..., list[Tensor]] | None = None,
    gradients_of: Sequence[str] = ("grad",),
    flops: tuple[Callable[..., int], Callable[..., int]],
) -> Op:
    """Register ``fredholm::name`` and its gradient, ``fredholm::name_backward``, as two ops.

    The backward op takes the gradients of the results, all arguments of the op, and ``needs``: for
    every tensor, each element of a list counted, whether its gradient is wanted. It returns the
    wanted ones in that order. Its own derivative is that of the plain form's gradient.

    Args:
        name: as for :func:`custom_op`.
        tensors, options: the two parts of the schema, ``"Tensor x, Tensor? y, Tensor[] z"`` and
            ``"int n"``. The op saves all its tensors for the backward and none of its results.
        forward: of tensors and options; returns one tensor per name in ``gradients_of``.
        backward: of gradients, tensors, options and ``needs``.
        fake, fake_gradients: both without values; by default gradients are laid out contiguously.
        plain: the op in torch's differentiable operations, for all derivatives but the first, see
            :func:`custom_op`.
        gradients_of: names of the backward op's first arguments.
        flops: of the op and of its backward, see :func:`custom_op`.

    Returns:
        The function that calls ``fredholm::name``.

    Example:
        >>> triple = differentiable_op(
        ...     "example_triple", tensors="Tensor x", options="int n",
        ...     forward=lambda x, n: n * x, fake=lambda x, n: torch.empty_like(x),
        ...     backward=lambda grad, x, n, needs: [n * grad],
        ...     flops=(lambda x, n: x.numel(), lambda grad, x, n, needs: x.numel()),
        ... )
        >>> x = torch.ones(2, requires_grad=True)
        >>> torch.autograd.grad(triple(x, 3).sum(), x)[0].tolist()
        [3.0, 3.0]
    """
    outputs = len(gradients_of)
    inputs = len(tensors.split(", "))
    output_grads = ", ".join(f"Tensor {grad}" for grad in gradients_of)
    results = ", ".join(["Tensor"] * outputs)
    if outputs > 1:
        results = f"({results})"

    # Arguments of the backward op: ``outputs`` gradients, ``inputs`` tensors, options, needs.
    def contiguous_gradients(*arguments: Any) -> list[Tensor]:
        flat = flat_arguments(arguments[outputs : outputs + inputs])
        needs = arguments[-1]
        return [x.new_empty(x.shape) for x, needed in zip(flat, needs) if needed]

    def plain_gradients(*arguments: Any) -> list[Tensor]:
        assert plain is not None
        grads = arguments[:outputs]
        needs = arguments[-1]
        return vjp(
            plain,
            arguments[outputs:-1],
            needs,
            grads,
        )

    backward_op = custom_op(
        f"{name}_backward",
        f"({output_grads}, {tensors}, {options}, bool[] needs) -> Tensor[]",
        backward,
        fake=fake_gradients or contiguous_gradients,
        plain=None if plain is None else plain_gradients,
        flops=flops[1],
    )

    def gradients(ctx: Any, *grads: Tensor) -> tuple:
        """Return the gradients of the op's arguments, of which the first ``inputs`` are tensors."""
        arguments = _saved_inputs(ctx)
        requested = flat_arguments(ctx.needs_input_grad[:inputs])
        needs = [bool(needed) for needed in requested]
        wanted = backward_op(*grads, *arguments, needs)

        # autograd takes one entry per argument, None for an option.
        flat = in_places(wanted, needs)
        of_tensors = nested_arguments(
            iter(flat),
            list_lengths(arguments[:inputs]),
        )
        of_options = [None] * (len(arguments) - inputs)
        return *of_tensors, *of_options

    return custom_op(
        name,
        f"({tensors}, {options}) -> {results}",
        forward,
        fake=fake,
        plain=plain,
        flops=flops[0],
        setup_context=_save_inputs,
        backward=gradients,
    )


# --- arguments saved for a backward ---------------------------------------------------------------


def _save_inputs(ctx: Any, inputs: tuple, output: Any) -> None:
    """Save all arguments, tensors by autograd's own means, so that it notices if one is changed."""
    tensors: list[Tensor | None] = []
    others: list[Any] = []
    for x in flat_arguments(inputs):
        if isinstance(x, Tensor):
            tensors.append(x)
            others.append(None)
        else:
            tensors.append(None)
            others.append(x)
    ctx.save_for_backward(*tensors)
    ctx.others = others
    ctx.lengths = list_lengths(inputs)


def _saved_inputs(ctx: Any) -> list[Any]:
    """Return the arguments that :func:`_save_inputs` has saved, with their lists."""
    flat = [y if x is None else x for x, y in zip(ctx.saved_tensors, ctx.others)]
    return nested_arguments(iter(flat), ctx.lengths)


# --- derivatives through the plain form -----------------------------------------------------------


def _backward_of(
    plain: Callable[..., Any],
    ctx: Any,
    *grads: Any,
) -> tuple:
    """Return the gradients of an op whose derivative is that of its plain form."""
    arguments = _saved_inputs(ctx)
    requested = _flat_needs(ctx.needs_input_grad, arguments)
    needs = []
    for x, needed in zip(flat_arguments(arguments), requested):
        needs.append(isinstance(x, Tensor) and bool(needed))

    # The gradients of a list of results come as one list.
    wanted = vjp(
        plain,
        arguments,
        needs,
        flat_arguments(grads),
    )

    # autograd takes one entry per argument, None for an option.
    flat = in_places(wanted, needs)
    nested = nested_arguments(iter(flat), ctx.lengths)
    return tuple(None if _is_option(x) else g for x, g in zip(arguments, nested))


def _flat_needs(needs: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Return one entry for each of ``flat_arguments(arguments)``.

    torch gives a list of tensors one entry per element, and a list of options one for all.
    """
    flat: list[Any] = []
    for need, x in zip(needs, arguments):
        if not isinstance(x, (list, tuple)):
            flat.append(need)
        elif isinstance(need, (list, tuple)):
            flat.extend(need)
        else:
            flat.extend([need] * len(x))
    return flat


def _is_option(x: Any) -> bool:
    """Return whether an argument is neither a tensor nor a list of tensors, which may be empty."""
    if isinstance(x, (list, tuple)) and not x:
        return False
    return not any(isinstance(part, Tensor) for part in flat_arguments([x]))


def _one_by_one(
    op: Op,
    info: Any,
    in_dims: tuple,
    *arguments: Any,
) -> tuple[Any, Any]:
    """Apply ``vmap`` by one call of the op per element, so that its memory does not grow.

    The signature is that of ``torch.library.register_vmap``. Returns the stacked results and their
    batch dimensions, which are 0.
    """
    flat = flat_arguments(arguments)
    lengths = list_lengths(arguments)
    # The batch dimension of each argument, None where all elements share it.
    dims = _flat_needs(in_dims, arguments)

    results = []
    for i in range(info.batch_size):
        of_element = []
        for x, dim in zip(flat, dims):
            if dim is not None:
                x = x.select(dim, i)
            of_element.append(x)
        results.append(op(*nested_arguments(iter(of_element), lengths)))

    # An op returns one tensor, or a list or tuple of them.
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    stacked = [torch.stack(parts) for parts in zip(*results)]
    container = type(results[0])
    return (
        container(stacked),
        container([0] * len(stacked)),
    )


# --- refusals -------------------------------------------------------------------------------------


def _refusal(name: str) -> Callable[..., tuple]:
    """Return a backward that refuses, for an op that has no derivative."""
    fix = "detach its arguments"
    if name.endswith("_backward"):
        fix = (
            "the gradient of an op cannot be differentiated again unless the op is registered with "
            "plain=, the same in torch's operations"
        )

    def refuse(ctx: Any, *grads: Any) -> tuple:
        raise DerivativeError(
            f"expected an op with a derivative, got {name}, which has none; {fix}"
        )

    return refuse
