"""Choice of an operator for given data.

The page docs/choosing.md has a contest on tasks that suit different operators (the *elements*), the
comparison of all operators on small tasks, times, cost models, and the domains that each operator
accepts.
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
