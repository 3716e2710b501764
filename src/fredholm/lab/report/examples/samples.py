"""The section of samples with a model's answers, each kind in its usual form: rows under the names
of their columns, texts with words marked, pictures and series as drawings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ...data.kinds.kind import Cloud, Signal
from ...numbers import readable
from ..importance import Convert
from ..page import Data, Picture, Section, words
from ..panels import clip, dots, few_ticks, name_lanes, picture
from ..style import Theme, literal, panels, render
from ..subject import Subject
from .texts import Answer, legend, marked_texts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Samples of each list that are drawn.
SHOWN = 16

# Rows and texts of each list, which take a line each.
LISTED = 8

# Columns of a table that are listed.
WIDEST = 12

# Channels of a series whose names are written.
MAX_LANES = 12


def class_examples(
    subject: Subject,
    labels: Tensor,
    outputs: Tensor,
    temperature: float,
) -> Section:
    """Return the section with the most confident mistakes, and the first samples that are right.

    Args:
        labels: true classes (N,).
        outputs: logits (N, classes).
        temperature: divides logits where confidences are shown.
    """

    def calibrated(logits: Tensor) -> Tensor:
        return logits.double() / temperature

    predicted = outputs.argmax(-1)
    probabilities = calibrated(outputs).softmax(-1)
    probability = probabilities.gather(-1, predicted[:, None])[:, 0]
    right = (labels == predicted).nonzero()[:, 0]
    wrong = (labels != predicted).nonzero()[:, 0]
    by_confidence = probability[wrong].argsort(descending=True)
    wrong = wrong[by_confidence]

    def answer(index: int) -> Answer:
        true = int(labels[index])
        called = int(predicted[index])
        names = subject.classes
        share = f"{float(probability[index]):.0%}"
        return Answer(
            index,
            subject.name(index),
            names[true],
            names[called],
            share,
            true != called,
            called,
        )

    section = Section("examples", "Examples", legend(subject))
    lists = {
        "wrong": ("Wrong, most confident first", wrong),
        "right": ("Right, in the data's order", right),
    }
    for key, (title, indices) in lists.items():
        shown = indices[:SHOWN].tolist()
        found = [answer(index) for index in shown]
        if found:
            section = _with_list(section, subject, key, title, found, calibrated)
    return section


def number_examples(
    subject: Subject,
    truth: Tensor,
    predicted: Tensor,
    in_units: Convert,
) -> Section:
    """Return the section with the samples whose numbers are farthest off.

    Args:
        truth, predicted: (N,), in the units of the files.
        in_units: brings outputs of the model to those units.
    """
    # Largest errors show best what a model has not learned.
    error = (predicted - truth).abs()
    farthest = error.argsort(descending=True)[:SHOWN]
    found = []
    for index in farthest.tolist():
        off = float(error[index])
        answer = Answer(
            index,
            subject.name(index),
            readable(float(truth[index]), 5),
            readable(float(predicted[index]), 5),
            f"off by {readable(off, 3)}",
        )
        found.append(answer)

    section = Section("examples", "Largest errors", legend(subject))
    return _with_list(
        section,
        subject,
        "largest",
        "Farthest off first",
        found,
        in_units,
    )


def _with_list(
    section: Section,
    subject: Subject,
    key: str,
    title: str,
    found: Sequence[Answer],
    convert: Convert,
) -> Section:
    """Return a section with one more list of samples: rows of a named table and texts as text after
    the pictures, any other kind as a picture.

    Args:
        key, title: of the list.
        found: answers to the samples of the list, one or more.
        convert: calibrates the model's outputs, or brings them to the units of the files.
    """
    assert subject.things is not None
    first = subject.things[found[0].index]
    listed = found[:LISTED]
    if subject.tabular and subject.terms.columns:
        html = _row_table(subject, title, listed)
    elif isinstance(first, str):
        html = marked_texts(subject, title, listed, convert)
    else:
        picture = _picture(subject, key, title, found)
        section.pictures.append(picture)
        html = words("example_names", title=title, rows=found)
    return replace(section, after=section.after + html)


def _row_table(
    subject: Subject,
    title: str,
    found: Sequence[Answer],
) -> str:
    """Return a table with the names of the user's columns, behind true and predicted."""
    terms = subject.terms
    inputs = subject.inputs[..., 0].cpu().numpy()
    names = [column.name for column in terms.columns]
    left_out = max(0, len(names) - WIDEST)
    rows = []
    for answer in found:
        cells = terms.cells(inputs[answer.index])
        rows.append((answer, cells[:WIDEST]))
    return words(
        "example_table",
        title=title,
        label=terms.label or "truth",
        note=found[0].noted,
        names=names[:WIDEST],
        rows=rows,
        left_out=left_out,
    )


def _picture(
    subject: Subject,
    key: str,
    title: str,
    found: Sequence[Answer],
) -> Picture:
    assert subject.things is not None
    kind = subject.kind
    things = [subject.things[each.index] for each in found]
    if isinstance(things[0], Signal):
        things = [subject.terms.signal(thing) for thing in things]
    answered = ", ".join(f"{each.truth} answered as {each.answer}" for each in found)
    caption = words(
        "examples_caption",
        title=title,
        classes=found[0].wrong is not None,
        shown=len(found),
        count=len(subject.inputs),
        kind=kind,
    )
    head = ["sample", "name", "truth", "answer", found[0].noted]
    rows = []
    for each in found:
        cells = [each.index, each.name, each.truth, each.answer, each.note]
        rows.append(cells)
    return Picture(
        key,
        f"{len(found)} {kind.many}: {answered}",
        caption,
        render(draw_examples, things, found),
        Data(head, rows),
    )


def draw_examples(
    theme: Theme,
    things: Sequence[Any],
    found: Sequence[Answer],
) -> Figure:
    """Draw samples below their predictions, with the truth below a wrong class or a number.

    Args:
        things: pictures, :class:`Signal` or :class:`Cloud`.
        found: the answer to each.
    """
    first = things[0]
    columns = theme.pick(4, 2)
    shape = 0.6
    if isinstance(first, np.ndarray):
        columns = theme.pick(8, 3)
        high, wide = first.shape[:2]
        shape = 0.85 * min(high / wide, 1.6)
    height = theme.width / columns * shape + 0.42
    figure, every = panels(theme, len(found), height, columns=columns)
    if isinstance(first, Signal):
        things = in_lanes(things)
    for axes, thing, answer in zip(every, things, found):
        _sample(axes, thing, theme)
        _name_sample(axes, theme, answer)
    if isinstance(first, Signal):
        figure.supxlabel(literal(first.clock), fontsize=9)
        _name_channels(every, first.names, columns)
    return figure


def _sample(
    axes: Axes,
    thing: np.ndarray | Signal | Cloud,
    theme: Theme,
) -> None:
    """Draw one sample: an image, a series with a line per channel, or a cloud of points."""
    if isinstance(thing, np.ndarray):
        picture(axes, thing)
        return
    if isinstance(thing, Cloud):
        axes.scatter(
            *thing.flat().T,
            s=1.5,
            color=theme.series[0],
            linewidths=0,
        )
        axes.set_aspect("equal", adjustable="datalim")
    else:
        look = {"linewidth": 0.8, **dots(len(thing.x))}
        if "marker" in look:
            look["markersize"] = 1.2
        for channel, values in enumerate(thing.values.T):
            axes.plot(
                thing.x,
                values,
                color=theme.series[channel % len(theme.series)],
                **look,
            )
    axes.spines[:].set_color(theme.faint)
    axes.spines[:].set_linewidth(0.4)
    few_ticks(axes)


def _name_sample(axes: Axes, theme: Theme, answer: Answer) -> None:
    """Write the prediction above a sample; the truth below it, unless the class is right."""
    colour = theme.ink
    above = clip(answer.answer)
    if answer.wrong is not None:
        colour = theme.good
        above = f"{above}, {answer.note}".removesuffix(", ")
    if answer.wrong:
        colour = theme.bad
    axes.set_title(
        above,
        loc="center",
        fontsize=8,
        color=colour,
        pad=3,
    )
    if answer.wrong is not False:
        below = f"true: {clip(answer.truth)}"
        axes.set_xlabel(below, fontsize=8, labelpad=2)


def in_lanes(things: Sequence[Signal]) -> list[Signal]:
    """Return series of several channels with each channel in a lane of height 1, the first on top,
    which spans its smallest to its largest value in these series.
    """
    values = np.concatenate([thing.values for thing in things])
    if values.shape[1] < 2:
        return list(things)
    # A channel without any value has the range from inf to -inf, without a warning.
    missing = np.isnan(values)
    low = np.where(missing, np.inf, values).min(0)
    high = np.where(missing, -np.inf, values).max(0)
    # Lanes fill four fifths of their height, so that they do not touch.
    size = np.where(high > low, high - low, 1.0) / 0.8
    _, channels = values.shape
    base = np.arange(channels)[::-1]

    result = []
    for thing in things:
        lanes = (thing.values - low) / size + base
        result.append(replace(thing, values=lanes))
    return result


def _name_channels(
    every: Sequence[Axes],
    names: Sequence[str],
    columns: int,
) -> None:
    """Name the lanes of the first panel of each row."""
    for place, axes in enumerate(every):
        most = 0
        if place % columns == 0:
            most = MAX_LANES
        # Lanes have no numbers of their own; those of a single channel stay.
        if most or len(names) > 1:
            name_lanes(axes, names, most)
