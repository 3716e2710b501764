"""CIFAR-10 mosaics: one animal among vehicles. The class is the animal's, and its cell is known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fredholm.errors import OptionError
from fredholm.lab.data.catalogue import cifar10
from fredholm.lab.data.catalogue.copy_memory import SPLITS
from fredholm.lab.data.counter import integers
from fredholm.lab.data.registry import Entry, Request, register_dataset

from .composed import ComposedDataset, base_images, sample_count

SIDE = 32
ANIMALS = (2, 3, 4, 5, 6, 7)  # of CIFAR-10's classes; the others are vehicles


@dataclass(frozen=True)
class MosaicOptions:
    """``cells``: pictures along a side; ``seed`` of the arrangement; ``train``, ``val``, ``test``:
    how many mosaics, 0 for one an animal.

    Raises:
        OptionError: fewer than two cells, or a negative number of mosaics.
    """

    cells: int = 2
    seed: int = 0
    train: int = 0
    val: int = 0
    test: int = 0

    def __post_init__(self) -> None:
        for name, least in (("cells", 2), ("train", 0), ("val", 0), ("test", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise OptionError(f"{name}: received {value!r}; needs a number, {least} or more")


def compose(
    images: Tensor, animals: Tensor, vehicles: Tensor, indices: Tensor, cells: int, *keys: int
) -> tuple[Tensor, Tensor]:
    """Mosaics (B, C, s·cells, s·cells) and the animals' cells (B, s·cells, s·cells), from keys and
    indices alone.

    Args:
        images: of both, (N, C, s, s).
        animals, vehicles: their indices; mosaic i shows animal i.

    Example:
        >>> images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1)
        >>> parts = torch.tensor([3]), torch.tensor([0, 1]), torch.tensor([0])
        >>> mosaic, mask = compose(images, *parts, 2, 7)
        >>> inside, outside = mosaic[:, 0][mask], mosaic[:, 0][~mask]
        >>> bool((inside == 3).all()), mask.sum().item(), bool((outside < 2).all())
        (True, 1, True)
    """
    side, count = images.shape[-1], cells * cells
    which = vehicles[integers(len(vehicles), *keys, 0, indices[:, None], torch.arange(count))]
    own = integers(count, *keys, 1, indices)
    which[torch.arange(len(indices)), own] = animals[indices]
    grid = images[which].unflatten(1, (cells, cells))  # (B, row, column, C, s, s)
    result = grid.permute(0, 3, 1, 4, 2, 5).reshape(
        len(indices), images.shape[1], cells * side, cells * side
    )
    chosen = torch.nn.functional.one_hot(own, count).bool().unflatten(1, (cells, cells))
    return result, chosen.repeat_interleave(side, 1).repeat_interleave(side, 2)


def create(request: Request) -> ComposedDataset:
    """The data set of a request; a mosaic is made when asked for."""
    entry, options = request.entry, request.options
    whole = (SIDE * options.cells, SIDE * options.cells)
    if request.image_size not in (None, whole):
        raise OptionError(
            f"image_size: received {request.image_size}; {options.cells} cells of {SIDE} make "
            f"{whole}; set cells"
        )
    source = base_images(request)
    is_animal = torch.isin(source.labels, torch.tensor(ANIMALS))
    animals, vehicles = is_animal.nonzero()[:, 0], (~is_animal).nonzero()[:, 0]
    count = sample_count(request.split, getattr(options, request.split), len(animals))
    key = SPLITS[request.split]
    return ComposedDataset(
        entry.name,
        request.split,
        source.labels[animals][:count] - ANIMALS[0],
        entry.classes,
        entry.mean,
        entry.std,
        (3, *whole),
        lambda indices: compose(
            source.images, animals, vehicles, indices, options.cells, options.seed, key
        ),
    )


ENTRY = Entry(
    name="cifar-mosaic",
    title="CIFAR-10 mosaics: which animal is among the vehicles",
    source="made from cifar10",
    licence_package=cifar10.ENTRY.licence_package,
    licence_data=cifar10.ENTRY.licence_data,
    samples={"train": 30000, "test": 6000},
    classes=tuple(cifar10.ENTRY.classes[i] for i in ANIMALS),
    shape=(3, 2 * SIDE, 2 * SIDE),
    mean=cifar10.ENTRY.mean,
    std=cifar10.ENTRY.std,
    read=create,
    base="cifar10",
    official=cifar10.ENTRY.official,
    notes="options: cells (along a side, default 2), seed, train, val, test; the animal's cell is "
    "its box and mask",
    options=MosaicOptions,
)
register_dataset(ENTRY)
