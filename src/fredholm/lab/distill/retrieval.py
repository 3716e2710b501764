"""Ranking of groups of heads by retrieval: the attention that they give to what is asked for.

Nothing is trained. The teacher reads needles and lists of words and numbers, made from texts. The
score of a group is the attention that it gives, from the token before each digit of an answer, to
that digit where it was stated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import DataError, OptionError
from ...files import digest_json
from ...linearization import Replaced
from ...linearization.heads import Heads
from ...linearization.positions import positions_of
from ...linearization.replace import layer_numbers
from ...modes import device_of
from .frame import encode_part
from .needles import (
    PAIRS,
    QUESTION,
    SAID,
    ListQuestion,
    draw_below,
    draw_number,
    list_question,
    tells_digits_apart,
)

# The least attention of a group that retrieves.
LEAST = 0.1

NAME_GROUPS = "name the groups to keep, as in keep='3.0,2.1'"
"""The fix for every model and tokenizer that the ranking cannot read."""


@dataclass(frozen=True)
class Retrieval:
    """Texts on which groups of heads are ranked.

    Attributes:
        texts: documents, from which filler and the words of lists are taken.
        tokenizer: of the model.
        samples: needles, and as many lists.
        distance: tokens of filler between what is said and the question for it.
        seed: of what is drawn.
    """

    texts: Sequence[str] = field(repr=False)
    tokenizer: Any = field(repr=False)
    samples: int = 12
    distance: int = 384
    seed: int = 0

    def facts(self) -> dict[str, Any]:
        """Return plain data that identify this probe: its sizes, and a hash of its texts."""
        return {
            "samples": self.samples,
            "distance": self.distance,
            "seed": self.seed,
            "texts": digest_json(list(self.texts)),
        }


class Sample(NamedTuple):
    """A text that ends in an answer.

    Attributes:
        tokens: (N,).
        queries: places of the tokens that precede those of the answer.
        keys: places of the answer's tokens where they were stated.
    """

    tokens: Tensor
    queries: Tensor
    keys: Tensor


@torch.inference_mode()
def rank_groups(replaced: Replaced, retrieval: Retrieval) -> list[dict[str, Any]]:
    """Rank every group of heads of the causal layers by retrieval, the best first.

    Args:
        replaced: a converted model without groups that keep softmax. It answers in the mode
            ``"softmax"``, as the teacher does, and is in evaluation mode and linear afterwards.
        retrieval: the texts.

    Returns:
        One row per group: ``group``, its name (``layer.group``), and ``mass``, the attention that
        its best head gives to the earlier place of the digit that follows, as the mean over digits
        and samples, between 0 and 1.

    Raises:
        DataError: texts that are too short, or a tokenizer without a digit of its own.
        OptionError: a model with fewer positions than the samples have tokens.
    """
    causal: Any = [layer for layer in replaced.layers if layer.causal]
    names = [layer.name for layer in replaced.layers]
    numbers = layer_numbers(replaced.model, names)
    draw = torch.Generator().manual_seed(retrieval.seed)
    samples = _samples(retrieval, draw)

    longest = max(len(sample.tokens) for sample in samples)
    limit = positions_of(replaced.model)
    if limit is not None and longest > limit:
        raise OptionError(
            f"expected a model with positions for the probe's {longest} tokens, got {limit}; "
            f"{NAME_GROUPS}"
        )

    # The mass of each head of a layer, summed over the samples. A hook reads queries and keys
    # before the heads answer, and adds the mass in place; it belongs to one sample, whose places it
    # knows, and is removed afterwards.
    mass_sums = {}
    for layer in causal:
        mass_sums[layer.name] = torch.zeros(layer.heads, dtype=torch.float64)
    model = replaced.model.eval()
    device = device_of(model)
    with replaced.mode("softmax"):
        for sample in samples:
            with ExitStack() as hooks:
                for name, total in mass_sums.items():
                    reader = _Reader(sample, total)
                    part = replaced.parts[name]
                    hook = part.register_forward_pre_hook(reader, with_kwargs=True)
                    hooks.callback(hook.remove)
                tokens = sample.tokens[None].to(device)
                model(input_ids=tokens, use_cache=False)

    rows = []
    for layer in causal:
        # (groups, heads per group): neighbouring heads share the keys of a group, and the best of
        # them stands for it.
        masses = mass_sums[layer.name] / len(samples)
        best = masses.view(layer.groups, -1).amax(1)
        number = numbers[layer.name]
        for group, mass in enumerate(best.tolist()):
            row = {"group": f"{number}.{group}", "mass": round(mass, 6)}
            rows.append(row)
    return sorted(rows, key=lambda row: -row["mass"])


def best_groups(
    ranking: Sequence[dict[str, Any]],
    keep: int | str | Sequence[str] | None,
) -> list[str]:
    """Return the groups to keep: the first ``keep``, or with ``"probe"`` those with a mass of at
    least :data:`LEAST`.

    Raises:
        OptionError: more groups than there are, another value than a number or ``"probe"``, or no
            group that retrieves.

    Example:
        >>> ranking = [{"group": "3.1", "mass": 0.8}, {"group": "0.0", "mass": 0.01}]
        >>> best_groups(ranking, 2), best_groups(ranking, "probe")
        (['3.1', '0.0'], ['3.1'])
    """
    if keep == "probe":
        found = [row["group"] for row in ranking if row["mass"] >= LEAST]
        if not found:
            raise OptionError(
                f"expected groups that retrieve, got none with a mass of {LEAST} or more (the best "
                f"has {ranking[0]['mass']:.3f}); give a number, or leave keep out"
            )
        return found
    if not isinstance(keep, int) or not 1 <= keep <= len(ranking):
        raise OptionError(
            f"keep: expected 1 to {len(ranking)} groups of heads, got {keep!r}; give a number, a "
            "list of names or 'probe'"
        )
    return [row["group"] for row in ranking[:keep]]


class _Reader:
    """Hook of a layer: before its heads answer, add up the attention from queries to their keys.

    Args:
        sample: the text that the model reads.
        total: (heads,) receives the mean attention over the digits of the answer.
    """

    def __init__(self, sample: Sample, total: Tensor):
        self.sample = sample
        self.total = total

    def __call__(
        self,
        part: Heads,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        # The batch has one sample: query and key are (heads, N, e) here.
        query = args[0][0]
        key = part.share(args[1])[0]
        device = key.device
        queries = self.sample.queries.to(query.device)
        factor = part.factor(kwargs.get("scale"))
        scores = query[:, queries].float() @ key.float().mT * factor
        later = torch.arange(key.shape[1], device=device) > queries[:, None]
        attention = scores.masked_fill(later, -torch.inf).softmax(-1)

        # Each query has one key, at the same index.
        rows = torch.arange(len(queries), device=device)
        keys = self.sample.keys.to(device)
        mass = attention[:, rows, keys].mean(-1)
        self.total += mass.double().cpu()


def _samples(retrieval: Retrieval, draw: torch.Generator) -> list[Sample]:
    """Draw needles and lists in turns; texts with too few words have no lists."""
    tokenizer = retrieval.tokenizer

    def encode(text: str) -> Tensor:
        return encode_part(tokenizer, text)

    if not tells_digits_apart(encode):
        raise DataError(
            "expected a tokenizer with a vocabulary of digits, got one that reads different digits "
            f"as the same tokens; {NAME_GROUPS}"
        )
    text = torch.cat([encode(one) for one in retrieval.texts])
    if len(text) <= retrieval.distance:
        raise DataError(
            f"expected texts of more than {retrieval.distance} tokens for the probe of groups, got "
            f"{len(text)}; give more text"
        )
    every_word = set()
    for document in retrieval.texts:
        every_word.update(document.split())
    words = sorted(filter(str.isalpha, every_word))

    samples = []
    for _ in range(retrieval.samples):
        numbers = [draw_number(draw) for _ in range(PAIRS)]
        number = numbers[0]
        needle = ListQuestion(SAID.format(number), QUESTION, number)
        filler = _filler(text, retrieval, draw)
        samples.append(_sample(encode, needle, filler))
        if len(words) >= PAIRS:
            listed = list_question(words, numbers, draw)
            filler = _filler(text, retrieval, draw)
            samples.append(_sample(encode, listed, filler))
    return samples


def _filler(
    text: Tensor,
    retrieval: Retrieval,
    draw: torch.Generator,
) -> Tensor:
    """Draw a stretch of the text, as long as the distance."""
    length = retrieval.distance
    start = draw_below(len(text) - length + 1, draw)
    return text[start : start + length]


def _sample(
    encode: Callable[[str], Tensor],
    asked: ListQuestion,
    filler: Tensor,
) -> Sample:
    """Compose a text: the statement, filler, the question, and the answer."""
    statement = encode(asked.statement)
    question = encode(asked.question)
    answered = encode(f"{asked.question} {asked.number}")
    asked_again = answered[: len(question)]
    answer = answered[len(question) :]
    if not torch.equal(asked_again, question) or not len(answer):
        raise DataError(
            "expected a tokenizer that reads a question as the same tokens with and without its "
            f"answer, got one that does not; {NAME_GROUPS}"
        )

    # A leading space may be a token of its own, or part of the first digit's.
    place = _place(statement, answer)
    if place is None:
        answer = answer[1:]
        place = _place(statement, answer)
    if place is None:
        raise DataError(
            "expected a tokenizer with a vocabulary of digits, got one that reads a number "
            f"differently in the statement and in the answer; {NAME_GROUPS}"
        )
    tokens = torch.cat([statement, filler, answered])
    begin = len(tokens) - len(answer)
    steps = torch.arange(len(answer))
    return Sample(tokens, begin - 1 + steps, place + steps)


def _place(tokens: Tensor, part: Tensor) -> int | None:
    """Return where a part begins in a text, or None where it does not occur."""
    if not len(part) or len(part) > len(tokens):
        return None
    stretches = tokens.unfold(0, len(part), 1)
    matches = (stretches == part).all(1).nonzero()
    if not len(matches):
        return None
    return int(matches[0])
