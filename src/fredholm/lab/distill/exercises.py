"""Exercises in recall: needles, lists of words and numbers, copies, made from windows of a text.

Few tokens of ordinary text depend on tokens far back, so that a state learns little about them. An
exercise states something early in a window, asks for it at several places further on, and fills the
rest with the window's own text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import DataError, OptionError
from ..data import LabelledDataset
from ..data.kinds.dataset import IGNORED, Indices, index_tensor
from .data import TokenWindows
from .frame import Frame, encode_part
from .needles import (
    PAIRS,
    QUESTION,
    SAID,
    draw_below,
    draw_number,
    list_words,
    tells_digits_apart,
)

EXERCISES = ("needle", "list", "copy")

# Questions of a window at most, and tokens of filler at least.
ASKED = 4
LEAST = 16


class Parts(NamedTuple):
    """Parts of an exercise beside its filler.

    Attributes:
        said: tokens of the statement.
        questions: tokens that ask for it, with the answers.
    """

    said: Tensor
    questions: list[Tensor]


class Exercises(LabelledDataset):
    """Windows of tokens, a share of which are exercises made from their own text.

    The seed and the index of a window determine whether it is one, and which.

    Args:
        source: the windows.
        tokenizer: of the model; it tells digits apart.
        share: of the windows that are exercises, above 0 and at most 1.
        seed: of what is drawn.

    Raises:
        OptionError: a share outside (0, 1]; a tokenizer that does not tell digits apart.
        DataError: texts with fewer different words than a list has; from :meth:`batch`, windows
            too short for an exercise.
    """

    task = "tokens"

    def __init__(
        self,
        source: TokenWindows,
        tokenizer: Any,
        share: float,
        seed: int = 0,
    ):
        if not 0 < share <= 1:
            raise OptionError(
                f"exercises: expected a share above 0 and at most 1, got {share}; give e.g. 0.25"
            )
        super().__init__(source.name, source.split, source.labels, ())
        self.base = source
        self.tokenizer = tokenizer
        self.share = share
        self.seed = seed
        # Exercises are as long as the windows, and at the same positions. A resumed conversion
        # compares these two with those of its first run.
        self.max_length = source.max_length
        self.reach = source.reach
        if not tells_digits_apart(self._encode):
            raise OptionError(
                "expected a tokenizer that tells digits apart beside exercises, got "
                f"{type(tokenizer).__name__}; leave exercises out"
            )
        self.begin = Frame.of(tokenizer).begin
        # Words for the lists, from the first tokens of the text.
        self.words = list_words(tokenizer, source.windows.flatten())
        if len(self.words) < PAIRS:
            raise DataError(
                f"expected texts with {PAIRS} words or more, got {len(self.words)}; give more "
                "text, or leave exercises out"
            )
        # (windows,) whether each is an exercise; `share` of them are on average.
        draw = torch.Generator().manual_seed(seed)
        self.chosen = torch.rand(len(source), generator=draw) < share

    def __len__(self) -> int:
        return len(self.base)

    def raw(self, indices: Indices) -> tuple[dict[str, Tensor], Tensor]:
        """Return a model's arguments and the tokens that follow, (B, N) each."""
        indices = index_tensor(indices)
        inputs, labels = self.base.raw(indices)
        rows = self.chosen[indices].nonzero().flatten()
        if not len(rows):
            return inputs, labels
        tokens = inputs["input_ids"].clone()
        for row in rows.tolist():
            tokens[row] = self.exercise(int(indices[row]))
        following = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=IGNORED)
        return inputs | {"input_ids": tokens}, following

    def exercise(self, index: int) -> Tensor:
        """Return the exercise of a window, (N,)."""
        # The factor, a prime, keeps the streams of different seeds apart.
        stream = 1_000_003 * self.seed + index
        draw = torch.Generator().manual_seed(stream)
        window = self.base.windows[index].long()
        leading = self._leading(window)
        kind = EXERCISES[draw_below(len(EXERCISES), draw)]
        if kind == "needle":
            parts = self._needle(draw)
        elif kind == "list":
            parts = self._list(draw)
        else:
            parts = _copy(window[leading:], draw)
        return _composed(window, parts, leading, draw)

    def _leading(self, window: Tensor) -> int:
        """Return how many tokens at the start of a window begin a document, such as BOS."""
        count = len(self.begin)
        if torch.equal(window[:count], self.begin):
            return count
        return 0

    def _needle(self, draw: torch.Generator) -> Parts:
        """Draw a number that a sentence states, and ask for it once or twice."""
        number = draw_number(draw)
        statement = self._encode(SAID.format(number))
        question = self._encode(f"{QUESTION} {number}\n\n")
        times = 1 + draw_below(2, draw)
        return Parts(statement, [question] * times)

    def _list(self, draw: torch.Generator) -> Parts:
        """Draw a list of :data:`PAIRS` lines "word: number"; :data:`ASKED` of them are repeated."""
        order = torch.randperm(len(self.words), generator=draw)[:PAIRS]
        pairs = []
        for place in order.tolist():
            number = draw_number(draw)
            pairs.append(f"{self.words[place]}: {number}\n")
        lines = "".join(pairs)

        asked = torch.randperm(PAIRS, generator=draw)[:ASKED]
        questions = [self._encode(f"\n\n{pairs[place]}\n") for place in asked.tolist()]
        return Parts(self._encode(f"{lines}\n"), questions)

    def _encode(self, text: str) -> Tensor:
        return encode_part(self.tokenizer, text)


def _copy(window: Tensor, draw: torch.Generator) -> Parts:
    """Draw a passage of the window to be repeated; in every second exercise its order is random."""
    longest = max(2, len(window) // 8)
    length = 2 + draw_below(longest - 1, draw)
    start = draw_below(len(window) - length + 1, draw)
    passage = window[start : start + length]
    if draw_below(2, draw):
        order = torch.randperm(length, generator=draw)
        passage = passage[order]
    times = 1 + draw_below(2, draw)
    return Parts(passage, [passage] * times)


def _composed(
    window: Tensor,
    parts: Parts,
    leading: int,
    draw: torch.Generator,
) -> Tensor:
    """Return as many tokens as the window has: its text, the statement within its first half, and
    the questions behind it.

    The statement stands behind the ``leading`` tokens of the window. Questions for which there is
    no room are left out, except for the first.
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

    first = max(leading, draw_below(filler // 2 + 1, draw))
    places = torch.randint(first, filler + 1, (len(questions),), generator=draw)
    pieces = [window[:first], parts.said]
    start = first
    for place, question in zip(sorted(places.tolist()), questions):
        pieces += [window[start:place], question]
        start = place
    pieces.append(window[start:filler])
    return torch.cat(pieces)
