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
    """The paths of files; what comes from standard input lies in a file for as long."""
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
        try:
            yield paths
        except DataError as error:
            raise DataError(renamed(str(error), Path(folder))) from error


def _plain(content: bytes) -> bytes:
    """Return the content, decompressed where it was compressed."""
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"standard input: cannot be read ({error})") from error


def renamed(text: str, folder: Path) -> str:
    """A path or a message without the folder that standard input lies in."""
    return re.sub(re.escape(f"{folder}/{_STDIN}") + r"\.\w+", "standard input", text)


def _suffix(content: bytes, reading: Reading) -> str:
    """Of what comes without a name: by how it begins; texts without a header are lines."""
    known = next((s for magic, s in _MAGIC.items() if content.startswith(magic)), None)
    if known is not None:
        return known
    if (reading.channels or reading.text) and content.lstrip().startswith(b"{"):  # of a table
        return LINES[0]
    return ".txt" if reading.kind == "texts" and not _has_column(content, reading.text) else ".csv"


def _has_column(content: bytes, name: str | None) -> bool:
    """Whether the first line is a header with a column of this name."""
    header = re.split(rb"[\r\n]", content, maxsplit=1)[0].decode("utf-8-sig", "replace")
    rows = [row for sign in DELIMITERS for row in csv.reader([header], delimiter=sign)]
    return name in {cell.strip() for row in rows for cell in row}
