"""Text files: decoded, decompressed under a stated limit, and not changing while they are read."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ....errors import DataError
from ..formats import UNPACKED_BYTES, check_declared
from .suffixes import is_compressed

LARGEST_CELL = 1 << 26  # bytes of a cell, and of a line of the first rows: 64 MiB
CHUNK = 1 << 20
_READ_ERRORS = (OSError, EOFError, zlib.error)


def check_unchanged(path: Path, before: Any) -> None:
    """Refuse a file that is not what it was.

    Raises:
        DataError: its size or time has changed.
    """
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DataError(
            f"{path}: changed while it was read ({before.st_size:,} to {after.st_size:,} bytes); "
            "wait until it is written, then start again"
        )


class TextBytes(io.RawIOBase):
    """Bytes of a text file as UTF-8: decompressed, checked, without a byte order mark.

    Args:
        skip: bytes of UTF-8 to leave out at the beginning.
        end: a line to append after the last line of the file.

    Attributes:
        gaps: whether an empty line may have been read.
    """

    def __init__(self, path: Path, encoding: str | None = None, skip: int = 0, end: bytes = b""):
        self.path, self.gaps = path, False
        self._file = _raw(path)
        self._parts = self._decoded(encoding or "utf-8-sig", skip, end)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``, or the beginning of it, and return the number of bytes; 0 at the end."""
        # A decoded part may be empty, such as one that lies within the skipped bytes. It must not
        # be returned: 0 bytes would mean the end of the file.
        while not len(self._rest):
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = memoryview(part)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()

    def _decoded(self, encoding: str, skip: int, end: bytes) -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(encoding)()
        compressed, unfolded, last = is_compressed(self.path), 0, b"\n"
        raw = b" "
        while raw:
            raw = self._file.read(CHUNK)
            if compressed:
                unfolded += len(raw)
                check_declared(self.path, unfolded)
            text = decoder.decode(raw, final=not raw).encode()
            joint = last + text
            self.gaps = self.gaps or any(sign in joint for sign in (b"\n\n", b"\n\r", b"\r\r"))
            last = joint[-1:]
            yield text[skip:]
            skip = max(0, skip - len(text))
        if end:
            yield end if last in (b"\n", b"\r") else b"\n" + end


def _raw(path: Path) -> Any:
    return gzip.open(path) if is_compressed(path) else path.open("rb")


@contextmanager
def opened_bytes(
    path: Path, encoding: str | None = None, skip: int = 0, end: bytes = b""
) -> Iterator[TextBytes]:
    """Open a text file as :class:`TextBytes`; it must not change meanwhile.

    Raises:
        DataError: a missing file, another encoding (with its row), a compressed file that is cut
            short, damaged or unfolds beyond the limit, or a change.
    """
    try:
        before = path.stat()
        with TextBytes(path, encoding, skip, end) as file:
            yield file
    except LookupError as error:
        raise DataError(
            f"{path}: expected an encoding such as utf-8 or latin-1, got {encoding!r}; correct it: "
            "--read encoding=NAME"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(_wrong_encoding(path, encoding)) from error
    except _READ_ERRORS as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({why})") from error
    check_unchanged(path, before)


@contextmanager
def opened(path: Path, encoding: str | None = None) -> Iterator[Iterator[str]]:
    """Open a text file as lines with their ends, each of at most 64 MiB.

    Raises:
        DataError: as :func:`opened_bytes`, or a longer line.
    """
    with opened_bytes(path, encoding) as file:
        yield _lines(path, io.TextIOWrapper(io.BufferedReader(file), "utf-8", newline=""))


def _lines(path: Path, text: io.TextIOWrapper) -> Iterator[str]:
    number = 0
    while line := text.readline(LARGEST_CELL):
        number += 1
        if len(line) == LARGEST_CELL:
            raise DataError(too_long(path, number))
        yield line


def too_long(path: Path, row: int) -> str:
    """Return the error of a cell or line beyond :data:`LARGEST_CELL`."""
    return (
        f"{path}, row {row}: expected cells of at most {LARGEST_CELL >> 20} MiB, got a longer one; "
        "divide it, or close a quote that is open"
    )


def _wrong_encoding(path: Path, encoding: str | None) -> str:
    if encoding is not None:
        return f"{path}: not {encoding}; correct it: --read encoding=NAME"
    with _raw(path) as file:
        content = file.read(UNPACKED_BYTES)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return (
            f"{path}, row 1: not UTF-8 but UTF-16; save it as UTF-8, e.g. iconv -f utf-16 -t utf-8 "
            f"{path.name}, or --read encoding=utf-16"
        )
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            column = max(line[: error.start].count(sign) for sign in (b",", b";", b"\t", b"|")) + 1
            seen = line[max(0, error.start - 10) : error.start + 10]
            return (
                f"{path}, row {number}, column {column}: not UTF-8 ({seen!r}); save it as UTF-8, "
                f"e.g. iconv -f latin1 -t utf-8 {path.name}, or --read encoding=latin-1"
            )
    return f"{path}: not UTF-8; save it as UTF-8, or say which: --read encoding=NAME"
