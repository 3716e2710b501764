"""Graphs, clouds and windows with few neighbours per point: speed and memory beside other packages.

Times are processor seconds of one thread. The ways alternate, and their answers are checked first.
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
