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
from .layers import ROLES, Layer, norm_options, targets
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
    ``EncoderEvolution.from_pretrained(folder)``. Masks go into the domain: :func:`encoder_domain`.
    Dropout rates are not copied.

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
        final=norm_options(given),
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
