"""Fashion-MNIST: 70,000 articles of clothing, 28 × 28 grey (Xiao, Rasul and Vollgraf, 2017)."""

from __future__ import annotations

from ..create import ImageOptions
from ..registry import Entry, Package, PinnedFile
from . import idx


def _file(name: str, size: int, digest: str) -> PinnedFile:
    return PinnedFile(
        name=name, member=f"usr/share/datasets/fashion-mnist/{name}", bytes=size, sha256=digest
    )


FILES = (
    _file(
        "train-images-idx3-ubyte.gz",
        26421856,
        "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    ),
    _file(
        "train-labels-idx1-ubyte.gz",
        29491,
        "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    ),
    _file(
        "t10k-images-idx3-ubyte.gz",
        4422079,
        "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    ),
    _file(
        "t10k-labels-idx1-ubyte.gz",
        5125,
        "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
    ),
)

ENTRY = Entry(
    name="fashion-mnist",
    title="Fashion-MNIST articles of clothing",
    source="Debian package dataset-fashion-mnist 0.0~git20200523.55506a9-1",
    licence_package="MIT",
    licence_data="MIT (Zalando SE)",
    samples={"train": 60000, "test": 10000},
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    shape=(1, 28, 28),
    mean=(0.2860,),
    std=(0.3530,),
    create=idx.create,
    package=Package(
        client="apt",
        name="dataset-fashion-mnist",
        version="0.0~git20200523.55506a9-1",
        archive_bytes=30900652,
        archive_sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        files=FILES,
    ),
    official="the four idx.gz files of the data set's own repository "
    "(zalandoresearch/fashion-mnist, data/fashion); sha256: "
    + ", ".join(f"{file.name} {file.sha256}" for file in FILES),
    options=ImageOptions,
)
