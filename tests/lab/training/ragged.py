"""Sequences of which some points are asked, not equally many of each: imported by recipes."""

import torch

from fredholm.data import Entry, register_dataset
from fredholm.lab.data.kinds.sequences import SEQUENCES, SequenceDataset


def read(request):
    generator = torch.Generator().manual_seed(len(request.split))
    values = torch.randn(23, 6, 1, generator=generator)
    labels = (values[..., 0] > 0).long()
    # The last points of most, all of none: of two processes' parts one may ask for far more.
    labels[torch.arange(6) > torch.arange(23)[:, None] % 7] = -100
    return SequenceDataset(
        "ragged", request.split, labels, ("-", "+"), values.__getitem__, shape=(6, 1), task="steps"
    )


ENTRY = register_dataset(
    Entry(
        name="ragged",
        title="Signs of some points",
        source="generated",
        licence_package="none needed",
        licence_data="none needed",
        kind=SEQUENCES,
        read=read,
    )
)
