"""Encoders as evolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ...errors import ConversionError, OptionError
from ...families.continuous.splitting import Evolution
from ...integral.code_path import check_path
from ...integral.probe import BATCH
from ...integral.probe import probe as run_probe
from .encoder_evolution import EncoderEvolution, EncoderEvolutionConfig
from .layers import ROLES, Layer, SourceParameter, norm_options, targets
from .readers import read_layer
from .stacks import read_stack


def from_encoder(
    encoder: nn.Module,
    *,
    scheme: str = "lie",
    controls: str = "constant",
    norm: nn.LayerNorm | None = None,
    probe: bool = True,
) -> EncoderEvolution:
    r"""Convert an encoder to an evolution: one layer is one step of length 1, T is the number of
    layers.

    Post-norm layers become operator, projection on S1, network, projection on S1; pre-norm layers
    :math:`T(\mathrm{LN}\,u)` and
    :math:`N(\mathrm{LN}\,u)`. Outputs and gradients are equal; the parameters are copied. The
    result is an equation, so it can also be solved with other steps or schemes.

    Args:
        encoder: ``torch.nn.TransformerEncoder`` or ``TransformerEncoderLayer``; a layer, encoder or
            complete model of BERT, RoBERTa, ELECTRA, ViT, DeiT, CLIP's vision and others of the
            package transformers; timm's ``VisionTransformer``; or an ``nn.ModuleList`` of layers.
            In a complete model, the layers and the final norm are converted, from the output of the
            embeddings to ``last_hidden_state``, but not embeddings and pooler. A layer object that
            is used repeatedly becomes a shared control.
        scheme: ``"lie"``, or for post-norm layers ``"relaxed"``, the paper's substeps: the
            relaxation :math:`\tfrac12(u + N(u))`, then a projection with ε/4.
        controls: ``"constant"`` or ``"linear"`` in time; no difference at steps of 1.
        norm: a final layer normalisation, if the source's class has none.
        probe: compare output and input gradient of encoder and evolution on a small random signal.

    The result can be saved: ``evolution.save_pretrained(folder)`` and
    ``EncoderEvolution.from_pretrained(folder)``. Masks go into the domain: :func:`encoder_domain`.
    Dropout rates are not copied.

    Raises:
        ConversionError: a class, option or state that is not supported (named in the error);
            dropout in training mode; an encoder whose output differs from that of its classes.

    Reference: continuous transformer, §4.1, Eq. 16-22.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> evolution, u = from_encoder(layer), torch.randn(2, 5, 8)
        >>> torch.allclose(evolution(u), layer(u), atol=1e-5)
        True
    """
    stack = read_stack(encoder)
    if norm is not None and stack.norm is not None:
        raise OptionError(
            "norm: expected None, because this encoder brings its own final norm, got a norm"
        )
    check_path(encoder)
    layers = [read_layer(source) for source in stack.layers]
    _check_scheme(scheme, layers)

    # One object repeated is one knot that all steps share.
    knots = layers
    if _is_shared(stack.layers):
        knots = layers[:1]
    final = norm or stack.norm
    config = EncoderEvolutionConfig(
        dim=layers[0].dim,
        knots=tuple(_knot(layer, scheme) for layer in knots),
        depth=len(layers),
        final=norm_options(final),
        scheme=scheme,
        controls=controls,
    )
    modules = []
    for knot in knots:
        module = None
        if isinstance(knot.activation, nn.Module):
            module = knot.activation
        modules.append(module)
    evolution = EncoderEvolution(config, modules)
    parameter = next(encoder.parameters())
    evolution = evolution.to(parameter.device, parameter.dtype)

    _copy(knots, evolution)
    if evolution.norm is not None and final is not None:
        evolution.norm.load_state_dict(final.state_dict())
    _account(layers)
    evolution.train(encoder.training)
    if probe:
        call = stack.call
        if norm is not None:
            call = lambda u: norm(stack.call(u))  # noqa: E731
        shape = (BATCH, 6, layers[0].dim)
        run_probe(encoder, call, evolution, shape, advice="probe=False leaves this out")
    return evolution


def _check_scheme(scheme: str, layers: Sequence[Layer]) -> None:
    if scheme not in ("lie", "relaxed"):
        raise OptionError(
            f"scheme: expected 'lie' or 'relaxed', got {scheme!r}; an encoder is one step per layer"
        )
    if scheme == "relaxed" and any(layer.norm == "pre" for layer in layers):
        raise ConversionError(
            "scheme: expected 'lie' for pre-norm layers, got 'relaxed', which is the paper's "
            "post-norm layer"
        )


def _is_shared(sources: Sequence[nn.Module]) -> bool:
    """Return whether all layers are one object."""
    distinct = len({id(source) for source in sources})
    if 1 < distinct < len(sources):
        raise ConversionError(
            "some of the layers are one object and some are not; share all of them or none"
        )
    return distinct < len(sources)


def correspondence(encoder: nn.Module) -> list[tuple[str, str]]:
    """Return pairs of names, of a parameter in the encoder's layers and of its copy in the
    evolution.

    Source names begin with the layer's number; ``[query]``, ``[key]`` and ``[value]`` name the
    thirds of a packed parameter. Every parameter of the layers is in the list, except those of a
    parametric activation. The final norm belongs to no layer and is not listed. An encoder that
    repeats one layer object has one knot, and its parameters are listed once.

    Raises:
        ConversionError: a class, option or state that is not supported (named in the error).

    Example:
        >>> correspondence(nn.TransformerEncoderLayer(8, 2, 16).eval())[3]
        ('0.self_attn.in_proj_bias[key]', 'knots.0.0.operator.kernel.key.bias')
    """
    sources = read_stack(encoder).layers
    if _is_shared(sources):
        sources = sources[:1]

    pairs = []
    for n, source in enumerate(sources):
        layer = read_layer(source)
        for parameter in layer.parameters():
            target = _target(n, layer, parameter)
            pairs.append((f"{n}.{parameter.name}", target))
    return pairs


def _target(n: int, layer: Layer, parameter: SourceParameter) -> str:
    """Return the name of a layer's parameter in the evolution, of which the layer is knot n."""
    return f"knots.{n}.{targets(layer.norm)[parameter.role]}.{parameter.kind}"


def _knot(layer: Layer, scheme: str) -> dict[str, Any]:
    """Return one knot's configuration, with the parameters that the layer lacks."""
    places = targets(layer.norm)
    present = {(parameter.role, parameter.kind) for parameter in layer.parameters()}
    missing = []
    for role in ROLES:
        for kind in ("weight", "bias"):
            if (role, kind) not in present:
                missing.append(f"{places[role]}.{kind}")

    first, second = layer.eps
    if scheme == "relaxed":
        # LN of half a sum with ε/4 is LN of the sum with ε.
        second /= 4
    return {
        "heads": layer.heads,
        "hidden": layer.hidden,
        "norm": layer.norm,
        "activation": layer.activation if isinstance(layer.activation, str) else None,
        "eps": {places["norm1"]: first, places["norm2"]: second},
        "missing": missing,
    }


@torch.no_grad()
def _copy(layers: Sequence[Layer], evolution: Evolution) -> None:
    """Copy every parameter to its place, and leave no place empty."""
    filled = set()
    for n, layer in enumerate(layers):
        for parameter in layer.parameters():
            name = _target(n, layer, parameter)
            evolution.get_parameter(name).copy_(parameter.value)
            filled.add(name)

    # The final norm is copied by its state, an activation is a module of the encoder's.
    names = []
    for name, _ in evolution.named_parameters():
        if name.startswith("knots."):
            names.append(name)
    expected = {name for name in names if ".activation." not in name}
    if expected != filled:
        raise ConversionError(
            f"the evolution's parameters {sorted(expected ^ filled)} have no counterpart in the "
            "encoder"
        )


def _account(layers: Sequence[Layer]) -> None:
    """Raise ConversionError where a parameter of the source has gone nowhere."""
    for layer in layers:
        # A third of a packed parameter is named `name[role]`.
        used = {parameter.name.partition("[")[0] for parameter in layer.parameters()}
        names = [name for name, _ in layer.source.named_parameters() if name not in used]
        lost = [name for name in names if not name.startswith("activation.")]
        if lost:
            raise ConversionError(
                f"{type(layer.source).__name__}: the parameters {lost} have no place in the "
                "evolution"
            )
