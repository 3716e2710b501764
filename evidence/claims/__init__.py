"""Every claim of the five papers: what it says, what was found here, and what it would take."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(__name__, pages={PAGES / "claims.md": "page:page"})
