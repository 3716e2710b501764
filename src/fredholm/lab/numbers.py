"""Numbers as people write them."""

from __future__ import annotations

import math


def readable(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits, and without an exponent up to a billion.

    Whole numbers of more digits are written in full, with commas.

    Example:
        >>> readable(0.98158), readable(22673.4), readable(376081, 5), readable(5.14e11)
        ('0.9816', '22,673', '376,081', '5.14e+11')
        >>> readable(9999.6), readable(1000580, 6)
        ('10,000', '1,000,580')
    """
    rounded = f"{value:.{digits}g}"
    # Rounding may add a digit, as of 9999.6.
    if 10**digits <= abs(float(rounded)) and abs(value) < 1e9:
        return f"{value:,.0f}"
    return rounded


def duration(seconds: float) -> str:
    """Return a rough time in words.

    Example:
        >>> [duration(t) for t in (0.02, 4.2, 75, 125, 3600 * 2.4)]
        ['1 s', '5 s', '75 s', '2 min', '2.4 h']
    """
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def plural(count: int, name: str) -> str:
    """Return a number of things in words.

    Example:
        >>> plural(1, "layer"), plural(2000, "layer")
        ('1 layer', '2,000 layers')
    """
    if count == 1:
        return f"1 {name}"
    return f"{count:,} {name}s"
