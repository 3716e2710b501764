"""Questions on mosaics of four articles of clothing: pictures and templated questions from
Fashion-MNIST, with 16 answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fredholm.errors import OptionError
from fredholm.lab.data.catalogue import fashion_mnist
from fredholm.lab.data.counter import integers
from fredholm.lab.data.kinds.images import resize
from fredholm.lab.data.kinds.questions import QUESTIONS, QuestionDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.vocabulary import Vocabulary

from .checks import check_integers
from .composed import base_images

NAMES = ("top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
ANSWERS = (*NAMES, "yes", "no", "1", "2", "3", "4")
PLACES = ("upper left", "upper right", "lower left", "lower right")
KINDS = ("cell", "count", "existence", "right-of")


@dataclass(frozen=True)
class MosaicOptions:
    """Options of the generator.

    Attributes:
        train, val, test: numbers of samples.
        kinds: of questions; by default all four.
        seed: of the mosaics and questions.
        cell: side of a cell, in pixels.

    Raises:
        OptionError: an unknown kind, or a number below 1.
    """

    train: int = 20000
    val: int = 2000
    test: int = 4000
    kinds: tuple[str, ...] | list[str] = KINDS
    seed: int = 0
    cell: int = 28

    def __post_init__(self) -> None:
        check_integers(self, 1, "train", "val", "test", "cell")
        if not self.kinds or not set(self.kinds) <= set(KINDS):
            raise OptionError(f"kinds: expected some of {', '.join(KINDS)}, got {self.kinds!r}")


def ask(cells: list[int], kind: str, *keys: int) -> tuple[str, str]:
    """Draw a question about the four classes of a mosaic (row by row), and its answer, by ``keys``.

    - cell: the article of a cell.
    - count: the number of articles of a kind that occurs (1 to 4).
    - existence: whether an article occurs, with yes and no equally often.
    - right-of: the article to the right of one that occurs once, in the left column. If none does,
      the question is about a cell.

    Example:
        >>> ask([8, 5, 8, 9], "count", 1)[1] in ("1", "2")
        True
        >>> ask([1, 2, 3, 4], "right-of", 0)[1] in ("pullover", "coat")
        True
    """

    def draw(high: int, stream: int) -> int:
        return int(integers(high, *keys, stream))

    if kind == "right-of":
        left = [place for place in (0, 2) if cells.count(cells[place]) == 1]
        if left:
            place = left[draw(len(left), 1)]
            return f"what is to the right of the {NAMES[cells[place]]} ?", NAMES[cells[place + 1]]
        kind = "cell"
    if kind == "cell":
        place = draw(4, 2)
        return f"what is in the {PLACES[place]} ?", NAMES[cells[place]]
    if kind == "count":
        chosen = cells[draw(4, 3)]
        question = f"how many articles of the kind {NAMES[chosen]} are there ?"
        return question, str(cells.count(chosen))

    present = sorted(set(cells))
    if draw(2, 4):
        return f"is there a {NAMES[present[draw(len(present), 5)]]} ?", "yes"
    absent = [label for label in range(len(NAMES)) if label not in present]
    return f"is there a {NAMES[absent[draw(len(absent), 6)]]} ?", "no"


def vocabulary() -> Vocabulary:
    """Return the words of all templates."""
    templates = (
        "what is to the right of the in upper lower left how many articles kind are there a ?",
        *NAMES,
    )
    return Vocabulary.of_words([" ".join(templates)], 1)


def create(request: Request) -> QuestionDataset:
    """Return the data set of a request, whose mosaics have only pictures of its split."""
    options, split = request.options, request.split
    source = base_images(request)
    pixels, kinds = source.images, source.labels
    if options.cell != pixels.shape[-1]:
        pixels = resize(pixels, (options.cell, options.cell))
    key = ("train", "val", "test").index(split)
    count = getattr(options, split)
    cells = integers(len(kinds), options.seed, key, torch.arange(count)[:, None], torch.arange(4))
    wanted = integers(len(options.kinds), options.seed, key, torch.arange(count), 9).tolist()
    pairs = []
    for number, (row, kind) in enumerate(zip(kinds[cells].tolist(), wanted)):
        pairs.append(ask(row, options.kinds[kind], options.seed, key, number))

    def pictures(indices: Tensor) -> Tensor:
        # The four pictures of each mosaic, (B, 4, 1, c, c).
        four = pixels[cells[indices]]
        top = torch.cat([four[:, 0], four[:, 1]], -1)
        bottom = torch.cat([four[:, 2], four[:, 3]], -1)
        return torch.cat([top, bottom], -2)

    return QuestionDataset(
        request.entry.name,
        split,
        pictures,
        [question for question, _ in pairs],
        torch.tensor([ANSWERS.index(answer) for _, answer in pairs]),
        ANSWERS,
        vocabulary(),
        12,
        shape=(1, 2 * options.cell, 2 * options.cell),
        mean=fashion_mnist.ENTRY.mean,
        std=fashion_mnist.ENTRY.std,
    )


ENTRY = Entry(
    name="mosaics-qa",
    title="Templated questions on mosaics of four Fashion-MNIST pictures, 16 answers",
    source="generated from fashion-mnist",
    licence_package="MIT",
    licence_data="MIT (Zalando SE)",
    samples={"train": 20000, "val": 2000, "test": 4000},
    classes=ANSWERS,
    read=create,
    official=fashion_mnist.ENTRY.official,
    notes="questions come from four templates (cell, count, existence, right-of); options: train, "
    "val, test, kinds, seed, cell (28)",
    kind=QUESTIONS,
    options=MosaicOptions,
    base="fashion-mnist",
)
register_dataset(ENTRY)
