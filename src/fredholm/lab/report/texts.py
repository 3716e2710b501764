"""Texts on the page: what a report of a model of texts shows instead of pictures."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..data.kinds.kind import Kind
from .page import Section, table, words

SHOWN = 12
LONGEST = 220  # signs of a text


def text_section(
    texts: list[str],
    labels: Tensor,
    predicted: Tensor,
    probability: Tensor,
    classes: Sequence[str],
    kind: Kind,
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
            listed = table([kind.one, "is", "called", "with"], rows)
            parts.append(words("titled", title=title, table=listed))
    return Section(
        "examples",
        "Examples",
        words("mistakes", wrong=len(wrong), count=len(labels), what=kind.many),
        after="".join(parts),
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
