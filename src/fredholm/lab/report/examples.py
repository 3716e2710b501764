"""Samples with a model's answers, each kind in its usual form: rows under the names of their
columns, texts with words marked, series over their own times, fields beside the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..data.files.terms import Terms
from ..data.kinds.kind import Cloud, Kind, Signal
from ..numbers import readable
from . import result_plots
from .importance import Word, word_support
from .page import Data, Picture, Section, example_table, marked_texts, words
from .style import render

SHOWN = 16  # samples that are drawn, of each list
LISTED = 8  # rows and texts, which take a line each
WIDEST = 12  # columns of a table that are listed
SUPPORTS = 0.15  # of a text's strongest word, from which a word is marked
FAINTEST = 0.05  # change of the log-odds that is marked at all
LEVELS = 4  # shades of a marked word
LONGEST = 120  # words of a text


class Said(NamedTuple):
    """The answer of a model for one sample.

    Attributes:
        index: of the sample.
        truth, answer: in words.
        note: how sure, or how far off.
        wrong: whether a class is wrong; None of numbers.
    """

    index: int
    truth: str
    answer: str
    note: str
    wrong: bool | None = None


class Shown(NamedTuple):
    """The material of the examples of a page.

    Attributes:
        things: what is drawn of each sample.
        rows: of a table, the samples as a model reads them (N, channels).
        terms: names and units of the user's files.
        kind: of the samples.
        support: the words of a text and what each changes, by the text and the class called.
    """

    things: Sequence[Any]
    rows: np.ndarray | None
    terms: Terms
    kind: Kind
    support: Callable[[str, int], list[Word]] | None = None


def class_examples(
    shown: Shown, labels: Tensor, outputs: Tensor, classes: Sequence[str]
) -> Section:
    """The most confident mistakes, and the first samples that are right."""
    probability, predicted = outputs.softmax(-1).max(-1)
    wrong = (labels != predicted).nonzero()[:, 0]
    wrong = wrong[probability[wrong].argsort(descending=True)]
    right = (labels == predicted).nonzero()[:, 0]

    def said(index: int) -> Said:
        truth, answer = classes[int(labels[index])], classes[int(predicted[index])]
        return Said(index, truth, answer, f"{float(probability[index]):.0%}", truth != answer)

    heads = ("Wrong, most confident first", "Right, in the data's order")
    result = Section("examples", "Examples", _legend(shown))
    for key, title, chosen in zip(("wrong", "right"), heads, (wrong, right)):
        found = [said(index) for index in chosen[:SHOWN].tolist()]
        if found:
            classed = [int(predicted[each.index]) for each in found]
            result = _add_list(result, shown, key, title, found, classed, len(labels))
    return result


def number_examples(shown: Shown, truth: Tensor, predicted: Tensor) -> Section:
    """The samples whose numbers are farthest off."""
    error = (predicted - truth).abs()
    found = []
    for i in error.argsort(descending=True)[:SHOWN].tolist():
        asked, answer, off = (float(values[i]) for values in (truth, predicted, error))
        found.append(Said(i, readable(asked, 5), readable(answer, 5), f"off by {readable(off, 3)}"))
    section = Section("examples", "Largest errors", _legend(shown))
    return _add_list(section, shown, "largest", "Farthest off first", found, None, len(truth))


def _legend(shown: Shown) -> str:
    """Return the legend of the marks of words, where words are marked."""
    return "" if shown.support is None else words("marks")


def _add_list(
    section: Section,
    shown: Shown,
    key: str,
    title: str,
    found: Sequence[Said],
    classed: Sequence[int] | None,
    count: int,
) -> Section:
    """Return a section with one more list of samples: rows of a named table and texts as text
    after its pictures, any other kind as a picture, which is added to ``section`` itself.

    Args:
        section: of the examples.
        shown: the material from which samples are drawn.
        key, title: of the list.
        found: answers to the samples of the list, one or more.
        classed: index of each sample's predicted class; None of numbers.
        count: samples from which those of the list were chosen.
    """
    first = shown.things[found[0].index]
    if shown.rows is not None and shown.terms.columns:
        after = _row_table(shown, title, found[:LISTED])
    elif isinstance(first, str):
        after = _texts(shown, title, found[:LISTED], classed)
    else:
        section.pictures.append(_drawn(shown, key, title, found, count))
        return section
    return replace(section, after=section.after + after)


def _row_table(shown: Shown, title: str, found: Sequence[Said]) -> str:
    """A table with the names of the user's columns, what was asked and what was said in front."""
    assert shown.rows is not None
    names = [column.name for column in shown.terms.columns]
    rows = [shown.terms.cells(shown.rows[each.index])[:WIDEST] for each in found]
    label = shown.terms.label or "truth"
    left_out = max(0, len(names) - WIDEST)
    return example_table(title, label, names[:WIDEST], list(zip(found, rows)), left_out)


def _texts(shown: Shown, title: str, found: Sequence[Said], classed: Sequence[int] | None) -> str:
    """Texts with the words marked that speak for the answer or against it."""
    rows = []
    for place, each in enumerate(found):
        text = _short(shown.things[each.index])
        if shown.support is None:
            rows.append((each, [(word, 0, "") for word in text.split()]))
            continue
        called = -1 if classed is None else classed[place]
        support = shown.support(text, called)
        rows.append((each, _marked(support, None if classed is None else each.answer)))
    return marked_texts(title, rows)


def _short(text: str) -> str:
    """Return the first words of a text."""
    found = text.split()
    return " ".join(found) if len(found) <= LONGEST else " ".join([*found[:LONGEST], "…"])


def _marked(found: Sequence[Word], answer: str | None) -> list[tuple[str, int, str]]:
    """Return each word with a level, positive where it speaks for the answer, and what the answer
    would be without it.
    """
    largest = max((abs(word.support) for word in found if word.support is not None), default=0.0)
    least = max(SUPPORTS * largest, FAINTEST if answer is not None else 0.0)
    result = []
    for word in found:
        if word.support is None or abs(word.support) <= least:
            result.append((word.text, 0, ""))
            continue
        level = max(1, round(LEVELS * abs(word.support) / largest))
        sign = 1 if word.support > 0 else -1
        style = "{:.5g}" if answer is None else f"{answer} {{:.0%}}"
        result.append((word.text, sign * level, f"without it: {style.format(word.without)}"))
    return result


def _drawn(shown: Shown, key: str, title: str, found: Sequence[Said], count: int) -> Picture:
    things = [shown.things[each.index] for each in found]
    if isinstance(things[0], Signal):
        things = [shown.terms.signal(thing) for thing in things]
    kind = shown.kind
    facts = {"title": title, "one": kind.one, "shown": len(found), "count": count}
    facts |= {"many": kind.many, "legend": kind.legend, "classes": found[0].wrong is not None}
    alt = f"{len(found)} {kind.many}: " + ", ".join(
        f"{each.truth} answered as {each.answer}" for each in found
    )
    rows = [[each.index, each.truth, each.answer, each.note] for each in found]
    return Picture(
        key,
        alt,
        words("examples_caption", **facts),
        render(lambda theme: result_plots.examples(theme, things, found)),
        Data(["sample", "truth", "answer", "note"], rows),
    )


# --- fields ---------------------------------------------------------------------------------------


class FieldSample(NamedTuple):
    """Input, truth and prediction of one field, in the units of the files.

    Attributes:
        given, truth, answer: (h, w) on a grid, (points,) on points; ``given`` is None where a
            model reads nothing but the coordinates of the points.
        places: (points, 2), the coordinates of points; None on a grid.
        error: relative L2 error of the sample.
    """

    given: np.ndarray | None
    truth: np.ndarray
    answer: np.ndarray
    places: np.ndarray | None
    error: float

    def panels(self) -> dict[str, np.ndarray]:
        """Return the fields to draw, each of the shape of ``truth``, by the title of their panel:
        ``input`` if there is one, ``truth``, ``prediction``, and ``error``, the signed difference
        (prediction − truth) at each point.
        """
        given = {} if self.given is None else {"input": self.given}
        difference = self.answer - self.truth
        return {**given, "truth": self.truth, "prediction": self.answer, "error": difference}

    def data(self) -> Data:
        """Return the panels as one table, a row per point."""
        if self.places is None:
            rows, columns = (index.ravel() for index in np.indices(self.truth.shape))
            at = {"row": rows, "column": columns}
        else:
            at = {"x": self.places[:, 0], "y": self.places[:, 1]}
        found = at | {name: values.ravel() for name, values in self.panels().items()}
        return Data(list(found), list(zip(*(values.tolist() for values in found.values()))))


def field_section(samples: Sequence[FieldSample], name: str) -> Section:
    """Input, truth, prediction and error of the worst, a middling and the best sample."""
    order = sorted(range(len(samples)), key=lambda i: -samples[i].error)
    places = {0: "worst", len(order) // 2: "median", len(order) - 1: "best"}
    pictures = []
    for place, label in sorted(places.items()):
        sample = samples[order[place]]
        facts = {"label": label, "error": f"{sample.error:.2%}", "count": len(samples)}
        alt = f"Input, truth, prediction and error of the {label} of {len(samples)} fields"
        drawn = render(lambda theme, sample=sample: result_plots.field_panels(theme, sample))
        caption = words("field_caption", name=name, **facts)
        pictures.append(Picture(f"field-{label}", alt, caption, drawn, sample.data()))
    return Section("fields", "Truth and prediction", words("fields"), pictures)


def field_samples(
    inputs: Tensor,
    outputs: Tensor,
    targets: Tensor,
    facts: Mapping[str, Any],
    coordinates: int,
) -> list[FieldSample]:
    """Return samples in the units of the files, the first channel of each.

    Args:
        inputs: (N, C, h, w), or (N, P, d + C) with coordinates first.
        outputs: (N, points, K), divided by the scale that ``facts`` name.
        targets: (N, K, h, w) or (N, K, P), NaN where a sample has fewer points.
        facts: what was saved with the model.
        coordinates: d, of points.
    """
    scale = torch.tensor(facts.get("scale") or [1.0])
    answers = (outputs * scale)[..., 0].double()
    result = []
    for sample, answer, target in zip(inputs.double(), answers, targets.double()):
        truth = target[0]
        here = ~truth.flatten().isnan()
        error = (answer[here] - truth.flatten()[here]).norm()
        size = float(truth.flatten()[here].norm()) or 1.0
        if inputs.dim() == 4:
            shift = (facts.get("shift") or [0.0])[0]
            unit = (facts.get("input_scale") or [1.0])[0]
            given, placed = (sample[0] * unit + shift).numpy(), None
            answer = answer.reshape(truth.shape)
        else:
            given, placed = _on_points(sample[here].numpy(), facts, coordinates)
            truth, answer = truth[here], answer[here]
        found = given, truth.numpy(), answer.numpy(), placed, float(error) / size
        result.append(FieldSample(*found))
    return result


def _on_points(
    points: np.ndarray, facts: Mapping[str, Any], coordinates: int
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the first input and the places of points in the units of the files."""
    scaling = (facts.get("source") or {}).get("scaling") or {}
    places = points[:, :coordinates]
    if "low" in scaling:
        places = places * scaling["extent"] + np.array(scaling["low"])
    flat = Cloud(places).flat() if coordinates > 1 else np.pad(places, ((0, 0), (0, 1)))
    if points.shape[1] == coordinates:
        return None, flat
    given = points[:, coordinates]
    if "mean" in scaling:
        given = given * scaling["std"][0] + scaling["mean"][0]
    return given, flat


def text_support(
    model: nn.Module, read: Callable[[list[str]], Tensor] | None, scale: float
) -> Callable[[str, int], list[Word]] | None:
    """Return what each word of a text changes, of a text and the class called (-1: a number)."""
    if read is None:
        return None
    return lambda text, called: word_support(
        model, text, read, None if called < 0 else called, scale
    )
