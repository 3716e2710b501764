"""ITNet's named models: the sizes of its Table 10, full and compact, and two small ones."""

from __future__ import annotations

from typing import Any

from ..bodies.residual import ResidualConfig
from ..config import ModelConfig
from ..encoders import EncoderConfig, ImageConfig, PointConfig
from ..heads import LinearConfig
from ..registry import register_model


def _size(
    encoder: EncoderConfig,
    head: LinearConfig,
    dim: int,
    depth: int,
    heads: int,
    drop_path: float,
    *,
    width: int = 128,
    rank: int | None = None,
) -> ModelConfig:
    """Return one size of Table 10; with ``rank`` the compact output.

    The full output has the parameters that Table 11's structure adds up to; the compact one, at
    these ranks, those that Table 10 prints.
    """
    options: dict[str, Any] = {"width": width}
    if rank is not None:
        options |= {"output": "compact", "rank": rank}
    body = ResidualConfig(
        dim=dim,
        depth=depth,
        heads=heads,
        drop_path=drop_path,
        operator_options=options,
    )
    return ModelConfig(encoder, body, head)


# --- ImageNet, Table 10 ---------------------------------------------------------------------------


def _imagenet(
    dim: int,
    depth: int,
    heads: int,
    drop_path: float,
    rank: int | None = None,
) -> ModelConfig:
    encoder = ImageConfig(
        (224, 224),
        channels=3,
        patch=16,
        frequencies=64,
        sigma=10.0,
    )
    head = LinearConfig(outputs=1000, pool="cls")
    return _size(encoder, head, dim, depth, heads, drop_path, rank=rank)


@register_model
def itnet_s() -> ModelConfig:
    """ITNet-S."""
    return _imagenet(384, 12, 6, 0.1)


@register_model
def itnet_s_compact() -> ModelConfig:
    """ITNet-S with the compact output."""
    return _imagenet(384, 12, 6, 0.1, rank=2)


@register_model
def itnet_b() -> ModelConfig:
    """ITNet-B."""
    return _imagenet(768, 12, 12, 0.2)


@register_model
def itnet_b_compact() -> ModelConfig:
    """ITNet-B with the compact output."""
    return _imagenet(768, 12, 12, 0.2, rank=5)


@register_model
def itnet_l() -> ModelConfig:
    """ITNet-L."""
    return _imagenet(1024, 24, 16, 0.3)


@register_model
def itnet_l_compact() -> ModelConfig:
    """ITNet-L with the compact output."""
    return _imagenet(1024, 24, 16, 0.3, rank=8)


# --- point clouds, Table 10 -----------------------------------------------------------------------


def _clouds(rank: int | None = None) -> ModelConfig:
    encoder = PointConfig(
        features="fourier",
        neighbours=16,
        frequencies=64,
        sigma=1.0,
    )
    head = LinearConfig(outputs=40, pool="mean")
    return _size(encoder, head, 128, 6, 4, 0.1, width=64, rank=rank)


@register_model
def itnet_pc() -> ModelConfig:
    """ITNet-PC, for ModelNet40."""
    return _clouds()


@register_model
def itnet_pc_compact() -> ModelConfig:
    """ITNet-PC with the compact output."""
    return _clouds(rank=2)


# --- small ones -----------------------------------------------------------------------------------


def _small(dim: int, depth: int, heads: int) -> ModelConfig:
    options = {"width": 16, "frequencies": 16, "sigma": 3.0}
    body = ResidualConfig(
        dim=dim,
        depth=depth,
        heads=heads,
        dropout=0.0,
        operator_options=options,
    )
    return ModelConfig(
        ImageConfig(frequencies=16, sigma=3.0),
        body,
        LinearConfig(),
    )


@register_model
def itnet_micro() -> ModelConfig:
    """Three blocks of width 64."""
    return _small(64, 3, 4)


@register_model
def itnet_nano() -> ModelConfig:
    """Two blocks of width 32."""
    return _small(32, 2, 2)
