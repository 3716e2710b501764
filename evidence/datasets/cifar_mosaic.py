"""CIFAR-10 mosaics: one animal among vehicles, with the animal's class and cell as labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fredholm.errors import OptionError
from fredholm.lab.data.catalogue import cifar10
from fredholm.lab.data.counter import integers
from fredholm.lab.data.registry import Entry, Request, register_dataset

from .checks import check_integers
from .composed import ComposedDataset, base_images, sample_count
from .copy_memory import SPLITS

SIDE = 32
ANIMALS = (2, 3, 4, 5, 6, 7)
"""CIFAR-10's classes of animals. The others are vehicles."""


@dataclass(frozen=True)
class MosaicOptions:
    """Options of the data set.

    Attributes:
        cells: number of pictures along a side.
        seed: of the arrangement.
        train, val, test: numbers of mosaics; 0 for one per animal.

    Raises:
        OptionError: fewer than two cells, or a negative number of mosaics.
    """

    cells: int = 2
    seed: int = 0
    train: int = 0
    val: int = 0
    test: int = 0

    def __post_init__(self) -> None:
        check_integers(self, 2, "cells")
        check_integers(self, 0, "train", "val", "test")


def compose(
    images: Tensor, animals: Tensor, vehicles: Tensor, indices: Tensor, cells: int, *keys: int
) -> tuple[Tensor, Tensor]:
    """Compose mosaics (B, C, s·cells, s·cells) and masks of the animals (B, s·cells, s·cells).

    They depend only on keys and indices.

    Args:
        images: of animals and vehicles, (N, C, s, s).
        animals, vehicles: indices of the images; mosaic i shows animal i.
        indices: of the mosaics, (B,).
        cells: number of pictures along a side.
        keys: of the random numbers.

    Example:
        >>> images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1)
        >>> parts = torch.tensor([3]), torch.tensor([0, 1]), torch.tensor([0])
        >>> mosaic, mask = compose(images, *parts, 2, 7)
        >>> inside, outside = mosaic[:, 0][mask], mosaic[:, 0][~mask]
        >>> bool((inside == 3).all()), mask.sum().item(), bool((outside < 2).all())
        (True, 1, True)
    """
    side, count = images.shape[-1], cells * cells
    # Fill all cells with vehicles, then put the animal over one of them.
    pictures = vehicles[integers(len(vehicles), *keys, 0, indices[:, None], torch.arange(count))]
    cell = integers(count, *keys, 1, indices)
    pictures[torch.arange(len(indices)), cell] = animals[indices]

    # (B, row, column, C, s, s) to (B, C, row, s, column, s).
    grid = images[pictures].unflatten(1, (cells, cells)).permute(0, 3, 1, 4, 2, 5)
    mosaics = grid.reshape(len(indices), images.shape[1], cells * side, cells * side)
    chosen = torch.nn.functional.one_hot(cell, count).bool().unflatten(1, (cells, cells))
    return mosaics, chosen.repeat_interleave(side, 1).repeat_interleave(side, 2)


def create(request: Request) -> ComposedDataset:
    """Return the data set of a request, which composes a mosaic when it is read."""
    entry, options = request.entry, request.options
    size = (SIDE * options.cells, SIDE * options.cells)
    if request.image_size not in (None, size):
        raise OptionError(
            f"image_size: expected {size} for {options.cells} cells of {SIDE} pixels, got "
            f"{request.image_size}; set cells"
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
        (3, *size),
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
