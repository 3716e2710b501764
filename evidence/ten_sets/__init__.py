"""Ten public data sets through the front door: written as users have them, then compared as
``fredholm compare PATH`` compares, beside MiniROCKET, a GRU and gradient boosting.
"""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    runs={"sets": "run:run"},
    pages={PAGES / "ten-sets.md": "page:page"},
)
