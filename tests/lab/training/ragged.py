"""Sequences with different numbers of labelled points, imported by recipes."""

import torch

from fredholm.data import Entry, register_dataset
from fredholm.lab.data.kinds.sequences import SEQUENCES, SequenceDataset


def read(request):
    generator = torch.Generator().manual_seed(len(request.split))
    values = torch.randn(23, 6, 1, generator=generator)
    labels = (values[..., 0] > 0).long()
    # Most samples lack labels at their last points, and each has one at its first point: one of two
    # shards may have many more labels.
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
