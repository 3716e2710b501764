"""VQA v2 and NLVR2, read from their official files in a user's folder: questions on photographs,
and sentences about pairs of photographs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fredholm.errors import DataError
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.kinds.picture_files import read_picture
from fredholm.lab.data.kinds.questions import QUESTIONS, QuestionDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.splits import SPLIT_SEED
from fredholm.lab.data.vocabulary import Vocabulary

from .checks import check_integers

# Statistics of ImageNet's colours.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
YEARS = ("train2014", "val2014")
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class VisualOptions:
    """Options of the data sets.

    Attributes:
        answers: number of VQA's classes, the most frequent training answers.
        max_length: largest number of words of a text.
        image_size: side of the square pictures.
        min_count: smallest number of occurrences of a word of the vocabulary.

    Raises:
        OptionError: a number below 1.
    """

    answers: int = 3129
    max_length: int = 32
    image_size: int = 224
    min_count: int = 2

    def __post_init__(self) -> None:
        check_integers(self, 1, "answers", "max_length", "image_size", "min_count")


def plain(answer: str) -> str:
    """Normalise an answer, similar to the official evaluation.

    It gets lower case and loses articles and punctuation at its ends.

    Example:
        >>> plain("The Red Bus.")
        'red bus'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().strip(" .,;:!?\"'")).split())


def soft_score(count: int) -> float:
    """Return VQA's accuracy of an answer that ``count`` of ten people gave, min(count / 3, 1)."""
    return min(count / 3.0, 1.0)


class Question(NamedTuple):
    """A question on a photograph, with the number of people that gave each answer."""

    text: str
    picture: Path
    answers: Counter[str]


class Statement(NamedTuple):
    """A sentence about two photographs; the label is 1 if it is true."""

    text: str
    pictures: tuple[Path, Path]
    label: int


def _json(path: Path) -> Any:
    try:
        return json.loads(read_bytes(path))
    except ValueError as error:
        raise DataError(
            f"{path}: expected JSON, got another format ({error}); it is truncated or corrupt"
        ) from error


def read_vqa(folder: Path, year: str) -> list[Question]:
    """Read the questions of ``train2014`` or ``val2014``.

    Raises:
        DataError: a file is missing or has other fields, or questions have no annotations.
    """
    questions = folder / f"v2_OpenEnded_mscoco_{year}_questions.json"
    annotations = folder / f"v2_mscoco_{year}_annotations.json"
    try:
        by_question = {a["question_id"]: a["answers"] for a in _json(annotations)["annotations"]}
        rows = []
        for question in _json(questions)["questions"]:
            people = by_question[question["question_id"]]
            answers = Counter(plain(answer["answer"]) for answer in people)
            picture = folder / year / f"COCO_{year}_{question['image_id']:012d}.jpg"
            rows.append(Question(question["question"], picture, answers))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{questions}: expected questions that fit {annotations.name}, got others ({error!r}); "
            f"give the files of VQA v2"
        ) from error
    if not rows:
        raise DataError(f"{questions}: expected questions, got none; it is truncated")
    return rows


def read_nlvr2(folder: Path, part: str) -> list[Statement]:
    """Read the sentences of ``train``, ``dev`` or ``test1``, one JSON object per line.

    Pictures are ``images/train/DIRECTORY/IDENTIFIER-img0.png`` or, for dev and test1,
    ``PART/IDENTIFIER-img0.png``. The identifier of a sentence ends in the number of the sentence,
    which is not part of its pictures' names.

    Raises:
        DataError: the file is missing, or a line has other fields.
    """
    path = folder / f"{part}.json"
    rows: list[Statement] = []
    for number, line in enumerate(read_bytes(path).decode("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            pair = row["identifier"].rpartition("-")[0]
            where = folder / part
            if "directory" in row:
                where = folder / "images" / "train" / str(row["directory"])
            pictures = where / f"{pair}-img0.png", where / f"{pair}-img1.png"
            label = ("false", "true").index(str(row["label"]).lower())
            rows.append(Statement(row["sentence"], pictures, label))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}, line {number}: expected a sentence, an identifier and a label, got others "
                f"({error!r}); check the file"
            ) from error
    if not rows:
        raise DataError(f"{path}: expected sentences, got none; it is truncated")
    return rows


def _reader(files: Sequence[Sequence[Path]], size: int) -> Callable[[Tensor], Tensor]:
    """Return a function that reads the pictures of indices (B,), (B, V, 3, size, size) bytes."""

    def read(indices: Tensor) -> Tensor:
        chosen = [file for i in indices.tolist() for file in files[i]]
        with ThreadPoolExecutor(8) as pool:
            pictures = list(pool.map(lambda file: read_picture(file, (size, size)), chosen))
        return torch.stack(pictures).unflatten(0, (len(indices), -1))

    return read


def _held(request: Request, n: int) -> tuple[list[int], list[int]]:
    """Return the indices of rows for training, and of rows for validation."""
    fraction = float(request.share)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(SPLIT_SEED)).tolist()
    cut = n - round(fraction * n)
    return sorted(order[:cut]), sorted(order[cut:])


def create_vqa(request: Request) -> QuestionDataset:
    """Return VQA v2.

    A part of ``train2014`` is for validation. ``val2014``, whose answers are public, is the test
    set.
    """
    folder, options = request.folder, request.options
    train = read_vqa(folder, "train2014")
    class_of = _classes(train, options.answers)
    train_rows, val_rows = _held(request, len(train))
    vocabulary = Vocabulary.of_words([train[i].text for i in train_rows], options.min_count)

    if request.split == "test":
        rows = read_vqa(folder, "val2014")
    else:
        chosen = val_rows if request.split == "val" else train_rows
        rows = [train[i] for i in chosen]

    # Answers outside of the classes do not score.
    scores: list[dict[int, float]] = []
    for row in rows:
        known = {answer: count for answer, count in row.answers.items() if answer in class_of}
        scores.append({class_of[answer]: soft_score(count) for answer, count in known.items()})
    read = _reader([[row.picture] for row in rows], options.image_size)
    return QuestionDataset(
        request.entry.name,
        request.split,
        lambda indices: read(indices)[:, 0],
        [row.text for row in rows],
        scores,
        list(class_of),
        vocabulary,
        options.max_length,
        shape=(3, options.image_size, options.image_size),
        mean=MEAN,
        std=STD,
    )


def _classes(questions: list[Question], count: int) -> dict[str, int]:
    """Number the ``count`` answers that are most often the most frequent one of a question.

    Ties are broken by the alphabet.
    """
    frequent: Counter[str] = Counter()
    for question in questions:
        answers = question.answers
        if answers:
            frequent[max(answers, key=lambda answer: (answers[answer], answer))] += 1
    ordered = sorted(frequent, key=lambda answer: (-frequent[answer], answer))
    return {answer: number for number, answer in enumerate(ordered[:count])}


def create_nlvr2(request: Request) -> QuestionDataset:
    """Return NLVR2 from ``train.json``, ``dev.json`` (validation) and ``test1.json``."""
    folder, options = request.folder, request.options
    train = read_nlvr2(folder, "train")
    vocabulary = Vocabulary.of_words([row.text for row in train], options.min_count)
    part = {"val": "dev", "test": "test1"}.get(request.split)
    rows = train if part is None else read_nlvr2(folder, part)
    return QuestionDataset(
        request.entry.name,
        request.split,
        _reader([row.pictures for row in rows], options.image_size),
        [row.text for row in rows],
        torch.tensor([row.label for row in rows]),
        ("false", "true"),
        vocabulary,
        options.max_length,
        shape=(3, options.image_size, options.image_size),
        mean=MEAN,
        std=STD,
        views=2,
    )


def _entry(
    name: str, title: str, create, official: str, licence: str, classes: tuple[str, ...]
) -> Entry:
    return Entry(
        name=name,
        title=title,
        source="your folder with the official files",
        needs={"path": "the folder of the official files"},
        licence_package="none",
        licence_data=licence,
        classes=classes,
        mean=MEAN,
        std=STD,
        read=create,
        official=official,
        notes="needs path=; words of the training questions are the vocabulary (the paper's text "
        "encoder has WordPiece); options: answers, "
        "max_length (32), image_size (224), min_count (2)",
        kind=QUESTIONS,
        options=VisualOptions,
    )


VQA = _entry(
    "vqa-v2",
    "VQA v2: open questions on photographs (Goyal et al., 2017)",
    create_vqa,
    "v2_OpenEnded_mscoco_{train,val}2014_questions.json, "
    "v2_mscoco_{train,val}2014_annotations.json, train2014/ and val2014/",
    "CC BY 4.0 (annotations); Flickr's terms (COCO pictures)",
    (),
)
register_dataset(VQA)
NLVR2 = _entry(
    "nlvr2",
    "NLVR2: is a sentence true of two photographs? (Suhr et al., 2019)",
    create_nlvr2,
    "train.json, dev.json, test1.json, images/train/, dev/ and test1/",
    "CC BY 4.0 (sentences); the pictures' owners'",
    ("false", "true"),
)
register_dataset(NLVR2)
