"""The tables of docs/gpu.md, from ``gpu.json`` if that exists."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..kit.page import DOCS, load, table, with_block

PLAIN, SMALL = {"kernel": "itnet_plain", "case": "N 1024"}, {"model": "ITNet-S", "N": 196}
TRAINED, INFERRED = SMALL | {"direction": "training"}, SMALL | {"direction": "inference"}


class Target(NamedTuple):
    """A figure that the project wants to reach on an H200.

    Attributes:
        name: the kernel or model, for the table.
        measure: the column that is compared, a key of ``UNITS``.
        facts: identify the measured row.
        least: the wanted figure.
    """

    name: str
    measure: str
    facts: dict[str, Any]
    least: float


TARGETS = (
    Target(
        "exact ITNet forward, d_h 64, w 128, N 1024",
        "fraction_of_peak",
        PLAIN | {"direction": "forward"},
        0.61,
    ),
    Target(
        "the same with its backward",
        "fraction_of_peak",
        PLAIN | {"direction": "forward + backward"},
        0.45,
    ),
    Target(
        "ITNet-S exact, inference at 224²",
        "images_per_second",
        INFERRED | {"mode": "exact"},
        1480,
    ),
    Target(
        "ITNet-S LR-64, inference at 224²",
        "images_per_second",
        INFERRED | {"mode": "LR-64"},
        3900,
    ),
)
# Wanted peak memory of exact training, as a multiple of the softmax model's.
MEMORY = 1.3
UNMEASURED = "open: not measured"
UNITS = {"fraction_of_peak": "of the measured bf16 peak", "images_per_second": "images/s"}
Rows = list[dict[str, Any]]


def find(rows: Rows, facts: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first row with these facts and without a failure, or None."""
    for row in rows:
        if "failed" not in row and facts.items() <= row.items():
            return row
    return None


def figure(value: float, measure: str) -> str:
    """Return a share in percent, or a rate as a whole number."""
    return f"{value:.0%}" if measure == "fraction_of_peak" else f"{value:,.0f}"


def targets(rows: Rows) -> str:
    """Return the table of targets with the measured figures."""
    lines = []
    for target in TARGETS:
        row, measured = find(rows, target.facts), UNMEASURED
        if row is not None:
            value = row[target.measure]
            verdict = "met" if value >= target.least else "missed"
            measured = f"{figure(value, target.measure)} ({verdict})"
        wanted = f"≥ {figure(target.least, target.measure)} {UNITS[target.measure]}"
        lines.append([target.name, wanted, measured])

    exact, vit = find(rows, TRAINED | {"mode": "exact"}), find(rows, TRAINED | {"mode": "ViT"})
    measured = UNMEASURED
    if exact is not None and vit is not None:
        ratio = exact["peak_bytes"] / vit["peak_bytes"]
        verdict = "met" if ratio <= MEMORY else "missed"
        measured = f"{ratio:.2f} times ({verdict})"
    name, wanted = "peak memory of ITNet-S exact training at 224²", "times the softmax model's"
    lines.append([name, f"≤ {MEMORY} {wanted}", measured])

    ratios = [r["times_faster_than_torch"] for r in rows if "times_faster_than_torch" in r]
    slower = sum(ratio < 1.0 for ratio in ratios)
    measured = f"{slower} of {len(ratios)} are" if ratios else UNMEASURED
    lines.append(["every kernel and size", "none slower than PyTorch's operations", measured])
    return table(("what", "target on an H200", "measured"), lines)


def kernel_table(rows: Rows) -> str:
    """Return the table of kernels; a failed row shows the reason instead of a time."""
    lines = []
    for r in rows:
        if "failed" in r or "seconds" not in r["triton"]:
            reason = r.get("failed") or r["triton"]["failed"]
            facts = r["op"], r.get("case", "all"), r.get("direction", "")
            lines.append([*facts, f"failed: {reason}", "", "", ""])
            continue
        faster = "no result"
        if "times_faster_than_torch" in r:
            faster = f"{r['times_faster_than_torch']:.1f}"
        time = f"{1e3 * r['triton']['seconds']:.3f} ({1e3 * r['triton']['spread']:.3f})"
        share = f"{r['fraction_of_peak']:.0%}"
        facts = r["op"], r["case"], r["direction"]
        lines.append([*facts, time, f"{r['tflops']:.0f}", share, faster])
    head = (
        "op",
        "case",
        "direction",
        "ms (half the quartile distance)",
        "TFLOP/s",
        "of the measured peak",
        "times faster than PyTorch",
    )
    return table(head, lines)


def model_table(rows: Rows) -> str:
    """Return the table of models; a failed row shows the reason instead of a rate."""
    lines = []
    for r in rows:
        rate, memory = f"failed: {r.get('failed')}", ""
        if "failed" not in r:
            rate, memory = f"{r['images_per_second']:,.1f}", f"{r['peak_bytes'] / 2**30:.2f}"
        lines.append([r["model"], r["mode"], f"{r['N']:,}", r["direction"], rate, memory])
    return table(("model", "mode", "tokens", "direction", "images/s", "peak GiB"), lines)


def render(result: dict[str, Any] | None) -> str:
    """Return the text between the page's marks."""
    if result is None:
        none = (
            "No GPU has run these kernels yet, so there are no numbers here: the kernels are tested "
            "against their definitions through\n"
            "Triton's interpreter, and compile for Hopper. All targets are open."
        )
        return "\n".join([none, "", targets([])])
    m = result["machine"]
    machine = (
        f"{m['device']}, torch {m['torch']}, triton {m['triton']}, commit {str(m['commit'])[:12]}; "
        "clocks and power "
        f"{m['clocks']} before, {m['clocks_after']} after; measured bfloat16 peak "
        f"{result['peak_flops'] / 1e12:.0f} TFLOP/s."
    )
    parts = [
        machine,
        "",
        targets(result["kernels"] + result["models"]),
        "",
        kernel_table(result["kernels"]),
        "",
    ]
    return "\n".join([*parts, model_table(result["models"])])


def page() -> str:
    """Return docs/gpu.md with the present results between its marks."""
    return with_block(DOCS / "gpu.md", "results", render(load("gpu.json")))
