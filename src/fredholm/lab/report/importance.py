"""Importance of inputs: of the columns of a table, with its section, and of the words of a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ...progress import steps
from ..data.files.terms import Column
from ..data.kinds.texts import encode_rows
from ..data.vocabulary import Vocabulary
from .page import Data, Picture, Section, words
from .panels import clip, percent, plain_numbers
from .style import Theme, new_figure, render
from .subject import Subject, answers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Shuffles of a column, and rows that are shuffled, at most.
REPEATS = 5
ROWS = 500

# Numbers that the model reads, at most: columns × repeats × rows × channels.
CELLS = 10_000_000

# Rows below which shuffling tells nothing.
FEWEST = 10

# Words of a text that are measured.
LONGEST = 80

# Words of which every subset is tried.
FEW_WORDS = 6

# Subsets tried of a text of more words.
VARIANTS = 256

# Columns of a table whose importance is drawn.
MAX_COLUMNS = 20

# The error of the outputs for some rows, the first ones; less is better.
Score = Callable[[Tensor], float]

# From outputs of a model to calibrated logits, or to numbers in the units of the files.
Convert = Callable[[Tensor], Tensor]


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
    """

    text: str
    support: float | None = None
    without: float | None = None


def column_importance(
    model: nn.Module,
    inputs: Tensor,
    columns: Sequence[Column],
    score: Score,
    *,
    seed: int,
) -> list[Importance]:
    """Return permutation importance, the most important column first: how much the error grows
    when a column's cells are shuffled among the rows.

    Rows and repeats are reduced so that the model reads at most :data:`CELLS` numbers. The list is
    empty where fewer than :data:`FEWEST` rows are left: a small table, or one with very many
    columns.

    Args:
        model: answers a batch of rows (N, channels, 1).
        inputs: rows, of which at most :data:`ROWS` are used, from the first on.
        columns: each is shuffled as a whole; one of words has several channels.
        score: the error of the outputs for all rows used; less is better.
        seed: of the shuffles.

    Reference: Breiman, "Random forests" (2001); Fisher, Rudin and Dominici, "All models are wrong,
    but many are useful" (2019).
    """
    generator = torch.Generator().manual_seed(seed)

    # One repeat reads each row once for every column.
    per_row = len(columns) * inputs.shape[1]
    rows = min(ROWS, CELLS // per_row)
    inputs = inputs[:rows]
    if len(inputs) < FEWEST:
        return []
    per_repeat = len(inputs) * per_row
    repeats = max(1, min(REPEATS, CELLS // per_repeat))

    base = score(answers(model, inputs))
    result = []
    for column in steps("explain: columns", columns, unit="columns"):
        growth = torch.empty(repeats)
        for repeat in range(repeats):
            order = torch.randperm(len(inputs), generator=generator)
            shuffled = inputs.clone()
            # All channels of a column move together, so that words stay words.
            channels = list(column.channels)
            shuffled[:, channels] = inputs[order][:, channels]
            error = score(answers(model, shuffled))
            growth[repeat] = error - base
        mean = float(growth.mean())
        sd = 0.0
        if repeats > 1:
            sd = float(growth.std())
        result.append(Importance(column.name, mean, sd))
    return sorted(result, key=lambda each: -each.mean)


def importance_section(
    subject: Subject,
    score: Score,
    measure: str,
) -> list[Section]:
    """Return the section on which columns of a table matter, in a list; no section for other
    samples.

    Args:
        score: the error of the outputs.
        measure: ``"accuracy"``, or the name of the error.
    """
    columns = subject.terms.columns
    if not subject.tabular or len(columns) < 2:
        return []
    found = column_importance(
        subject.model,
        subject.inputs,
        columns,
        score,
        seed=subject.seed,
    )
    if not found:
        return []

    shown = found[:MAX_COLUMNS]
    left_out = len(found) - len(shown)
    picture = Picture(
        "importance",
        "; ".join(f"{each.name}: {each.mean:.3g}" for each in shown),
        words("importance_caption", left_out=left_out),
        render(draw_importance, shown, measure),
        Data(["column", "mean", "sd"], found),
    )
    text = words("importance")
    return [Section("importance", "Which columns matter", text, [picture])]


def read_texts(
    facts: Mapping[str, Any],
) -> Callable[[list[str]], Tensor] | None:
    """Return how a saved model reads texts; None where it has no vocabulary."""
    saved = facts.get("vocabulary")
    if saved is None:
        return None
    vocabulary = Vocabulary.from_dict(saved)

    def read(texts: list[str]) -> Tensor:
        tokens, _ = encode_rows(texts, vocabulary, facts["max_length"], "text")
        return tokens

    return read


def word_support(
    model: nn.Module,
    text: str,
    read: Callable[[list[str]], Tensor],
    called: int | None,
    convert: Convert = Tensor.double,
) -> list[Word]:
    """Return the words of a text, each with how much it speaks for the answer.

    Some words are left out, in many ways, and a linear function of which words are there is fitted
    to the answers: its coefficients are the supports. Of two words that say the same, leaving out
    one at a time would see neither.

    Args:
        model: answers token numbers (N, length).
        text: as it is written; of a longer one the first :data:`LONGEST` words are measured.
        read: makes token numbers of texts.
        called: the class that is asked about; None of a number.
        convert: calibrates the model's outputs, or brings them to the units of the files.

    Reference: Ribeiro, Singh and Guestrin, "Why should I trust you?" (2016), without the weighting
    of samples.
    """
    written = re.findall(r"\S+", text)
    result = [Word(word) for word in written]
    # A word without a letter or digit, such as a dash, is not measured.
    tried = []
    for place, word in enumerate(written[:LONGEST]):
        if re.search(r"\w", word):
            tried.append(place)
    if len(tried) < 2:
        return result

    kept = _kept_words(len(tried))
    texts = [_without(written, tried, each) for each in kept]
    outputs = convert(answers(model, read(texts)))
    if called is None:
        values = shown = outputs.flatten()
    else:
        # Log-odds add up over words where probabilities do not.
        before = outputs[:, :called]
        after = outputs[:, called + 1 :]
        others = torch.cat([before, after], 1)
        values = outputs[:, called] - others.logsumexp(1)
        shown = values.sigmoid()

    # Least squares: one coefficient per word, and a constant.
    constant = torch.ones(len(kept), 1, dtype=torch.float64)
    design = torch.cat([kept.double(), constant], 1)
    target = values.double()[:, None]
    fitted = torch.linalg.lstsq(design, target)
    support = fitted.solution[:-1, 0]

    # The complete text comes first, and then the text without each of its words.
    without = shown[1:].tolist()
    for number, place in enumerate(tried):
        result[place] = Word(
            written[place],
            float(support[number]),
            without[number],
        )
    return result


def _kept_words(count: int) -> Tensor:
    """Return which words are kept, (variants, count): all, all but one, and then every choice of
    few words, or random halves and their complements of many.
    """
    every = torch.ones(1, count, dtype=torch.bool)
    single = ~torch.eye(count, dtype=torch.bool)
    if count <= FEW_WORDS:
        # Each number's binary digits are one subset.
        numbers = torch.arange(1, 2**count - 1)
        digits = torch.arange(count)
        some = (numbers[:, None] >> digits) % 2 == 1
    else:
        generator = torch.Generator().manual_seed(0)
        half = torch.rand(VARIANTS // 2, count, generator=generator) < 0.5
        some = torch.cat([half, ~half])
        # A model may not be able to read a text without words.
        some = some[some.any(1)]
    return torch.cat([every, single, some])


def _without(
    written: Sequence[str],
    tried: Sequence[int],
    kept: Tensor,
) -> str:
    """Return a text without the words that are not kept."""
    left_out = set()
    for place, stays in zip(tried, kept.tolist()):
        if not stays:
            left_out.add(place)
    return " ".join(word for place, word in enumerate(written) if place not in left_out)


# --- pictures -------------------------------------------------------------------------------------


def draw_importance(
    theme: Theme,
    found: Sequence[Importance],
    measure: str,
) -> Figure:
    """Plot one bar per column, the most important on top, with a line of ± 1 standard deviation.

    Args:
        measure: ``"accuracy"``, or the name of an error.
    """
    width = min(theme.width, 6.5)
    height = 0.3 * len(found) + 0.8
    figure = new_figure(width, height)
    axes = figure.subplots()
    places = range(len(found))[::-1]
    axes.barh(
        places,
        [each.mean for each in found],
        xerr=[each.sd for each in found],
        color=theme.series[0],
        ecolor=theme.ink,
        height=0.62,
    )
    axes.axvline(0, color=theme.ink, linewidth=0.8)
    names = [clip(each.name, 22) for each in found]
    axes.set_yticks(places, names)
    change = f"{measure} added"
    plain_numbers(axes.xaxis)
    if measure == "accuracy":
        change = "accuracy lost"
        percent(axes.xaxis)
    between = theme.pick(" ", "\n")
    axes.set_xlabel(f"{change} when{between}the column is shuffled")
    axes.grid(axis="x")
    return figure
