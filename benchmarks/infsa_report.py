"""``python -m benchmarks.infsa_report``: docs/results/infsa.md from docs/results/infsa.json and
benchmarks/results/infsa.json.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from fredholm.models.migrate import migrate_override

from .infsa_claims import claims
from .infsa_evidence import ABLATIONS, MODELS, RESULTS
from .infsa_scale import LIMIT
from .report import machine_line

SPEED = Path(__file__).parent / "results" / "infsa.json"
LABELS = {"linear": "linear InfSA", "pure": "pure InfSA", "softmax": "softmax"}
METHODS = {
    "attention": "class token, last layer",
    "rollout": "rollout",
    "incoming": "incoming centrality",
}
TASKS = {"canvas": "Fashion-MNIST canvases", "cifar10": "CIFAR-10"}
HEAD = """# Results: InfSA

<!-- Written by `python -m benchmarks.infsa_report` from docs/results/infsa.json; edit the scripts, not this page. -->

"""
Rows = list[dict[str, Any]]


def pick(rows: Rows, task: str, variant: str) -> Rows:
    """The runs of one variant."""
    return [row for row in rows if (row["task"], row["variant"]) == (task, variant)]


def mean_error(values: list[float]) -> tuple[float, float | None]:
    """Mean over seeds and its standard error, None of one."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.mean(values), error


def shown(values: list[float], scale: float = 100.0, digits: int = 1) -> str:
    """Mean ± standard error over seeds."""
    if not values:
        return "not measured"
    mean, error = mean_error(values)
    return f"{scale * mean:.{digits}f}" + (
        "" if error is None else f" ± {scale * error:.{digits}f}"
    )


def accuracy_table(rows: Rows) -> str:
    """Test accuracy of the three models on each task."""
    lines = [
        "| task | model | test accuracy (%) | seeds | parameters | epochs |",
        "|---|---|---|---|---|---|",
    ]
    for task, title in TASKS.items():
        for model in MODELS:
            found = pick(rows, task, model)
            if found:
                score = shown([row["accuracy"] for row in found])
                cells = (
                    f"{score} | {len(found)} | {found[0]['parameters']:,} | {found[0]['epochs']}"
                )
                lines.append(f"| {title} | {LABELS[model]} | {cells} |")
    return "\n".join(lines)


def quality_table(rows: Rows, kind: str) -> str:
    """Faithfulness and localisation of every map of every model."""
    lines = [
        "| model | map | MoRF AOC | LeRF AUC | random AUC | ROC-AUC | PR-AUC | mass inside | "
        "patches inside |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model in MODELS:
        found = pick(rows, "canvas", model)
        for method, label in METHODS.items():
            if not found or method not in found[0]["degradation"]:
                continue
            cells = [
                shown([r["degradation"][method][k]["mean"] for r in found])
                for k in ("morf", "lerf", "random")
            ]
            places = [
                [r["localisation"][method][kind][k]["mean"] for r in found]
                for k in ("roc_auc", "pr_auc", "mass", "chance")
            ]
            cells += [shown(values) for values in places]
            lines.append(f"| {LABELS[model]} | {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def alignment_table(rows: Rows) -> str:
    """One step against the leading eigenvector, layer by layer, trained and untrained."""
    lines = [
        "| model | layer | cosine, trained | untrained | Spearman, trained | untrained |",
        "|---|---|---|---|---|---|",
    ]
    for model in MODELS:
        found = pick(rows, "canvas", model)
        for layer in range(len(found[0]["alignment"]) if found else 0):
            cells = [
                shown([row[when][layer][key] for row in found], 1.0, 3)
                for key in ("cosine", "spearman")
                for when in ("alignment", "untrained_alignment")
            ]
            lines.append(f"| {LABELS[model]} | {layer + 1} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ablation_table(rows: Rows) -> str:
    """γ and activation of the linear form, in the measures of the paper's Table 4."""
    lines = [
        "| linear InfSA | test accuracy (%) | MoRF AOC | LeRF AUC | ROC-AUC | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for variant in ("linear", *ABLATIONS):
        found = pick(rows, "canvas", variant)
        if not found:
            continue
        label = (
            "γ = 0.7, ReLU"
            if variant == "linear"
            else variant.replace("gamma", "γ =").replace("activation", "φ =")
        )
        cells = [shown([row["accuracy"] for row in found])]
        cells += [
            shown([r["degradation"]["attention"][k]["mean"] for r in found])
            for k in ("morf", "lerf")
        ]
        cells += [shown([r["localisation"]["attention"]["box"]["roc_auc"]["mean"] for r in found])]
        lines.append(f"| {label} | {' | '.join(cells)} | {len(found)} |")
    return "\n".join(lines)


def scale_text(speed: dict[str, Any]) -> str:
    """InfViT-4L-64H at extreme resolutions."""
    lines = [
        "| tokens | image | seconds | µs a token | peak memory (GB) |",
        "|---|---|---|---|---|",
    ]
    for row in _found(speed, "model") or []:
        side, cells = math.isqrt(row["n"]) * 16, f"failed: {row.get('error')} | |"
        if "seconds" in row:
            cells = f"{row['seconds']:.2f} | {row['microseconds_per_token']:.0f} | {row['megabytes'] / 1024:.2f}"
        lines.append(f"| {row['n']:,} | {side} × {side} | {cells} |")
    step = _found(speed, "train")
    if len(lines) == 2 and not step:
        return "Not measured yet."
    if step and "seconds" in step:
        cells = f"{step['seconds']:.1f} | {1e6 * step['seconds'] / step['n']:.0f} | {step['megabytes'] / 1024:.2f}"
        lines.append(
            f"| {step['n']:,} (training step) | {math.isqrt(step['n']) * 16} × "
            f"{math.isqrt(step['n']) * 16} | {cells} |"
        )
    return (
        "\n".join(lines) + "\n\n" + _machine(speed, "model" if _found(speed, "model") else "train")
    )


def table_text(speed: dict[str, Any]) -> str:
    """The mechanisms of the paper's Table 2."""
    kept = {row["mechanism"]: row for row in _found(speed, "table-memory") or []}
    timed = {row["mechanism"]: row for row in _found(speed, "table-time") or []}
    if not kept and not timed:
        return "Not measured yet."
    lines = [
        "| mechanism | in the paper | forward (s) | at tokens | training, 1,024 tokens (s) | peak "
        "memory (GB) | at tokens | exponent | "
        f"largest N in {LIMIT // 1024} GB (fitted) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in kept or timed:
        row, time = kept.get(name, {}), timed.get(name, {})
        last = row["memory"][-1] if row.get("memory") else {}
        cells = [
            _number(time.get("forward_seconds"), ".2f"),
            _number(time.get("n"), ",d"),
            _number(time.get("training_seconds"), ".2f"),
            _number(last["megabytes"] / 1024 if last else None, ".2f"),
            _number(last.get("n"), ",d"),
            _number(row.get("exponent"), ".2f"),
            _number(row.get("largest"), ",d"),
        ]
        lines.append(f"| {name} | {row.get('kind', '')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n" + _machine(speed, "table-time" if timed else "table-memory")


def pure_text(speed: dict[str, Any]) -> str:
    """The tiled pure form against the N² form, and memory exponents."""
    rows, memory = _found(speed, "pure"), _found(speed, "memory")
    parts = []
    if rows:
        parts.append("| way | ms | ± ms | time / tiled | difference |\n|---|---|---|---|---|")
        parts[-1] += "".join(
            f"\n| {r['way']} | {r['milliseconds']:.1f} | {r['spread']:.1f} | {r['ratio']:.2f} | "
            f"{r['difference']:.0e} |"
            for r in rows
        )
        parts.append(
            f"Forward and backward, {rows[0]['note']}, the same weights. {_machine(speed, 'pure')}"
        )
    for found in memory or []:
        sizes = ", ".join(f"{row['n']:,}: {row['megabytes']:.0f} MB" for row in found["lengths"])
        parts.append(
            f"Peak memory of forward and backward, {found['case'].removesuffix(' memory')}: "
            f"exponent {found['exponent']:.2f} ({sizes})."
        )
    return "\n\n".join(parts) or "Not measured yet."


def _found(speed: dict[str, Any], part: str) -> Any:
    return speed[part]["found"] if part in speed and not speed[part]["small"] else None


def _machine(speed: dict[str, Any], part: str) -> str:
    return f"Machine: {machine_line(speed[part]['machine'])}"


def _number(value: float | None, style: str) -> str:
    return "" if value is None or value != value else format(value, style)


def page(found: dict[str, Any], speed: dict[str, Any]) -> str:
    """The whole page."""
    rows, settings = found["runs"], found["settings"]
    changes = {
        task: ", ".join(f"`{migrate_override(text)}`" for text in texts)
        for task, texts in settings["small"].items()
    }
    one = pick(rows, "canvas", "linear")[0]
    samples = one["alignment"][0]["samples"]
    return f"""{HEAD}InfViT with the linear and the pure form, and a softmax ViT of equal depth, four layers each,
trained with one recipe (`infvit-linear-canvas`, `infvit-pure-canvas`, `infvit-softmax-canvas`,
`infvit-*-cifar10`) from the same seeds. The models are small, trained for minutes on one CPU core, and the pictures
are not ImageNet: these tables say what holds here, not what would hold there. ± is the standard error over seeds.

Command: `python -m benchmarks.infsa_evidence`, with `--task cifar10` for the second task, then `python -m
benchmarks.infsa_report`. Changes to the recipes: canvases {changes["canvas"]}; CIFAR-10 {changes["cifar10"]}.
Machine: {machine_line(found["machine"])}

## Accuracy

{accuracy_table(rows)}

## Attention quality

One article of clothing lies on each canvas among fragments of others; its box and its pixels are known by
construction. Maps are judged on the first {settings["images"]} test canvases, in percent: MoRF, the area over the
curve of relative confidence as the most relevant patches are removed first, LeRF, the area under it as the least
relevant are, and the area under it in a random order (that of MoRF is over the curve: a blind map's is a hundred minus
the random figure); then how well the map ranks the patches of the object. PR-AUC and mass of a
map that knows nothing are the share of patches inside, the last column.

By boxes:

{quality_table(rows, "box")}

By masks:

{quality_table(rows, "mask")}

## Alignment

How near one step comes to the leading eigenvector, on {settings["aligned"]} test canvases ({samples} head samples a
layer of the linear model). Linear InfSA: its weights against the Perron vector of φ(QKᵀ), by 200 power iterations;
other operators: what patches receive in one step against the limit of many.

{alignment_table(rows)}

## Ablations

{ablation_table(rows)}

## Pure form: time and memory

{pure_text(speed)}

Command: `python -m benchmarks.infsa --only pure memory --out benchmarks/results/infsa.json`.

## Extreme resolutions

InfViT-4L-64H (width 768), one image, feed-forward networks in pieces of 4,096 tokens; peak memory of the whole
process, image, weights and libraries included; each length in a process of its own, the second of two passes.

{scale_text(speed)}

Command: `python -m benchmarks.infsa --only model train --out benchmarks/results/infsa.json`.

## The mechanisms of the paper's Table 2

Four pre-norm blocks of width 768 and 64 heads around each mechanism, one sequence; "N × N" stores the matrices of all
heads, as the published forms do. Peak memory is that of the process, of a forward pass without feed-forward networks,
whose memory a chunk bounds; the largest N is fitted to its growth over three lengths, not run. SOFT, FLatten and MLLA
have no installable package; linear attention stands for the last two's class.

{table_text(speed)}

Command: `python -m benchmarks.infsa --only table-memory table-time --out benchmarks/results/infsa.json`.

## The paper's claims

{claims(rows, speed)}"""


def load(path: Path) -> dict[str, Any]:
    """A result file, empty where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def main() -> None:
    target = RESULTS.with_suffix(".md")
    target.write_text(page(load(RESULTS), load(SPEED)), encoding="utf-8")
    print(f"written to {target}")


if __name__ == "__main__":
    main()
