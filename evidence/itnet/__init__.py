"""ITNet: trained evidence on its claims, its evaluation modes, and the duration of its recipes."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Options, Subject

SUBJECT = Subject(
    __name__,
    times={"modes": "modes:time", "recipes": "recipes:time"},
    runs={"sections": ":run", "spectrum": "spectrum:run", "start": "start:run"},
    pages={PAGES / "itnet.md": "page:page"},
    draw="modes:draw_committed",
    claims="claims:CLAIMS",
)


def run(options: Options) -> None:
    """Train the sections of ``--only``, or all."""
    from ..kit.grid import run_sections
    from .sections import SECTIONS

    run_sections(SECTIONS, "itnet.json", options)
