"""Registration of a custom op: schema, implementation, shapes, autograd, FLOPs, and the derivatives
that it has no rule for, through its plain form.

torch's own answer to a missing derivative depends on who asks. A second backward ends in a bare
RuntimeError. Forward mode is worse: torch 2.13 has no forward-mode rule for custom ops and drops
their tangents, so that ``torch.func.jvp`` returns zeros. Here the op's plain form, the same
function in torch's own operations, stands in for the op under such transforms, and is what is
differentiated a second time. An op without one raises a
:class:`~fredholm.errors.DerivativeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..errors import DerivativeError
from .backend import Op, guarded_call, spread
from .plain import gathered, lengths, vjp

PLAIN: dict[str, Callable[..., Any]] = {}
"""The plain form of each op that has one, by the op's name in ``torch.ops.fredholm``: programs for
other runtimes, which know none of our ops, are made of these.
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

    Args:
        name: within the namespace; ``torch.ops.fredholm.<name>`` is the op itself.
        schema: of its arguments and results, ``"(Tensor x, int n) -> Tensor"``. No argument is
            written to.
        forward: the implementation, which sees plain tensors.
        fake: the same without values, for tracing.
        plain: the same in torch's differentiable operations, as memory-hungry as they are. It runs
            in the op's place where ``torch.func`` or forward mode differentiate and where a
            backward is of several gradients at once, and is the derivative of an op without
            ``backward``.
        flops: from the arguments with a shape in the place of every tensor; none are counted
            without it.
        setup_context, backward: as :func:`torch.library.register_autograd` takes them.

    ``torch.func.vmap`` by itself calls the op once for each element.

    Raises:
        DerivativeError: where there is no ``plain``: when the op is called, under
            ``torch.func.grad``, ``jvp`` and what is built on them, with tangents of
            :mod:`torch.autograd.forward_ad`, or by a backward with ``is_grads_batched=True``; in a
            backward pass through an op that has no ``backward`` either.

    Example:
        >>> schema = "(Tensor x) -> Tensor"
        >>> double = custom_op("example_double", schema, lambda x: 2 * x, fake=torch.empty_like)
        >>> double(torch.ones(2)).tolist()
        [2.0, 2.0]
        >>> double(torch.ones(2, requires_grad=True)).sum().backward()
        Traceback (most recent call last):
        fredholm.errors.DerivativeError: fredholm::example_double has no derivative: ...
    """
    full_name = f"fredholm::{name}"
    if plain is not None:
        PLAIN[name] = plain
    op = torch.library.custom_op(full_name, forward, mutates_args=(), schema=schema)
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
    """Register ``fredholm::name`` together with ``fredholm::name_backward``, its gradient as an op
    of its own, and return the function that calls the former.

    The backward op takes the gradients of the results, all arguments of the op, and ``needs``: for
    every tensor, those of lists spread out, whether its gradient is wanted. It returns the wanted
    ones in that order. Its own derivative is that of the plain form's gradient.

    Args:
        tensors, options: the two parts of the schema, ``"Tensor x, Tensor? y, Tensor[] z"`` and
            ``"int n"``. The op saves all its tensors for the backward and none of its results.
        forward: of tensors and options; returns a tensor for each name of ``gradients_of``.
        backward: of gradients, tensors, options and ``needs``.
        fake, fake_gradients: both without values; by default gradients are laid out contiguously.
        plain: the op in torch's differentiable operations, for all derivatives but the first, see
            :func:`custom_op`.
        gradients_of: names of the backward op's first arguments.
        flops: of the op and of its backward, see :func:`custom_op`.

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
    results = ", ".join("Tensor" for _ in gradients_of)
    if len(gradients_of) > 1:
        results = f"({results})"
    above = ", ".join(f"Tensor {grad}" for grad in gradients_of)
    count = len(tensors.split(", "))

    def contiguous_gradients(*arguments: Any) -> list[Tensor]:
        given = spread(arguments[len(gradients_of) :][:count])
        return [x.new_empty(x.shape) for x, needed in zip(given, arguments[-1]) if needed]

    def plain_gradients(*arguments: Any) -> list[Tensor]:
        assert plain is not None
        split = len(gradients_of)
        return vjp(plain, arguments[split:-1], arguments[-1], arguments[:split])

    backward_op = custom_op(
        f"{name}_backward",
        f"({above}, {tensors}, {options}, bool[] needs) -> Tensor[]",
        backward,
        fake=fake_gradients or contiguous_gradients,
        plain=None if plain is None else plain_gradients,
        flops=flops[1],
    )

    def gradients(ctx: Any, *grads: Tensor) -> tuple:
        inputs = _saved_inputs(ctx)
        needs = [bool(needed) for needed in spread(ctx.needs_input_grad[:count])]
        wanted = iter(backward_op(*grads, *inputs, needs))
        flat = iter([next(wanted) if needed else None for needed in needs])
        return *gathered(flat, lengths(inputs[:count])), *(None for _ in inputs[count:])

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


# --- arguments kept for a backward ----------------------------------------------------------------


def _save_inputs(ctx: Any, inputs: tuple, output: Any) -> None:
    flat = spread(inputs)
    ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in flat))
    ctx.others = [None if isinstance(x, Tensor) else x for x in flat]
    ctx.lengths = lengths(inputs)


def _saved_inputs(ctx: Any) -> list[Any]:
    flat = (x if x is not None else y for x, y in zip(ctx.saved_tensors, ctx.others))
    return gathered(flat, ctx.lengths)


# --- derivatives through the plain form -----------------------------------------------------------


def _backward_of(plain: Callable[..., Any], ctx: Any, *grads: Any) -> tuple:
    """The backward of an op whose derivative is its plain form's."""
    arguments = _saved_inputs(ctx)
    needs = [
        isinstance(x, Tensor) and bool(needed)
        for x, needed in zip(spread(arguments), _spread_needs(ctx.needs_input_grad, arguments))
    ]
    # the gradients of a list of results come as one list
    result = iter(vjp(plain, arguments, needs, spread(grads)))
    flat = iter([next(result) if needed else None for needed in needs])
    parts = gathered(flat, ctx.lengths)
    return tuple(None if _is_option(x) else part for x, part in zip(arguments, parts))


def _spread_needs(needs: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """One entry for every element of ``spread(arguments)``: a list of options has one for all."""
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
    """Whether an argument is no tensor and no list of tensors; an empty list may be one."""
    return not (isinstance(x, (list, tuple)) and not x) and not any(
        isinstance(part, Tensor) for part in spread([x])
    )


def _one_by_one(op: Op, info: Any, in_dims: tuple, *arguments: Any) -> tuple[Any, Any]:
    """The rule of ``vmap``: the op of each element, so that memory stays that of the op."""
    dims = _spread_needs(in_dims, arguments)
    results = []
    for i in range(info.batch_size):
        flat = (x if d is None else x.select(d, i) for x, d in zip(spread(arguments), dims))
        results.append(op(*gathered(flat, lengths(arguments))))
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    stacked = [torch.stack(parts) for parts in zip(*results)]
    kind = type(results[0])
    return kind(stacked), kind([0] * len(stacked))


# --- refusals -------------------------------------------------------------------------------------


def _refusal(name: str) -> Callable[..., tuple]:
    def refuse(ctx: Any, *grads: Any) -> tuple:
        raise DerivativeError(
            f"{name} has no derivative: "
            + (
                "the gradient of fredholm's op cannot be differentiated again; register the op "
                "with plain=, the same in torch's operations, where second derivatives are needed"
                if name.endswith("_backward")
                else "detach its arguments"
            )
        )

    return refuse
