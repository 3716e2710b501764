"""``python -m benchmarks.ckconv_report``: docs/results/ckconv.md and its picture from the committed
results: no number is typed by hand.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from fredholm.explain.style import LIGHT, WIDTH, new_figure, settings

from .ckconv_evidence import RESULTS, SECTIONS, SMALL
from .ckconv_kernels import NETWORKS, TARGETS, target
from .ckconv_kernels import RESULTS as KERNELS
from .ckconv_series import DATA
from .ckconv_series import table as series_table
from .continuous_report import spread
from .report import machine_line
from .sections import read

FOLDER = RESULTS.parent
SPEED, PICTURE = FOLDER / "ckconv-speed.json", FOLDER / "ckconv-kernels.png"
PAGE = FOLDER / "ckconv.md"
HEAD = """# Results: continuous kernel convolution

<!-- Written by `python -m benchmarks.ckconv_report` from docs/results/ckconv*.json; edit the script, not this page. -->

Trained on one thread of a 2-core machine that other work shared. What is not in a table was not run.
"""
SERIES_TEXT = """
## Lost observations and other rates

Everything the same but the model; the last epoch's test accuracy in percent, mean ± sample standard deviation over
seeds where there are several. *Timestamps*: lost observations are left out and the rest keep their times, evaluated
pair by pair; *gaps*: they stay as points without value on the grid, whose time their neighbours stand for, the same
integral by FFT. The GRU and the TCN read values, presence and the time since the last sample. *Rate 1/1 → 1/2*:
trained on all samples, tested on every other.
"""
SERIES_DATA = {
    "japanese-vowels": "JapaneseVowels: 270 series to train on, 370 to test (a standard error of "
    "about 0.9 points by their "
    "number alone), lengths 7 to 29.",
    "plaid": "PLAID, electric current of 11 kinds of appliances: 537 series to train on, 537 to "
    "test (about 2 points), every "
    "eighth sample taken as all of them, up to 168, each series on its own scale.",
}
RECIPES_TEXT = """
## The other recipes, cut short

Few epochs, and of most a part of the data, one seed: not what they reach in full, which takes hours.

"""
KERNELS_TEXT = """
## Which activation can draw which kernel

A network of two hidden layers of 32 units is fitted to {points} points of functions on [-1, 1] of variance 1
({steps:,} steps of Adam, all points at once); the share of the variance that it could not draw, geometric mean over
{seeds} seeds. `python -m benchmarks.ckconv_kernels`

"""


def load(path: Path) -> Any:
    """A committed result file."""
    return json.loads(path.read_text(encoding="utf-8"))


def rows_of(name: str) -> dict[str, list[dict[str, Any]]]:
    """The runs of a section by variant, in the section's order."""
    found = read(RESULTS).get(name, [])
    return {
        v: rows
        for v in SECTIONS[name].variants
        if (rows := [row for row in found if row["variant"] == v])
    }


def memory_tables() -> str:
    """Copy memory and the adding problem."""
    lines = [
        "| task | overrides of the recipe | on the test split | seeds | parameters | epochs | "
        "minutes | the paper |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, paper in (("copy", "100%"), ("adding", "≤ 1e-4")):
        for variant, rows in rows_of(name).items():
            if name == "copy":
                score = f"{spread([row['accuracy'] for row in rows], digits=3)}% of the points"
            else:
                score = f"loss {statistics.mean(row['loss'] for row in rows):.2e}"
            cells = (
                f"{SECTIONS[name].title}, {variant}",
                f"`{' '.join(rows[0]['overrides'])}`",
                score,
                len(rows),
                f"{rows[0]['parameters']:,}",
                rows[0]["epochs"],
                f"{statistics.mean(row['minutes'] for row in rows):.1f}",
                paper,
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def accuracy_table(name: str) -> str:
    """A section of accuracies."""
    lines = [
        "| variant | test accuracy (%) | seeds | parameters | epochs |",
        "|---|---|---|---|---|",
    ]
    for variant, rows in rows_of(name).items():
        score = spread([row["accuracy"] for row in rows])
        lines.append(
            f"| {variant} | {score} | {len(rows)} | {rows[0]['parameters']:,} | "
            f"{rows[0]['epochs']} |"
        )
    return "\n".join(lines)


def recipe_table() -> str:
    """The other recipes, cut short."""
    lines = ["| command | on the test split | parameters | minutes |", "|---|---|---|---|"]
    for recipe in SMALL:
        for row in rows_of(recipe).get("small", []):
            score = (
                f"{row['bits']:.3f} bits a token"
                if "bits" in row
                else f"{100 * row['accuracy']:.1f}%"
            )
            command = f"`fredholm train {' '.join([recipe, *row['overrides']])}`"
            lines.append(f"| {command} | {score} | {row['parameters']:,} | {row['minutes']:.1f} |")
    return "\n".join(lines)


def kernel_table(rows: list[dict[str, Any]]) -> str:
    """What each network leaves of each function."""
    lines = [f"| network | {' | '.join(TARGETS)} |", "|---|" + "---|" * len(TARGETS)]
    for network in NETWORKS:
        cells = []
        for name in TARGETS:
            errors = [
                row["error"] for row in rows if row["network"] == network and row["target"] == name
            ]
            cells.append(f"{statistics.geometric_mean(errors):.1e}" if errors else "")
        if any(cells):
            lines.append(f"| {network} | {' | '.join(cells)} |")
    return "\n".join(lines)


def kernel_picture(rows: list[dict[str, Any]], path: Path = PICTURE) -> None:
    """Every function, and what a sine, a rectified and a smooth network drew of it."""
    shown = ("sine, omega 30", "relu, knots uniform", "silu, knots uniform")
    with rc_context(settings(LIGHT)):
        figure = new_figure(WIDTH, 1.3 * len(TARGETS))
        panels = figure.subplots(len(TARGETS), len(shown), sharex=True, squeeze=False)
        for line, name in zip(panels, TARGETS):
            z, y = target(name)
            for axes, network in zip(line, shown):
                axes.plot(z[:, 0], y[:, 0], color=LIGHT.faint, linewidth=2.0)
                for row in rows:
                    if (row["target"], row["network"]) == (name, network) and "drawn" in row:
                        axes.plot(z[:, 0], row["drawn"], color=LIGHT.series[0], linewidth=0.9)
                axes.set_yticks([])
                if name == next(iter(TARGETS)):
                    axes.set_title(network)
            line[0].set_ylabel(name)
        figure.savefig(path, dpi=110)


def speed_section(found: dict[str, Any]) -> str:
    """Times of a step against other ways, and memory."""
    lines = [
        "",
        "## Speed and memory",
        "",
        f"{machine_line(found['machine'])} Forward and backward, medians of alternated runs whose "
        "answers and gradients agree: "
        "`python -m benchmarks.ckconv --out docs/results/ckconv-speed.json`.",
        "",
        "| case | hidden units first, ms | other way | ms | ratio |",
        "|---|---|---|---|---|",
    ]
    cases: dict[str, list[dict[str, Any]]] = {}
    for row in found["cases"]:
        cases.setdefault(row["case"], []).append(row)
    for first, other in cases.values():
        times = f"{first['milliseconds']:.1f} | {other['way']} | {other['milliseconds']:.1f}"
        lines.append(
            f"| {first['note']} | {times} | {other['milliseconds'] / first['milliseconds']:.2f} |"
        )
    lines += [
        "",
        "| samples | a layer's step, MB above a short one | seconds a batch of 32, 98k network |",
        "|---|---|---|",
    ]
    lines += [
        f"| {row['n']:,} | {row['megabytes']:.0f} | {row['seconds']:.1f} |"
        for row in found["memory"]
    ]
    lines += ["", f"Memory grows as N to the power {found['exponent']:.2f}.", ""]
    return "\n".join(lines)


def claims() -> str:
    """The paper's claims, judged by the rows that are there."""
    copy = {v: rows[0]["accuracy"] for v, rows in rows_of("copy").items()}
    adding = {v: rows[0]["loss"] for v, rows in rows_of("adding").items()}
    solved = lengths(list(copy), [v for v, a in copy.items() if a >= 0.9999])
    added = lengths(list(adding), [v for v, loss in adding.items() if loss <= 1e-4])
    lines = [
        "",
        "## The paper's claims",
        "",
        "| claim | here |",
        "|---|---|",
        f"| copy memory solved at every length | {solved} |",
        f"| adding problem below 1e-4 at every length | {added} |",
    ]
    if KERNELS.is_file():
        lines.append(
            f"| only sine fits all kernels (Figs. 4, 7) | {kernel_verdict(load(KERNELS))} |"
        )
    lines += [
        "| sine kernels far ahead of ReLU, LeakyReLU and Swish: 99.3 and 98.0 over at most 85.2 "
        "and 61.8 (Table 6) "
        f"| {activation_verdict()} |",
        "| at one size more blocks gain nothing: 99.21, 99.19, 99.12 for 2, 4, 8 (Table 7) | "
        f"{blocks_verdict()} |",
        f"| resolution changes cost little (Table 5) | {drops((0.0, 1, 1), (0.0, 1, 2))}; the "
        "paper's data are the user's to bring |",
        f"| missing data costs little (Table 4) | {drops((0.0, 1, 1), (0.7, 1, 1))} |",
        "| sMNIST, pMNIST, sCIFAR-10 at the small network: 99.31, 98.00, 62.25 (Table 1) | "
        f"{short_verdict()} |",
        "| speech, sepsis, Penn Treebank (Tables 2 to 4) | not testable here: no data to fetch; "
        "loaders read the official files |",
        "| sizes of the networks (Table 8) | equal, to the parameter |",
        "",
    ]
    return "\n".join(lines)


def short_verdict() -> str:
    """What the recipes of the paper's Table 1 reach when cut short."""
    found = {
        r: rows_of(r)["small"][0]
        for r in ("ckcnn-smnist", "ckcnn-pmnist", "ckcnn-scifar10")
        if rows_of(r)
    }
    reached = ", ".join(
        f"{100 * row['accuracy']:.1f} after {row['epochs']} epochs" for row in found.values()
    )
    return f"not run to the end, which takes hours on two cores: {reached or 'not measured yet'}, with the data of the table above"


def means(section: str) -> dict[str, float]:
    """Mean test accuracy of a section's variants, in percent."""
    return {
        v: 100 * statistics.mean(row["accuracy"] for row in rows)
        for v, rows in rows_of(section).items()
    }


def activation_verdict() -> str:
    """Sine against the best of the piecewise linear and smooth activations, which the paper
    compares, and random Fourier features.
    """
    found, ahead = [], []
    for name in ("activation", "activation permuted"):
        scores = means(name)
        others = {v: score for v, score in scores.items() if v not in ("sine", "rff")}
        if "sine" not in scores or not others:
            return "not measured yet"
        best = max(others, key=lambda v: others[v])
        ahead.append(scores["sine"] > others[best] + 5)
        more = f"; random Fourier features {scores['rff']:.1f}" if "rff" in scores else ""
        found.append(f"{scores['sine']:.1f} over {others[best]:.1f} ({best}){more}")
    word = "reproduced on digits" if all(ahead) else "not reproduced on digits"
    return f"{word}: pixel by pixel {found[0]}; permuted {found[1]}"


def blocks_verdict() -> str:
    """Whether the fewest blocks are no worse than more."""
    scores = means("blocks")
    if len(scores) < 2:
        return "not measured yet"
    first, *more = scores.values()
    word = "reproduced" if first >= max(more) else "not reproduced"
    return f"{word} on digits: {', '.join(f'{score:.1f}' for score in scores.values())} for {', '.join(scores)}"


def drops(before: tuple[float, int, int], after: tuple[float, int, int]) -> str:
    """Points each model loses from one condition (lost, trained, tested) to another, seed by seed,
    and whether a CKCNN loses least.
    """
    parts, least = [], []
    for name, series in DATA.items():
        if not series.results.is_file():
            continue
        scores = {
            (r["model"], r["seed"], (r["drop"], r["trained"], r["tested"])): r["accuracy"]
            for r in load(series.results)
        }
        lost: dict[str, float] = {}
        for model in series.models:
            seeds = [
                s for m, s, c in scores if m == model and c == before and (m, s, after) in scores
            ]
            if seeds:
                lost[model] = statistics.mean(
                    scores[model, s, before] - scores[model, s, after] for s in seeds
                )
        if not lost:
            continue
        parts.append(f"{name}: " + ", ".join(f"{model} {100 * lost[model]:.1f}" for model in lost))
        least.append(min(lost, key=lambda model: lost[model]).startswith("ckcnn"))
    word = (
        "in kind: a CKCNN loses least"
        if all(least)
        else "in part"
        if any(least)
        else "no: another model loses least"
    )
    return f"{word}; points lost, {'; '.join(parts)}"


def lengths(run: list[str], met: list[str]) -> str:
    """What a claim about every length has come to."""
    if not run:
        return "not measured yet"
    return f"reproduced at {', '.join(met) or 'none'} of {', '.join(run)} run; T = 3000 and 6000 not run"


def kernel_verdict(rows: list[dict[str, Any]]) -> str:
    """Whether the sine network at omega 30 leaves less than every other kind on every function, and
    the worst of each.
    """

    def worst(kind: str) -> float:
        return max(row["error"] for row in rows if row["network"] == kind)

    sine, others = (
        worst("sine, omega 30"),
        {n: worst(n) for n in NETWORKS if not n.startswith("sine")},
    )
    best = min(others, key=lambda n: others[n])
    word = "reproduced" if sine < 0.01 and all(v > 0.05 for v in others.values()) else "in part"
    return f"{word}: the worst function leaves {sine:.1e} of its variance to sine (omega 30), {others[best]:.1e} to the next best ({best})"


def page() -> str:
    """The whole page."""
    memory = memory_tables() if rows_of("copy") or rows_of("adding") else "Not measured yet."
    parts = [
        HEAD,
        "\n## Long memory\n\n`python -m benchmarks.ckconv_evidence copy adding`\n\n",
        memory,
    ]
    parts.append(
        "\n\nAccuracy is over all T + 20 points; answering zero everywhere gives (T + 10) / (T + "
        "20).\n"
        "For the adding problem a constant answer has the loss 1/6.\n"
    )
    parts.append(SERIES_TEXT)
    for name, series in DATA.items():
        if series.results.is_file():
            rows = load(series.results)
            command = f"`python -m benchmarks.ckconv_series {name} --epochs {rows[0]['epochs']}`"
            parts.append(f"\n{SERIES_DATA[name]} {command}\n\n{series_table(rows)}\n")
    for name in ("activation", "activation permuted", "blocks", "omega"):
        if rows_of(name):
            parts += [f"\n## {SECTIONS[name].title}\n\n"]
            parts += [
                f"`python -m benchmarks.ckconv_evidence {json.dumps(name)}`\n\n",
                accuracy_table(name),
                "\n",
            ]
    if any(rows_of(recipe) for recipe in SMALL):
        names = " ".join(recipe for recipe in SMALL if rows_of(recipe))
        parts += [
            RECIPES_TEXT,
            f"`python -m benchmarks.ckconv_evidence {names}`\n\n",
            recipe_table(),
            "\n",
        ]
    if KERNELS.is_file():
        rows = load(KERNELS)
        counts = {
            "points": len(target("step")[1]),
            "steps": rows[0]["steps"],
            "seeds": 1 + max(r["seed"] for r in rows),
        }
        parts += [KERNELS_TEXT.format(**counts), kernel_table(rows)]
        parts.append(
            f"\n\n![Functions in grey and what three networks drew of them]({PICTURE.name})\n"
        )
    if SPEED.is_file():
        parts.append(speed_section(load(SPEED)))
    return "".join([*parts, claims()])


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    if KERNELS.is_file():
        kernel_picture(load(KERNELS))
    print(f"{PAGE} written")


if __name__ == "__main__":
    main()
