"""Ratios per commit and machine: what ``check`` compares, kept so that a page can draw it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from .check import Rows
from .machine import describe
from .page import IMAGES, RESULTS, ROOT, load, rounded, save, table

FILE = "history.json"


def record(subject: str, rows: Rows, folder: Path = RESULTS) -> None:
    """Add the ratios of ``rows`` under this commit and machine; a second measurement of the same
    commit on the same machine replaces the first.
    """
    machine = describe()
    entry = {
        "subject": subject,
        "commit": commit(),
        "machine": f"{machine['processor']}, {machine['threads']} threads",
        "ratios": rounded({name(row): row["ratio"] for row in rows}),
    }
    same = ("subject", "commit", "machine")
    kept = load(FILE, folder) or []
    kept = [old for old in kept if any(old[key] != entry[key] for key in same)]
    save([*kept, entry], FILE, folder)


def name(row: dict[str, Any]) -> str:
    """How a row is called in the history.

    Example:
        >>> name({"case": "softmax N=8", "way": "call", "ratio": 1.0})
        'softmax N=8: call'
    """
    return f"{row['case']}: {row['way']}"


def commit() -> str:
    """The commit that is checked out, with a ``+`` where files differ from it."""
    told = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(told, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def entries(subject: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """What is known of one subject, oldest first."""
    return [entry for entry in load(FILE, folder) or [] if entry["subject"] == subject]


def history_table(subject: str, cases: dict[str, str]) -> str:
    """A row per commit and machine; ``cases`` are the columns' titles and the rows' names."""
    rows = [
        (
            entry["commit"],
            entry["machine"],
            *(_shown(entry["ratios"].get(case)) for case in cases.values()),
        )
        for entry in entries(subject)
    ]
    return table(("commit", "machine", *cases), rows) if rows else "Not measured yet."


def _shown(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def draw(subject: str, cases: dict[str, str], ylabel: str, path: str) -> None:
    """A line per case over the commits, in docs/images."""
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
