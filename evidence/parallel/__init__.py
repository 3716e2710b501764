"""Distributed domains: memory, messages and time of a training step by the number of processes."""

from __future__ import annotations

from ..kit.page import DOCS, PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    times={
        "traffic": "speed:time_traffic",
        "overlap": "speed:time_overlap",
        "steps": "speed:time_steps",
    },
    runs={
        "memory": "memory:run_memory",
        "weights": "weights:run_weights",
        "limit": "limit:run_limit",
    },
    pages={PAGES / "parallel.md": "page:page", DOCS / "scaling.md": "page:scaling"},
)
