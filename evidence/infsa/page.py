"""Page docs/results/infsa.md."""

from __future__ import annotations

import math
from typing import Any

from ..kit.claims import claims_section
from ..kit.machine import machine_line
from ..kit.memory import show_megabytes
from ..kit.page import head, load, spread, table
from . import canvases, pretrained
from .claims import CLAIMS
from .evidence import ABLATIONS, MODELS
from .scale import LIMIT
from .speed import FILE as SPEED

LABELS = {"linear": "linear InfSA", "pure": "pure InfSA", "softmax": "softmax"}
METHODS = {
    "attention": "class token, last layer",
    "rollout": "rollout",
    "incoming": "incoming centrality",
}
TASKS = {"canvas": "Fashion-MNIST canvases", "cifar10": "CIFAR-10"}
NOTE = "Claims about ImageNet are tested on canvases."
Rows = list[dict[str, Any]]
TEXT = """This page compares InfViT with the linear and the pure form and a softmax ViT of equal depth. All have four layers and are
trained with one recipe (`infvit-linear-canvas`, `infvit-pure-canvas`, `infvit-softmax-canvas`,
`infvit-*-cifar10`) from the same seeds. The models are small and trained for minutes on one CPU core, and the pictures
are not ImageNet, so the results need not hold at the paper's scale.

Command: `python -m evidence run infsa`. Changes to the recipes: canvases {canvas}; CIFAR-10 {cifar10}.
Machine: {machine}

## Accuracy

{accuracy}

## Attention quality

Each canvas shows one article of clothing among fragments of others; its box and its pixels are known by
construction. Maps are evaluated on the first {images} test canvases; all numbers are percentages.

- *MoRF AOC*: the area over the curve of relative confidence, as the most relevant patches are removed first.
- *LeRF AUC*: the area under the curve, as the least relevant patches are removed first.
- *random AUC*: the area under the curve in random order. An uninformative map has a MoRF AOC of 100 minus this number.
- *ROC-AUC*, *PR-AUC* and *mass inside*: how well the map ranks the patches of the object. For an uninformative map, PR-AUC and mass
  equal the share of *patches inside*, the last column.

By boxes:

{boxes}

By masks:

{masks}

## Alignment

The table shows how close one step comes to the leading eigenvector, on {aligned} test canvases ({samples} samples of heads per
layer of the linear model). For linear InfSA, its weights are compared with the Perron vector of φ(QKᵀ), computed by 200 power iterations;
for other operators, the mass that patches receive in one step with the limit of many steps.

{alignment}

## Ablations

{ablations}

## Pure form: time and memory

{pure}

Command: `python -m evidence time infsa pure memory`.

## Extreme resolutions

InfViT-4L-64H (width 768) processes one image, with the feed-forward networks in chunks of 4,096 tokens. Peak memory is that of the
process, including image, weights and libraries. Each length is measured in a separate process, in the second of two passes.

{scale}

Command: `python -m evidence time infsa model train`.

## The mechanisms of the paper's Table 2

Each mechanism is placed in four pre-norm blocks of width 768 with 64 heads, and processes one sequence. "N × N" stores the matrices of all
heads, as the published forms do. Peak memory is that of the process in a forward pass without feed-forward networks,
whose memory is bounded by chunking. The largest N is extrapolated from three lengths, not run. SOFT, FLatten and MLLA
have no installable package; linear attention represents the class of the last two.

{mechanisms}

Command: `python -m evidence time infsa table-memory table-time`.

{claims}
## All canvases, the set-up made equal

Here all models are trained on 58,800 canvases for 20 epochs, with biases in queries, keys and values and heads of width 12. Both depth rules are compared (the paper's power
of γ and the constant of the released code). Each model's learning rate is chosen from a short list by validation. The sign of a map is not identified, so
ROC-AUC is given for each seed. [InfSA in two contests](infsa-contests.md) has ten fresh seeds of pure InfSA and softmax, and accuracy at equal time with smaller patches.

{canvases}

## Where a pretrained transformer looks

This section evaluates maps of a pretrained vision transformer with DINOv2's parameter names (`vit-s-focus`, tuned for saliency), without further training, on pictures
whose objects are known. Numbers are means ± standard errors over pictures, in percent. A map can be called an explanation only if it is better than two maps that use no model, which are listed as
well.

{pretrained}
"""


def pick(rows: Rows, task: str, variant: str) -> Rows:
    """Return the runs of a variant on a task."""
    return [row for row in rows if (row["task"], row["variant"]) == (task, variant)]


def accuracy_table(rows: Rows) -> str:
    """Return the table of the three models' test accuracy on each task."""
    lines = []
    for task, title in TASKS.items():
        for model in MODELS:
            found = pick(rows, task, model)
            if not found:
                continue
            score = spread(row["accuracy"] for row in found)
            size, epochs = f"{found[0]['parameters']:,}", found[0]["epochs"]
            lines.append((title, LABELS[model], score, len(found), size, epochs))
    heads = "task", "model", "test accuracy (%)", "seeds", "parameters", "epochs"
    return table(heads, lines)


def quality_table(rows: Rows, kind: str) -> str:
    """Return the table of faithfulness and localisation of every map of every model."""
    lines = []
    for model in MODELS:
        found = pick(rows, "canvas", model)
        for method, label in METHODS.items():
            if not found or method not in found[0]["degradation"]:
                continue
            cells = []
            for measure in ("morf", "lerf", "random"):
                cells.append(spread(row["degradation"][method][measure]["mean"] for row in found))
            places = [row["localisation"][method][kind] for row in found]
            for measure in ("roc_auc", "pr_auc", "mass", "chance"):
                cells.append(spread(place[measure]["mean"] for place in places))
            lines.append((LABELS[model], label, *cells))
    heads = (
        "model",
        "map",
        "MoRF AOC",
        "LeRF AUC",
        "random AUC",
        "ROC-AUC",
        "PR-AUC",
        "mass inside",
        "patches inside",
    )
    return table(heads, lines)


def alignment_table(rows: Rows) -> str:
    """Return the table of each layer's alignment with the leading eigenvector, also untrained."""
    lines = []
    for model in MODELS:
        found = pick(rows, "canvas", model)
        if not found:
            continue
        for layer in range(len(found[0]["alignment"])):
            cells = []
            for key in ("cosine", "spearman"):
                for when in ("alignment", "untrained_alignment"):
                    cells.append(spread((row[when][layer][key] for row in found), 1.0, 3))
            lines.append((LABELS[model], layer + 1, *cells))
    heads = "model", "layer", "cosine, trained", "untrained", "Spearman, trained", "untrained"
    return table(heads, lines)


def ablation_table(rows: Rows) -> str:
    """Return the table of the linear form's γ and activation, with the measures of Table 4."""
    lines = []
    for variant in ("linear", *ABLATIONS):
        found = pick(rows, "canvas", variant)
        if not found:
            continue
        label = variant.replace("gamma", "γ =").replace("activation", "φ =")
        if variant == "linear":
            label = "γ = 0.7, ReLU"
        cells = [spread(row["accuracy"] for row in found)]
        for measure in ("morf", "lerf"):
            cells.append(spread(row["degradation"]["attention"][measure]["mean"] for row in found))
        places = [row["localisation"]["attention"]["box"]["roc_auc"]["mean"] for row in found]
        lines.append((label, *cells, spread(places), len(found)))
    heads = "linear InfSA", "test accuracy (%)", "MoRF AOC", "LeRF AUC", "ROC-AUC", "seeds"
    return table(heads, lines)


def scale_text(speed: dict[str, Any]) -> str:
    """Return the table of InfViT-4L-64H at extreme resolutions."""
    lines = []
    rows, step = _found(speed, "model") or [], _found(speed, "train")
    for row in rows:
        side = math.isqrt(row["n"]) * 16
        cells = [f"failed: {row.get('error')}", "", ""]
        if "seconds" in row:
            rate = f"{row['microseconds_per_token']:.0f}"
            cells = [f"{row['seconds']:.2f}", rate, f"{row['megabytes'] / 1024:.2f}"]
        lines.append((f"{row['n']:,}", f"{side} × {side}", *cells))
    if not lines and not step:
        return "Not measured yet."
    if step and "seconds" in step:
        n, side = step["n"], math.isqrt(step["n"]) * 16
        size = f"{step['megabytes'] / 1024:.2f}"
        cells = [f"{step['seconds']:.1f}", f"{1e6 * step['seconds'] / n:.0f}", size]
        lines.append((f"{n:,} (training step)", f"{side} × {side}", *cells))
    heads = "tokens", "image", "seconds", "µs per token", "peak memory (GB)"
    return f"{table(heads, lines)}\n\n{_machine(speed, 'model' if rows else 'train')}"


def table_text(speed: dict[str, Any]) -> str:
    """Return the table of the mechanisms of the paper's Table 2."""
    memory = {row["mechanism"]: row for row in _found(speed, "table-memory") or []}
    timed = {row["mechanism"]: row for row in _found(speed, "table-time") or []}
    if not memory and not timed:
        return "Not measured yet."
    lines = []
    for name in memory or timed:
        row, time = memory.get(name, {}), timed.get(name, {})
        longest, gigabytes = None, None
        if row.get("memory"):
            last = row["memory"][-1]
            longest, gigabytes = last["n"], last["megabytes"] / 1024
        cells = [
            _number(time.get("forward_seconds"), ".2f"),
            _number(time.get("n"), ",d"),
            _number(time.get("training_seconds"), ".2f"),
            _number(gigabytes, ".2f"),
            _number(longest, ",d"),
            _number(row.get("exponent"), ".2f"),
            _number(row.get("largest"), ",d"),
        ]
        lines.append((name, row.get("kind", ""), *cells))
    heads = (
        "mechanism",
        "in the paper",
        "forward (s)",
        "at tokens",
        "training, 1,024 tokens (s)",
        "peak memory (GB)",
        "at tokens",
        "exponent",
        f"largest N in {LIMIT // 1024} GB (fitted)",
    )
    cold = any(row.get("repeats", 1) == 1 for row in timed.values())
    note = "The forward is a single call, the first of its process. " if cold else ""
    machine = _machine(speed, "table-time" if timed else "table-memory")
    return f"{table(heads, lines)}\n\n{note}{machine}"


def pure_text(speed: dict[str, Any]) -> str:
    """Return the table of the tiled pure form against the N² form, and memory exponents."""
    rows, memory = _found(speed, "pure"), _found(speed, "memory")
    parts = []
    if rows:
        lines = []
        for row in rows:
            time = f"{row['milliseconds']:.1f} ({row['spread']:.1f})"
            lines.append((row["way"], time, f"{row['ratio']:.2f}", f"{row['difference']:.0e}"))
        parts.append(table(("way", "ms", "time / tiled", "difference"), lines))
        parts.append(
            f"Forward and backward, {rows[0]['note']}, the same weights; in brackets half the "
            f"interquartile range. {_machine(speed, 'pure')}"
        )
    for found in memory or []:
        sizes = ", ".join(
            f"{row['n']:,}: {show_megabytes(row['megabytes'])} MB" for row in found["lengths"]
        )
        parts.append(
            f"Peak memory of forward and backward, {found['case'].removesuffix(' memory')}: "
            f"exponent {found['exponent']:.2f} ({sizes})."
        )
    return "\n\n".join(parts) or "Not measured yet."


def _found(speed: dict[str, Any], part: str) -> Any:
    """Return a part of the timings, or None if it is missing or from a trial."""
    if part not in speed or speed[part]["small"]:
        return None
    return speed[part]["found"]


def _machine(speed: dict[str, Any], part: str) -> str:
    return f"Machine: {machine_line(speed[part]['machine'])}"


def _number(value: float | None, style: str) -> str:
    """Format a number; None and NaN become an empty cell."""
    if value is None or math.isnan(value):
        return ""
    return format(value, style)


def page() -> str:
    """Return the text of the page."""
    found, speed = load("infsa.json"), load(SPEED) or {}
    rows, settings = found["runs"], found["settings"]
    changes: dict[str, str] = {}
    for task, overrides in settings["small"].items():
        changes[task] = ", ".join(f"`{override}`" for override in overrides)
    title = head("Results: InfSA", "infsa", "infsa.json", SPEED)
    return title + TEXT.format(
        **changes,
        machine=machine_line(found["machine"]),
        images=settings["images"],
        aligned=settings["aligned"],
        samples=pick(rows, "canvas", "linear")[0]["alignment"][0]["samples"],
        accuracy=accuracy_table(rows),
        boxes=quality_table(rows, "box"),
        masks=quality_table(rows, "mask"),
        alignment=alignment_table(rows),
        ablations=ablation_table(rows),
        pure=pure_text(speed),
        scale=scale_text(speed),
        mechanisms=table_text(speed),
        claims=claims_section(CLAIMS, {"runs": rows, "speed": speed}, found, NOTE),
        canvases=canvases.section(),
        pretrained=pretrained.section(),
    )
