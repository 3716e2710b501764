"""Controls θ(t): parameters at knots in time, and between the knots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor

from ....errors import OptionError, suggest


@dataclass(frozen=True)
class Controls:
    """A map from K knots of parameters to θ(t) on [0, T]. One knot is a control shared by all times
    (an autonomous equation).
    """

    def locate(
        self,
        t: float,
        horizon: float,
        knots: int,
        *,
        before: bool = False,
    ) -> tuple[int, int, float]:
        """Return (i, j, w) with θ(t) = (1 - w) θ_i + w θ_j; at a jump the value after it, or
        ``before`` it.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Controls):
    """Piecewise constant: knot k holds on [kT/K, (k+1)T/K), as a stack of layers has it.

    Example:
        >>> Constant().locate(2.5, 4.0, 4)
        (2, 2, 0.0)
    """

    def locate(
        self,
        t: float,
        horizon: float,
        knots: int,
        *,
        before: bool = False,
    ) -> tuple[int, int, float]:
        # Rounding must not put a time that is meant to be a jump on its other side.
        s = t / horizon * knots
        if before:
            k = ceil(s - 1e-9) - 1
        else:
            k = floor(s + 1e-9)
        k = min(max(k, 0), knots - 1)
        return k, k, 0.0


@dataclass(frozen=True)
class Linear(Controls):
    """Linear between the midpoints (k + ½)T/K of the cells, constant beyond the outer ones.

    With K steps of the Lie scheme every control is read at a midpoint, so that the result equals
    the piecewise constant one.

    Example:
        >>> Linear().locate(2.0, 4.0, 4)
        (1, 2, 0.5)
    """

    def locate(
        self,
        t: float,
        horizon: float,
        knots: int,
        *,
        before: bool = False,
    ) -> tuple[int, int, float]:
        s = min(max(t / horizon * knots - 0.5, 0.0), knots - 1.0)
        k = min(floor(s + 1e-9), max(knots - 2, 0))

        # At a midpoint, up to rounding, one knot is read and nothing is interpolated.
        w = s - k
        if w < 1e-9:
            return k, k, 0.0
        if w > 1 - 1e-9:
            return k + 1, k + 1, 0.0
        return k, k + 1, w


CONTROLS: dict[str, Callable[[], Controls]] = {"constant": Constant, "linear": Linear}


def resolve_controls(controls: Controls | str) -> Controls:
    """Return controls by their name, ``constant`` or ``linear``; Controls are returned as they
    are.
    """
    if isinstance(controls, Controls):
        return controls
    if controls not in CONTROLS:
        raise OptionError(f"unknown controls {controls!r}{suggest(controls, CONTROLS)}")
    return CONTROLS[controls]()
