"""Text files in UTF-8, compressed or not, that must not change while they are read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ....errors import DataError
from .suffixes import is_compressed


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A text file in UTF-8, that must not change while it is read.

    Raises:
        DataError: a missing file, another encoding (with its row), a compressed file that is cut
            short or damaged, or a change.
    """
    try:
        before = path.stat()
        how: Any = {"mode": "rt", "encoding": "utf-8-sig", "newline": ""}
        with gzip.open(path, **how) if is_compressed(path) else path.open(**how) as file:
            yield file
    except UnicodeDecodeError as error:
        raise DataError(_wrong_encoding(path)) from error
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({why})") from error
    check_unchanged(path, before)


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


def _wrong_encoding(path: Path) -> str:
    with gzip.open(path) if is_compressed(path) else path.open("rb") as file:
        content = file.read()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return (
            f"{path}, row 1: not UTF-8 but UTF-16; save it as UTF-8, "
            f"e.g. iconv -f utf-16 -t utf-8 {path.name}"
        )
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            column = max(line[: error.start].count(sign) for sign in (b",", b";", b"\t", b"|")) + 1
            seen = line[max(0, error.start - 10) : error.start + 10]
            return (
                f"{path}, row {number}, column {column}: not UTF-8 ({seen!r}); save it as UTF-8, "
                f"e.g. iconv -f latin1 -t utf-8 {path.name}"
            )
    return f"{path}: not UTF-8; save it as UTF-8"
