"""InfViT's presets: the paper's sizes, softmax of equal depth, and small ones for a CPU."""

from __future__ import annotations

from collections.abc import Callable

from .config import InfViTConfig


def _size(operator: str, heads: int, depth: int) -> Callable[[], InfViTConfig]:
    """A size of the paper, §4; its width of 768 is 64 heads of 12 or 16 of 48."""

    def preset() -> InfViTConfig:
        return InfViTConfig(
            operator=operator, heads=heads, depth=depth, operator_options={"bias": True}
        )

    return preset


def _small(operator: str, heads: int) -> Callable[[], InfViTConfig]:
    """Four layers for 64 patches of small images, trained in minutes on a CPU."""

    def preset() -> InfViTConfig:
        return InfViTConfig(
            image_size=(56, 56),
            patch=7,
            channels=1,
            num_classes=10,
            dim=64,
            heads=heads,
            operator=operator,
        )

    return preset


PRESETS: dict[str, Callable[[], InfViTConfig]] = {
    "infvit_linear_4": _size("linear_infsa", 64, 4),
    "infvit_pure_4": _size("infsa", 16, 4),
    "infvit_softmax_4": _size("softmax", 16, 4),
    "infvit_linear_24": _size("linear_infsa", 16, 24),
    "infvit_pure_24": _size("infsa", 16, 24),
    "infvit_softmax_24": _size("softmax", 16, 24),
    "infvit_linear_pico": _small("linear_infsa", 16),
    "infvit_pure_pico": _small("infsa", 4),
    "infvit_softmax_pico": _small("softmax", 4),
}
