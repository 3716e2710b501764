"""The one place of each operator, its price, and where it loses: claims of the results pages and
times, read from committed results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..claims.rows import judged
from ..kit.page import table

N = 1_024


@dataclass(frozen=True)
class Place:
    """An operator: in words what it is best for here and where it loses, each with the claims of
    results pages (``"SET: TEXT"``) whose numbers stand behind them; ``timed``: its name in the times.
    """

    operator: str
    best: str
    shown: tuple[str, ...]
    loses: str
    lost: tuple[str, ...]
    timed: str = ""


CHARGES = "physics: Charges, 8 particles, equal steps: ITNet is ahead of"
RATE = "another rate costs less than GRUs and TCNs lose on series as they come"
PLATEAU = "plateau: Sentences: trained with 2 to 8 steps"
PLACES = (
    Place(
        "itnet",
        "forces between charges: ahead of softmax attention",
        (f"{CHARGES} softmax attention",),
        "beside a network made for pairs, and attention that sees displacements",
        (f"{CHARGES} an interaction network", f"{CHARGES} attention with relative positions"),
        "itnet",
    ),
    Place(
        "itnet_low_rank",
        "ITNet's kernel where there are many points",
        (),
        "accuracy falls with the rank (digits, the highest less the lowest)",
        ("itnet: Accuracy grows with the rank",),
        "itnet_low_rank",
    ),
    Place(
        "ckconv",
        "series at a rate that was not trained, by the same weights",
        (f"ckconv: {RATE} (JapaneseVowels)",),
        "with most samples lost, beside GRUs and TCNs (PLAID), and beside a TCN on permuted pixels",
        (
            "ckconv: missing data costs little (PLAID, 70% lost)",
            "ckconv: pMNIST at 14 x 14: the small network is ahead of TCN, LSTM, GRU",
        ),
        "ckconv",
    ),
    Place(
        "luna",
        "pixels as a long sequence, a convolution beside it and beside softmax",
        ("lra-image: Image: LUNA above softmax, a convolution beside both",),
        "on bytes of text, one seed",
        ("lra: Text: LUNA above softmax",),
        "luna",
    ),
    Place(
        "infsa",
        "pictures of small things on large canvases",
        ("canvases: All canvases: pure InfSA is more accurate than softmax",),
        "its maps do not find the thing better than softmax's",
        ("canvases: All canvases: ROC-AUC: pure above softmax",),
        "infsa",
    ),
    Place(
        "linear_infsa",
        "many tokens in little time; accuracy beside softmax's",
        ("canvases: All canvases: linear InfSA is more accurate than softmax",),
        "its maps say less than softmax's",
        ("canvases: All canvases: LeRF: linear above softmax",),
        "linear_infsa",
    ),
    Place(
        "evolution",
        "one set of weights for 2 to 16 steps",
        (
            f"{PLATEAU}, 2 instead of 4 cost the pre-norm model little",
            f"{PLATEAU}, 16 instead of 4 cost the pre-norm model little",
        ),
        "beside Lie splitting, Strang's costs twice the attention",
        ("continuous: other schemes make better models: Strang against Lie",),
    ),
)


def places(speed: dict[str, Any] | None) -> str:
    """The table: points of accuracy, or of relative squared error for charges, with verdicts."""
    lines = [
        (
            place.operator,
            _with_numbers(place.best, place.shown),
            _price(place.timed, speed),
            _with_numbers(place.loses, place.lost),
        )
        for place in PLACES
    ]
    price = f"price: time of softmax's, forward and backward at N = {N:,}"
    return table(("operator", "its place here", price, "where it loses"), lines)


def _with_numbers(text: str, claims: tuple[str, ...]) -> str:
    """Words, then the number and verdict of each claim behind them."""
    parts = []
    for name in claims:
        one, _ = judged()[name]
        number = one.here.partition(";")[0]
        verdict = one.verdict or "not primary"
        parts.append(number if number == "not run" else f"{number}, {verdict}")
    return f"{text}: {'; '.join(parts)}" if parts else text


def _price(operator: str, speed: dict[str, Any] | None) -> str:
    """How many times softmax attention's time an operator takes."""
    if not operator or not speed:
        return "not timed here"
    times = {
        curve["operator"]: dict(zip(curve["lengths"], curve["milliseconds"]))
        for curve in speed["scaling"]
        if curve["direction"] == "step"
    }
    return f"{times[operator][N] / times[speed['reference']][N]:.2g}×"
