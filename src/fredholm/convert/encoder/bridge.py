"""Encoders as evolutions, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ...depth import StochasticDepth
from ...errors import ConversionError, OptionError
from ...families.continuous import EncoderEvolution, EncoderEvolutionConfig
from ...families.continuous.splitting import (
    Evolution,
    FeedForwardTerm,
    Lie,
    MomentConstraint,
    OperatorTerm,
    Relaxed,
)
from ...families.continuous.splitting.term import Term
from ...families.softmax.operator import SoftmaxAttention
from ...integral.conversion import check_path
from ...integral.probe import BATCH
from ...integral.probe import probe as run_probe
from .layers import ROLES, Layer, targets
from .readers import TIMM_NORM, read_layer
from .stacks import read_stack


def from_encoder(
    encoder: nn.Module,
    *,
    scheme: str = "lie",
    controls: str = "constant",
    norm: nn.LayerNorm | None = None,
    probe: bool = True,
) -> EncoderEvolution:
    r"""An encoder as an evolution: one layer is one step of length 1, T is the number of layers.

    Post-norm layers become operator, projection on S1, network, projection on S1; pre-norm layers
    :math:`T(\mathrm{LN}\,u)` and
    :math:`N(\mathrm{LN}\,u)`. Outputs and gradients are equal; the parameters are copied. Being an
    equation, the result can also be run with other steps or schemes.

    Args:
        encoder: ``torch.nn.TransformerEncoder`` or ``TransformerEncoderLayer``; a layer, encoder or
            whole model of BERT, RoBERTa, ELECTRA, ViT, DeiT, CLIP's vision and others of the
            package transformers; timm's ``VisionTransformer``; or an ``nn.ModuleList`` of layers.
            Of a whole model its layers and final norm are converted, from the output of its
            embeddings to ``last_hidden_state``; embeddings and pooler stay with the model. One
            layer object repeated becomes a shared control.
        scheme: ``"lie"``, or for post-norm layers ``"relaxed"``, the paper's substeps: the
            relaxation :math:`\tfrac12(u + N(u))`, then a projection with ε/4.
        controls: ``"constant"`` or ``"linear"`` in time; no difference at steps of 1.
        norm: a final layer normalisation where the source's class has none.
        probe: compare output and input gradient of encoder and evolution on a small random signal.

    The result can be saved: ``evolution.save_pretrained(folder)`` and
    ``EncoderEvolution.from_pretrained(folder)``. Masks go into the domain: :func:`encoder_domain`. Dropout rates are not copied.

    Raises:
        ConversionError: a class, option or state that is not understood, by name; dropout in
            training mode; an encoder that answers otherwise than its classes say.

    Reference: continuous transformer, §4.1, Eq. 16-22.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> evolution, u = from_encoder(layer), torch.randn(2, 5, 8)
        >>> torch.allclose(evolution(u), layer(u), atol=1e-5)
        True
    """
    stack = read_stack(encoder)
    sources, final = stack.layers, stack.norm
    if norm is not None and final is not None:
        raise OptionError(
            "norm=... is for layers without a final norm; this encoder brings its own"
        )
    check_path(encoder)
    layers = [read_layer(source) for source in sources]
    if scheme not in ("lie", "relaxed"):
        raise OptionError(
            f"an encoder is one step a layer of the scheme 'lie' or 'relaxed', got {scheme!r}"
        )
    if scheme == "relaxed" and any(layer.norm == "pre" for layer in layers):
        raise ConversionError(
            "scheme='relaxed' is the paper's post-norm layer; these layers are pre-norm: use 'lie'"
        )
    distinct = {id(source) for source in sources}
    shared = len(distinct) == 1 and len(sources) > 1
    if not shared and len(distinct) < len(sources):
        raise ConversionError(
            "some of the layers are one object and some are not; share all of them or none"
        )
    different = layers[:1] if shared else layers
    given = norm if norm is not None else final
    config = EncoderEvolutionConfig(
        dim=layers[0].dim,
        knots=tuple(_knot(layer, scheme) for layer in different),
        depth=len(layers),
        final=_norm_options(given),
        scheme=scheme,
        controls=controls,
    )
    modules = [x.activation if isinstance(x.activation, nn.Module) else None for x in different]
    evolution = EncoderEvolution(config, modules)
    parameter = next(encoder.parameters())
    evolution = evolution.to(parameter.device, parameter.dtype)
    _copy(different, evolution)
    if evolution.norm is not None and given is not None:
        evolution.norm.load_state_dict(given.state_dict())
    _account(layers)
    evolution.train(encoder.training)
    if probe:
        run_probe(
            encoder,
            stack.call if norm is None else lambda u: norm(stack.call(u)),
            evolution,
            (BATCH, 6, layers[0].dim),
            advice="probe=False leaves this out",
        )
    return evolution


def correspondence(encoder: nn.Module) -> list[tuple[str, str]]:
    """Which parameter becomes which: (name in the encoder's layers, name in the evolution),
    complete in both directions.

    Example:
        >>> correspondence(nn.TransformerEncoderLayer(8, 2, 16).eval())[3]
        ('0.self_attn.in_proj_bias[key]', 'knots.0.0.operator.kernel.key.bias')
    """
    layers = [read_layer(source) for source in read_stack(encoder).layers]
    return [
        (f"{n}.{name}", f"knots.{n}.{targets(layer.norm)[role]}.{kind}")
        for n, layer in enumerate(layers)
        for role, kind, _, name in layer.parameters()
    ]


def to_encoder(evolution: Evolution, *, batch_first: bool = True) -> nn.TransformerEncoder:
    """The evolution as a ``torch.nn.TransformerEncoder`` with equal outputs and gradients, without
    dropout.

    Raises:
        ConversionError: terms other than those of a post-norm or pre-norm encoder, another scheme
            than Lie or Relaxed, steps that are not of length 1, or an activation that PyTorch's
            layer cannot hold.

    Example:
        >>> evolution = Evolution([encoder_terms(8, 2, 16) for _ in range(2)])
        >>> u = torch.randn(2, 5, 8)
        >>> torch.allclose(to_encoder(evolution)(u), evolution(u), atol=1e-5)
        True
    """
    scheme = evolution.scheme
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
    final = _norm_options(evolution.norm)
    encoder = nn.TransformerEncoder(
        built[0],
        1,
        None if final is None else nn.LayerNorm(evolution.dim, **final),
        enable_nested_tensor=False,
    )
    encoder.layers, encoder.num_layers = nn.ModuleList(built), len(built)
    if encoder.norm is not None and evolution.norm is not None:
        encoder.norm.to(next(evolution.parameters()))
        encoder.norm.load_state_dict(evolution.norm.state_dict())
    return encoder.train(evolution.training)


# --- encoder to evolution -------------------------------------------------------------------------


def _knot(layer: Layer, scheme: str) -> dict[str, Any]:
    """One knot's configuration, with the parameters that the layer lacks."""
    places, (first, second) = targets(layer.norm), layer.eps
    have = {(role, kind) for role, kind, _, _ in layer.parameters()}
    missing = [
        f"{places[role]}.{kind}"
        for role in ROLES
        for kind in ("weight", "bias")
        if (role, kind) not in have
    ]
    if scheme == "relaxed":
        second /= 4  # LN of half a sum with ε/4 is LN of the sum with ε
    return {
        "heads": layer.heads,
        "hidden": layer.hidden,
        "norm": layer.norm,
        "activation": layer.activation if isinstance(layer.activation, str) else None,
        "eps": {places["norm1"]: first, places["norm2"]: second},
        "missing": missing,
    }


def _norm_options(norm: nn.Module | None) -> dict[str, Any] | None:
    """What a layer normalisation of the same kind takes."""
    if norm is None:
        return None
    kind = f"{type(norm).__module__}.{type(norm).__qualname__}"
    if type(norm) is not nn.LayerNorm and kind != TIMM_NORM:
        raise ConversionError(
            f"the final norm is a {type(norm).__qualname__}; only LayerNorm is understood"
        )
    known: Any = norm
    affine, bias = known.weight is not None, known.bias is not None
    return {"eps": known.eps, "elementwise_affine": affine, "bias": bias}


@torch.no_grad()
def _copy(layers: Sequence[Layer], evolution: Evolution) -> None:
    """Copy every parameter to its place, and leave no place empty."""
    filled = set()
    for n, layer in enumerate(layers):
        for role, kind, value, _ in layer.parameters():
            name = f"knots.{n}.{targets(layer.norm)[role]}.{kind}"
            evolution.get_parameter(name).copy_(value)
            filled.add(name)
    wanted = {
        name
        for name, _ in evolution.named_parameters()
        if name.startswith("knots.") and ".activation." not in name
    }
    if wanted != filled:
        raise ConversionError(
            f"the evolution's parameters {sorted(wanted ^ filled)} have no counterpart in the "
            "encoder"
        )


def _account(layers: Sequence[Layer]) -> None:
    """Every parameter of the source must have gone somewhere: nothing is dropped in silence."""
    for layer in layers:
        used = {name.partition("[")[0] for _, _, _, name in layer.parameters()}
        lost = [
            name
            for name, _ in layer.source.named_parameters()
            if name not in used and not name.startswith("activation.")
        ]
        if lost:
            raise ConversionError(
                f"{type(layer.source).__name__}: the parameters {lost} have no place in the "
                "evolution"
            )


# --- evolution to encoder -------------------------------------------------------------------------


def _encoder_layer(
    terms: list[Term], relaxed: bool, batch_first: bool
) -> nn.TransformerEncoderLayer:
    norm, attention, network = _pattern(terms)
    knot, kernel = nn.ModuleList(terms), attention.operator.kernel
    activation: Any = network.activation
    if activation == "gelu_tanh":
        activation = nn.GELU(approximate="tanh")
    elif activation in ("silu", "tanh"):
        activation = {"silu": nn.functional.silu, "tanh": torch.tanh}[activation]
    norms: list[Any] = [knot.get_submodule(targets(norm)[role]) for role in ("norm1", "norm2")]
    layer = nn.TransformerEncoderLayer(
        attention.dim,
        kernel.heads,
        network.layers[0].out_features,
        dropout=0.0,
        activation=activation,
        batch_first=batch_first,
        norm_first=norm == "pre",
    )
    layer.norm1.eps, layer.norm2.eps = norms[0].eps, norms[1].eps * (4 if relaxed else 1)
    parameter = next(knot.parameters())
    layer.to(parameter.device, parameter.dtype)
    _fill(layer, {role: knot.get_submodule(name) for role, name in targets(norm).items()})
    return layer


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
