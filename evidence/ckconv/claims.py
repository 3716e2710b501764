"""The claims of CKConv's paper, tried on digits in the place of MNIST and on the data that can be
had. A claim that something costs little means less than the recurrence and the other convolution
lose; that more gains nothing, at most one point.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

from ..kit.claims import COLLAPSE, Claim, Sample
from ..kit.statistics import Rows, beyond_best
from .kernels import NETWORKS
from .rates import CLAIMS as RATE_CLAIMS
from .rates import HALF, LOST, WHOLE, Condition, Results
from .series import DATA, NO_GAPS, PEERS

RECTIFIED = ("relu", "leaky_relu", "silu", "gelu")

RECURRENT = ("gru", f"gru{NO_GAPS}")
BELOW = (1, 3, 10, 30)  # omegas of the paper's range that were run


def rows_of(results: Results, section: str) -> Rows:
    """The runs at each variant's best setting, or where there are none those at one setting."""
    return results.get(f"{section} tuned") or results.get(section, [])


def ahead(section: str, name: str, others: tuple[str, ...]) -> Sample:
    """A variant less the best of others, seed by seed."""
    return lambda results: beyond_best(rows_of(results, section), name, others)


def losses(rows: list[dict[str, Any]], after: Condition) -> dict[int, dict[str, float]]:
    """What each model loses from whole data to another condition, seed by seed."""
    scores = {
        (r["seed"], r["model"], (r["drop"], r["trained"], r["tested"])): r["accuracy"] for r in rows
    }
    found: dict[int, dict[str, float]] = {}
    for seed, model, condition in scores:
        if condition == WHOLE and (seed, model, after) in scores:
            lost = scores[seed, model, WHOLE] - scores[seed, model, after]
            found.setdefault(seed, {})[model] = lost
    return found


def lost_shares(dataset: str, after: Condition, models: tuple[str, ...], classes: int) -> Sample:
    """Which share of its accuracy above chance the model loses that loses least, seed by seed."""
    chance = 1 / classes

    def sample(results: Results) -> list[float]:
        rows = results[dataset]
        whole = {
            (r["seed"], r["model"]): r["accuracy"]
            for r in rows
            if (r["drop"], r["trained"], r["tested"]) == WHOLE
        }
        found = []
        for seed, lost in losses(rows, after).items():
            known = [name for name in models if name in lost]
            found.append(min(lost[name] / (whole[seed, name] - chance) for name in known))
        return found

    return sample


def spared(dataset: str, after: Condition) -> Sample:
    """How much less a CKCNN loses than the GRUs and the TCNs, whichever loses least, of the seeds
    that all models were trained with.
    """

    def sample(results: Results) -> list[float]:
        lost = losses(results[dataset], after).values()
        whole = [one for one in lost if set(DATA[dataset].models) <= set(one)]
        return [least(one, PEERS) - one["ckcnn gaps"] for one in whole]

    return sample


def least(lost: dict[str, float], models: tuple[str, ...]) -> float:
    """Of those of the models that were run."""
    return min(lost[name] for name in models if name in lost)


def points_lost(dataset: str, after: Condition) -> Callable[[Results], str]:
    """Means over seeds of every model."""

    def shown(results: Results) -> str:
        lost = list(losses(results[dataset], after).values())
        means = {
            model: 100 * statistics.mean(one[model] for one in lost if model in one)
            for model in dict.fromkeys(model for one in lost for model in one)
        }
        said = ", ".join(f"{k} {v:.1f}" for k, v in means.items())
        return f"points lost: {said}" if said else ""

    return shown


def scores(section: str) -> Callable[[Results], str]:
    """Mean accuracies of a section's variants."""

    def shown(results: Results) -> str:
        rows = rows_of(results, section)
        return ", ".join(
            f"{name} {100 * statistics.mean(r['accuracy'] for r in rows if r['variant'] == name):.1f}"
            for name in dict.fromkeys(row["variant"] for row in rows)
        )

    return shown


def worst(results: Results) -> dict[int, dict[str, float]]:
    """What each network leaves of the function that it draws worst, seed by seed."""
    found: dict[int, dict[str, float]] = {}
    for row in results["kernels"]:
        one = found.setdefault(row["seed"], {})
        one[row["network"]] = max(row["error"], one.get(row["network"], 0.0))
    return found


def sine_ahead(results: Results) -> list[float]:
    """What the best network without a sine leaves of its worst function, less what the sine does."""
    others = [name for name in NETWORKS if not name.startswith("sine")]
    return [
        min(one[name] for name in others) - one["sine, omega 30"] for one in worst(results).values()
    ]


def best_worst(results: Results) -> str:
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
    """How many times smaller spread knots make the error of each activation (the geometric mean
    over the functions), as decimal logarithm, seed by seed.
    """
    errors: dict[tuple[int, str], list[float]] = {}
    for row in results["kernels"]:
        errors.setdefault((row["seed"], row["network"]), []).append(math.log10(row["error"]))
    mean = {key: statistics.mean(found) for key, found in errors.items()}
    return {
        seed: {
            name: mean[seed, f"{name}, knots zero"] - mean[seed, f"{name}, knots uniform"]
            for name in RECTIFIED
        }
        for seed in sorted({seed for seed, _ in mean})
    }


def spread_ratios(results: Results) -> str:
    found = spreading(results).values()
    means = {name: statistics.mean(one[name] for one in found) for name in RECTIFIED}
    parts = ", ".join(f"{name} {10**mean:.1f}" for name, mean in means.items())
    return f"log10, the least of four; the error becomes so many times smaller: {parts}"


LENGTHS = (100, 200, 1000, 3000, 6000)
"""Of the paper's stress tests."""


def solved(
    section: str, metric: str, met: Callable[[float], bool], number: Callable[[float], str]
) -> Callable[[Results], str]:
    """The lengths at which a task was solved, and what was reached where it was not."""

    def shown(results: Results) -> str:
        rows = sorted(results.get(section, []), key=lambda r: int(r["variant"].split()[-1]))
        if not rows:
            return "not run"
        parts = []
        for name in dict.fromkeys(row["variant"] for row in rows):
            values = [row[metric] for row in rows if row["variant"] == name]
            worst = next((value for value in values if not met(value)), None)
            seeds = f"{len(values)} seed{'s' if len(values) > 1 else ''}"
            reached = "met" if worst is None else f"not met, {number(worst)}"
            parts.append(f"{name}: {reached} ({seeds})")
        missing = [str(t) for t in LENGTHS if f"T = {t}" not in {row["variant"] for row in rows}]
        parts += [f"not run: T = {', '.join(missing)}"] if missing else []
        return "; ".join(parts)

    return shown


SIZES = {
    "copy": ("copy memory", 15_520, 10),
    "adding": ("adding problem", 70_590, 10),
    "ckcnn-smnist": ("sMNIST", 98_290, 10),
    "ckcnn-pmnist": ("pMNIST", 98_290, 10),
    "ckcnn-scifar10": ("sCIFAR-10", 100_040, 10),
}
"""Section: task, the size in Table 8, and what its last digit counts."""


def sizes(results: Results) -> str:
    """Our networks' sizes beside Table 8's, whose last digit leaves some parameters open."""
    equal, other = [], []
    for section, (name, published, digit) in SIZES.items():
        for row in results.get(section, [])[:1]:
            off = row["parameters"] - published
            if abs(off) < digit:
                equal.append(f"{name} {row['parameters']:,}")
            else:
                other.append(f"{name} {row['parameters']:,}, {abs(off):,} off {published:,}")
    parts = [f"as far as its digits go: {', '.join(equal) or 'none'}"]
    return "; ".join(parts + [f"not {text}" for text in other])


def cut_short(results: Results) -> str:
    names = ("ckcnn-smnist", "ckcnn-pmnist", "ckcnn-scifar10")
    rows = [results[name][0] for name in names if results.get(name)]
    reached = [f"{100 * row['accuracy']:.1f} after {row['epochs']} epochs" for row in rows]
    return (
        f"not run to the end, which takes hours on two cores: {', '.join(reached)}, with the data of "
        "the table above"
    )


CLAIMS = [
    Claim(
        "sine kernels far ahead of ReLU, LeakyReLU and Swish, pixel by pixel",
        "99.3 over at most 85.2 (Table 6)",
        ahead("activation", "sine", RECTIFIED),
        primary=True,
        shown=scores("activation"),
    ),
    Claim(
        "the same on permuted pixels",
        "98.0 over at most 61.8 (Table 6)",
        ahead("activation permuted", "sine", RECTIFIED),
        primary=True,
        shown=scores("activation permuted"),
    ),
    Claim(
        "at one size more blocks gain nothing",
        "99.21, 99.19, 99.12 for 2, 4, 8 (Table 7)",
        lambda results: [
            -x for x in ahead("blocks", "2 blocks", ("4 blocks", "8 blocks"))(results)
        ],
        below=0.01,
        primary=True,
        shown=scores("blocks"),
    ),
    Claim(
        "another rate costs less than GRUs and TCNs lose on series as they come (JapaneseVowels)",
        "Table 5",
        spared("japanese-vowels", HALF),
        primary=True,
        shown=points_lost("japanese-vowels", HALF),
    ),
    Claim(
        "missing data costs little (JapaneseVowels, 70% lost)",
        "Table 4",
        spared("japanese-vowels", LOST),
        primary=True,
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
        "missing data costs little (PLAID, 70% lost)",
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
        lambda results: [min(one.values()) for one in spreading(results).values()],
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
        lambda results: [
            -x for x in ahead("omega", "omega = 100", tuple(f"omega = {i}" for i in BELOW))(results)
        ],
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
