"""Readers of the official file formats: idx (raw or gzip), CIFAR-10 binary, and CIFAR-10 as PNG
rows with JSON labels.

A reader checks everything a file says about itself before it returns, so that a truncated file is
an error and never a smaller data set. None of them runs code from a file.
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


def seconds_of(times: np.ndarray) -> np.ndarray:
    """numpy's dates and durations in seconds, whatever their unit, NaN for none; others as they
    are.

    Example:
        >>> seconds_of(np.array(["1970-01-02", "NaT"], "M8[D]")).tolist()
        [86400.0, nan]
    """
    if times.dtype.kind not in "mM":
        return times
    fine = times.astype(f"{times.dtype.kind}8[us]").astype(np.int64) / 1e6
    return np.where(np.isnat(times), np.nan, fine)


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed when it starts as gzip does.

    Raises:
        DataError: when the file is missing, unreadable, a damaged gzip stream, or one that unpacks
            to more than :func:`check_declared` allows.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if content[:2] != b"\x1f\x8b":
        return content
    limit = max(UNPACKED_BYTES, UNPACKED_TIMES * len(content))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            unpacked = packed.read(limit + 1)
        check_declared(path, len(unpacked))
        return unpacked
    except DataError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: a damaged gzip file of {len(content):,} bytes ({error}); it is truncated or "
            "corrupt: fetch or copy it again"
        ) from error


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """The array of an idx file of unsigned bytes: big-endian magic 0x0000 08 ndim, ndim sizes, then
    the values.

    Raises:
        DataError: when the magic number is another, or the file is shorter or longer than its
            header says.
    """
    content = read_bytes(path)
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or not 1 <= content[3] <= 4:
        raise DataError(
            f"{path}: starts with 0x{content[:4].hex()}; needs 0x000008 and 1 to 4 dimensions (idx "
            "of unsigned bytes)"
        )
    ndim = content[3]
    header = 4 + 4 * ndim
    if len(content) < header:
        raise DataError(
            f"{path}: {len(content)} bytes; its header alone needs {header}: the file is truncated"
        )
    shape = tuple(int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(ndim))
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{path}: {len(content):,} bytes; its header says {'x'.join(map(str, shape))}, which "
            f"needs {expected:,}: "
            "the file is truncated or corrupt, fetch or copy it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()


def read_cifar_binary(path: Path) -> tuple[UInt8[np.ndarray, "n 3 32 32"], UInt8[np.ndarray, " n"]]:
    """Images and labels of a ``.bin`` file of CIFAR-10: records of one label byte and 3 × 32 × 32
    pixel bytes.

    Raises:
        DataError: when the size is not a whole number of records.
    """
    content = read_bytes(path)
    if not content or len(content) % CIFAR_RECORD:
        raise DataError(
            f"{path}: {len(content):,} bytes; needs a positive multiple of {CIFAR_RECORD} (one "
            "label, 3x32x32 pixels): "
            "the file is truncated or of another format"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].copy()


# The formats of pictures that are read, as Pillow calls them. Others are not tried: Pillow hands
# EPS to Ghostscript, another program, which would execute what the file says.
PICTURE_FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")


@contextmanager
def opened_picture(path: Path | str, content: bytes | None = None) -> Iterator[Any]:
    """A picture of Pillow's, whose pixels may be read until it is closed; ``content``: of the file,
    where it lies in an archive.

    Raises:
        DataError: when the file is missing, truncated, no picture, or too large to be one.
        MissingExtraError: when pillow is not installed.
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
            f"{path}: not a readable picture ({error}); it is truncated, corrupt or no picture: "
            "mend or remove it"
        ) from error


def read_png_rows(path: Path, side: int = 32) -> UInt8[np.ndarray, "n 3 h w"]:
    """Images stored as the rows of one RGB picture of width ``side``².

    Raises:
        DataError: when the picture is damaged, not RGB, or of another width.
        MissingExtraError: when pillow is not installed.
    """
    with opened_picture(path) as image:
        mode, pixels = image.mode, np.asarray(image)
    if mode != "RGB" or pixels.shape[1] != side * side:
        raise DataError(
            f"{path}: {mode} of width {pixels.shape[1]}; needs RGB of width {side * side}, one "
            "image a row"
        )
    return np.ascontiguousarray(pixels.reshape(-1, side, side, 3).transpose(0, 3, 1, 2))


def read_json_labels(path: Path, classes: int) -> UInt8[np.ndarray, " n"]:
    """A JSON list of labels.

    Raises:
        DataError: when the file is no JSON list of integers from 0 to ``classes`` − 1.
    """
    try:
        labels = json.loads(read_bytes(path))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); it is truncated or corrupt") from error
    good = isinstance(labels, list) and all(type(x) is int and 0 <= x < classes for x in labels)
    if not good:
        raise DataError(f"{path}: needs a list of integers from 0 to {classes - 1}")
    return np.asarray(labels, np.uint8)


def check_pairs(images: np.ndarray, labels: np.ndarray, classes: int, where: Path | str) -> None:
    """Images and labels of equal number, labels in range.

    Raises:
        DataError: when they do not fit.
    """
    if len(images) != len(labels):
        raise DataError(
            f"{where}: {len(images):,} images but {len(labels):,} labels; files of different sets, "
            "or a truncated one"
        )
    if not len(images):
        raise DataError(f"{where}: holds no image")
    if int(labels.max()) >= classes:
        raise DataError(f"{where}: label {int(labels.max())}; needs labels from 0 to {classes - 1}")


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
