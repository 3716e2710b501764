"""Derivatives through a function's plain form: the same function in torch's differentiable
operations.

A fast implementation has one derivative, its own first one. All others (forward mode, the
transforms of ``torch.func``, derivatives of derivatives) are those of the plain form, which is
evaluated for them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .backend import flat_arguments, transforms

Function = Callable[..., Any]

FUSED = "ScaledDotProduct"
"""Part of the names of torch's autograd nodes for fused attention. Its composite form has none."""


def vjp(
    plain: Function,
    arguments: Sequence[Any],
    needs: Sequence[bool],
    grads: Sequence[Tensor],
) -> list[Tensor]:
    """Return the vector-Jacobian products of ``plain`` at ``arguments`` with ``grads``.

    They are differentiable themselves where autograd records.

    Args:
        plain: returns a tensor or several.
        arguments: its arguments, among them lists of tensors.
        needs: for each argument, and for each element of a list, whether its gradient is wanted.
            Entries at the end may be left out.
        grads: one gradient per result.

    Returns:
        The wanted gradients in order; zeros where no result depends on the argument.

    Example:
        >>> x = torch.tensor([2.0], requires_grad=True)
        >>> (g,) = vjp(lambda x: x**3, [x], [True], [torch.ones(1)])
        >>> g.item(), torch.autograd.grad(g, x)[0].item()
        (12.0, 12.0)
    """
    recording = torch.is_grad_enabled()
    flat = flat_arguments(arguments)
    wanted = [i for i, needed in enumerate(needs) if needed]

    with torch.enable_grad():
        # Aliases of the wanted arguments: a tensor that is passed twice has two gradients.
        for i in wanted:
            x = flat[i]
            if recording and x.requires_grad:
                flat[i] = x.view_as(x)
            else:
                flat[i] = x.detach().requires_grad_()
        inputs = [flat[i] for i in wanted]

        results = plain(*nested_arguments(iter(flat), list_lengths(arguments)))
        if isinstance(results, Tensor):
            results = [results]

        # autograd.grad refuses results that depend on none of the inputs.
        outputs = []
        output_grads = []
        for result, grad in zip(results, grads):
            if result.requires_grad:
                outputs.append(result)
                output_grads.append(grad)
        gradients: Sequence[Tensor | None] = [None] * len(inputs)
        if outputs and inputs:
            gradients = torch.autograd.grad(
                outputs,
                inputs,
                output_grads,
                create_graph=recording,
                allow_unused=True,
            )
        return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients)]


def recomputed(function: Function, *arguments: Any) -> Any:
    """Return ``function(*arguments)`` and compute its intermediate results again in the backward.

    Under the transforms of ``torch.func``, for which checkpoints have no rule, intermediate results
    are stored.

    Example:
        >>> torch.func.grad(lambda x: recomputed(torch.sin, x))(torch.zeros(())).item()
        1.0
    """
    if transforms():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False)


# --- arguments with lists of tensors among them ---------------------------------------------------


def list_lengths(arguments: Sequence[Any]) -> list[int | None]:
    """Return the length of each list among the arguments, and None for each other argument.

    Example:
        >>> list_lengths(["a", ["b", "c"]])
        [None, 2]
    """
    return [len(x) if isinstance(x, (list, tuple)) else None for x in arguments]


def nested_arguments(values: Iterator[Any], lengths: Sequence[int | None]) -> list[Any]:
    """Undo :func:`.flat_arguments`: put values into lists wherever there is a length.

    Example:
        >>> nested_arguments(iter("abc"), [None, 2])
        ['a', ['b', 'c']]
    """
    nested: list[Any] = []
    for length in lengths:
        if length is None:
            nested.append(next(values))
        else:
            nested.append([next(values) for _ in range(length)])
    return nested


def in_places(wanted: Iterable[Any], needs: Sequence[bool]) -> list[Any]:
    """Return the wanted values where they are needed, and None in the other places.

    Example:
        >>> in_places(["a", "b"], [True, False, True])
        ['a', None, 'b']
    """
    values = iter(wanted)
    return [next(values) if needed else None for needed in needs]


# --- second derivatives of functions that are not ops of ours -------------------------------------


def differentiable_again(
    fast: Function,
    plain: Function,
    *tensors: Tensor | None,
) -> Tensor:
    """Return ``fast(*tensors)`` with its own first derivative; further ones are those of ``plain``.

    Args:
        fast: returns a tensor, and records a first derivative.
        plain: the same function, differentiable any number of times.
        tensors: their arguments.

    Example:
        >>> x = torch.tensor(2.0, requires_grad=True)
        >>> y = differentiable_again(lambda x: x.detach() ** 2 * x * 3 - 2 * x.detach() ** 3,
        ...                          lambda x: x**3, x)
        >>> (g,) = torch.autograd.grad(y, x, create_graph=True)
        >>> y.item(), g.item(), torch.autograd.grad(g, x)[0].item()
        (8.0, 12.0, 12.0)
    """
    if not torch.is_grad_enabled():
        return fast(*tensors)
    return _DifferentiableAgain.apply(fast, plain, *tensors)


class _DifferentiableAgain(torch.autograd.Function):
    """A node with two backward passes: through the graph of the fast form, and by the plain form.

    A backward that is recorded (``create_graph=True``) takes the plain form.
    """

    @staticmethod
    def forward(
        ctx: Any,
        fast: Function,
        plain: Function,
        *tensors: Tensor | None,
    ) -> Tensor:
        # The fast form records its own graph, on leaves outside the caller's graph.
        with torch.enable_grad():
            leaves: list[Tensor | None] = []
            for x in tensors:
                leaf = None
                if x is not None:
                    leaf = x.detach().requires_grad_(x.requires_grad)
                leaves.append(leaf)
            out = fast(*leaves)

        ctx.save_for_backward(*tensors)
        ctx.plain = plain
        ctx.out = out
        ctx.leaves = leaves
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        needs = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            gradients = vjp(ctx.plain, ctx.saved_tensors, needs, grads)
        else:
            # The graph of the fast form ends at the leaves, not at the caller's tensors.
            inputs = [x for x, needed in zip(ctx.leaves, needs) if needed]
            gradients = torch.autograd.grad(
                ctx.out,
                inputs,
                grads,
                retain_graph=True,
                allow_unused=True,
            )

        # ``fast`` and ``plain`` are the first two arguments of the node.
        return None, None, *in_places(gradients, needs)


def attention_differentiable_again(
    out: Tensor,
    plain: Function,
    *tensors: Tensor | None,
) -> None:
    """Give the result of torch's fused attention the second derivatives of ``plain(*tensors)``.

    Its own gradient cannot be differentiated. A hook on its node replaces that gradient by the
    plain form's in a backward that is recorded. Until then nothing is stored or computed.

    Args:
        out: the result of the fused attention.
        plain: the same function.
        tensors: query, key, value, and a bias or None. Where a checkpoint has dropped them, torch
            raises its own error.
    """
    node = _fused_node(out)
    if node is None:
        return
    width = out.shape[-1]
    # Weak references, so that the hook keeps nothing alive: a checkpoint drops these tensors.
    references = [None if x is None else weakref.ref(x) for x in tensors]

    def hook(gradients: tuple, output_grads: tuple) -> tuple | None:
        if not torch.is_grad_enabled():
            return None
        alive: list[Tensor | None] = []
        for reference in references:
            x = None
            if reference is not None:
                x = reference()
                if x is None:
                    return None
            alive.append(x)

        # The node returns further entries, such as that of dropout's state.
        of_tensors = gradients[: len(alive)]
        others = gradients[len(alive) :]
        needs = [g is not None for g in of_tensors]
        # Some devices pad the features, so the node's output may be wider than ``out``.
        wanted = vjp(
            plain,
            alive,
            needs,
            [output_grads[0][..., :width]],
        )
        replaced = []
        for x, g in zip(in_places(wanted, needs), of_tensors):
            if x is not None:
                x = F.pad(x, (0, g.shape[-1] - x.shape[-1]))
            replaced.append(x)
        return *replaced, *others

    node.register_hook(hook)


def _fused_node(out: Tensor) -> Any:
    """Return the autograd node of fused attention behind ``out``, or None.

    On devices that pad the features a slice follows the attention, and the node lies one behind.
    """
    node: Any = out.grad_fn
    if node is None:
        return None
    if FUSED in node.name():
        return node
    if not node.next_functions:
        return None
    behind, _ = node.next_functions[0]
    if behind is None or FUSED not in behind.name():
        return None
    return behind
