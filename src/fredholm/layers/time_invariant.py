"""Base of linear systems in discrete time: causal kernels that depend on the number of steps
between two points.

The base class from which ``state_space.py`` and ``diagonal_state_space.py`` follow by giving their
taps, their scan and one step; and the checks of all systems in time.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import DomainError, OptionError, ShapeError, suggest
from ..integral import (
    CausalTransition,
    DefaultLine,
    IntegralOperator,
    Kernel,
    Layout,
    MatrixKernel,
    Point,
    Problem,
    with_offset,
)
from ..integral.capabilities import LagTaps, StateScan
from ..integral.features import weighed
from ..ops.backend import at_least_single, full_precision
from ..ops.scan import pack, ranks, reorder
from .parts import bind, for_batch_of

RULES = ("zoh", "bilinear", "euler")


def check_sequence(
    kernel: Kernel,
    layout: Layout,
    *,
    measures: tuple[str, ...] | None = None,
) -> None:
    """Raise DomainError unless the domain is one causal sequence without pairs, and has one of the
    ``measures`` if these are given.
    """
    name = type(kernel).__name__
    if not layout.causal:
        raise DomainError(f"{name} runs forward in time; build the domain with causal=True")
    if layout.pairs:
        raise DomainError(
            f"{name} has a state, which sees all points before; a domain with pairs hides some of "
            "them"
        )
    if layout.cross:
        raise DomainError(
            f"{name} answers at the points it has read; a query_domain needs a kernel of real time"
        )
    if measures is not None and layout.measure not in measures:
        need = " or ".join(repr(m) for m in measures)
        raise DomainError(f"{name}: expected the measure {need}, got {layout.measure!r}")


class TimeInvariantKernel(MatrixKernel, LagTaps, StateScan, CausalTransition):
    r"""A discrete linear system, seen as a kernel: :math:`K(t, s) = \kappa_{t-s}` for s ≤ t, with a
    free response as offset.

    A point is a step, wherever it is; padding is not a point. The domain is causal, its masses
    multiply u, and ``counting`` (a unit mass per step) is what a recurrence does. A subclass
    gives κ, the free response and one step; the matrix, the convolution by FFT, the scan and the
    causal step follow.
    """

    reads_query = False
    line = DefaultLine(causal=True, measure="counting")
    sums = True
    skips_padding = True

    @abstractmethod
    def lags(self, n: int) -> Float[Tensor, "h n o i"]:
        """Return κ at lags 0 to n - 1."""

    @abstractmethod
    def states(self, signal: Float[Tensor, "b h n i"], recurrence: Any = None) -> Tensor:
        """Return outputs of the system at rest, (B, H, N, d_out), through all its states;
        ``recurrence`` replaces the scan over them.
        """

    @abstractmethod
    def free(self, n: int) -> Tensor | None:
        """Return the response of the first n steps to initial state and bias, (H, n, d_out), or
        None where there is neither.
        """

    @abstractmethod
    def rest(self, u: Tensor) -> dict[str, Tensor]:
        """Return the state before the first point, for features like ``u`` (B, H, d_in): ``state``,
        and ``free`` for the free response.
        """

    @abstractmethod
    def move(self, state: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
        """Take one step from a state (B, H, S), and return the output (B, H, d_out) and the state
        after it. ``u`` None moves the free response.
        """

    # --- what the domain must be ------------------------------------------------------------------

    def check(self, layout: Layout) -> None:
        check_sequence(self, layout)

    def regular(self, layout: Layout) -> bool:
        return layout.causal and not (layout.pairs or layout.cross)

    def scans(self, layout: Layout) -> bool:
        return self.regular(layout)

    # --- the definition ---------------------------------------------------------------------------

    def matrix(self, problem: Problem) -> Float[Tensor, "b h q k o i"]:
        # Lags count real points: padding takes no step.
        queries, keys = _ranks(problem)
        lag = queries[:, :, None] - keys[:, None, :]
        taps = self.taps(problem)
        past = lag.clamp(min=0)
        dense = taps[:, past].movedim(0, 1)
        seen = lag >= 0
        seen = seen[:, None, :, :, None, None]
        dense = torch.where(seen, dense, 0.0)
        return for_batch_of(problem, dense)

    def offset(self, problem: Problem) -> Tensor | None:
        with full_precision(problem.uy):
            free = self.free(problem.uy.shape[2])
        if free is None:
            return None
        queries, _ = _ranks(problem)
        steps = queries.clamp(min=0)
        responses = free[:, steps]
        return responses.movedim(0, 1)

    # --- fast forms -------------------------------------------------------------------------------

    def taps(self, problem: Problem) -> Float[Tensor, "h n o i"]:
        with full_precision(problem.uy):
            return self.lags(problem.uy.shape[2])

    def scan(self, problem: Problem) -> Float[Tensor, "b h n o"]:
        q = problem.quadrature
        # A scan steps over all points, so that padding is moved behind the real ones.
        order = packing(q.valid)
        with full_precision(problem.uy):
            signal = weighed(problem.uy, q.mass)
            packed = reorder(signal, order.there, 2)
            states = self.states(packed)
            out = reorder(states, order.back, 2)
        return with_offset(q.scaled(out), self, problem)

    def start(self, u: Tensor) -> dict[str, Tensor]:
        return self.rest(full(u))

    def advance(
        self,
        point: Point,
        memory: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        with full_precision(point.u):
            signal = point.weighed()
            out, state = self.move(memory["state"], signal)
            after = {"state": state}
            out = point.scaled(out)
            if "free" in memory:
                response, after["free"] = self.move(memory["free"], None)
                out = out + response
        return out, after


def _ranks(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the step numbers of queries and keys, (1 | B, Nq) and (1 | B, Nk)."""
    n = problem.uy.shape[2]
    valid = problem.quadrature.valid
    keys = ranks(valid, n, problem.uy.device)
    queries = keys
    if problem.index is not None:
        queries = keys[:, problem.index]
    return queries, keys


class PackedOrder(NamedTuple):
    """The order in which real points come first, and the one that undoes it; None without
    padding.
    """

    there: Tensor | None
    back: Tensor | None


def packing(valid: Tensor | None) -> PackedOrder:
    """Return the order of a sequence without its padding."""
    if valid is None:
        return PackedOrder(None, None)
    return PackedOrder(*pack(valid))


def real_points(problem: Problem) -> Tensor | None:
    """Return which points are real, for every sample, (B, N); None for all."""
    valid = problem.quadrature.valid
    if valid is None:
        return None
    batch = problem.uy.shape[0]
    return valid.expand(batch, -1)


def full(u: Tensor) -> Tensor:
    """Return ``u`` in float32 or better."""
    return u.to(at_least_single(u.dtype))


def check_matrices(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    initial_state: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    """Raise ShapeError unless the matrices are those of one real system."""
    size = 0
    if a.dim():
        size = a.shape[0]
    vectors = [v for v in (initial_state, bias) if v is not None]
    fits = a.shape == (size, size) and b.dim() == 2 and b.shape[0] == size
    if c is not None:
        fits = fits and c.dim() == 2 and c.shape[1] == size
    if not fits or any(v.shape != (size,) for v in vectors):
        parts = [x for x in (a, b, c, *vectors) if x is not None]
        shapes = [tuple(x.shape) for x in parts]
        got = ", ".join(map(str, shapes))
        raise ShapeError(
            "a linear system: expected A (S, S), B (S, d_in), C (d_out, S) and vectors (S,), got "
            f"{got}"
        )
    if a.is_complex() or b.is_complex():
        raise ShapeError(
            "a dense system: expected real matrices, got complex ones; complex poles are "
            "DiagonalStateSpaceKernel's"
        )


def as_parameter(x: Tensor) -> nn.Parameter:
    """Return a parameter as it is, and another tensor as a new one."""
    if isinstance(x, nn.Parameter):
        return x
    return nn.Parameter(x.clone())


def as_parameter_or_none(x: Tensor | None) -> nn.Parameter | None:
    """Return :func:`as_parameter`, or None for None."""
    if x is None:
        return None
    return as_parameter(x)


def check_rule(rule: str | None) -> str | None:
    """Return the rule of discretisation, or raise OptionError."""
    if rule is not None and rule not in RULES:
        raise OptionError(
            f"discretization: expected {', '.join(RULES)} or None, got {rule!r}"
            f"{suggest(str(rule), RULES)}"
        )
    return rule


def with_feedthrough(kernel: Kernel, feedthrough: Tensor | None) -> IntegralOperator:
    """Return the operator of a system. Its pointwise term W is D, if there is one."""
    if feedthrough is None:
        return bind(kernel)
    operator = IntegralOperator(
        kernel.d_in,
        kernel=kernel,
        out_dim=kernel.d_out,
        projection=False,
    )
    assert operator.residual is not None
    need = operator.residual.weight.shape
    if feedthrough.shape != need:
        raise ShapeError(
            f"feedthrough: expected shape {tuple(need)}, got {tuple(feedthrough.shape)}"
        )
    operator.residual.weight = as_parameter(feedthrough)
    return operator
