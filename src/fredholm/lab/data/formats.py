"""Readers of the official file formats: idx (raw or gzip), CIFAR-10 binary, and CIFAR-10 as PNG
rows with JSON labels.

A reader checks everything that a file declares about itself before it returns, so that a truncated
file is an error and never a smaller data set. None of them runs code from a file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ...errors import DataError, require

LabelledImages = tuple[UInt8[np.ndarray, "n c h w"], UInt8[np.ndarray, " n"]]
"""Images, and the class number of each."""
CIFAR_RECORD = 1 + 3 * 32 * 32
# What a file may unpack to: this many bytes, or this many times its own size if that is more.
UNPACKED_BYTES = 4 * 2**30
UNPACKED_TIMES = 20


def check_declared(path: Path, declared: int) -> None:
    """Refuse a file that would take far more memory than it holds.

    A few bytes can declare, or decompress to, any number of them. Up to ``UNPACKED_BYTES`` or
    ``UNPACKED_TIMES`` the size of the file are read, whichever is more.

    Raises:
        DataError: ``declared`` is more than that.
    """
    stored = path.stat().st_size
    limit = max(UNPACKED_BYTES, UNPACKED_TIMES * stored)
    if declared > limit:
        raise DataError(
            f"{path}: expected at most {limit:,} bytes of arrays, got {declared:,} declared in a "
            f"file of {stored:,}; it may be damaged, or made to fill the memory: divide it into "
            "several files if it is not"
        )


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed if it starts like gzip.

    Raises:
        DataError: the file is missing, unreadable, a damaged gzip stream, or one that unpacks to
            more than :func:`check_declared` allows.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if content[:2] != b"\x1f\x8b":
        return content

    # One byte beyond the limit is enough to know that there is too much.
    limit = max(UNPACKED_BYTES, UNPACKED_TIMES * len(content))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            unpacked = packed.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: a damaged gzip file of {len(content):,} bytes ({error}); it is truncated or "
            "corrupt: fetch or copy it again"
        ) from error
    check_declared(path, len(unpacked))
    return unpacked


def read_utf8(path: Path) -> str:
    """Return the text of a file without a byte order mark, decompressed if it starts like gzip.

    Raises:
        DataError: as :func:`read_bytes`, or a text that is not UTF-8.
    """
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8, got other bytes at {error.start:,}; it is corrupt or another "
            "file"
        ) from error


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """Return the array of an idx file of unsigned bytes: big-endian magic 0x0000 08 ndim, ndim
    sizes, then the values.

    Raises:
        DataError: another magic number, or a file shorter or longer than its header declares.
    """
    content = read_bytes(path)
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or not 1 <= content[3] <= 4:
        raise DataError(
            f"{path}: expected an idx file of unsigned bytes (0x000008, then 1 to 4 dimensions), "
            f"got 0x{content[:4].hex()} at its start; it is another file"
        )
    ndim = content[3]
    header = 4 + 4 * ndim
    # Sizes that are cut off read as smaller ones, and the check below fails.
    shape = tuple(int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(ndim))
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{path}: expected {expected:,} bytes for {'x'.join(map(str, shape))}, which its "
            f"header declares, got {len(content):,}; the file is truncated or corrupt: fetch or "
            "copy it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()


def read_cifar_binary(path: Path) -> LabelledImages:
    """Return images (N, 3, 32, 32) and labels of a ``.bin`` file of CIFAR-10: records of one label
    byte and 3 × 32 × 32 pixel bytes.

    Raises:
        DataError: an incomplete record, or none.
    """
    content = read_bytes(path)
    if not content or len(content) % CIFAR_RECORD:
        raise DataError(
            f"{path}: expected a positive multiple of {CIFAR_RECORD} bytes (one label, 3x32x32 "
            f"pixels), got {len(content):,}; the file is truncated or of another format"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].copy()


# The formats of pictures that are read, as Pillow calls them. Others are not tried: Pillow hands
# EPS to Ghostscript, another program, which would execute what the file says.
PICTURE_FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")


@contextmanager
def opened_picture(path: Path | str, content: bytes | None = None) -> Iterator[Any]:
    """Open a picture of Pillow's, whose pixels may be read until it is closed.

    Args:
        content: the bytes of the file, where it lies in an archive.

    Raises:
        DataError: the file is missing, truncated, not a picture, or too large to be one.
        MissingExtraError: Pillow is not installed.
    """
    pillow: Any = require("PIL.Image", "train", "reading pictures")
    try:
        source = path if content is None else io.BytesIO(content)
        with pillow.open(source, formats=PICTURE_FORMATS) as image:
            yield image
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; restore it, or correct the path") from error
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise DataError(
            f"{path}: not a readable picture ({error}); it is truncated, corrupt or not a picture: "
            "repair or remove it"
        ) from error


def read_png_rows(path: Path) -> UInt8[np.ndarray, "n 3 32 32"]:
    """Return images of 32 × 32 that are stored as the rows of one RGB picture of width 1,024.

    Raises:
        DataError: the picture is damaged, not RGB, or of another width.
        MissingExtraError: Pillow is not installed.
    """
    with opened_picture(path) as image:
        mode = image.mode
        pixels = np.asarray(image)
    if mode != "RGB" or pixels.shape[1] != 1024:
        raise DataError(
            f"{path}: expected RGB of width 1024, one image per row, got {mode} of width "
            f"{pixels.shape[1]}; it is another file"
        )
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def read_json_labels(path: Path, classes: int) -> UInt8[np.ndarray, " n"]:
    """Return a JSON list of labels.

    Raises:
        DataError: anything else than a JSON list of integers from 0 to ``classes`` − 1.
    """
    try:
        labels = json.loads(read_bytes(path))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); it is truncated or corrupt") from error
    # ``type`` and not ``isinstance``: true is an int in Python, but not a label.
    known = isinstance(labels, list) and all(type(x) is int and 0 <= x < classes for x in labels)
    if not known:
        raise DataError(
            f"{path}: expected a list of integers from 0 to {classes - 1}, got something else; it "
            "is corrupt or another file"
        )
    return np.asarray(labels, np.uint8)


def check_pairs(
    images: np.ndarray,
    labels: np.ndarray,
    classes: int,
    where: Path | str,
) -> None:
    """Refuse images without a label, labels without an image, and labels out of range.

    Raises:
        DataError: the first of these.
    """
    if len(images) != len(labels):
        raise DataError(
            f"{where}: expected one label per image, got {len(images):,} images and "
            f"{len(labels):,} labels; files of different sets, or a truncated one"
        )
    if not len(images):
        raise DataError(f"{where}: expected at least one image, got none; it is truncated")
    if int(labels.max()) >= classes:
        raise DataError(
            f"{where}: expected labels from 0 to {classes - 1}, got {int(labels.max())}; it "
            "belongs to another data set"
        )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
