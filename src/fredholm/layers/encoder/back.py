"""Evolutions as encoders again."""

from __future__ import annotations

import copy
import functools
from typing import Any, NamedTuple

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


def to_encoder(
    evolution: Evolution,
    *,
    batch_first: bool = True,
) -> nn.TransformerEncoder:
    """Convert an evolution to a ``torch.nn.TransformerEncoder`` with equal outputs and gradients,
    without dropout.

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
            f"an encoder is a sequence of layers: expected scheme Lie or Relaxed, not {scheme}"
        )
    knots = len(evolution.knots)
    if evolution.steps != evolution.horizon or knots not in (1, evolution.steps):
        raise ConversionError(
            "expected steps of length 1 with a knot of their own or one shared by all, got "
            f"{knots} knots, T = {evolution.horizon:g}, {evolution.steps} steps"
        )
    relaxed = isinstance(scheme, Relaxed)
    layers = []
    for knot in evolution.knots:
        layers.append(_encoder_layer(list(knot), relaxed, batch_first))
    if len(layers) < evolution.steps:
        layers = layers * evolution.steps

    norm = None
    options = norm_options(evolution.norm)
    if options is not None and evolution.norm is not None:
        norm = nn.LayerNorm(evolution.dim or 0, **options)
        norm.to(next(evolution.parameters()))
        norm.load_state_dict(evolution.norm.state_dict())
    # torch copies its first argument; these layers replace the copy, so that shared ones stay so.
    encoder = nn.TransformerEncoder(layers[0], 1, norm, enable_nested_tensor=False)
    encoder.layers = nn.ModuleList(layers)
    encoder.num_layers = len(layers)
    return encoder.train(evolution.training)


def _encoder_layer(
    terms: list[Term],
    relaxed: bool,
    batch_first: bool,
) -> nn.TransformerEncoderLayer:
    """Return one PyTorch layer with copies of a knot's parameters, on their device and in their
    dtype.

    Args:
        terms: those of a post-norm or a pre-norm layer, see ``POST`` and ``PRE``.
        relaxed: whether the evolution's scheme is ``Relaxed``, which halves the sum of a point and
            the network's output.
        batch_first: whether the layer takes (B, N, dim) rather than (N, B, dim).

    Raises:
        ConversionError: other terms, pre-norm terms of a relaxed scheme, or options that PyTorch's
            layer does not have.
    """
    knot = _read_knot(terms)
    if relaxed and knot.norm == "pre":
        # Relaxed halves u + N(LN u), and PyTorch's pre-norm layer has nothing behind the sum that
        # could take the factor.
        raise ConversionError(
            "an encoder layer: expected the scheme Lie for pre-norm terms, got Relaxed; convert "
            "with scheme='lie'"
        )
    network = knot.network
    modules = nn.ModuleList(terms)
    parts: dict[str, Any] = {
        role: modules.get_submodule(name) for role, name in targets(knot.norm).items()
    }
    layer = nn.TransformerEncoderLayer(
        knot.attention.dim,
        knot.attention.operator.kernel.heads,
        network.layers[0].out_features,
        dropout=0.0,
        activation=_layer_activation(network.activation),
        batch_first=batch_first,
        norm_first=knot.norm == "pre",
    )
    layer.norm1.eps = parts["norm1"].eps
    layer.norm2.eps = parts["norm2"].eps
    if relaxed:
        # In a post-norm layer the second normalisation reads (u + N(u)) / 2, where PyTorch's layer
        # normalises u + N(u). Doubling its input multiplies the variance by 4, so that the same
        # output needs 4 ε.
        layer.norm2.eps *= 4
    parameter = next(modules.parameters())
    layer.to(parameter.device, parameter.dtype)
    _fill(layer, parts)
    return layer


def _layer_activation(activation: str | nn.Module) -> Any:
    """Return the activation of a FeedForwardTerm as PyTorch's layer takes it: the names ``relu``
    and ``gelu``, or a callable for any other.
    """
    tanh_module = isinstance(activation, nn.GELU) and activation.approximate == "tanh"
    if activation == "gelu_tanh" or tanh_module:
        # Under no_grad PyTorch's fast path computes every nn.GELU by the exact formula, even one
        # with approximate="tanh". It does not recognise a plain callable, which is then called.
        return functools.partial(F.gelu, approximate="tanh")
    if isinstance(activation, nn.Module):
        # The module may have parameters, and the encoder has copies of all parameters.
        return copy.deepcopy(activation)
    # PyTorch's layer knows only "relu" and "gelu" by name, which are passed on.
    functions = {"silu": F.silu, "tanh": torch.tanh}
    return functions.get(activation, activation)


POST = [OperatorTerm, MomentConstraint, FeedForwardTerm, MomentConstraint]
PRE = [OperatorTerm, FeedForwardTerm]
"""Terms of an encoder layer."""


class Knot(NamedTuple):
    """Terms of an encoder layer: ``"post"`` or ``"pre"``, its attention and its network."""

    norm: str
    attention: Any
    network: Any


def _read_knot(terms: list[Term]) -> Knot:
    """Return the terms of an encoder layer, or raise ConversionError."""
    kinds = [type(term) for term in terms]
    names = ", ".join(kind.__name__ for kind in kinds)
    if kinds not in (POST, PRE):
        raise ConversionError(
            f"an encoder layer: expected {[k.__name__ for k in POST]} or pre-norm "
            f"{[k.__name__ for k in PRE]}, got {names}"
        )
    if kinds == POST:
        knot = Knot("post", terms[0], terms[2])
    else:
        knot = Knot("pre", terms[0], terms[1])

    kind = type(knot.attention.operator)
    if kind is not SoftmaxAttention:
        raise ConversionError(f"an encoder layer: expected softmax attention, got {kind.__name__}")
    layers = len(knot.network.layers)
    if layers != 2 or not _normalises_as_torch(knot, terms):
        raise ConversionError(
            "an encoder layer: expected hard vector-affine constraints after its terms or a "
            f"LayerNorm in each of them, and a network of two layers, got {names} with {layers} "
            "layers"
        )
    if any(term.substep not in ("auto", "euler", "implicit") for term in terms):
        raise ConversionError("an encoder layer takes explicit Euler substeps; set substep='auto'")
    if any(_drops(module) for term in terms for module in term.modules()):
        raise ConversionError(
            "the evolution is in training mode with dropout; call .eval() first, or set the rates "
            "to 0"
        )
    return knot


def _normalises_as_torch(knot: Knot, terms: list[Term]) -> bool:
    """Return whether norms are where a post-norm or a pre-norm layer has them, and of its kind."""
    inner = [getattr(term, "norm", None) for term in (knot.attention, knot.network)]
    if knot.norm == "pre":
        return all(type(norm) is nn.LayerNorm for norm in inner)
    constraints = [term for term in terms if isinstance(term, MomentConstraint)]
    hard = all(term.penalty is None and term.affine == "vector" for term in constraints)
    return hard and all(norm is None for norm in inner)


def _drops(module: nn.Module) -> bool:
    """Return whether a module draws random numbers in its present mode."""
    rate = 0.0
    if isinstance(module, nn.Dropout):
        rate = module.p
    elif isinstance(module, StochasticDepth):
        rate = module.rate
    return module.training and rate > 0


@torch.no_grad()
def _fill(layer: Any, parts: dict[str, Any]) -> None:
    """Copy the parameters of all roles into PyTorch's layer."""
    packed_roles = list(ROLES[:3])
    missing = [role for role in ROLES if parts[role].bias is None]
    if missing not in ([], packed_roles, list(ROLES)):
        raise ConversionError(
            "PyTorch's layer has all biases, none, or all but those of query, key and value; "
            f"the evolution lacks those of {', '.join(missing)}"
        )
    places = {
        "out": layer.self_attn.out_proj,
        "norm1": layer.norm1,
        "norm2": layer.norm2,
        "expand": layer.linear1,
        "contract": layer.linear2,
    }
    for role, place in places.items():
        for kind in ("weight", "bias"):
            value = getattr(parts[role], kind)
            if value is None:
                place.register_parameter(kind, None)
            else:
                getattr(place, kind).copy_(value)

    attention = layer.self_attn
    packed = [parts[role] for role in packed_roles]
    weights = [part.weight for part in packed]
    attention.in_proj_weight.copy_(torch.cat(weights))
    if missing:
        attention.register_parameter("in_proj_bias", None)
    else:
        biases = [part.bias for part in packed]
        attention.in_proj_bias.copy_(torch.cat(biases))
