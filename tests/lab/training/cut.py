"""Small deterministic data sets of clouds, sequences, fields and steps, imported by recipes.

Fields and sequences are on disk.
"""

import os
from pathlib import Path

import numpy as np
import torch

from fredholm.data import (
    Entry,
    FieldDataset,
    PointDataset,
    SequenceDataset,
    StoredRows,
    register_dataset,
)
from fredholm.lab.data.kinds.fields import FIELDS
from fredholm.lab.data.kinds.points import POINTS
from fredholm.lab.data.kinds.sequences import SEQUENCES

COUNT = 12


def seeded(request):
    return torch.Generator().manual_seed(len(request.split))


def stored(name, request, values):
    """Return values as a file shared by the processes; the first one writes it."""
    path = Path(os.environ["FREDHOLM_TEST_ROWS"]) / f"{name}-{request.split}.npy"
    if not path.exists():
        np.save(path, values.numpy())
    return StoredRows(path)


def clouds(request):
    points = torch.randn(COUNT, 15, 3, generator=seeded(request))
    # Every third cloud has fewer points, so that a shard of it may be empty.
    points[::3, 9:] = torch.nan
    labels = torch.arange(COUNT) % 2
    points[labels == 1] *= 2.0
    rows = stored("clouds", request, points)
    return PointDataset("cut-clouds", request.split, rows, labels, ("near", "far"), points=13)


def sequences(request):
    values = torch.randn(COUNT, 11, 2, generator=seeded(request)).cumsum(1)
    # An early end, and a gap.
    values[1, 8:], values[2, 4] = torch.nan, torch.nan
    labels = (values[:, 3, 0] > 0).long()
    rows = stored("sequences", request, values)
    return SequenceDataset(
        "cut-sequences", request.split, labels, ("down", "up"), rows, shape=(11, 2)
    )


def steps(request):
    values = torch.randn(COUNT, 7, 1, generator=seeded(request))
    labels = (values[..., 0] > 0).long()
    # Some sequences have labels at their first steps alone.
    labels[torch.arange(7) > torch.arange(COUNT)[:, None] % 5] = -100
    return SequenceDataset(
        "cut-steps",
        request.split,
        labels,
        ("-", "+"),
        values.__getitem__,
        shape=(7, 1),
        task="steps",
    )


def fields(request):
    media = torch.rand(COUNT, 1, 7, 6, generator=seeded(request))
    rows = [
        stored(name, request, some) for name, some in (("media", media), ("flow", media.cumsum(2)))
    ]
    return FieldDataset("cut-fields", request.split, *rows, ("u",), scale=(2.0,))


for name, kind, read in (
    ("cut-clouds", POINTS, clouds),
    ("cut-sequences", SEQUENCES, sequences),
    ("cut-steps", SEQUENCES, steps),
    ("cut-fields", FIELDS, fields),
):
    register_dataset(
        Entry(
            name=name,
            title=name,
            source="generated",
            licence_package="none needed",
            licence_data="none needed",
            kind=kind,
            read=read,
        )
    )
