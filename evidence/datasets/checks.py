"""Checks of the options of data sets."""

from __future__ import annotations

from typing import Any

from fredholm.lab.data.vocabulary import check_count


def check_integers(options: Any, least: int, *names: str) -> None:
    """Check that some fields are integers of ``least`` or more.

    Raises:
        OptionError: a field is smaller, or not an integer.
    """
    for name in names:
        check_count(name, getattr(options, name), least)
