"""The continuous transformer: accuracy, noise, other numbers of steps, and monitors."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    runs={"reviews": "evidence:run", "plateau": "plateau:run", "layers": "layers:run"},
    pages={PAGES / "continuous-transformer.md": "page:page"},
    draw="pictures:draw",
    claims="claims:CLAIMS",
)
