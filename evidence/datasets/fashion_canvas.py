"""Fashion canvas: one article of Fashion-MNIST on a larger canvas among fragments of others. Where
it is, is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fredholm.errors import OptionError
from fredholm.lab.data.catalogue import fashion_mnist
from fredholm.lab.data.catalogue.copy_memory import SPLITS
from fredholm.lab.data.counter import integers, uniform
from fredholm.lab.data.registry import Entry, Request, register_dataset

from .composed import ComposedDataset, base_images, sample_count

SIDE = 28  # of an article
THRESHOLD = 16  # brightness above which a pixel belongs to the article
SIZE = (56, 56)
FAINT, NOISE = (
    0.8,
    40,
)  # largest brightness of a fragment in units of its own; largest value of the noise


@dataclass(frozen=True)
class CanvasOptions:
    """``clutter``: fragments of other articles; ``fragment``: their side in pixels; ``seed`` of the
    places; ``train``, ``val``, ``test``: how many canvases a split has, 0 for one for every
    article.

    Raises:
        OptionError: negative numbers, or a fragment that is no part of an article.
    """

    clutter: int = 12
    fragment: int = 10
    seed: int = 0
    train: int = 0
    val: int = 0
    test: int = 0

    def __post_init__(self) -> None:
        for name in ("clutter", "train", "val", "test"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise OptionError(f"{name}: received {value!r}; needs a number, 0 or more")
        if not isinstance(self.fragment, int) or not 1 <= self.fragment <= SIDE:
            raise OptionError(
                f"fragment: received {self.fragment!r}; needs a side from 1 to {SIDE} pixels"
            )


def compose(
    articles: Tensor, indices: Tensor, size: tuple[int, int], options: CanvasOptions, *keys: int
) -> tuple[Tensor, Tensor]:
    """Canvases (B, 1, H, W) uint8 of the articles ``indices`` and the articles' pixels (B, H, W),
    from keys and indices alone.

    Noise, then fragments of articles drawn from all, dimmed, then the whole article over both.

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
        other = (draw[0] * len(articles)).long()
        cut, place = (
            _window(draw[i], draw[i + 1], span, side)
            for i, span in ((1, (margin, margin)), (3, (height - side, width - side)))
        )
        piece = (
            articles[other[:, None, None], 0, cut[0], cut[1]].float()
            * (FAINT * draw[5].float())[:, None, None]
        )
        canvas[rows, place[0], place[1]] = torch.maximum(canvas[rows, place[0], place[1]], piece)
    top, left = (
        integers(height - SIDE + 1, *keys, 2, indices),
        integers(width - SIDE + 1, *keys, 3, indices),
    )
    y, x = (
        top[:, None, None] + torch.arange(SIDE)[:, None],
        left[:, None, None] + torch.arange(SIDE),
    )
    article = articles[indices, 0].float()
    own = article > THRESHOLD
    canvas[rows, y, x] = torch.where(own, article, canvas[rows, y, x])
    mask = torch.zeros(batch, height, width, dtype=torch.bool)
    mask[rows, y, x] = own
    return canvas.round().byte()[:, None], mask


def _window(
    vertical: Tensor, horizontal: Tensor, span: tuple[int, int], side: int
) -> tuple[Tensor, Tensor]:
    """Row and column indices (B, side, 1) and (B, 1, side) of squares whose corners lie uniformly
    in 0 … span.
    """
    top, left = (
        (draw * (room + 1)).long()[:, None, None]
        for draw, room in zip((vertical, horizontal), span)
    )
    return top + torch.arange(side)[:, None], left + torch.arange(side)


def create(request: Request) -> ComposedDataset:
    """The data set of a request; a canvas is made when asked for. ``image_size`` is that of the
    canvas.
    """
    entry, options = request.entry, request.options
    size = request.image_size or SIZE
    if min(size) < SIDE:
        raise OptionError(
            f"image_size: received {size}; the articles are {SIDE}x{SIDE}, a canvas is no smaller"
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
