"""InfViT's presets: the paper's sizes, softmax of equal depth, and small ones for a CPU."""

from __future__ import annotations

from ..bodies.infvit import InfViTConfig
from ..config import ModelConfig
from ..encoders import ImageConfig
from ..heads import LinearConfig, MLPConfig
from ..registry import register_model

# --- the paper's sizes, §4: a width of 768 is 64 heads of 12 or 16 of 48 --------------------------


def _size(operator: str, heads: int, depth: int) -> ModelConfig:
    return ModelConfig(
        ImageConfig(
            (224, 224),
            channels=3,
            patch=16,
            positions="learned",
            token="ordinary",
        ),
        InfViTConfig(
            operator=operator,
            heads=heads,
            depth=depth,
            operator_options={"bias": True},
        ),
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


# --- the published numbers of parameters, Table 3 -------------------------------------------------
# Both forms differ by one matrix of keys per layer, which is 4.2 million in four layers at a width
# of 1024. Beside a vision transformer of that width all four counts (53.5, 57.7, 305.4 and 330.6
# million) have room for one more such matrix per layer and one in the end, which the paper does not
# name: here feed-forward networks are wider by half the width, and the head has a hidden layer.


def _published(operator: str, heads: int, depth: int) -> ModelConfig:
    config = _size(operator, heads, depth).replace(body={"dim": 1024, "mlp_ratio": 4.501})
    return config.replace(head=MLPConfig(outputs=1000, pool="cls", hidden=1024))


@register_model
def infvit_linear_53m() -> ModelConfig:
    """Four layers of linear InfSA, 53.5 million parameters."""
    return _published("linear_infsa", 64, 4)


@register_model
def infvit_pure_57m() -> ModelConfig:
    """Four layers of pure InfSA, 57.7 million."""
    return _published("infsa", 16, 4)


@register_model
def infvit_softmax_57m() -> ModelConfig:
    """The vision transformer of the same 57.7 million."""
    return _published("softmax", 16, 4)


@register_model
def infvit_linear_305m() -> ModelConfig:
    """24 layers of linear InfSA, 305.4 million."""
    return _published("linear_infsa", 16, 24)


@register_model
def infvit_pure_330m() -> ModelConfig:
    """24 layers of pure InfSA, 330.6 million."""
    return _published("infsa", 16, 24)


# --- four layers for 64 patches of small images, trained in minutes on a CPU ----------------------


def _small(operator: str, heads: int) -> ModelConfig:
    return ModelConfig(
        ImageConfig(
            (56, 56),
            patch=7,
            positions="learned",
            token="ordinary",
        ),
        InfViTConfig(
            dim=64,
            heads=heads,
            operator=operator,
            operator_options={"bias": True},
        ),
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
