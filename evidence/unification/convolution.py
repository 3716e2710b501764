"""Configurations of convolutions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fredholm.domain import Domain

from .measure import Configuration


def grid(*shape: int, dtype: torch.dtype = torch.float64) -> Domain:
    """Return the domain on which an operator of images equals its layer, with mass 1 per point."""
    return Domain.grid(*shape, measure="counting", dtype=dtype)


def on_images(
    family: str,
    label: str,
    build: Callable[[], nn.Module],
    channels: int,
    shape: tuple[int, ...],
    **options,
) -> Configuration:
    """Return a configuration of a layer of (B, C, *shape).

    Its operator has the same points on a grid or, with one axis, on its default line.
    """

    def reference(module: nn.Module, u: Tensor) -> Tensor:
        return module(u.mT.unflatten(-1, shape)).flatten(2).mT

    def apply(call, u: Tensor) -> Tensor:
        if len(shape) == 1:
            return call(u)
        return call(u, grid(*shape, dtype=u.dtype))

    def inputs() -> tuple[Tensor, ...]:
        return (torch.randn(2, torch.Size(shape).numel(), channels),)

    return Configuration(family, label, build, inputs, reference, apply, options)


def convolution(
    label: str, build: Callable[[], nn.Module], channels: int, *shape: int
) -> Configuration:
    return on_images("convolution", label, build, channels, shape)


def chomped(label: str, build: Callable[[], nn.Conv1d], channels: int, n: int) -> Configuration:
    """Return a convolution on a causal line, whose last outputs are left out."""
    return Configuration(
        "convolution",
        label,
        build,
        lambda: (torch.randn(2, n, channels),),
        lambda module, u: module(u.mT)[..., :n].mT,
        lambda call, u: call(u, Domain.line(n, causal=True, measure="counting", dtype=u.dtype)),
    )


CONFIGURATIONS = [
    convolution("Conv1d 1→1, 3 taps, no padding", lambda: nn.Conv1d(1, 1, 3), 1, 7),
    convolution(
        "Conv1d 3→4, 5 taps, no bias", lambda: nn.Conv1d(3, 4, 5, padding=2, bias=False), 3, 7
    ),
    convolution(
        "Conv1d 4→6, 2 groups, dilation 2",
        lambda: nn.Conv1d(4, 6, 3, padding=2, dilation=2, groups=2),
        4,
        8,
    ),
    convolution(
        "Conv1d depthwise, multiplier 2", lambda: nn.Conv1d(3, 6, 3, padding=1, groups=3), 3, 6
    ),
    convolution("Conv1d stride 3, 4 taps", lambda: nn.Conv1d(2, 3, 4, stride=3, padding=1), 2, 11),
    convolution("Conv1d 4 taps, padding same", lambda: nn.Conv1d(2, 2, 4, padding="same"), 2, 6),
    convolution(
        "Conv1d 4 taps, padding same, dilation 3, reflect",
        lambda: nn.Conv1d(2, 2, 4, padding="same", dilation=3, padding_mode="reflect"),
        2,
        7,
    ),
    convolution("Conv1d padding valid", lambda: nn.Conv1d(2, 3, 3, padding="valid"), 2, 6),
    convolution("Conv1d more padding than taps", lambda: nn.Conv1d(2, 3, 3, padding=4), 2, 5),
    convolution(
        "Conv1d reflect", lambda: nn.Conv1d(2, 3, 5, padding=2, padding_mode="reflect"), 2, 4
    ),
    convolution(
        "Conv1d replicate", lambda: nn.Conv1d(2, 3, 5, padding=4, padding_mode="replicate"), 2, 3
    ),
    convolution(
        "Conv1d circular", lambda: nn.Conv1d(2, 3, 5, padding=3, padding_mode="circular"), 2, 4
    ),
    convolution(
        "Conv1d circular, stride 2",
        lambda: nn.Conv1d(4, 2, 3, 2, padding=1, groups=2, padding_mode="circular"),
        4,
        7,
    ),
    convolution("Conv1d longer than the line", lambda: nn.Conv1d(2, 2, 7, padding=3), 2, 3),
    chomped(
        "Conv1d causal, all taps in the past",
        lambda: nn.Conv1d(2, 3, 3, padding=4, dilation=2),
        2,
        7,
    ),
    convolution(
        "Conv2d 4→6, 3×3, stride 2", lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), 4, 5, 4
    ),
    convolution("Conv2d 1×1", lambda: nn.Conv2d(3, 5, 1), 3, 3, 4),
    convolution(
        "Conv2d 3×2, unequal stride, padding, dilation",
        lambda: nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1), groups=2),
        2,
        6,
        5,
    ),
    convolution("Conv2d depthwise 3×3", lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), 4, 4, 5),
    convolution("Conv2d 2×2, padding same", lambda: nn.Conv2d(2, 2, 2, padding="same"), 2, 3, 4),
    convolution(
        "Conv2d reflect",
        lambda: nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode="reflect"),
        2,
        4,
        3,
    ),
    convolution(
        "Conv2d replicate", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"), 2, 3, 3
    ),
    convolution(
        "Conv2d circular",
        lambda: nn.Conv2d(2, 3, (3, 5), padding="same", padding_mode="circular"),
        2,
        3,
        4,
    ),
    convolution(
        "Conv3d 2→4, 2 groups",
        lambda: nn.Conv3d(2, 4, (1, 2, 3), padding=(0, 1, 1), groups=2),
        2,
        2,
        3,
        3,
    ),
    convolution(
        "Conv3d circular, stride 2",
        lambda: nn.Conv3d(2, 2, 3, 2, 1, padding_mode="circular"),
        2,
        3,
        2,
        4,
    ),
    convolution(
        "ConvTranspose1d stride 2", lambda: nn.ConvTranspose1d(3, 2, 4, stride=2, padding=1), 3, 5
    ),
    convolution(
        "ConvTranspose1d stride 3, output padding, dilation, groups",
        lambda: nn.ConvTranspose1d(
            4, 6, 2, stride=3, padding=1, output_padding=2, groups=2, dilation=2
        ),
        4,
        4,
    ),
    convolution(
        "ConvTranspose1d stride 1, no bias", lambda: nn.ConvTranspose1d(2, 3, 3, bias=False), 2, 4
    ),
    convolution(
        "ConvTranspose2d 3×3, stride 2, output padding",
        lambda: nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
        2,
        3,
        2,
    ),
    convolution(
        "ConvTranspose2d 2×2, unequal stride",
        lambda: nn.ConvTranspose2d(3, 2, 2, stride=(2, 3)),
        3,
        2,
        3,
    ),
    convolution(
        "ConvTranspose3d stride 2",
        lambda: nn.ConvTranspose3d(2, 2, 2, stride=2, padding=1),
        2,
        2,
        2,
        3,
    ),
]


def on_points(label: str, build: Callable[[], nn.Module], batch: int, channels: int, *shape: int):
    """Return a row of :mod:`.speed`: the module on images, the operator on points."""

    def make_input() -> tuple[Tensor, Tensor, Domain]:
        images = torch.randn(batch, channels, *shape)
        make = Domain.grid if len(shape) > 1 else Domain.line
        domain = make(*shape, measure="counting")
        return images, images.flatten(2).mT.contiguous(), domain

    return label, build, make_input, lambda module, images, u, domain: module(images), _on_points


def _on_points(operator, images: Tensor, u: Tensor, domain: Domain) -> Tensor:
    return operator(u, domain)


SPEED = [
    on_points("Conv1d 64, N=4096, k=9", lambda: nn.Conv1d(64, 64, 9, padding=4), 2, 64, 4096),
    on_points("Conv2d 64, 56×56, k=3", lambda: nn.Conv2d(64, 64, 3, padding=1), 4, 64, 56, 56),
    on_points(
        "Conv2d depthwise 128, 28×28, k=3",
        lambda: nn.Conv2d(128, 128, 3, padding=1, groups=128),
        8,
        128,
        28,
        28,
    ),
    on_points(
        "ConvTranspose2d 64, 28×28, k=2",
        lambda: nn.ConvTranspose2d(64, 64, 2, stride=2),
        4,
        64,
        28,
        28,
    ),
]
