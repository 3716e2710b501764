"""Every claim of the five papers, with our result, the verdict and the cost of deciding it."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(__name__, pages={PAGES / "claims.md": "page:page"})
