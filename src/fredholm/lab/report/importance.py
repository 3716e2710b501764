"""What answers depend on: the columns of a table, and the words of a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...progress import steps
from ..data.files.terms import Column
from ..data.kinds.texts import encode_rows
from ..data.vocabulary import Vocabulary
from .samples import answers

REPEATS = 5  # shuffles of a column
ROWS = 500  # that are shuffled, at most
CELLS = 200_000  # rows × columns × repeats, at most
LONGEST = 80  # words of a text that are left out in turn

Score = Callable[[Tensor], float]  # of all outputs; less is better


class Importance(NamedTuple):
    """How much worse a model's score is with a column shuffled: mean and deviation of repeats."""

    name: str
    mean: float
    sd: float


class Word(NamedTuple):
    """A word of a text, and what it tells the model.

    Attributes:
        text: the word as it is written.
        support: how much it speaks for the answer, in log-odds of a class or in the units of a
            number; None where that was not measured.
        without: the answer to the text without it: the class's probability, or the number.
        alone: the answer to the word alone.
    """

    text: str
    support: float | None = None
    without: float | None = None
    alone: float | None = None


def column_importance(
    model: nn.Module,
    inputs: Tensor,
    columns: Sequence[Column],
    score: Score,
    *,
    seed: int,
) -> list[Importance]:
    """Return permutation importance, the most important column first: how much ``score`` grows
    when a column's cells are dealt out anew among the rows.

    Args:
        model: answers a batch of rows (N, channels, 1).
        inputs: at most :data:`ROWS` of them are used.
        columns: each shuffled as a whole, the channels of its words together.
        score: an error, of all outputs; less is better.
        seed: of the shuffles.

    Reference: Breiman, "Random forests" (2001); Fisher, Rudin and Dominici, "All models are wrong,
    but many are useful" (2019).
    """
    generator = torch.Generator().manual_seed(seed)
    repeats = max(1, min(REPEATS, CELLS // max(1, len(inputs) * len(columns))))
    base = score(answers(model, inputs))
    result = []
    for column in steps("explain: columns", columns, unit="columns"):
        changes = []
        for _ in range(repeats):
            order = torch.randperm(len(inputs), generator=generator)
            shuffled = inputs.clone()
            shuffled[:, list(column.channels)] = inputs[order][:, list(column.channels)]
            changes.append(score(answers(model, shuffled)) - base)
        found = torch.tensor(changes)
        sd = float(found.std()) if repeats > 1 else 0.0
        result.append(Importance(column.name, float(found.mean()), sd))
    return sorted(result, key=lambda each: -each.mean)


def read_texts(facts: Mapping[str, Any]) -> Callable[[list[str]], Tensor] | None:
    """Return how a saved model reads texts; None where it has no vocabulary."""
    saved = facts.get("vocabulary")
    if saved is None:
        return None
    vocabulary = Vocabulary.from_dict(saved)
    return lambda texts: encode_rows(texts, vocabulary, facts["max_length"], "text")[0]


def word_support(
    model: nn.Module,
    text: str,
    read: Callable[[list[str]], Tensor],
    called: int | None,
    scale: float = 1.0,
) -> list[Word]:
    """Return the words of a text, each with how much it speaks for the answer.

    The support of a word is the mean of two changes: of the answer to the whole text when the word
    is left out, and of the answer to the word alone against the median of the text's other words.
    Of two words that say the same the first change alone would see neither.

    Args:
        model: answers token numbers (N, length).
        text: as it is written; of a longer one the first :data:`LONGEST` words are measured.
        read: makes token numbers of texts.
        called: the class that is asked about; None of a number.
        scale: of a number, units of the files for one of the model's.
    """
    words = re.findall(r"\S+", text)
    tried = [i for i, word in enumerate(words[:LONGEST]) if re.search(r"\w", word)]
    if len(tried) < 2:
        return [Word(word) for word in words]
    left_out = [" ".join(words[:i] + words[i + 1 :]) for i in tried]
    outputs = answers(model, read([text, *left_out, *(words[i] for i in tried)]))
    if called is None:
        values = shown = outputs.flatten() * scale
    else:
        others = torch.cat([outputs[:, :called], outputs[:, called + 1 :]], 1)
        values = outputs[:, called] - others.logsumexp(1)
        shown = values.sigmoid()
    without, alone = values[1:].split(len(tried))
    support = ((values[0] - without) + (alone - alone.median())) / 2
    result = [Word(word) for word in words]
    measured = zip(
        tried, support.tolist(), *(part.tolist() for part in shown[1:].split(len(tried)))
    )
    for i, *found in measured:
        result[i] = Word(words[i], *found)
    return result
