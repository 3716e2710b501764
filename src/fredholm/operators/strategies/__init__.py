"""How an integral is computed: one strategy a file. A strategy is frozen and has no parameters."""

from .anchors import Anchors
from .base import Plan, Strategy
from .exact import Exact
from .fft import FFT
from .linear import Linear
from .monte_carlo import MonteCarlo
from .named import read_strategy, resolve
from .neumann import Neumann
from .resolvent import Resolvent
from .scan import Scan

__all__ = [
    "FFT",
    "Anchors",
    "Exact",
    "Linear",
    "MonteCarlo",
    "Neumann",
    "Plan",
    "Resolvent",
    "Scan",
    "Strategy",
    "read_strategy",
    "resolve",
]
