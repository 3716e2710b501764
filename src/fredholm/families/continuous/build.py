"""From a configuration to the parts of a continuous transformer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...encoders import ImageEncoder, PixelEncoder, TextEncoder
from ...models.operators import make_operator, position_options
from .config import ContinuousConfig
from .splitting import (
    ConvolutionalAttention,
    ConvolutionTerm,
    Evolution,
    FeedForwardTerm,
    Hybrid,
    MomentConstraint,
    OperatorTerm,
    Term,
    encoder_terms,
)


def make_encoder(c: ContinuousConfig) -> nn.Module:
    """The encoder that a configuration names."""
    if c.stages:
        return PixelEncoder(c.channels)
    shared: Any = {
        "dim": c.dim,
        "pool": c.pool,
        "frequencies": c.frequencies,
        "sigma": c.sigma,
        "dropout": c.dropout,
    }
    if c.encoder == "text":
        return TextEncoder(
            vocabulary=c.vocabulary, max_length=c.max_length, positions=c.positions, **shared
        )
    return ImageEncoder(patch=c.patch, channels=c.channels, **shared)


def stage_configs(c: ContinuousConfig) -> list[ContinuousConfig]:
    """One configuration per stage, the whole one where there are no stages.

    ``steps`` are those of the last stage; earlier ones take as many in proportion to their knots,
    at least one.
    """
    if not c.stages:
        return [c]
    last = c.stages[-1][1]
    configs = []
    for stage in c.stages:
        dim, depth, heads, _ = stage
        steps = None if c.steps is None else max(1, round(c.steps * depth / last))
        horizon = None if c.horizon is None else c.horizon * depth / last
        configs.append(
            replace(
                c, dim=dim, depth=depth, heads=heads, steps=steps, horizon=horizon, stages=(stage,)
            )
        )
    return configs


def make_evolution(c: ContinuousConfig, position_dim: int) -> Evolution:
    """The evolution of one stage."""
    count = 1 if c.control == "shared" else c.depth
    knots = [make_terms(c, position_dim, c.drop_path * k / max(1, count - 1)) for k in range(count)]
    if c.norm != "post":
        _scale_outputs(knots, (2 * c.depth) ** -0.5)
    return Evolution(
        knots,
        scheme=c.scheme if isinstance(c.scheme, str) else Hybrid(groups=c.scheme),
        controls="linear" if c.control == "linear" else "constant",
        horizon=float(c.depth) if c.horizon is None else c.horizon,
        steps=c.depth if c.steps is None else c.steps,
        norm=None if c.norm == "post" else nn.LayerNorm(c.dim),
    )


def make_terms(c: ContinuousConfig, position_dim: int, drop_path: float) -> list[Term]:
    """The terms of one knot."""
    if c.stages:
        terms = _convolutional_terms(c, position_dim, drop_path)
    else:
        terms = encoder_terms(
            c.dim,
            c.heads,
            round(c.mlp_ratio * c.dim),
            norm="pre" if c.norm == "pre" else "none",
            operator=c.operator,
            activation=c.activation,
            dropout=c.dropout,
            drop_path=drop_path,
            **position_options(c.operator, position_dim, c.operator_options),
        )
    if c.norm in ("pre", "none"):
        return terms
    options: Any = {} if c.norm == "post" else {"affine": "scalar", "penalty": c.penalty}
    *before, network = terms
    return [
        *before,
        MomentConstraint(c.dim, **options),
        network,
        MomentConstraint(c.dim, **options),
    ]


def _convolutional_terms(c: ContinuousConfig, position_dim: int, drop_path: float) -> list[Term]:
    """Softmax attention with convolved queries, keys and values; any other operator beside a
    convolution term (the paper's IV).
    """

    def before() -> nn.Module | None:
        return nn.LayerNorm(c.dim) if c.norm == "pre" else None

    branches: Any = {"dropout": c.dropout, "drop_path": drop_path}
    network = FeedForwardTerm(
        c.dim, round(c.mlp_ratio * c.dim), activation=c.activation, norm=before(), **branches
    )
    if c.operator == "softmax":
        operator: nn.Module = ConvolutionalAttention(
            c.dim, c.heads, kernel_size=c.kernel, batch_norm=False
        )
        return [OperatorTerm(operator, c.dim, norm=before(), **branches), network]
    operator = make_operator(
        c.operator, c.dim, c.heads, position_dim=position_dim, **c.operator_options
    )
    local = ConvolutionTerm(c.dim, c.kernel, depthwise=True, norm=before())
    return [local, OperatorTerm(operator, c.dim, norm=before(), **branches), network]


@torch.no_grad()
def _scale_outputs(knots: list[list[Term]], scale: float) -> None:
    """Shrink the output layers of attention and network: u(T) must not grow with the depth."""
    for term in (term for terms in knots for term in terms):
        if isinstance(term, OperatorTerm):
            projection = getattr(term.operator, "projection", None)
            if projection is not None:
                projection.weight.mul_(scale)
        elif isinstance(term, FeedForwardTerm):
            last: Any = term.layers[-1]
            last.weight.mul_(scale)
