"""The claims of ITNet's paper, and how each is judged from the results of ``python -m
benchmarks.itnet_ablations``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

Rows = list[dict[str, Any]]
SEEDS = 3  # needed to decide


class Difference(NamedTuple):
    """One variant less another: the mean over the seeds that both have, its standard error (None of
    one seed), how many they are.
    """

    difference: float
    error: float | None
    seeds: int


def paired(rows: Rows, a: str, b: str, metric: str = "accuracy") -> Difference | None:
    """Variant ``a`` less ``b``, seed by seed; None where they share no seed.

    Example:
        >>> rows = [{"variant": v, "seed": s, "accuracy": x} for v, s, x in (("a", 0, 0.5), ("b", 0, 0.25))]
        >>> paired(rows, "a", "b")
        Difference(difference=0.25, error=None, seeds=1)
    """
    scores = {
        name: {row["seed"]: row[metric] for row in rows if row["variant"] == name}
        for name in (a, b)
    }
    apart = [scores[a][seed] - scores[b][seed] for seed in scores[a] if seed in scores[b]]
    if not apart:
        return None
    error = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else None
    return Difference(statistics.mean(apart), error, len(apart))


@dataclass(frozen=True)
class Claim:
    """What the paper says (``text``, ``paper``: its numbers), and ``judge``: what was found here
    and the verdict.
    """

    text: str
    paper: str
    judge: Callable[[dict[str, Rows]], tuple[str, str]]


def better(
    section: str, a: str, b: str, metric: str = "accuracy"
) -> Callable[[dict[str, Rows]], tuple[str, str]]:
    """That variant ``a`` has the higher score than ``b``, in points."""

    def judge(found: dict[str, Rows]) -> tuple[str, str]:
        apart = paired(found.get(section, []), a, b, metric)
        if apart is None:
            return "not run", "open"
        shown = f"{section}: {100 * apart.difference:+.2f}"
        if apart.error is None or apart.seeds < SEEDS:
            return f"{shown} ({apart.seeds} {'seed' if apart.seeds == 1 else 'seeds'})", "open"
        sure = abs(apart.difference) > 2 * apart.error
        verdict = "open" if not sure else "reproduced" if apart.difference > 0 else "contradicted"
        return f"{shown} ± {100 * apart.error:.2f} ({apart.seeds} seeds)", verdict

    return judge


def alike(
    section: str, a: str, b: str, within: float = 0.01
) -> Callable[[dict[str, Rows]], tuple[str, str]]:
    """That variant ``a`` is ahead of ``b`` by no more than ``within``."""
    ahead = better(section, a, b)

    def judge(found: dict[str, Rows]) -> tuple[str, str]:
        here, _ = ahead(found)
        apart = paired(found.get(section, []), a, b)
        if apart is None or apart.error is None or apart.seeds < SEEDS:
            return here, "open"
        low, high = (apart.difference + 2 * sign * apart.error for sign in (-1, 1))
        return here, "reproduced" if high <= within else "contradicted" if low > within else "open"

    return judge


def columns(
    section: str, variant: str, a: str, b: str
) -> Callable[[dict[str, Rows]], tuple[str, str]]:
    """That a variant's runs score as well, evaluated as in column ``a``, as evaluated as in column
    ``b``, in points.
    """

    def judge(found: dict[str, Rows]) -> tuple[str, str]:
        rows = [
            row
            for row in found.get(section, [])
            if row["variant"] == variant and a in row and b in row
        ]
        as_runs = [
            row | {"variant": name, "accuracy": row[name]} for row in rows for name in (a, b)
        ]
        here, verdict = better(section, a, b)({section: as_runs})
        return here, verdict

    return judge


def untestable(why: str) -> Callable[[dict[str, Rows]], tuple[str, str]]:
    """A claim that needs what is not here."""
    return lambda found: (why, "not testable here")


CLAIMS = [
    Claim(
        "Images: content and position together beat content alone",
        "83.9 over 82.3",
        better("images", "full", "content only"),
    ),
    Claim(
        "Images: together they beat position alone",
        "83.9 over 81.0",
        better("images", "full", "position only"),
    ),
    Claim(
        "Images: content alone beats position alone",
        "82.3 over 81.0",
        better("images", "content only", "position only"),
    ),
    Claim("Images: the distance helps", "83.9 over 83.4", better("images", "full", "no distance")),
    Claim(
        "Images: the product of features helps",
        "83.9 over 83.2",
        better("images", "full", "no product"),
    ),
    Claim(
        "Images: relative positions (and the distance) help",
        "83.9 over 83.1",
        better("images", "full", "no relative"),
    ),
    Claim(
        "Images: a constant kernel is the worst",
        "75.7, the last of Table 5",
        better("images", "position only", "constant"),
    ),
    Claim(
        "Text: content and position together beat content alone",
        "81.5 over 79.8 (GLUE)",
        better("text", "full", "content only"),
    ),
    Claim(
        "Text: together they beat position alone",
        "81.5 over 78.5 (GLUE)",
        better("text", "full", "position only"),
    ),
    Claim(
        "Text: a kernel without the product beats one without the distance",
        "80.9 over 80.3 (GLUE)",
        better("text", "no product", "no distance"),
    ),
    Claim(
        "Text: any content beats a constant kernel",
        "79.8 over 74.0 (GLUE)",
        better("text", "content only", "constant"),
    ),
    Claim(
        "A wider kernel network gains, and saturates",
        "80.8 / 81.4 / 81.5 / 81.5 for w 64 to 512",
        better("digits", "w = 64", "w = 32"),
    ),
    Claim(
        "Twice that width gains nothing more", "81.5 = 81.5", alike("digits", "w = 128", "w = 64")
    ),
    Claim(
        "A third layer of the kernel network gains little",
        "81.5 over 81.4",
        alike("digits", "depth 3", "reference"),
    ),
    Claim(
        "More frequencies gain", "80.6 to 81.4 for m 16 to 64", better("digits", "m = 64", "m = 4")
    ),
    Claim("A learned B gains nothing", "no gain", alike("digits", "learned B", "reference")),
    Claim(
        "Sampled training loses little to the exact integral",
        "83.7 and 83.9 (B)",
        alike("samples", "exact", "S = 8"),
    ),
    Claim(
        "A learned proposal beats draws by measure",
        "Section 3.2",
        better("samples", "S = 8", "S = 8, drawn by measure"),
    ),
    Claim(
        "Anchors serve evaluation: 8 of 16 points for all queries, against 8 of its own for each",
        "Section 3.2, no numbers",
        columns("samples", "S = 8", "at 8 anchors", "at 8 keys a query"),
    ),
    Claim(
        "Accuracy grows with the rank",
        "81.2 to 83.8 for total rank 24 to 384",
        better("digits", "low rank, r = 16 a head", "low rank, r = 2 a head"),
    ),
    Claim(
        "ImageNet-1K 81.4 / 83.9 / 85.8, GLUE 79.1 / 81.5 / 83.1, NLVR2 82.1",
        "Tables 1, 2, 4",
        untestable("needs those data sets and weeks of GPUs"),
    ),
    Claim(
        "Clouds: content and position together beat content alone",
        "94.6 over 93.6",
        better("points", "full", "content only"),
    ),
    Claim(
        "Clouds: together they beat position alone",
        "94.6 over 93.0",
        better("points", "full", "position only"),
    ),
    Claim(
        "Clouds: content alone beats position alone",
        "93.6 over 93.0",
        better("points", "content only", "position only"),
    ),
    Claim(
        "Pictures with questions: content and position together beat content alone",
        "78.4 over 75.2 (VQA v2)",
        better("mosaics", "full", "content only"),
    ),
    Claim(
        "Pictures with questions: together they beat position alone",
        "78.4 over 74.0 (VQA v2)",
        better("mosaics", "full", "position only"),
    ),
    Claim(
        "A balanced measure beats the uniform one",
        "77.4 over 76.8 (VQA v2)",
        better("mosaics", "full", "uniform measure"),
    ),
    Claim(
        "A balanced measure beats 3:1 for the picture",
        "77.4 over 77.1",
        better("mosaics", "full", "image-heavy, 3:1"),
    ),
    Claim(
        "VQA v2 78.4, ModelNet40 94.6 (94.0 in Table 21)",
        "Tables 4, 5",
        untestable(
            "needs those data sets, pre-training and GPUs; the recipes itnet-vqa-v2, itnet-nlvr2 "
            "and itnet-modelnet40 build"
        ),
    ),
]
