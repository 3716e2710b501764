"""The prose of pages: macros of templates by name."""

from __future__ import annotations

import pytest

from fredholm.lab.report.page import words


def test_an_unknown_macro_is_named():
    with pytest.raises(LookupError, match=r"expected a macro of run\.html, .* got 'no_such_text'"):
        words("no_such_text", count=1)
