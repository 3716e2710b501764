"""Verses: do two Bible verses, one of the King James Version and one of the World English Bible, render the same text?

A runnable stand-in for the Long Range Arena's Retrieval task, and named as such. It reads the SWORD modules of two Debian packages:
``apt-get download sword-text-kjv sword-text-web``, then ``dpkg -x`` of both into one folder.
"""

from __future__ import annotations

import html
import re
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from fredholm.data.catalogue.aan import PairOptions, pair_dataset
from fredholm.data.counter import hash64, integers
from fredholm.data.formats import read_bytes
from fredholm.data.registry import Entry, Request
from fredholm.data.tokens import Rows, TokenDataset
from fredholm.errors import DataError

SEED = 20240229  # fixed: which verses are paired is part of the data set
CHAPTER = re.compile(r'<chapter [^>]*osisID="([^"]+)"')
ASIDE = re.compile(r"<note.*?</note>|<title.*?</title>", re.DOTALL)
INLINE = re.compile(r"</?(?:w|transChange|divineName|q|hi|foreign)\b[^>]*>")
TAG = re.compile(r"<[^>]*>")
Chapters = dict[str, list[str]]


def read_module(folder: Path) -> Chapters:
    """The verses of each chapter of a SWORD zText module, by the chapter's OSIS name, such as ``Gen.1``.

    ``ot.bzs`` lists compressed blocks (place, size, size unpacked), ``ot.bzv`` the texts in them (block, place, size): a heading and its
    verses for every chapter; ``nt`` likewise.

    Raises:
        DataError: a missing or damaged file, or one without chapters.
    """
    chapters: Chapters = {}
    for part in ("ot", "nt"):
        blocks, texts, packed = (read_bytes(folder / f"{part}.{kind}") for kind in ("bzs", "bzv", "bzz"))
        try:
            whole = [zlib.decompress(packed[at : at + size]) for at, size, _ in struct.iter_unpack("<III", blocks)]
            slots = [whole[block][at : at + size] for block, at, size in struct.iter_unpack("<IIH", texts)]
        except (struct.error, zlib.error, IndexError) as error:
            raise DataError(f"{folder}: {part} is damaged ({error}); needs a SWORD zText module") from error
        verses: list[str] | None = None
        for slot in slots:
            text = slot.decode("utf-8", errors="replace")
            found = CHAPTER.search(text)
            if found:
                verses = chapters.setdefault(found[1], [])
            elif verses is not None:
                verses.append(" ".join(html.unescape(TAG.sub(" ", INLINE.sub("", ASIDE.sub(" ", text)))).split()))
    if not chapters:
        raise DataError(f"{folder}: holds no chapter; needs a SWORD zText module in OSIS")
    return chapters


def module(folder: Path, name: str) -> Path:
    """The one module folder below ``folder`` whose name holds ``name``.

    Raises:
        DataError: none, or several.
    """
    found = sorted(path.parent for path in folder.rglob("ot.bzz") if name.lower() in path.parent.name.lower())
    if len(found) != 1:
        raise DataError(
            f"{folder}: has {len(found)} SWORD modules named after {name}; needs sword-text-kjv and sword-text-web unpacked there: "
            "`apt-get download sword-text-kjv sword-text-web`, then `dpkg -x` of each"
        )
    return found[0]


def split_of(book: int) -> str:
    """Books are whole in one split: of every ten, two test and one validates."""
    return {2: "test", 7: "test", 4: "val"}.get(book % 10, "train")


def matched(old: Chapters, new: Chapters) -> dict[str, list[tuple[list[str], list[str]]]]:
    """Chapters of both that count the same verses, at least two, by split."""
    books = list(dict.fromkeys(name.split(".")[0] for name in old))
    parts: dict[str, list[tuple[list[str], list[str]]]] = {"train": [], "val": [], "test": []}
    for name, verses in old.items():
        others = new.get(name, [])
        while verses and others and not verses[-1] and not others[-1]:  # slots past a chapter's end
            verses, others = verses[:-1], others[:-1]
        if len(verses) == len(others) > 1 and all(verses) and all(others):
            parts[split_of(books.index(name.split(".")[0]))].append((verses, others))
    return parts


def sample(chapters: list[tuple[list[str], list[str]]]) -> tuple[list[str], list[str], Tensor]:
    """Every verse of the old version, beside its own rendering or another verse of the same chapter, and which it is."""
    first, second, labels = [], [], []
    for number, (old, new) in enumerate(chapters):
        places = torch.arange(len(old))
        same = hash64(SEED, number, 0, places) & 1
        others = (places + 1 + integers(len(old) - 1, SEED, number, 1, places)) % len(old)
        first += old
        second += [new[i] for i in torch.where(same == 1, places, others).tolist()]
        labels.append(same)
    return first, second, torch.cat(labels)


def create(request: Request) -> TokenDataset:
    """The data set of a request from the user's folder."""
    if request.path is None:
        raise DataError(f"{request.entry.name}: has no files of its own; give path=FOLDER with both modules unpacked")
    old, new = (read_module(module(request.path, name)) for name in ("KJV", "WEB"))
    chapters = matched(old, new)[request.split]
    if not chapters:
        raise DataError(f"{request.path}: the two modules share no chapter of the {request.split} split")
    first, second, labels = sample(chapters)
    length = request.options.max_length
    return pair_dataset(request, Rows.of_texts(first, length), Rows.of_texts(second, length), labels, length)


ENTRY = Entry(
    name="verses",
    title="KJV/WEB: do two verses render the same text? A stand-in for the Long Range Arena's Retrieval task",
    source="your folder: Debian packages sword-text-kjv and sword-text-web, unpacked by dpkg -x",
    licence_package="public domain",
    licence_data="public domain",
    samples={},
    classes=("another", "same"),
    shape=None,
    mean=(),
    std=(),
    create=create,
    official="the SWORD modules engKJV2006eb and engWEB2015eb",
    notes="options: max_length; negatives are other verses of the same chapter; splits by book",
    kind="sequence",
    options=PairOptions,
)
