"""Texts on the page: what a report of a model of texts shows instead of pictures."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..errors import ShapeError
from .page import Section, table

SHOWN = 12
LONGEST = 220  # signs of a text


def is_text(inputs: Tensor) -> bool:
    """Whether inputs are token numbers (N, length): integers, one row a text."""
    return inputs.dim() == 2 and not inputs.is_floating_point()


def prepare_texts(numbers: Tensor, texts: Sequence[str] | None) -> list[str]:
    """The texts to show; token numbers where there are none.

    Raises:
        ShapeError: no texts, or another number of them.
    """
    if not len(numbers):
        raise ShapeError("a report needs at least one text, got none")
    if texts is None:
        return [" ".join(str(n) for n in row if n) for row in numbers.tolist()]
    if len(texts) != len(numbers):
        raise ShapeError(
            f"texts: received {len(texts)} for {len(numbers)} rows of token numbers; needs one each"
        )
    return list(texts)


def text_section(
    texts: list[str], labels: Tensor, predicted: Tensor, probability: Tensor, classes: Sequence[str]
) -> Section:
    """The most confident mistakes, and the first texts that are right, as tables."""
    wrong = (labels != predicted).nonzero()[:, 0]
    wrong = wrong[probability[wrong].argsort(descending=True)]
    right = (labels == predicted).nonzero()[:, 0]
    parts = []
    for title, chosen in (
        ("Wrong, most confident first", wrong),
        ("Right, in the data's order", right),
    ):
        rows = [
            [
                _short(texts[i]),
                classes[int(labels[i])],
                classes[int(predicted[i])],
                f"{float(probability[i]):.0%}",
            ]
            for i in chosen[:SHOWN].tolist()
        ]
        if rows:
            parts.append(f"<p><b>{title}</b></p>{table(['text', 'is', 'called', 'with'], rows)}")
    return Section(
        "examples",
        "Examples",
        f"<p>{len(wrong)} of {len(labels)} texts were given a wrong class.</p>",
        after="".join(parts),
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
