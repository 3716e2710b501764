"""Fields on grids: pressures in random media, learned by models of equal size."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    runs={"darcy": "darcy:run"},
    pages={PAGES / "fields.md": "page:page"},
    claims="claims:CLAIMS",
)
