"""Digits: 1,797 handwritten digits, 8 × 8 grey, that come inside scikit-learn (Alpaydin and Kaynak,
1998).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ....errors import require
from ..create import ImageOptions, create_arrays
from ..formats import LabelledImages
from ..kinds.dataset import LabelledDataset
from ..registry import Entry, Request, register_dataset
from ..splits import SPLIT_SEED, held_out

TEST_FRACTION = 0.2


def folder() -> Path:
    """Return the folder of the file in scikit-learn.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    module = require("sklearn.datasets", "train", "the digits data set")
    return Path(str(module.__file__)).parent / "data"


def read(part: str) -> LabelledImages:
    """Return images (N, 1, 8, 8), their 17 levels scaled to 0 … 255, and labels: 80% of each class
    for training, 20% for the test.
    """
    module = require("sklearn.datasets", "train", "the digits data set")
    pixels, labels = module.load_digits(return_X_y=True)
    images = np.rint(pixels.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    chosen = held_out(labels, TEST_FRACTION, SPLIT_SEED)
    if part == "train":
        chosen = np.setdiff1d(np.arange(len(labels)), chosen)
    return images[chosen], labels[chosen].astype(np.uint8)


def create(request: Request) -> LabelledDataset:
    """Return the data set of a request."""
    return create_arrays(request, read)


ENTRY = Entry(
    name="digits",
    title="Optical recognition of handwritten digits",
    source="scikit-learn's own data (load_digits), no download",
    licence_package="BSD-3-Clause",
    licence_data="CC BY 4.0 (UCI repository)",
    samples={"train": 1438, "test": 359},
    classes=tuple("0123456789"),
    shape=(1, 8, 8),
    mean=(0.3048,),
    std=(0.3758,),
    read=create,
    embedded=folder,
    val_fraction=0.125,
    notes="no official split: a fixed stratified one, 70 / 10 / 20%",
    options=ImageOptions,
)
register_dataset(ENTRY)
