"""VQA v2 and NLVR2 in their official files, from a user's own folder: questions on photographs, and
sentences about pairs of them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.kinds.picture_files import read_picture
from fredholm.lab.data.kinds.questions import QUESTIONS, QuestionDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.splits import SPLIT_SEED
from fredholm.lab.data.vocabulary import Vocabulary

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
YEARS = ("train2014", "val2014")
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class VisualOptions:
    """``answers``: how many of the most frequent training answers are classes (of VQA; the paper's
    3,129); ``max_length`` of a text; ``image_size`` of the square pictures; ``min_count`` of a
    word.

    Raises:
        OptionError: a number below 1.
    """

    answers: int = 3129
    max_length: int = 32
    image_size: int = 224
    min_count: int = 2

    def __post_init__(self) -> None:
        for name in ("answers", "max_length", "image_size", "min_count"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"{name}: received {value!r}; needs an integer of 1 or more")


def plain(answer: str) -> str:
    """An answer without capitals, articles and signs at its ends, as the official evaluation
    compares them (in short).

    Example:
        >>> plain("The Red Bus.")
        'red bus'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().strip(" .,;:!?\"'")).split())


def soft_score(count: int) -> float:
    """VQA's accuracy of an answer that ``count`` of ten people gave: min(count / 3, 1)."""
    return min(count / 3.0, 1.0)


def _json(path: Path) -> Any:
    try:
        return json.loads(read_bytes(path))
    except ValueError as error:
        raise DataError(f"{path}: no JSON ({error}); it is truncated or corrupt") from error


def read_vqa(folder: Path, year: str) -> list[tuple[str, Path, Counter]]:
    """Question, picture file and answers with their counts, of ``train2014`` or ``val2014``.

    Raises:
        DataError: a missing file, other fields, or questions without annotations.
    """
    questions = folder / f"v2_OpenEnded_mscoco_{year}_questions.json"
    annotations = folder / f"v2_mscoco_{year}_annotations.json"
    try:
        given = {a["question_id"]: a for a in _json(annotations)["annotations"]}
        rows = []
        for question in _json(questions)["questions"]:
            answers = Counter(
                plain(answer["answer"]) for answer in given[question["question_id"]]["answers"]
            )
            picture = folder / year / f"COCO_{year}_{question['image_id']:012d}.jpg"
            rows.append((question["question"], picture, answers))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{questions}: does not fit {annotations.name} ({error!r}); needs the files of VQA v2"
        ) from error
    if not rows:
        raise DataError(f"{questions}: holds no question")
    return rows


def read_nlvr2(folder: Path, part: str) -> list[tuple[str, tuple[Path, Path], int]]:
    """Sentence, its two pictures, and whether it is true, of ``train``, ``dev`` or ``test1`` (one
    JSON object a line).

    Pictures are ``images/train/DIRECTORY/IDENTIFIER-img0.png`` or, for dev and test1,
    ``PART/IDENTIFIER-img0.png``; the identifier of a sentence ends in the number of the sentence,
    that of its pictures does not.

    Raises:
        DataError: a missing file, or a line with other fields.
    """
    path, rows = folder / f"{part}.json", []
    for number, line in enumerate(read_bytes(path).decode("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            pair = row["identifier"].rpartition("-")[0]
            place = (
                folder / "images" / "train" / str(row["directory"])
                if "directory" in row
                else folder / part
            )
            label = ("false", "true").index(str(row["label"]).lower())
            rows.append(
                (row["sentence"], (place / f"{pair}-img0.png", place / f"{pair}-img1.png"), label)
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: line {number} has no sentence, identifier and label ({error!r})"
            ) from error
    if not rows:
        raise DataError(f"{path}: holds no sentence")
    return rows


def _reader(files: Sequence[Sequence[Path]], size: int) -> Callable[[Tensor], Tensor]:
    """Pictures of some indices, (B, V, 3, size, size) bytes, decoded by a few threads."""

    def read(indices: Tensor) -> Tensor:
        chosen = [file for i in indices.tolist() for file in files[i]]
        with ThreadPoolExecutor(8) as pool:
            pictures = list(pool.map(lambda file: read_picture(file, (size, size)), chosen))
        return torch.stack(pictures).unflatten(0, (len(indices), -1))

    return read


def _held(request: Request, n: int) -> tuple[list[int], list[int]]:
    """Rows that train, and rows for validation."""
    fraction = float(request.share)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(SPLIT_SEED)).tolist()
    cut = n - round(fraction * n)
    return sorted(order[:cut]), sorted(order[cut:])


def create_vqa(request: Request) -> QuestionDataset:
    """VQA v2: ``train2014`` trains, a part of it validates, ``val2014``, whose answers are public,
    is the test set.
    """
    folder, options = request.folder, request.options
    train = read_vqa(folder, "train2014")
    frequent = Counter()
    for _, _, answers in train:
        frequent.update([max(answers, key=lambda a: (answers[a], a))] if answers else [])
    classes = [
        a
        for a, _ in sorted(frequent.items(), key=lambda item: (-item[1], item[0]))[
            : options.answers
        ]
    ]
    numbers = {answer: place for place, answer in enumerate(classes)}
    rest, held = _held(request, len(train))
    vocabulary = Vocabulary.of_words([train[i][0] for i in rest], options.min_count)
    rows = read_vqa(folder, "val2014") if request.split == "test" else train
    chosen = {"train": rest, "val": held}.get(request.split, range(len(rows)))
    rows = [rows[i] for i in chosen]
    scores = [
        {numbers[a]: soft_score(c) for a, c in answers.items() if a in numbers}
        for _, _, answers in rows
    ]
    read = _reader([[file] for _, file, _ in rows], options.image_size)
    return QuestionDataset(
        request.entry.name,
        request.split,
        lambda indices: read(indices)[:, 0],
        [question for question, _, _ in rows],
        scores,
        classes,
        vocabulary,
        options.max_length,
        shape=(3, options.image_size, options.image_size),
        mean=MEAN,
        std=STD,
    )


def create_nlvr2(request: Request) -> QuestionDataset:
    """NLVR2: ``train.json`` trains, ``dev.json`` validates, ``test1.json`` is the test set; two
    pictures a sentence.
    """
    folder, options = request.folder, request.options
    train = read_nlvr2(folder, "train")
    vocabulary = Vocabulary.of_words([sentence for sentence, _, _ in train], options.min_count)
    part = {"val": "dev", "test": "test1"}.get(request.split)
    rows = train if part is None else read_nlvr2(folder, part)
    return QuestionDataset(
        request.entry.name,
        request.split,
        _reader([files for _, files, _ in rows], options.image_size),
        [sentence for sentence, _, _ in rows],
        torch.tensor([label for _, _, label in rows]),
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
