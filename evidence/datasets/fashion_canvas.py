"""Fashion canvas: one article of Fashion-MNIST on a larger canvas among fragments of others, with a
mask of the article.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fredholm.errors import OptionError
from fredholm.lab.data.catalogue import fashion_mnist
from fredholm.lab.data.counter import integers, uniform
from fredholm.lab.data.registry import Entry, Request, register_dataset

from .checks import check_integers
from .composed import ComposedDataset, base_images, sample_count
from .copy_memory import SPLITS

SIDE = 28
"""Side of an article, in pixels."""
THRESHOLD = 16
"""Brightness above which a pixel belongs to the article."""
SIZE = (56, 56)
FAINT = 0.8
"""Largest brightness of a fragment, relative to its article."""
NOISE = 40
"""Largest value of the noise."""


@dataclass(frozen=True)
class CanvasOptions:
    """Options of the data set.

    Attributes:
        clutter: number of fragments of other articles.
        fragment: their side, in pixels.
        seed: of the positions.
        train, val, test: numbers of canvases; 0 for one per article.

    Raises:
        OptionError: a negative number, or a fragment larger than an article.
    """

    clutter: int = 12
    fragment: int = 10
    seed: int = 0
    train: int = 0
    val: int = 0
    test: int = 0

    def __post_init__(self) -> None:
        check_integers(self, 0, "clutter", "train", "val", "test")
        if not isinstance(self.fragment, int) or not 1 <= self.fragment <= SIDE:
            raise OptionError(
                f"fragment: expected a side from 1 to {SIDE} pixels, got {self.fragment!r}"
            )


def compose(
    articles: Tensor, indices: Tensor, size: tuple[int, int], options: CanvasOptions, *keys: int
) -> tuple[Tensor, Tensor]:
    """Compose canvases (B, 1, H, W) uint8 of the articles ``indices`` and their masks (B, H, W).

    They depend only on keys and indices. A canvas has noise, over it dimmed fragments of random
    articles, and over both the article.

    Example:
        >>> white = torch.full((3, 1, 28, 28), 255, dtype=torch.uint8)
        >>> canvas, mask = compose(white, torch.tensor([0, 2]), (40, 40), CanvasOptions(), 7)
        >>> mask.sum((1, 2)).tolist(), bool((canvas[:, 0][mask] == 255).all())
        ([784, 784], True)
    """
    (height, width), batch = size, len(indices)
    pixel = torch.arange(height * width).view(height, width)
    canvas = (uniform(*keys, 0, indices[:, None, None], pixel) * NOISE).float()
    rows = torch.arange(batch)[:, None, None]
    for number in range(options.clutter):
        draw = [uniform(*keys, 1, number, part, indices) for part in range(6)]
        side, margin = options.fragment, SIDE - options.fragment
        article, cut_y, cut_x, put_y, put_x, dim = draw
        other = (article * len(articles)).long()
        from_y, from_x = _window(cut_y, cut_x, (margin, margin), side)
        y, x = _window(put_y, put_x, (height - side, width - side), side)
        brightness = (FAINT * dim.float())[:, None, None]
        piece = articles[other[:, None, None], 0, from_y, from_x].float() * brightness
        canvas[rows, y, x] = torch.maximum(canvas[rows, y, x], piece)

    top = integers(height - SIDE + 1, *keys, 2, indices)
    left = integers(width - SIDE + 1, *keys, 3, indices)
    y = top[:, None, None] + torch.arange(SIDE)[:, None]
    x = left[:, None, None] + torch.arange(SIDE)
    article = articles[indices, 0].float()
    inside = article > THRESHOLD
    canvas[rows, y, x] = torch.where(inside, article, canvas[rows, y, x])
    mask = torch.zeros(batch, height, width, dtype=torch.bool)
    mask[rows, y, x] = inside
    return canvas.round().byte()[:, None], mask


def _window(
    vertical: Tensor, horizontal: Tensor, span: tuple[int, int], side: int
) -> tuple[Tensor, Tensor]:
    """Return row indices (B, side, 1) and column indices (B, 1, side) of random squares.

    Their corners are uniform in 0 … span, from uniform draws in [0, 1).
    """
    top = (vertical * (span[0] + 1)).long()[:, None, None]
    left = (horizontal * (span[1] + 1)).long()[:, None, None]
    return top + torch.arange(side)[:, None], left + torch.arange(side)


def create(request: Request) -> ComposedDataset:
    """Return the data set of a request; reading a sample composes a canvas of ``image_size``."""
    entry, options = request.entry, request.options
    size = request.image_size or SIZE
    if min(size) < SIDE:
        raise OptionError(
            f"image_size: expected a canvas no smaller than an article of {SIDE}x{SIDE}, got {size}"
        )
    source = base_images(request)
    count = sample_count(request.split, getattr(options, request.split), len(source))
    key = SPLITS[request.split]
    return ComposedDataset(
        entry.name,
        request.split,
        source.labels[:count],
        entry.classes,
        entry.mean,
        entry.std,
        (1, size[0], size[1]),
        lambda indices: compose(source.images, indices, size, options, options.seed, key),
    )


ENTRY = Entry(
    name="fashion-canvas",
    title="Fashion-MNIST articles on cluttered canvases, with boxes and masks",
    source="made from fashion-mnist",
    licence_package=fashion_mnist.ENTRY.licence_package,
    licence_data=fashion_mnist.ENTRY.licence_data,
    samples=fashion_mnist.ENTRY.samples,
    classes=fashion_mnist.ENTRY.classes,
    shape=(1, *SIZE),
    mean=(0.1764,),
    std=(0.2139,),
    read=create,
    base="fashion-mnist",
    official=fashion_mnist.ENTRY.official,
    notes="options: clutter, fragment, seed, train, val, test; image_size is the canvas's (default "
    "56)",
    options=CanvasOptions,
)
register_dataset(ENTRY)
