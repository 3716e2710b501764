"""The claims of ITNet's paper.

Five are primary, named before the first run of their seeds: on text, content and position together
beat either alone; sampled training loses little; and, named on 1 December 2026, on clothes low rank
beats Performer, and a joint domain beats two streams. "Little" and "nothing" mean at most one point.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from ..kit.claims import Claim, Sample, better
from ..kit.statistics import Rows, beyond_best, differences
from . import spectrum
from .sections import SECTIONS


def ahead(section: str, name: str, others: tuple[str, ...]) -> Sample:
    """Return a sample: a variant minus the best of others, per seed."""
    return lambda found: beyond_best(found.get(section, []), name, others)


def behind(section: str, name: str, metric: str = "accuracy") -> Sample:
    """Return a sample: the worst of a section's other variants minus one variant, per seed."""

    def sample(found: dict[str, Rows]) -> list[float]:
        # With the opposite sign the worst of the others becomes the best.
        rows = [{**row, "lost": -row[metric]} for row in found.get(section, [])]
        others = tuple(dict.fromkeys(row["variant"] for row in rows if row["variant"] != name))
        if not others:
            return []
        return beyond_best(rows, name, others, "lost")

    return sample


def worse(section: str, name: str) -> Callable[[Any], str]:
    """Return a function that prints the variants with a lower mean accuracy than one."""

    def shown(found: dict[str, Rows]) -> str:
        scores: dict[str, list[float]] = {}
        for row in found.get(section, []):
            scores.setdefault(row["variant"], []).append(100 * row["accuracy"])
        means = {variant: statistics.mean(values) for variant, values in scores.items()}
        bound = means.pop(name, None)
        if bound is None:
            return ""
        lower = [f"{variant} {mean:.2f}" for variant, mean in means.items() if mean < bound]
        return f"below its {bound:.2f}: {', '.join(lower) or 'none'}"

    return shown


def images(a: str, b: str) -> Sample:
    """Return a sample: one variant minus another, at the best rate of each if that was run."""

    def sample(found: dict[str, Rows]) -> list[float]:
        section = "images tuned" if found.get("images tuned") else "images"
        return better(section, a, b)(found)

    return sample


def judged_section(section: str, found: dict[str, Rows]) -> str:
    """Return the name of the section with fresh seeds if all of them were run, else of the first.

    Judging a part of the fresh seeds would allow to stop when the result is right.
    """
    again = f"{section} again"
    if SECTIONS[again].complete(found.get(again, [])):
        return again
    return section


def fresh(section: str, a: str, b: str) -> Sample:
    """Return a sample: variant ``a`` minus ``b``, per seed of :func:`judged_section`."""

    def sample(found: dict[str, Rows]) -> list[float]:
        return better(judged_section(section, found), a, b)(found)

    return sample


def by_evaluation(section: str, variant: str, a: str, b: str) -> Sample:
    """Return a sample: accuracy in evaluation ``a`` minus that in ``b`` of the same models.

    The seeds are those of :func:`judged_section`.
    """

    def sample(found: dict[str, Rows]) -> list[float]:
        name = judged_section(section, found)
        rows = [row for row in found.get(name, []) if row["variant"] == variant]
        pairs = [(evaluated(row, a), evaluated(row, b)) for row in rows]
        return differences(pairs, "accuracy")

    return sample


def evaluated(row: dict[str, Any], evaluation: str) -> dict[str, Any]:
    """Return the accuracy and the answers of one evaluation of a run as a row."""
    found: dict[str, Any] = {"accuracy": row[evaluation]}
    answers = row.get("answers", {}).get(evaluation)
    if answers is not None:
        found["answers"] = {"accuracy": answers}
    return found


def joint(other: str) -> Sample:
    """Return a sample: a joint domain (with the balanced measure) minus a model of the streams."""

    def sample(found: dict[str, Rows]) -> list[float]:
        rows = [*found.get("measures", []), *found.get("streams", [])]
        return better("both", "balanced", other)({"both": rows})

    return sample


CLAIMS = [
    Claim(
        "Images: content and position together beat content alone",
        "83.9 over 82.3",
        images("full", "content only"),
    ),
    Claim(
        "Images: together they beat position alone",
        "83.9 over 81.0",
        images("full", "position only"),
    ),
    Claim(
        "Images: content alone beats position alone",
        "82.3 over 81.0",
        images("content only", "position only"),
    ),
    Claim("Images: the distance helps", "83.9 over 83.4", images("full", "no distance")),
    Claim(
        "Images: the product of features helps",
        "83.9 over 83.2",
        images("full", "no product"),
    ),
    Claim(
        "Images: relative positions (and the distance) help",
        "83.9 over 83.1",
        better("images", "full", "no relative"),
    ),
    Claim(
        "Images: a constant kernel is the worst",
        "75.7, the last of Table 5",
        behind("images", "constant"),
        shown=worse("images", "constant"),
    ),
    Claim(
        "Text: content and position together beat content alone",
        "81.5 over 79.8 (GLUE)",
        fresh("text", "full", "content only"),
        primary=True,
    ),
    Claim(
        "Text: together they beat position alone",
        "81.5 over 78.5 (GLUE)",
        fresh("text", "full", "position only"),
        primary=True,
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
        "Twice that width gains nothing more",
        "81.5 = 81.5",
        better("digits", "w = 128", "w = 64"),
        below=0.01,
    ),
    Claim(
        "A third layer of the kernel network gains little",
        "81.5 over 81.4",
        better("digits", "depth 3", "reference"),
        below=0.01,
    ),
    Claim(
        "More frequencies gain", "80.6 to 81.4 for m 16 to 64", better("digits", "m = 64", "m = 4")
    ),
    Claim(
        "Fourier features beat raw coordinates on images",
        "81.4 over 79.2",
        better("digits", "reference", "raw coordinates"),
    ),
    Claim(
        "A readout that starts ten times smaller loses little",
        "81.3 and 81.4",
        better("start", "W = I, eps = 0.01", "eps = 0.001"),
        below=0.01,
    ),
    Claim(
        "One that starts a hundred times larger is worse, or diverges",
        "diverges, 81.4",
        better("start", "W = I, eps = 0.01", "eps = 1"),
    ),
    Claim(
        "A stream that starts near one trains better than the formula's",
        '"near identity"',
        better("start", "W = 0", "W = I, eps = 0.01"),
    ),
    Claim(
        "A learned B gains nothing",
        "no gain",
        better("digits", "learned B", "reference"),
        below=0.01,
    ),
    Claim(
        "Sampled training loses little to the exact integral",
        "83.7 and 83.9 (B)",
        fresh("samples", "exact", "S = 8"),
        below=0.01,
        primary=True,
    ),
    Claim(
        "Eight anchors by k-means serve at evaluation: a model of eight samples loses little to all keys",
        "H.11: deterministic keys at evaluation",
        by_evaluation("samples", "S = 8", "at all keys", "at 8 anchors"),
        below=0.01,
    ),
    Claim(
        "A learned proposal beats draws by measure",
        "Section 3.2",
        fresh("samples", "S = 8", "S = 8, drawn by measure"),
    ),
    Claim(
        "More layers gain",
        "79.6 / 81.4 / 81.8 for 6, 12, 24 layers",
        better("digits", "4 layers", "1 layer"),
    ),
    Claim(
        "Neither a low nor a high bandwidth is better",
        "80.1 and 80.8, 81.4 at the middle one",
        ahead("digits", "reference", ("sigma = 1", "sigma = 10")),
    ),
    Claim(
        "Accuracy grows with the rank",
        "81.2 to 83.8 for total rank 24 to 384",
        better("digits", "low rank, r = 16 a head", "low rank, r = 2 a head"),
    ),
    *(
        Claim(
            f"{place}: low rank beats {other} at equal parameters",
            paper,
            better(f"linear {place.lower()}", "low rank", other),
            primary=(place, other) == ("Clothes", "performer"),
        )
        for place in ("Digits", "Clothes")
        for other, paper in (
            ("linear attention", "83.4 over 76.5"),
            ("performer", "83.4 over 78.2"),
            ("softmax", "no number"),
        )
    ),
    Claim(
        "Digits: low rank beats linear attention at a rate of 0.001",
        "83.4 over 76.5",
        better("linear digits", "low rank", "linear attention, rate 0.001"),
    ),
    Claim(
        "ImageNet-1K 81.4 / 83.9 / 85.8, GLUE 79.1 / 81.5 / 83.1, NLVR2 82.1",
        "Tables 1, 2, 4",
        untestable="needs those data sets and weeks of GPUs",
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
        "Trained kernels have rapidly falling singular values",
        "Remark 15",
        shown=spectrum.shown,
    ),
    Claim(
        "To convergence a balanced measure beats the uniform one",
        "77.4 over 76.8 (VQA v2)",
        better("measures", "balanced", "uniform"),
    ),
    Claim(
        "To convergence a balanced measure beats 3:1 for the picture",
        "77.4 over 77.1",
        better("measures", "balanced", "3:1 for the picture"),
    ),
    Claim(
        "To convergence a balanced measure beats 3:1 for the text",
        "77.4 over 76.4",
        better("measures", "balanced", "3:1 for the text"),
    ),
    Claim(
        "A joint domain beats two streams with cross-attention",
        "Section 4: higher with fewer parameters",
        joint("two streams, cross-attention"),
    ),
    Claim(
        "A joint domain beats two streams whose read-outs are concatenated, both read out alike",
        "Section 4: higher with fewer parameters",
        better("streams", "joint, read out as the concatenation", "two streams, concatenation"),
        primary=True,
    ),
    Claim(
        "VQA v2 78.4, ModelNet40 94.6 (94.0 in Table 21)",
        "Tables 4, 5",
        untestable="needs those data sets, pre-training and GPUs; the recipes itnet-vqa-v2, itnet-nlvr2 "
        "and itnet-modelnet40 build",
    ),
]
