"""The claims of the InfSA paper beside what was measured here; verdicts follow from the numbers."""

from __future__ import annotations

import math
import statistics
from typing import Any

Rows = list[dict[str, Any]]
REPRODUCED, NOT, NONE, UNTESTED = (
    "reproduced",
    "not reproduced",
    "no difference found",
    "not testable here",
)


def _values(rows: Rows, variant: str, *path: str) -> list[float]:
    found = []
    for row in rows:
        if (row["task"], row["variant"]) == ("canvas", variant):
            for key in path:
                row = row[key]
            found.append(float(row))  # type: ignore[arg-type]
    return found


def compare(rows: Rows, better: str, worse: str, *path: str) -> tuple[str, str]:
    """(the difference of two variants in points with its standard error, verdict): beyond two
    standard errors or not.
    """
    one, other = _values(rows, better, *path), _values(rows, worse, *path)
    if not one or not other:
        return "", "not measured"
    gap = 100 * (statistics.mean(one) - statistics.mean(other))
    if len(one) < 2 or len(other) < 2:
        return f"{gap:+.1f}", "one seed: no verdict"
    error = 100 * math.sqrt(
        statistics.variance(one) / len(one) + statistics.variance(other) / len(other)
    )
    verdict = NONE if abs(gap) <= 2 * error else REPRODUCED if gap > 0 else NOT
    return f"{gap:+.1f} ± {error:.1f}", verdict


def _alignment(rows: Rows) -> tuple[str, str]:
    found = [row for row in rows if (row["task"], row["variant"]) == ("canvas", "linear")]
    cosine = [layer["cosine"] for row in found for layer in row["alignment"]]
    spearman = [layer["spearman"] for row in found for layer in row["alignment"]]
    before = [layer["cosine"] for row in found for layer in row["untrained_alignment"]]
    text = f"{statistics.mean(cosine):.3f} and {statistics.mean(spearman):.3f}; untrained {statistics.mean(before):.3f}"
    near = 0.985 - 0.036  # the paper's mean less its standard deviation
    verdict = REPRODUCED if statistics.mean(cosine) >= near else NOT
    return text, verdict + (", and so before training" if statistics.mean(before) >= near else "")


def _best(rows: Rows, own: str, others: tuple[str, ...]) -> tuple[str, str]:
    """Whether the paper's own choice has the highest mean accuracy, beyond two standard errors."""
    scores = {name: _values(rows, name, "accuracy") for name in (own, *others)}
    if any(not values for values in scores.values()):
        return "", "not measured"
    means = {name: statistics.mean(values) for name, values in scores.items()}
    best = max(means, key=lambda name: means[name])
    text = ", ".join(
        f"{'γ = 0.7, ReLU' if name == own else name} {100 * mean:.1f}"
        for name, mean in means.items()
    )
    spread = (
        statistics.stdev(scores[own]) / math.sqrt(len(scores[own]))
        if len(scores[own]) > 1
        else math.inf
    )
    margin = means[own] - max(mean for name, mean in means.items() if name != own)
    if abs(margin) <= 2 * spread:
        return text, NONE
    return text, REPRODUCED if best == own else NOT


def _extreme(speed: dict[str, Any]) -> tuple[str, str]:
    if "model" not in speed or speed["model"]["small"]:
        return "", "not measured"
    rows = [row for row in speed["model"]["found"] if "seconds" in row]
    if not rows:
        return "every length failed", NOT
    rates = [row["microseconds_per_token"] for row in rows]
    last = rows[-1]
    text = f"{last['n']:,} tokens in {last['megabytes'] / 1024:.1f} GB; slowest to fastest time a token {max(rates) / min(rates):.2f}"
    return text, REPRODUCED if last["n"] >= 331776 else NOT


def _faster(speed: dict[str, Any]) -> tuple[str, str]:
    if "table-time" not in speed or speed["table-time"]["small"]:
        return "", "not measured"
    times = {row["mechanism"]: row.get("forward_seconds") for row in speed["table-time"]["found"]}
    one, other = (times.get(name) for name in ("linear InfSA (ours)", "softmax, fused (ours)"))
    if one is None or other is None:
        return "failed", "not measured"
    factor = other / one
    return f"{factor:.1f} times fused softmax, on a CPU", REPRODUCED if factor >= 13 else NOT


def claims(rows: Rows, speed: dict[str, Any]) -> str:
    """The table."""
    quality: Any = ("localisation", "attention", "box")
    morf: Any = ("degradation", "attention", "morf", "mean")
    lines = [
        (
            "linear InfSA is more accurate than softmax at equal depth (ImageNet: +3.2 points)",
            compare(rows, "linear", "softmax", "accuracy"),
        ),
        ("so is pure InfSA (+3.6)", compare(rows, "pure", "softmax", "accuracy")),
        (
            "pure InfSA is more accurate than linear (+0.4)",
            compare(rows, "pure", "linear", "accuracy"),
        ),
        ("MoRF: linear above softmax (+33.4)", compare(rows, "linear", "softmax", *morf)),
        ("MoRF: pure above softmax (+29.1)", compare(rows, "pure", "softmax", *morf)),
        (
            "LeRF: pure above softmax (+5.2)",
            compare(rows, "pure", "softmax", "degradation", "attention", "lerf", "mean"),
        ),
        (
            "ROC-AUC: linear above softmax (+22.8)",
            compare(rows, "linear", "softmax", *quality, "roc_auc", "mean"),
        ),
        (
            "ROC-AUC: pure above softmax (+23.5)",
            compare(rows, "pure", "softmax", *quality, "roc_auc", "mean"),
        ),
        (
            "PR-AUC: linear above softmax (+19.9)",
            compare(rows, "linear", "softmax", *quality, "pr_auc", "mean"),
        ),
        (
            "PR-AUC: pure above softmax (+19.3)",
            compare(rows, "pure", "softmax", *quality, "pr_auc", "mean"),
        ),
        (
            "one step of the linear form is the Perron vector: cosine 0.985, Spearman 0.937",
            _alignment(rows),
        ),
        (
            "γ = 0.7 is best among 0.3, 0.5, 0.7, 0.9",
            _best(rows, "linear", ("gamma 0.3", "gamma 0.5", "gamma 0.9")),
        ),
        (
            "ReLU is better than GELU and the absolute value",
            _best(rows, "linear", ("activation gelu", "activation abs")),
        ),
        ("inference at 331,776 tokens", _extreme(speed)),
        ("13 times faster than softmax at 4,096 tokens (on a GPU)", _faster(speed)),
        (
            "84.7 / 85.1% on ImageNet-1K, 79.8% on V2",
            ("needs ImageNet and a GPU for days", UNTESTED),
        ),
        ("0.87 J an image", ("needs their GPU", UNTESTED)),
    ]
    text = "| claim | here | verdict |\n|---|---|---|\n"
    text += "\n".join(f"| {claim} | {found} | {verdict} |" for claim, (found, verdict) in lines)
    return text + (
        "\n\nDifferences are in points, with their standard error over seeds; a verdict needs two "
        "of these. "
        "What is said to hold on ImageNet is tested here on canvases."
    )
