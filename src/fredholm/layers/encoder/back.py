"""Evolutions as encoders again."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...errors import ConversionError
from ...families.continuous.splitting import (
    Evolution,
    FeedForwardTerm,
    Lie,
    MomentConstraint,
    OperatorTerm,
    Relaxed,
    resolve_scheme,
)
from ...families.continuous.splitting.term import Term
from ...families.softmax.operator import SoftmaxAttention
from ...stochastic_depth import StochasticDepth
from .layers import ROLES, norm_options, targets


def to_encoder(evolution: Evolution, *, batch_first: bool = True) -> nn.TransformerEncoder:
    """The evolution as a ``torch.nn.TransformerEncoder`` with equal outputs and gradients, without
    dropout.

    Raises:
        ConversionError: terms other than those of a post-norm or pre-norm encoder, another scheme
            than Lie or Relaxed, steps that are not of length 1, or an activation that PyTorch's
            layer cannot hold.

    Example:
        >>> from fredholm.families.continuous.splitting import encoder_terms
        >>> evolution = Evolution([encoder_terms(8, 2, 16) for _ in range(2)])
        >>> u = torch.randn(2, 5, 8)
        >>> torch.allclose(to_encoder(evolution)(u), evolution(u), atol=1e-5)
        True
    """
    scheme = resolve_scheme(evolution.scheme)
    if type(scheme) not in (Lie, Relaxed):
        raise ConversionError(
            f"an encoder is a sequence of layers: scheme Lie or Relaxed, not {scheme}"
        )
    if evolution.steps != evolution.horizon or len(evolution.knots) not in (1, evolution.steps):
        facts = f"{len(evolution.knots)} knots, T = {evolution.horizon:g}, {evolution.steps} steps"
        raise ConversionError(
            "a layer is a step of length 1 with a knot of its own or one shared by all; got "
            f"{facts}"
        )
    built = [
        _encoder_layer(list(knot), isinstance(scheme, Relaxed), batch_first)
        for knot in evolution.knots
    ]
    if len(built) < evolution.steps:
        built = built * evolution.steps
    final = norm_options(evolution.norm)
    encoder = nn.TransformerEncoder(
        built[0],
        1,
        None if final is None else nn.LayerNorm(evolution.dim or 0, **final),
        enable_nested_tensor=False,
    )
    encoder.layers, encoder.num_layers = nn.ModuleList(built), len(built)
    if encoder.norm is not None and evolution.norm is not None:
        encoder.norm.to(next(evolution.parameters()))
        encoder.norm.load_state_dict(evolution.norm.state_dict())
    return encoder.train(evolution.training)


def _encoder_layer(
    terms: list[Term], relaxed: bool, batch_first: bool
) -> nn.TransformerEncoderLayer:
    norm, attention, network = _pattern(terms)
    knot, kernel = nn.ModuleList(terms), attention.operator.kernel
    norms: list[Any] = [knot.get_submodule(targets(norm)[role]) for role in ("norm1", "norm2")]
    layer = nn.TransformerEncoderLayer(
        attention.dim,
        kernel.heads,
        network.layers[0].out_features,
        dropout=0.0,
        activation=_layer_activation(network.activation),
        batch_first=batch_first,
        norm_first=norm == "pre",
    )
    layer.norm1.eps, layer.norm2.eps = norms[0].eps, norms[1].eps * (4 if relaxed else 1)
    parameter = next(knot.parameters())
    layer.to(parameter.device, parameter.dtype)
    _fill(layer, {role: knot.get_submodule(name) for role, name in targets(norm).items()})
    return layer


def _layer_activation(activation: str | nn.Module) -> Any:
    """What PyTorch's layer takes for the activation of a FeedForwardTerm."""
    tanh_module = isinstance(activation, nn.GELU) and activation.approximate == "tanh"
    if activation == "gelu_tanh" or tanh_module:
        # Under no_grad the layer computes any nn.GELU as the exact one, but no other callable.
        return functools.partial(F.gelu, approximate="tanh")
    if isinstance(activation, nn.Module):  # it may have parameters, which are not shared
        return copy.deepcopy(activation)
    return {"silu": F.silu, "tanh": torch.tanh}.get(activation, activation)


def _pattern(terms: list[Term]) -> tuple[str, Any, Any]:
    """(norm, attention, network) of the terms of an encoder layer, or a ConversionError."""
    kinds = [type(term) for term in terms]
    names = ", ".join(kind.__name__ for kind in kinds)
    post, pre = (
        [OperatorTerm, MomentConstraint, FeedForwardTerm, MomentConstraint],
        [OperatorTerm, FeedForwardTerm],
    )
    if kinds not in (post, pre):
        raise ConversionError(
            f"an encoder layer is {[k.__name__ for k in post]} or pre-norm "
            f"{[k.__name__ for k in pre]}; got {names}"
        )
    attention, network = (terms[0], terms[2]) if kinds == post else (terms[0], terms[1])
    inner = [getattr(term, "norm", None) for term in (attention, network)]
    fits = (
        all(n is None for n in inner)
        if kinds == post
        else all(type(n) is nn.LayerNorm for n in inner)
    )
    hard = all(
        t.penalty is None and t.affine == "vector" for t in terms if isinstance(t, MomentConstraint)
    )
    operator: Any = attention.operator  # type: ignore[union-attr]
    if type(operator) is not SoftmaxAttention:
        raise ConversionError(
            f"an encoder layer has softmax attention, got {type(operator).__name__}"
        )
    if not (fits and hard and len(network.layers) == 2):  # type: ignore[arg-type]
        raise ConversionError(
            "an encoder layer has hard vector-affine constraints after its terms or a LayerNorm in "
            "each of them, and a network of "
            f"two layers; got {names} with {len(network.layers)} layers"  # type: ignore[arg-type]
        )
    if any(term.substep not in ("auto", "euler", "implicit") for term in terms):
        raise ConversionError("an encoder layer takes explicit Euler substeps; set substep='auto'")
    if any(_drops(module) for term in terms for module in term.modules()):
        raise ConversionError(
            "the evolution is in training mode with dropout; call .eval() first, or set the rates "
            "to 0"
        )
    return "post" if kinds == post else "pre", attention, network


def _drops(module: nn.Module) -> bool:
    rate = (
        module.p
        if isinstance(module, nn.Dropout)
        else module.rate
        if isinstance(module, StochasticDepth)
        else 0.0
    )
    return module.training and rate > 0


@torch.no_grad()
def _fill(layer: Any, parts: dict[str, Any]) -> None:
    places = {"out": layer.self_attn.out_proj, "norm1": layer.norm1, "norm2": layer.norm2}
    places |= {"expand": layer.linear1, "contract": layer.linear2}
    for role, place in places.items():
        for kind in ("weight", "bias"):
            value = getattr(parts[role], kind)
            if value is None:
                place.register_parameter(kind, None)
            else:
                getattr(place, kind).copy_(value)
    packed = [parts[role] for role in ROLES[:3]]
    missing = [role for role in ROLES if parts[role].bias is None]
    if missing not in ([], list(ROLES[:3]), list(ROLES)):
        raise ConversionError(
            "PyTorch's layer has all biases, none, or all but those of query, key and value; "
            f"the evolution lacks those of {', '.join(missing)}"
        )
    layer.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in packed]))
    if all(part.bias is None for part in packed):
        layer.self_attn.register_parameter("in_proj_bias", None)
    else:
        layer.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in packed]))
