"""The continuous transformer's named models, of texts and of images."""

from __future__ import annotations

from typing import Any

from .config import ContinuousConfig

_TEXT: dict[str, Any] = {"encoder": "text", "vocabulary": 8192, "max_length": 64, "num_classes": 2}
_IMAGENET: dict[str, Any] = {
    "image_size": (224, 224),
    "patch": 16,
    "channels": 3,
    "num_classes": 1000,
}

PRESETS = {
    "continuous_text_micro": lambda: ContinuousConfig(**_TEXT, dropout=0.3),
    "continuous_text_base": lambda: ContinuousConfig(
        encoder="text",
        vocabulary=32768,
        max_length=512,
        num_classes=2,
        dim=512,
        heads=8,
        depth=6,
        norm="post",
        activation="relu",
        mlp_ratio=4.0,
    ),
    "continuous_vit_micro": lambda: ContinuousConfig(dropout=0.0),
    "continuous_vit_b": lambda: ContinuousConfig(
        **_IMAGENET,
        dim=768,
        heads=12,
        depth=12,
        mlp_ratio=4.0,
        pool="cls",
        frequencies=64,
        sigma=10.0,
    ),
    "continuous_cvt_micro": lambda: ContinuousConfig(
        dropout=0.0, depth=2, stages=((32, 1, 1, 4), (64, 2, 4, 2)), dim=64, heads=4
    ),
    "continuous_cvt_13": lambda: ContinuousConfig(
        **_IMAGENET,
        dim=384,
        heads=6,
        depth=10,
        mlp_ratio=4.0,
        stages=((64, 1, 1, 4), (192, 2, 3, 2), (384, 10, 6, 2)),
    ),
}
