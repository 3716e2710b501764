"""Needle-in-a-haystack tests of converted SmolLM2, and the page docs/results/recall.md.

The answers to each needle are stored, so an interrupted run continues where it stopped.
"""

from __future__ import annotations

import math
import random
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fredholm.lab.distill.needles import KINDS, Haystacks, answers, summarise
from fredholm.linearization.heads import QUIET

from ..kit.page import head, load, save, table
from ..kit.subject import Options
from .smollm2 import REMEMBERING

FILE = "recall.json"
SECOND_FILE = "recall-qwen.json"
SECOND = "qwen-coder"
"""Weights of a second family of models, for which only the ranking and needles are tested."""
DISTANCES = (128, 512, 2048)
DEPTH = 256
"""Largest number of tokens before a needle."""
START = "start"
"""Kind of needles at the start of the text."""
NEEDLES = {"needle": 100, "list": 40, START: 8}
"""Number of needles of each kind."""

# A long text costs four times as much as a short one. Only every third needle is tested at all
# distances; the others, and the control, are tested at the near distances.
NEAR, EVERY = 2, 3

TEACHER, ALONE, FULL, STORE = "teacher", "alone", "full", "store"
STORED = 128
"""Tokens of each group of heads in the store."""
DRAWN = "drawn-"
"""A control: as many groups as the number says, drawn at random instead of by the probe."""
DRAWS = 3
"""Number of draws, with which the needles take turns."""

# A number is the count of groups of heads that retain softmax. The others have the window and the
# sinks.
MAIN = (TEACHER, ALONE, "12")
FEWER = ("6", "3", "24", f"{DRAWN}12")
SECOND_ROWS = (TEACHER, ALONE, "6", f"{DRAWN}6", "3", "12")
TRAINED = tuple(REMEMBERING)
"""Rows of smollm2.py, which are tested if their training has ended."""
SECTIONS = ("needle", "costs", START, "list", "fewer", STORE, "trained")
STORE_NEEDLES = 28
"""Number of needles for the store."""
SECOND_NEEDLES = 30
"""Number of needles for the second family, whose model takes four times as long."""
POSITIONS, SEGMENTS = (256, 1024, 4096), 4
"""Ends of the ranges of positions for perplexity, as in a receipt, and the number of stretches."""
CACHED = 4096
"""Number of tokens for which the size of a cache is reported."""
WEIGHED = (256, 512)
"""Numbers of tokens after which caches are measured. Each token adds the same number of bytes, so
the size at CACHED is extrapolated.
"""
LABELS = {
    TEACHER: "teacher",
    ALONE: "window 64 + 4 sinks alone",
    FULL: "the same, the state at softmax's weight",
    STORE: "window 64 + 4 sinks + a store of 128 per group",
    "3": "3 of 90 groups keep softmax",
    "6": "6 of 90 groups keep softmax",
    "12": "12 of 90 groups keep softmax",
    "24": "24 of 90 groups keep softmax",
    f"{DRAWN}12": "12 groups drawn at random keep softmax",
    "remember-12": "12 of 90 groups, trained",
    "remember-12-control": "12 of 90 groups without a state, trained alike",
    "remember-store": "a store of 128 per group, trained",
    "remember-store-control": "a store of 128 per group without a state, trained alike",
    "remember": "window 64 + 4 sinks, trained",
    "remember-control": "window 64 + 4 sinks without a state, trained alike",
}
SECOND_LABELS = {
    TEACHER: "teacher",
    ALONE: "window 64 + 4 sinks alone",
    "3": "3 of 48 groups keep softmax",
    "6": "6 of 48 groups keep softmax",
    f"{DRAWN}6": "6 groups drawn at random keep softmax",
    "12": "12 of 48 groups keep softmax",
}
GOALS = {512: 0.8, 2048: 0.6}
"""Goals for the share of the teacher's digits, with 12 groups, by distance."""
FEWEST = 0.85
"""Share of the teacher's digits for which the fewest groups are sought."""
FEWEST_AT = 512
"""Distance at which they are sought."""
CACHE_GOAL = 40e6
"""Goal for the bytes of the cache at CACHED tokens."""
FAR_GOALS = {"remember-12": 1.25, "remember-store": 1.67}
"""Goals for the perplexity over the teacher's in the last range of positions, by trained row."""
TITLES = {
    "needle": "One needle",
    START: "One needle with nothing before it",
    "list": "One of eight words",
}
ABOUT = """These are needle-in-a-haystack tests: a number is stated in a text and asked for many tokens later. The model is SmolLM2-135M-Instruct (30 layers with 3 groups of heads each,
4-bit weights of the package, computed in float32). Nothing is trained except in rows whose names say so. See [the guide](../linearize.md) for the terms.

- *Groups of heads that keep softmax* are ranked by the probe (`--keep 12`) on needles and lists in validation texts of Python's
  documentation. The needles below lie in its test texts, which the ranking did not use, at random depths from 0 to 256 tokens.
- *All other groups* apply softmax to a window of 64 tokens and to the first 4. The state, which represents the tokens in between, has a thousandth of
  its weight until it is trained.
- *A store* adds, for each group, the 128 tokens that this state reproduces worst. In these rows no group keeps softmax.
- *Trained* rows had about 80 minutes of one core (their controls less: they have no attention to learn): 40 steps on attention, 300 on logits and 20 on windows of 2,048 tokens, on
  [Python's documentation](smollm2.md). A quarter of it were needles, lists and copies in training texts: the statement and the
  question have the same words as in the tests below, the numbers and the texts are others. So these rows show what the memory can
  hold after such training, not how a model recalls facts that are stated in another way.

Brackets are 95% Wilson intervals, in which the digits of a number count as one
observation. A hundred needles are planned, of which every third is also asked for after 2,048 tokens; the last column gives the number of
needles so far.
"""
SECOND_ABOUT = """The model is Qwen2.5-Coder-0.5B-Instruct (Qwen2: 24 layers with 2 groups of heads each and biases on queries and keys, 4-bit
weights of the packages, computed in float32). Nothing is trained, and the texts, needles and settings are those above, so the ranking is the
same procedure on another family. Groups drawn at random are a control for the ranking; needles take turns with three draws. Few needles were tested, as the last column says. `python -m evidence run linearize recall-second` measures what is missing.
"""

Answered = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Right (1) and wrong (0) digits by model, needle and distance."""

# --- the measurement ------------------------------------------------------------------------------


def run(options: Options) -> None:
    """Test recall, measure caches and perplexity, and add the missing results to the file.

    ``--only`` selects from :data:`SECTIONS`. ``--minutes`` ends a run after a needle; the same
    command continues it.
    """
    sections = options.chosen(SECTIONS)
    bench = Bench(options)
    for section in sections:
        if section in KINDS:
            bench.needles(section, MAIN)
        elif section == START:
            bench.needles(START, (TEACHER, "12"))
        elif section == "costs":
            bench.costs((*MAIN, FULL))
        elif section == STORE:
            bench.needles("needle", (TEACHER, STORE), STORE_NEEDLES)
            bench.costs((TEACHER, STORE))
        elif section == "trained":
            names = tuple(name for name in TRAINED if bench.folder(name).is_dir())
            bench.needles("needle", (TEACHER, *names))
            bench.needles("list", (TEACHER, *names))
            bench.costs((TEACHER, *names))
        else:
            for name in FEWER:
                bench.needles("needle", (TEACHER, name))


def run_second(options: Options) -> None:
    """Rank the groups of the second family, test its recall, and add what is missing to its file."""
    bench = Bench(options, SECOND, SECOND_FILE)
    bench.needles("needle", SECOND_ROWS, SECOND_NEEDLES)


class Bench:
    """The models, each made when it is first needed, and the file of results.

    Args:
        options: of the command.
        source: name of the teacher's weights.
        file: of the results.
    """

    def __init__(self, options: Options, source: str = "smollm2", file: str = FILE):
        import torch

        from fredholm.lab.data import fetch
        from fredholm.lab.distill.sources import TEXTS, load_texts
        from fredholm.linearization.transformers_folder import load_gguf

        torch.set_num_threads(options.threads)
        self.options = options
        self.file = file
        self.teacher, self.tokenizer = load_gguf(fetch(source))
        self.teacher.eval()
        self.documents = load_texts(TEXTS, "test")
        self.validation = partial(load_texts, TEXTS, "val")
        self.models: dict[str, Any] = {TEACHER: self.teacher}

        rows = self.tokenizer(self.documents)["input_ids"]
        filler = torch.cat([torch.tensor(row) for row in rows])
        distances = (8, 16) if options.small else DISTANCES
        depth = 4 if options.small else DEPTH
        self.haystacks = Haystacks(filler, self.tokenizer, distances, depth)

    def get(self, *keys: str, compute: Callable[[], Any]) -> Any:
        """Return the value under keys of the file; compute and store it if it is missing."""
        found = load(self.file, self.options.results) or {}
        inner = found
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        if keys[-1] in inner:
            return inner[keys[-1]]
        value = compute()
        # Another process may have written to the file meanwhile.
        found = load(self.file, self.options.results) or {}
        inner = found
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = value
        save(found, self.file, self.options.results)
        return value

    def ranking(self) -> list[dict[str, Any]]:
        """Return the probe's ranking of the groups of heads, on validation texts."""
        from fredholm.lab.distill.retrieval import Retrieval, rank_groups
        from fredholm.lab.distill.sources import MAP, PROBED
        from fredholm.linearization import replace_attention

        def compute() -> list[dict[str, Any]]:
            sizes = {"samples": 1, "distance": 16} if self.options.small else {}
            texts = self.validation()[:PROBED]
            replaced = replace_attention(self.teacher, **MAP, probe=False)
            return rank_groups(replaced, Retrieval(texts, self.tokenizer, **sizes))

        return self.get("ranking", compute=compute)

    def model(self, name: str, draw: int = 0) -> Any:
        """Return the model of a row, which is made or read first if necessary.

        Args:
            name: of the row.
            draw: number of the draw, for groups that are drawn at random.
        """
        from fredholm.lab.distill.sources import MAP
        from fredholm.linearization import load_linearized, replace_attention

        key = f"{name}, draw {draw}" if name.startswith(DRAWN) else name
        if key not in self.models and name in TRAINED:
            self.models[key] = load_linearized(self.folder(name)).eval()
        if key not in self.models:
            options: dict[str, Any] = {}
            if name == STORE:
                options["store"] = STORED
            elif name not in (ALONE, FULL):
                options["keep"] = self.groups(name, draw)
            replaced = replace_attention(self.teacher, **MAP, **options, probe=False)
            if name == FULL:
                for part in replaced.parts.values():
                    part.gain.data += QUIET
            _share_weights(replaced.model, self.teacher)
            self.models[key] = replaced.model.eval()
        return self.models[key]

    def groups(self, name: str, draw: int) -> list[str]:
        """Return the groups of heads that keep softmax in a row: the best of the ranking, or some
        that are drawn at random.
        """
        from fredholm.lab.distill.retrieval import best_groups

        if not name.startswith(DRAWN):
            return best_groups(self.ranking(), int(name))
        groups = sorted(row["group"] for row in self.ranking())
        count = int(name.removeprefix(DRAWN))
        return random.Random(draw).sample(groups, count)

    def folder(self, name: str) -> Path:
        """Return the folder of a row's trained model, which exists once it is trained."""
        return self.options.runs / "smollm2" / name / "model"

    def needles(self, kind: str, names: tuple[str, ...], most: int | None = None) -> None:
        """Test several models on the needles of a kind, needle by needle.

        Args:
            kind: of the needles.
            names: of the models.
            most: number of needles; None for all that are planned.
        """
        count = NEEDLES[kind] if most is None else most
        if self.options.small:
            count = 1
        haystacks = self.haystacks
        if kind == START:
            haystacks = replace(haystacks, depth=0)
        for index in range(count):
            haystack = haystacks.draw(index, "list" if kind == "list" else "needle")
            for name in names:
                if name == ALONE and index % EVERY:
                    continue
                if self.options.is_over:
                    return
                distances = self.haystacks.distances
                far = kind == START or (name != ALONE and index % EVERY == 0)
                if not far:
                    distances = distances[:NEAR]
                model = partial(self.model, name, index % DRAWS)
                compute = partial(self.answer, model, haystack, distances)
                self.get(kind, name, str(index), compute=compute)

    def answer(
        self, model: Callable[[], Any], haystack: Any, distances: tuple[int, ...]
    ) -> dict[str, str]:
        """Return right (1) and wrong (0) digits by distance."""
        digits = {}
        for distance, row in answers(model(), haystack, distances).items():
            digits[str(distance)] = "".join(str(int(right)) for right in row)
        return digits

    def costs(self, names: tuple[str, ...]) -> None:
        """Measure each model's perplexity by position and the bytes of its cache."""
        for name in names:
            if name != FULL:
                self.get("bytes", name, compute=partial(self.bytes, name))
            self.get("perplexity", name, compute=partial(self.perplexity, name))

    def bytes(self, name: str) -> int:
        """Return the bytes of the cache after :data:`CACHED` tokens, extrapolated from shorter
        prompts.
        """
        import torch
        from transformers import DynamicCache

        from fredholm.convert import cache_size

        model = self.model(name)
        lengths = (64, 96) if self.options.small else WEIGHED
        sizes = []
        for length in lengths:
            cache = DynamicCache(config=model.config)
            with torch.inference_mode():
                ids = self.haystacks.filler[None, :length]
                model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            size = cache_size(cache)
            sizes.append(size.linear_bytes + size.softmax_bytes)
        short, long = sizes
        per_token = (long - short) // (lengths[1] - lengths[0])
        return long + per_token * (CACHED - lengths[1])

    def perplexity(self, name: str) -> list[dict[str, float]]:
        """Return the mean loss in nats in each range of positions."""
        import torch

        from fredholm.lab.distill.receipt import losses_of, segments

        ends = (8, 32) if self.options.small else POSITIONS
        count = 1 if self.options.small else SEGMENTS
        tokens = [torch.tensor(row) for row in self.tokenizer(self.documents)["input_ids"]]
        rows = segments(tokens, ends[-1], count)
        with torch.inference_mode():
            losses = torch.stack([losses_of(self.model(name), row) for row in rows])
        return [
            {"from": a, "to": b, "segments": count, "loss": float(losses[:, a : b - 1].mean())}
            for a, b in zip((0, *ends), ends)
        ]


def _share_weights(student: Any, teacher: Any) -> None:
    """Let the weights that both models have lie in memory once."""
    weights = dict(teacher.named_parameters())
    for name, weight in student.named_parameters():
        if name in weights:
            weight.data = weights[name].data


# --- the page -------------------------------------------------------------------------------------


def page(found: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> str:
    """Return the text of the page, by default from the committed answers of both models."""
    if found is None:
        found = load(FILE) or {}
        second = load(SECOND_FILE)
    assert found is not None
    files = (FILE, SECOND_FILE)
    parts = [head("What SmolLM2 recalls with a smaller cache", "linearize", *files), ABOUT]
    parts.append("\n`python -m evidence run linearize recall` measures what is missing.\n")
    if "needle" in found:
        parts.append(_missing_controls(found["needle"]))
        parts.append(f"\n## Goals\n\n{goals(found)}\n")
    for kind in TITLES:
        if kind in found:
            parts.append(f"\n## {TITLES[kind]}\n\n{recall_table(found[kind])}\n")
    if "perplexity" in found:
        parts.append(f"\n## Perplexity and memory\n\n{costs(found)}\n")
    if added := state_adds(found):
        parts.append(f"\n## What the state adds\n\n{added}\n")
    if "ranking" in found:
        parts.append(f"\n## The ranking\n\n{ranking_text(found['ranking'])}\n")
    if second is not None and "ranking" in second:
        answers_table = recall_table(second["needle"], SECOND_LABELS)
        ranking = ranking_text(second["ranking"])
        parts.append(f"\n## A second family\n\n{SECOND_ABOUT}\n{answers_table}\n\n{ranking}\n")
    return "".join(parts)


def _missing_controls(answers_of: Answered) -> str:
    """Return a sentence on the trained rows whose control has not been run."""
    missing = []
    for name in answers_of:
        control = f"{name}-control"
        if control in TRAINED and control not in answers_of:
            missing.append(f"*{LABELS[name]}*")
    if not missing:
        return ""
    return (
        f"\nNot run yet: the control without a state, trained alike, of {' and '.join(missing)}.\n"
    )


def recall_table(answers_of: Answered, labels: Mapping[str, str] = LABELS) -> str:
    """Return a table of recall by model and distance, over needles that the teacher had too."""
    lines = []
    for name in (name for name in labels if name in answers_of):
        for row in recall_rows(answers_of, name):
            share = "" if name == TEACHER else _interval(row, f"{name}_share")
            cells = [_interval(row, name), _interval(row, f"{name}_whole"), share]
            lines.append((labels[name], f"{row['distance']:,}", *cells, row["needles"]))
    heads = ("", "tokens back", "digits", "whole numbers", "of the teacher's digits", "needles")
    return table(heads, lines)


def recall_rows(answers_of: Answered, name: str) -> list[dict[str, Any]]:
    """Return a model's recall at each distance at which it and the teacher were tested."""
    theirs, ours = answers_of.get(TEACHER, {}), answers_of.get(name, {})
    pairs = []
    for index in sorted(theirs.keys() & ours.keys(), key=int):
        pairs.append({TEACHER: digits_of(theirs[index]), name: digits_of(ours[index])})

    found = []
    for distance in DISTANCES:
        rows = [pair for pair in pairs if all(distance in side for side in pair.values())]
        if rows:
            found.append(summarise(rows, distance))
    return found


def goals(found: Mapping[str, Any]) -> str:
    """Return a table of the goals for 12 groups: met, missed, or open within the interval."""
    lines = []
    for row in recall_rows(found["needle"], "12"):
        goal, share = GOALS.get(row["distance"]), row["12_share"]
        if goal is None or share is None:
            continue
        low, high = row["12_share_interval"]
        verdict = "open"
        if low >= goal:
            verdict = "met"
        elif high < goal:
            verdict = "missed"
        what = f"of the teacher's digits, {row['distance']:,} tokens back"
        lines.append((what, f"≥ {goal:.0%}", _interval(row, "12_share"), verdict))
    lines += fewest_groups(found["needle"])
    size = found.get("bytes", {}).get("12")
    if size is not None:
        verdict = "met" if size <= CACHE_GOAL else "missed"
        what = f"cache at {CACHED:,} tokens"
        lines.append((what, f"≤ {CACHE_GOAL / 1e6:.0f} MB", f"{size / 1e6:.1f} MB", verdict))
    text = (
        f"Where no other row is named, the goals are for {LABELS['12']}, untrained. A goal inside the interval is open. "
        "Perplexities are those of one training on four stretches, without an interval, and the trained rows were trained on "
        "such texts, which the teacher was not."
    )
    lines += far_goals(found.get("perplexity", {}))
    return f"{text}\n\n{table(('', 'goal', 'measured', ''), lines)}"


def fewest_groups(answers_of: Answered) -> list[tuple[str, str, str, str]]:
    """Return a row with the fewest groups that reach :data:`FEWEST`, among the numbers tested."""
    shares, intervals = {}, {}
    for name in sorted((name for name in answers_of if name.isdigit()), key=int):
        for row in recall_rows(answers_of, name):
            share = row[f"{name}_share"]
            if row["distance"] == FEWEST_AT and share is not None:
                shares[name] = share
                intervals[name] = row[f"{name}_share_interval"]
    if not shares:
        return []
    enough = [name for name, (low, _) in intervals.items() if low >= FEWEST]
    undecided = [name for name, (low, high) in intervals.items() if low < FEWEST <= high]
    measured = ", ".join(f"{name}: {share:.0%}" for name, share in shares.items())
    found = f"{enough[0]} groups" if enough else "more than tested"
    if undecided:
        found += f"; open: {', '.join(undecided)}"
    what = f"fewest groups, untrained, for {FEWEST:.0%} of the teacher's digits at {FEWEST_AT}"
    return [(what, "", measured, found)]


def far_goals(perplexity: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the rows of the goals for the perplexity of trained models in the last range."""
    lines = []
    for name, goal in FAR_GOALS.items():
        if name not in perplexity or TEACHER not in perplexity:
            continue
        last = perplexity[name][-1]
        ratio = math.exp(last["loss"] - perplexity[TEACHER][-1]["loss"])
        verdict = "met" if ratio <= goal else "missed"
        what = f"perplexity from {last['from']:,} to {last['to']:,}: {LABELS[name]}"
        lines.append((what, f"≤ {goal}", f"{ratio:.2f} times the teacher's", verdict))
    return lines


def state_adds(found: Mapping[str, Any]) -> str:
    """Return a table of trained rows beside their controls without a state, or ""."""
    answers_of, perplexity = found.get("needle", {}), found.get("perplexity", {})
    lines = []
    for name in TRAINED:
        control = f"{name}-control"
        if name not in answers_of or control not in answers_of:
            continue
        without = {row["distance"]: row for row in recall_rows(answers_of, control)}
        for row in recall_rows(answers_of, name):
            distance = row["distance"]
            if distance in without:
                cells = (
                    _interval(row, f"{name}_share"),
                    _interval(without[distance], f"{control}_share"),
                )
                lines.append((LABELS[name], f"digits, {distance:,} tokens back", *cells))
        if {TEACHER, name, control} <= perplexity.keys():
            for place, theirs in enumerate(perplexity[TEACHER]):
                cells = [
                    f"{math.exp(perplexity[row][place]['loss'] - theirs['loss']):.2f}"
                    for row in (name, control)
                ]
                where = f"perplexity, {theirs['from']:,} to {theirs['to']:,}"
                lines.append((LABELS[name], where, *cells))
    if not lines:
        return ""
    text = (
        "Rows trained with a state beside the same training without one, relative to the teacher's. One seed each. "
        "The control had the stages on logits and on long windows; without maps there is no stage on attention."
    )
    heads = ("", "", "with a state", "without")
    return f"{textwrap.fill(text, 120)}\n\n{table(heads, lines)}"


def digits_of(stored: Mapping[str, str]) -> dict[int, list[bool]]:
    """Decode stored answers by distance.

    Example:
        >>> digits_of({"128": "110"})
        {128: [True, True, False]}
    """
    return {int(distance): [x == "1" for x in digits] for distance, digits in stored.items()}


def _interval(row: Mapping[str, Any], name: str) -> str:
    """Format a share with its interval."""
    if row[name] is None:
        return "–"
    low, high = row[f"{name}_interval"]
    return f"{row[name]:.0%} ({low:.0%} to {high:.0%})"


def costs(found: Mapping[str, Any]) -> str:
    """Return a table of perplexity over the teacher's by position, and of the cache's size."""
    perplexity, sizes = found["perplexity"], found.get("bytes", {})
    lines = []
    for name in (name for name in LABELS if name in perplexity and TEACHER in perplexity):
        pairs = zip(perplexity[name], perplexity[TEACHER])
        ratios = [f"{math.exp(ours['loss'] - theirs['loss']):.2f}" for ours, theirs in pairs]
        size = f"{sizes[name] / 1e6:.1f} MB" if name in sizes else "–"
        lines.append((LABELS[name], *ratios, size))
    spans = [f"{row['from']:,} to {row['to']:,}" for row in perplexity[TEACHER]]
    segments = perplexity[TEACHER][0]["segments"]
    text = (
        f"Perplexity divided by the teacher's, by position, on {segments} stretches of test documents, "
        f"and the exact bytes of the cache after {CACHED:,} tokens, batch 1, float32. The bytes are extrapolated from those after "
        f"{WEIGHED[0]} and {WEIGHED[1]} tokens, since each token adds the same number."
    )
    text = textwrap.fill(text, 120)
    return f"{text}\n\n{table(('', *spans, f'cache at {CACHED:,}'), lines)}"


def ranking_text(ranking: list[dict[str, Any]]) -> str:
    """Return a sentence about the best groups and their mass."""
    rows = ", ".join(f"{row['group']} ({row['mass']:.2f})" for row in ranking[:24])
    text = (
        "The mass of a group is the attention of its best head from the token before a digit of the answer "
        f"to the earlier occurrence of that digit. The best groups, as layer.group (mass), are {rows}."
    )
    return textwrap.fill(text, 120)
