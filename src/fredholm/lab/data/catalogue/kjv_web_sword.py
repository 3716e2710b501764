"""Texts of SWORD modules, the format of Debian's Bible packages, read without the SWORD library."""

from __future__ import annotations

import html
import re
import struct
import zlib
from pathlib import Path

from ....errors import DataError
from ..formats import read_bytes

CHAPTER = re.compile(r'<chapter [^>]*osisID="([^"]+)"')
ASIDE = re.compile(r"<note.*?</note>|<title.*?</title>", re.DOTALL)
INLINE = re.compile(r"</?(?:w|transChange|divineName|q|hi|foreign)\b[^>]*>")
TAG = re.compile(r"<[^>]*>")
Chapters = dict[str, list[str]]


def read_module(folder: Path) -> Chapters:
    """The verses of each chapter of a SWORD zText module, by the chapter's OSIS name, such as
    ``Gen.1``.

    ``ot.bzs`` lists compressed blocks (place, size, size unpacked), ``ot.bzv`` the texts in them
    (block, place, size): a heading and its verses for every chapter; ``nt`` likewise.

    Raises:
        DataError: a missing or damaged file, or one without chapters.
    """
    chapters: Chapters = {}
    for part in ("ot", "nt"):
        blocks, texts, packed = (
            read_bytes(folder / f"{part}.{kind}") for kind in ("bzs", "bzv", "bzz")
        )
        try:
            whole = [
                zlib.decompress(packed[at : at + size])
                for at, size, _ in struct.iter_unpack("<III", blocks)
            ]
            slots = [
                whole[block][at : at + size]
                for block, at, size in struct.iter_unpack("<IIH", texts)
            ]
        except (struct.error, zlib.error, IndexError) as error:
            raise DataError(
                f"{folder}: {part} is damaged ({error}); needs a SWORD zText module"
            ) from error
        verses: list[str] | None = None
        for slot in slots:
            text = slot.decode("utf-8", errors="replace")
            result = CHAPTER.search(text)
            if result:
                verses = chapters.setdefault(result[1], [])
            elif verses is not None:
                verses.append(
                    " ".join(
                        html.unescape(TAG.sub(" ", INLINE.sub("", ASIDE.sub(" ", text)))).split()
                    )
                )
    if not chapters:
        raise DataError(f"{folder}: holds no chapter; needs a SWORD zText module in OSIS")
    return chapters
