"""Pairwise physics: the forces between charges in a box, learned by models of equal size."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    runs={"charges": "contest:run"},
    pages={PAGES / "physics.md": "page:page"},
    claims="claims:CLAIMS",
)
