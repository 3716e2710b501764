"""Fashion-MNIST: 70,000 articles of clothing, 28 × 28 grey (Xiao, Rasul and Vollgraf, 2017)."""

from __future__ import annotations

from ..clients import APT
from ..create import ImageOptions
from ..registry import Entry, register_dataset
from ..sources import Address, Package, files_in
from . import idx

FILES = files_in(
    "usr/share/datasets/fashion-mnist",
    (
        "train-images-idx3-ubyte.gz",
        26421856,
        "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    ),
    (
        "train-labels-idx1-ubyte.gz",
        29491,
        "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    ),
    (
        "t10k-images-idx3-ubyte.gz",
        4422079,
        "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    ),
    (
        "t10k-labels-idx1-ubyte.gz",
        5125,
        "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
    ),
)


# Debian's files are these without the name and the time in the headers of gzip: with both put back
# they have the MD5 sums that the owner publishes.
OFFICIAL = files_in(
    "data/fashion",
    (
        "train-images-idx3-ubyte.gz",
        26421880,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    (
        "train-labels-idx1-ubyte.gz",
        29515,
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    (
        "t10k-images-idx3-ubyte.gz",
        4422102,
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    (
        "t10k-labels-idx1-ubyte.gz",
        5148,
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)

ENTRY = Entry(
    name="fashion-mnist",
    title="Fashion-MNIST articles of clothing",
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
    read=idx.create,
    sources=(
        Package(
            client=APT,
            name="dataset-fashion-mnist",
            version="0.0~git20200523.55506a9-1",
            archive_bytes=30900652,
            archive_sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
            files=FILES,
        ),
        Address(
            url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            files=OFFICIAL,
            published="MD5 sums in the README of zalandoresearch/fashion-mnist",
        ),
    ),
    official="the four idx.gz files of the data set's own repository "
    "(zalandoresearch/fashion-mnist, data/fashion); sha256: "
    + ", ".join(f"{file.name} {file.sha256}" for file in OFFICIAL),
    options=ImageOptions,
)
register_dataset(ENTRY)
