"""The receipt of a converted decoder: what it lost, by position and distance, beside what it saves.

Perplexity by position, a needle found again at a distance, a passage copied, continuations side by
side; time and bytes of decoding are in ``decoding.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import DataError
from ...files import digest_json
from ...linearization.positions import positions_of
from ..training.metrics import exponential
from ..training.text_generation import prompt_ids, special_tokens_only
from .decoding import STEPS, crossings, measure_decoding
from .matching import cross_entropies
from .needles import ROOM, Haystacks, measure_needles

Models = dict[str, nn.Module]
Row = dict[str, Any]
CONTROL = "window"  # the name of the teacher with a window and sinks alone, untrained


@dataclass(frozen=True)
class Documents:
    """Held-out texts of a receipt, and how much of them is read.

    Attributes:
        kinds: documents by what they are; the first kind is that of the training texts.
        tokenizer: of the models.
        positions: ends of the stretches of positions that are told apart.
        distances: tokens between a needle and the question for it.
        needles: how many are asked for, at every distance.
        depth: tokens, at most, before a needle.
        lists: of words with a number each, one of which is asked for; at ``list_distances``.
        copies: tokens of a passage that is repeated.
        lengths: of a prompt, at which a decoding step is timed and the cache weighed.
        repeats: segments and passages each.
        prompts: continued side by side; by the tokenizer's chat template where it has one.
        new_tokens: of a continuation.
        seed: of what is drawn.
    """

    kinds: Mapping[str, Sequence[str]]
    tokenizer: Any
    positions: tuple[int, ...] = (256, 1024, 4096)
    distances: tuple[int, ...] = (128, 512, 2048)
    needles: int = 100
    depth: int = 256
    lists: int = 40
    list_distances: tuple[int, ...] = (128, 512)
    copies: tuple[int, ...] = (16, 64, 256)
    lengths: tuple[int, ...] = (256, 1024, 2048, 4096, 8192)
    repeats: int = 6
    prompts: tuple[str, ...] = (
        "What is the capital of France, and what is it known for?",
        "Write a Python function that returns the sum of a list.",
        "Explain in two sentences why the sky is blue.",
    )
    new_tokens: int = 48
    seed: int = 0

    def facts(self) -> dict[str, Any]:
        """What tells these documents from others, without their texts."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        kinds = {name: digest_json(list(texts)) for name, texts in plain.pop("kinds").items()}
        del plain["tokenizer"]
        return {"kinds": kinds, **plain}


@torch.inference_mode()
def measure_receipt(
    teacher: nn.Module,
    student: nn.Module,
    documents: Documents,
    say: Callable[[str], None] = lambda line: None,
    control: nn.Module | None = None,
) -> dict[str, Any]:
    """Plain data of a receipt, see ``docs/linearize.md``; the models are read in evaluation mode.

    Args:
        control: the teacher with the student's window and sinks and nothing else, untrained. Its
            numbers stand beside the student's, and show what the state and kept groups add.

    What a model has no positions for is left out; one with fewer than the first stretch has one of
    all its positions, and is timed at the last from which :data:`STEPS` tokens follow.

    Raises:
        DataError: no document with as many tokens as the first stretch of positions.
    """
    both = {"teacher": teacher.eval(), "student": student.eval()}
    models = both if control is None else both | {CONTROL: control.eval()}
    limit = positions_of(teacher) or max(documents.lengths)
    texts = {kind: _tokens(documents, kind, limit) for kind in documents.kinds}
    filler = next(iter(texts.values()))
    generator = torch.Generator().manual_seed(documents.seed)
    result: dict[str, Any] = {"perplexity": {}, "seed": documents.seed}
    for kind, tokens in texts.items():
        result["perplexity"][kind] = rows = by_position(models, tokens, documents, limit)
        say(f"receipt: perplexity on {kind}: {_ratios(rows)} times the teacher's")
    result["recall"] = recall(models, filler, documents, limit, "needle", say)
    result["lists"] = recall(models, filler, documents, limit, "list", say)
    result["copying"] = copying(models, filler, documents, limit, generator)
    say("receipt: needles and copies measured")
    lengths = [n for n in documents.lengths if n + STEPS <= limit] or [max(0, limit - STEPS)]
    result["decoding"] = measure_decoding(both, torch.cat(filler), [n for n in lengths if n])
    result |= crossings(result["decoding"])
    result["continuations"] = [
        row for x in documents.prompts if (row := _continued(both, documents, x, limit))
    ]
    result["sentence"] = sentence(result)
    say(f"receipt: {result['sentence']}")
    return result


def _tokens(documents: Documents, kind: str, limit: int) -> list[Tensor]:
    """The documents of a kind as tokens, the longest first."""
    needed = min(documents.positions[0], limit)
    rows = documents.tokenizer(list(documents.kinds[kind]))["input_ids"]
    result = sorted((torch.tensor(row) for row in rows), key=len, reverse=True)
    if not result or len(result[0]) < needed:
        longest = len(result[0]) if result else 0
        raise DataError(
            f"receipt: {kind}: the longest document has {longest} tokens; needs {needed} or more"
        )
    return result


def segments(tokens: list[Tensor], length: int, count: int) -> Tensor:
    """At most ``count`` stretches of ``length`` tokens, (n, length): the first of each document,
    then the second of each, and so on.
    """
    parts = [x[: len(x) - len(x) % length].view(-1, length) for x in tokens if len(x) >= length]
    rounds = max(map(len, parts))
    rows = [part[i] for i in range(rounds) for part in parts if i < len(part)]
    return torch.stack(rows[:count])


def by_position(
    models: Models, tokens: list[Tensor], documents: Documents, limit: int
) -> list[Row]:
    """Return perplexity of the models in each stretch of positions, given all before it.

    ``ratio`` is the student's over the teacher's, with its 95% interval in ``ratio_interval``.
    """
    last = min(limit, len(tokens[0]))
    ends = [n for n in documents.positions if n <= last] or [last]
    rows = segments(tokens, ends[-1], documents.repeats)
    losses = {
        name: torch.stack([losses_of(model, row) for row in rows]) for name, model in models.items()
    }
    result = []
    for start, stop in zip([0, *ends], ends):
        row: Row = {"from": start, "to": stop, "segments": len(rows)}
        row |= {
            name: exponential(float(x[:, start : stop - 1].mean())) for name, x in losses.items()
        }
        row["ratio"] = row["student"] / row["teacher"]
        lost = losses["student"] - losses["teacher"]
        row["ratio_interval"] = ratio_interval(lost[:, start : stop - 1])
        if CONTROL in row:
            row[f"{CONTROL}_ratio"] = row[CONTROL] / row["teacher"]
        result.append(row)
    return result


def ratio_interval(lost: Tensor) -> list[float] | None:
    """Return the 95% interval of a ratio of perplexities, by Student's t; None of a single segment.

    Tokens of a segment depend on one another, so each segment counts as one observation.

    Args:
        lost: the student's loss minus the teacher's, (segments, tokens).

    Example:
        >>> [round(x, 3) for x in ratio_interval(torch.tensor([[0.1], [0.2], [0.3]]))]
        [0.953, 1.566]
    """
    means = lost.double().mean(1)
    count = len(means)
    if count < 2:
        return None

    # SciPy takes most of a second to import, and nothing else here needs it.
    from scipy.stats import t

    half = float(t.ppf(0.975, count - 1)) * float(means.std()) / count**0.5
    centre = float(means.mean())
    return [exponential(centre - half), exponential(centre + half)]


def losses_of(model: Any, row: Tensor) -> Tensor:
    """Minus the log-probability of every token but the first, (N - 1,)."""
    row = row.to(next(model.parameters()).device)
    return cross_entropies(model(input_ids=row[None], use_cache=False).logits[0, :-1], row[1:])


def _right(model: Any, row: Tensor, asked: int) -> float:
    """The share of the last ``asked`` tokens that are the likeliest, given those before them."""
    row = row.to(next(model.parameters()).device)
    logits = model(input_ids=row[None], use_cache=False, logits_to_keep=asked + 1).logits[0]
    return float((logits[-asked - 1 : -1].argmax(-1) == row[-asked:]).float().mean())


def recall(
    models: Models,
    filler: list[Tensor],
    documents: Documents,
    limit: int,
    kind: str = "needle",
    say: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Recall of each model by distance, see :func:`fredholm.lab.distill.needles.summarise`; nothing
    where the model has no positions for it, or its tokenizer no digits.

    Args:
        kind: ``"needle"``, or ``"list"`` for one of several words.
    """
    text = torch.cat(filler)
    asked = {
        "needle": (documents.needles, documents.distances),
        "list": (documents.lists, documents.list_distances),
    }
    count, distances = asked[kind]
    room = min(limit - ROOM[kind], len(text))
    distances = tuple(n for n in distances if n <= room)
    if not distances or not count:
        return []
    depth = min(documents.depth, room - max(distances))
    haystacks = Haystacks(text, documents.tokenizer, distances, depth, documents.seed)
    if not haystacks.has_digits():
        say("receipt: no recall, since the tokenizer does not tell digits apart")
        return []
    return measure_needles(models, haystacks, count, kind, say)


def copying(
    models: Models,
    filler: list[Tensor],
    documents: Documents,
    limit: int,
    generator: torch.Generator,
) -> list[dict[str, float]]:
    """Tokens of a text in random order, twice: the share of the second round, but for its first
    token, that is right.
    """
    text, result = torch.cat(filler), []
    for length in (n for n in documents.copies if 2 * n <= min(limit, len(text))):
        rows = []
        for _ in range(documents.repeats):
            start = int(torch.randint(len(text) - length + 1, (), generator=generator))
            passage = text[start : start + length]
            passage = passage[torch.randperm(length, generator=generator)]
            rows.append(torch.cat([passage, passage]))
        scores = {
            name: sum(_right(model, row, length - 1) for row in rows) / len(rows)
            for name, model in models.items()
        }
        result.append({"length": length, "passages": len(rows), **scores})
    return result


def _continued(models: Models, documents: Documents, prompt: str, limit: int) -> dict[str, str]:
    """The likeliest continuation of a prompt by both models; nothing where no position is left."""
    tokenizer = documents.tokenizer
    ids = prompt_ids(tokenizer, prompt, chat=bool(getattr(tokenizer, "chat_template", None)))
    new_tokens = min(documents.new_tokens, limit - ids.shape[1])
    if new_tokens < 1:
        return {}
    result = {"prompt": prompt}
    for name, model in models.items():
        given: Any = model
        ours = ids.to(next(given.parameters()).device)
        options = {"max_new_tokens": new_tokens, "do_sample": False}
        kept = given.generation_config
        given.generation_config = special_tokens_only(kept)  # no penalties: the likeliest tokens
        try:
            out = given.generate(input_ids=ours, attention_mask=torch.ones_like(ours), **options)
        finally:
            given.generation_config = kept
        result[name] = tokenizer.decode(out[0, ids.shape[1] :].tolist(), skip_special_tokens=True)
    return result


def _ratios(rows: list[Row]) -> str:
    return ", ".join(f"{row['ratio']:.3f} up to {row['to']:,}" for row in rows)


def sentence(result: dict[str, Any]) -> str:
    """From which length on a converted decoder is faster and smaller, and what it lost."""
    return f"{saved(result)}; its {lost(result)}"


def lost(result: dict[str, Any]) -> str:
    """What its texts and a needle lost, in words."""
    by_kind = "; ".join(f"on {kind} {_ratios(rows)}" for kind, rows in result["perplexity"].items())
    found = f"; {_found(result['recall'][-1])}" if result["recall"] else ""
    return f"perplexity over the teacher's, by position: {by_kind}{found}"


def saved(result: dict[str, Any]) -> str:
    """From which length on it is smaller and faster, in words."""
    smaller, faster = result["smaller_from"], result["faster_from"]
    size = "at no length" if smaller is None else f"from {smaller:,} tokens on"
    time = "at no measured length" if faster is None else f"from {faster:,} tokens on"
    return f"Its cache is smaller than the teacher's {size}, and a token faster {time}"


def _found(row: dict[str, Any]) -> str:
    """Recall at a distance, as the share of the teacher's where it was measured so."""
    distance, theirs = f"{row['distance']:,}", f"{100 * row['teacher']:.0f}%"
    if "student_share" not in row:  # of an earlier version
        ours = f"{100 * row['student']:.0f}%"
        return f"of a needle {distance} tokens back it recalls {ours} (teacher {theirs})"
    if row["student_share"] is None:
        return f"its teacher recalls nothing of a needle {distance} tokens back"
    low, high = (f"{100 * x:.0f}" for x in row["student_share_interval"])
    share = f"{100 * row['student_share']:.0f}% ({low} to {high}%)"
    found = (
        f"of the digits that its teacher recalls {distance} tokens back ({theirs}) it has {share}"
    )
    if f"{CONTROL}_share" in row:
        found += f", a window and sinks alone {100 * row[f'{CONTROL}_share']:.0f}%"
    return found
