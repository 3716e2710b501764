"""The README's table of regimes: a win and a loss of every operator beside what one would use
instead, from the committed results.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ..kit.page import ROOT, load, table
from ..small import PEER as SMALL

README = ROOT / "README.md"
MARKS = "<!-- regimes: python -m evidence page performance -->", "<!-- /regimes -->"
PRICE = re.compile(r"(<!-- price -->).*?(<!-- /price -->)", re.DOTALL)
# What each is for, and the cases of performance.json that are its own.
REGIMES = {
    "itnet": ("few points, any geometry", "itnet forward"),
    "itnet_low_rank": ("O(N), streaming state", "itnet_low_rank"),
    "luna": ("O(N), made from softmax", "luna"),
    "ckconv": ("kernels as long as the signal", "ckconv"),
    "infsa": ("diffusion, centrality", "infsa"),
    "linear_infsa": ("O(N), centrality", "linear_infsa"),
    "Evolution": ("depth as a choice", "encoder,"),
}
# What nobody would use instead of an operator: its formula as it is written, and a direct convolution
# as long as the signal.
PLAIN = {"literal", "N × N", "F.conv1d"}
NONE = "none measured"
TOLD = 1.05  # times as long, above which two are told apart


class Beside(NamedTuple):
    """How many times as long another way takes, and where."""

    ratio: float
    way: str
    where: str


def readme() -> str:
    """The README with the table and the price of a linear model between their marks."""
    text = PRICE.sub(lambda marks: f"{marks[1]}{price()}{marks[2]}", README.read_text("utf-8"))
    before, _, rest = text.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n{regimes()}{MARKS[1]}{after}"


def price() -> str:
    """What the first receipt of SmolLM2 says of texts and needles that are long."""
    receipt = load("smollm2.json")["all"]["receipt"]
    text = receipt["perplexity"]["python-docs"][-1]
    needle = next(row for row in receipt["recall"] if row["distance"] == 128)
    return (
        "It has a price: SmolLM2 with a window of 64 has\n"
        f"  [{text['ratio']:.1f} times](docs/results/smollm2.md) its teacher's perplexity beyond "
        f"{text['from']:,} tokens, and recalls {needle['student']:.0%} of needles\n"
        f"  {needle['distance']} tokens back (teacher {needle['teacher']:.0%})."
    )


def regimes() -> str:
    rows = []
    for name, (regime, cases) in REGIMES.items():
        found = beside(name, cases)
        found = [x for x in found if x.way not in map(_way, PLAIN)] or found
        best, worst = max(found), min(found)
        win = f"{_times(best.ratio)} as fast as {best.way}, {best.where}"
        loss = f"{_times(1 / worst.ratio)} the time of {worst.way}, {worst.where}"
        shown = f"`{name}`"
        rows.append(
            (
                shown,
                regime,
                win if best.ratio > TOLD else NONE,
                loss if worst.ratio < 1 / TOLD else NONE,
            )
        )
    return table(("operator", "for", "a win", "a loss"), rows) + "\n"


def beside(name: str, cases: str) -> list[Beside]:
    """Every other way that was timed beside an operator: those of its cases, softmax at each length
    of the roofline, and ``nn.MultiheadAttention`` at those of small calls.
    """
    found, first = [], {}
    for row in load("performance.json")["cases"]:
        ours = first.setdefault((row["group"], row["case"]), row)
        if row is not ours and row["case"].startswith(cases):
            found.append(Beside(row["ratio"], _way(row["way"]), _length(row)))
    for row in load("small.json")["calls"]:
        if row["way"] == SMALL and row["case"].startswith(f"{name} N="):
            found.append(Beside(row["ratio"], _way(row["way"]), _length({"note": "", **row})))
    times = {(row["operator"], row["n"]): row["seconds"] for row in load("roofline.json")["rows"]}
    lengths = [n for operator, n in times if operator == name]
    found += [
        Beside(times["softmax", n] / times[name, n], "`softmax`", f"N = {n:,}") for n in lengths
    ]
    return found + (elsewhere[name]() if name in (elsewhere := ELSEWHERE) else [])


def _trained_graphs() -> list[Beside]:
    """A training step of a model of pure InfSA beside one of fused softmax."""
    rows = {row["mechanism"]: row for row in load("infsa-speed.json")["table-time"]["found"]}
    ours, theirs = rows["pure InfSA (ours)"], rows["softmax, fused (ours)"]
    where = f"training, N = {ours['trained']:,}"
    return [Beside(theirs["training_seconds"] / ours["training_seconds"], "`softmax`", where)]


def _encoders() -> list[Beside]:
    """Steps of Lie's scheme beside an encoder of six layers, forward and backward."""
    rows = [row for row in load("splitting.json")["cases"] if row["way"] == "lie"]
    way = "`nn.TransformerEncoder`"
    return [Beside(1 / row["ratio"], way, f"training, {_length(row)}") for row in rows]


ELSEWHERE = {"infsa": _trained_graphs, "Evolution": _encoders}  # what other files measured


def _way(way: str) -> str:
    """A function's name as code; words of a published algorithm as they are."""
    return f"`{way}`" if re.fullmatch(r"[\w.]+\.\w+", way) else f"the {way} form"


def _length(row: dict[str, Any]) -> str:
    found = re.search(r"N=(\d+)", f"{row['note']} {row['case']}")
    if found:
        return f"N = {int(found[1]):,}"
    found = re.match(r"(\d+) scalars", row["note"])  # of a map alone
    return f"{int(found[1]):,} scalars" if found else row["note"]


def _times(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.2g} times"
