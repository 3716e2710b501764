"""The claims of CKConv's paper, tried on digits instead of MNIST and on other available data.

All are exploratory: they were named after their runs. "Gains nothing" means at most one point.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from ..kit.claims import COLLAPSE, Claim, Sample
from ..kit.statistics import Rows, beyond_best, differences, subtract
from .kernels import NETWORKS
from .rates import CLAIMS as RATE_CLAIMS
from .rates import HALF, LOST, WHOLE, Condition, Results, condition_of
from .series import DATA, NO_GAPS, PEERS

RECTIFIED = ("relu", "leaky_relu", "silu", "gelu")
RECURRENT = ("gru", f"gru{NO_GAPS}")
BELOW = (1, 3, 10, 30)
"""Values of omega in the paper's range that were run."""


def rows_of(results: Results, section: str) -> Rows:
    """Return the runs with each variant's best setting if there are any, else those with one."""
    return results.get(f"{section} tuned") or results.get(section, [])


def ahead(section: str, name: str, others: tuple[str, ...]) -> Sample:
    """Return a sample: a variant minus the best of others, per seed."""
    return lambda results: beyond_best(rows_of(results, section), name, others)


class Pair(NamedTuple):
    """The rows of a model and a seed on complete data and under a condition."""

    whole: dict[str, Any]
    changed: dict[str, Any]

    @property
    def lost(self) -> float:
        return self.whole["accuracy"] - self.changed["accuracy"]


def pairs(rows: Rows, after: Condition) -> dict[int, dict[str, Pair]]:
    """Return the pair of each model, per seed."""
    changed = {(row["seed"], row["model"]): row for row in rows if condition_of(row) == after}
    found: dict[int, dict[str, Pair]] = {}
    for row in rows:
        key = row["seed"], row["model"]
        if condition_of(row) == WHOLE and key in changed:
            found.setdefault(row["seed"], {})[row["model"]] = Pair(row, changed[key])
    return found


def lost_shares(dataset: str, after: Condition, models: tuple[str, ...], classes: int) -> Sample:
    """Return a sample: the smallest share of the accuracy above chance that a model loses."""
    chance = 1 / classes

    def sample(results: Results) -> list[float]:
        found = []
        for of_seed in pairs(results[dataset], after).values():
            shares = []
            for name in models:
                if name in of_seed:
                    pair = of_seed[name]
                    shares.append(pair.lost / (pair.whole["accuracy"] - chance))
            found.append(min(shares))
        return found

    return sample


def spared(dataset: str, after: Condition) -> Sample:
    """Return a sample: how much less a CKCNN loses than the GRU or TCN that loses least.

    Only seeds of all models count.
    """

    def sample(results: Results) -> list[float]:
        least, own = [], []
        for of_seed in pairs(results[dataset], after).values():
            if set(DATA[dataset].models) <= set(of_seed):
                peers = (of_seed[name] for name in PEERS if name in of_seed)
                least.append(min(peers, key=lambda pair: pair.lost))
                own.append(of_seed["ckcnn gaps"])
        return subtract(differences(least, "accuracy"), differences(own, "accuracy"))

    return sample


def points_lost(dataset: str, after: Condition) -> Callable[[Results], str]:
    """Return a function that prints the mean loss of every model in points."""

    def shown(results: Results) -> str:
        by_model: dict[str, list[float]] = {}
        for of_seed in pairs(results[dataset], after).values():
            for model, pair in of_seed.items():
                by_model.setdefault(model, []).append(pair.lost)
        if not by_model:
            return ""
        parts = [f"{name} {100 * statistics.mean(lost):.1f}" for name, lost in by_model.items()]
        return f"points lost: {', '.join(parts)}"

    return shown


def scores(section: str) -> Callable[[Results], str]:
    """Return a function that prints the mean accuracies of a section's variants."""

    def shown(results: Results) -> str:
        by_variant: dict[str, list[float]] = {}
        for row in rows_of(results, section):
            by_variant.setdefault(row["variant"], []).append(row["accuracy"])
        parts = [f"{name} {100 * statistics.mean(v):.1f}" for name, v in by_variant.items()]
        return ", ".join(parts)

    return shown


def worst(results: Results) -> dict[int, dict[str, float]]:
    """Return each network's error on the function that it fits worst, per seed."""
    found: dict[int, dict[str, float]] = {}
    for row in results["kernels"]:
        one = found.setdefault(row["seed"], {})
        one[row["network"]] = max(row["error"], one.get(row["network"], 0.0))
    return found


def sine_ahead(results: Results) -> list[float]:
    """Return the worst error of the best network without sines minus that of a sine, per seed."""
    others = [name for name in NETWORKS if not name.startswith("sine")]
    found = []
    for errors in worst(results).values():
        best = min(errors[name] for name in others)
        found.append(best - errors["sine, omega 30"])
    return found


def best_worst(results: Results) -> str:
    """Print the largest error of each network with sines and of the best without."""
    found = worst(results).values()
    most = {name: max(one[name] for one in found) for name in NETWORKS}
    others = {name: v for name, v in most.items() if not name.startswith("sine")}
    best = min(others, key=lambda name: others[name])
    sines = ", ".join(f"{v:.1e} to {k}" for k, v in most.items() if k not in others)
    return (
        f"the worst function leaves of its variance {sines}, and {others[best]:.1e} to the best of "
        f"the others ({best})"
    )


def spreading(results: Results) -> dict[int, dict[str, float]]:
    """Return the gain of spread knots for each activation, per seed.

    It is log10 of the ratio of errors, whose geometric mean is taken over the functions.
    """
    errors: dict[int, dict[str, list[float]]] = {}
    for row in results["kernels"]:
        of_seed = errors.setdefault(row["seed"], {})
        of_seed.setdefault(row["network"], []).append(math.log10(row["error"]))

    gains: dict[int, dict[str, float]] = {}
    for seed in sorted(errors):
        mean = {network: statistics.mean(logs) for network, logs in errors[seed].items()}
        gains[seed] = {}
        for name in RECTIFIED:
            gains[seed][name] = mean[f"{name}, knots zero"] - mean[f"{name}, knots uniform"]
    return gains


def spread_ratios(results: Results) -> str:
    """Print the ratio of errors of each activation, its geometric mean over seeds."""
    found = spreading(results).values()
    means = {name: statistics.mean(one[name] for one in found) for name in RECTIFIED}
    parts = ", ".join(f"{name} {10**mean:.1f}" for name, mean in means.items())
    return f"log10, the least of four; the error becomes so many times smaller: {parts}"


LENGTHS = (100, 200, 1000, 3000, 6000)
"""Lengths of the paper's stress tests."""


def solved(
    section: str, metric: str, met: Callable[[float], bool], number: Callable[[float], str]
) -> Callable[[Results], str]:
    """Return a function that prints for each length whether a task was solved, or the score.

    Args:
        section: of the task; its variants are named by the length.
        metric: of the rows.
        met: whether a score solves the task.
        number: formats a score.
    """

    def shown(results: Results) -> str:
        rows = sorted(results.get(section, []), key=lambda r: int(r["variant"].split()[-1]))
        if not rows:
            return "not run"
        parts = []
        for name in dict.fromkeys(row["variant"] for row in rows):
            values = [row[metric] for row in rows if row["variant"] == name]
            worst = next((value for value in values if not met(value)), None)
            seeds = "1 seed" if len(values) == 1 else f"{len(values)} seeds"
            reached = "met" if worst is None else f"not met, {number(worst)}"
            parts.append(f"{name}: {reached} ({seeds})")

        run = {row["variant"] for row in rows}
        missing = [str(t) for t in LENGTHS if f"T = {t}" not in run]
        if missing:
            parts.append(f"not run: T = {', '.join(missing)}")
        return "; ".join(parts)

    return shown


class Size(NamedTuple):
    """A task and the number of parameters of its network in the paper's Table 8."""

    task: str
    published: int


SIZES = {
    "copy": Size("copy memory", 15_520),
    "adding": Size("adding problem", 70_590),
    "ckcnn-smnist": Size("sMNIST", 98_290),
    "ckcnn-pmnist": Size("pMNIST", 98_290),
    "ckcnn-scifar10": Size("sCIFAR-10", 100_040),
}
"""Published sizes by section."""
PRECISION = 10
"""Number of parameters that the last digit of a published size stands for."""


def sizes(results: Results) -> str:
    """Compare our networks' sizes with the published ones, up to their precision."""
    equal, other = [], []
    for section, (name, published) in SIZES.items():
        for row in results.get(section, [])[:1]:
            off = row["parameters"] - published
            if abs(off) < PRECISION:
                equal.append(f"{name} {row['parameters']:,}")
            else:
                other.append(f"{name} {row['parameters']:,}, {abs(off):,} off {published:,}")
    parts = [f"as far as its digits go: {', '.join(equal) or 'none'}"]
    return "; ".join(parts + [f"not {text}" for text in other])


def cut_short(results: Results) -> str:
    """Print the accuracies of the recipes that were trained for a few epochs."""
    names = ("ckcnn-smnist", "ckcnn-pmnist", "ckcnn-scifar10")
    rows = [results[name][0] for name in names if results.get(name)]
    reached = [f"{100 * row['accuracy']:.1f} after {row['epochs']} epochs" for row in rows]
    return (
        f"not run to the end, which takes hours on two cores: {', '.join(reached)}, with the data of "
        "the table above"
    )


def negative(sample: Sample) -> Sample:
    """Return the sample with opposite signs."""
    return lambda results: [-number for number in sample(results)]


def least_gain(results: Results) -> list[float]:
    """Return the smallest of the four activations' gains, per seed."""
    return [min(gains.values()) for gains in spreading(results).values()]


CLAIMS = [
    Claim(
        "sine kernels far ahead of ReLU, LeakyReLU and Swish, pixel by pixel",
        "99.3 over at most 85.2 (Table 6)",
        ahead("activation", "sine", RECTIFIED),
        shown=scores("activation"),
    ),
    Claim(
        "the same on permuted pixels",
        "98.0 over at most 61.8 (Table 6)",
        ahead("activation permuted", "sine", RECTIFIED),
        shown=scores("activation permuted"),
    ),
    Claim(
        "at one size more blocks gain nothing",
        "99.21, 99.19, 99.12 for 2, 4, 8 (Table 7)",
        negative(ahead("blocks", "2 blocks", ("4 blocks", "8 blocks"))),
        below=0.01,
        shown=scores("blocks"),
    ),
    Claim(
        "another rate costs less than GRUs and TCNs lose on series as they come (JapaneseVowels)",
        "Table 5",
        spared("japanese-vowels", HALF),
        shown=points_lost("japanese-vowels", HALF),
    ),
    Claim(
        "missing data costs less than GRUs and TCNs lose (JapaneseVowels, 70% lost)",
        "Table 4",
        spared("japanese-vowels", LOST),
        shown=points_lost("japanese-vowels", LOST),
    ),
    Claim(
        "another rate costs less than GRUs and TCNs lose on series as they come (PLAID)",
        "Table 5",
        spared("plaid", HALF),
        shown=points_lost("plaid", HALF),
    ),
    Claim(
        "another rate costs less than GRUs and TCNs lose on series as they come (raw sound of voices)",
        "Table 5",
        spared("voice-prompts", HALF),
        shown=points_lost("voice-prompts", HALF),
    ),
    *RATE_CLAIMS,
    Claim(
        "missing data costs less than GRUs and TCNs lose (PLAID, 70% lost)",
        "Table 4",
        spared("plaid", LOST),
        shown=points_lost("plaid", LOST),
    ),
    Claim(
        "only sine fits all kernels", "Figs. 4, 7", sine_ahead, shown=best_worst, scale=1, digits=6
    ),
    Claim(
        "spread knots help every other activation",
        "B.1, Fig. 7",
        least_gain,
        shown=spread_ratios,
        scale=1,
    ),
    Claim(
        "a recurrence collapses at another rate: it loses more than half of what it has above chance "
        "(JapaneseVowels, percent of that, of the GRU that loses less)",
        "GRU-D 23.1, NCDE 6.0, HiPPO 88.8 (below Table 5)",
        lost_shares("japanese-vowels", HALF, RECURRENT, classes=9),
        above=COLLAPSE,
        shown=points_lost("japanese-vowels", HALF),
        digits=1,
    ),
    Claim(
        "the best omega lies in 1 to 70 (permuted digits: the best of 1, 3, 10 and 30 less 100)",
        "1 to 70 (E.1)",
        negative(ahead("omega", "omega = 100", tuple(f"omega = {i}" for i in BELOW))),
        shown=scores("omega"),
    ),
    Claim(
        "copy memory solved at every length",
        "100%",
        shown=solved("copy", "accuracy", lambda x: x >= 1.0, lambda x: f"{100 * x:.3f}%"),
    ),
    Claim(
        "adding problem below 1e-4 at every length",
        "≤ 1e-4",
        shown=solved("adding", "loss", lambda x: x <= 1e-4, lambda x: f"{x:.1e}"),
    ),
    Claim(
        "sMNIST, pMNIST, sCIFAR-10 at the small network",
        "99.31, 98.00, 62.25 (Table 1)",
        shown=cut_short,
    ),
    *(
        Claim(
            f"{name} at 14 x 14: the small network is ahead of TCN, LSTM, GRU",
            paper,
            ahead(section, "ckcnn", ("tcn", "lstm", "gru")),
            shown=scores(section),
        )
        for name, section, paper in (
            ("sMNIST", "smnist 14", "99.31 over 99.0, 87.2, 96.2 (Table 1)"),
            ("pMNIST", "pmnist 14", "98.00 over 97.2, 85.7, 87.3 (Table 1)"),
        )
    ),
    Claim("sizes of the networks", "Table 8", shown=sizes),
    Claim(
        "speech, sepsis, Penn Treebank",
        "Tables 2 to 4",
        untestable="no data to fetch; loaders read the official files",
    ),
]
