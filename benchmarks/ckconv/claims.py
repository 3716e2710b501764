"""The claims of CKConv's paper, tried on digits in the place of MNIST and on the data that can be
had. A claim that something costs little means less than the recurrence and the other convolution
lose; that more gains nothing, at most one point.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from ..kit.claims import Claim, Sample
from ..kit.statistics import beyond_best
from .kernels import NETWORKS

Results = dict[str, Any]
RECTIFIED = ("relu", "leaky_relu", "silu", "gelu")
WHOLE, HALF, LOST = (
    (0.0, 1, 1),
    (0.0, 1, 2),
    (0.7, 1, 1),
)  # observations lost, rates trained, tested


def ahead(section: str, name: str, others: tuple[str, ...]) -> Sample:
    """A variant less the best of others, seed by seed."""
    return lambda results: beyond_best(results.get(section, []), name, others)


def losses(
    rows: list[dict[str, Any]], after: tuple[float, int, int]
) -> dict[int, dict[str, float]]:
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


def spared(dataset: str, after: tuple[float, int, int]) -> Sample:
    """How much less a CKCNN loses than the GRU or the TCN, whichever loses less."""

    def sample(results: Results) -> list[float]:
        lost = losses(results[dataset], after).values()
        return [min(one["gru"], one["tcn"]) - one["ckcnn gaps"] for one in lost]

    return sample


def points_lost(after: tuple[float, int, int]) -> Callable[[Results], str]:
    """Means over seeds of every model."""

    def shown(results: Results) -> str:
        parts = []
        for dataset in ("japanese-vowels", "plaid"):
            lost = list(losses(results[dataset], after).values())
            means = {
                model: 100 * statistics.mean(one[model] for one in lost)
                for model in dict.fromkeys(row["model"] for row in results[dataset])
            }
            parts.append(f"{dataset}: " + ", ".join(f"{k} {v:.1f}" for k, v in means.items()))
        return f"points lost, {'; '.join(parts)}"

    return shown


def scores(section: str) -> Callable[[Results], str]:
    """Mean accuracies of a section's variants."""

    def shown(results: Results) -> str:
        rows = results.get(section, [])
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
    means = {name: max(one[name] for one in found) for name in NETWORKS}
    others = {name: v for name, v in means.items() if not name.startswith("sine")}
    best = min(others, key=lambda name: others[name])
    sine = means["sine, omega 30"]
    return (
        f"the worst function leaves {sine:.1e} of its variance to sine (omega 30), "
        f"{others[best]:.1e} to the next best ({best})"
    )


def solved(section: str, metric: str, met: Callable[[float], bool]) -> Callable[[Results], str]:
    """The lengths at which a task was solved; one seed each."""

    def shown(results: Results) -> str:
        rows = results.get(section, [])
        names = [row["variant"] for row in rows if met(row[metric])]
        of = ", ".join(row["variant"] for row in rows)
        return (
            f"met at {', '.join(names) or 'none'} of {of} run, one seed; T = 3000 and 6000 not run"
        )

    return shown


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
        "resolution changes cost little (JapaneseVowels)",
        "Table 5",
        spared("japanese-vowels", HALF),
        primary=True,
        shown=points_lost(HALF),
    ),
    Claim(
        "missing data costs little (JapaneseVowels, 70% lost)",
        "Table 4",
        spared("japanese-vowels", LOST),
        primary=True,
        shown=points_lost(LOST),
    ),
    Claim("resolution changes cost little (PLAID)", "Table 5", spared("plaid", HALF)),
    Claim("missing data costs little (PLAID, 70% lost)", "Table 4", spared("plaid", LOST)),
    Claim(
        "only sine fits all kernels", "Figs. 4, 7", sine_ahead, shown=best_worst, scale=1, digits=6
    ),
    Claim(
        "copy memory solved at every length",
        "100%",
        shown=solved("copy", "accuracy", lambda x: x >= 0.9999),
    ),
    Claim(
        "adding problem below 1e-4 at every length",
        "≤ 1e-4",
        shown=solved("adding", "loss", lambda x: x <= 1e-4),
    ),
    Claim(
        "sMNIST, pMNIST, sCIFAR-10 at the small network",
        "99.31, 98.00, 62.25 (Table 1)",
        shown=cut_short,
    ),
    Claim("sizes of the networks", "Table 8", shown=lambda results: "equal, to the parameter"),
    Claim(
        "speech, sepsis, Penn Treebank",
        "Tables 2 to 4",
        untestable="no data to fetch; loaders read the official files",
    ),
]
