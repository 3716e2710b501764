"""Needle-in-a-haystack test: hide a number in a text, and ask for it further on.

A needle lies at a random depth of held-out text and is asked for after several distances. One pass
over the text serves all distances: the cache is copied before each question.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import DataError
from ...modes import device_of
from ..training.metrics import wilson
from .frame import Frame, encode_part

# transformers is an extra; models of this library are converted without it. Functions that need it
# import it.

# Digits of a number, and pairs of a word and a number in a list.
DIGITS = 5
PAIRS = 8

# Letters of a word in a list at most.
LONGEST = 12

SAID = "The pass key is {}. Remember it.\n\n"
QUESTION = "\n\nThe pass key is"
KINDS = ("needle", "list")

# Tokens beside the filler at most.
ROOM = {"needle": 64, "list": 192}

# Needles between two lines of progress.
SHOWN = 10

Answers = dict[int, list[bool]]
"""By distance, whether a model has each token of the answer right."""


@dataclass(frozen=True)
class Haystacks:
    """Texts in which numbers are hidden, one text per index; the same index gives the same text.

    Attributes:
        filler: (N,) tokens of held-out text, without BOS and EOS.
        tokenizer: the model's.
        distances: numbers of tokens between a hidden number and the question for it.
        depth: largest number of filler tokens before a hidden number.
        seed: seed of everything that is drawn.
    """

    filler: Tensor = field(repr=False)
    tokenizer: Any = field(repr=False)
    distances: tuple[int, ...]
    depth: int
    seed: int = 0

    def draw(self, index: int, kind: str = "needle") -> Haystack:
        """Return the text of an index, with the question for its number.

        The text is what a tokenizer begins texts with, ``depth`` tokens of filler (drawn up to the
        largest depth), the statement of the number, and as much filler as the largest distance asks
        for.

        Args:
            index: number of the text.
            kind: ``"needle"``, one number; or ``"list"``, :data:`PAIRS` words with a number each,
                one of which is asked for.

        Raises:
            DataError: filler that is too short, or without words for a list.
        """
        # A stream of its own for each seed, index and kind; the factor, a prime, keeps the seeds of
        # half a million indices apart.
        stream = 1_000_003 * self.seed + 2 * index + KINDS.index(kind)
        draw = torch.Generator().manual_seed(stream)
        depth = draw_below(self.depth + 1, draw)
        needed = depth + max(self.distances)
        if len(self.filler) < needed:
            raise DataError(
                f"expected texts of {needed} tokens around a needle, got "
                f"{len(self.filler)}; give more text, or smaller distances"
            )
        start = draw_below(len(self.filler) - needed + 1, draw)
        around = self.filler[start : start + needed]

        # A needle uses the first number only.
        numbers = [draw_number(draw) for _ in range(PAIRS)]
        if kind == "needle":
            number = numbers[0]
            statement = SAID.format(number)
            question = QUESTION
        else:
            statement, question, number = list_question(self._words, numbers, draw)

        stated = self._encode(statement)
        begin = Frame.of(self.tokenizer).begin
        tokens = torch.cat([begin, around[:depth], stated, around[depth:]])

        # The answer is what the question grows by. A leading space may be a token of its own, which
        # is not part of the number, and a token may hold several digits.
        asked = self._encode(question)
        answered = self._encode(f"{question} {number}")
        answer = answered[len(asked) :].tolist()
        pieces = [self.tokenizer.decode([token]) for token in answer]
        digits = sum(any(map(str.isdigit, piece)) for piece in pieces)
        if digits == 0:
            raise DataError(
                f"expected a tokenizer whose tokens hold the digits of {number}, got {pieces}; "
                "measure without needles"
            )
        told = len(begin) + depth + len(stated)
        return Haystack(
            tokens=tokens,
            told=told,
            question=answered,
            digits=digits,
        )

    @cached_property
    def _words(self) -> list[str]:
        """Words for lists.

        Raises:
            DataError: the filler has fewer words than a list.
        """
        words = list_words(self.tokenizer, self.filler)
        if len(words) < PAIRS:
            raise DataError(
                f"expected texts with {PAIRS} words or more, got {len(words)}; give more text"
            )
        return words

    def _encode(self, text: str) -> Tensor:
        return encode_part(self.tokenizer, text)

    def has_digits(self) -> bool:
        """Return whether the tokenizer tells digits apart: a vocabulary without them reads every
        number as the same unknown tokens, which any model recalls.
        """
        return tells_digits_apart(self._encode)


def list_words(tokenizer: Any, tokens: Tensor) -> list[str]:
    """Return words for lists, in alphabetical order, from the first tokens of a text."""
    text = tokenizer.decode(tokens[:20_000].tolist())
    words = set(text.split())
    return sorted(word for word in words if word.isalpha() and len(word) <= LONGEST)


def tells_digits_apart(encode: Callable[[str], Tensor]) -> bool:
    """Return whether numbers of different digits have different tokens."""
    known = set()
    for digit in range(1, 10):
        tokens = encode(f"key is {digit}")
        known.add(tuple(tokens.tolist()))
    return len(known) == 9


class ListQuestion(NamedTuple):
    """A list of words with a number each, the question for one word, and its number."""

    statement: str
    question: str
    number: str


def list_question(
    words: Sequence[str],
    numbers: Sequence[str],
    draw: torch.Generator,
) -> ListQuestion:
    """Draw :data:`PAIRS` of the words for as many numbers, and the pair that is asked for.

    The statement has one line ``word: number`` per pair. The question is ``word:``, after which the
    number has to follow.
    """
    order = torch.randperm(len(words), generator=draw).tolist()
    chosen = [words[i] for i in order[:PAIRS]]
    statement = ""
    for word, number in zip(chosen, numbers):
        statement += f"{word}: {number}\n"
    statement += "\n"

    asked = draw_below(PAIRS, draw)
    question = f"\n\n{chosen[asked]}:"
    return ListQuestion(statement, question, numbers[asked])


class Haystack(NamedTuple):
    """A text that holds a number, and the question for it.

    Attributes:
        tokens: the text, up to the largest distance.
        told: number of its tokens up to the end of the statement of the number.
        question: tokens of the question with its answer.
        digits: how many tokens at the end of it hold the answer's digits.
    """

    tokens: Tensor
    told: int
    question: Tensor
    digits: int


@torch.inference_mode()
def answers(
    model: Any,
    haystack: Haystack,
    distances: Sequence[int],
) -> Answers:
    """Return which tokens of the number a model has right at each distance, given those before.

    Greedy generation gives the whole number exactly where all of them are right.
    """
    from transformers import DynamicCache

    device = device_of(model)
    cache = DynamicCache(config=model.config)
    found: Answers = {}
    start = 0
    for distance in sorted(distances):
        stop = haystack.told + distance
        tokens = haystack.tokens[None, start:stop].to(device)
        model(
            input_ids=tokens,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        start = stop

        # The question must not stay in the cache of the text, which goes on behind it.
        asked = haystack.question[None].to(device)
        fork = copy.deepcopy(cache)
        kept = haystack.digits + 1
        out = model(
            input_ids=asked,
            past_key_values=fork,
            use_cache=True,
            logits_to_keep=kept,
        )
        predicted = out.logits[0, -kept:-1].argmax(-1)
        right = predicted == asked[0, 1 - kept :]
        found[distance] = right.tolist()
    return found


def summarise(
    rows: Sequence[Mapping[str, Answers]],
    distance: int,
) -> dict[str, Any]:
    """Return the recall of each model at a distance.

    Args:
        rows: the answers of all models by name, one row per needle; one model is ``"teacher"``.
        distance: a distance at which the needles were asked for.

    Returns:
        ``distance``, ``needles`` (their number), and for every model three shares between 0 and 1:

        - under its name, the share of digits that are right;
        - ``NAME_whole``, the share of numbers all of whose digits are right;
        - ``NAME_share``, not of the teacher: of the digits that the teacher has right, the share
          that this model has right too.

        Each has an interval of 95% (``…_interval``). The digits of one number are not independent
        of each other; the interval counts them as a single observation, and so errs on the wide
        side.
    """
    result: dict[str, Any] = {"distance": distance, "needles": len(rows)}
    for name in rows[0]:
        # Which digits are right, one list per needle.
        ours = [row[name][distance] for row in rows]
        theirs = [row["teacher"][distance] for row in rows]
        shares = [sum(digits) / len(digits) for digits in ours]
        result |= _with_interval(name, shares)
        complete = [float(all(digits)) for digits in ours]
        result |= _with_interval(f"{name}_whole", complete)
        if name != "teacher":
            result |= _of_teacher(f"{name}_share", ours, theirs)
    return result


def _with_interval(name: str, shares: Sequence[float]) -> dict[str, Any]:
    """Return the mean of shares, one per needle, and its interval."""
    share = sum(shares) / len(shares)
    return {name: share, f"{name}_interval": list(wilson(share, len(shares)))}


def _of_teacher(
    name: str,
    ours: Sequence[Sequence[bool]],
    theirs: Sequence[Sequence[bool]],
) -> dict[str, Any]:
    """Return the share of the teacher's right digits that are right here too, or None."""
    known = 0
    both = 0
    for student, teacher in zip(ours, theirs):
        known += sum(teacher)
        for right, recalled in zip(student, teacher):
            both += right and recalled
    if not known:
        return {name: None, f"{name}_interval": [0.0, 1.0]}

    share = both / known
    # Needles of which the teacher recalls nothing are no observations.
    needles = sum(any(digits) for digits in theirs)
    return {name: share, f"{name}_interval": list(wilson(share, needles))}


def measure_needles(
    models: Mapping[str, nn.Module],
    haystacks: Haystacks,
    count: int,
    kind: str = "needle",
    say: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Return the recall at every distance, over ``count`` needles of a kind (:func:`summarise`)."""
    rows = []
    for index in range(count):
        haystack = haystacks.draw(index, kind)
        row = {}
        for name, model in models.items():
            row[name] = answers(model, haystack, haystacks.distances)
        rows.append(row)
        if len(rows) % SHOWN == 0:
            say(f"receipt: {len(rows)} of {count} {kind}s")
    return [summarise(rows, distance) for distance in sorted(haystacks.distances)]


def draw_number(draw: torch.Generator) -> str:
    """Draw five digits, none of them zero."""
    digits = torch.randint(1, 10, (DIGITS,), generator=draw)
    return "".join(map(str, digits.tolist()))


def draw_below(limit: int, draw: torch.Generator) -> int:
    """Draw a whole number from 0 to ``limit`` - 1."""
    return int(torch.randint(limit, (), generator=draw))
