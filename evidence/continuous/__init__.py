"""The continuous transformer: accuracy, noise, other numbers of steps, and monitors."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    runs={
        "reviews": "evidence:run",
        "plateau": "plateau:run",
        "layers": "layers:run",
        "depths": "contests:run_depths",
        "equal-attention": "contests:run_equal_attention",
    },
    pages={
        PAGES / "continuous-transformer.md": "page:page",
        PAGES / "evolution.md": "contests:page",
    },
    draw="pictures:draw",
    claims="claims:CLAIMS",
)
