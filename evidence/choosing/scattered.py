"""Handwritten digits known at scattered places only: 32 points of the plane and the ink at each."""

from __future__ import annotations

import torch
from torch.nn.functional import grid_sample

from fredholm.data import Entry, create_dataset, register_dataset
from fredholm.lab.data.kinds.points import POINTS, PointDataset

PLACES = 32
SPLITS = ("train", "val", "test")


def read(request) -> PointDataset:
    """Places uniform on the square, others for each picture; ink between pixels is interpolated."""
    digits = create_dataset("digits", request.split)
    images, labels = digits.batch(range(len(digits)))
    generator = torch.Generator().manual_seed(SPLITS.index(request.split))
    places = torch.rand(len(images), PLACES, 2, generator=generator)
    ink = grid_sample(
        images, 2 * places[:, :, None] - 1, align_corners=False, padding_mode="border"
    )
    clouds = torch.cat([places, ink[:, 0]], -1)
    return PointDataset(
        "scattered-digits", request.split, clouds, labels, digits.classes, coordinates=2
    )


ENTRY = register_dataset(
    Entry(
        name="scattered-digits",
        title="Digits at 32 scattered places",
        licence_package="BSD-3-Clause",
        licence_data="CC BY 4.0 (UCI repository)",
        kind=POINTS,
        classes=tuple("0123456789"),
        read=read,
    )
)
