"""SmolLM2-135M-Instruct with a state of fixed size: the receipts, and docs/results/smollm2.md."""

from __future__ import annotations

import textwrap
from typing import Any

from fredholm import training

from ..kit.page import head, load, save, table
from ..kit.subject import Options

FILE = "smollm2.json"
SHARED: dict[str, Any] = {"unseen": "kjv-characters", "distil": {"steps": 40}}
MATCHED = {"steps": 240, "lr": 2e-4}
SMALL: dict[str, Any] = {"distil": {"steps": 1}, "match": {"steps": 1}, "max_length": 128}
HALF = ["model.layers.*[02468].self_attn"]
RUNS: dict[str, dict[str, Any]] = {
    "all": {"window": 64, "match": MATCHED},
    "half": {"window": 64, "match": MATCHED | {"steps": 120}, "layers": HALF},
    "no-window": {"window": 0, "match": MATCHED},
}
LABELS = {
    "all": "all layers, a window of 64",
    "half": "every second layer, a window of 64",
    "no-window": "all layers, no window",
}
GOALS = {"all": 1.12, "half": 1.05, "no-window": 1.5}
ABOUT = """SmolLM2-135M-Instruct (30 layers, 9 heads on 3 heads of keys, 4-bit weights of the package, computed in float32) gets
Hedgehog's features beside softmax on a window, learns its teacher's attention layer by layer and then its teacher's
logits, in windows of 512 tokens of Python's documentation. Texts of the receipt are held-out documents of the same kind
and the King James Bible, a kind that it never saw. Batch 1, two threads; learning and measuring shared the machine
with other work, so that times say what one may expect at worst. [How it works](../linearize.md).
"""
COMMAND = "fredholm linearize smollm2 --window 64 --unseen kjv-characters --distil-steps 40 --match-steps 240 --match-lr 2e-4 --out slm"


def run(options: Options) -> None:
    """Convert, train and measure; what is in ``runs`` is gone on with."""
    found = load(FILE, options.results) or {}
    for name in options.chosen(RUNS):
        folder = options.runs / "smollm2" / name
        given = SHARED | RUNS[name] | (SMALL if options.small else {})
        given |= {"resume": (folder / "progress.json").is_file(), "say": print}
        done = training.linearize_source("smollm2", out=folder, **given)
        found[name] = done.report.to_dict()
        save(found, FILE, options.results)


def page(found: dict[str, Any] | None = None) -> str:
    """The whole page, from the committed receipts."""
    found = load(FILE) or {} if found is None else found
    parts = [head("SmolLM2 with a state of fixed size", "linearize", FILE), ABOUT]
    parts.append(f"\n`{COMMAND}` gives the first row.\n")
    parts.append(f"\n## Perplexity\n\n{_perplexities(found)}\n")
    for name in (x for x in RUNS if x in found):
        parts.append(f"\n## {LABELS[name].capitalize()}\n\n{_receipt(found[name])}\n")
    return "".join(parts)


def _perplexities(found: dict[str, Any]) -> str:
    rows = []
    for name, label in LABELS.items():
        if name not in found:
            rows.append([label, *["not run"] * 4, f"≤ {GOALS[name]}"])
            continue
        report = found[name]
        scores = report["scores"]
        ratios = [scores[key] / scores["teacher"] for key in ("before", "distilled", "matched")]
        minutes = sum(report["minutes"].values())
        cells = [f"{ratio:.3f}" for ratio in ratios]
        rows.append([label, *cells, f"{minutes:.0f}", f"≤ {GOALS[name]}"])
    heads = ("", "maps as they start", "attention learned", "logits learned", "minutes", "goal")
    text = "Times the teacher's, on 16 validation windows of 512 tokens; seed 0."
    return f"{text}\n\n{table(heads, rows)}"


def _receipt(report: dict[str, Any]) -> str:
    receipt = report["receipt"]
    blocks = [textwrap.fill(receipt["sentence"] + ".", 120)]
    rows = [
        (
            kind,
            f"{x['from']:,} to {x['to']:,}",
            f"{x['teacher']:.2f}",
            f"{x['student']:.2f}",
            f"{x['ratio']:.3f}",
        )
        for kind, part in receipt["perplexity"].items()
        for x in part
    ]
    blocks.append(table(("texts", "positions", "teacher", "converted", "ratio"), rows))
    rows = [
        (f"needle, {x['distance']:,} tokens back", f"{x['teacher']:.0%}", f"{x['student']:.0%}")
        for x in receipt["recall"]
    ] + [
        (f"copy of {x['length']:,} tokens", f"{x['teacher']:.0%}", f"{x['student']:.0%}")
        for x in receipt["copying"]
    ]
    blocks.append(table(("task", "teacher", "converted"), rows))
    sides = ("teacher", "student")
    rows = [
        (
            f"{x['length']:,.0f}",
            *(f"{x[f'{side}_bytes']:,.0f}" for side in sides),
            *(f"{x[f'{side}_tokens_a_second']:.1f}" for side in sides),
            *(f"{x[f'{side}_prompt_ms'] / 1e3:.2f}" for side in sides),
        )
        for x in receipt["decoding"]
    ]
    heads = ["tokens before"]
    for what in ("bytes", "tokens a second", "prompt, s"):
        heads += [f"{what}, teacher", f"{what}, converted"]
    blocks.append(table(heads, rows))
    blocks += [
        f"**{x['prompt']}**\n\n- teacher: {_line(x['teacher'])}\n- converted: {_line(x['student'])}"
        for x in receipt["continuations"]
    ]
    return "\n\n".join(blocks)


def _line(text: str) -> str:
    """A continuation on one line."""
    return "`" + " ".join(text.replace("`", "'").split()) + "`"
