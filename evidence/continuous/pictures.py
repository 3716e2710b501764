"""The pictures of docs/results/continuous-transformer.md."""

from __future__ import annotations

import statistics
from typing import Any

from fredholm.lab.report.style import WIDTH, new_figure

from ..kit.page import PAGES, load, save_picture
from .page import LABELS, Found, by_variant


def draw() -> None:
    """Draw docs/results/continuous-*.png."""
    found = load("continuous-transformer.json")
    runs, levels = by_variant(found), found["settings"]
    for name, picture in (
        ("steps", lambda theme: draw_steps(runs, theme)),
        ("monitors", lambda theme: draw_monitors(runs, theme)),
        ("noise", lambda theme: draw_noise(runs, levels, theme)),
    ):
        save_picture(picture, PAGES / f"continuous-{name}.png", dpi=130)


def draw_steps(runs: Found, theme: Any) -> Any:
    """Draw accuracy and error against the number of steps."""
    figure = new_figure(WIDTH, 3.3)
    left, right = figure.subplots(1, 2)
    for colour, (name, rows) in zip(theme.series, runs.items()):
        table = [row["steps"]["constant"] for row in rows]
        steps = [r["steps"] for r in table[0]]
        scores = [[one[i]["accuracy"] for one in table] for i in range(len(steps))]
        means = [statistics.mean(s) for s in scores]
        bars = [statistics.stdev(s) if len(s) > 1 else 0.0 for s in scores]
        left.errorbar(
            steps,
            means,
            bars,
            color=colour,
            marker="o",
            markersize=4,
            capsize=2,
            label=LABELS[name],
        )
        if "error" in table[0][0]:
            errors = [statistics.mean(one[i]["error"] for one in table) for i in range(len(steps))]
            right.loglog(steps, errors, color=colour, marker="o", markersize=4)
    left.set_xscale("log", base=2)
    right.set_xscale("log", base=2)
    left.axvline(4, color=theme.faint, linewidth=0.8, linestyle="--")
    for axes, title in (
        (left, "test accuracy; trained at 4 steps (dashed)"),
        (right, "relative error of u(T)"),
    ):
        axes.set_xticks(steps, [str(n) for n in steps])
        axes.minorticks_off()
        axes.set_xlabel("steps N of a forward pass")
        axes.set_title(title)
        axes.grid(axis="y")
    left.yaxis.set_major_formatter("{x:.0%}")
    _plain_ticks(right, (0.1, 0.2, 0.5, 1.0, 1.5))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def draw_monitors(runs: Found, theme: Any) -> Any:
    """Draw energy, distance and growth after each step.

    The numbers of steps are that of the training (solid) and four times as many (dotted).
    """
    figure = new_figure(WIDTH, 3.3)
    titles = {
        "energy": "energy ½‖u‖²",
        "distance": "distance to mean 0, sd 1",
        "growth": "growth of a difference",
    }
    # The distance may be zero and has a linear axis.
    ticks = {"energy": (0.03, 0.1, 0.3, 1.0, 3.0), "growth": (1.0, 2.0, 5.0, 10.0, 20.0)}
    for axes, (key, title) in zip(figure.subplots(1, 3), titles.items()):
        for colour, (name, rows) in zip(theme.series, runs.items()):
            for count, style in (("4", "-"), ("16", ":")):
                table = [row["monitors"][count] for row in rows]
                means = [statistics.mean(one[key][i] for one in table) for i in range(int(count))]
                label = LABELS[name] if key == "energy" and style == "-" else None
                axes.plot(
                    table[0]["time"],
                    means,
                    style,
                    color=colour,
                    marker="o",
                    markersize=2.5,
                    label=label,
                )
        axes.set_title(title)
        axes.set_xlabel("time t")
        if key in ticks:
            axes.set_yscale("log")
            _plain_ticks(axes, ticks[key])
        axes.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def draw_noise(runs: Found, levels: dict[str, Any], theme: Any) -> Any:
    """Draw accuracy against the level of noise."""
    from matplotlib.ticker import MultipleLocator

    figure = new_figure(WIDTH, 3.3)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, kind, known in (
        (left, "tokens", levels["dropped"]),
        (right, "features", levels["noise"]),
    ):
        for colour, (name, rows) in zip(theme.series, runs.items()):
            scores = [[row["accuracy"], *row["noise"][kind]] for row in rows]
            means = [statistics.mean(one[i] for one in scores) for i in range(len(known) + 1)]
            label = LABELS[name] if kind == "tokens" else None
            axes.plot([0, *known], means, color=colour, marker="o", markersize=4, label=label)
        axes.grid(axis="y")
    left.yaxis.set_major_locator(MultipleLocator(0.05))
    left.set_title("test accuracy")
    left.set_xlabel("share of words made unknown")
    right.set_xlabel("noise on u(0), in units of its root mean square")
    left.xaxis.set_major_formatter("{x:.0%}")
    left.yaxis.set_major_formatter("{x:.0%}")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _plain_ticks(axes: Any, values: tuple[float, ...]) -> None:
    """Label ticks of a logarithmic axis with plain numbers."""
    axes.set_yticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
