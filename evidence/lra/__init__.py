"""The Long Range Arena at CPU size: short runs of two tasks, and the whole Image task."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    runs={"rows": "rows:run", "image": "image:run"},
    pages={PAGES / "lra.md": "page:page"},
    claims="rows:CLAIMS",
)
