"""Programs of every operator and model family: their errors beside the model, or what refuses them;
and how fast they are beside it.
"""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

FILE, SPEED_FILE = "export.json", "export-speed.json"
SUBJECT = Subject(
    __name__,
    runs={"programs": "table:fill_programs", "compilers": "table:fill_compilers"},
    times={"speed": "speed:time_speed"},
    pages={PAGES / "export.md": "page:page"},
)
