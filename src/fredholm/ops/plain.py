"""Derivatives through a function's plain form: the same function in torch's differentiable
operations.

What is fast has one derivative, its own. All others (forward mode, what ``torch.func`` takes, the
derivative of a derivative) are those of the plain form, which is computed again for them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .backend import spread, transforms

Function = Callable[..., Any]
FUSED = "ScaledDotProduct"  # torch's nodes of fused attention; the composite form has none


def vjp(
    plain: Function, arguments: Sequence[Any], needs: Sequence[bool], grads: Sequence[Tensor]
) -> list[Tensor]:
    """Gradients of ``plain(*arguments)`` for ``grads`` of its results, differentiable themselves
    where autograd records.

    Args:
        plain: returns a tensor or several.
        arguments: of it; the elements of lists count one by one in ``needs``.
        needs: whether the gradient of each is wanted; those at the end may be left out.
        grads: one for each result.

    Returns:
        The wanted ones in order, zeros where no result depends on them.

    Example:
        >>> x = torch.tensor([2.0], requires_grad=True)
        >>> (g,) = vjp(lambda x: x**3, [x], [True], [torch.ones(1)])
        >>> g.item(), torch.autograd.grad(g, x)[0].item()
        (12.0, 12.0)
    """
    again, flat = torch.is_grad_enabled(), spread(arguments)
    wanted = [i for i, needed in enumerate(needs) if needed]
    with torch.enable_grad():
        for i in wanted:  # aliases, because one tensor given twice has two gradients
            x = flat[i]
            flat[i] = x.view_as(x) if again and x.requires_grad else x.detach().requires_grad_()
        inputs = [flat[i] for i in wanted]
        results = plain(*gathered(iter(flat), lengths(arguments)))
        results = [results] if isinstance(results, Tensor) else results
        pairs = [(y, g) for y, g in zip(results, grads) if y.requires_grad]
        result: Sequence[Tensor | None] = [None] * len(inputs)
        if pairs and inputs:
            outputs, above = zip(*pairs)
            result = torch.autograd.grad(
                outputs, inputs, above, create_graph=again, allow_unused=True
            )
        return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, result)]


def recomputed(function: Function, *arguments: Any) -> Any:
    """``function(*arguments)``, whose intermediate results are computed again in the backward and
    not kept; under the transforms of ``torch.func``, which have no rule for that, they are kept.

    Example:
        >>> torch.func.grad(lambda x: recomputed(torch.sin, x))(torch.zeros(())).item()
        1.0
    """
    if transforms():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False)


# --- arguments with lists of tensors among them ---------------------------------------------------


def lengths(arguments: Sequence[Any]) -> list[int | None]:
    """The length of every list, None for what is not one."""
    return [len(x) if isinstance(x, (list, tuple)) else None for x in arguments]


def gathered(values: Iterator[Any], lengths: Sequence[int | None]) -> list[Any]:
    """The inverse of :func:`.spread`: a list of ``values`` wherever there is a length."""
    return [next(values) if n is None else [next(values) for _ in range(n)] for n in lengths]


# --- second derivatives of what is not an op of ours ----------------------------------------------


def differentiable_again(fast: Function, plain: Function, *tensors: Tensor | None) -> Tensor:
    """``fast(*tensors)`` with the gradient that it records, and all further derivatives those of
    ``plain(*tensors)``.

    Example:
        >>> x = torch.tensor(2.0, requires_grad=True)
        >>> y = differentiable_again(lambda x: x.detach() ** 2 * x * 3 - 2 * x.detach() ** 3,
        ...                          lambda x: x**3, x)
        >>> (g,) = torch.autograd.grad(y, x, create_graph=True)
        >>> y.item(), g.item(), torch.autograd.grad(g, x)[0].item()
        (8.0, 12.0, 12.0)
    """
    return _Again.apply(fast, plain, *tensors) if torch.is_grad_enabled() else fast(*tensors)


class _Again(torch.autograd.Function):
    """Keeps the graph of the fast form for the first derivative, and the tensors for the plain
    one.
    """

    @staticmethod
    def forward(ctx: Any, fast: Function, plain: Function, *tensors: Tensor | None) -> Tensor:
        with torch.enable_grad():
            own = [
                None if x is None else x.detach().requires_grad_(x.requires_grad) for x in tensors
            ]
            out = fast(*own)
        ctx.save_for_backward(*tensors)
        ctx.plain, ctx.graph = plain, (out, own)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        needs = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            result = vjp(ctx.plain, ctx.saved_tensors, needs, grads)
        else:
            out, own = ctx.graph
            inputs = [x for x, needed in zip(own, needs) if needed]
            result = torch.autograd.grad(out, inputs, grads, retain_graph=True, allow_unused=True)
        wanted = iter(result)
        return None, None, *(next(wanted) if needed else None for needed in needs)


def attention_differentiable_again(out: Tensor, plain: Function, *tensors: Tensor | None) -> None:
    """Let the gradient of torch's fused attention be that of ``plain(*tensors)`` where it is to be
    differentiated again; torch's own is not. Nothing is kept or computed for it before that.

    Args:
        out: what the fused attention returned.
        plain: the same function.
        tensors: query, key, value, and a bias or None. Where a checkpoint has dropped them, torch
            raises its own error.
    """
    node: Any = out.grad_fn
    if node is not None and FUSED not in node.name():  # some devices pad features, and cut the rest
        node = node.next_functions[0][0] if node.next_functions else None
    if node is None or FUSED not in node.name():
        return
    width = out.shape[-1]
    kept = [None if x is None else weakref.ref(x) for x in tensors]

    def hook(gradients: tuple, grads: tuple) -> tuple | None:
        if not torch.is_grad_enabled():
            return None
        given = [None if ref is None else ref() for ref in kept]
        if any(x is None and ref is not None for x, ref in zip(given, kept)):
            return None
        needs = [g is not None for g in gradients][: len(given)]
        result = iter(vjp(plain, given, needs, [grads[0][..., :width]]))
        new = [next(result) if needed else None for needed in needs]
        sized = [
            x if x is None else F.pad(x, (0, g.shape[-1] - x.shape[-1]))
            for x, g in zip(new, gradients)
        ]
        return *sized, *gradients[len(sized) :]

    node.register_hook(hook)
