"""History of the ratios that ``check`` compares, per commit and machine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from .check import Rows
from .machine import describe
from .page import IMAGES, RESULTS, ROOT, load, rounded, save, table

FILE = "history.json"


def record(subject: str, rows: Rows, folder: Path = RESULTS) -> None:
    """Add the ratios of ``rows`` under this commit and machine.

    A second measurement of the same commit on the same machine replaces the first.
    """
    machine = describe()
    entry = {
        "subject": subject,
        "commit": commit(),
        "machine": f"{machine['processor']}, {machine['threads']} threads",
        "ratios": rounded({name(row): row["ratio"] for row in rows}),
    }
    identity = ("subject", "commit", "machine")
    others = []
    for old in load(FILE, folder) or []:
        if any(old[key] != entry[key] for key in identity):
            others.append(old)
    save([*others, entry], FILE, folder)


def name(row: dict[str, Any]) -> str:
    """Return a row's name in the history.

    Example:
        >>> name({"case": "softmax N=8", "way": "call", "ratio": 1.0})
        'softmax N=8: call'
    """
    return f"{row['case']}: {row['way']}"


def commit() -> str:
    """Return the commit that is checked out, with a ``+`` if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def entries(subject: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the entries of one subject, oldest first."""
    return [entry for entry in load(FILE, folder) or [] if entry["subject"] == subject]


def history_table(subject: str, cases: dict[str, str]) -> str:
    """Return a table with one row per commit and machine.

    Args:
        subject: name of the subject.
        cases: a column's title to the :func:`name` of its rows.
    """
    rows = []
    for entry in entries(subject):
        cells = [_shown(entry["ratios"].get(case)) for case in cases.values()]
        rows.append((entry["commit"], entry["machine"], *cells))
    if not rows:
        return "Not measured yet."
    return table(("commit", "machine", *cases), rows)


def _shown(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}"


def draw(subject: str, cases: dict[str, str], ylabel: str, path: str) -> None:
    """Draw one line per case over the commits, into docs/images."""
    known = entries(subject)
    if not known:
        return
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": path, "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
        places = range(len(known))
        for index, (title, case) in enumerate(cases.items()):
            heights = [entry["ratios"].get(case, float("nan")) for entry in known]
            marker = "osD^vP*X"[index % 8]
            axes.plot(places, heights, marker=marker, markersize=5, linewidth=0.8, label=title)
        axes.set_xticks(list(places), [entry["commit"] for entry in known], rotation=45)
        axes.set(ylabel=ylabel, yscale="log")
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        axes.grid(alpha=0.3)
        figure.savefig(IMAGES / path, metadata={"Date": None})
        pyplot.close(figure)
