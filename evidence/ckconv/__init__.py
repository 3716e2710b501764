"""CKConv: long memory, activations, lost observations, irregular times, fits of kernels, and speed."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Options, Subject

SUBJECT = Subject(
    __name__,
    times={"speed": "speed:time"},
    runs={
        "sections": ":run",
        "series": "series:run",
        "resampled": "resampled:run",
        "kernels": "kernels:run",
        "equal-time": "equal_time:run",
        "irregular": "irregular.contest:run",
    },
    pages={PAGES / "ckconv.md": "page:page", PAGES / "irregular.md": "irregular.page:page"},
    draw="page:draw",
    cases="speed:timed",
    ratios="speed:committed",
    claims="claims:CLAIMS",
)


def run(options: Options) -> None:
    """Train the sections of ``--only``, or all."""
    from ..kit.grid import run_sections
    from .evidence import SECTIONS

    run_sections(SECTIONS, "ckconv.json", options)
