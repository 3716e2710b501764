"""ListOps: nested lists of operations on digits, whose value is the class (Nangia and Bowman, 2018;
Tay et al., 2021).

The grammar is that of the Long Range Arena's generator: with probability 1/4, above the deepest
level, a node is one of MIN, MAX, MED (the median, rounded down) and SM (the sum modulo 10) of 2 to
``max_args`` nodes, otherwise a digit. Samples are expressions whose length lies strictly between
``min_length`` and ``max_length``.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fredholm.configuration import check_counts
from fredholm.errors import DataError, OptionError
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.kinds.sequences import SEQUENCES
from fredholm.lab.data.kinds.tokens import Rows, TokenDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.splits import place_of

from .copy_memory import SPLITS
from .generated import generated

SYMBOLS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
END = SYMBOLS.index("]")
OPERATIONS = (10, 11, 12, 13)
PLACES = {"test": (0.0, 0.125), "val": (0.125, 0.25), "train": (0.25, 1.0)}
FILES = {"train": "basic_train.tsv", "val": "basic_val.tsv", "test": "basic_test.tsv"}
CHECKED = 200
"""Number of rows of an official file whose value is computed again."""


@dataclass(frozen=True)
class ListOpsOptions:
    """Options of the generator.

    Attributes:
        min_length, max_length: exclusive limits of an expression's length.
        max_depth, max_args: limits of the nesting and of an operation's arguments.
        train, val, test: numbers of samples.
        seed: of the expressions.

    Raises:
        OptionError: a size below 1, fewer than two arguments, or no length between the limits.
    """

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_args: int = 10
    train: int = 96000
    val: int = 2000
    test: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(
            self, "min_length", "max_length", "max_depth", "max_args", "train", "val", "test"
        )
        if self.max_args < 2 or self.max_length < self.min_length + 10 or self.max_depth < 2:
            raise OptionError(
                "limits: expected lengths at least 10 apart and 2 or more levels and arguments, "
                f"got min_length {self.min_length}, max_length {self.max_length}, max_depth "
                f"{self.max_depth}, max_args {self.max_args}"
            )
        longest = 1
        for _ in range(self.max_depth - 1):
            longest = 2 + self.max_args * longest
        if self.min_length >= longest:
            raise OptionError(
                f"min_length: expected less than {longest}, the longest expression with max_depth "
                f"{self.max_depth} and max_args {self.max_args}, got {self.min_length}"
            )


def operate(operation: int, values: Sequence[int]) -> int:
    """Return MIN, MAX, MED (rounded down) or SM of some digits."""
    if operation == 10:
        return min(values)
    if operation == 11:
        return max(values)
    if operation == 12:
        ordered, middle = sorted(values), len(values) // 2
        if len(values) % 2:
            return ordered[middle]
        return (ordered[middle - 1] + ordered[middle]) // 2
    return sum(values) % 10


def grow(rng: random.Random, out: list[int], options: ListOpsOptions, depth: int = 1) -> int:
    """Append a random expression to ``out`` and return its value.

    An expression that has become too long gets only digits from there on.
    """
    if depth >= options.max_depth or rng.random() > 0.25 or len(out) >= options.max_length:
        out.append(rng.randrange(10))
        return out[-1]
    place, count = len(out), rng.randint(2, options.max_args)
    out.append(END)
    values = [grow(rng, out, options, depth + 1) for _ in range(count)]
    out[place] = operation = OPERATIONS[rng.randrange(4)]
    out.append(END)
    return operate(operation, values)


def expression(options: ListOpsOptions, split: str, index: int) -> tuple[list[int], int]:
    """Return the symbols and the value of a sample.

    They depend only on the options, the split and the index. A hash of the symbols determines the
    split of an expression, so none occurs in two splits.

    Example:
        >>> symbols, value = expression(ListOpsOptions(min_length=4, max_length=16), "train", 5)
        >>> " ".join(SYMBOLS[s] for s in symbols), value
        ('[MIN 2 3 1 9 1 ]', 1)
    """
    rng, (low, high) = random.Random(f"{options.seed} {split} {index}"), PLACES[split]
    while True:
        out: list[int] = []
        value = grow(rng, out, options)
        if not options.min_length < len(out) < options.max_length:
            continue
        if low <= place_of(bytes(out)) < high:
            return out, value


def value_of(symbols: Sequence[int]) -> int:
    """Evaluate an expression with a stack of open lists.

    Raises:
        DataError: the symbols are not an expression.

    Example:
        >>> value_of([SYMBOLS.index(s) for s in "[MAX 2 [SM 9 4 ] ]".split()])
        3
    """
    stack: list[list[int]] = [[]]
    for symbol in symbols:
        if symbol in OPERATIONS:
            stack.append([symbol])
        elif symbol != END:
            stack[-1].append(symbol)
        elif len(stack) < 2 or len(stack[-1]) < 2:
            raise DataError("ListOps: expected a list before a bracket, got none or an empty one")
        else:
            operation, *values = stack.pop()
            stack[-1].append(operate(operation, values))
    if len(stack) != 1 or len(stack[0]) != 1:
        raise DataError("ListOps: expected one complete expression, got several or a part of one")
    return stack[0][0]


def _made(options: ListOpsOptions, split: str) -> dict[str, Tensor]:
    result = [expression(options, split, i) for i in range(getattr(options, split))]
    rows = Rows.of([torch.tensor(symbols, dtype=torch.uint8) for symbols, _ in result])
    return {
        "symbols": rows.symbols,
        "ends": rows.ends,
        "labels": torch.tensor([value for _, value in result]),
    }


def _dataset(request: Request, rows: Rows, labels: Tensor, longest: int) -> TokenDataset:
    entry, tokens = request.entry, len(SYMBOLS) + 1
    return TokenDataset(
        entry.name, request.split, labels, entry.classes, rows, tokens=tokens, max_length=longest
    )


def create(request: Request) -> TokenDataset:
    """Return the generated data set of a request, which is stored in the data root."""
    options: ListOpsOptions = request.options
    key = {**dataclasses.asdict(options), "split": SPLITS[request.split], "version": 1}
    result = generated(
        request.root / request.entry.name, key, lambda: _made(options, request.split)
    )
    rows = Rows(result["symbols"], result["ends"])
    return _dataset(request, rows, result["labels"], options.max_length)


def read(path: Path) -> tuple[Rows, Tensor]:
    """Read an official file: a header, then an expression, a tab and its value per line.

    Round brackets, which show the official generator's binary tree, are ignored.

    Raises:
        DataError: the file is missing or has another format, or a value is wrong.
    """
    numbers = {name: i for i, name in enumerate(SYMBOLS)}
    rows, labels = [], []
    for count, line in enumerate(read_bytes(path).decode("utf-8", errors="replace").splitlines()):
        cells = line.split("\t")
        if count == 0 and cells == ["Source", "Target"]:
            continue
        words = cells[0].replace("(", " ").replace(")", " ").split()
        unknown = [word for word in words if word not in numbers]
        if len(cells) != 2 or not cells[1].strip().isdigit() or unknown or not words:
            raise DataError(
                f"{path}, line {count + 1}: expected an expression, a tab and its value, got "
                f"{line[:60]!r}; check the file"
            )
        rows.append(torch.tensor([numbers[word] for word in words], dtype=torch.uint8))
        labels.append(int(cells[1]))
        if len(rows) <= CHECKED:
            value = value_of(rows[-1].tolist())
            if value != labels[-1]:
                raise DataError(
                    f"{path}, line {count + 1}: expected the value {value}, got {labels[-1]}; "
                    f"check the file"
                )
    if not rows:
        raise DataError(f"{path}: expected expressions, got none; the file may be truncated")
    return Rows.of(rows), torch.tensor(labels)


def create_official(request: Request) -> TokenDataset:
    """Return the data set of a request from the user's folder."""
    rows, labels = read(request.folder / FILES[request.split])
    longest = max(2000, int(rows.lengths.max()))
    return _dataset(request, rows, labels, longest)


def _entry(
    name: str, title: str, source: str, make: Callable[[Request], TokenDataset], **more
) -> Entry:
    return Entry(
        name=name,
        title=title,
        source=source,
        classes=tuple("0123456789"),
        read=make,
        kind=SEQUENCES,
        **more,
    )


ENTRY = _entry(
    "listops",
    "ListOps: the value of nested operations on digits, by the Long Range Arena's grammar",
    "generated",
    create,
    licence_package="none needed",
    licence_data="none needed",
    samples={"train": 96000, "val": 2000, "test": 2000},
    notes="options: min_length, max_length, max_depth, max_args, train, val, test, seed; 15 "
    "symbols, closing brackets among them",
    options=ListOpsOptions,
)
register_dataset(ENTRY)
OFFICIAL = _entry(
    "lra-listops",
    "ListOps of the Long Range Arena, its official files",
    "your folder: basic_train.tsv, basic_val.tsv, basic_test.tsv",
    create_official,
    needs={"path": f"the folder of {', '.join(FILES.values())}"},
    licence_package="yours",
    licence_data="Apache-2.0 (google-research/long-range-arena)",
    samples={"train": 96000, "val": 2000, "test": 2000},
    official="basic_train.tsv, basic_val.tsv and basic_test.tsv of lra_release/listops-1000",
    notes="closing brackets are kept, which the official tokenizer drops",
)
register_dataset(OFFICIAL)
