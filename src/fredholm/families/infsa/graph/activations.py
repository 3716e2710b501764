"""φ of an edge: the three activations of the paper's Table 4, with their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from ....errors import OptionError, suggest
from ....ops.tiles import ACTIVATIONS as POINTWISE
from ....ops.tiles import Activation

ACTIVATIONS: dict[str, Activation] = {
    "relu": POINTWISE["relu"],
    "gelu": POINTWISE["gelu"],
    "abs": Activation(torch.abs, torch.abs_, lambda g, s: g.mul_(s.sign())),
}


def activated(scores: Tensor, activation: str) -> Tensor:
    """φ(scores) for an activation of :data:`ACTIVATIONS`.

    Raises:
        OptionError: an unknown activation.

    Example:
        >>> activated(torch.tensor([-1.0, 2.0]), "abs").tolist()
        [1.0, 2.0]
    """
    return find_activation(activation).function(scores)


def find_activation(name: str) -> Activation:
    """The :class:`Activation` of that name, or an OptionError."""
    if name not in ACTIVATIONS:
        raise OptionError(f"unknown activation {name!r}{suggest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]
