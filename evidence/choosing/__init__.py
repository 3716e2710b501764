"""Which operator for which data: operators in their element, the comparison of all on small tasks,
the speed pass, cost models, and what each operator is able to read.
"""

from __future__ import annotations

from ..kit.page import DOCS
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    times={"rows": "speed:run"},
    runs={"elements": "contest:run", "take": "page:take", "html": "page:write_html"},
    pages={DOCS / "choosing.md": "page:page"},
)
