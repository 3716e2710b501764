"""Pairwise physics: forces between charges in a box, and bodies of unknown mass that move under
springs or gravity, learned by models of equal size.
"""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    runs={
        "charges": "charges:run",
        "designs": "designs:run",
        "springs": "motion:run_springs",
        "gravity": "motion:run_gravity",
    },
    pages={
        PAGES / "physics.md": "page:page",
        PAGES / "physics-designs.md": "designs:page",
        PAGES / "motion.md": "motion_page:page",
    },
    claims="claims:CLAIMS",
)
