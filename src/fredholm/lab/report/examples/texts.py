"""Texts with the words marked that speak for a model's answer or against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from ..importance import Convert, Word, read_texts, word_support
from ..page import words
from ..subject import Subject

# Share of a text's strongest word from which another word is marked.
SUPPORTS = 0.15

# Change of the log-odds from which a word is marked.
FAINTEST = 0.05

# Shades of a marked word.
LEVELS = 4

# Words of a text that are shown.
LONGEST = 120


class Answer(NamedTuple):
    """The answer of a model for one sample.

    Attributes:
        index: of the sample.
        name: of the sample; "" where it has none.
        truth, answer: in words.
        note: how sure, or how far off.
        wrong: whether a class is wrong; None of numbers.
        called: index of the answered class; None of numbers.
    """

    index: int
    name: str
    truth: str
    answer: str
    note: str
    wrong: bool | None = None
    called: int | None = None

    @property
    def noted(self) -> str:
        """What the note is, for the head of a table."""
        if self.called is None:
            return "error"
        return "confidence"


class Mark(NamedTuple):
    """A word of a text as the page shows it.

    Attributes:
        word: as it is written.
        level: shade, positive if the word speaks for the answer, negative if against it; 0 for
            none.
        note: the answer to the text without the word.
    """

    word: str
    level: int = 0
    note: str = ""


def _reader(subject: Subject) -> Callable[[list[str]], Tensor] | None:
    """Return the function from texts to inputs of the model; None if the report was not given the
    texts, or the model was saved without what it needs to read them.
    """
    if subject.samples.texts is None:
        return None
    return read_texts(subject.facts)


def legend(subject: Subject) -> str:
    """Return the legend of the marks of words, where words are marked."""
    if _reader(subject) is None:
        return ""
    return words("marks")


def marked_texts(
    subject: Subject,
    title: str,
    found: Sequence[Answer],
    convert: Convert,
) -> str:
    """Return the HTML of texts with the words marked that speak for the answer or against it.

    A long text ends after :data:`LONGEST` words; its answers are those of the complete text.
    Words stay unmarked if it is not known how texts become inputs of the model.

    Args:
        subject: the model and its samples, which are texts.
        title: of the list.
        found: answers to the samples of the list.
        convert: calibrates the model's outputs, or brings them to the units of the files.
    """
    assert subject.things is not None
    read = _reader(subject)
    rows = []
    for each in found:
        # The answer is that of the complete text, and so are the answers without a word.
        text = subject.things[each.index].split()
        marks = [Mark(word) for word in text]
        if read is not None:
            support = word_support(
                subject.model,
                " ".join(text),
                read,
                each.called,
                convert,
            )
            marks = [_mark(word, each, support) for word in support]
        if len(marks) > LONGEST:
            marks = [*marks[:LONGEST], Mark("…")]
        rows.append((each, marks))
    return words("marked_texts", title=title, rows=rows)


def _mark(
    word: Word,
    answer: Answer,
    text: Sequence[Word],
) -> Mark:
    """Return a word of a text with its shade, relative to the text's strongest word."""
    known = [each.support for each in text if each.support is not None]
    largest = max(map(abs, known), default=0.0)
    least = SUPPORTS * largest
    style = "{:.5g}"
    if answer.called is not None:
        # Log-odds that hardly change are noise, even if no word of the text changes them more.
        least = max(least, FAINTEST)
        style = f"{answer.answer} {{:.0%}}"
    if word.support is None or abs(word.support) <= least:
        return Mark(word.text)

    share = LEVELS * abs(word.support) / largest
    level = max(1, round(share))
    if word.support < 0:
        level = -level
    note = f"without it: {style.format(word.without)}"
    return Mark(word.text, level, note)
