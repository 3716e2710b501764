"""The README's table of operators, from the committed results.

It shows the purpose of each operator, where it is ahead and behind, and its time beside attention.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from ..choosing.places import PLACES, Place, in_few_words
from ..kit.page import ROOT, load, table
from ..linearize.recall import LABELS, STORE, STORED, TEACHER, recall_rows
from ..small import PEER

README = ROOT / "README.md"
MARKS = "<!-- operators: python -m evidence page performance -->", "<!-- /operators -->"
PRICE = re.compile(r"(<!-- price -->).*?(<!-- /price -->)", re.DOTALL)
# What an operator offers that no other does.
OURS = {
    "itnet": "a matrix per pair of points",
    "itnet_low_rank": "low-rank matrices, O(N)",
    "luna": "learned feature maps, O(N)",
    "ckconv": "kernels as long as the signal",
    "infsa": "centrality of tokens",
    "linear_infsa": "one shared response, O(N)",
}
SOFTMAX = "softmax"
FEW, MANY = 32, 4096
MISSING = "–"
# The row of recall.json in which 12 groups of heads keep softmax.
KEPT = "12"


def readme() -> str:
    """Return the README with the table and the price of a linear model between their marks."""
    text = PRICE.sub(lambda marks: f"{marks[1]}{price()}{marks[2]}", README.read_text("utf-8"))
    before, _, rest = text.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n{operators()}{MARKS[1]}{after}"


def price() -> str:
    """Return the table of SmolLM2's recall, its perplexity on long texts and its cache.

    Once with 12 groups of heads that keep softmax and once with a store: untrained, trained, and
    trained alike without a state. A row that was not run is left out.
    """
    found = load("recall.json")
    groups = LABELS[KEPT].removesuffix(" groups keep softmax")
    teacher = found["bytes"][TEACHER] / 1e6
    start = found["perplexity"][TEACHER][-1]["from"]
    names = {
        KEPT: f"{groups} groups keep softmax (growing)",
        f"remember-{KEPT}": "trained",
        f"remember-{KEPT}-control": "trained, stateless",
        STORE: f"{STORED} stored tokens per group (fixed)",
        "remember-store": "trained",
        "remember-store-control": "trained, stateless",
    }
    rows = []
    needles = []
    for name, label in names.items():
        if name not in found["needle"]:
            continue
        ratio = f"{_far_ratio(found, name):.2f}×"
        recall = _recall(found, name)
        needles.append(recall.needles)
        rows.append((label, recall.near, recall.far, ratio, _cache(found, name)))
    heads = (
        "SmolLM2",
        "recall at 512",
        f"2,048 ({min(needles)}–{max(needles)} needles)",
        f"perplexity from {start:,}",
        f"cache at 4,096 (of {teacher:.0f} MB)",
    )
    return (
        "\nThe price, [relative to the original](docs/results/recall.md); training practised such needles and texts:\n\n"
        f"{table(heads, rows)}\n"
    )


class Recall(NamedTuple):
    """Shares of the teacher's digits 512 and 2,048 tokens back; their intervals are on the page.

    The second rests on a number of ``needles``.
    """

    near: str
    far: str
    needles: int


def _recall(found: dict[str, Any], name: str) -> Recall:
    recall = {row["distance"]: row for row in recall_rows(found["needle"], name)}
    near = recall[512][f"{name}_share"]
    far = recall[2048][f"{name}_share"]
    return Recall(f"{near:.0%}", f"{far:.0%}", recall[2048]["needles"])


def _far_ratio(found: dict[str, Any], name: str) -> float:
    """Return the perplexity over the teacher's in the last range of positions."""
    ours, theirs = (found["perplexity"][of][-1]["loss"] for of in (name, TEACHER))
    return math.exp(ours - theirs)


def _cache(found: dict[str, Any], name: str) -> str:
    return f"{found['bytes'][name] / 1e6:.0f} MB"


def operators() -> str:
    """Return the table with one row per operator, and the sentence about ``Evolution``."""
    places = {place.operator: place for place in PLACES}
    few, many = _few(), _many()

    rows = []
    for name, purpose in OURS.items():
        place = places[name]
        times = _times(few.get(name)), _times(many.get(name))
        rows.append((f"`{name}`", purpose, *in_few_words(place), *times))
    rows.append((f"`{SOFTMAX}`", "", "", "", _times(few.get(SOFTMAX)), _times(many[SOFTMAX])))

    heads = (
        "operator",
        "what it adds",
        "ahead of",
        "behind",
        f"time, N = {FEW}",
        f"N = {MANY:,}",
    )
    return f"{table(heads, rows)}\n\n{_evolution(places['evolution'])}\n"


def _few() -> dict[str, float]:
    """Return times of a call on few points as multiples of ``nn.MultiheadAttention``'s."""
    pattern = re.compile(rf"(\w+) N={FEW}")
    found = {}
    for row in load("small.json")["calls"]:
        match = pattern.fullmatch(row["case"])
        if match and row["way"] == PEER:
            found[match[1]] = 1 / row["ratio"]
    return found


def _many() -> dict[str, float]:
    """Return times of a call on many points as multiples of softmax attention's."""
    rows = [row for row in load("roofline.json")["rows"] if row["n"] == MANY]
    seconds = {row["operator"]: row["seconds"] for row in rows}
    return {name: time / seconds[SOFTMAX] for name, time in seconds.items()}


def _evolution(place: Place) -> str:
    """Return sentences on ``Evolution``: its place, and the time of a training step."""
    lengths = {}
    for row in load("splitting.json")["cases"]:
        length = re.search(r"N=(\d+)", row["case"])
        if length and row["way"] == "lie" and "encoder" in row["case"]:
            lengths[int(length[1])] = row["ratio"]
    short, long = min(lengths), max(lengths)
    ahead, behind = in_few_words(place)
    return (
        f"`Evolution` [treats depth as time](docs/splitting.md): {ahead}, but {behind}; "
        f"a step takes {lengths[short]:.2f} times\n`nn.TransformerEncoder`'s at N = {short}, {lengths[long]:.2f} at {long}."
    )


def _times(ratio: float | None) -> str:
    """Return a multiple with two digits.

    Example:
        >>> _times(47.6), _times(0.019), _times(None)
        ('48×', '0.019×', '–')
    """
    return MISSING if ratio is None else f"{ratio:.2g}×"
