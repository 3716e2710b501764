"""Checks of the options of data sets."""

from __future__ import annotations

from typing import Any

from fredholm.errors import OptionError


def check_integers(options: Any, least: int, *names: str) -> None:
    """Check that some fields are integers of ``least`` or more.

    Raises:
        OptionError: a field is smaller, or not an integer.
    """
    for name in names:
        value = getattr(options, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise OptionError(f"{name}: expected an integer of {least} or more, got {value!r}")
