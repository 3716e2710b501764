"""LUNA's kernel: measured theory, learned functions, and speed beside other linear attentions."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    times={"speed": "speed:time"},
    runs={"theory": "theory:run_theory", "psi": "theory:run_psi", "maps": "theory:run_maps"},
    pages={PAGES / "luna-kernel.md": "page:page"},
    draw="page:draw",
)
