"""InfViT's presets: the paper's sizes, softmax of equal depth, and small ones for a CPU."""

from __future__ import annotations

from ...encoders import ImageConfig
from ...models import LinearConfig, ModelConfig, register_model
from .body import InfViTConfig

# --- the paper's sizes, §4: a width of 768 is 64 heads of 12 or 16 of 48 --------------------------


def _size(operator: str, heads: int, depth: int) -> ModelConfig:
    return ModelConfig(
        ImageConfig((224, 224), channels=3, patch=16, positions="learned"),
        InfViTConfig(operator=operator, heads=heads, depth=depth, operator_options={"bias": True}),
        LinearConfig(outputs=1000, pool="cls"),
    )


@register_model
def infvit_linear_4() -> ModelConfig:
    """Four layers of linear InfSA."""
    return _size("linear_infsa", 64, 4)


@register_model
def infvit_pure_4() -> ModelConfig:
    """Four layers of pure InfSA."""
    return _size("infsa", 16, 4)


@register_model
def infvit_softmax_4() -> ModelConfig:
    """The vision transformer of four layers."""
    return _size("softmax", 16, 4)


@register_model
def infvit_linear_24() -> ModelConfig:
    """24 layers of linear InfSA."""
    return _size("linear_infsa", 16, 24)


@register_model
def infvit_pure_24() -> ModelConfig:
    """24 layers of pure InfSA."""
    return _size("infsa", 16, 24)


@register_model
def infvit_softmax_24() -> ModelConfig:
    """The vision transformer of 24 layers."""
    return _size("softmax", 16, 24)


# --- four layers for 64 patches of small images, trained in minutes on a CPU ----------------------


def _small(operator: str, heads: int) -> ModelConfig:
    return ModelConfig(
        ImageConfig((56, 56), patch=7, positions="learned"),
        InfViTConfig(dim=64, heads=heads, operator=operator),
        LinearConfig(pool="cls"),
    )


@register_model
def infvit_linear_pico() -> ModelConfig:
    """Linear InfSA."""
    return _small("linear_infsa", 16)


@register_model
def infvit_pure_pico() -> ModelConfig:
    """Pure InfSA."""
    return _small("infsa", 4)


@register_model
def infvit_softmax_pico() -> ModelConfig:
    """The vision transformer of equal depth."""
    return _small("softmax", 4)
