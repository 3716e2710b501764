"""Texts of SWORD modules, the format of Debian's Bible packages, read without the SWORD library."""

from __future__ import annotations

import html
import re
import struct
import zlib
from pathlib import Path

from fredholm.errors import DataError
from fredholm.lab.data.formats import read_bytes

CHAPTER = re.compile(r'<chapter [^>]*osisID="([^"]+)"')
ASIDE = re.compile(r"<note.*?</note>|<title.*?</title>", re.DOTALL)
INLINE = re.compile(r"</?(?:w|transChange|divineName|q|hi|foreign)\b[^>]*>")
TAG = re.compile(r"<[^>]*>")
Chapters = dict[str, list[str]]


def read_module(folder: Path) -> Chapters:
    """Return the verses of each chapter of a SWORD zText module, by the chapter's OSIS name, such
    as ``Gen.1``.

    ``ot.bzs`` lists compressed blocks (offset, size, size unpacked), ``ot.bzv`` the texts in them
    (block, offset, size): a heading and its verses for every chapter; ``nt`` likewise.

    Raises:
        DataError: a missing or damaged file, or one without chapters.
    """
    chapters: Chapters = {}
    for part in ("ot", "nt"):
        blocks, texts, packed = (
            read_bytes(folder / f"{part}.{kind}") for kind in ("bzs", "bzv", "bzz")
        )
        try:
            unpacked = [
                zlib.decompress(packed[at : at + size])
                for at, size, _ in struct.iter_unpack("<III", blocks)
            ]
            slots = [
                unpacked[block][at : at + size]
                for block, at, size in struct.iter_unpack("<IIH", texts)
            ]
        except (struct.error, zlib.error, IndexError) as error:
            raise DataError(
                f"{folder}: expected a SWORD zText module, got a damaged {part} ({error}); fetch "
                "it again"
            ) from error

        # Texts before the first heading belong to the book, not to a chapter.
        verses: list[str] | None = None
        for slot in slots:
            text = slot.decode("utf-8", errors="replace")
            heading = CHAPTER.search(text)
            if heading:
                verses = chapters.setdefault(heading[1], [])
            elif verses is not None:
                verses.append(_plain(text))
    if not chapters:
        raise DataError(
            f"{folder}: expected a SWORD zText module in OSIS, got one without chapters; fetch it "
            "again"
        )
    return chapters


def _plain(text: str) -> str:
    """Return the words of a verse, without notes, titles and tags."""
    # Tags around words vanish; any other tag, such as of a line, separates words.
    words = INLINE.sub("", ASIDE.sub(" ", text))
    return " ".join(html.unescape(TAG.sub(" ", words)).split())
