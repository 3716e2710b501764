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

# Bytes of a cell, and of a line of the first rows: 64 MiB. Without a limit, an open quote would
# make one cell of the rest of the file.
LARGEST_CELL = 1 << 26
CHUNK = 1 << 20  # bytes
_READ_ERRORS = (OSError, EOFError, zlib.error)


def check_unchanged(path: Path, before: Any) -> None:
    """Refuse a file that changed since ``before``, its ``stat()``: half of it may be new.

    Raises:
        DataError: its size or time of change differs.
    """
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DataError(
            f"{path}: expected a complete file, got one that changed while it was read "
            f"({before.st_size:,} to {after.st_size:,} bytes); wait until it is written, then "
            "start again"
        )


class TextBytes(io.RawIOBase):
    """Bytes of a text file as UTF-8: decompressed, checked, without a byte order mark.

    Args:
        skip: bytes of UTF-8 to leave out at the beginning.
        end: a line to append after the last line of the file.

    Attributes:
        gaps: whether an empty line may have been read.
    """

    def __init__(self, path: Path, encoding: str | None, skip: int, end: bytes):
        self.path = path
        self.gaps = False
        self._file = _raw(path)
        self._parts = self._decoded(encoding or "utf-8", skip, end)
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

    def _decoded(
        self,
        encoding: str,
        skip: int,
        end: bytes,
    ) -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(encoding)()
        compressed = is_compressed(self.path)
        unfolded = 0
        last = b"\n"
        beginning = True
        raw = b" "
        while raw:
            raw = self._file.read(CHUNK)
            if compressed:
                # A small file may unfold to more than the memory: check while it unfolds.
                unfolded += len(raw)
                check_declared(self.path, unfolded)
            decoded = decoder.decode(raw, final=not raw)
            if beginning and decoded:
                # Only some decoders drop a byte order mark, which would be part of the first name.
                decoded = decoded.removeprefix("\ufeff")
                beginning = False
            text = decoded.encode()

            # Two line ends may meet where two chunks do, so that the last byte is looked at again.
            joint = last + text
            empty_lines = (b"\n\n", b"\n\r", b"\r\r")
            self.gaps = self.gaps or any(sign in joint for sign in empty_lines)
            last = joint[-1:]
            yield text[skip:]
            skip = max(0, skip - len(text))
        if not end:
            return
        if last not in (b"\n", b"\r"):
            end = b"\n" + end
        yield end


def _raw(path: Path) -> Any:
    if is_compressed(path):
        return gzip.open(path)
    return path.open("rb")


@contextmanager
def opened_bytes(
    path: Path,
    encoding: str | None,
    skip: int = 0,
    end: bytes = b"",
) -> Iterator[TextBytes]:
    """Open a text file as :class:`TextBytes`; the file must not change while it is open.

    Raises:
        DataError: a missing file, another encoding (naming its row), a compressed file that is cut
            short, damaged or unfolds beyond the limit, or a file that changed.
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
        # The message of an OSError repeats the path; its strerror does not.
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: expected a readable file, got an error ({why})") from error
    check_unchanged(path, before)


@contextmanager
def opened(path: Path, encoding: str | None = None) -> Iterator[Iterator[str]]:
    """Open a text file as lines with their ends, each of at most 64 MiB.

    Raises:
        DataError: as :func:`opened_bytes`, or a longer line.
    """
    with opened_bytes(path, encoding) as file:
        text = io.TextIOWrapper(io.BufferedReader(file), "utf-8", newline="")
        yield _lines(path, text)


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
        "split it, or close an open quote"
    )


def _wrong_encoding(path: Path, encoding: str | None) -> str:
    """Return the error of a file in another encoding, with the row and column where it is UTF-8 no
    longer.
    """
    if encoding is not None:
        return f"{path}: expected {encoding}, got other bytes; correct it: --read encoding=NAME"
    with _raw(path) as file:
        content = file.read(UNPACKED_BYTES)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return (
            f"{path}, row 1: expected UTF-8, got UTF-16; save it as UTF-8, e.g. iconv -f utf-16 -t "
            f"utf-8 {path.name}, or pass --read encoding=utf-16"
        )
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            # The separator is not known yet: it is the sign that comes most often.
            before = line[: error.start]
            column = 1 + max(before.count(sign) for sign in (b",", b";", b"\t", b"|"))
            seen = line[max(0, error.start - 10) : error.start + 10]
            return (
                f"{path}, row {number}, column {column}: expected UTF-8, got {seen!r}; save it as "
                f"UTF-8, e.g. iconv -f latin1 -t utf-8 {path.name}, or pass --read encoding=latin-1"
            )
    return f"{path}: expected UTF-8; save it so, or name its encoding: --read encoding=NAME"
