"""Numbers as people write them."""

from __future__ import annotations


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
