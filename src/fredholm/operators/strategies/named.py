"""How a name becomes a strategy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...errors import OptionError, suggest
from ...kernels import Kernel, Layout
from .base import Strategy
from .exact import Exact
from .fft import FFT
from .linear import Linear
from .monte_carlo import MonteCarlo
from .neumann import Neumann
from .resolvent import Resolvent
from .scan import Scan

STRATEGIES: dict[str, type[Strategy]] = {
    "exact": Exact,
    "linear": Linear,
    "fft": FFT,
    "scan": Scan,
    "monte_carlo": MonteCarlo,
    "neumann": Neumann,
    "resolvent": Resolvent,
}
PREFERRED: tuple[Strategy, ...] = (Linear(), FFT(), Scan())
"""What ``"auto"`` takes where it suits, in this order; else :data:`EXACT`."""
EXACT = Exact()


def resolve(strategy: Strategy | str, kernel: Kernel, layout: Layout) -> Strategy:
    """A strategy from its name. ``"auto"`` follows the kernel's traits and the static facts of the
    call, and is exact:
    :class:`Linear`, :class:`FFT` or :class:`Scan` where they suit, else :class:`Exact`.
    """
    if isinstance(strategy, Strategy):
        return strategy
    if strategy == "auto":
        return next((one for one in PREFERRED if one.suits(kernel, layout)), EXACT)
    if strategy in STRATEGIES:
        return STRATEGIES[strategy]()
    known = suggest(strategy, ("auto", *STRATEGIES))
    raise OptionError(f"unknown strategy {strategy!r}{known}, or pass a Strategy object")


def read_strategy(strategy: Strategy | str | Mapping[str, Any]) -> Strategy | str:
    """A strategy as a recipe writes it: a name, or a mapping of the name and the strategy's
    options.

    Raises:
        OptionError: an unknown name or option, or an option's impossible value.

    Example:
        >>> read_strategy({"name": "monte_carlo", "samples": 32}).samples
        32
    """
    if not isinstance(strategy, Mapping):
        return strategy
    options = dict(strategy)
    name = options.pop("name", None)
    if name not in STRATEGIES:
        raise OptionError(
            f"strategy: received {dict(strategy)!r}; needs a name{suggest(str(name), STRATEGIES)}"
        )
    fields = [f.name for f in dataclasses.fields(STRATEGIES[name])]
    for key in options:
        if key not in fields:
            raise OptionError(f"strategy {name!r} has no option {key!r}{suggest(key, fields)}")
    return STRATEGIES[name](**options)
