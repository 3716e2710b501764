"""Python's documentation, one document per source file: technical English with code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from ....errors import DataError
from ..clients import APT, tar_stream
from ..create import create_next_tokens, source_folder
from ..formats import read_bytes
from ..kinds.language import NextTokens
from ..kinds.texts import TEXTS
from ..registry import Entry, Request, register_dataset
from ..sources import Package
from ..splits import place_of, split_at

FILE = "documents.json"
TEST_FRACTION = 0.1
SOURCES, SUFFIX = "/html/_sources/", ".rst.txt"


def derive(archive: Path, folder: Path, advance: Callable[[int], None]) -> None:
    """Write ``documents.json``: each document's text by its name, such as ``library/json``."""
    texts = {}
    with tar_stream(archive, APT) as tar:
        for member in tar:
            if not member.name.endswith(SUFFIX) or SOURCES not in member.name:
                continue
            source = tar.extractfile(member)
            # Folders and links have no content.
            if source is None:
                continue
            text = source.read()
            name = member.name.partition(SOURCES)[2].removesuffix(SUFFIX)
            texts[name] = text.decode("utf-8", errors="replace")
            advance(len(text))
    content = json.dumps(dict(sorted(texts.items())), indent=0)
    (folder / FILE).write_text(content, encoding="utf-8")


def read(folder: Path) -> dict[str, str]:
    """Return the documents that :func:`derive` wrote, by name.

    Raises:
        DataError: a file that holds something else.
    """
    try:
        texts = json.loads(read_bytes(folder / FILE))
    except ValueError as error:
        raise DataError(
            f"{folder / FILE}: not JSON ({error}); fetch python-docs again with --force"
        ) from error
    if not isinstance(texts, dict) or not all(isinstance(x, str) for x in texts.values()):
        raise DataError(
            f"{folder / FILE}: expected an object of texts by their documents' names, got another; "
            "fetch python-docs again with --force"
        )
    return texts


def split_of(name: str, val_fraction: float) -> str:
    """Return the split of a document, by a hash of its name.

    Example:
        >>> split_of("library/json", 0.1)
        'train'
    """
    return split_at(place_of(name), val_fraction, TEST_FRACTION)


def create(request: Request) -> NextTokens:
    """Return the data set of a request: complete documents, one after another."""
    parts: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for name, text in read(source_folder(request)).items():
        parts[split_of(name, float(request.share))].append(text)
    return create_next_tokens(request, parts)


ENTRY = Entry(
    name="python-docs",
    title="Python's documentation, nearly 500 documents in reStructuredText: what comes next",
    licence_package="PSF-2.0; Debian's part likewise",
    licence_data="PSF-2.0; examples also 0BSD",
    read=create,
    sources=(
        Package(
            client=APT,
            name="python3.11-doc",
            version="3.11.2-6+deb12u9",
            archive_bytes=12644000,
            archive_sha256="",
            derive=derive,
            derived_bytes=11_048_275,
        ),
    ),
    official=f"{FILE}: an object of texts by their documents' names",
    val_fraction=0.1,
    notes="whole documents in one split, 81 / 9 / 10% by a hash of their names; drifts with the "
    "distribution; windows of max_length characters, or tokens of a decoder that is linearised",
    kind=TEXTS,
)
register_dataset(ENTRY)
