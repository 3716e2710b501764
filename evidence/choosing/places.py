"""Strength, price and weakness of each operator, from claims and times in the committed results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..claims.rows import judged
from ..kit.page import table

N = 1_024
"""Number of points of the compared times."""


@dataclass(frozen=True)
class Place:
    """Strength and weakness of an operator in words.

    Attributes:
        operator: its name in the page.
        best: its strength.
        shown: the claims of results pages (``"SET: TEXT"``) whose numbers support it.
        loses: its weakness.
        lost: the claims that show it.
        timed: its name in the file of times; empty if it was not timed.
    """

    operator: str
    best: str
    shown: tuple[str, ...]
    loses: str
    lost: tuple[str, ...]
    timed: str = ""


CHARGES = "physics: Charges, larger rates, {} particles{}, equal steps: ITNet of displacements is ahead of {}"
BODIES = "motion: Gravity, 8 bodies, {}, {}: ITNet is ahead of {}"
ROLLOUT = "rollout of 50 steps"
HIDDEN_WORDS = "luna-encoders: Hidden words"
IRREGULAR = (
    "irregular: {}, irregular times, equal steps: a CKCNN is ahead of the best of GRU-D, a neural CDE "
    "and MiniROCKET on interpolated series"
)
LAGS_TIME = "irregular: Lags, irregular times, equal time: a CKCNN is ahead of a TCN on a grid"
INTERPOLATED = "ahead of a GRU and a TCN that read series resampled to the rate of training"
PLATEAU = "plateau: Sentences: trained with 2 to 8 steps"
LAYERS = "layers: Sentences"
PLACES = (
    Place(
        "itnet",
        "at equal steps, forces between charges, by a kernel without absolute positions whose design "
        "was searched, relative to attention with displacements and to an interaction network; "
        "rollouts of bodies under gravity, relative to an interaction network",
        (
            CHARGES.format(8, "", "attention with relative positions"),
            CHARGES.format(8, "", "an interaction network"),
            BODIES.format(ROLLOUT, "equal steps", "an interaction network"),
        ),
        "forces, relative to EGNN, whose forces turn with the system; with more particles than in "
        "training, relative to an interaction network; the same rollouts at equal time; bodies under "
        "gravity, relative to attention with displacements and to EGNN",
        (
            CHARGES.format(8, "", "EGNN"),
            CHARGES.format(12, ", never seen", "an interaction network"),
            BODIES.format(ROLLOUT, "equal time", "an interaction network"),
            BODIES.format("one step", "equal steps", "attention with relative positions"),
            BODIES.format("one step", "equal steps", "EGNN"),
        ),
        "itnet",
    ),
    Place(
        "itnet_low_rank",
        "ITNet's kernel for many points; digits, relative to Performer and to softmax of its size, at "
        "rates at the ends of those tried (on the digits of another recipe, below, it is level with "
        "softmax)",
        tuple(
            f"itnet: Digits: low rank beats {other} at equal parameters"
            for other in ("performer", "softmax")
        ),
        "a low rank loses accuracy (digits, highest rank minus lowest)",
        ("itnet: Accuracy grows with the rank",),
        "itnet_low_rank",
    ),
    Place(
        "ckconv",
        "bits at an exact lag in irregular times (a task made for a convolution), relative to the best "
        "of three other methods at equal steps, and to a TCN on a grid at equal time; "
        "series at half the rate of training, with the same weights, relative to GRUs and TCNs that "
        "read them interpolated to that rate (PLAID; not on JapaneseVowels, whose table *rate* is "
        "below)",
        (IRREGULAR.format("Lags"), LAGS_TIME, f"ckconv: PLAID, rate 1 → 1/2: {INTERPOLATED}"),
        "bursts of samples at irregular times, relative to the best of three other methods "
        "(JapaneseVowels); twice the rate of training (PLAID); with most samples lost, relative to "
        "GRUs and TCNs (PLAID); permuted pixels, relative to a TCN",
        (
            IRREGULAR.format("JapaneseVowels"),
            f"ckconv: PLAID, rate 1/2 → 1: {INTERPOLATED}",
            "ckconv: missing data costs little (PLAID, 70% lost)",
            "ckconv: pMNIST at 14 x 14: the small network is ahead of TCN, LSTM, GRU",
        ),
        "ckconv",
    ),
    Place(
        "luna",
        "hidden words of texts of 512 tokens, relative to Hedgehog; of 8,192 tokens, relative to "
        "softmax, which takes much longer there; images as sequences of pixels, relative to softmax, "
        "a convolution added to both",
        (
            f"{HIDDEN_WORDS}, 512 tokens, equal steps: LUNA above Hedgehog",
            f"{HIDDEN_WORDS}, 8,192 tokens, equal steps: LUNA above softmax",
            "lra-image: Image: LUNA above softmax, a convolution beside both",
        ),
        "hidden words, relative to linear attention with elu + 1, which takes less time: at equal steps "
        "and at equal time; bytes of text (128 of each), relative to softmax",
        (
            f"{HIDDEN_WORDS}, 512 tokens, equal steps: LUNA above elu + 1",
            f"{HIDDEN_WORDS}, 512 tokens, equal time: LUNA above elu + 1",
            "lra: Text: LUNA above softmax",
        ),
        "luna",
    ),
    Place(
        "infsa",
        "images of small objects on large canvases, relative to softmax",
        ("canvases: All canvases: pure InfSA is more accurate than softmax",),
        "its attention maps do not find the object better than softmax's",
        ("canvases: All canvases: ROC-AUC: pure above softmax",),
        "infsa",
    ),
    Place(
        "linear_infsa",
        "many tokens in little time; accuracy relative to softmax's",
        ("canvases: All canvases: linear InfSA is more accurate than softmax",),
        "its attention maps are less faithful than softmax's (LeRF)",
        ("canvases: All canvases: LeRF: linear above softmax",),
        "linear_infsa",
    ),
    Place(
        "evolution",
        "one set of weights for 2 to 16 time steps (on sentences, for which 2 layers suffice): 2 and 16 "
        "relative to 4; 2 and 4 relative to encoders of 2 and of 4 layers, trained for each",
        (
            f"{PLATEAU}, 2 instead of 4 cost the pre-norm model little",
            f"{PLATEAU}, 16 instead of 4 cost the pre-norm model little",
            f"{LAYERS}: at 2 steps, drawn steps are ahead of an encoder of 2 layers",
            f"{LAYERS}: at 4 steps, drawn steps are ahead of an encoder of 4 layers",
        ),
        "a step of Strang splitting costs four times the attention of Lie splitting; accuracy relative to "
        "Lie's",
        ("continuous: other schemes make better models: Strang against Lie",),
    ),
)


def places(speed: dict[str, Any] | None) -> str:
    """Return the table, with numbers in points of accuracy (of relative error for charges)."""
    lines = []
    for place in PLACES:
        best = _with_numbers(place.best, place.shown)
        loses = _with_numbers(place.loses, place.lost)
        lines.append((place.operator, best, _price(place.timed, speed), loses))
    cost = f"time relative to softmax's, forward and backward at N = {N:,}"
    return table(("operator", "strength", cost, "weakness"), lines)


def _with_numbers(text: str, claims: tuple[str, ...]) -> str:
    """Append the number and the verdict of each claim to a text."""
    if not claims:
        return text
    parts = []
    for name in claims:
        one = judged()[name].result
        part = one.here.partition(";")[0]
        if part != "not run":
            part += f", {one.verdict or 'not primary'}"
        parts.append(part)
    return f"{text}: {'; '.join(parts)}"


def _price(operator: str, speed: dict[str, Any] | None) -> str:
    """Return an operator's time relative to softmax attention's."""
    if not operator or not speed:
        return "not timed here"
    times: dict[str, dict[int, float]] = {}
    for curve in speed["scaling"]:
        if curve["direction"] == "step":
            times[curve["operator"]] = dict(zip(curve["lengths"], curve["milliseconds"]))
    return f"{times[operator][N] / times[speed['reference']][N]:.2g}×"
