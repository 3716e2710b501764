"""Do two sentences say the same? Verses of the King James Bible beside those of the World English
Bible.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ....errors import DataError
from ..clients import APT
from ..create import source_folder
from ..kinds.texts import TEXTS, TextDataset, TextOptions
from ..registry import Entry, Request, register_dataset
from ..sources import Package, Packages, PinnedFile
from ..vocabulary import split_words
from .kjv_characters import PACKAGE
from .kjv_lzw import BOOKS, KJV_FILE, Place, read_kjv
from .kjv_web_sword import read_module

BETWEEN = " ‖ "  # a sign that neither translation has, so a word, a character and bytes of its own
WEB_FILES = tuple(f"{part}.{kind}" for part in ("ot", "nt") for kind in ("bzs", "bzv", "bzz"))
QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "—": "-", "–": "-"})
FOLDER = Path("usr/share/sword/modules/texts/ztext/engWEB2015eb")


def split_of(book: int) -> str:
    """Every fifth book is for the test, and every tenth for validation."""
    return "test" if book % 5 == 4 else "val" if book % 10 == 2 else "train"


def coin(place: Place) -> bool:
    """Whether a verse is paired with its own translation: half of them, fixed by its name."""
    book, chapter, verse = place
    name = f"{BOOKS[book]} {chapter}:{verse}".encode("ascii")
    return hashlib.sha256(name).digest()[0] < 128


def nearest_others(old: list[str], new: list[str]) -> list[int]:
    """For each old verse of a book the new verse with the most similar words that is no translation
    of it, by TF-IDF's cosine.

    Verses whose old or whose new text is the same count as translations of one another. O(n²·V) for
    V different words.

    Example:
        >>> nearest_others(["a b c", "b c d", "x y"], ["a b c", "b c d", "x y"])
        [1, 0, 0]
    """
    first, second = vectors([split_words(text) for text in (*old, *new)]).split(
        [len(old), len(new)]
    )
    alike = first @ second.mT
    for texts in (old, new):
        _, name = torch.unique(
            torch.tensor([int.from_bytes(_digest(t), "big") for t in texts]), return_inverse=True
        )
        alike[name[:, None] == name] = -1.0
    return alike.argmax(1).tolist()


def vectors(texts: list[list[str]]) -> Tensor:
    """Unit vectors of words weighted by log(n / documents with the word), (n, V)."""
    numbers: dict[str, int] = {}
    pairs = [
        (i, numbers.setdefault(word, len(numbers)))
        for i, words in enumerate(texts)
        for word in words
    ]
    rows, columns = torch.tensor(pairs).T
    counts = torch.zeros(len(texts), len(numbers)).index_put_(
        (rows, columns), torch.ones(len(rows)), accumulate=True
    )
    weighted = counts * (len(texts) / (counts > 0).sum(0)).log()
    return torch.nn.functional.normalize(weighted, dim=1)


def _digest(text: str) -> bytes:
    return hashlib.sha256(" ".join(split_words(text)).encode("utf-8")).digest()[:7]


def read_web(folder: Path) -> dict[Place, str]:
    """The World English Bible's verses by (book, chapter, verse), typographic quotes as ASCII ones;
    books beyond the 66 are left out.

    Raises:
        DataError: when a file is missing, or is something else.
    """
    verses: dict[Place, str] = {}
    for name, texts in read_module(folder).items():
        book, _, chapter = name.partition(".")
        if book in BOOKS:
            place = BOOKS.index(book), int(chapter)
            verses |= {
                (*place, i): text.translate(QUOTES) for i, text in enumerate(texts, 1) if text
            }
    return verses


@lru_cache(maxsize=2)
def read_pairs(folder: Path) -> list[tuple[Place, str, bool]]:
    """All pairs in the order of the books: place, the two sentences as one text, and whether they
    are the same verse.

    Raises:
        DataError: when a file is missing or corrupt, or the translations share no verse.
    """
    old, new = read_kjv(folder / KJV_FILE), read_web(folder)
    shared = [place for place in old if place in new]
    if not shared:
        raise DataError(f"{folder}: the World English Bible shares no verse with {KJV_FILE}")
    pairs = []
    for book in range(len(BOOKS)):
        places = [place for place in shared if place[0] == book]
        if len(places) < 2:
            continue
        others = nearest_others([old[p] for p in places], [new[p] for p in places])
        for place, other in zip(places, others):
            same = coin(place)
            pairs.append(
                (place, old[place] + BETWEEN + new[place if same else places[other]], same)
            )
    return pairs


def create(request: Request) -> TextDataset:
    """The data set of a request: a class for each pair, and the two verses as one text with a sign
    between.
    """
    entry = request.entry
    result = read_pairs(source_folder(request, lambda file: True))
    parts = {
        name: [pair for pair in result if split_of(pair[0][0]) == name]
        for name in ("train", "val", "test")
    }
    options = request.text or TextOptions()
    vocabulary = options.make_vocabulary([text for _, text, _ in parts["train"]])
    mine = parts[request.split]
    labels = torch.tensor([int(same) for _, _, same in mine])
    texts = [text for _, text, _ in mine]
    return TextDataset(
        entry.name, request.split, texts, labels, entry.classes, vocabulary, options.length
    )


WEB = Package(
    client=APT,
    name="sword-text-web",
    version="426.0-1",
    archive_bytes=3956428,
    archive_sha256="930b23670b352f0829a306501de4bebb5e654a2df02cde2cbe86b802177868e1",
    files=tuple(
        PinnedFile(name=name, member=str(FOLDER / name), bytes=size, sha256=digest)
        for name, (size, digest) in zip(
            WEB_FILES,
            (
                (
                    1140,
                    "2c16645bb829c05b20f39769e1fa23212743335143833a819f29e412c6def8ce",
                ),
                (
                    310270,
                    "dbd3b762b7159c5dd4b535f75b6ab643fb62ae44f4655aff3c5098a955a1ae57",
                ),
                (
                    3063793,
                    "4633066d3872f1a3e600d2d10e667a13cd6c32bf116ca971d3c8f288bc3ea453",
                ),
                (
                    372,
                    "bec87a360bbc6bfbcd7de513edf928ceebb428dd2baff813aebf521bb0c6cc83",
                ),
                (
                    82480,
                    "bb7a522d8323ccd7be462fca4dcd53c06d966c140fe260a6295e05393d259338",
                ),
                (
                    832969,
                    "5429389d9331b7a86901a73afa74f32d089cae3d5bd8dfe304b11808714a69ba",
                ),
            ),
            strict=True,
        )
    ),
)
ENTRY = Entry(
    name="kjv-web",
    title="Paraphrase: a verse of the King James Bible and one of the World English Bible, the "
    "same or the most similar other",
    licence_package="King James free to copy, modify and distribute (Chapin); Debian's part GPL-2+",
    licence_data="both translations are in the public domain; 'World English Bible' is a trademark "
    "of eBible.org",
    samples={"train": 21935, "val": 4137, "test": 5023},
    classes=("another verse", "the same verse"),
    read=create,
    sources=(Packages((PACKAGE, WEB)),),
    official=f"{KJV_FILE} of bible-kjv-text and {', '.join(WEB_FILES)} of SWORD's module "
    "engWEB2015eb, in one folder",
    notes="31,095 aligned verses, half of them paired with the most similar other verse of their "
    "book; split by book, so val_fraction "
    "plays no role",
    kind=TEXTS,
)
register_dataset(ENTRY)
