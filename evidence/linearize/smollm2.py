"""Conversions of SmolLM2-135M-Instruct to a state of fixed size, and docs/results/smollm2.md."""

from __future__ import annotations

import statistics
import textwrap
from typing import Any

from fredholm.lab import training
from fredholm.lab.distill.receipt import lost, saved, sentence

from ..kit.machine import describe, machine_line
from ..kit.page import head, load, save, spread, table
from ..kit.subject import Options

FILE = "smollm2.json"
SHARED: dict[str, Any] = {"unseen": "kjv-characters", "distil": {"steps": 40}}
MATCHED = {"steps": 240, "lr": 2e-4}
SMALL: dict[str, Any] = {"distil": {"steps": 1}, "match": {"steps": 1}, "max_length": 128}
HALF = ["model.layers.*[02468].self_attn"]
RUNS: dict[str, dict[str, Any]] = {
    "all": {"window": 64, "match": MATCHED},
    "half": {"window": 64, "match": MATCHED, "layers": HALF},
    "twice": {"window": 64, "match": MATCHED | {"steps": 480}},
    "no-window": {"window": 0, "match": MATCHED},
    "no-window-longer": {"window": 0, "distil": {"steps": 240}, "match": MATCHED},
    "narrow": {"window": 8, "match": MATCHED},
    "longer": {"window": 64, "match": MATCHED, "longer": 2048, "lengthen": {"steps": 40}},
    "first": {"window": 64, "match": MATCHED, "reach": 0},
    "luna": {"window": 64, "match": MATCHED, "to": "luna"},
    "t2r": {"window": 64, "match": MATCHED, "to": "t2r"},
    "performer": {"window": 64, "match": MATCHED, "to": "performer"},
}
# These trainings make the state necessary. A quarter of the windows are exercises that ask for
# distant tokens, and the windows of softmax vary. They take an hour of two cores, in windows of 512
# tokens and then of 2,048. Matrix products in bfloat16 take half the time of float32 here.
VARIED = {"vary_window": True}
REMEMBER: dict[str, Any] = {
    "precision": "bf16",
    "window": 64,
    "exercises": 0.25,
    "distil": {"steps": 40} | VARIED,
    "match": {"steps": 300, "lr": 2e-4} | VARIED,
    "longer": 2048,
    "lengthen": {"steps": 20} | VARIED,
}
REMEMBERING: dict[str, dict[str, Any]] = {
    "remember-12": REMEMBER | {"keep": 12},
    "remember-12-control": REMEMBER | {"keep": 12, "state": False},
    "remember-store": REMEMBER | {"store": 128},
    "remember-store-control": REMEMBER | {"store": 128, "state": False},
    "remember": REMEMBER,
    "remember-control": REMEMBER | {"state": False},
}
RUNS |= REMEMBERING
OPTIONS: dict[str, dict[str, Any]] = {
    "luna": {"tied": False},
    "t2r": {"tied": False, "options": {"features": 128}},
    "performer": {"options": {"features": 128}},
}
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
"""Lengths of the prompts before the tokens that are timed."""
TIMED = {
    "decoding": "all layers, a window of 64",
    "decoding-12": "12 of 90 groups keep softmax",
    "decoding-store": "a store of 128 per group",
}
"""What is timed beside the teacher. The second and third are read at :data:`SOME_LENGTHS`."""
SOME_LENGTHS = (256, 1024, 2048, 4096)
STEP_FROM, PROMPT_AT, PROMPT_GOAL = 2048, 1024, 1.1
"""From which length on a token is no slower than the teacher's, and the goal for a prompt."""
RECEIPTS = ("all", "half", "twice", "no-window", "longer", "first")
"""Rows with a full receipt, for seed 0. The others have only perplexities."""
LABELS = {
    "all": "all layers, a window of 64",
    "half": "every second layer, a window of 64",
    "twice": "all layers, a window of 64, twice the steps",
    "no-window": "all layers, no window",
    "no-window-longer": "all layers, no window, maps learned for 240 steps",
    "narrow": "all layers, a window of 8",
    "longer": "all layers, then 40 steps on windows of 2,048",
    "first": "all layers, all windows at the first positions",
    "luna": "LUNA's map, all layers, a window of 64",
    "t2r": "T2R's map, all layers, a window of 64",
    "performer": "Performer's map, all layers, a window of 64",
    "remember-12": "12 of 90 groups keep softmax, trained on exercises",
    "remember-12-control": "the same without a state",
    "remember-store": "a store of 128 per group, trained on exercises",
    "remember-store-control": "the same without a state",
    "remember": "all layers, a window of 64, trained on exercises",
    "remember-control": "the same without a state",
}
LAST = {"longer": "lengthened"} | dict.fromkeys(REMEMBERING, "lengthened")
"""The last stage of rows that do not end with the match."""
GOALS = {"twice": 1.12, "half": 1.05, "no-window": 1.5}
ABOUT = """SmolLM2-135M-Instruct (30 layers, 9 heads of queries that share 3 heads of keys and values, 4-bit weights of the package, computed in float32) is converted to
Hedgehog's features with softmax on a window. It is first trained to match its teacher's attention layer by layer and then its teacher's
logits, on windows of 512 tokens of Python's documentation. The positions of every second window start at a random number, so that they reach up to 4,096. The texts of
the [receipt](../linearize.md#the-receipt), the report of a conversion, are held-out documents of the same kind and the King James Bible, a kind of text that was not used in training. The batch is 1. Training and
receipts shared the machine with other work, so their times are those of a busy machine. Rows trained on exercises (needles, lists and copies) multiply
matrices in bfloat16; a quarter of their windows are exercises, and they end with 20 steps on windows of 2,048 tokens.

The conversions were trained on this documentation and the teacher was not, so that a perplexity over the teacher's also contains what they gained by that: some are below 1. On the Bible, which was not
used, the ratio is mostly larger than on the documentation up to 256 tokens, and not larger after that. The receipts are those of an earlier version of the command: few needles, without intervals.
[What SmolLM2 recalls](recall.md) has a larger test, in which the teacher's numbers differ from those here.
"""
COMMAND = "fredholm linearize smollm2 --window 64 --unseen kjv-characters --distil-steps 40 --match-steps 240 --match-lr 2e-4 --out slm"


def run(options: Options) -> None:
    """Convert, train and measure the rows of ``--only``, by default those with a goal.

    Interrupted trainings in ``runs`` continue, and finished rows are skipped. Seeds from the second
    on have their number in the name of the row.
    """
    found = load(FILE, options.results) or {}
    wanted = options.chosen(RUNS) if options.only else list(GOALS)
    for seed in range(options.seeds or 1):
        for name in wanted:
            key = row_name(name, seed)
            if key in found:
                continue
            folder = options.runs / "smollm2" / key
            arguments = SHARED | RUNS[name] | OPTIONS.get(name, {}) | {"seed": seed}
            arguments["receipt"] = key in RECEIPTS
            if not arguments["receipt"]:
                # Unseen texts are read by a receipt alone, and refused without one.
                del arguments["unseen"]
            if options.small:
                arguments |= _small(arguments)
            arguments |= {"resume": (folder / "progress.json").is_file(), "say": print}
            done = training.linearize_source("smollm2", out=folder, **arguments)
            # Another process may have written to the file meanwhile.
            found = load(FILE, options.results) or {}
            found[key] = done.report.to_dict() | {"threads": options.threads}
            save(found, FILE, options.results)


def _small(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of a trial."""
    if "longer" not in arguments:
        return SMALL
    return SMALL | {"max_length": 256, "longer": 256, "lengthen": {"steps": 1}}


def time(options: Options) -> None:
    """Time a token and a prompt against the length, beside the teacher's; medians of three rounds.

    ``--only`` selects from :data:`TIMED`. The maps are untrained: neither time nor bytes depend on
    their values.
    """
    import torch

    from fredholm.convert import replace_attention
    from fredholm.lab import data
    from fredholm.lab.distill.decoding import crossings, measure_decoding
    from fredholm.lab.distill.retrieval import best_groups
    from fredholm.lab.distill.sources import MAP
    from fredholm.linearization.transformers_folder import load_gguf

    torch.set_num_threads(options.threads)
    teacher, _ = load_gguf(data.fetch("smollm2"))
    teacher.eval()
    # The groups that the untrained rows of recall.py keep.
    ranking = (load("recall.json", options.results) or load("recall.json"))["ranking"]
    kinds: dict[str, dict[str, Any]] = {
        "decoding": {"window": 64},
        "decoding-12": {"keep": best_groups(ranking, 12)},
        "decoding-store": {"store": 128},
    }
    draw = torch.Generator().manual_seed(0)
    text = torch.randint(100, 40_000, (max(LENGTHS),), generator=draw)
    for kind in options.chosen(TIMED):
        lengths = list(LENGTHS if kind == "decoding" else SOME_LENGTHS)
        if options.small:
            lengths = [64, 128]
        student = replace_attention(teacher, **MAP, **kinds[kind], probe=False).model
        rounds = []
        with torch.inference_mode():
            for _ in range(1 if options.small else 3):
                models = {"teacher": teacher, "student": student}
                rounds.append(measure_decoding(models, text, lengths))
                print(rounds[-1], flush=True)

        rows = []
        for repeats in zip(*rounds):
            rows.append({key: statistics.median(row[key] for row in repeats) for key in repeats[0]})
        found = load(FILE, options.results) or {}
        found[kind] = {"machine": describe(), "rows": rows, **crossings(rows)}
        save(found, FILE, options.results)


def row_name(name: str, seed: int) -> str:
    """Return the name of a row in the file of results.

    Example:
        >>> row_name("all", 0), row_name("all", 2)
        ('all', 'all-2')
    """
    if seed == 0:
        return name
    return f"{name}-{seed}"


def page(found: dict[str, Any] | None = None) -> str:
    """Return the text of the page, by default from the committed receipts."""
    if found is None:
        found = load(FILE) or {}
    assert found is not None
    parts = [head("SmolLM2 with a state of fixed size", "linearize", FILE), ABOUT]
    parts.append(
        f"\n`{COMMAND}` gives the first row,\n"
        "and `python -m evidence run linearize smollm2 --only NAME --seeds 3` any other.\n"
    )
    parts.append(f"\n## Perplexity\n\n{_perplexities(found)}\n")
    if "decoding" in found:
        parts.append(f"\n{_alone(found['decoding'])}")
    for kind in (x for x in TIMED if x in found and x != "decoding"):
        parts.append(f"\n{_beside(kind, found[kind])}")
    quiet = "decoding" in found
    for name in (x for x in RECEIPTS if x in found):
        text = _receipt(found[name], quiet=quiet)
        parts.append(f"\n## {LABELS[name].capitalize()}\n\n{text}\n")
    return "".join(parts)


def _perplexities(found: dict[str, Any]) -> str:
    """Return the table of perplexities over the teacher's."""
    rows = []
    for name, label in LABELS.items():
        goal = ""
        if name in GOALS:
            goal = f"≤ {GOALS[name]}"
        names = [row_name(name, seed) for seed in range(9)]
        seeds = [found[key] for key in names if key in found]
        # Rows without a goal are run only by name.
        if not seeds and not goal:
            continue
        ratios = []
        for stage in ("before", "distilled", LAST.get(name, "matched")):
            scores = [one["scores"] for one in seeds]
            if all(stage in one for one in scores):
                ratios.append(spread([one[stage] / one["teacher"] for one in scores], 1, 3))
        # A map without parameters is not distilled.
        if len(ratios) == 2:
            ratios.insert(1, "nothing to learn")
        minutes = spread([one["threads"] * sum(one["minutes"].values()) for one in seeds], 1, 0)
        rows.append([label, str(len(seeds)), *ratios, minutes, goal])
    heads = ("", "seeds", "untrained maps", "after distil", "after the last stage")
    text = (
        "Perplexity divided by the teacher's, on 16 validation windows of 512 tokens. The minutes are those of a "
        "clock on a busy machine, times the number of threads: trainings of equal length differ by half."
    )
    return f"{text}\n\n{table((*heads, 'minutes × threads', 'goal'), rows)}"


def _receipt(report: dict[str, Any], *, quiet: bool) -> str:
    """Return the text and tables of a receipt.

    With ``quiet``, times are left out: another section has those of an idle machine.
    """
    receipt = report["receipt"]
    text = sentence(receipt)
    if quiet:
        text = f"{_cache(receipt)} Its {lost(receipt)}"
    blocks = [textwrap.fill(text + ".", 120)]

    rows: list[tuple[str, ...]] = []
    for kind, part in receipt["perplexity"].items():
        for x in part:
            positions = f"{x['from']:,} to {x['to']:,}"
            scores = f"{x['teacher']:.2f}", f"{x['student']:.2f}", f"{x['ratio']:.3f}"
            rows.append((kind, positions, *scores))
    blocks.append(table(("texts", "positions", "teacher", "converted", "ratio"), rows))

    tasks = [(f"needle, {x['distance']:,} tokens back", x) for x in receipt["recall"]]
    tasks += [(f"copy of {x['length']:,} tokens", x) for x in receipt["copying"]]
    rows = [(title, f"{x['teacher']:.0%}", f"{x['student']:.0%}") for title, x in tasks]
    blocks.append(table(("task", "teacher", "converted"), rows))
    if receipt["recall"] and receipt["copying"]:
        needles, passages = receipt["recall"][0]["needles"], receipt["copying"][0]["passages"]
        blocks.append(
            f"Shares of right digits, of {needles} needles, and of right tokens, of {passages} passages."
        )

    if not quiet:
        blocks.append(f"Threads: {report['threads']}.\n\n{_decoding(receipt['decoding'])}")
    for x in receipt["continuations"]:
        teacher, converted = _line(x["teacher"]), _line(x["student"])
        blocks.append(f"**{x['prompt']}**\n\n- teacher: {teacher}\n- converted: {converted}")
    return "\n\n".join(blocks)


def _cache(receipt: dict[str, Any]) -> str:
    """Describe the size of the cache.

    It is fixed, or grows if some layers retain softmax and thereby its keys and values.
    """
    first, last = receipt["decoding"][0], receipt["decoding"][-1]
    smaller = receipt["smaller_from"]
    below = "at no length" if smaller is None else f"from {smaller:,.0f} tokens on"
    start = f"{first['student_bytes'] / 1e6:.1f} MB"
    end = f"{last['student_bytes'] / 1e6:.1f} MB"
    theirs = f"{last['teacher_bytes'] / 1e6:.1f} MB"
    if last["student_softmax_bytes"]:
        return (
            f"The layers that keep softmax store keys and values, so the cache still grows: {start} "
            f"after {first['length']:,.0f} tokens, {end} after {last['length']:,.0f}, where the "
            f"teacher's takes {theirs}; it is smaller {below}."
        )
    return (
        f"Its cache takes {end} at every length, the teacher's {theirs} after "
        f"{last['length']:,.0f} tokens; it is smaller {below}."
    )


def _decoding(found: list[dict[str, float]]) -> str:
    """Return a table of both models' bytes, tokens per second and time of a prompt by length."""
    sides = ("teacher", "student")
    rows = []
    for x in found:
        sizes = [f"{x[f'{side}_bytes']:,.0f}" for side in sides]
        speeds = [f"{x[f'{side}_tokens_a_second']:.1f}" for side in sides]
        prompts = [f"{x[f'{side}_prompt_ms'] / 1e3:.2f}" for side in sides]
        rows.append((f"{x['length']:,.0f}", *sizes, *speeds, *prompts))
    heads = ["tokens before"]
    for what in ("bytes", "tokens per second", "prompt, s"):
        heads += [f"{what}, teacher", f"{what}, converted"]
    return table(heads, rows)


def _alone(found: dict[str, Any]) -> str:
    """Return the section on the cost of a step, measured on an idle machine."""
    speed = [x["student_tokens_a_second"] for x in found["rows"]]
    even = f"between {min(speed):.1f} and {max(speed):.1f} tokens per second at all lengths"
    text = f"""`python -m evidence time linearize smollm2`: all layers, a window of 64. The maps are untrained, since neither time nor
bytes depend on their values. Times are medians of three rounds on an idle machine. {saved(found)}; {even}. {machine_line(found["machine"])}"""
    return f"## Time and bytes\n\n{text}\n\n{_decoding(found['rows'])}\n"


def _beside(kind: str, found: dict[str, Any]) -> str:
    """Return the times of a variant, with the goals for its tokens and prompts."""
    rows = {row["length"]: row for row in found["rows"]}
    long = [row for length, row in rows.items() if length >= STEP_FROM]
    worst = min(row["student_tokens_a_second"] / row["teacher_tokens_a_second"] for row in long)
    prompt = rows[PROMPT_AT]["student_prompt_ms"] / rows[PROMPT_AT]["teacher_prompt_ms"]
    goals = [
        (
            f"tokens per second divided by the teacher's, from {STEP_FROM:,} on",
            "≥ 1",
            f"{worst:.2f}",
            "met" if worst >= 1 else "missed",
        ),
        (
            f"time of a prompt of {PROMPT_AT:,} tokens divided by the teacher's",
            f"≤ {PROMPT_GOAL}",
            f"{prompt:.2f}",
            "met" if prompt <= PROMPT_GOAL else "missed",
        ),
    ]
    text = f"`python -m evidence time linearize smollm2 --only {kind}`. {machine_line(found['machine'])}"
    return (
        f"### {TIMED[kind].capitalize()}\n\n{text}\n\n{_decoding(found['rows'])}\n\n"
        f"{table(('', 'goal', 'measured', ''), goals)}\n"
    )


def _line(text: str) -> str:
    """Put a continuation on one line."""
    return "`" + " ".join(text.replace("`", "'").split()) + "`"
