"""Page docs/results/luna-encoders.md and its picture."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from statistics import fmean
from typing import Any, NamedTuple

from fredholm.lab.report.style import new_figure

from ...kit.claims import claims_tables, primary_texts
from ...kit.contest import EQUAL_STEPS, EQUAL_TIME, by_model
from ...kit.machine import machine_line
from ...kit.page import IMAGES, at_an_end, head, listed, load, save_picture, spread, table
from ...kit.statistics import Rows, summarise
from .claims import CLAIMS, results
from .contest import (
    AGAIN,
    BATCH,
    BRIEF,
    FILE,
    HEDGEHOG_OTHER_RATE,
    LUNA_AGAIN,
    OTHER_RATE,
    RATES,
    SEEDS,
    SPEED_FILE,
    STEPS,
    accuracy_at,
)
from .model import ATTENTIONS, BLOCKS, DIM, FEATURES, HEADS
from .texts import FREQUENT, HIDDEN, LEAST, LENGTHS, TRAINED

RUN, TIME = "python -m evidence run luna encoders", "python -m evidence time luna encoders"
PICTURE = "luna-encoders.png"
TEXT = """{head}How good are encoders of long texts for the time that they take on a CPU? Encoders with LUNA, Hedgehog, softmax attention, Performer and linear
attention with elu + 1 predict hidden words. `{run}` trains and tests them, `{time}` times them.

**Data.** The texts are Python's documentation (`python-docs`), with words and other signs as tokens. Words that occur less than {least} times
have one number together. In every segment of {trained} tokens, {hidden} words are hidden, but none of the {frequent} most frequent ones, mostly signs. Encoders are trained on
single segments. In the test, all segments of unseen documents are read in texts of {lengths} tokens, with the same hidden words, so that
only the amount of text around them differs. The accuracy is the share of hidden words that are right; a sample of a claim's test is a segment, and segments of one document are not independent.

**Encoders.** They have {blocks} blocks of width {dim} with {heads} heads and differ only in their attention. Beside it is a depthwise convolution of three taps, which
alone tells neighbours from other words; there are no positions, so that an encoder can read longer texts than in training. LUNA, Hedgehog and Performer
have {features} features per head, elu + 1 has {few}. Each encoder is trained for {steps} steps of {batch} segments by Adam.
The learning rate (from {rates}) is the one with the least loss on validation after {brief} steps with seed 0, while the claims are about accuracy{other}. The seeds of the tables ({seeds}) and the primary claims
were named before the first run. {ends}

## Accuracy and time

{front}

## At equal steps

{equal_steps}

## At equal time

Every encoder is trained for as long as the fastest one needs for {steps} steps. The number of steps follows from the CPU seconds per step, medians of rounds
that alternate between the encoders. The rates are those chosen for equal steps.

{equal_time}

## Claims

The difference is LUNA's accuracy minus that of the other encoder. The paper does not have this task.

{claims}
"""
FRONT = """Each cell is the accuracy (%) on texts of a length and the milliseconds of a forward pass of one text: inference, one thread, medians of rounds that
alternate between the encoders. It is bold where no other encoder is both faster and more accurate, by the means alone: differences of less than about a point are not significant.
{falling}

{table}

{machine}

![Accuracy against milliseconds at each length](../images/{picture})"""


class Point(NamedTuple):
    """An encoder's mean accuracy over seeds, its standard deviation, and its time at a length."""

    variant: str
    accuracy: float
    sd: float
    ms: float


def page() -> str:
    """Return the text of the page."""
    # Before the first run, all claims are named before it.
    unrun = {"primary": primary_texts(CLAIMS)}
    found = load(FILE) or unrun
    runs = results()
    return TEXT.format(
        head=head("Results: encoders of long texts", "luna", FILE, SPEED_FILE),
        run=RUN,
        time=TIME,
        least=LEAST,
        hidden=HIDDEN,
        frequent=FREQUENT,
        trained=TRAINED,
        lengths=listed(tuple(f"{length:,}" for length in LENGTHS)),
        blocks=BLOCKS,
        dim=DIM,
        heads=HEADS,
        features=FEATURES,
        few=DIM // HEADS,
        steps=STEPS,
        batch=BATCH,
        rates=listed(RATES),
        brief=BRIEF,
        seeds=listed(SEEDS),
        other=other_rates(found.get("tuning", []), runs[EQUAL_STEPS]),
        ends=ends(runs[EQUAL_STEPS]),
        front=front_section(runs[EQUAL_STEPS], load(SPEED_FILE)),
        equal_steps=scores_table(runs[EQUAL_STEPS]),
        equal_time=scores_table(runs[EQUAL_TIME]),
        claims=claims_tables(CLAIMS, runs, found),
    )


def other_rates(tuning: Rows, rows: Rows) -> str:
    """Say, in brackets, which rates would be others by the accuracy in validation.

    Hedgehog was trained again at such a rate.
    """
    found = {}
    for name, tried in by_model(tuning, ATTENTIONS).items():
        best = max(tried, key=itemgetter("accuracy"))["rate"]
        if best not in {row["rate"] for row in rows if row["variant"] == name}:
            found[name] = f"{best} for {name}"
    if not found:
        return ""

    text = f"by the accuracy there it would be {listed(tuple(found.values()))}"
    if "hedgehog" in found:
        text += (
            f": *{HEDGEHOG_OTHER_RATE}*, with {OTHER_RATE}, was therefore added after all other runs. The documentation "
            f"had changed by then, so that *{LUNA_AGAIN}* was trained beside it"
        )
    return f" ({text})"


def ends(rows: Rows) -> str:
    """Say which encoders chose the first or the last rate."""
    chosen = {row["variant"]: row["rate"] for row in rows}
    return at_an_end(chosen, dict.fromkeys(ATTENTIONS, RATES))


def scores_table(rows: Rows) -> str:
    """Return a table with one row per encoder: accuracy at every length, cost and rate."""
    lines = []
    for name, runs in by_model(rows, (*ATTENTIONS, *AGAIN)).items():
        first = runs[0]
        cells = [spread((run[accuracy_at(n)] for run in runs), digits=2) for n in LENGTHS]
        seconds = spread((run["seconds"] for run in runs), scale=1.0)
        facts = first["steps"], seconds, len(runs), f"{first['parameters']:,}", first["rate"]
        lines.append((name, *cells, *facts))
    if not lines:
        return f"Open: not run, `{RUN}`."
    heads = (f"{length:,} tokens (%)" for length in LENGTHS)
    facts = "steps", "CPU seconds", "seeds", "parameters", "rate"
    return table(("attention", *heads, *facts), lines)


def points_at(length: int, rows: Rows, times: Rows) -> list[Point]:
    """Return the encoders with accuracy and time at a length."""
    ms = {row["variant"]: row["ms"] for row in times if row["length"] == length}
    found = []
    for name in ATTENTIONS:
        values = [row[accuracy_at(length)] for row in rows if row["variant"] == name]
        summary = summarise(values)
        if summary is not None and name in ms:
            found.append(Point(name, summary.mean, summary.sd or 0.0, ms[name]))
    return found


def front(points: list[Point]) -> Iterator[Point]:
    """Yield the points such that no other is both faster and more accurate.

    Example:
        >>> quick, good = Point("a", 0.2, 0, 1.0), Point("b", 0.4, 0, 2.0)
        >>> [one.variant for one in front([quick, good, Point("c", 0.3, 0, 3.0)])]
        ['a', 'b']
    """
    for one in points:
        if not any(other.ms < one.ms and other.accuracy > one.accuracy for other in points):
            yield one


def front_section(rows: Rows, timed: dict[str, Any] | None) -> str:
    """Return the table of accuracy and time, and the picture, or the missing command."""
    missing = [f"`{RUN}`"] * (not rows) + [f"`{TIME}`"] * (not timed)
    if missing:
        return f"Open: not run, {' and '.join(missing)}."
    assert timed is not None

    cells: dict[str, list[str]] = {name: [] for name in ATTENTIONS}
    for length in LENGTHS:
        points = points_at(length, rows, timed["rows"])
        best = set(front(points))
        for point in points:
            text = f"{100 * point.accuracy:.2f} in {point.ms:.1f} ms"
            cells[point.variant].append(f"**{text}**" if point in best else text)
    lines = [(name, *of_length) for name, of_length in cells.items() if of_length]
    heads = ("attention", *(f"{length:,} tokens" for length in LENGTHS))
    machine = machine_line(timed["machine"])
    return FRONT.format(
        table=table(heads, lines), machine=machine, picture=PICTURE, falling=falling(rows)
    )


def falling(rows: Rows) -> str:
    """Say whether every encoder is worse on the longest texts than on the shortest."""
    first, last = LENGTHS[0], LENGTHS[-1]
    means = {
        length: [
            fmean(row[accuracy_at(length)] for row in runs)
            for runs in by_model(rows, ATTENTIONS).values()
        ]
        for length in (first, last)
    }
    if not all(short > long for short, long in zip(means[first], means[last], strict=True)):
        return ""
    return (
        f"More text does not help any of them: all are more accurate on pieces of {first:,} tokens than on texts of {last:,}, with the "
        "same hidden words. So the longer columns show how well an encoder bears a length that it was not trained on, not what it gains from it."
    )


def plot(rows: Rows, times: Rows, theme: Any) -> Any:
    """Draw accuracy against milliseconds, one panel per length, one colour per encoder."""
    from matplotlib.ticker import NullFormatter

    figure = new_figure(11.0, 2.8)
    panels = figure.subplots(1, len(LENGTHS), sharex=True, sharey=True)
    for axes, length in zip(panels, LENGTHS):
        for colour, point in zip(theme.series, points_at(length, rows, times)):
            axes.errorbar(
                point.ms,
                100 * point.accuracy,
                100 * point.sd,
                marker="o",
                markersize=4,
                linestyle="none",
                color=colour,
                label=point.variant,
            )
        axes.set(xlabel="ms", title=f"{length:,} tokens", xscale="log")
        # Labels of minor ticks would overlap.
        axes.xaxis.set_minor_formatter(NullFormatter())
    panels[0].set(ylabel="accuracy (%)")
    panels[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def draw() -> None:
    """Draw docs/images/luna-encoders.png, if there are accuracies and times."""
    rows, timed = results()[EQUAL_STEPS], load(SPEED_FILE)
    if rows and timed:
        save_picture(lambda theme: plot(rows, timed["rows"], theme), IMAGES / PICTURE, dpi=110)
