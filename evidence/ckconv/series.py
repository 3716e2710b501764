"""Lost observations and other sampling rates: a CKCNN beside a GRU and a TCN of the same size, on
JapaneseVowels, on PLAID and on raw sound of voices.

Every model is trained on the complete training file, with the same batches, AdamW and schedule. The
score is the last epoch's accuracy on the test file. The GRU and the TCN read values (zero if lost),
a flag for presence and, except those without gaps, the time since the last sample. At another rate
that time is a number that they never saw in training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise, product
from statistics import fmean
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fredholm.data import SequenceDataset
from fredholm.lab import data
from fredholm.lab.training.grid import Cell, Report, safe_name
from fredholm.models import create_model

from ..kit.answers import pack
from ..kit.grid import Row, Table, fill
from ..kit.page import spread
from ..kit.page import table as as_table
from ..kit.subject import Options

BATCH, LOSSES = 32, (0.3, 0.5, 0.7)
NO_GAPS = ", no gaps"
PEERS = ("gru", "tcn", f"gru{NO_GAPS}", f"tcn{NO_GAPS}")
MODELS = ("ckcnn timestamps", "ckcnn gaps", *PEERS)
EPOCHS, SEEDS = 40, 5
IDENTITY = "model", "drop", "trained", "tested", "seed"


@dataclass(frozen=True)
class Series:
    """A data set and its runs.

    Attributes:
        file: name of the file of results.
        every: stride of the samples of the files at rate 1.
        omega: of the CKCNN.
        models: names of the models.
        rates: n of a training's rate 1/n to those of the tests.
        scale: whether the file or each series is standardised.
        epochs: of a training.
        losses: shares of lost observations.
        own: further options of the data set.
    """

    file: str
    every: int
    omega: float
    models: tuple[str, ...]
    rates: dict[int, tuple[int, ...]]
    scale: str = "file"
    epochs: int = EPOCHS
    losses: tuple[float, ...] = LOSSES
    own: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        return Table(self.file, IDENTITY, ())

    def options(self, model: str, drop: float, every: int, seed: int) -> dict[str, Any]:
        """Return the data set's options: losses, rate, and times for models that read them."""
        return {
            "drop": drop,
            "every": every * self.every,
            "seed": seed,
            "timed": model != "ckcnn gaps",
            "scale": self.scale,
            **self.own,
        }


DATA = {
    "japanese-vowels": Series("ckconv-series.json", 1, 8.0, MODELS, {1: (1, 2), 2: (1, 2)}),
    "plaid": Series(
        "ckconv-plaid.json",
        8,
        30.0,
        MODELS[1:],
        {1: (1, 2, 4), 2: (1, 2), 4: (1, 4)},
        "series",
        100,
    ),
    "voice-prompts": Series(
        "ckconv-prompts.json",
        2,
        30.0,
        ("ckcnn gaps", *PEERS[2:]),
        {1: (1, 2, 4), 2: (1, 2)},
        scale="series",
        epochs=5,
        losses=(),
        own={"seconds": 0.25},
    ),
}


class Prepared(nn.Module):
    """A classifier of sequences with times, from the features of the last real point.

    The body reads values, a flag for presence, and the time since the last sample; without ``gaps``
    zero instead of that time.
    """

    def __init__(self, body: nn.Module, width: int, classes: int, gaps: bool):
        super().__init__()
        self.body, self.head, self.gaps = body, nn.Linear(width, classes), gaps

    def forward(self, inputs: Tensor) -> Tensor:
        times, values = inputs[..., :1], inputs[..., 1:]
        gaps = torch.zeros_like(times)
        if self.gaps:
            gaps = torch.cat([torch.zeros_like(times[:, :1]), times.diff(dim=1)], 1)
        known = (~values.isnan()).any(-1, keepdim=True).float()
        out = self.body(torch.cat([values.nan_to_num(), known, gaps.nan_to_num()], -1))
        last = (~times[..., 0].isnan()).sum(1) - 1
        return self.head(out[torch.arange(len(out)), last])


class Recurrent(nn.Module):
    """A GRU that returns the states of all points."""

    def __init__(self, d_in: int, width: int):
        super().__init__()
        self.gru = nn.GRU(d_in, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


LEVELS = 4
"""Blocks of the TCN."""
FIELD = 1 + 4 * (2**LEVELS - 1)
"""Number of samples that its last point reads: two convolutions of 3 taps per block."""


class Dilated(nn.Module):
    """Residual blocks of two causal convolutions with 3 taps; the dilation doubles per block."""

    def __init__(self, d_in: int, width: int, levels: int = LEVELS, dropout: float = 0.2):
        super().__init__()
        self.dropout = dropout
        widths = [d_in, *[width] * levels]
        pairs = [(a, b, 2**i) for i, (a, b) in enumerate(pairwise(widths))]
        self.first = nn.ModuleList(nn.Conv1d(a, b, 3, dilation=d) for a, b, d in pairs)
        self.second = nn.ModuleList(nn.Conv1d(b, b, 3, dilation=d) for _, b, d in pairs)
        self.skip = nn.ModuleList(nn.Conv1d(a, b, 1) for a, b, _ in pairs)

    def forward(self, x: Tensor) -> Tensor:
        u = x.mT
        for first, second, skip in zip(self.first, self.second, self.skip):
            pad = 2 * first.dilation[0], 0  # type: ignore[operator]
            hidden = first(functional.pad(u, pad)).relu()
            hidden = functional.dropout(functional.pad(hidden, pad), self.dropout, self.training)
            u = (second(hidden).relu() + skip(u)).relu()
        return u.mT


def make_model(name: str, train: SequenceDataset, omega: float) -> nn.Module:
    """Make a model of about 110,000 parameters for a data set."""
    classes, d_in = len(train.classes), train.channels + 2
    kind, gaps = name.removesuffix(NO_GAPS), not name.endswith(NO_GAPS)
    if kind == "gru":
        return Prepared(Recurrent(d_in, 184), 184, classes, gaps)
    if kind == "tcn":
        return Prepared(Dilated(d_in, 68), 68, classes, gaps)
    shape: Any = {"channels": train.channels, "length": train.length}
    timing: Any = {"timed": train.timed, "spacing": train.spacing}
    return create_model(
        "ckcnn_small",
        encoder=shape | timing,
        body={"dropout": 0.2, "input_dropout": 0.1, "operator_options": {"omega": omega}},
        head={"outputs": classes},
    )


def load(
    dataset: str, split: str, model: str, drop: float = 0.0, every: int = 1, seed: int = 0
) -> SequenceDataset:
    """Return the training or test file at a rate, without a share ``drop`` of its observations."""
    options = DATA[dataset].options(model, drop, every, seed)
    found: Any = data.create_dataset(dataset, split, val_fraction=0, options=options)
    return found


def fit(name: str, train: SequenceDataset, omega: float, seed: int, epochs: int) -> nn.Module:
    """Train a model on a complete file."""
    torch.manual_seed(seed)
    model = make_model(name, train, omega)
    loader = data.make_loader(train, BATCH, seed=seed, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-3, total_steps=epochs * len(loader), pct_start=0.05
    )
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.inference_mode()
def right_answers(model: nn.Module, test: SequenceDataset) -> list[float]:
    """Return 1.0 for every series that is classified correctly and 0.0 for others, in order."""
    loader = data.make_loader(test, 128, shuffle=False)
    parts = [model(inputs).argmax(-1) == labels for inputs, labels in loader]
    return torch.cat(parts).double().tolist()


def at_rate(
    model: nn.Module, name: str, dataset: str, train: SequenceDataset, test: SequenceDataset
) -> nn.Module:
    """Return a model with the same weights for the test's rate.

    Only a CKCNN on a grid needs the spacing; the others read times or do not know the rate.
    """
    if name != "ckcnn gaps":
        return model
    shape: Any = {"channels": train.channels, "length": train.length}
    fresh = create_model(
        "ckcnn_small",
        encoder=shape | {"spacing": test.spacing},
        body={"operator_options": {"omega": DATA[dataset].omega}},
        head={"outputs": len(train.classes)},
    )
    fresh.load_state_dict(model.state_dict())
    return fresh.eval()


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table of test accuracies in percent, mean ± sample standard deviation over seeds.

    It has one row per model and one column per condition.
    """
    conditions = {(row["drop"], row["trained"], row["tested"]) for row in rows}
    lost = sorted(one for one in conditions if one[1:] == (1, 1))
    rates = sorted(one for one in conditions if one[1:] != (1, 1))
    heads = [f"{drop:.0%} lost" for drop, _, _ in lost]
    heads += [f"rate 1/{trained} → 1/{tested}" for _, trained, tested in rates]

    lines = []
    for name in dict.fromkeys(row["model"] for row in rows):
        runs = [row for row in rows if row["model"] == name]
        accuracies: dict[tuple[float, int, int], list[float]] = {}
        for run in runs:
            condition = run["drop"], run["trained"], run["tested"]
            accuracies.setdefault(condition, []).append(run["accuracy"])
        cells = [spread(accuracies.get(one, [])) for one in (*lost, *rates)]

        seeds = len({run["seed"] for run in runs})
        size = ""
        if runs[0]["parameters"] is not None:
            size = f"{runs[0]['parameters']:,}"
        lines.append((name, size, *cells, seeds))
    return as_table(("model", "parameters", *heads, "seeds"), lines)


def run(options: Options) -> None:
    """Train the models for the data sets of ``--only``, or for all; test each at all its rates."""
    for dataset in options.chosen(DATA):
        series = DATA[dataset]
        tests = {(drop, 1): (1,) for drop in series.losses}
        tests |= {(0.0, trained): rates for trained, rates in series.rates.items()}
        # All tests of a training are added together, so the row of the last one identifies it.
        rows = [
            {"model": name, "drop": drop, "trained": trained, "seed": seed, "tested": rates[-1]}
            for seed, name, ((drop, trained), rates) in product(
                range(options.seeds or SEEDS), series.models, tests.items()
            )
        ]

        def cell(
            row: Row, dataset: str = dataset, tests: dict[Any, tuple[int, ...]] = tests
        ) -> Cell:
            label = f"{dataset} {' '.join(map(str, row.values()))}"
            settings = row | {"dataset": dataset, "tests": tests[row["drop"], row["trained"]]}
            settings["epochs"] = 1 if options.small else DATA[dataset].epochs
            return Cell(settings, options.runs / safe_name(label))

        fill(series.table, rows, trained_and_tested, cell, options)


def train_timed(cell: Cell, name: str, train: SequenceDataset) -> tuple[nn.Module, dict[str, Any]]:
    """Train a model; return it and its minutes, epochs and number of parameters."""
    settings = cell.settings
    start = perf_counter()
    cell.place.mkdir(parents=True, exist_ok=True)
    omega = DATA[settings["dataset"]].omega
    model = fit(name, train, omega, settings["seed"], settings["epochs"])
    facts = {
        "minutes": round((perf_counter() - start) / 60, 2),
        "epochs": settings["epochs"],
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    return model, facts


def test_row(tested: int, right: list[float], facts: dict[str, Any]) -> Row:
    """Return the fields of one test's row from its right (1.0) and wrong (0.0) answers."""
    answers = {"accuracy": pack(right)}
    return {"tested": tested, "accuracy": fmean(right), "answers": answers, **facts}


def trained_and_tested(cell: Cell, report: Report) -> Row:
    """Train a model and return a row for each rate of its tests."""
    settings = cell.settings
    dataset, name, seed = settings["dataset"], settings["model"], settings["seed"]
    drop = settings["drop"]
    train = load(dataset, "train", name, drop, settings["trained"], seed)
    model, facts = train_timed(cell, name, train)
    rows = []
    for tested in settings["tests"]:
        test = load(dataset, "test", name, drop, tested, seed)
        right = right_answers(at_rate(model, name, dataset, train, test), test)
        rows.append(test_row(tested, right, facts))
    return {"rows": rows}
