"""The claims of the InfSA paper, tried on canvases instead of ImageNet."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from ..kit.claims import Claim, Sample
from ..kit.statistics import beyond_best, paired

Results = dict[str, Any]
"""Rows of trained runs under ``runs`` and the parts of the timings under ``speed``."""
NEAR = 0.985 - 0.036
"""The paper's mean cosine minus its standard deviation."""


def values(results: Results, variant: str, *path: str) -> list[dict[str, Any]]:
    """Return a row with ``variant``, ``seed`` and a number ``x`` per run of a variant on canvases.

    The number is that at a path of keys.
    """
    found = []
    for row in results["runs"]:
        if (row["task"], row["variant"]) == ("canvas", variant):
            x: Any = row
            for key in path:
                x = x[key]
            one = {"variant": variant, "seed": row["seed"], "x": float(x)}
            if path == ("accuracy",) and "answers" in row:
                one["answers"] = {"x": row["answers"]["accuracy"]}
            found.append(one)
    return found


def better(a: str, b: str, *path: str) -> Sample:
    """Return a sample: variant ``a`` minus ``b``, per seed."""

    def sample(results: Results) -> list[float]:
        rows = values(results, a, *path) + values(results, b, *path)
        return paired(rows, a, b, "x")

    return sample


def ahead(variant: str, others: tuple[str, ...], *path: str) -> Sample:
    """Return a sample: a variant's number minus that of the best of others, per seed."""

    def sample(results: Results) -> list[float]:
        rows = [row for name in (variant, *others) for row in values(results, name, *path)]
        return beyond_best(rows, variant, others, "x")

    return sample


def means(variants: tuple[str, ...], *path: str) -> Callable[[Results], str]:
    """Return a function that prints the variants' means over seeds."""

    def shown(results: Results) -> str:
        parts = []
        for name in variants:
            mean = 100 * statistics.mean(row["x"] for row in values(results, name, *path))
            label = "γ = 0.7, ReLU" if name == "linear" else name
            parts.append(f"{label} {mean:.1f}")
        return ", ".join(parts)

    return shown


def cosines(results: Results, when: str = "alignment", key: str = "cosine") -> list[float]:
    """Return the mean over the layers for every run of the linear form."""
    rows = [r for r in results["runs"] if (r["task"], r["variant"]) == ("canvas", "linear")]
    return [statistics.mean(layer[key] for layer in row[when]) for row in rows]


def alignment(results: Results) -> str:
    """Print the mean cosine and rank correlation, and the cosine of untrained models."""
    cosine, before = cosines(results), cosines(results, "untrained_alignment")
    rank = cosines(results, key="spearman")
    mean = statistics.mean
    return f"{mean(cosine):.3f} and {mean(rank):.3f}; untrained {mean(before):.3f}"


def extreme(results: Results) -> str:
    """Print time and memory of the largest image, and how little the time per token varies."""
    rows = [row for row in measured(results, "model") or [] if "seconds" in row]
    if not rows:
        return "not measured"
    rates, last = [row["microseconds_per_token"] for row in rows], rows[-1]
    return (
        f"{last['n']:,} tokens in {last['seconds']:.0f} s and {last['megabytes'] / 1024:.1f} GB; slowest to fastest time a token "
        f"{max(rates) / min(rates):.2f}"
    )


def faster(results: Results) -> str:
    """Print how many times faster than softmax attention the linear form is.

    The paper's softmax stores the N × N matrix of every head; a fused one does not.
    """
    rows = measured(results, "table-time") or []
    times = {row["mechanism"]: row.get("forward_seconds") for row in rows}
    linear = times.get("linear InfSA (ours)")
    stored, fused = times.get("softmax, N × N"), times.get("softmax, fused (ours)")
    if linear is None or stored is None or fused is None:
        return "not measured"
    return f"{stored / linear:.1f} times softmax of a stored matrix, {fused / linear:.1f} times a fused one, on a CPU"


def measured(results: Results, part: str) -> Any:
    """Return a part of the timings, or None if it is missing or from a trial with small sizes."""
    found = results["speed"].get(part)
    if found is None or found["small"]:
        return None
    return found["found"]


ROC = ("localisation", "attention", "box", "roc_auc", "mean")
PR = ("localisation", "attention", "box", "pr_auc", "mean")
MORF, LERF = (("degradation", "attention", key, "mean") for key in ("morf", "lerf"))
GAMMAS = ("gamma 0.3", "gamma 0.5", "gamma 0.9")
OTHERS = ("activation gelu", "activation abs")

CLAIMS = [
    Claim(
        "linear InfSA is more accurate than softmax at equal depth",
        "+3.2 points (ImageNet)",
        better("linear", "softmax", "accuracy"),
        digits=1,
    ),
    Claim("so is pure InfSA", "+3.6", better("pure", "softmax", "accuracy"), digits=1),
    Claim(
        "MoRF: linear above softmax",
        "+33.4",
        better("linear", "softmax", *MORF),
        digits=1,
    ),
    Claim(
        "ROC-AUC: linear above softmax",
        "+22.8",
        better("linear", "softmax", *ROC),
        digits=1,
    ),
    Claim(
        "one step of the linear form is the Perron vector: cosine at least 0.949, the mean less the "
        "standard deviation",
        "cosine 0.985 ± 0.036, Spearman 0.937",
        cosines,
        above=NEAR,
        shown=alignment,
        scale=1,
        digits=3,
    ),
    *(
        Claim(text, paper, sample, digits=1)
        for text, paper, sample in (
            (
                "pure InfSA is more accurate than linear",
                "+0.4",
                better("pure", "linear", "accuracy"),
            ),
            ("MoRF: pure above softmax", "+29.1", better("pure", "softmax", *MORF)),
            ("LeRF: pure above softmax", "+5.2", better("pure", "softmax", *LERF)),
            ("LeRF: linear above softmax", "+3.9", better("linear", "softmax", *LERF)),
            ("ROC-AUC: pure above softmax", "+23.5", better("pure", "softmax", *ROC)),
            ("PR-AUC: linear above softmax", "+19.9", better("linear", "softmax", *PR)),
            ("PR-AUC: pure above softmax", "+19.3", better("pure", "softmax", *PR)),
        )
    ),
    Claim(
        "γ = 0.7 is best among 0.3, 0.5, 0.7, 0.9",
        "Table 4",
        ahead("linear", GAMMAS, "accuracy"),
        shown=means(("linear", *GAMMAS), "accuracy"),
        digits=1,
    ),
    Claim(
        "LeRF grows with γ: 0.9 less 0.3",
        "65.3 less 62.1 (Table 4)",
        better(GAMMAS[-1], GAMMAS[0], *LERF),
        shown=means((*GAMMAS[:2], "linear", GAMMAS[-1]), *LERF),
        digits=1,
    ),
    Claim(
        "MoRF is highest at γ = 0.7",
        "Table 4 (i)",
        ahead("linear", GAMMAS, *MORF),
        shown=means((*GAMMAS[:2], "linear", GAMMAS[-1]), *MORF),
        digits=1,
    ),
    Claim(
        "ReLU is better than GELU and the absolute value",
        "Table 4",
        ahead("linear", OTHERS, "accuracy"),
        shown=means(("linear", *OTHERS), "accuracy"),
        digits=1,
    ),
    *(
        Claim(
            f"the absolute value has the best {name}",
            f"{paper} (Table 4)",
            ahead("activation abs", ("linear", "activation gelu"), *path),
            shown=means(("linear", *OTHERS), *path),
            digits=1,
        )
        for name, paper, path in (("LeRF", "65.5", LERF), ("ROC-AUC", "77.2", ROC))
    ),
    Claim("inference at 331,776 tokens", shown=extreme),
    Claim("13 times faster than softmax at 4,096 tokens", "on a GPU", shown=faster),
    Claim(
        "ImageNet-1K, and V2", "84.7 / 85.1%, 79.8%", untestable="needs ImageNet and a GPU for days"
    ),
    Claim("energy per image", "0.87 J", untestable="needs their GPU"),
]
