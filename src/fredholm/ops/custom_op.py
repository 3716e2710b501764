"""Registration of a custom op: schema, implementation, shapes, autograd, FLOPs, and a refusal by
name of every derivative that it does not have.

torch's own answer to a missing derivative depends on who asks. A second backward ends in a bare
RuntimeError. Forward mode is worse: torch 2.13 has no forward-mode rule for custom ops and drops
their tangents, so that ``torch.func.jvp`` returns zeros. Here both raise a
:class:`~fredholm.errors.DerivativeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..errors import DerivativeError
from .backend import Op, guarded_call, spread


def custom_op(
    name: str,
    schema: str,
    forward: Callable[..., Any],
    *,
    fake: Callable[..., Any],
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
        flops: from the arguments with a shape in the place of every tensor; none are counted
            without it.
        setup_context, backward: as :func:`torch.library.register_autograd` takes them. An op
            without them refuses to be differentiated.

    Raises:
        DerivativeError: when the op is called, under ``torch.func.grad``, ``jvp`` and what is built
            on them, or with tangents of :mod:`torch.autograd.forward_ad`; in a backward pass
            through an op without one. Compiled code traces past the first check.

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
    op = torch.library.custom_op(full_name, forward, mutates_args=(), schema=schema)
    op.register_fake(fake)
    if backward is None:
        op.register_autograd(_refusal(full_name))
    else:
        op.register_autograd(backward, setup_context=setup_context)
    if flops is not None:
        formula = flops
        register_flop_formula(getattr(torch.ops.fredholm, name))(
            lambda *arguments, out_shape=None, **_: formula(*arguments)
        )

    return guarded_call(full_name, op)


def differentiable_op(
    name: str,
    *,
    tensors: str,
    options: str,
    forward: Callable[..., Any],
    backward: Callable[..., list[Tensor]],
    fake: Callable[..., Any],
    fake_gradients: Callable[..., list[Tensor]] | None = None,
    gradients_of: Sequence[str] = ("grad",),
    flops: tuple[Callable[..., int], Callable[..., int]],
) -> Op:
    """Register ``fredholm::name`` together with ``fredholm::name_backward``, its gradient as an op
    of its own, and return the function that calls the former.

    The backward op takes the gradients of the results, all arguments of the op, and ``needs``: for
    every tensor, those of lists spread out, whether its gradient is wanted. It returns the wanted
    ones in that order, and is not differentiable itself.

    Args:
        tensors, options: the two parts of the schema, ``"Tensor x, Tensor? y, Tensor[] z"`` and
            ``"int n"``. The op saves all its tensors for the backward and none of its results.
        forward: of tensors and options; returns a tensor for each name of ``gradients_of``.
        backward: of gradients, tensors, options and ``needs``.
        fake, fake_gradients: both without values; by default gradients are laid out contiguously.
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

    backward_op = custom_op(
        f"{name}_backward",
        f"({above}, {tensors}, {options}, bool[] needs) -> Tensor[]",
        backward,
        fake=fake_gradients or contiguous_gradients,
        flops=flops[1],
    )

    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.save_for_backward(*spread(inputs[:count]))
        # the length of every list of tensors, None for a tensor by itself
        ctx.lengths = [len(x) if isinstance(x, (list, tuple)) else None for x in inputs[:count]]
        ctx.options = inputs[count:]

    def gradients(ctx: Any, *grads: Tensor) -> tuple:
        needs = [bool(needed) for needed in spread(ctx.needs_input_grad[:count])]
        inputs = _gathered(iter(ctx.saved_tensors), ctx.lengths)
        wanted = iter(backward_op(*grads, *inputs, *ctx.options, needs))
        every = iter([next(wanted) if needed else None for needed in needs])
        return *_gathered(every, ctx.lengths), *(None for _ in ctx.options)

    return custom_op(
        name,
        f"({tensors}, {options}) -> {results}",
        forward,
        fake=fake,
        flops=flops[0],
        setup_context=setup_context,
        backward=gradients,
    )


def _refusal(name: str) -> Callable[..., tuple]:
    def refuse(ctx: Any, *grads: Any) -> tuple:
        raise DerivativeError(
            f"{name} has no derivative: "
            + (
                "the gradient of fredholm's op cannot be differentiated again; take the op's plain "
                "form (its naive function, or a dense kernel) where second derivatives are needed"
                if name.endswith("_backward")
                else "detach its arguments"
            )
        )

    return refuse


def _gathered(values: Iterator[Any], lengths: Sequence[int | None]) -> list[Any]:
    """The inverse of :func:`.spread`: a list of ``values`` wherever there is a length."""
    return [next(values) if n is None else [next(values) for _ in range(n)] for n in lengths]
