"""Pages, tables and pictures of the committed results, and the folders of all of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fredholm.files import write_text

from .statistics import in_two_groups, summarise

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "evidence" / "results"
DOCS = ROOT / "docs"
PAGES = DOCS / "results"
IMAGES = DOCS / "images"

# --- numbers --------------------------------------------------------------------------------------


def load(name: str, folder: Path = RESULTS) -> Any:
    """Read a file of results; return None if nothing was measured yet."""
    path = folder / name
    if not path.is_file():
        return None
    return json.loads(path.read_text(encoding="utf-8"))


def save(value: Any, name: str, folder: Path = RESULTS) -> Path:
    """Write a file of results atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    path = write_text(folder / name, json.dumps(value, indent=1) + "\n")
    print(f"written to {path}", flush=True)
    return path


def rounded(value: Any) -> Any:
    """Round the floats of plain data to six significant digits.

    Example:
        >>> rounded({"a": [1.23456789, 2]})
        {'a': [1.23457, 2]}
    """
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value


# --- text -----------------------------------------------------------------------------------------


def head(title: str, name: str, *files: str) -> str:
    """Return the title and the first comment of a generated page."""
    sources = " and ".join(f"evidence/results/{file}" for file in files)
    note = (
        f"Written by `python -m evidence page {name}` from {sources}; edit the code, not this page."
    )
    return f"# {title}\n\n<!-- {note} -->\n\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format a Markdown table.

    Example:
        >>> print(table(("a", "b"), [(1, 2)]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines)


def listed(values: Iterable[Any]) -> str:
    """Return values as a list in a sentence.

    Example:
        >>> listed((8, 12, 20)), listed(("egnn",))
        ('8, 12 and 20', 'egnn')
    """
    *most, last = map(str, values)
    if not most:
        return last
    return f"{', '.join(most)} and {last}"


def at_an_end(chosen: Mapping[str, Any], tried: Mapping[str, Sequence[Any]]) -> str:
    """Say which models chose the first or the last of the settings that were tried for them.

    Args:
        chosen: the setting of each model.
        tried: its settings, in their order. A model without a choice is left out.

    Example:
        >>> at_an_end({"a": 0.1, "b": 0.3}, {"a": (0.1, 0.2), "b": (0.1, 0.3, 1.0)})
        'The first or the last of the tried settings was best, so that better ones may lie beyond them, for: a.'
    """
    choosing = [name for name in chosen if len(tried.get(name, ())) > 1]
    ends = [name for name in choosing if chosen[name] in (tried[name][0], tried[name][-1])]
    if not ends:
        return ""
    who = "all models" if len(ends) == len(choosing) else "; ".join(ends)
    return (
        "The first or the last of the tried settings was best, so that better ones may lie beyond "
        f"them, for: {who}."
    )


def spread(values: Iterable[float], scale: float = 100.0, digits: int = 1) -> str:
    """Format mean ± sample standard deviation, by default of shares in percent.

    Where the seeds fall into two groups far apart, the mean describes neither, so all values follow
    in brackets.

    Example:
        >>> spread([0.5, 0.6]), spread([0.4]), spread([])
        ('55.0 ± 7.1', '40.0', 'not run')
        >>> spread([0.1, 0.9, 0.1, 0.9])
        '50.0 ± 46.2 (10.0, 90.0, 10.0, 90.0)'
    """
    seeds = list(values)
    found = summarise(seeds)
    if found is None:
        return "not run"
    mean = f"{scale * found.mean:.{digits}f}"
    if found.sd is None:
        return mean

    text = f"{mean} ± {scale * found.sd:.{digits}f}"
    if in_two_groups(seeds):
        each = ", ".join(f"{scale * value:.{digits}f}" for value in seeds)
        text += f" ({each})"
    return text


def insert(text: str, name: str, block: str) -> str:
    """Replace the generated block between two markers of a page.

    Example:
        >>> insert("a\\n<!-- x: written -->\\nold\\n<!-- end of x -->\\nb", "x", "new").split("\\n")[2:-2]
        ['', 'new', '']

    Raises:
        ValueError: the page has no such markers.
    """
    start, end = f"<!-- {name}: written", f"<!-- end of {name} -->"
    before, found, rest = text.partition(start)
    line, _, rest = rest.partition("\n")
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"expected the markers {start} ... {end} in the page, got none; add both")
    return f"{before}{start}{line}\n\n{block}\n\n{end}{after}"


def with_block(page: Path, name: str, block: str) -> str:
    """Return the text of a page with a new block, see :func:`insert`."""
    return insert(page.read_text(encoding="utf-8"), name, block)


# --- pictures -------------------------------------------------------------------------------------


def save_picture(draw: Callable[[Any], Any], path: Path, **options: Any) -> None:
    """Save the figure of ``draw(theme)`` as PNG on white paper.

    The background isn't transparent because a page may be shown in a dark theme.
    """
    import matplotlib

    from fredholm.lab.report.style import DPI, LIGHT, settings

    with matplotlib.rc_context(settings(LIGHT) | {"savefig.facecolor": LIGHT.paper}):  # type: ignore[arg-type]
        buffer = io.BytesIO()
        options = {"dpi": DPI, "metadata": {"Software": None}} | options
        draw(LIGHT).savefig(buffer, format="png", **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())
    print(f"drawn: {path}", flush=True)


def band(
    axes: Any, x: Sequence[float], points: Sequence[Any], colour: str, label: str, **style: Any
):
    """Draw the mean over seeds and a band of one standard deviation around it."""
    # A logarithmic axis cannot show zero or less; the band then leaves the picture at the bottom.
    low = [max(p["mean"] - p["sd"], 1e-3 * p["mean"]) for p in points]
    high = [p["mean"] + p["sd"] for p in points]
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(x, [p["mean"] for p in points], color=colour, label=label, **style)


def logarithmic(axes: Any) -> None:
    """Make the vertical axis logarithmic, with limits from the lines and not the bands."""
    values = [v for line in axes.lines for v in line.get_ydata() if v > 0]
    axes.set_yscale("log")
    axes.set_ylim(min(values) / 8, max(values) * 2)
    axes.grid(axis="y")
    axes.legend(fontsize=7)
