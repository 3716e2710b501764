"""LUNA: measured theory, learned functions, speed and accuracy beside other attentions."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    times={"speed": "speed:time", "encoders": "encoders.contest:time"},
    runs={
        "theory": "theory:run_theory",
        "psi": "theory:run_psi",
        "maps": "theory:run_maps",
        "encoders": "encoders.contest:run",
    },
    pages={
        PAGES / "luna-kernel.md": "page:page",
        PAGES / "luna-encoders.md": "encoders.page:page",
    },
    draw="page:draw",
    claims="encoders.claims:CLAIMS",
)
