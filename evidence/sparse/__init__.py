"""Graphs, clouds and windows where a point sees few others: speed and memory beside the packages
that users would pick instead. Processor seconds of one thread, ways alternated, answers checked
first.
"""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

FILE = "sparse.json"
SUBJECT = Subject(
    __name__,
    times={"cases": "speed:time_cases", "sizes": "sizes:time_sizes"},
    runs={"debian": "debian:run"},
    pages={PAGES / "sparse.md": "page:page"},
)
