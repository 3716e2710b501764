"""Samples on standard input, put into a file whose suffix says what they are."""

from __future__ import annotations

import csv
import gzip
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ....errors import DataError
from .delimited import DELIMITERS
from .reading import Reading
from .suffixes import LINES

_GZIP = b"\x1f\x8b"
_MAGIC = {
    b"PK\x03\x04": ".npz",
    b"\x89HDF": ".h5",
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"PAR1": ".parquet",
    b"RIFF": ".wav",
}
_STDIN = "stdin"


@contextmanager
def paths_of(files: Sequence[str | Path], reading: Reading) -> Iterator[list[Path]]:
    """Give the paths of files; meanwhile, standard input lies in a temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for file in files:
            if str(file) != "-":
                paths.append(Path(file))
                continue
            content = _plain(sys.stdin.buffer.read())
            place = Path(folder) / f"{_STDIN}{_suffix(content, reading)}"
            place.write_bytes(content)
            paths.append(place)
        # Users know no temporary files: errors name standard input.
        try:
            yield paths
        except DataError as error:
            raise DataError(renamed(str(error), Path(folder))) from error


def _plain(content: bytes) -> bytes:
    """Return the content, decompressed if it was compressed."""
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"standard input: expected readable gzip, got an error ({error}); send it again"
        ) from error


def renamed(text: str, folder: Path) -> str:
    """Return a path or a message with "standard input" for the temporary file."""
    return re.sub(re.escape(f"{folder}/{_STDIN}") + r"\.\w+", "standard input", text)


def _suffix(content: bytes, reading: Reading) -> str:
    """Return the suffix of a file without a name, by its first bytes.

    Texts without a header are lines; other text is a table.
    """
    for magic, suffix in _MAGIC.items():
        if content.startswith(magic):
            return suffix
    # A text may begin with a brace; only tables have objects.
    if (reading.channels or reading.text) and content.lstrip().startswith(b"{"):
        return LINES[0]
    if reading.kind == "texts" and not _has_column(content, reading.text):
        return ".txt"
    return ".csv"


def _has_column(content: bytes, name: str | None) -> bool:
    """Whether the first line is a header with a column of this name."""
    header = re.split(rb"[\r\n]", content, maxsplit=1)[0].decode("utf-8-sig", "replace")
    for sign in DELIMITERS:
        for row in csv.reader([header], delimiter=sign):
            if name in {cell.strip() for cell in row}:
                return True
    return False
