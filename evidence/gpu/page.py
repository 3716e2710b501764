"""The tables of docs/gpu.md, from ``gpu.json`` where there is one."""

from __future__ import annotations

from typing import Any

from ..kit.page import DOCS, load, table, with_block

# What the project set itself for an H200: kernel or model, what is counted, the row it is read
# from, the figure.
PLAIN, SMALL = {"kernel": "itnet_plain", "case": "N 1024"}, {"model": "ITNet-S", "N": 196}
TRAINED, INFERRED = SMALL | {"direction": "training"}, SMALL | {"direction": "inference"}
TARGETS = (
    (
        "exact ITNet forward, d_h 64, w 128, N 1024",
        "fraction_of_peak",
        PLAIN | {"direction": "forward"},
        0.61,
    ),
    (
        "the same with its backward",
        "fraction_of_peak",
        PLAIN | {"direction": "forward + backward"},
        0.45,
    ),
    ("ITNet-S exact, inference at 224²", "images_per_second", INFERRED | {"mode": "exact"}, 1480),
    ("ITNet-S LR-64, inference at 224²", "images_per_second", INFERRED | {"mode": "LR-64"}, 3900),
)
MEMORY = 1.3  # peak of exact training, times the softmax model's
UNITS = {"fraction_of_peak": "of the measured bf16 peak", "images_per_second": "images/s"}
Rows = list[dict[str, Any]]


def find(rows: Rows, facts: dict[str, Any]) -> dict[str, Any] | None:
    """The row with these facts and a time, or None."""
    return next((r for r in rows if "failed" not in r and facts.items() <= r.items()), None)


def figure(value: float, measure: str) -> str:
    return f"{value:.0%}" if measure == "fraction_of_peak" else f"{value:,.0f}"


def targets(rows: Rows) -> str:
    lines = []
    for name, measure, facts, wanted in TARGETS:
        row = find(rows, facts)
        got = "open: not measured" if row is None else figure(row[measure], measure)
        verdict = "" if row is None else " (met)" if row[measure] >= wanted else " (missed)"
        lines.append([name, f"≥ {figure(wanted, measure)} {UNITS[measure]}", got + verdict])
    exact, vit = (find(rows, TRAINED | {"mode": mode}) for mode in ("exact", "ViT"))
    got = "open: not measured"
    if exact is not None and vit is not None:
        ratio = exact["peak_bytes"] / vit["peak_bytes"]
        got = f"{ratio:.2f} times ({'met' if ratio <= MEMORY else 'missed'})"
    lines.append(
        [
            "peak memory of ITNet-S exact training at 224²",
            f"≤ {MEMORY} times the softmax model's",
            got,
        ]
    )
    slower = [r for r in rows if r.get("times_faster_than_torch", 1.0) < 1.0]
    timed = [r for r in rows if "times_faster_than_torch" in r]
    got = f"{len(slower)} of {len(timed)} are" if timed else "open: not measured"
    lines.append(["every kernel and size", "none slower than PyTorch's operations", got])
    return table(("what", "target on an H200", "measured"), lines)


def kernel_table(rows: Rows) -> str:
    lines = []
    for r in rows:
        if "failed" in r or "seconds" not in r["triton"]:
            why = r.get("failed") or r["triton"]["failed"]
            lines.append(
                [
                    r["op"],
                    r.get("case", "all"),
                    r.get("direction", ""),
                    f"failed: {why}",
                    "",
                    "",
                    "",
                ]
            )
            continue
        faster = (
            f"{r['times_faster_than_torch']:.1f}" if "times_faster_than_torch" in r else "no result"
        )
        time = f"{1e3 * r['triton']['seconds']:.3f} ({1e3 * r['triton']['spread']:.3f})"
        share = f"{r['fraction_of_peak']:.0%}"
        lines.append(
            [r["op"], r["case"], r["direction"], time, f"{r['tflops']:.0f}", share, faster]
        )
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
    lines = []
    for r in rows:
        facts = [r["model"], r["mode"], f"{r['N']:,}", r["direction"]]
        if "failed" in r:
            lines.append([*facts, f"failed: {r['failed']}", ""])
        else:
            lines.append(
                [*facts, f"{r['images_per_second']:,.1f}", f"{r['peak_bytes'] / 2**30:.2f}"]
            )
    return table(("model", "mode", "tokens", "direction", "images/s", "peak GiB"), lines)


def render(result: dict[str, Any] | None) -> str:
    """Everything between the marks."""
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
    """docs/gpu.md with the results of now between its marks."""
    return with_block(DOCS / "gpu.md", "results", render(load("gpu.json")))
