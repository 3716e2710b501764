"""The Long Range Arena at CPU size: one backbone and recipe, four attentions, short ListOps and
bytes of movie reviews.

``python -m benchmarks.lra [--seeds 1] [--task listops --task text] [--attention luna] [--runs
runs/lra]`` trains what docs/results/lra.json lacks, writes the file after every run, then
docs/results/lra.md; ``--page`` writes the page alone. A run that was interrupted goes on. Nothing
but the attention differs between the rows of a table; each recipe's learning rate is the same for
all, and none was tuned.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from fredholm.training.sweeps import sweep

from .machine import describe

RESULTS, PAGE = Path("docs/results/lra.json"), Path("docs/results/lra.md")
ATTENTIONS = {
    "softmax": "softmax",
    "luna": "luna",
    "elu + 1": "{name: linear_attention, feature_map: elu}",
    "hedgehog": "{name: linear_attention, feature_map: hedgehog, feature_options: {softmax: true}}",
}
TASKS = {
    "listops": (
        "ListOps, 10 to 50 symbols, depth 4, at most 5 arguments",
        "lra-listops",
        [
            "data.options={min_length: 10, max_length: 50, max_depth: 4, max_args: 5, train: "
            "10000, val: 500, test: 2000}",
            "data.batch_size=128",
            "training.epochs=6",
        ],
    ),
    "text": (
        "Bytes of movie reviews, the first 128 of 4,000: a stand-in for the Arena's Text task",
        "lra-text",
        ["data.max_length=128", "data.limit=4000", "training.epochs=5"],
    ),
}
PUBLISHED = {
    "softmax": 58.14,
    "Skyformer": 59.39,
    "Hedgehog": 59.66,
    "PolaFormer": 60.72,
    "LOTFormer": 62.9,
    "LUNA": 65.44,
}
HEAD = """# Results: the Long Range Arena at CPU size

<!-- Written by `python -m benchmarks.lra` from docs/results/lra.json; edit the script, not this page. -->

"""


def load(path: Path) -> dict[str, Any]:
    """What was measured so far."""
    if path.is_file():
        return json.loads(path.read_text("utf-8"))
    return {"command": "python -m benchmarks.lra", "runs": []}


def measure(
    out: Path, task: str, attention: str, seed: int, folder: Path, changes: list[str]
) -> None:
    """Train and test one row, unless the file has it, and add it to the file."""
    key = {"task": task, "attention": attention, "seed": seed}
    if any(all(run[k] == v for k, v in key.items()) for run in load(out)["runs"]):
        return
    _, recipe, own = TASKS[task]
    overrides = [f"operator={ATTENTIONS[attention]}", f"seed={seed}", *own, *changes]
    place = folder / f"{task}-{attention.replace(' ', '')}-{seed}"
    (cell,), _ = sweep(recipe, overrides, place, report=lambda line: print(line, flush=True))
    if "error" in cell:
        raise RuntimeError(f"{key}: {cell['error']}")
    kept = ("accuracy", "loss", "parameters", "epochs", "minutes")
    found = load(out)  # again: another process may have added a row
    found["runs"].append({**key, **{name: cell[name] for name in kept}})
    found["machine"] = describe()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def spread(values: list[float]) -> str:
    """Mean ± sample standard deviation, in percent."""
    text = f"{100 * statistics.mean(values):.1f}"
    return text if len(values) < 2 else f"{text} ± {100 * statistics.stdev(values):.1f}"


def table(found: dict[str, Any], task: str) -> str:
    """The rows of a task: mean and spread over seeds."""
    lines = [
        "| attention | test accuracy (%) | test loss | seeds | parameters |",
        "|---|---|---|---|---|",
    ]
    for attention in ATTENTIONS:
        runs = [
            run for run in found["runs"] if (run["task"], run["attention"]) == (task, attention)
        ]
        if runs:
            loss, seeds = (
                statistics.mean(run["loss"] for run in runs),
                ", ".join(str(run["seed"]) for run in runs),
            )
            accuracy = spread([run["accuracy"] for run in runs])
            lines.append(
                f"| {attention} | {accuracy} | {loss:.3f} | {seeds} | {runs[0]['parameters']:,} |"
            )
    return "\n".join(lines)


def verdict(found: dict[str, Any], task: str) -> str:
    """Which row is ahead, in words that follow from the numbers, and whether the seeds tell them
    apart.
    """
    rows = {
        a: [r["accuracy"] for r in found["runs"] if (r["task"], r["attention"]) == (task, a)]
        for a in ATTENTIONS
    }
    means = {a: statistics.mean(values) for a, values in rows.items() if values}
    if len(means) < 2:
        return f"Only {', '.join(means)} was measured so far: nothing is compared."
    best, second = sorted(means, key=lambda a: -means[a])[:2]
    gap, n = 100 * (means[best] - means[second]), min(len(rows[best]), len(rows[second]))
    noise = 100 * max(
        (statistics.stdev(rows[a]) for a in (best, second) if len(rows[a]) > 1),
        default=float("nan"),
    )
    told = "more" if gap > noise else "no more"
    behind = ", ".join(f"{a} {100 * (means[best] - means[a]):.1f}" for a in means if a != best)
    seeds = (
        f"{n} seeds, {told} than the larger of their spreads"
        if n > 1
        else "one seed, which tells little"
    )
    return f"Ahead: **{best}**, by {gap:.1f} points over {second} ({seeds}). Points behind it: {behind}."


def page(found: dict[str, Any]) -> str:
    """The results page."""
    parts = [HEAD]
    machine = found["machine"]
    parts.append(
        "One backbone (`lra_skyformer`: two layers, width 64, two heads, feed-forward 128, mean "
        "pooling), one recipe a task, four\n"
        f"attentions. `{found['command']}`, {machine['processor']}, torch {machine['torch']}. "
        "Sequences are short,\n"
        "training is minutes, no learning rate was tuned: these rows say that everything runs and "
        "what a small budget gives, not\n"
        "what the Arena would.\n"
    )
    for task, (title, recipe, own) in TASKS.items():
        changes = " ".join(f'"{change}"' if " " in change else change for change in own)
        if any(run["task"] == task for run in found["runs"]):
            parts.append(
                f"\n## {title}\n\n`fredholm train {recipe} operator=… "
                f"{changes}`\n\n{table(found, task)}\n\n"
            )
            parts.append(verdict(found, task) + "\n")
    figures = ", ".join(f"{name} {value}" for name, value in PUBLISHED.items())
    parts.append(
        "\n## Published\n\nAverages over the five tasks of the Arena, LUNA's Table "
        f"1:\n{figures}.\nThey are not reproduced here: the full "
        "recipes (`lra-*-full`, see [the guide](../lra.md)) are hours each on a GPU.\n"
    )
    return "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lra", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--attention", action="append", choices=ATTENTIONS)
    parser.add_argument("--runs", type=Path, default=Path("runs/lra"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--page", action="store_true", help="write the page from the file, train nothing"
    )
    parser.add_argument(
        "changes", nargs="*", help="changes to the recipes, for a trial; the page's runs have none"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for seed in range(0 if args.page else args.seeds):
        for task in args.task or TASKS:
            for attention in args.attention or ATTENTIONS:
                measure(args.out, task, attention, seed, args.runs, args.changes)
    if args.out == RESULTS:
        PAGE.write_text(page(load(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
