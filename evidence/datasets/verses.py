"""Verses: the pairs of ``kjv-web`` as two sequences of bytes, a stand-in for the Long Range Arena's
Retrieval task.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fredholm.lab.data.create import source_folder
from fredholm.lab.data.kinds.sequences import SEQUENCES
from fredholm.lab.data.kinds.tokens import Rows, TokenDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset

from . import kjv_web
from .aan import PairOptions, pair_dataset


def create(request: Request) -> TokenDataset:
    """Return the data set of a request: pairs of verses, and whether they are the same verse."""
    folder = source_folder(replace(request, entry=kjv_web.ENTRY), lambda file: True)
    first, second, labels = [], [], []
    for verses, text, same in kjv_web.read_pairs(folder):
        if kjv_web.split_of(verses[0]) != request.split:
            continue
        one, other = text.split(kjv_web.BETWEEN)
        first.append(one)
        second.append(other)
        labels.append(int(same))

    length = request.options.max_length
    rows = Rows.of_texts(first, length), Rows.of_texts(second, length)
    return pair_dataset(request, *rows, torch.tensor(labels), length)


ENTRY = Entry(
    name="verses",
    title="KJV/WEB: do two verses render the same text? A stand-in for the Long Range Arena's "
    "Retrieval task, bytes of both",
    source="made from kjv-web",
    licence_package=kjv_web.ENTRY.licence_package,
    licence_data=kjv_web.ENTRY.licence_data,
    samples=kjv_web.ENTRY.samples,
    classes=kjv_web.ENTRY.classes,
    read=create,
    official=kjv_web.ENTRY.official,
    notes="the files, pairs and splits of kjv-web; options: max_length",
    kind=SEQUENCES,
    options=PairOptions,
    base="kjv-web",
)
register_dataset(ENTRY)
