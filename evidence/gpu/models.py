"""Whole models: ITNet in its modes beside a vision transformer on PyTorch's fused attention, and
InfViT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SAMPLES, RANK = 128, 64
MODES = ("exact", "exact grid", "LR-64", "MC-128", "ViT")
# Images with as many patches of 16 pixels as in the paper's Table 16.
IMAGES = {196: (224, 224), 512: (256, 512), 1024: (512, 512)}
SIZES = {"S": (384, 12, 6), "B": (768, 12, 12)}
TINY: dict = {"widths": (16, 1, 2), "width": 8, "frequencies": 2}
SIDES = (1024, 2048, 4096, 9216)


class Attention(nn.Module):
    """Multi-head softmax attention through ``scaled_dot_product_attention``."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.project, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, u: Tensor) -> Tensor:
        q, k, v = self.project(u).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ViT(nn.Module):
    """The vision transformer (DeiT) beside ITNet: patches, pre-norm blocks, mean, linear head."""

    def __init__(
        self,
        image: tuple[int, int],
        patch: int,
        dim: int,
        depth: int,
        heads: int,
        channels: int = 3,
    ):
        super().__init__()
        self.patches = nn.Conv2d(channels, dim, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, image[0] * image[1] // patch**2, dim) * 0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * depth + 1))
        self.attention = nn.ModuleList(Attention(dim, heads) for _ in range(depth))
        self.feed_forward = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            for _ in range(depth)
        )
        self.head = nn.Linear(dim, 1000)

    def forward(self, images: Tensor) -> Tensor:
        u = self.patches(images).flatten(2).mT + self.positions
        for i, (attention, feed_forward) in enumerate(zip(self.attention, self.feed_forward)):
            u = u + attention(self.norms[2 * i](u))
            u = u + feed_forward(self.norms[2 * i + 1](u))
        return self.head(self.norms[-1](u).mean(1))


@dataclass(frozen=True)
class ModelCase:
    """A model to time.

    Attributes:
        facts: columns that name the row.
        make: makes the model.
        image: shape of one input.
        batch: number of inputs at once.
        train: time training steps instead of inference.
    """

    facts: dict[str, object]
    make: Callable[[], nn.Module]
    image: tuple[int, int, int]
    batch: int
    train: bool


def make_itnet(
    mode: str, size: str, image: tuple[int, int], patch: int = 16, backend: str = "triton", **more
) -> nn.Module:
    """Return ITNet (or the ViT) of one size, with GELU's tanh form.

    The exact modes run by ``backend``, and raise an error where it is unavailable. ``exact`` is the
    published model: its class token lies outside the grid, so that displacements are columns of the
    product. ``exact grid`` pools by the mean, and displacements are a table.
    """
    from fredholm.models import create_model

    dim, depth, heads = more.pop("widths", None) or SIZES[size]
    if mode == "ViT":
        return ViT(image, patch, dim, depth, heads)
    options: dict[str, object] = {"width": 128, "activation": "gelu_tanh"} | more
    operator = "itnet"
    if mode == "LR-64":
        operator, options = "itnet_low_rank", options | {"rank": math.ceil(RANK / heads)}
    elif mode == "MC-128":
        tokens = image[0] * image[1] // patch**2
        options["strategy"] = {"name": "monte_carlo", "samples": min(SAMPLES, tokens)}
    else:
        options["strategy"] = {"name": "exact", "backend": backend}
    pool = "mean" if mode == "exact grid" else "cls"
    return create_model(
        f"itnet_{size.lower()}",
        encoder={"image_size": image, "patch": patch},
        body={
            "dim": dim,
            "depth": depth,
            "heads": heads,
            "operator": operator,
            "operator_options": options,
            "dropout": 0.0,
            "drop_path": 0.0,
        },
        head={"pool": pool},
    )


def itnet_cases() -> Iterator[ModelCase]:
    """Yield the cases of Table 16: inference and training of every mode, size and length."""
    for size in SIZES:
        for n, image in IMAGES.items():
            for mode in MODES:
                for train in (False, True):
                    facts: dict[str, object] = {"model": f"ITNet-{size}", "mode": mode, "N": n}
                    facts["direction"] = "training" if train else "inference"
                    batch = max(8, (32 if train else 128) * 196 // n)
                    make = lambda mode=mode, size=size, image=image: make_itnet(mode, size, image)  # noqa: E731
                    yield ModelCase(facts, make, (3, *image), batch, train)


def infvit_cases() -> Iterator[ModelCase]:
    """Yield inference of InfViT with four linear layers, one image at a time, at growing sizes."""
    from fredholm.models import create_model

    for side in SIDES:
        facts: dict[str, object] = {
            "model": "InfViT linear, 4 layers",
            "mode": "linear",
            "N": (side // 16) ** 2,
        }
        facts["direction"] = "inference"
        make = lambda side=side: create_model(  # noqa: E731
            "infvit_linear_4", encoder={"image_size": side}, body={"chunk": 1 << 16}
        )
        yield ModelCase(facts, make, (3, side, side), 1, False)


def smoke_cases() -> Iterator[ModelCase]:
    """Yield every kind of model at up to 16 tokens, for a machine without a GPU."""
    from fredholm.models import create_model

    for mode in MODES:
        facts: dict[str, object] = {
            "model": "ITNet-tiny",
            "mode": mode,
            "N": 4,
            "direction": "training",
        }
        yield ModelCase(
            facts, lambda mode=mode: make_itnet(mode, "S", (8, 8), 4, **TINY), (3, 8, 8), 2, True
        )
    facts = {"model": "InfViT linear, 1 layer", "mode": "linear", "N": 16, "direction": "inference"}
    small = {
        "encoder": {"image_size": 16, "patch": 4},
        "body": {"dim": 16, "heads": 4, "depth": 1},
    }
    yield ModelCase(facts, lambda: create_model("infvit_linear_4", **small), (3, 16, 16), 1, False)
