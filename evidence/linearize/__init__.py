"""Pretrained models with linear attention: conversions, recall, and speed."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    times={"minilm": "speed:time", "smollm2": "smollm2:time"},
    runs={
        "conversions": "conversions:run",
        "equivalence": "equivalence:run",
        "smollm2": "smollm2:run",
        "recall": "recall:run",
        "recall-second": "recall:run_second",
    },
    pages={
        PAGES / "luna.md": "page:page",
        PAGES / "smollm2.md": "smollm2:page",
        PAGES / "recall.md": "recall:page",
    },
    claims="page:CLAIMS",
)
