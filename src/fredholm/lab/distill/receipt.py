"""Receipt of a converted decoder: what it loses and what it saves.

Measures perplexity by position, needles by distance, copies of passages, and continuations side by
side. Time and bytes of decoding are in ``decoding.py``.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import t as student_t
from torch import Tensor, nn

from ...errors import DataError
from ...files import digest_json
from ...linearization.positions import positions_of
from ...modes import device_of
from ..training.metrics import exponential
from ..training.text_generation import prompt_ids, special_tokens_only, text_after
from .decoding import STEPS, crossings, measure_decoding
from .frame import Frame
from .matching import cross_entropies
from .needles import ROOM, Haystacks, draw_below, measure_needles

Models = dict[str, nn.Module]
Row = dict[str, Any]

# Name of the control: the teacher with nothing but a window and sinks, untrained.
CONTROL = "window"


@dataclass(frozen=True)
class Documents:
    """Held-out texts of a receipt, and the sizes of its measurements.

    Attributes:
        kinds: documents by kind; the first kind is that of the training texts.
        tokenizer: of the models.
        positions: ends of the stretches of positions in which perplexity is measured.
        distances: tokens between a needle and the question for it.
        needles: number of needles, each asked for at every distance.
        depth: tokens before a needle, at most.
        lists: number of lists of words with a number each.
        list_distances: tokens between a list and the question for one of its words.
        copies: tokens of passages that are repeated.
        lengths: of prompts, after which decoding is timed and the cache measured.
        repeats: number of segments, and of passages of each length.
        prompts: continued side by side, in the tokenizer's chat template if it has one.
        new_tokens: of a continuation.
        seed: of everything that is drawn.
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
        """Return plain data that identify these documents: sizes, and hashes of the texts."""
        kinds = {}
        for name, texts in self.kinds.items():
            kinds[name] = digest_json(list(texts))

        result: dict[str, Any] = {"kinds": kinds}
        for field in dataclasses.fields(self):
            if field.name not in ("kinds", "tokenizer"):
                result[field.name] = getattr(self, field.name)
        return result


@torch.inference_mode()
def measure_receipt(
    teacher: nn.Module,
    student: nn.Module,
    documents: Documents,
    say: Callable[[str], None] = lambda line: None,
    control: nn.Module | None = None,
) -> dict[str, Any]:
    """Measure a receipt; return plain data, see ``docs/linearize.md``.

    The models are in evaluation mode. Measurements for which a model has no positions are left out.
    A model with fewer positions than the first stretch has one stretch of all its positions, and is
    timed at the last position that :data:`STEPS` tokens follow.

    Args:
        teacher, student: causal models of transformers, before and after the conversion.
        documents: held-out texts.
        say: receives lines of progress.
        control: the teacher with nothing but the student's window and sinks, untrained. Its numbers
            show how much the state and kept groups add.

    Raises:
        DataError: no document with as many tokens as the first stretch of positions.
    """
    both = {
        "teacher": teacher.eval(),
        "student": student.eval(),
    }
    models = dict(both)
    if control is not None:
        models[CONTROL] = control.eval()
    limit = positions_of(teacher) or max(documents.lengths)
    texts = {}
    for kind in documents.kinds:
        texts[kind] = _tokens(documents, kind, limit)
    # Needles and copies are hidden in texts of the first kind.
    filler = next(iter(texts.values()))
    generator = torch.Generator().manual_seed(documents.seed)

    result: dict[str, Any] = {"perplexity": {}, "seed": documents.seed}
    for kind, tokens in texts.items():
        rows = by_position(models, tokens, documents, limit)
        result["perplexity"][kind] = rows
        say(f"receipt: perplexity on {kind}: {_ratios(rows)} times the teacher's")
    result["recall"] = recall(models, filler, documents, limit, "needle", say)
    result["lists"] = recall(models, filler, documents, limit, "list", say)
    result["copying"] = copying(models, filler, documents, limit, generator)
    say("receipt: needles and copies measured")

    lengths = [length for length in documents.lengths if length + STEPS <= limit]
    if not lengths and limit > STEPS:
        lengths = [limit - STEPS]
    result["decoding"] = measure_decoding(both, torch.cat(filler), lengths)
    result |= crossings(result["decoding"])

    result["continuations"] = []
    for prompt in documents.prompts:
        row = _continued(both, documents, prompt, limit)
        if row:
            result["continuations"].append(row)
    result["sentence"] = sentence(result)
    say(f"receipt: {result['sentence']}")
    return result


def _tokens(
    documents: Documents,
    kind: str,
    limit: int,
) -> list[Tensor]:
    """Return the documents of a kind as tokens, the longest first."""
    needed = min(documents.positions[0], limit)
    rows = documents.tokenizer(list(documents.kinds[kind]))["input_ids"]
    result = [torch.tensor(row) for row in rows]
    result.sort(key=len, reverse=True)
    longest = max(map(len, result), default=0)
    if longest < needed:
        raise DataError(
            f"receipt: expected a document of {kind} with {needed} tokens or more, got {longest} "
            "at most; give longer texts"
        )
    return result


def _joined(tokens: list[Tensor], documents: Documents) -> Tensor:
    """Return texts one after the other, without the tokens that begin and end each of them."""
    frame = Frame.of(documents.tokenizer)
    return torch.cat([frame.inside(text) for text in tokens])


def segments(tokens: list[Tensor], length: int, count: int) -> Tensor:
    """Return at most ``count`` segments of ``length`` tokens, (n, length): the first of each
    document (tokens,), then the second of each, and so on. A document's rest is left out.
    """
    rows = []
    longest = max(map(len, tokens))
    for start in range(0, longest, length):
        stop = start + length
        for document in tokens:
            if len(document) >= stop:
                rows.append(document[start:stop])
    return torch.stack(rows[:count])


def by_position(
    models: Models,
    tokens: list[Tensor],
    documents: Documents,
    limit: int,
) -> list[Row]:
    """Return perplexity of the models in each stretch of positions, given all before it.

    ``ratio`` is the student's over the teacher's, with its 95% interval in ``ratio_interval``.
    """
    last = min(limit, len(tokens[0]))
    ends = [end for end in documents.positions if end <= last]
    if not ends:
        ends = [last]
    rows = segments(tokens, ends[-1], documents.repeats)

    # (segments, tokens - 1): the first token of a segment is not predicted.
    losses = {}
    for name, model in models.items():
        losses[name] = torch.stack([losses_of(model, row) for row in rows])
    excess = losses["student"] - losses["teacher"]

    result = []
    for start, stop in zip([0, *ends], ends):
        stretch = slice(start, stop - 1)
        row: Row = {
            "from": start,
            "to": stop,
            "segments": len(rows),
        }
        for name, loss in losses.items():
            row[name] = exponential(float(loss[:, stretch].mean()))
        row["ratio"] = row["student"] / row["teacher"]
        row["ratio_interval"] = ratio_interval(excess[:, stretch])
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
    quantile = float(student_t.ppf(0.975, count - 1))
    half = quantile * float(means.std()) / count**0.5
    centre = float(means.mean())
    return [exponential(centre - half), exponential(centre + half)]


def losses_of(model: Any, row: Tensor) -> Tensor:
    """Return minus the log-probability of every token but the first, (N - 1,)."""
    row = row.to(device_of(model))
    out = model(input_ids=row[None], use_cache=False)
    return cross_entropies(out.logits[0, :-1], row[1:])


def _accuracy(model: Any, row: Tensor, last: int) -> float:
    """Return the share of the ``last`` tokens that a model predicts, given those before each."""
    row = row.to(device_of(model))
    out = model(
        input_ids=row[None],
        use_cache=False,
        logits_to_keep=last + 1,
    )
    logits = out.logits[0, -last - 1 : -1]
    right = logits.argmax(-1) == row[-last:]
    return float(right.float().mean())


def recall(
    models: Models,
    filler: list[Tensor],
    documents: Documents,
    limit: int,
    kind: str = "needle",
    say: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Return the recall of each model by distance (:func:`fredholm.lab.distill.needles.summarise`).

    Returns no rows if the model has no positions for it, or its tokenizer no digits.

    Args:
        kind: ``"needle"``, or ``"list"`` for one of several words.
    """
    text = _joined(filler, documents)
    count = documents.needles
    distances = documents.distances
    if kind == "list":
        count = documents.lists
        distances = documents.list_distances
    room = min(limit - ROOM[kind], len(text))
    distances = tuple(distance for distance in distances if distance <= room)
    if not distances or not count:
        return []
    depth = min(documents.depth, room - max(distances))
    haystacks = Haystacks(
        text,
        documents.tokenizer,
        distances,
        depth,
        documents.seed,
    )
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
    """Measure copying: tokens of a text in random order, twice.

    A model scores the share of the second copy that it predicts, without its first token.
    """
    text = _joined(filler, documents)
    result = []
    longest = min(limit, len(text))
    for length in documents.copies:
        if 2 * length > longest:
            continue
        rows = []
        for _ in range(documents.repeats):
            start = draw_below(len(text) - length + 1, generator)
            order = torch.randperm(length, generator=generator)
            passage = text[start : start + length]
            shuffled = passage[order]
            rows.append(torch.cat([shuffled, shuffled]))

        scores = {}
        for name, model in models.items():
            scores[name] = statistics.fmean(_accuracy(model, row, length - 1) for row in rows)
        result.append({"length": length, "passages": len(rows), **scores})
    return result


def _continued(
    models: Models,
    documents: Documents,
    prompt: str,
    limit: int,
) -> dict[str, str]:
    """Return a prompt and its greedy continuation by each model: ``prompt``, and a text per name.

    A tokenizer with a chat template reads the prompt as a user's turn.

    Args:
        limit: positions of the models. The prompt and at most ``documents.new_tokens`` further
            tokens have to fit; if the prompt leaves no position, the result is empty.
    """
    tokenizer = documents.tokenizer
    template = getattr(tokenizer, "chat_template", None)
    ids = prompt_ids(tokenizer, prompt, chat=bool(template))
    length = ids.shape[1]
    new_tokens = min(documents.new_tokens, limit - length)
    if new_tokens < 1:
        return {}
    result = {"prompt": prompt}
    for name, model in models.items():
        given: Any = model
        tokens = ids.to(device_of(given))
        # A model's own configuration may have penalties, which change the most probable token. It
        # is set aside for this call only.
        own = given.generation_config
        given.generation_config = special_tokens_only(own)
        try:
            out = given.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=new_tokens,
                do_sample=False,
            )
        finally:
            given.generation_config = own
        added = out[0, length:].tolist()
        result[name] = text_after(tokenizer, ids[0].tolist(), added)
    return result


def _ratios(rows: list[Row]) -> str:
    return ", ".join(f"{row['ratio']:.3f} up to {row['to']:,}" for row in rows)


def sentence(result: dict[str, Any]) -> str:
    """Return a sentence about what a converted decoder saves and what it loses."""
    return f"{saved(result)}; its {lost(result)}"


def lost(result: dict[str, Any]) -> str:
    """Return in words what it loses: perplexity, and recall at the largest distance."""
    parts = []
    for kind, rows in result["perplexity"].items():
        parts.append(f"on {kind} {_ratios(rows)}")
    if result["recall"]:
        parts.append(_found(result["recall"][-1]))
    return f"perplexity over the teacher's, by position: {'; '.join(parts)}"


def saved(result: dict[str, Any]) -> str:
    """Return in words from which length on it is smaller and faster."""
    size = "at no length"
    if result["smaller_from"] is not None:
        size = f"from {result['smaller_from']:,} tokens on"
    time = "at no measured length"
    if result["faster_from"] is not None:
        time = f"from {result['faster_from']:,} tokens on"
    return f"Its cache is smaller than the teacher's {size}, and a token faster {time}"


def _found(row: dict[str, Any]) -> str:
    """Return in words the recall at a distance, as a share of the teacher's."""
    distance = f"{row['distance']:,}"
    theirs = f"{100 * row['teacher']:.0f}%"
    # Receipts of an earlier version have no shares.
    if "student_share" not in row:
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
