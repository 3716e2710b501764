"""Activations with the in-place forms that a tile of hidden units needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import OptionError, suggest

aten = torch.ops.aten


@dataclass(frozen=True)
class Activation:
    """A pointwise nonlinearity.

    Attributes:
        function: the nonlinearity, differentiable by autograd.
        apply_: overwrites its argument with the nonlinearity's value.
        gradient_: ``gradient_(grad, s)`` overwrites ``grad`` with ``grad * f'(s)``; ``s`` is left
            alone.
    """

    function: Callable[[Tensor], Tensor]
    apply_: Callable[[Tensor], object]
    gradient_: Callable[[Tensor, Tensor], object]


def _gelu(approximate: str) -> Activation:
    return Activation(
        lambda x: F.gelu(x, approximate=approximate),
        lambda x: aten.gelu_(x, approximate=approximate),
        lambda g, s: aten.gelu_backward.grad_input(g, s, approximate=approximate, grad_input=g),
    )


ACTIVATIONS: dict[str, Activation] = {
    "gelu": _gelu("none"),
    "gelu_tanh": _gelu("tanh"),
    "relu": Activation(
        torch.relu,
        torch.relu_,
        lambda g, s: aten.threshold_backward.grad_input(g, s, 0.0, grad_input=g),
    ),
    "silu": Activation(
        F.silu, aten.silu_, lambda g, s: aten.silu_backward.grad_input(g, s, grad_input=g)
    ),
    "tanh": Activation(
        torch.tanh,
        torch.tanh_,
        lambda g, s: aten.tanh_backward.grad_input(g, torch.tanh(s), grad_input=g),
    ),
    "sin": Activation(torch.sin, torch.sin_, lambda g, s: g.mul_(torch.cos(s))),
}


def find_activation(name: str) -> Activation:
    """The :class:`Activation` called ``name``.

    Raises:
        OptionError: where there is none of that name.

    Example:
        >>> find_activation("relu").function(torch.tensor([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    if name not in ACTIVATIONS:
        raise OptionError(f"unknown activation {name!r}{suggest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]
