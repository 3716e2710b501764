"""What an encoder layer computes: its facts, where each of its parameters goes in one knot of an
evolution, and what readers of layers check.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import ConversionError
from ...registry import qualified_name

# timm's layer normalisation computes what torch's does; it is named, timm need not be there.
TIMM_NORM = "timm.layers.norm.LayerNorm"
# The layers of one encoder block by role; a role's parameters are ``weight`` and perhaps ``bias``.
ROLES = ("query", "key", "value", "out", "norm1", "expand", "contract", "norm2")


@dataclass(frozen=True)
class Slot:
    """Where the parameters of a role lie in a source layer: names of weight and bias, and which
    third of a packed one.
    """

    weight: str
    bias: str
    third: int | None = None

    def names(self) -> tuple[str, str]:
        return self.weight, self.bias

    def take(self, name: str, layer: nn.Module) -> Tensor | None:
        tensor = _lookup(layer, name)
        return tensor if tensor is None or self.third is None else tensor.chunk(3)[self.third]


@dataclass(frozen=True, eq=False)
class Layer:
    """An encoder layer as :func:`from_encoder` understands it.

    Attributes:
        source: the layer itself.
        dim, heads, hidden: widths and heads.
        activation: a name that FeedForwardTerm knows, or a module.
        norm: ``"post"`` or ``"pre"``.
        eps: ε of the first and the second normalisation.
        slots: role to place of its parameters.
    """

    source: nn.Module
    dim: int
    heads: int
    hidden: int
    activation: str | nn.Module
    norm: str
    eps: tuple[float, float]
    slots: dict[str, Slot]

    def parameters(self) -> Iterator[tuple[str, str, Tensor, str]]:
        """(role, ``weight`` or ``bias``, value, name in the source) of every parameter that is not
        None.
        """
        for role in ROLES:
            for kind, name in zip(("weight", "bias"), self.slots[role].names()):
                tensor = self.slots[role].take(name, self.source)
                if tensor is not None:
                    third = self.slots[role].third
                    yield role, kind, tensor, name if third is None else f"{name}[{role}]"


def targets(norm: str) -> dict[str, str]:
    """Role to the name of its layer within one knot of an evolution."""
    attention = {name: f"0.operator.kernel.{name}" for name in ("query", "key", "value")} | {
        "out": "0.operator.projection"
    }
    network = 2 if norm == "post" else 1
    norms = (
        {"norm1": "1", "norm2": "3"} if norm == "post" else {"norm1": "0.norm", "norm2": "1.norm"}
    )
    return attention | norms | {"expand": f"{network}.layers.0", "contract": f"{network}.layers.1"}


# --- parts ----------------------------------------------------------------------------------------


def plain(name: str) -> Slot:
    """A layer's weight and bias."""
    return Slot(f"{name}.weight", f"{name}.bias")


def _lookup(module: nn.Module, name: str) -> Tensor | None:
    path, _, leaf = name.rpartition(".")
    return getattr(module.get_submodule(path), leaf)


def exactly(layer: nn.Module, name: str, first: type, *others: type | str) -> None:
    """ConversionError unless an inner layer is of one of these classes, or qualified names."""
    part = layer.get_submodule(name)
    got, need = qualified_name(type(part)), first.__name__
    if type(part) is not first and type(part) not in others and got not in others:
        raise ConversionError(
            f"{type(layer).__name__}.{name} is a {got}, only {need} is understood (not quantised, "
            "not replaced)"
        )


def deterministic(layer: nn.Module, rates: tuple[float, ...]) -> None:
    """ConversionError where dropout is active."""
    if layer.training and any(rates):
        what = f"{type(layer).__name__} is in training mode with dropout {max(rates):g}"
        raise ConversionError(
            f"{what}, and no evolution draws the same numbers; call .eval() first, or set the "
            "rates to 0"
        )


_FUNCTIONS: dict[Any, str] = {
    F.relu: "relu",
    torch.relu: "relu",
    F.gelu: "gelu",
    F.silu: "silu",
    torch.tanh: "tanh",
}
_CLASSES = {
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Tanh": "tanh",
    "GELUActivation": "gelu",
    "SiLUActivation": "silu",
}


def read_activation(activation: Any, layer: nn.Module) -> str | nn.Module:
    """A name, or a copy of a pointwise module."""
    if not isinstance(activation, nn.Module):
        if activation in _FUNCTIONS:
            return _FUNCTIONS[activation]
        if _is_gelu_tanh(activation):
            return "gelu_tanh"
        name = getattr(activation, "__name__", repr(activation))
        raise ConversionError(
            f"{type(layer).__name__} has the activation {name}, which is no known pointwise "
            "function"
        )
    kind = type(activation)
    if kind is nn.GELU and activation.approximate == "tanh":
        return "gelu_tanh"
    if not kind.__module__.startswith(("torch.nn.modules.activation", "transformers.activations")):
        raise ConversionError(
            f"{type(layer).__name__} has the activation {kind.__qualname__}, which is not "
            "understood"
        )
    return _CLASSES.get(kind.__name__) or copy.deepcopy(activation)


def _is_gelu_tanh(activation: Any) -> bool:
    return (
        isinstance(activation, functools.partial)
        and activation.func is F.gelu
        and (activation.args, activation.keywords) == ((), {"approximate": "tanh"})
    )


def norm_options(norm: nn.Module | None) -> dict[str, Any] | None:
    """What a layer normalisation of the same kind takes."""
    if norm is None:
        return None
    kind = qualified_name(type(norm))
    if type(norm) is not nn.LayerNorm and kind != TIMM_NORM:
        raise ConversionError(
            f"the final norm is a {type(norm).__qualname__}; only LayerNorm is understood"
        )
    known: Any = norm
    affine, bias = known.weight is not None, known.bias is not None
    return {"eps": known.eps, "elementwise_affine": affine, "bias": bias}
