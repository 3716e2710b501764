"""Recommendation and tables of a search, in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...files import write_text
from ..data.kinds.sequences import TABLES
from ..numbers import readable
from ..report.comparison import choice_page
from .plain import TITLES

State = dict[str, Any]
"""The content of ``choice.json``, see :class:`.search.Search`."""

Row = dict[str, Any]


class Table(NamedTuple):
    """Head and rows of a table."""

    head: list[str]
    rows: list[list[str]]


def number(value: float | None, percent: bool) -> str:
    """Format a share in percent, or another number with three digits.

    Example:
        >>> number(0.4567, True), number(0.4567, False), number(1000580, False), number(None, True)
        ('45.7%', '0.457', '1,000,580', '')
    """
    if value is None:
        return ""
    if percent:
        return f"{100 * value:.1f}%"
    return readable(value, 3)


def score(line: Row, percent: bool) -> str:
    """Format a test score as mean ± sample standard deviation.

    Example:
        >>> score({"test": 0.5, "sd": 0.01}, True), score({"test": 0.5, "sd": None}, False)
        ('50.0 ± 1.0%', '0.5')
    """
    text = number(line["test"], percent)
    if line["sd"] is None:
        return text
    # The unit comes once, after the deviation.
    return f"{text.removesuffix('%')} ± {number(line['sd'], percent)}"


def title(name: str) -> str:
    """Return an operator's name, or the title of a method beside the operators."""
    return TITLES.get(name, name)


def recommendation(state: State) -> list[tuple[str, str]]:
    """Return the recommendation of a search as (heading, text) pairs, as a page lists them.

    In this order, each where there is something to say: the pick and its test score, ties, the
    runner-up and how sure the choice is, the best operator if it is neither, the cost of longer
    samples, a training cut short, scores with lost samples, and the commands that predict and
    train.

    Args:
        state: of a search that has ended; its ``verdict`` is that of :func:`.verdict.conclude`
            with the commands ``train`` and, for a pick that is not an operator, ``predict``.
    """
    verdict = state["verdict"]
    percent = state["percent"]
    lines = {line["operator"]: line for line in verdict["table"]}
    name = verdict["pick"]
    pick = lines[name]
    result = [("recommended", f"{title(name)}: {_reached(pick, state)}")]

    if "ties" in verdict:
        others = " and ".join(map(title, verdict["ties"]))
        near = "equal on validation"
        if percent:
            near = "at most one validation sample apart"
        seconds = " and ".join(f"{lines[other]['seconds']:.2g} s" for other in verdict["ties"])
        faster = f"the recommended one trains faster: {pick['seconds']:.2g} s against {seconds}"
        result.append(("tie", f"with {others}: {near}; {faster}"))

    if "runner_up" in verdict:
        second = verdict["runner_up"]
        result.append(("runner-up", f"{title(second)}: {score(lines[second], percent)}"))
        result.append(("how sure", _certainty(verdict, percent)))

    operator = verdict["operator"]
    if operator not in (None, name, verdict.get("runner_up")):
        result.append(("best operator", f"{operator}: {score(lines[operator], percent)}"))
    # The rows of a table cannot grow longer: their columns are fixed.
    if (
        operator is not None
        and operator in state.get("growth", {})
        and state["kind"] != TABLES.many
    ):
        grown = _growth(operator, state["growth"][operator])
        result.append(("ten times the length", grown))

    short = _shortage(state)
    if short:
        result.append(("trained for", short))
    if "stress" in pick:
        parts = []
        for kind, value in pick["stress"].items():
            parts.append(f"{kind}: {number(value, percent)}")
        result.append(("lost samples", "; ".join(parts)))
    if "predict" in verdict:
        result.append(("predict", f"{verdict['predict']} (fitted to {verdict['fitted']})"))
    if verdict["train"]:
        # The command trains an operator, which need not be what is recommended.
        heading = "train in full"
        if operator != name:
            heading = "train best operator"
        result.append((heading, verdict["train"]))
    return result


def _reached(line: Row, state: State) -> str:
    """Return the test score with its number of seeds, and of a share with its interval."""
    details = "1 seed"
    if line["seeds"] > 1:
        details = f"{line['seeds']} seeds"
    if "interval" in line:
        low, high = (number(end, True) for end in line["interval"])
        details += f"; 95% interval {low} to {high} over {line['samples']:,} test samples"
    return f"test {state['measure']} {score(line, state['percent'])} ({details})"


def _certainty(verdict: Row, percent: bool) -> str:
    """Return how sure the pick is better than the runner-up, with the intervals."""
    found = verdict["difference"]
    spread = [
        (found["over_seeds"], f"{found['seeds']:,} seeds"),
        (found["over_samples"], f"{found['samples']:,} test samples"),
    ]
    known = [(part, count) for part, count in spread if part is not None]
    if not known:
        return "one seed: not known"
    (mean, _, _), _ = known[0]
    unit = ""
    if percent:
        unit = " points"
    text = f"{_word(verdict)}; difference on the test {_signed(mean, percent)}{unit}"

    # Equal differences have no spread, which is not certainty.
    alike = [count for (_, low, high), count in known if low == high]
    varied = [(low, high, count) for (_, low, high), count in known if low != high]
    if varied:
        parts = [
            f"{_signed(low, percent)} to {_signed(high, percent)} over {count}"
            for low, high, count in varied
        ]
        interval = "interval"
        if len(parts) > 1:
            interval = "intervals"
        text += f", 95% {interval} {', '.join(parts)}"
    if alike:
        text += f"; the same with all {alike[-1]}"
    return text


def _word(verdict: Row) -> str:
    """Return in words how sure the pick is better."""
    if verdict["sure"]:
        return "sure"
    found = verdict["difference"]
    known = [part for part in (found["over_seeds"], found["over_samples"]) if part is not None]
    if all(high < 0 for _, _, high in known):
        return "no: on the test the runner-up is better"
    if found["over_seeds"] is None:
        _, low, _ = found["over_samples"]
        if low > 0:
            return "better on the test samples, but one seed does not tell trainings apart"
    return "the two are not told apart"


def _shortage(state: State) -> str | None:
    """Return how few steps the finalists had, if any had less than half of a whole training."""
    steps = state["finals"]["steps"].values()
    full = state["full_steps"]
    if not steps or min(steps) >= full / 2:
        return None
    span = " to ".join(f"{count:,}" for count in sorted({min(steps), max(steps)}))
    return (
        f"{span} of the {full:,} steps of a whole training; another comparison "
        "with more --minutes may order them otherwise"
    )


def _signed(value: float, percent: bool) -> str:
    if percent:
        return f"{100 * value:+.1f}"
    sign = "+"
    if value < 0:
        sign = "-"
    return sign + readable(abs(value), 2)


def _growth(label: str, found: Row) -> str:
    """Return the cost of samples ten times as long, see :func:`.growth.growth`."""
    if "refused" in found:
        return f"{label}: not measured: {found['refused']}"
    ratio = found["then"] / found["seconds"]
    how = "extrapolated from N and 2 N"
    if found["measured"]:
        how = "measured"
    few = found["points"]
    return f"{label} takes {ratio:.1f} times as long on {10 * few:,} points as on {few:,} ({how})"


def finals_table(state: State) -> Table:
    """Return the table of the finalists."""
    percent = state["percent"]
    lines = state["verdict"]["table"]
    stresses = list(next((line["stress"] for line in lines if "stress" in line), {}))
    intervals = []
    if any("interval" in line for line in lines):
        intervals.append("95% interval")
    head = ["", "validation", f"test {state['measure']}", *intervals, *stresses]
    head += ["seeds", "width", "lr"]

    rows = []
    for line in lines:
        row = [
            title(line["operator"]),
            number(line["val"], percent),
            score(line, percent),
        ]
        if intervals:
            ends = [number(end, True) for end in line.get("interval", ())]
            row.append(" to ".join(ends))
        stress = line.get("stress", {})
        row += [number(stress.get(key), percent) for key in stresses]

        # Methods beside the operators have no width and no learning rate.
        size = state["sizes"].get(line["operator"], {})
        rate = ""
        if line["lr"] is not None:
            rate = f"{line['lr']:.2g}"
        row += [
            str(line["seeds"]),
            str(size.get("dim", "")),
            rate,
        ]
        rows.append(row)
    return Table(head, rows)


def rungs_table(state: State) -> Table:
    """Return the table of all contenders: the best score of each in each rung."""
    rungs = state["rungs"]
    best = min
    if state["higher"]:
        best = max
    head = ["", "width", "parameters", "ms per step"]
    for place, rung in enumerate(rungs, 1):
        head.append(f"rung {place}, up to {max(rung['steps'].values()):,} steps")

    rows = []
    for label, size in state["sizes"].items():
        if "refused" in size:
            rows.append([label, "does not serve", *[""] * (len(head) - 2)])
            continue
        row = [
            label,
            str(size["dim"]),
            f"{size['parameters']:,}",
            readable(1e3 * size["step"], 3),
        ]
        for rung in rungs:
            scores = []
            for trial in rung["rows"]:
                if trial["operator"] == label and "error" not in trial:
                    scores.append(trial["val"]["score"])
            cell = "–"
            if scores:
                cell = number(best(scores), state["percent"])
            row.append(cell)
        rows.append(row)
    return Table(head, rows)


def to_markdown(state: State) -> str:
    """Return the recommendation, the finalists, and all contenders as Markdown."""
    lines = [f"{heading + ':':<22}{text}" for heading, text in recommendation(state)]
    parts = [f"**{state['name']}**: {facts(state)}", "\n".join(lines)]
    parts += [_markdown(finals_table(state)), _markdown(rungs_table(state))]
    parts += [f"{label}: {why}" for label, why in left_out(state).items()]
    return "\n\n".join(parts) + "\n"


def _markdown(table: Table) -> str:
    lines = [
        f"| {' | '.join(table.head)} |",
        "|---" * len(table.head) + "|",
    ]
    for row in table.rows:
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def left_out(state: Mapping[str, Any]) -> dict[str, str]:
    """Return which contenders were not tried, or failed in every trial, and why."""
    refused = {k: v["refused"] for k, v in state["sizes"].items() if "refused" in v}
    left = {title(name): why for name, why in state.get("left_out", {}).items()}
    tried = [row for rung in state["rungs"] for row in rung.get("rows", ())]
    done = {row["operator"] for row in tried if "error" not in row}
    failed = {
        row["operator"]: f"failed: {row['error']}" for row in tried if row["operator"] not in done
    }
    return refused | left | failed


def facts(state: State) -> str:
    """Return a line about what was compared on which samples."""
    counts = state["samples"]
    judged = f"{counts['val']:,} to validate"
    if state["folds"] > 1:
        judged = f"validated on up to {state['folds']} folds"
    time = f"{state['spent'] / 60:.1f} of {state['setting']['minutes']:g} min"
    return f"{state['kind']}, {counts['train']:,} to train, {judged}; {time}"


def write(place: Path, state: State) -> None:
    """Write ``choice.md`` and ``index.html`` beside ``choice.json``."""
    write_text(place / "choice.md", to_markdown(state))
    page = choice_page(
        state,
        facts(state),
        recommendation(state),
        finals_table(state),
        rungs_table(state),
        left_out(state),
    )
    write_text(place / "index.html", page)
