"""The run of a set: a search, then the tests of its pick and of the methods beside it.

The minutes of a search are processor time, so that other work on the machine does not shorten it.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import subprocess
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from fredholm.lab.compare.plain import PLAIN
from fredholm.lab.compare.search import Search, open_search
from fredholm.lab.compare.splits import batches
from fredholm.lab.compare.stress import STRESSES
from fredholm.lab.compare.trial import measure_of
from fredholm.lab.compare.verdict import is_sure, paired_difference, table
from fredholm.lab.training.grid import Cell, Report

from ..kit.grid import Row, Table, fill, say
from ..kit.machine import describe
from ..kit.page import ROOT
from ..kit.subject import Options
from .beside import further, outsiders
from .sets import SETS, written

FILE = "ten-sets.json"
TABLE = Table(FILE, ("set",))
MINUTES = 3.0
"""Duration of a search."""
SEEDS = 5
# An interpreter with aeon: python -m venv .peers-series; .peers-series/bin/pip install aeon==1.6.0
PEER = ROOT / ".peers-series" / "bin" / "python"
MINIROCKET, GRU = "MiniROCKET", "gru"


def run(options: Options) -> None:
    """Run the sets of ``--only``, or all, with ``--minutes`` for each set's search."""
    minutes = options.minutes if math.isfinite(options.minutes) else MINUTES
    if options.small:
        minutes = min(minutes, 0.3)
    seeds = options.seeds or (2 if options.small else SEEDS)

    def cell(row: Row) -> Cell:
        settings = row | {"minutes": minutes, "seeds": seeds, "changes": list(options.changes)}
        return Cell(settings, options.runs / row["set"])

    rows = [{"set": name} for name in options.chosen(SETS)]
    always = dataclasses.replace(options, minutes=math.inf)
    fill(TABLE, rows, work, cell, always, machine=describe())


def work(cell: Cell, report: Report) -> Row:
    """Search for a set's pick and test it beside the other methods; return the set's row."""
    settings, start = cell.settings, perf_counter()
    seeds = settings["seeds"]
    cell.place.mkdir(parents=True, exist_ok=True)
    files = written(settings["set"], cell.place.parent / "files")
    search = open_search(
        files,
        settings["minutes"],
        out=cell.place / "compare",
        changes=settings["changes"],
        seeds=seeds,
        always=[GRU],
        report=say,
        timer=process_time,
    )
    state = search.run()
    searched = perf_counter() - start
    rows = list(state["finals"]["rows"])
    judged = {state["verdict"]["pick"], state["verdict"]["operator"], GRU, *PLAIN}
    names = dict.fromkeys(row["operator"] for row in rows if row["operator"] in judged)
    beside = [*further(search, [*names], seeds), *outsiders(search)]
    rows += [row for row in beside if "error" not in row]
    if state["kind"] == "sequences":
        rows += minirocket(search, seeds)
    return {
        "minutes": settings["minutes"],
        "seeds": seeds,
        "processor_minutes": round(state["spent"] / 60, 2),
        "searched": round(searched, 1),
        "seconds": round(perf_counter() - start, 1),
        "threads": torch.get_num_threads(),
        **_outcome(state, rows),
    }


def _outcome(state: dict[str, Any], rows: list[Row]) -> Row:
    """Return the scores of all methods, and the differences of the pick from each other method."""
    higher, verdict = state["higher"], state["verdict"]
    lines = table(rows, higher)
    finalists = {row["operator"] for row in state["finals"]["rows"]}
    for line in lines:
        line["finalist"] = line["operator"] in finalists

    sign = 1 if higher else -1
    models = [line for line in lines if line["operator"] not in (*PLAIN, MINIROCKET)]
    best = max(models, key=lambda line: sign * line["test"])
    by_name = {line["operator"]: line for line in lines}
    pick, operator = by_name[verdict["pick"]], by_name[verdict["operator"]]
    result: Row = {
        "samples": state["samples"] | {"test": len(rows[0]["test"]["each"])},
        "kind": state["kind"],
        "measure": state["measure"],
        "higher": higher,
        "folds": state["folds"],
        "full_steps": state["full_steps"],
        "steps": state["finals"]["steps"],
        "pick": verdict["pick"],
        "operator": verdict["operator"],
        "best_operator": best["operator"],
        "regret": sign * (best["test"] - pick["test"]),
        "operator_regret": sign * (best["test"] - operator["test"]),
        "lines": lines,
        "beside": [],
    }
    for other in (MINIROCKET, GRU, *PLAIN):
        if other != verdict["pick"] and other in by_name:
            found = paired_difference(
                rows, verdict["pick"], other, higher, state["each"], folds=state["folds"]
            )
            result["beside"].append(found | {"sure": is_sure(found), "p": mcnemar(rows, found)})
    return result


def mcnemar(rows: list[Row], found: dict[str, Any]) -> float | None:
    """Return the p-value of McNemar's exact test of two classifiers on the test samples.

    A classifier's answer is the majority of its seeds. The value is None for other tasks.
    """
    from scipy.stats import binomtest

    sides = []
    for name in (found["one"], found["other"]):
        each = [r["test"]["each"] for r in rows if r["operator"] == name and "error" not in r]
        if not all(isinstance(one, str) for one in each):
            return None
        sides.append([statistics.fmean(map(int, votes)) >= 0.5 for votes in zip(*each)])

    # Samples that only the first, or only the second classifier gets right.
    first = sum(a and not b for a, b in zip(*sides))
    second = sum(b and not a for a, b in zip(*sides))
    if first + second == 0:
        return 1.0
    return float(binomtest(first, first + second).pvalue)


def minirocket(search: Search, seeds: int) -> list[Row]:
    """Return MiniROCKET's rows on the same test samples.

    It is trained on the validation samples too, since it does not need a validation split.
    """
    if not PEER.is_file():
        raise SystemExit(
            f"{PEER}: expected an interpreter, got none; run python -m venv .peers-series and "
            ".peers-series/bin/pip install aeon==1.6.0"
        )
    parts = search.splits.train, search.splits.val
    inputs, labels = zip(*(pair for part in parts for pair in batches(part, 256)))
    arrays = {"train": _together(inputs), "labels": torch.cat(labels).numpy()}
    test, size = search.splits.test, search.splits.recipe.data.eval_batch_size
    truth = torch.cat([labels for _, labels in batches(test, size)]).numpy()
    plain = [inputs for inputs, _ in batches(test, size)]
    arrays["test"] = _together(plain)
    for number, change in enumerate(STRESSES.values()):
        arrays[f"test{number}"] = _together([change(batch, test.timed) for batch in plain])
    start = perf_counter()
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "in.npz", Path(name) / "out.npz"
        np.savez(source, **arrays)
        program = Path(__file__).with_name("minirocket.py")
        subprocess.run([PEER, program, source, target, str(seeds)], check=True)
        found = dict(np.load(target))
    seconds = (perf_counter() - start) / seeds
    balanced = measure_of(test)[0] == "balanced_accuracy"
    return [_peer_row(found, truth, seed, seconds, balanced) for seed in range(seeds)]


def _score(found: np.ndarray, truth: np.ndarray, balanced: bool) -> float:
    """Return the accuracy, or with ``balanced`` its mean over the classes."""
    right = found == truth
    if not balanced:
        return float(right.mean())
    return statistics.fmean(float(right[truth == label].mean()) for label in np.unique(truth))


def _peer_row(
    found: dict[str, Any], truth: np.ndarray, seed: int, seconds: float, balanced: bool
) -> Row:
    """Return the row of one seed of MiniROCKET."""
    stress: dict[str, float] = {}
    for number, name in enumerate(STRESSES):
        stress[name] = _score(found[f"test{number}"][seed], truth, balanced)
    each = "".join(str(int(r)) for r in found["test"][seed] == truth)
    row: Row = {"operator": MINIROCKET, "lr": None, "seed": seed, "seconds": seconds}
    row |= {"val": {"score": 0.0, "loss": 0.0}, "stress": stress}
    return row | {"test": {"score": _score(found["test"][seed], truth, balanced), "each": each}}


def _together(parts: Any) -> np.ndarray:
    """Return batches of series of different lengths as one padded array."""
    from fredholm.lab.data.kinds.sequences import padded

    return padded([series for part in parts for series in part]).numpy()
