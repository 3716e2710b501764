"""The recommendation and the tables of a search, in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...files import write_text
from ..data.kinds.sequences import TABLES
from .plain import TITLES


def number(value: float | None, percent: bool) -> str:
    """A share in percent, or another number with three digits.

    Example:
        >>> number(0.4567, True), number(0.4567, False), number(None, True)
        ('45.7%', '0.457', '')
    """
    if value is None:
        return ""
    return f"{100 * value:.1f}%" if percent else f"{value:.3g}"


def score(line: dict[str, Any], percent: bool) -> str:
    """Mean ± sample standard deviation."""
    sd = "" if line["sd"] is None else f" ± {number(line['sd'], percent).removesuffix('%')}"
    return f"{number(line['test'], percent).removesuffix('%')}{sd}{'%' if percent else ''}"


def said(name: str) -> str:
    """A contender's name, of methods beside the operators what they are."""
    return TITLES.get(name, name)


def recommendation(state: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the recommendation of a search as (heading, text) pairs, as a page lists them.

    In this order, each where there is something to say: the pick and its test score, ties, the
    runner-up and how sure the choice is, the best operator if it is neither, the cost of longer
    samples, a training cut short, scores with lost samples, and the commands that predict and
    train.

    Args:
        state: of a search that has ended; its ``verdict`` is that of :func:`.verdict.conclude`
            with the commands ``train`` and, for a pick that is not an operator, ``predict``.
    """
    verdict, percent = state["verdict"], state["percent"]
    lines = {line["operator"]: line for line in verdict["table"]}

    pick = lines[verdict["pick"]]
    seeds = f"{pick['seeds']} seed{'s' * (pick['seeds'] > 1)}"
    reached = f"test {state['measure']} {score(pick, percent)} ({seeds}{_spread(pick)})"
    result = [("recommended", f"{said(verdict['pick'])}: {reached}")]

    if "ties" in verdict:
        others = " and ".join(said(name) for name in verdict["ties"])
        times = f"{pick['seconds']:.2g} s against {_seconds(verdict['ties'], lines)}"
        near = "at most one validation sample apart" if percent else "equal on validation"
        result.append(("tie", f"{others} and it are {near}; it trains faster: {times}"))

    # Of a pretrained start with linear attention: how well that imitates softmax attention.
    if verdict["pick"] in state.get("learnt", {}):
        result.append(("its attention", state["learnt"][verdict["pick"]]))
    if "runner_up" in verdict:
        second = lines[verdict["runner_up"]]
        result.append(("runner-up", f"{said(verdict['runner_up'])}: {score(second, percent)}"))
        result.append(("how sure", _sure(verdict, state)))
    if verdict["operator"] not in (None, verdict["pick"], verdict.get("runner_up")):
        best = lines[verdict["operator"]]
        result.append(("best operator", f"{verdict['operator']}: {score(best, percent)}"))

    # The rows of a table cannot grow longer: their columns are fixed.
    if verdict["operator"] in state.get("growth", {}) and state["kind"] != TABLES.many:
        result.append(("ten times the length", _growth(verdict["operator"], state)))

    short = _short(state)
    if short:
        result.append(("trained for", short))
    if "stress" in pick:
        parts = [f"{name}: {number(v, percent)}" for name, v in pick["stress"].items()]
        result.append(("lost samples", "; ".join(parts)))
    if "predict" in verdict:
        result.append(("predict", f"{verdict['predict']} (fitted to {verdict['fitted']})"))
    if verdict["train"]:
        result.append(("train in full", verdict["train"]))
    return result


def _spread(line: dict[str, Any]) -> str:
    """The interval of a share over the test samples, which is none at 100% ± 0%."""
    if "interval" not in line:
        return ""
    low, high = (number(end, True) for end in line["interval"])
    return f"; 95% interval {low} to {high} over {line['samples']:,} test samples"


def _seconds(names: list[str], lines: dict[str, dict[str, Any]]) -> str:
    return " and ".join(f"{lines[name]['seconds']:.2g} s" for name in names)


def _sure(verdict: dict[str, Any], state: dict[str, Any]) -> str:
    found, percent = verdict["difference"], state["percent"]
    parts, alike = [], ""
    for key, count, what in (
        ("over_seeds", found["seeds"], "seeds"),
        ("over_samples", found["samples"], "test samples"),
    ):
        part = found[key]
        if part is None:
            continue
        if part[1] == part[2]:  # no spread is no certainty
            alike = f"; the same with all {count} {what}"
            continue
        low, high = (_signed(value, percent) for value in part[1:])
        parts.append(f"{low} to {high} over {count:,} {what}")
    if not parts and not alike:
        return "one seed: not known"
    mean = _signed((found["over_seeds"] or found["over_samples"])[0], percent)
    intervals = f", 95% intervals {', '.join(parts)}" if parts else ""
    return f"{_word(verdict)}; difference on the test {mean}{intervals}{alike}"


def _word(verdict: dict[str, Any]) -> str:
    """How sure, in a word."""
    seeds, samples = (verdict["difference"][key] for key in ("over_seeds", "over_samples"))
    if verdict["sure"]:
        return "sure"
    known = [part for part in (seeds, samples) if part is not None]
    if all(part[2] < 0 for part in known):
        return "no: on the test the runner-up is better"
    if seeds is None and samples[1] > 0:
        return "better on the test samples, but one seed does not tell trainings apart"
    return "the two are not told apart"


def _short(state: dict[str, Any]) -> str | None:
    """That the finalists had much less than a whole training, where they had."""
    steps, full = state["finals"]["steps"].values(), state["full_steps"]
    if not steps or min(steps) >= full / 2:
        return None
    span = f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,} to {max(steps):,}"
    return f"{span} of the {full:,} steps of a whole training; more minutes may change the order"


def _signed(value: float, percent: bool) -> str:
    return f"{100 * value:+.1f}" if percent else f"{value:+.2g}"


def _growth(label: str, state: dict[str, Any]) -> str:
    found = state["growth"][label]
    if "refused" in found:
        return f"{label}: not measured: {found['refused']}"
    ratio = found["then"] / found["seconds"]
    how = "measured" if found["measured"] else "extrapolated from N and 2 N"
    return (
        f"{label} takes {ratio:.1f} times as long on {10 * found['points']:,} points as on "
        f"{found['points']:,} ({how})"
    )


def finals_table(state: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the finalists."""
    percent, rows = state["percent"], []
    lines = state["verdict"]["table"]
    stresses = list(next((line["stress"] for line in lines if "stress" in line), {}))
    shares = any("interval" in line for line in lines)
    intervals = ["95% interval"] if shares else []
    head = ["", "validation", f"test {state['measure']}", *intervals, *stresses]
    head += ["seeds", "width", "lr"]
    for line in lines:
        size = state["sizes"].get(line["operator"], {})
        row = [said(line["operator"]), number(line["val"], percent), score(line, percent)]
        if shares:
            ends = [number(end, True) for end in line.get("interval", ())]
            row.append(" to ".join(ends))
        row += [number(line.get("stress", {}).get(key), percent) for key in stresses]
        row += [str(line["seeds"]), str(size.get("dim", ""))]
        rows.append([*row, "" if line["lr"] is None else f"{line['lr']:.2g}"])
    return head, rows


def rungs_table(state: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of all contenders: the best of each rung, and what became of it."""
    percent, sign = state["percent"], 1 if state["higher"] else -1
    rungs = state["rungs"]
    head = ["", "width", "parameters", "ms a step"]
    for number_, rung in enumerate(rungs, 1):
        head.append(f"rung {number_}, up to {max(rung['steps'].values()):,} steps")
    rows = []
    for label, size in state["sizes"].items():
        if "refused" in size:
            rows.append([label, "does not serve", *[""] * (len(head) - 2)])
            continue
        row = [label, str(size["dim"]), f"{size['parameters']:,}", f"{1e3 * size['step']:.1f}"]
        for rung in rungs:
            mine = [r for r in rung["rows"] if r["operator"] == label and "error" not in r]
            values = [r["val"]["score"] for r in mine]
            row.append(number(max(values, key=lambda v: sign * v), percent) if values else "–")
        rows.append(row)
    return head, rows


def to_markdown(state: dict[str, Any]) -> str:
    """The recommendation, the finalists, and all contenders."""
    parts = [f"**{state['name']}**: {facts(state)}"]
    parts.append("\n".join(f"{name + ':':<22}{text}" for name, text in recommendation(state)))
    parts += [_table(*finals_table(state)), _table(*rungs_table(state))]
    parts += [f"{label}: {why}" for label, why in left_out(state).items()]
    return "\n\n".join(parts) + "\n"


def left_out(state: Mapping[str, Any]) -> dict[str, str]:
    """Which contenders were not tried, and why."""
    refused = {k: v["refused"] for k, v in state["sizes"].items() if "refused" in v}
    return refused | {said(name): why for name, why in state.get("left_out", {}).items()}


def facts(state: dict[str, Any]) -> str:
    """What was compared on what, in a line."""
    counts = state["samples"]
    judged = f"{counts['val']:,} to validate"
    if state["folds"] > 1:
        judged = f"validated on {state['folds']} parts in turn"
    return (
        f"{state['kind']}, {counts['train']:,} to train, {judged}; {state['spent'] / 60:.1f} of "
        f"{state['setting']['minutes']:g} minutes"
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def write(place: Path, state: dict[str, Any]) -> None:
    """``choice.md`` and ``index.html`` beside ``choice.json``."""
    from ..report.comparison import choice_page

    write_text(place / "choice.md", to_markdown(state))
    named = [(name, text) for name, text in recommendation(state)]
    tables = finals_table(state), rungs_table(state)
    page = choice_page(state, facts(state), named, *tables, left_out(state))
    write_text(place / "index.html", page)
