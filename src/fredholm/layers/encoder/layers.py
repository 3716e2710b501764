"""Facts of an encoder layer, the place of each of its parameters in one knot of an evolution, and
the checks of readers.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import ConversionError
from ...registry import qualified_name

# timm's layer normalisation computes what torch's does; it is named, timm need not be there.
TIMM_NORM = "timm.layers.norm.LayerNorm"
# The layers of one encoder block by role; a role's parameters are ``weight`` and perhaps ``bias``.
ROLES = (
    "query",
    "key",
    "value",
    "out",
    "norm1",
    "expand",
    "contract",
    "norm2",
)


@dataclass(frozen=True)
class Slot:
    """Place of a role's parameters in a source layer: names of weight and bias, and which third of
    a packed one.
    """

    weight: str
    bias: str
    third: int | None = None

    def take(self, name: str, layer: nn.Module) -> Tensor | None:
        """Return the parameter ``name`` of a layer, or its third."""
        path, _, leaf = name.rpartition(".")
        tensor = getattr(layer.get_submodule(path), leaf)
        if tensor is None or self.third is None:
            return tensor
        return tensor.chunk(3)[self.third]


class SourceParameter(NamedTuple):
    """One parameter of an encoder layer.

    Attributes:
        role: of its inner layer, one of :data:`ROLES`.
        kind: ``"weight"`` or ``"bias"``.
        value: the tensor, or its third.
        name: its name in the source; of a third ``name[role]``.
    """

    role: str
    kind: str
    value: Tensor
    name: str


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

    def parameters(self) -> Iterator[SourceParameter]:
        """Yield every parameter that is not None."""
        for role in ROLES:
            slot = self.slots[role]
            for kind, name in (("weight", slot.weight), ("bias", slot.bias)):
                tensor = slot.take(name, self.source)
                if tensor is None:
                    continue
                if slot.third is not None:
                    name = f"{name}[{role}]"
                yield SourceParameter(role, kind, tensor, name)


def targets(norm: str) -> dict[str, str]:
    """Return the name of each role's layer within one knot of an evolution."""
    names = {name: f"0.operator.kernel.{name}" for name in ("query", "key", "value")}
    names["out"] = "0.operator.projection"
    if norm == "post":
        network = 2
        names |= {"norm1": "1", "norm2": "3"}
    else:
        network = 1
        names |= {"norm1": "0.norm", "norm2": "1.norm"}
    return names | {"expand": f"{network}.layers.0", "contract": f"{network}.layers.1"}


# --- parts ----------------------------------------------------------------------------------------


def plain(name: str) -> Slot:
    """Return the place of a layer's own weight and bias."""
    return Slot(f"{name}.weight", f"{name}.bias")


def exactly(
    layer: nn.Module,
    name: str,
    first: type,
    *others: type | str,
) -> None:
    """Raise ConversionError unless an inner layer is of one of these classes, or qualified
    names.
    """
    kind = type(layer.get_submodule(name))
    got = qualified_name(kind)
    if kind is not first and kind not in others and got not in others:
        raise ConversionError(
            f"{type(layer).__name__}.{name} is a {got}, only {first.__name__} is understood (not "
            "quantised, not replaced)"
        )


def deterministic(layer: nn.Module, rates: Sequence[float]) -> None:
    """Raise ConversionError where dropout is active."""
    if layer.training and any(rates):
        raise ConversionError(
            f"{type(layer).__name__} is in training mode with dropout {max(rates):g}, and no "
            "evolution draws the same numbers; call .eval() first, or set the rates to 0"
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
    """Return the name of an activation, or a copy of a pointwise module."""
    owner = type(layer).__name__
    if not isinstance(activation, nn.Module):
        if activation in _FUNCTIONS:
            return _FUNCTIONS[activation]
        if _is_gelu_tanh(activation):
            return "gelu_tanh"
        name = getattr(activation, "__name__", repr(activation))
        raise ConversionError(
            f"{owner}: expected a known pointwise activation, got {name}, which is not understood"
        )

    kind = type(activation)
    if kind is nn.GELU and activation.approximate == "tanh":
        return "gelu_tanh"
    if not kind.__module__.startswith(("torch.nn.modules.activation", "transformers.activations")):
        raise ConversionError(
            f"{owner} has the activation {kind.__qualname__}, which is not understood"
        )
    return _CLASSES.get(kind.__name__) or copy.deepcopy(activation)


def _is_gelu_tanh(activation: Any) -> bool:
    return (
        isinstance(activation, functools.partial)
        and activation.func is F.gelu
        and (activation.args, activation.keywords) == ((), {"approximate": "tanh"})
    )


def norm_options(norm: nn.Module | None) -> dict[str, Any] | None:
    """Return the options with which ``torch.nn.LayerNorm`` computes the same as a final norm, or
    None without a norm.

    Raises:
        ConversionError: a norm of another class, a subclass included, whose forward may differ.
    """
    if norm is None:
        return None
    kind = type(norm)
    if kind is not nn.LayerNorm and qualified_name(kind) != TIMM_NORM:
        raise ConversionError(
            f"the final norm is a {kind.__qualname__}; only LayerNorm is understood"
        )
    known: Any = norm
    return {
        "eps": known.eps,
        "elementwise_affine": known.weight is not None,
        "bias": known.bias is not None,
    }
