"""What a known encoder layer computes: its facts, and where each of its parameters goes in one knot
of an evolution.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import ConversionError, suggest

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


# --- readers, one a class -------------------------------------------------------------------------


def _torch_layer(layer: Any) -> Layer:
    attention = layer.self_attn
    _exactly(layer, "self_attn", nn.MultiheadAttention)
    _exactly(
        layer, "self_attn.out_proj", nn.modules.linear.NonDynamicallyQuantizableLinear, nn.Linear
    )
    for name in ("linear1", "linear2"):
        _exactly(layer, name, nn.Linear)
    for name in ("norm1", "norm2"):
        _exactly(layer, name, nn.LayerNorm)
    if not attention._qkv_same_embed_dim or attention.bias_k is not None or attention.add_zero_attn:
        raise ConversionError(
            "TransformerEncoderLayer with kdim, vdim, bias_kv or add_zero_attn is not understood"
        )
    slots = {
        role: Slot("self_attn.in_proj_weight", "self_attn.in_proj_bias", third)
        for third, role in enumerate(("query", "key", "value"))
    }
    places = {
        "out": "self_attn.out_proj",
        "expand": "linear1",
        "contract": "linear2",
        "norm1": "norm1",
        "norm2": "norm2",
    }
    rates = (attention.dropout, layer.dropout.p, layer.dropout1.p, layer.dropout2.p)
    _deterministic(layer, rates)
    return Layer(
        source=layer,
        dim=attention.embed_dim,
        heads=attention.num_heads,
        hidden=layer.linear1.out_features,
        activation=_activation(layer.activation, layer),
        norm="pre" if layer.norm_first else "post",
        eps=(layer.norm1.eps, layer.norm2.eps),
        slots=slots | {role: _plain(name) for role, name in places.items()},
    )


def _vit_layer(layer: Any) -> Layer:
    attention, network = layer.attention, layer.mlp
    _deterministic(layer, (attention.attention_dropout, layer.dropout.p))
    places = {
        "query": "attention.q_proj",
        "key": "attention.k_proj",
        "value": "attention.v_proj",
        "out": "attention.o_proj",
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "expand": "mlp.fc1",
        "contract": "mlp.fc2",
    }
    return _hugging_face(layer, places, attention.num_attention_heads, network.activation_fn, "pre")


def _bert_layer(layer: Any) -> Layer:
    if layer.is_decoder or layer.add_cross_attention:
        raise ConversionError(
            "BertLayer as a decoder or with cross-attention is not understood; convert an encoder "
            "layer"
        )
    attention = layer.attention.self
    _deterministic(
        layer, (attention.dropout.p, layer.attention.output.dropout.p, layer.output.dropout.p)
    )
    places = {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "out": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "expand": "intermediate.dense",
        "contract": "output.dense",
        "norm2": "output.LayerNorm",
    }
    activation = layer.intermediate.intermediate_act_fn
    return _hugging_face(layer, places, attention.num_attention_heads, activation, "post")


def _hugging_face(
    layer: nn.Module, places: dict[str, str], heads: int, activation, norm: str
) -> Layer:
    for role, name in places.items():
        _exactly(layer, name, nn.LayerNorm if role.startswith("norm") else nn.Linear)
    found: dict[str, Any] = {role: layer.get_submodule(name) for role, name in places.items()}
    query = found["query"]
    if query.out_features != query.in_features:
        widths = f"{query.in_features} to {query.out_features}"
        raise ConversionError(
            f"{type(layer).__name__} with heads that do not split the width ({widths}) is not "
            "understood"
        )
    return Layer(
        source=layer,
        dim=query.in_features,
        heads=heads,
        hidden=found["expand"].out_features,
        activation=_activation(activation, layer),
        norm=norm,
        eps=(found["norm1"].eps, found["norm2"].eps),
        slots={role: _plain(name) for role, name in places.items()},
    )


READERS: dict[str, Callable[[Any], Layer]] = {
    "torch.nn.modules.transformer.TransformerEncoderLayer": _torch_layer,
    "transformers.models.vit.modeling_vit.ViTLayer": _vit_layer,
    "transformers.models.bert.modeling_bert.BertLayer": _bert_layer,
}


def read_layer(layer: nn.Module) -> Layer:
    """The facts of a layer of a known class; a ConversionError for anything that is
    not understood.
    """
    kind = type(layer)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name not in READERS:
        for base in kind.__mro__[1:]:
            if f"{base.__module__}.{base.__qualname__}" in READERS:
                raise ConversionError(
                    f"{name} is a subclass of {base.__name__} whose response is not known"
                )
        short = [known.rsplit(".", 1)[-1] for known in READERS]
        raise ConversionError(
            f"{name} is not an encoder layer that is understood{suggest(kind.__name__, short)}"
        )
    for part_name, part in layer.named_modules():
        where = f"{kind.__name__}.{part_name}" if part_name else kind.__name__
        if nn.utils.parametrize.is_parametrized(part):
            raise ConversionError(
                f"{where} has parametrised weights; call remove_parametrizations on a copy first"
            )
        if any(
            getattr(part, hooks)
            for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
        ):
            raise ConversionError(
                f"{where} has hooks, which an evolution would not run; remove them first"
            )
    return READERS[name](layer)


# --- parts ----------------------------------------------------------------------------------------


def _plain(name: str) -> Slot:
    return Slot(f"{name}.weight", f"{name}.bias")


def _lookup(module: nn.Module, name: str) -> Tensor | None:
    path, _, leaf = name.rpartition(".")
    return getattr(module.get_submodule(path), leaf)


def _exactly(layer: nn.Module, name: str, *kinds: type) -> None:
    part = layer.get_submodule(name)
    if type(part) not in kinds:
        got, need = f"{type(part).__module__}.{type(part).__qualname__}", kinds[0].__name__
        raise ConversionError(
            f"{type(layer).__name__}.{name} is a {got}, only {need} is understood (not quantised, "
            "not replaced)"
        )


def _deterministic(layer: nn.Module, rates: tuple[float, ...]) -> None:
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


def _activation(activation: Any, layer: nn.Module) -> str | nn.Module:
    """A name, or a copy of a pointwise module."""
    if not isinstance(activation, nn.Module):
        if activation in _FUNCTIONS:
            return _FUNCTIONS[activation]
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
