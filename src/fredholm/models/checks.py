"""Checks that the configurations of several families share: what came, what is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import OptionError, suggest


def image_sides(size: Sequence[int] | int) -> tuple[int, ...]:
    """Height and width of ``size``, a side or both.

    Example:
        >>> image_sides(28), image_sides([16, 32])
        ((28, 28), (16, 32))
    """
    return (size, size) if isinstance(size, int) else tuple(size)


def check_counts(counts: Iterable[tuple[str, Any]]) -> None:
    """OptionError unless every (name, value) is a positive integer."""
    for name, value in counts:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise OptionError(f"{name}: received {value!r}; needs a positive integer")


def check_rates(config: Any, *names: str) -> None:
    """OptionError unless these fields are rates in [0, 1)."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise OptionError(f"{name}: received {value!r}; needs a rate in [0, 1)")


def check_ratio(value: Any) -> None:
    """OptionError unless ``mlp_ratio`` is a number, 0 or more."""
    if not isinstance(value, int | float) or value < 0:
        raise OptionError(f"mlp_ratio: received {value!r}; needs a number, 0 or more")


def check_known(config: Any, **known: Iterable[str]) -> None:
    """OptionError unless each field is one of its known names."""
    for name, names in known.items():
        value = getattr(config, name)
        if value not in names:
            raise OptionError(f"{name}: received {value!r}{suggest(str(value), names)}")


def check_heads(dim: int, heads: int) -> None:
    """OptionError unless the heads share the width."""
    if dim % heads:
        raise OptionError(f"heads must divide dim: {heads} does not divide {dim}")


def check_patch(size: Sequence[int], patch: Sequence[int] | int) -> None:
    """OptionError unless the patch, a side or both, divides the image."""
    sides = image_sides(patch)
    if len(sides) != 2 or any(side % part for side, part in zip(size, sides)):
        name = sides[0] if len(set(sides)) == 1 else "x".join(map(str, sides))
        raise OptionError(
            f"the patch must divide the image: {name} does not divide {size[0]}x{size[1]}"
        )
