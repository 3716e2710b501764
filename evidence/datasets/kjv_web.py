"""Recognising translations: verses of the King James Bible beside those of the World English Bible,
half of them the same verse.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.errors import DataError
from fredholm.lab.data.catalogue.kjv_characters import PACKAGE
from fredholm.lab.data.catalogue.kjv_lzw import BOOKS, KJV_FILE, Place, read_kjv
from fredholm.lab.data.clients import APT
from fredholm.lab.data.create import source_folder
from fredholm.lab.data.kinds.texts import TEXTS, TextDataset, TextOptions
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.sources import Package, Packages, files_in
from fredholm.lab.data.vocabulary import split_words

from .kjv_web_sword import read_module

# A sign that neither translation has, so it is a word, a character and bytes of its own.
BETWEEN = " ‖ "
QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "—": "-", "–": "-"})


def split_of(book: int) -> str:
    """Return the split of a book: every fifth is for the test, and every tenth for validation.

    Whole books, since verses of one book share names and phrases.
    """
    if book % 5 == 4:
        return "test"
    return "val" if book % 10 == 2 else "train"


def coin(place: Place) -> bool:
    """Return whether a verse is paired with its own translation: half of them, by its name."""
    book, chapter, verse = place
    name = f"{BOOKS[book]} {chapter}:{verse}".encode("ascii")
    return hashlib.sha256(name).digest()[0] < 128


def nearest_others(old: list[str], new: list[str]) -> list[int]:
    """Return for each old verse of a book the new verse with the most similar words that is not a
    translation of it, by the cosine of TF-IDF.

    Verses whose old or whose new text is the same count as translations of one another. O(n²·V) for
    V different words.

    Example:
        >>> nearest_others(["a b c", "b c d", "x y"], ["a b c", "b c d", "x y"])
        [1, 0, 0]
    """
    words = [split_words(text) for text in (*old, *new)]
    first, second = vectors(words).split([len(old), len(new)])
    similarity = first @ second.mT
    for texts in (words[: len(old)], words[len(old) :]):
        # Equal texts get one number; all their pairs, and a verse with itself, are excluded.
        numbers = {text: i for i, text in enumerate(map(" ".join, texts))}
        name = torch.tensor([numbers[" ".join(text)] for text in texts])
        similarity[name[:, None] == name] = -1.0
    return similarity.argmax(1).tolist()


def vectors(texts: list[list[str]]) -> Tensor:
    """Return unit vectors of words weighted by log(n / texts with the word), (n, V)."""
    numbers: dict[str, int] = {}
    rows = []
    columns = []
    for row, words in enumerate(texts):
        rows += [row] * len(words)
        columns += [numbers.setdefault(word, len(numbers)) for word in words]
    places = torch.tensor(rows), torch.tensor(columns)
    counts = torch.zeros(len(texts), len(numbers))
    counts.index_put_(places, torch.ones(len(rows)), accumulate=True)
    weighted = counts * (len(texts) / (counts > 0).sum(0)).log()
    return torch.nn.functional.normalize(weighted, dim=1)


def read_web(folder: Path) -> dict[Place, str]:
    """Return the World English Bible's verses by (book, chapter, verse), typographic quotes as
    ASCII ones; books beyond the 66 are left out.

    Raises:
        DataError: a file is missing, or is something else.
    """
    verses: dict[Place, str] = {}
    for name, texts in read_module(folder).items():
        book, _, chapter = name.partition(".")
        if book not in BOOKS:
            continue
        number = BOOKS.index(book)
        for verse, text in enumerate(texts, 1):
            # Verses that this edition leaves out are empty, so that the others keep their numbers.
            if text:
                verses[number, int(chapter), verse] = text.translate(QUOTES)
    return verses


class Pair(NamedTuple):
    """Two verses as one text, the place of the first, and whether they are the same verse."""

    place: Place
    text: str
    same: bool


@lru_cache(maxsize=2)
def read_pairs(folder: Path) -> list[Pair]:
    """Return all pairs in the order of the books.

    Raises:
        DataError: a file is missing or corrupt, or the translations share no verse.
    """
    old = read_kjv(folder / KJV_FILE)
    new = read_web(folder)
    shared = [place for place in old if place in new]
    if not shared:
        raise DataError(
            f"{folder}: expected verses that the World English Bible shares with {KJV_FILE}, got "
            "none; fetch again with --force"
        )
    pairs = []
    for book in range(len(BOOKS)):
        places = [place for place in shared if place[0] == book]
        if len(places) < 2:
            continue
        others = nearest_others([old[p] for p in places], [new[p] for p in places])
        for place, other in zip(places, others):
            same = coin(place)
            second = place if same else places[other]
            pairs.append(Pair(place, old[place] + BETWEEN + new[second], same))
    return pairs


def create(request: Request) -> TextDataset:
    """Return the data set of a request: a class for each pair, and the two verses as one text."""
    entry = request.entry
    parts: dict[str, list[Pair]] = {"train": [], "val": [], "test": []}
    for pair in read_pairs(source_folder(request)):
        parts[split_of(pair.place[0])].append(pair)
    options = request.text or TextOptions()
    vocabulary = options.make_vocabulary([pair.text for pair in parts["train"]])
    texts = [pair.text for pair in parts[request.split]]
    labels = torch.tensor([int(pair.same) for pair in parts[request.split]])
    return TextDataset(
        entry.name, request.split, texts, labels, entry.classes, vocabulary, options.length
    )


FOLDER = "usr/share/sword/modules/texts/ztext/engWEB2015eb"
WEB = Package(
    client=APT,
    name="sword-text-web",
    version="426.0-1",
    archive_bytes=3956428,
    archive_sha256="930b23670b352f0829a306501de4bebb5e654a2df02cde2cbe86b802177868e1",
    files=files_in(
        FOLDER,
        ("ot.bzs", 1140, "2c16645bb829c05b20f39769e1fa23212743335143833a819f29e412c6def8ce"),
        ("ot.bzv", 310270, "dbd3b762b7159c5dd4b535f75b6ab643fb62ae44f4655aff3c5098a955a1ae57"),
        ("ot.bzz", 3063793, "4633066d3872f1a3e600d2d10e667a13cd6c32bf116ca971d3c8f288bc3ea453"),
        ("nt.bzs", 372, "bec87a360bbc6bfbcd7de513edf928ceebb428dd2baff813aebf521bb0c6cc83"),
        ("nt.bzv", 82480, "bb7a522d8323ccd7be462fca4dcd53c06d966c140fe260a6295e05393d259338"),
        ("nt.bzz", 832969, "5429389d9331b7a86901a73afa74f32d089cae3d5bd8dfe304b11808714a69ba"),
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
    official=f"{KJV_FILE} of bible-kjv-text and {', '.join(file.name for file in WEB.files)} of "
    "SWORD's module "
    "engWEB2015eb, in one folder",
    notes="31,095 aligned verses, half of them paired with the most similar other verse of their "
    "book; split by book, so val_fraction plays no role",
    kind=TEXTS,
)
register_dataset(ENTRY)
