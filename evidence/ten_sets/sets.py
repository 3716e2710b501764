"""The ten sets, and functions that write them to files like a user's."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fredholm.lab import data
from fredholm.lab.data.catalogue import movie_reviews
from fredholm.lab.data.catalogue.time_series import TimeSeriesOptions, create
from fredholm.lab.data.clients import PIP
from fredholm.lab.data.kinds.sequences import SEQUENCES
from fredholm.lab.data.registry import Entry, register_dataset
from fredholm.lab.data.sources import Package, PinnedFile

PICTURES = {"train": 6000, "test": 2000}
"""Largest numbers of Fashion-MNIST's pictures."""


@dataclass(frozen=True)
class TenSet:
    """A set.

    Attributes:
        title: the task.
        write: writes the files into a folder.
        shown: the part of the set that is used, if it is not all of it.
    """

    title: str
    write: Callable[[Path], None]
    shown: str = ""


# --- series, in the wheels of sktime and aeon -----------------------------------------------------

# Bytes and SHA-256 of the training and the test file in aeon 1.6.0.
AEON = {
    "GunPoint": (
        (84188, "f842401779fd9800d247d8b33121a1a4643710a19b24917dbdd9a060ca8630d5"),
        (252305, "79332750788a6227b325b96bd0d70130c8eb707b9731f8d7dec62b7a7d36017e"),
    ),
    "ArrowHead": (
        (100357, "a83c470aaf611a5f5284377cce27a5fc9f6292bc3d110257b0fd4905ced5ee72"),
        (484894, "5417dab42626d41df5e435bb22458c2df40dfad4bcd3b59559bbe72e20e84904"),
    ),
    "OSULeaf": (
        (953148, "86b9d6e860414ffd26cebc62fff84ffb37fa588ef3e5bf79e4094a437c36ddfc"),
        (1152821, "6c549dd354f9e42d5985fa5fab75321ca9acefc7873457e71467fc8a31f107ce"),
    ),
    "ACSF1": (
        (1658422, "0646b90dc4843e02baed6b2ba345c5601a4991b6796565489cef1b2d92a7537b"),
        (1659932, "93e8aaeb44a10af181d24a156e60da7021193cd990ca28f263fccf3b905bfebf"),
    ),
    "PickupGestureWiimoteZ": (
        (43921, "4d303d9990df621c066fc454d62626e3721aed008462103500b86b1ac1ca92c8"),
        (44312, "a9109bce918e48ee0e924e9cf2fdfdc4de364a3d88ec5e8aa44399ff08b11361"),
    ),
}


def _entry(name: str) -> str:
    """Return the name of aeon's copy of a set, which is registered at the first call."""
    registered = f"aeon-{name.lower()}"
    if registered not in data.list_datasets():
        parts = zip(("TRAIN", "TEST"), AEON[name])
        files = tuple(
            PinnedFile(f"{name}_{p}.ts", f"aeon/datasets/data/{name}/{name}_{p}.ts", size, digest)
            for p, (size, digest) in parts
        )
        wheel = Package(
            client=PIP,
            name="aeon",
            version="1.6.0",
            archive_bytes=6421000,
            archive_sha256="d05227086706f80111ac5fee8de4d5d3115bb3bcfd1c786c8629393055816409",
            files=files,
        )
        register_dataset(
            Entry(
                name=registered,
                title=f"{name}, of the UCR archive",
                licence_package="BSD-3-Clause",
                licence_data="the UCR archive's",
                read=create,
                sources=(wheel,),
                official=f"{name}_TRAIN.ts and {name}_TEST.ts of the UCR archive",
                val_fraction=0.2,
                kind=SEQUENCES,
                options=TimeSeriesOptions,
            )
        )
    return registered


def _series(name: str, entry: str | None = None) -> Callable[[Path], None]:
    """Return a function that copies the two .ts files of a set."""

    def write(folder: Path) -> None:
        source = data.fetch(entry or _entry(name), progress=False)
        for part in ("TRAIN", "TEST"):
            shutil.copy(source / f"{name}_{part}.ts", folder)

    return write


# --- the others -----------------------------------------------------------------------------------


def _reviews(folder: Path) -> None:
    """Write two tables of texts, with the splits of the catalogue (a hash of the words)."""
    reviews = movie_reviews.read(data.fetch("movie-reviews", progress=False) / movie_reviews.FILE)
    rows: dict[str, list[Any]] = {"train": [], "test": []}
    for review in reviews:
        if abs(review.rating) >= movie_reviews.NEUTRAL:
            part = "test" if review.place < movie_reviews.TEST_FRACTION else "train"
            sentiment = "positive" if review.rating > 0 else "negative"
            rows[part].append((review.text, sentiment))
    for part, lines in rows.items():
        with (folder / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "sentiment"), *lines])


def _clothes(folder: Path) -> None:
    """Write one folder per class and one file per picture."""
    from PIL import Image

    data.fetch("fashion-mnist", progress=False)
    for part, count in PICTURES.items():
        images: Any = data.limit_samples(data.create_dataset("fashion-mnist", part), count)
        pixels, labels = images.raw(torch.arange(len(images)))
        for number, (picture, label) in enumerate(zip(pixels, labels.tolist())):
            of_class = folder / part / images.classes[label].replace("/", " or ")
            of_class.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture[0].numpy()).save(of_class / f"{number:05}.png")


def _darcy(folder: Path) -> None:
    """Write two files of arrays: media and pressures on a 16 × 16 grid."""
    import numpy as np

    source = data.fetch("darcy", progress=False)
    for part in ("train", "test"):
        fields = torch.load(source / f"darcy_{part}_16.pt", weights_only=True)
        arrays = {"inputs": fields["x"].float().numpy(), "outputs": fields["y"].float().numpy()}
        np.savez(folder / f"{part}.npz", **arrays)


SETS = {
    "JapaneseVowels": TenSet(
        "speaker of two vowels, 12 channels, 7 to 29 samples",
        _series("JapaneseVowels", "japanese-vowels"),
    ),
    "PLAID": TenSet("appliance by its current, 100 to 1,344 samples", _series("PLAID", "plaid")),
    "GunPoint": TenSet("gun or finger by the hand's path, 150 samples", _series("GunPoint")),
    "ArrowHead": TenSet("kind of arrow head by its outline, 251 samples", _series("ArrowHead")),
    "OSULeaf": TenSet("kind of leaf by its outline, 427 samples", _series("OSULeaf")),
    "ACSF1": TenSet("appliance by its power, 1,460 samples", _series("ACSF1")),
    "PickupGestureWiimoteZ": TenSet(
        "gesture by acceleration, 29 to 361 samples", _series("PickupGestureWiimoteZ")
    ),
    "movie-reviews": TenSet("sentiment of a sentence", _reviews),
    "fashion-mnist": TenSet(
        "article of clothing, 28 × 28 pixels",
        _clothes,
        f"{PICTURES['train']:,} of 60,000 pictures to train, {PICTURES['test']:,} of 10,000 to "
        "test",
    ),
    "darcy": TenSet("pressure from the medium, 16 × 16", _darcy),
}


def written(name: str, folder: Path) -> Path:
    """Return the folder of a set's files, which are written if they are incomplete."""
    files = folder / name
    done = files.with_name(f".{name}.done")
    if not done.is_file():
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir(parents=True)
        SETS[name].write(files)
        done.touch()
    return files
