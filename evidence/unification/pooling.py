"""Configurations of pooling and linear layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .convolution import on_images
from .measure import Configuration

CHANNELS = 3


def pooling(label: str, build: Callable[[], nn.Module], *shape: int) -> Configuration:
    return on_images("pooling", label, build, CHANNELS, shape, dim=CHANNELS)


CONFIGURATIONS = [
    pooling("AvgPool1d 2", lambda: nn.AvgPool1d(2), 7),
    pooling(
        "AvgPool1d 3, stride 2, padding 1, ceil", lambda: nn.AvgPool1d(3, 2, 1, ceil_mode=True), 8
    ),
    pooling(
        "AvgPool1d without padding counted",
        lambda: nn.AvgPool1d(3, 1, 1, count_include_pad=False),
        5,
    ),
    pooling("AvgPool2d 3×2, padding 1", lambda: nn.AvgPool2d((3, 2), (2, 1), 1), 5, 4),
    pooling(
        "AvgPool2d ceil, padding not counted",
        lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        6,
        5,
    ),
    pooling(
        "AvgPool2d divisor 5", lambda: nn.AvgPool2d(2, 2, ceil_mode=True, divisor_override=5), 3, 4
    ),
    pooling("AvgPool3d ceil", lambda: nn.AvgPool3d(2, ceil_mode=True), 3, 2, 3),
    pooling("AdaptiveAvgPool1d 3", lambda: nn.AdaptiveAvgPool1d(3), 8),
    pooling("AdaptiveAvgPool2d 1", lambda: nn.AdaptiveAvgPool2d(1), 3, 4),
    pooling("AdaptiveAvgPool2d keeps an axis", lambda: nn.AdaptiveAvgPool2d((None, 5)), 3, 4),
    pooling("AdaptiveAvgPool3d 2", lambda: nn.AdaptiveAvgPool3d(2), 3, 2, 3),
    pooling("MaxPool1d 3, dilation 2", lambda: nn.MaxPool1d(3, 1, 1, dilation=2), 7),
    pooling(
        "MaxPool2d 3, stride 2, padding 1, ceil",
        lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        5,
        4,
    ),
    pooling("MaxPool3d 2", lambda: nn.MaxPool3d(2, 1), 3, 2, 3),
    Configuration(
        "linear",
        "Linear 3→4",
        lambda: nn.Linear(3, 4),
        lambda: (torch.randn(2, 5, 3),),
        lambda module, u: module(u),
    ),
    Configuration(
        "linear",
        "Linear 3→2, no bias",
        lambda: nn.Linear(3, 2, bias=False),
        lambda: (torch.randn(2, 5, 3),),
        lambda module, u: module(u),
    ),
]
