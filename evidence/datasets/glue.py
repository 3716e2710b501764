"""The eight tasks of GLUE that the paper reports, from the user's own files in the official layout
(Wang et al., 2018).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.errors import DataError, OptionError, suggest
from fredholm.lab.data.formats import read_utf8
from fredholm.lab.data.kinds.texts import TEXTS, TextDataset, TextOptions
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.splits import stratified

from .kjv_web import BETWEEN


@dataclass(frozen=True)
class GlueTask:
    """The layout of a task's files.

    Attributes:
        folder: its name in the official layout.
        sentences, label: columns, by the names in the header, or by number where there is none.
        classes: the labels as they are written, in the order of their numbers; None for a score.
        measures: the measures of the task, that of the paper's table first.
        dev: the file that serves as the test set, since the official one has no public labels.
        short_rows: whether the official file has incomplete rows, which are skipped and counted.
    """

    folder: str
    sentences: tuple[str | int, ...]
    label: str | int
    classes: tuple[str, ...] | None
    measures: tuple[str, ...] = ("accuracy",)
    dev: str = "dev.tsv"
    short_rows: bool = False


# If a larger share of rows is incomplete, this is another file, or a damaged one.
SHORT = 0.01
PAIR = ("sentence1", "sentence2")
TASKS = {
    "cola": GlueTask("CoLA", (3,), 1, ("0", "1"), ("matthews",)),
    "sst2": GlueTask("SST-2", ("sentence",), "label", ("0", "1")),
    "mrpc": GlueTask("MRPC", ("#1 String", "#2 String"), "Quality", ("0", "1"), ("f1", "accuracy")),
    "stsb": GlueTask("STS-B", PAIR, "score", None, ("spearman", "pearson")),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        ("0", "1"),
        ("f1", "accuracy"),
        short_rows=True,
    ),
    "mnli": GlueTask(
        "MNLI",
        PAIR,
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        dev="dev_matched.tsv",
    ),
    "qnli": GlueTask("QNLI", ("question", "sentence"), "label", ("entailment", "not_entailment")),
    "rte": GlueTask("RTE", PAIR, "label", ("entailment", "not_entailment")),
}


@dataclass(frozen=True)
class GlueOptions:
    """Options: ``task``, one of cola, sst2, mrpc, stsb, qqp, mnli, qnli and rte.

    Raises:
        OptionError: another task.
    """

    task: str = "sst2"

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            hint = suggest(str(self.task), TASKS)
            raise OptionError(f"task: expected a task of GLUE, got {self.task!r}{hint}")


class Sentences(NamedTuple):
    """The texts of a file, with two sentences as one text, and their labels.

    ``labels`` are class numbers (N,), or scores in float32; ``notes`` counts skipped rows.
    """

    texts: list[str]
    labels: Tensor
    notes: tuple[str, ...]


def read(path: Path, task: GlueTask) -> Sentences:
    """Read one file of tab-separated values without quoting; ``‖`` comes between two sentences.

    Raises:
        DataError: a file that is missing, has other columns or labels, or incomplete rows: any, or
            if the official file has a few, more than one in a hundred.
    """
    # Quotation marks are part of sentences, so no reader of CSV can be used.
    rows = [
        (number, line.rstrip("\r").split("\t"))
        for number, line in enumerate(read_utf8(path).split("\n"), 1)
        if line.strip()
    ]
    columns = _columns(path, task, rows)
    width = max(columns) + 1
    texts = []
    labels = []
    short = []
    for number, cells in rows:
        if len(cells) < width:
            short.append(number)
            if not task.short_rows or len(short) > SHORT * len(rows):
                before = f", as in {len(short) - 1} before it" if len(short) > 1 else ""
                raise DataError(
                    f"{path}: expected {width} cells per line, got {len(cells)} in line {number}"
                    f"{before}; copy the file again"
                )
            continue
        *sentences, label = (cells[column].strip() for column in columns)
        texts.append(BETWEEN.join(sentences))
        labels.append(_label_of(label, task, f"{path}: line {number}"))
    if not texts:
        raise DataError(f"{path}: expected at least one sentence, got none; it is truncated")

    notes = ()
    if short:
        counts = f"{len(short)} of {len(rows):,} rows break off and are skipped"
        notes = (f"{path}: {counts}, first line {short[0]:,}",)
    return Sentences(texts, torch.tensor(labels), notes)


def _columns(path: Path, task: GlueTask, rows: list[tuple[int, list[str]]]) -> list[int]:
    """Return the numbers of the columns of sentences and label, and take a header off the rows."""
    columns = [*task.sentences, task.label]
    # Without a header the task has the numbers themselves.
    if not isinstance(task.label, str):
        return [int(column) for column in columns]
    header: list[str] = []
    if rows:
        header = rows.pop(0)[1]
    if not set(columns) <= set(header):
        raise DataError(
            f"{path}: expected the columns {', '.join(map(str, columns))}, got the header "
            f"{header}; it is another file"
        )
    return [header.index(str(column)) for column in columns]


def _label_of(label: str, task: GlueTask, where: str) -> float:
    """Return a class number, or a score."""
    if task.classes is None:
        with suppress(ValueError):
            return float(label)
    elif label in task.classes:
        return task.classes.index(label)
    expected = ", ".join(task.classes or ("a number",))
    raise DataError(f"{where}: expected the label {expected}, got {label!r}; mend it")


def create(request: Request) -> TextDataset:
    """Return the data set of a request: ``train.tsv``, of which a share is for validation, and the
    development file as the test set.
    """
    task = TASKS[request.options.task]
    folder = request.folder / task.folder
    sentences = read(folder / "train.tsv", task)
    # Scores are not strata: all rows are one.
    strata = sentences.labels
    if task.classes is None:
        strata = torch.zeros(len(strata), dtype=torch.int64)
    rest, held = stratified(strata, request.share)
    options = request.text or TextOptions()
    vocabulary = options.make_vocabulary([sentences.texts[i] for i in rest.tolist()])
    if request.split == "test":
        sentences = read(folder / task.dev, task)
        chosen = torch.arange(len(sentences.texts))
    else:
        chosen = held if request.split == "val" else rest
    texts = [sentences.texts[i] for i in chosen.tolist()]
    labels = sentences.labels[chosen]
    name = f"glue-{request.options.task}"
    split = request.split
    length = options.length
    if task.classes is None:
        zeros = torch.zeros(len(labels), dtype=torch.int64)
        result = TextDataset(
            name, split, texts, zeros, ("score",), vocabulary, length, labels, task="regression"
        )
    else:
        result = TextDataset(name, split, texts, labels, task.classes, vocabulary, length)
    result.measures = task.measures
    result.notes = sentences.notes
    return result


ENTRY = Entry(
    name="glue",
    title="GLUE: eight tasks on sentences (Wang et al., 2018)",
    source="your own files",
    needs={"path": "the folder of the tasks' folders (CoLA, SST-2, MRPC, ...)"},
    licence_package="none needed",
    licence_data="each task's own",
    read=create,
    official="the folders CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI and RTE, each with train.tsv "
    "and dev.tsv (MNLI: dev_matched.tsv)",
    notes="path: the folder; options: task; the labels of the official test sets are not public, "
    "so the development set is the test",
    kind=TEXTS,
    options=GlueOptions,
)
register_dataset(ENTRY)
