"""docs/results/luna-kernel.md and its runtime curves."""

from __future__ import annotations

from typing import Any

from fredholm.lab.report.style import new_figure

from ..kit.page import IMAGES, head, load, save_picture
from ..kit.statistics import slope
from .speed import FILE as SPEED
from .speed import PEERS, exponent
from .theory import FILE as THEORY

COMMANDS = {"theory": "python -m evidence run luna", "speed": "python -m evidence time luna"}
ABOUT = "Theory measured, what the learned functions look like, and speed. [The guide](../luna.md) says what these things are.\n"


def sampling_slope(rows: list[dict[str, Any]], psi: str) -> float:
    """Of log error over log M."""
    mine = [row for row in rows if row["psi"] == psi]
    return slope((row["m"] for row in mine), (row["rms"] for row in mine))


def theory(found: dict[str, Any]) -> str:
    """Gram matrices, sampling error and error against hidden width."""
    grams = ", ".join(f"{name} {value:.0e}" for name, value in found["gram"].items())
    lines = [f"\n## Theory\n\n`{COMMANDS['theory']}`\n"]
    lines.append(
        "**Gram matrices** of 200 points are positive semi-definite whatever the map, learned or "
        "not: their smallest eigenvalue over\n"
        f"the largest, in float64, is {grams}.\n"
    )
    lines.append(
        "**Sampling.** The kernel of M directions drawn from N(0, I/d) against its expectation: W "
        "is drawn here, not learned, as in\n"
        "the proposition. Root mean square error over pairs and draws beside σ/√M, and the 95% "
        "quantile of the error:\n"
    )
    names = list(dict.fromkeys(row["psi"] for row in found["sampling"]))
    lines.append("| M | " + " | ".join(f"{name}: RMS | σ/√M | 95%" for name in names) + " |")
    lines.append("|---|" + "---|---|---|" * len(names))
    for m in dict.fromkeys(row["m"] for row in found["sampling"]):
        mine = [
            next(r for r in found["sampling"] if (r["psi"], r["m"]) == (name, m)) for name in names
        ]
        lines.append(
            f"| {m} | "
            + " | ".join(f"{r['rms']:.3f} | {r['theory']:.3f} | {r['q95']:.3f}" for r in mine)
            + " |"
        )
    slopes = ", ".join(f"{sampling_slope(found['sampling'], name):.2f} ({name})" for name in names)
    lines.append(f"\nSlope of log error over log M: {slopes}; the bounds say −0.5.\n")
    lines.append(
        "**Parametrisation.** Known functions on N(0, 1) by one scalar network, hidden units as "
        "LUNA draws them and the best readout:\n"
        "relative error against hidden width, median of 20 draws:\n"
    )
    targets = list(dict.fromkeys(row["target"] for row in found["width"]))
    lines += ["| hidden width | " + " | ".join(targets) + " |", "|---|" + "---|" * len(targets)]
    for hidden in dict.fromkeys(row["hidden"] for row in found["width"]):
        mine = [
            next(r for r in found["width"] if (r["target"], r["hidden"]) == (name, hidden))
            for name in targets
        ]
        lines.append(f"| {hidden} | " + " | ".join(f"{r['error']:.1e}" for r in mine) + " |")
    lines.append(
        "\n![Sampling error against M, fitting error against hidden "
        "width](../images/luna-theory.png)\n"
    )
    return "\n".join(lines)


def psi(found: dict[str, Any]) -> str:
    """Learned channels over their input."""
    facts = found["psi"]
    dead = ", ".join(f"{layer['dead']} in layer {i}" for i, layer in enumerate(facts["layers"], 1))
    return (
        f"\n## Learned ψ\n\nChannels of {facts['run']} over the histogram of the projections of "
        f"{facts['samples']} samples\n"
        "that training did not see, queries and keys. Channels that are zero on all of that "
        f"range: {dead}.\n\n"
        "![Learned channels over the histogram of their input](../images/luna-psi.png)\n"
    )


def maps(found: dict[str, Any]) -> str:
    """What class tokens read."""
    rows = [
        f"| {name} | {100 * row['digits']:.1f} | {100 * row['reviews']:.1f} |"
        for name, row in found["maps"].items()
    ]
    return (
        "\n## What a class token reads\n\nLast layer, mean over heads, of three small models "
        "(`itnet_nano`, width 32) that differ in\n"
        "their attention alone, one seed each; a pretrained model's maps before and after "
        "conversion are another matter. Validation\n"
        "accuracy in percent:\n\n| attention | digits | reviews |\n|---|---|---|\n"
        + "\n".join(rows)
        + "\n\n"
        "![Class token to patches and words under softmax, Hedgehog and "
        "LUNA](../images/luna-maps.png)\n"
    )


def speed(found: dict[str, Any]) -> str:
    """Runtime curves, the map, steps and memory."""
    machine, rows = found["machine"], found["curves"]
    lines = [
        f"\n## Speed and memory\n\n`{COMMANDS['speed']}`, {machine['processor']}, "
        f"{machine['threads']} threads,"
    ]
    lines.append(
        f"torch {machine['torch']}; batch 1, width {found['dim']}, {found['heads']} heads, 64 "
        "features a head. Medians.\n"
    )
    names, longest = (
        list(dict.fromkeys(row["layer"] for row in rows)),
        max(row["n"] for row in rows),
    )
    for backward, title in ((False, "Forward"), (True, "Forward and backward")):
        lengths = sorted({row["n"] for row in rows})
        lines += [
            f"{title}, ms:\n",
            "| layer | " + " | ".join(f"N = {n:,}" for n in lengths) + " | exponent |",
        ]
        lines.append("|---|" + "---|" * (len(lengths) + 1))
        for name in names:
            mine = {
                row["n"]: row["ms"]
                for row in rows
                if (row["layer"], row["backward"]) == (name, backward)
            }
            cells = " | ".join(f"{mine[n]:.1f}" if n in mine else "" for n in lengths)
            lines.append(f"| {name} | {cells} | {exponent(rows, name, backward):.2f} |")
        lines.append("")
    at = 16384 if any(row["n"] == 16384 for row in rows) else longest
    for backward, title in ((False, "forward"), (True, "forward and backward")):
        mine = {
            row["layer"]: row["ms"] for row in rows if (row["n"], row["backward"]) == (at, backward)
        }
        ratios = ", ".join(
            f"{mine['luna'] / mine[name]:.2f} of {name}"
            for name in mine
            if not name.startswith("luna")
        )
        lines.append(f"LUNA's time at N = {at:,}, {title}: {ratios}.")
    lines.append("\n![Time against N](../images/luna-runtime.png)\n")
    lines += [
        f"The map at {found['map'][0]['scalars']:,} scalars, 8 channels, ms:\n",
        "| networks | what | piecewise linear | literal | ratio |",
        "|---|---|---|---|---|",
    ]
    for row in found["map"]:
        ratio = row["literal"] / row["piecewise"]
        lines.append(
            f"| {row['networks']} | {row['what']} | {row['piecewise']:.1f} | {row['literal']:.1f} "
            f"| {ratio:.1f} |"
        )
    lines += ["\nA causal step, µs:\n", "| position | time |", "|---|---|"]
    lines += [f"| {row['position']:,} | {row['us']:.0f} |" for row in found["steps"]]
    lines += ["\nWhat is kept for the backward:\n", "| what | bytes |", "|---|---|"]
    lines += [f"| {row['what']} | {row['bytes']:,.0f} a {row['unit']} |" for row in found["memory"]]
    return "\n".join(lines) + "\n"


def plot_runtime(found: dict[str, Any], theme: Any) -> Any:
    """Time against N on logarithmic axes."""
    figure = new_figure(10.5, 3.2)
    for axes, backward in zip(figure.subplots(1, 2), (False, True)):
        for i, name in enumerate(dict.fromkeys(row["layer"] for row in found["curves"])):
            mine = [
                row
                for row in found["curves"]
                if (row["layer"], row["backward"]) == (name, backward)
            ]
            axes.loglog(
                [row["n"] for row in mine],
                [row["ms"] for row in mine],
                marker="o",
                markersize=3,
                label=name,
                color=theme.series[i % len(theme.series)],
                linestyle="--" if name in PEERS else "-",
            )
        axes.set(xlabel="N", ylabel="ms", title="forward and backward" if backward else "forward")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def draw() -> None:
    """docs/images/luna-runtime.png."""
    if times := load(SPEED):
        picture = IMAGES / "luna-runtime.png"
        save_picture(lambda theme: plot_runtime(times, theme), picture, dpi=110)


def page() -> str:
    """The page from what was measured so far."""
    found, times = load(THEORY) or {}, load(SPEED)
    sections = (("gram", theory), ("psi", psi), ("maps", maps))
    parts = [head("Results: LUNA's kernel", "luna", "luna-*.json") + ABOUT]
    parts += [section(found) for key, section in sections if key in found]
    return "".join([*parts, *([speed(times)] if times else [])])
