"""The eight tasks of GLUE that the paper reports, from the user's own files in the official layout
(Wang et al., 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fredholm.errors import DataError, OptionError, suggest
from fredholm.lab.data.catalogue.kjv_web import BETWEEN
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.kinds.texts import TEXTS, TextDataset, TextOptions
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.splits import stratified


@dataclass(frozen=True)
class GlueTask:
    """Where a task's file holds its sentences and labels: names of the header's columns, or places
    where there is no header.

    ``classes`` are the labels as they are written, in the order of their numbers; None for a score.
    ``measures`` are those by which the task is judged, that of the paper's table first.
    ``dev`` is the file that stands for the test set, whose labels are not public. ``short_rows``:
    the official file has rows that break off, which are skipped and counted.
    """

    folder: str
    sentences: tuple[str | int, ...]
    label: str | int
    classes: tuple[str, ...] | None
    measures: tuple[str, ...] = ("accuracy",)
    dev: str = "dev.tsv"
    short_rows: bool = False


SHORT = 0.01  # more rows that break off than this share are another file, or a damaged one
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
    """``task``: one of cola, sst2, mrpc, stsb, qqp, mnli, qnli and rte.

    Raises:
        OptionError: another task.
    """

    task: str = "sst2"

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise OptionError(f"task: received {self.task!r}{suggest(str(self.task), TASKS)}")


def read(path: Path, task: GlueTask) -> tuple[list[str], list[str], tuple[str, ...]]:
    """Texts and labels of one file of tab-separated values without quoting, and what is to be
    said of it; two sentences become one text with ``‖`` between.

    Raises:
        DataError: a file that is missing, has other columns or labels, or rows that break off: any
            at all, or where the official file has a few, more than one in a hundred.
    """
    try:
        lines = read_bytes(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 at byte {error.start:,}; it is corrupt or another file"
        ) from error
    rows = [
        (number, line.rstrip("\r").split("\t"))
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    wanted = [*task.sentences, task.label]
    if isinstance(task.label, str):
        header = [cell.strip("\ufeff") for cell in rows.pop(0)[1]] if rows else []
        missing = [name for name in wanted if name not in header]
        if missing:
            raise DataError(
                f"{path}: the header is {header}; needs the columns {', '.join(map(str, wanted))}"
            )
        wanted = [header.index(str(name)) for name in wanted]
    texts, labels, short = [], [], []
    for number, cells in rows:
        if len(cells) <= max(map(int, wanted)):
            short.append(number)
            if not task.short_rows or len(short) > SHORT * len(rows):
                more = f", as {len(short) - 1} before it" if len(short) > 1 else ""
                raise DataError(
                    f"{path}: line {number} has {len(cells)} cells; needs "
                    f"{max(map(int, wanted)) + 1}{more}"
                )
            continue
        *sentences, label = (cells[int(place)].strip() for place in wanted)
        if not (label in task.classes if task.classes else _is_number(label)):
            raise DataError(
                f"{path}: line {number} has the label {label!r}; needs "
                f"{', '.join(task.classes or ('a number',))}"
            )
        texts.append(BETWEEN.join(sentences))
        labels.append(label)
    if not texts:
        raise DataError(f"{path}: holds no sentence; it is truncated")
    note = f"{path}: {len(short)} of {len(rows):,} rows break off and are skipped, first line "
    return texts, labels, (f"{note}{short[0]:,}",) if short else ()


def create(request: Request) -> TextDataset:
    """The data set of a request: ``train.tsv``, of which a share validates, and the development
    file as the test set.
    """
    task = TASKS[request.options.task]
    folder = request.folder / task.folder
    train_texts, train_labels, notes = read(folder / "train.tsv", task)
    options = request.text or TextOptions()
    fraction = request.share
    rest, held = stratified(
        torch.tensor([0 if task.classes is None else task.classes.index(x) for x in train_labels]),
        fraction,
    )
    vocabulary = options.make_vocabulary([train_texts[i] for i in rest.tolist()])
    if request.split == "test":
        texts, labels, notes = read(folder / task.dev, task)
    else:
        chosen = (held if request.split == "val" else rest).tolist()
        texts, labels = [train_texts[i] for i in chosen], [train_labels[i] for i in chosen]
    name, split, length = f"glue-{request.options.task}", request.split, options.length
    if task.classes is None:
        scores = torch.tensor([float(x) for x in labels])
        zeros = torch.zeros(len(labels), dtype=torch.int64)
        result = TextDataset(
            name, split, texts, zeros, ("score",), vocabulary, length, scores, task="regression"
        )
    else:
        numbers = torch.tensor([task.classes.index(x) for x in labels])
        result = TextDataset(name, split, texts, numbers, task.classes, vocabulary, length)
    result.measures, result.notes = task.measures, notes
    return result


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
