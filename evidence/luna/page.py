"""Page docs/results/luna-kernel.md and its runtime curves."""

from __future__ import annotations

from typing import Any

from fredholm.lab.report.style import new_figure

from ..kit.page import IMAGES, head, load, save_picture, table
from ..kit.statistics import slope
from .encoders import page as encoders
from .speed import FILE as SPEED
from .speed import PEERS, exponent
from .theory import FILE as THEORY

COMMANDS = {
    "theory": "python -m evidence run luna theory psi maps",
    "speed": "python -m evidence time luna speed",
}
ABOUT = "This page tests LUNA's theory numerically, shows learned functions, and gives times. The [guide](../luna.md) explains the operator and its terms.\n"


def sampling_slope(rows: list[dict[str, Any]], psi: str) -> float:
    """Return the slope of log error over log M for one ψ."""
    of_psi = [row for row in rows if row["psi"] == psi]
    return slope((row["m"] for row in of_psi), (row["rms"] for row in of_psi))


def theory(found: dict[str, Any]) -> str:
    """Return the section on Gram matrices, sampling error and error against hidden width."""
    grams = ", ".join(f"{name} {value:.0e}" for name, value in found["gram"].items())
    lines = [f"\n## Theory\n\n`{COMMANDS['theory']}`\n"]
    lines.append(
        "**Gram matrices** of 200 points are positive semi-definite for every map, learned or "
        "not. The ratio of their smallest eigenvalue\n"
        f"to the largest, in float64, is {grams}.\n"
    )
    lines.append(
        "**Sampling.** The kernel with M directions drawn from N(0, I/d) is compared with its expectation. As in "
        "the proposition, W\n"
        "is drawn, not learned. The table gives the root mean square error over pairs and draws, the predicted σ/√M, and the 95% "
        "quantile of the error:\n"
    )
    names = list(dict.fromkeys(row["psi"] for row in found["sampling"]))
    lines.append(sampling_table(found["sampling"], names))
    slopes = ", ".join(f"{sampling_slope(found['sampling'], name):.2f} ({name})" for name in names)
    lines.append(f"\nSlope of log error over log M: {slopes}; the bounds predict −0.5.\n")
    lines.append(
        "**Parametrisation.** Known functions are approximated under N(0, 1) by one scalar network, with hidden units as "
        "LUNA initialises them and the best readout.\n"
        "The table gives the relative error against hidden width, a median of 20 draws:\n"
    )
    lines.append(width_table(found["width"]))
    lines.append(
        "\n![Sampling error against M, fitting error against hidden "
        "width](../images/luna-theory.png)\n"
    )
    return "\n".join(lines)


def sampling_table(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Return a table with one row per number of directions, and three columns per ψ."""
    heads = ["M"]
    for name in names:
        heads += [f"{name}: RMS", "σ/√M", "95%"]

    by_m: dict[int, list[str]] = {}
    for name in names:
        for row in rows:
            if row["psi"] == name:
                cells = by_m.setdefault(row["m"], [str(row["m"])])
                cells += [f"{row['rms']:.3f}", f"{row['theory']:.3f}", f"{row['q95']:.3f}"]
    return table(heads, by_m.values())


def width_table(rows: list[dict[str, Any]]) -> str:
    """Return a table of fitting errors with one row per hidden width and one column per target."""
    targets = list(dict.fromkeys(row["target"] for row in rows))
    errors = {(row["hidden"], row["target"]): f"{row['error']:.1e}" for row in rows}
    lines = []
    for hidden in dict.fromkeys(row["hidden"] for row in rows):
        lines.append((hidden, *(errors[hidden, target] for target in targets)))
    return table(("hidden width", *targets), lines)


def psi(found: dict[str, Any]) -> str:
    """Return the section on learned channels."""
    facts = found["psi"]
    dead = ", ".join(f"{layer['dead']} in layer {i}" for i, layer in enumerate(facts["layers"], 1))
    return (
        f"\n## Learned ψ\n\nThe channels of {facts['run']}, over the histogram of the projections of "
        f"{facts['samples']} held-out samples\n"
        "(queries and keys). Channels that are zero on this "
        f"range: {dead}.\n\n"
        "![Learned channels over the histogram of their input](../images/luna-psi.png)\n"
    )


def maps(found: dict[str, Any]) -> str:
    """Return the section on the attention maps of class tokens."""
    rows = []
    for name, row in found["maps"].items():
        rows.append((name, f"{100 * row['digits']:.1f}", f"{100 * row['reviews']:.1f}"))
    return (
        "\n## What a class token attends to\n\nThe maps are means over the heads of the last layer of three small models "
        "(`itnet_nano`, width 32) that differ only in\n"
        "their attention, with one seed each. They were trained from scratch and are not conversions of a pretrained model. Validation\n"
        f"accuracy in percent:\n\n{table(('attention', 'digits', 'reviews'), rows)}\n\n"
        "![Class token to patches and words under softmax, Hedgehog and "
        "LUNA](../images/luna-maps.png)\n"
    )


def speed(found: dict[str, Any]) -> str:
    """Return the section on runtime curves, the map, steps and memory."""
    machine, rows = found["machine"], found["curves"]
    lines = [
        f"\n## Speed and memory\n\n`{COMMANDS['speed']}`, {machine['processor']}, "
        f"{machine['threads']} threads,"
    ]
    lines.append(
        f"torch {machine['torch']}; batch 1, width {found['dim']}, {found['heads']} heads, 64 "
        "features per head. Times are medians.\n"
    )
    for backward, title in ((False, "Forward"), (True, "Forward and backward")):
        lines += [f"{title}, in ms:\n", runtime_table(rows, backward), ""]

    lengths = {row["n"] for row in rows}
    at = 16384 if 16384 in lengths else max(lengths)
    for backward, title in ((False, "forward"), (True, "forward and backward")):
        here = [row for row in rows if (row["n"], row["backward"]) == (at, backward)]
        times = {row["layer"]: row["ms"] for row in here}
        others = [name for name in times if not name.startswith("luna")]
        ratios = ", ".join(f"{times['luna'] / times[name]:.2f} of {name}" for name in others)
        lines.append(f"LUNA's time at N = {at:,}, {title}, relative to other layers: {ratios}.")
    lines.append("\n![Time against N](../images/luna-runtime.png)\n")

    lines.append(f"The map at {found['map'][0]['scalars']:,} scalars with 8 channels, in ms:\n")
    cells: list[tuple[str, ...]] = []
    for row in found["map"]:
        fast, slow = row["piecewise"], row["literal"]
        times = f"{fast:.1f}", f"{slow:.1f}", f"{slow / fast:.1f}"
        cells.append((row["networks"], row["what"], *times))
    lines.append(table(("networks", "what", "piecewise linear", "literal", "ratio"), cells))

    cells = [(f"{row['position']:,}", f"{row['us']:.0f}") for row in found["steps"]]
    lines += ["\nA causal step, in µs:\n", table(("position", "time"), cells)]
    cells = [(row["what"], f"{row['bytes']:,.0f} per {row['unit']}") for row in found["memory"]]
    lines += ["\nMemory stored for the backward pass:\n", table(("what", "bytes"), cells)]
    return "\n".join(lines) + "\n"


def runtime_table(rows: list[dict[str, Any]], backward: bool) -> str:
    """Return a table of milliseconds with one row per layer and one column per length."""
    lengths = sorted({row["n"] for row in rows})
    times: dict[str, dict[int, str]] = {}
    for row in rows:
        of_layer = times.setdefault(row["layer"], {})
        if row["backward"] == backward:
            of_layer[row["n"]] = f"{row['ms']:.1f}"

    lines = []
    for name, of_layer in times.items():
        cells = [of_layer.get(n, "") for n in lengths]
        lines.append((name, *cells, f"{exponent(rows, name, backward):.2f}"))
    return table(("layer", *(f"N = {n:,}" for n in lengths), "exponent"), lines)


def plot_runtime(found: dict[str, Any], theme: Any) -> Any:
    """Draw time against N on logarithmic axes; lines of peers are dashed."""
    figure = new_figure(10.5, 3.2)
    layers = list(dict.fromkeys(row["layer"] for row in found["curves"]))
    titles = {False: "forward", True: "forward and backward"}
    for axes, (backward, title) in zip(figure.subplots(1, 2), titles.items()):
        for i, name in enumerate(layers):
            rows = [
                row
                for row in found["curves"]
                if row["layer"] == name and row["backward"] == backward
            ]
            style = "--" if name in PEERS else "-"
            axes.loglog(
                [row["n"] for row in rows],
                [row["ms"] for row in rows],
                marker="o",
                markersize=3,
                label=name,
                color=theme.series[i % len(theme.series)],
                linestyle=style,
            )
        axes.set(xlabel="N", ylabel="ms", title=title)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def draw() -> None:
    """Draw docs/images/luna-runtime.png, if there are times, and the picture of the encoders."""
    if times := load(SPEED):
        picture = IMAGES / "luna-runtime.png"
        save_picture(lambda theme: plot_runtime(times, theme), picture, dpi=110)
    encoders.draw()


def page() -> str:
    """Return the text of the page, with sections for the results so far."""
    found, times = load(THEORY) or {}, load(SPEED)
    parts = [head("Results: LUNA's kernel", "luna", "luna-*.json") + ABOUT]
    for key, section in (("gram", theory), ("psi", psi), ("maps", maps)):
        if key in found:
            parts.append(section(found))
    if times:
        parts.append(speed(times))
    return "".join(parts)
