"""The obvious baselines for another sampling rate: interpolate the test series linearly to the rate
of training, then classify them with a GRU, a TCN or MiniROCKET.

MiniROCKET gets lost observations filled by linear interpolation too. The GRU and the TCN are the
models that do not read gaps; the rows are beside theirs in the files of :mod:`.series`. MiniROCKET
needs a separate interpreter, see :mod:`..ten_sets.run`.
"""

from __future__ import annotations

import subprocess
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fredholm.data import SequenceDataset
from fredholm.lab.training.grid import Cell, Report, safe_name

from ..kit.answers import pack
from ..kit.grid import Row, fill, say
from ..kit.subject import Options
from ..ten_sets import minirocket
from ..ten_sets.run import PEER
from .series import DATA, NO_GAPS, SEEDS, load, right_answers, test_row, train_timed

RESAMPLED = ", resampled"
MODELS = tuple(f"{kind}{RESAMPLED}" for kind in ("gru", "tcn"))
MINIROCKET = "minirocket, filled"
SETS = ("japanese-vowels", "plaid")


class Resampled(nn.Module):
    """A model of sequences without gaps that interpolates its inputs linearly to another rate.

    It reads a value every ``step`` samples, from the first one on.

    Example:
        >>> ramp = torch.arange(5.0)[None, :, None].expand(1, 5, 2)  # time and a value
        >>> Resampled(nn.Identity(), 0.5)(ramp)[0, :, 1].tolist()
        [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
        >>> Resampled(nn.Identity(), 2)(ramp)[0, :, 1].tolist()
        [0.0, 2.0, 4.0]
    """

    def __init__(self, body: nn.Module, step: float):
        super().__init__()
        self.body, self.step = body, step

    def forward(self, inputs: Tensor) -> Tensor:
        last = (~inputs[..., 0].isnan()).sum(1) - 1
        # Positions in units of samples, between the samples low and high.
        positions = torch.arange(int(last.max() / self.step) + 1) * self.step
        low = positions.long()
        high = (low + 1).clamp(max=inputs.shape[1] - 1)
        between = (positions - low)[:, None].to(inputs.dtype)

        # A position on a sample reads only this sample: the next one may be padding, which is NaN.
        lines = torch.lerp(inputs[:, low], inputs[:, high], between)
        found = torch.where(between == 0, inputs[:, low], lines)
        beyond = positions > last[:, None]
        return self.body(found.masked_fill(beyond[..., None], torch.nan))


def run(options: Options) -> None:
    """Train the models for the data sets of ``--only``, or for all."""
    for dataset in options.chosen(SETS):
        seeds = range(options.seeds or SEEDS)
        rates: dict[int, tuple[int, ...]] = {}
        for trained, tested in DATA[dataset].rates.items():
            rates[trained] = tuple(rate for rate in tested if rate != trained)
        rows = [
            {"model": name, "drop": 0.0, "trained": trained, "seed": seed, "tested": tested[-1]}
            for seed, name, (trained, tested) in product(seeds, MODELS, rates.items())
        ]

        def cell(row: Row, dataset: str = dataset, rates: dict[int, Any] = rates) -> Cell:
            epochs = 1 if options.small else DATA[dataset].epochs
            settings = row | {
                "dataset": dataset,
                "rates": rates[row["trained"]],
                "epochs": epochs,
            }
            label = f"{dataset} {' '.join(map(str, row.values()))}"
            return Cell(settings, options.runs / safe_name(label))

        fill(DATA[dataset].table, rows, trained_and_tested, cell, options)
        if PEER.exists():
            DATA[dataset].table.add(filled(dataset, len(seeds)), options.results)
        else:
            say(f"{MINIROCKET}: not run: {PEER} does not exist, see evidence/ten_sets/run.py")


def trained_and_tested(cell: Cell, report: Report) -> Row:
    """Train a model and return a row for its rate and for each resampled rate."""
    settings = cell.settings
    dataset, trained, seed = settings["dataset"], settings["trained"], settings["seed"]
    name = settings["model"].replace(RESAMPLED, NO_GAPS)
    train = load(dataset, "train", name, every=trained, seed=seed)
    model, facts = train_timed(cell, name, train)
    rows = []
    for tested in (trained, *settings["rates"]):
        test = load(dataset, "test", name, every=tested, seed=seed)
        right = right_answers(Resampled(model, trained / tested).eval(), test)
        rows.append(test_row(tested, right, facts))
    return {"rows": rows}


def filled(dataset: str, seeds: int) -> list[Row]:
    """Return MiniROCKET's rows for every share of lost observations and every rate."""
    series = DATA[dataset]
    conditions = {(drop, 1): (1,) for drop in series.losses}
    conditions |= {(0.0, trained): tested for trained, tested in series.rates.items()}
    rows = []
    for (drop, trained), tested in conditions.items():
        for seed in range(seeds):
            rows += _fitted(dataset, drop, trained, tested, seed)
    return rows


def _fitted(
    dataset: str, drop: float, trained: int, tested: tuple[int, ...], seed: int
) -> list[Row]:
    """Fit MiniROCKET in another interpreter and test it at every rate; return a row per rate."""
    name = f"gru{NO_GAPS}"
    train = load(dataset, "train", name, drop, trained, seed)
    tests = {rate: load(dataset, "test", name, drop, rate, seed) for rate in tested}
    values, labels = arrays(train)
    inputs: dict[str, Any] = {"train": values, "labels": labels}
    test_labels: dict[int, np.ndarray] = {}
    for rate, test in tests.items():
        inputs[f"test {rate}"], test_labels[rate] = arrays(test)

    row = {"model": MINIROCKET, "drop": drop, "trained": trained, "seed": seed, "parameters": None}
    rows = []
    found = predictions(inputs, seed)
    for rate in tested:
        right = (found[f"test {rate}"] == test_labels[rate]).astype(float)
        answers = {"accuracy": pack(right)}
        rows.append(row | {"tested": rate, "accuracy": float(right.mean()), "answers": answers})
    return rows


def predictions(inputs: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Fit MiniROCKET in another interpreter.

    Args:
        inputs: ``train`` (N, points, C), its ``labels``, and series named ``test...``, with NaN
            for lost and padded samples.
        seed: of its kernels.

    Returns:
        The predicted labels of each of the series named ``test...``.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(source, **inputs)  # type: ignore[arg-type]
        command = [PEER, minirocket.__file__, source, target, "1", str(seed)]
        subprocess.run(list(map(str, command)), check=True)
        # The file has the predictions of one seed in its first row.
        return {name: found[0] for name, found in np.load(target).items()}


def arrays(dataset: SequenceDataset) -> tuple[np.ndarray, np.ndarray]:
    """Return values (N, points, C), NaN where an observation is lost, and labels (N,)."""
    inputs, labels = dataset.batch(range(len(dataset)))
    return inputs[..., 1:].numpy(), labels.numpy()
