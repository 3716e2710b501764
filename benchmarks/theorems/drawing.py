"""Pictures and numbers of the committed results."""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fredholm.explain.style import DPI, LIGHT, Theme, settings

ROOT = Path(__file__).parents[2]
RESULTS, IMAGES = ROOT / "docs" / "results", ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "unification.md"


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Exponent b of y = a·x^b, by least squares of the logarithms."""
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    return statistics.linear_regression(a, b).slope


def summary(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation over seeds."""
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values)}


def save_numbers(found: Any, path: Path) -> None:
    """JSON with six significant digits."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: short(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [short(v) for v in value]
        return float(f"{value:.6g}") if isinstance(value, float) else value

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(short(found), indent=1) + "\n", encoding="utf-8")


def save_picture(draw: Callable[[Theme], Any], path: Path) -> None:
    """PNG on white paper: a page of documentation may be read in the dark."""
    import matplotlib

    with matplotlib.rc_context(settings(LIGHT) | {"savefig.facecolor": LIGHT.paper}):
        buffer = io.BytesIO()
        draw(LIGHT).savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())


def insert(text: str, name: str, block: str) -> str:
    """A page with a written block between its markers.

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
        raise ValueError(f"the page has no markers {start} ... {end}")
    return f"{before}{start}{line}\n\n{block}\n\n{end}{after}"


def write_block(page: Path, name: str, block: str) -> None:
    """:func:`insert`, in a file."""
    page.write_text(insert(page.read_text(encoding="utf-8"), name, block), encoding="utf-8")


def band(
    axes: Any,
    x: Sequence[float],
    points: Sequence[dict[str, float]],
    colour: str,
    label: str,
    **style: Any,
):
    """Mean over seeds with one standard deviation around it; on a logarithmic axis the band may
    leave the picture below.
    """
    low = [max(p["mean"] - p["sd"], 1e-3 * p["mean"]) for p in points]
    high = [p["mean"] + p["sd"] for p in points]
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(x, [p["mean"] for p in points], color=colour, label=label, **style)


def logarithmic(axes: Any) -> None:
    """A logarithmic vertical axis as low as the lines go, not the bands."""
    values = [v for line in axes.lines for v in line.get_ydata() if v > 0]
    axes.set_yscale("log")
    axes.set_ylim(min(values) / 8, max(values) * 2)
    axes.grid(axis="y")
    axes.legend(fontsize=7)
