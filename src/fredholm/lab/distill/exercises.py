"""Samples that ask for what lies far back: needles, lists of words and numbers, and copies, made
from the windows of a text.

Few tokens of ordinary text depend on what lies far back, so a state learns little about it there.
An exercise is a window whose own text is the filler. It says something early, and asks for it at
several places further on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import DataError, OptionError
from ..data import LabelledDataset
from ..data.kinds.dataset import IGNORED
from .data import TokenWindows
from .needles import PAIRS, QUESTION, SAID, draw_number, list_words, tells_digits_apart

EXERCISES = ("needle", "list", "copy")
ASKED = 4  # questions of a window, at most
LEAST = 16  # tokens of filler, at least


class Parts(NamedTuple):
    """What an exercise adds to its filler.

    Attributes:
        said: tokens that say something.
        questions: tokens that ask for it, with the answers.
    """

    said: Tensor
    questions: list[Tensor]


class Exercises(LabelledDataset):
    """Windows of tokens, a share of which are exercises made from their own text.

    Which windows they are, and what they say, follows from the seed and a window's place.

    Args:
        source: the windows.
        tokenizer: of the model; it tells digits apart.
        share: of the windows that are exercises, above 0 and at most 1.
        seed: of what is drawn.

    Raises:
        OptionError: a share that is none; a tokenizer that does not tell digits apart.
        DataError: windows too short for an exercise; texts without words for a list.
    """

    task = "tokens"

    def __init__(self, source: TokenWindows, tokenizer: Any, share: float, seed: int = 0):
        if not 0 < share <= 1:
            raise OptionError(
                f"expected exercises as a share of the windows, above 0 and at most 1, got {share}"
            )
        super().__init__(source.name, source.split, source.labels, ())
        self.base, self.tokenizer = source, tokenizer
        self.share, self.seed = share, seed
        self.max_length, self.reach = source.max_length, source.reach
        if not tells_digits_apart(self._encode):
            raise OptionError(
                "expected a tokenizer that tells digits apart beside exercises, got "
                f"{type(tokenizer).__name__}; leave exercises out"
            )
        self.words = list_words(tokenizer, source.windows.flatten())
        if len(self.words) < PAIRS:
            raise DataError(f"expected texts with {PAIRS} words or more, got {len(self.words)}")
        draw = torch.Generator().manual_seed(seed)
        self.chosen = torch.rand(len(source), generator=draw) < share

    def __len__(self) -> int:
        return len(self.base)

    def batch(
        self, indices: Tensor | Sequence[int], transform: Any = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """A model's arguments and the tokens that follow, (B, N) each."""
        indices = torch.as_tensor(indices, dtype=torch.int64)
        inputs, labels = self.base.batch(indices)
        rows = self.chosen[indices].nonzero().flatten().tolist()
        if not rows:
            return inputs, labels
        tokens = inputs["input_ids"].clone()
        for row in rows:
            tokens[row] = self.exercise(int(indices[row]))
        following = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=IGNORED)
        return inputs | {"input_ids": tokens}, following

    def exercise(self, index: int) -> Tensor:
        """Return the exercise of a window, (N,)."""
        draw = torch.Generator().manual_seed(1_000_003 * self.seed + index)
        window = self.base.windows[index].long()
        kind = EXERCISES[_below(len(EXERCISES), draw)]
        if kind == "needle":
            parts = self._needle(draw)
        elif kind == "list":
            parts = self._list(draw)
        else:
            parts = _copy(window, draw)
        return _composed(window, parts, draw)

    def _needle(self, draw: torch.Generator) -> Parts:
        number = draw_number(draw)
        question = self._encode(f"{QUESTION} {number}\n\n")
        return Parts(self._encode(SAID.format(number)), [question] * (1 + _below(2, draw)))

    def _list(self, draw: torch.Generator) -> Parts:
        order = torch.randperm(len(self.words), generator=draw)[:PAIRS].tolist()
        pairs = [(self.words[i], draw_number(draw)) for i in order]
        lines = "".join(f"{word}: {number}\n" for word, number in pairs)
        asked = torch.randperm(PAIRS, generator=draw)[:ASKED].tolist()
        questions = [self._encode("\n\n{}: {}\n\n".format(*pairs[i])) for i in asked]
        return Parts(self._encode(f"{lines}\n"), questions)

    def _encode(self, text: str) -> Tensor:
        return torch.tensor(self.tokenizer([text])["input_ids"][0])


def _copy(window: Tensor, draw: torch.Generator) -> Parts:
    """A passage of the window that comes again, in every second exercise in random order."""
    longest = max(2, len(window) // 8)
    length = 2 + _below(longest - 1, draw)
    start = _below(len(window) - length + 1, draw)
    passage = window[start : start + length]
    if _below(2, draw):
        passage = passage[torch.randperm(length, generator=draw)]
    return Parts(passage, [passage] * (1 + _below(2, draw)))


def _composed(window: Tensor, parts: Parts, draw: torch.Generator) -> Tensor:
    """Return as many tokens as the window has: its text, something said within its first half, and
    questions at places behind it.

    Questions for which there is no room are left out, all but one.
    """
    questions = list(parts.questions)
    while True:
        filler = len(window) - len(parts.said) - sum(map(len, questions))
        if filler >= LEAST:
            break
        if len(questions) == 1:
            raise DataError(
                f"expected windows of {len(window) - filler + LEAST} tokens or more for an "
                f"exercise, got {len(window)}; use longer windows, or leave exercises out"
            )
        questions.pop()

    first = _below(filler // 2 + 1, draw)
    places = torch.randint(first, filler + 1, (len(questions),), generator=draw).sort().values
    found, start = [window[:first], parts.said], first
    for place, question in zip(places.tolist(), questions):
        found += [window[start:place], question]
        start = place
    return torch.cat([*found, window[start:filler]])


def _below(limit: int, draw: torch.Generator) -> int:
    return int(torch.randint(limit, (), generator=draw))
