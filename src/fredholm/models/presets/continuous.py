"""The continuous transformer's named models, of texts and of images."""

from __future__ import annotations

from ..bodies.continuous import ContinuousConfig
from ..bodies.stages import StagesConfig
from ..config import ModelConfig
from ..encoders import ImageConfig, PixelConfig, TextConfig
from ..heads import LinearConfig
from ..registry import register_model


@register_model
def continuous_text_micro() -> ModelConfig:
    """Four knots of width 64, for texts."""
    return ModelConfig(
        TextConfig(
            vocabulary=8192,
            max_length=64,
            frequencies=16,
            sigma=3.0,
        ),
        ContinuousConfig(dropout=0.3),
        LinearConfig(outputs=2, pool="mean"),
    )


@register_model
def continuous_text_base() -> ModelConfig:
    """The sizes of Vaswani et al., post-norm."""
    return ModelConfig(
        TextConfig(
            vocabulary=32768,
            max_length=512,
            frequencies=16,
            sigma=3.0,
        ),
        ContinuousConfig(
            dim=512,
            heads=8,
            depth=6,
            norm="post",
            activation="relu",
            mlp_ratio=4.0,
        ),
        LinearConfig(outputs=2, pool="mean"),
    )


@register_model
def continuous_vit_micro() -> ModelConfig:
    """Four knots of width 64, for small images."""
    encoder = ImageConfig(frequencies=16, sigma=3.0)
    return ModelConfig(
        encoder,
        ContinuousConfig(dropout=0.0),
        LinearConfig(pool="mean"),
    )


@register_model
def continuous_vit_b() -> ModelConfig:
    """The sizes of ViT-B/16."""
    return ModelConfig(
        ImageConfig(
            (224, 224),
            channels=3,
            patch=16,
            frequencies=64,
            sigma=10.0,
        ),
        ContinuousConfig(
            dim=768,
            heads=12,
            depth=12,
            mlp_ratio=4.0,
        ),
        LinearConfig(outputs=1000, pool="cls"),
    )


@register_model
def continuous_cvt_micro() -> ModelConfig:
    """Two stages, for small images."""
    body = StagesConfig(dropout=0.0, stages=((32, 1, 1, 4), (64, 2, 4, 2)))
    return ModelConfig(PixelConfig(), body, LinearConfig(pool="mean"))


@register_model
def continuous_cvt_13() -> ModelConfig:
    """The three stages of CvT-13."""
    stages = ((64, 1, 1, 4), (192, 2, 3, 2), (384, 10, 6, 2))
    return ModelConfig(
        PixelConfig((224, 224), channels=3),
        StagesConfig(mlp_ratio=4.0, stages=stages),
        LinearConfig(outputs=1000, pool="mean"),
    )
