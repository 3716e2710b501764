"""Strategies: the user's words for how an integral is computed. A strategy names a class of
algorithms and has their options. The algorithms themselves are forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..arguments import Checked, refuse_kind
from ..errors import OptionError, suggest
from ..notebook import NotebookTable
from ..ops.backend import check_backend
from ..registry import Registry


@dataclass(frozen=True)
class Strategy(metaclass=Checked):
    """A method to compute ∫ K u dμ. Subclasses are frozen dataclasses without learned parameters.

    Attributes:
        exact: whether the result equals the definition.
        needs: the capability that a kernel must have for it, in words.
        instead: the strategy to use for a kernel without it, in words.
    """

    exact: ClassVar[bool] = True
    needs: ClassVar[str] = "a form of this strategy among the kernel's forms"
    instead: ClassVar[str] = "'auto'"

    def stepping(self) -> Strategy:
        """Return the strategy of a causal step, one point at a time."""
        return self


@dataclass(frozen=True)
class Exact(Strategy):
    """Evaluate every pair, by the best suitable form of the kernel.

    Args:
        memory: budget in bytes for the working set of one tile or query block; None lets the op
            choose for the device.
        backend: of the tiled forms, ``"auto"``, ``"torch"``, ``"triton"`` or ``"checked"`` (see
            :mod:`fredholm.ops.backend`). A form without a Triton kernel refuses the last two. A
            causal step is one row, in PyTorch with any backend.

    Cost: O(N²) time, except for forms that a layer itself defines. Blocks of queries are recomputed
    in the backward, so memory is O(N).

    Raises:
        OptionError: a memory below one byte, or an unknown backend.

    Example:
        >>> Exact(memory=1 << 20).backend
        'auto'
    """

    memory: int | None = None
    backend: str = "auto"

    def __post_init__(self) -> None:
        if self.memory is not None and self.memory < 1:
            raise OptionError(
                f"memory: expected at least 1 byte, or None, got {self.memory}; leave it out for "
                "the device's default"
            )
        check_backend(self.backend)


@dataclass(frozen=True)
class Linear(Strategy):
    """Integrate separable kernels exactly in O(N): by sums over all keys or, in causal order, by
    chunked prefix sums, with steps of O(1).

    Masks of pairs, and an order across two domains, use the quadratic form.

    Args:
        chunk: points per causal chunk, whose pairs are formed.
        piece: points whose features a CPU makes at a time, in inference without an order.
        backend: ``"auto"``, ``"torch"``, ``"triton"`` or ``"checked"`` (see
            :mod:`fredholm.ops.backend`). Triton's kernels make the features of a bank (``Banked``)
            in registers, for sums and for chunks. A causal step is one row, in PyTorch with any
            backend.

    Raises:
        OptionError: a chunk or piece without points, or an unknown backend.

    Example:
        >>> Linear(chunk=32).piece
        16384
    """

    needs: ClassVar[str] = "a separable kernel: query_features, key_features and values (Separable)"
    instead: ClassVar[str] = "Exact"
    chunk: int = 64
    piece: int = 16384
    backend: str = "auto"

    def __post_init__(self):
        check_backend(self.backend)
        for name in ("chunk", "piece"):
            if getattr(self, name) < 1:
                raise OptionError(
                    f"{name}: expected at least one point, got {getattr(self, name)}; leave it out "
                    "for the default"
                )


@dataclass(frozen=True)
class FFT(Strategy):
    """Convolve the kernel's taps, or its hidden units, with the signal by FFT, in O(N log N).

    Both are padded so that nothing wraps around. A causal step is the kernel's own.

    For kernels with ``LagTaps`` on causal domains where lags are whole steps, and kernels with
    ``LagFeatures`` on regular grids, causal ones with one axis.

    Args:
        backend: of the product of hidden units' spectra, see :mod:`fredholm.ops.backend`.

    Example:
        >>> FFT().backend
        'auto'
    """

    needs: ClassVar[str] = (
        "taps at whole lags (LagTaps) or hidden units of the displacement on a regular grid "
        "(LagFeatures)"
    )
    instead: ClassVar[str] = "Exact()"
    backend: str = "auto"

    def __post_init__(self):
        check_backend(self.backend)

    def stepping(self) -> Strategy:
        return EXACT


@dataclass(frozen=True)
class Scan(Strategy):
    """Compute all states of the kernel's recurrence, then the outputs, in O(N). A causal step is
    the kernel's own.

    For kernels with ``StateScan``: state space models, selective or not, on causal domains.

    Example:
        >>> Scan().exact
        True
    """

    needs: ClassVar[str] = "a state of fixed size on a causal domain (StateScan)"
    instead: ClassVar[str] = "Exact()"

    def stepping(self) -> Strategy:
        return EXACT


EXACT = Exact()


@dataclass(frozen=True)
class Plan(NotebookTable):
    """The result of ``operator.plan``: the strategy and the form that will run, and why.

    Attributes:
        strategy: the strategy with its options.
        path: the form's name.
        reason: why this form.
        exchange: on a sharded domain, the messages between the ranks, in words; otherwise empty.
            :func:`fredholm.distributed.count_traffic` counts their size.
    """

    strategy: str
    path: str
    reason: str
    exchange: str = ""

    def __str__(self) -> str:
        line = f"{self.strategy} by {self.path}: {self.reason}"
        if not self.exchange:
            return line
        return f"{line}; between ranks: {self.exchange}"


STRATEGIES: Registry[type[Strategy]] = Registry("strategy")
"""Strategies by name, as recipes write them."""

register_strategy = STRATEGIES.register

for _name, _kind in {"exact": Exact, "linear": Linear, "fft": FFT, "scan": Scan}.items():
    STRATEGIES.add(_name, _kind)


def read_strategy(strategy: Strategy | str | Mapping[str, Any]) -> Strategy | str:
    """Return a strategy from its form in a recipe: ``"auto"``, a name, a mapping of the name and
    the strategy's options, or the strategy itself.

    ``"auto"`` remains a word, because it chooses at each call.

    Raises:
        OptionError: an unknown name or option, or an option's impossible value.

    Example:
        >>> read_strategy({"name": "monte_carlo", "samples": 32}).samples
        32
    """
    if isinstance(strategy, Strategy):
        return strategy
    if isinstance(strategy, str):
        if strategy == "auto":
            return strategy
        if strategy not in STRATEGIES:
            hint = suggest(strategy, ("auto", *STRATEGIES))
            raise OptionError(f"unknown strategy {strategy!r}{hint}, or pass a Strategy object")
        return STRATEGIES[strategy]()
    if not isinstance(strategy, Mapping):
        raise OptionError(refuse_kind("strategy", strategy, "a name, a mapping or a Strategy"))

    options = dict(strategy)
    name = options.pop("name", None)
    if name not in STRATEGIES:
        hint = suggest(str(name), STRATEGIES)
        raise OptionError(f"strategy: expected a name, got {dict(strategy)!r}{hint}")
    return STRATEGIES[name](**options)
