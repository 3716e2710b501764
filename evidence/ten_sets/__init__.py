"""Ten public data sets, written to files like a user's and compared by ``fredholm compare PATH``,
beside MiniROCKET, a GRU and gradient boosting.
"""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    runs={"sets": "run:run"},
    pages={PAGES / "ten-sets.md": "page:page"},
)
