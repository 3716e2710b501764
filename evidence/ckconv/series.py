"""Lost observations and other rates: a CKCNN beside a GRU and a TCN of the same size, on
JapaneseVowels, on PLAID and on the raw sound of voices.

Every model sees the whole training
file, the same batches, AdamW and schedule; what is reported is the last epoch's accuracy on the
test file. The GRU and the TCN see values (zero where lost), whether they are there, and, but for
those without gaps, the time since the last sample: at another rate that is a number which they have
never seen in training.
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
    """A data set: its file of results, which sample of the files counts as one at rate 1, the
    CKCNN's omega, the models compared, for each rate of training 1/n the rates of testing, how each
    series is scaled, epochs, shares of observations lost, and options of the data set's own.
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
        """Of the data set: losses, the rate, and times where the model reads them."""
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
    """Values, presence, and (with ``gaps``) time since the last sample, of sequences with times; and
    the last real point's features at the end.
    """

    def __init__(self, body: nn.Module, width: int, classes: int, gaps: bool):
        super().__init__()
        self.body, self.head, self.gaps = body, nn.Linear(width, classes), gaps

    def forward(self, inputs: Tensor) -> Tensor:
        times, values = inputs[..., :1], inputs[..., 1:]
        gaps = torch.cat([torch.zeros_like(times[:, :1]), times.diff(dim=1)], 1)
        gaps = gaps if self.gaps else torch.zeros_like(gaps)
        known = (~values.isnan()).any(-1, keepdim=True).float()
        out = self.body(torch.cat([values.nan_to_num(), known, gaps.nan_to_num()], -1))
        last = (~times[..., 0].isnan()).sum(1) - 1
        return self.head(out[torch.arange(len(out)), last])


class Recurrent(nn.Module):
    def __init__(self, d_in: int, width: int):
        super().__init__()
        self.gru = nn.GRU(d_in, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


class Dilated(nn.Module):
    """Residual blocks of two causal convolutions, kernel 3, dilation doubling."""

    def __init__(self, d_in: int, width: int, levels: int = 4):
        super().__init__()
        widths = [d_in, *[width] * levels]
        pairs = [(a, b, 2**i) for i, (a, b) in enumerate(pairwise(widths))]
        self.first = nn.ModuleList(nn.Conv1d(a, b, 3, dilation=d) for a, b, d in pairs)
        self.second = nn.ModuleList(nn.Conv1d(b, b, 3, dilation=d) for _, b, d in pairs)
        self.skip = nn.ModuleList(nn.Conv1d(a, b, 1) for a, b, _ in pairs)

    def forward(self, x: Tensor) -> Tensor:
        u = x.mT
        for first, second, skip in zip(self.first, self.second, self.skip):
            pad = 2 * first.dilation[0], 0  # type: ignore[operator]
            out = functional.dropout(
                functional.pad(first(functional.pad(u, pad)).relu(), pad), 0.2, self.training
            )
            u = (second(out).relu() + skip(u)).relu()
        return u.mT


def make_model(name: str, train: SequenceDataset, omega: float) -> nn.Module:
    """A model of about 110,000 parameters for a data set."""
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
    """Training or test file, some observations lost, at a rate."""
    options = DATA[dataset].options(model, drop, every, seed)
    found: Any = data.create_dataset(dataset, split, val_fraction=0, options=options)
    return found


def fit(name: str, train: SequenceDataset, omega: float, seed: int, epochs: int) -> nn.Module:
    """One model trained on all of a file."""
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
    """Return 1.0 for every series of a file that is classified rightly, else 0.0, in order."""
    loader = data.make_loader(test, 128, shuffle=False)
    parts = [model(inputs).argmax(-1) == labels for inputs, labels in loader]
    return torch.cat(parts).double().tolist()


def at_rate(
    model: nn.Module, name: str, dataset: str, train: SequenceDataset, test: SequenceDataset
) -> nn.Module:
    """The same weights for another rate: a CKCNN on a grid is told the spacing, the others see
    times or nothing.
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
    """Test accuracy in percent, mean ± sample standard deviation over seeds: a row a model, a
    column a condition.
    """
    seen = dict.fromkeys((r["drop"], r["trained"], r["tested"]) for r in rows)
    conditions = sorted(seen, key=lambda c: (c[1] != 1 or c[2] != 1, *c))
    heads = [f"{d:.0%} lost" if t == s == 1 else f"rate 1/{t} → 1/{s}" for d, t, s in conditions]
    lines = []
    for name in dict.fromkeys(r["model"] for r in rows):
        mine = [r for r in rows if r["model"] == name]
        cells = [
            spread(r["accuracy"] for r in mine if (r["drop"], r["trained"], r["tested"]) == one)
            for one in conditions
        ]
        seeds = len({r["seed"] for r in mine})
        size = mine[0]["parameters"]
        lines.append((name, "" if size is None else f"{size:,}", *cells, seeds))
    return as_table(("model", "parameters", *heads, "seeds"), lines)


def run(options: Options) -> None:
    """The data sets of ``--only``, or all: trainings, each tested at every rate it is trained for."""
    for dataset in options.chosen(DATA):
        series = DATA[dataset]
        tests = {(drop, 1): (1,) for drop in series.losses}
        tests |= {(0.0, trained): rates for trained, rates in series.rates.items()}
        # a training is there when all its tests are: the last one stands for them
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
    """Train one model, and return it with its minutes, epochs and number of weights."""
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
    """Return the row of one rate of testing, from whether each answer is right."""
    answers = {"accuracy": pack(right)}
    return {"tested": tested, "accuracy": fmean(right), "answers": answers, **facts}


def trained_and_tested(cell: Cell, report: Report) -> Row:
    """One training; a row for each rate of testing."""
    given = cell.settings
    dataset, name, seed = given["dataset"], given["model"], given["seed"]
    train = load(dataset, "train", name, given["drop"], given["trained"], seed)
    model, facts = train_timed(cell, name, train)
    rows = []
    for tested in given["tests"]:
        test = load(dataset, "test", name, given["drop"], tested, seed)
        right = right_answers(at_rate(model, name, dataset, train, test), test)
        rows.append(test_row(tested, right, facts))
    return {"rows": rows}
