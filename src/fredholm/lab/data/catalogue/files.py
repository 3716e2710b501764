"""The user's own files, by their path: :mod:`fredholm.lab.data.files` reads them."""

from __future__ import annotations

from pathlib import Path

from ..files import Reading, open_files
from ..kinds.dataset import LabelledDataset
from ..kinds.kind import SAMPLES, Kind
from ..registry import Entry, Request, register_dataset


def create(request: Request) -> LabelledDataset:
    """The split of a request."""
    source = open_files(request.folder, request.options, val=request.share)
    return source.dataset(request.split, image_size=request.image_size, text=request.text)


def kind_at(path: Path, reading: Reading, val: float | int) -> Kind:
    """The kind of what lies at a path."""
    return open_files(path, reading, val=val).kind


ENTRY = Entry(
    name="files",
    title="Your own files: tables, series, pictures, clouds, fields",
    source="a file or folder of yours: path=PATH",
    needs={"path": "a file or folder: CSV, Parquet, .ts, npz, h5, pictures, clouds"},
    licence_package="none",
    licence_data="yours",
    read=create,
    kind=SAMPLES,
    kind_at=kind_at,
    val_fraction=0.2,
    notes="its kind is recognised; `fredholm data describe PATH` says what would be read; options: "
    "kind, label, time, id, group, text, channels, task, split, test, seed, scale, points",
    options=Reading,
)
register_dataset(ENTRY)
