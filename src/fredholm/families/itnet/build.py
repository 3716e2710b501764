"""The encoder that a configuration of ITNet names."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...encoders import (
    FieldEncoder,
    GraphEncoder,
    ImageEncoder,
    MultimodalEncoder,
    MultiScaleImageEncoder,
    PointEncoder,
    TextEncoder,
)
from .config import ITNetConfig


def make_encoder(c: ITNetConfig) -> nn.Module:
    """The encoder that a configuration names; fields of other encoders play no role."""
    patch: Any = c.patch
    shared: dict[str, Any] = {"dim": c.dim, "dropout": c.dropout}
    fourier: dict[str, Any] = {"frequencies": c.frequencies, "sigma": c.sigma}
    measure: dict[str, Any] = {} if c.measure is None else {"measure": c.measure}
    if c.encoder == "points":
        return PointEncoder(
            channels=c.channels,
            position_dim=c.position_dim,
            features=c.point_features,
            neighbours=c.neighbours,
            **shared,
            **fourier,
        )
    if c.encoder == "text":
        words = {"vocabulary": c.vocabulary, "max_length": c.max_length, "causal": c.causal}
        return TextEncoder(pool=c.pool, **words, **shared, **fourier)
    if c.encoder == "graph":
        nodes = {"vocabulary": c.vocabulary} if c.node_tokens else {"channels": c.channels}
        return GraphEncoder(
            eigenvectors=c.eigenvectors, off_edges=c.off_edges, pool=c.pool, **nodes, **shared
        )
    if c.encoder == "field":
        return FieldEncoder(channels=c.channels, **shared, **fourier)
    if c.encoder == "multimodal":
        words = {"vocabulary": c.vocabulary, "max_length": c.max_length}
        pair = {"patch": patch, "channels": c.channels, "pool": c.pool}
        return MultimodalEncoder(**pair, **words, **measure, **shared, **fourier)
    if c.scales:
        return MultiScaleImageEncoder(
            scales=tuple(c.scales), channels=c.channels, **measure, **shared, **fourier
        )
    return ImageEncoder(patch=patch, channels=c.channels, pool=c.pool, **shared, **fourier)
