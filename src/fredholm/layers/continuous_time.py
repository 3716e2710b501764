r"""Linear systems in real time: K(t, s) = C e^{A (t - s)} B, whatever the steps between points.

:func:`fredholm.layers.state_space.linear_system` builds their operators, with
``continuous=True``.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import DomainError
from ..integral import (
    CausalTransition,
    DefaultLine,
    Layout,
    MatrixKernel,
    Point,
    Problem,
    with_offset,
)
from ..integral.capabilities import LagTaps, StateScan
from ..integral.features import weighed
from ..ops.backend import full_precision
from ..ops.scan import krylov, transition_scan
from .parts import for_batch_of
from .time_invariant import as_parameter, check_matrices, check_sequence, full


class ContinuousStateSpaceKernel(MatrixKernel, LagTaps, StateScan, CausalTransition):
    r"""The linear system h' = A h + B u, y = C h at real times: :math:`K(t, s) = C\,e^{A(t-s)}\,B`,
    whatever the steps between them.

    The domain's measure is the measure of time: ``spacing`` (or :meth:`Domain.timestamps`)
    approximates the integral, masses of any quadrature do so better. The free response
    :math:`C\,e^{A(t - t_0)}\,h_0` is the offset, with t_0 = ``origin``. A feedthrough D is the
    operator's pointwise term W.

    Args:
        state_matrix, input_matrix, output_matrix: A (S, S) in one over the unit of time,
            B (S, d_in), C (d_out, S). An ``nn.Parameter`` is used itself, so that the caller and
            the kernel share it; any other tensor is copied into a new parameter.
        initial_state: h_0 (S,), or None for zero.
        origin: t_0, the time at which the state is h_0, in the units of the positions.

    Shape: positions are times, (N, 1) or (B, N, 1). Queries may live at other times
    (``query_domain``).

    Cost: on a regular grid a convolution by FFT, on any other times a scan with one matrix
    exponential per step; the dense kernel has one per pair. Step O(S³).

    Raises:
        ShapeError: matrices that do not fit one another, on construction.
        DomainError: positions of more than one coordinate, when it is applied.

    Reference: ITNet Theorem 3 (a), E.2.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> kernel = ContinuousStateSpaceKernel(-torch.eye(1), torch.ones(1, 1), torch.ones(1, 1))
        >>> op = IntegralOperator(1, kernel=kernel, residual=False, projection=False)
        >>> times = Domain.timestamps(torch.tensor([0.0, 1.0, 3.0]))
        >>> row = op.kernel_matrix(torch.ones(1, 3, 1), times, rows=[2]).flatten()
        >>> [round(k, 4) for k in row.tolist()]
        [0.0498, 0.1353, 1.0]
    """

    reads_query = False
    line = DefaultLine(causal=True, measure="spacing")
    sums = True
    skips_padding = False

    def __init__(
        self,
        state_matrix: Tensor,
        input_matrix: Tensor,
        output_matrix: Tensor,
        *,
        initial_state: Tensor | None = None,
        origin: float = 0.0,
    ):
        check_matrices(state_matrix, input_matrix, output_matrix, initial_state)
        super().__init__(1, input_matrix.shape[1], output_matrix.shape[0])
        self.state_matrix = as_parameter(state_matrix)
        self.input_matrix = as_parameter(input_matrix)
        self.output_matrix = as_parameter(output_matrix)
        self.initial_state = None
        if initial_state is not None:
            self.initial_state = as_parameter(initial_state)
        self.origin = origin

    # --- what the domain must be ------------------------------------------------------------------

    def check(self, layout: Layout) -> None:
        # In real time, queries of another domain are other times.
        if layout.causal and layout.cross:
            return
        check_sequence(self, layout)

    def regular(self, layout: Layout) -> bool:
        on_grid = layout.grid is not None and len(layout.grid) == 1
        return on_grid and self.scans(layout) and not layout.padded

    def scans(self, layout: Layout) -> bool:
        return layout.causal and not (layout.pairs or layout.cross)

    # --- the definition ---------------------------------------------------------------------------

    def flow(self, elapsed: Float[Tensor, "*b"]) -> Float[Tensor, "*b s s"]:
        """Return e^{Aτ}. Times are subtracted in the domain's precision; the exponential has the
        system's.
        """
        matrix = full(self.state_matrix)
        elapsed = elapsed[..., None, None].to(matrix.dtype)
        return torch.linalg.matrix_exp(matrix * elapsed)

    def matrix(self, problem: Problem) -> Float[Tensor, "b 1 q k o i"]:
        query_times = times_of(problem.x)
        key_times = times_of(problem.y)
        elapsed = query_times[:, :, None] - key_times[:, None]
        seen = problem.quadrature.visible()
        if seen is not None:
            # An unstable system must not overflow where nothing is read.
            if problem.real is not None:
                real = problem.real[:, None, :, None]
                seen = seen & real
            elapsed = torch.where(seen[:, 0], elapsed, 0.0)
        b = full(self.input_matrix)
        c = full(self.output_matrix)
        dense = c @ self.flow(elapsed) @ b
        return for_batch_of(problem, dense[:, None])

    def offset(self, problem: Problem) -> Tensor | None:
        if self.initial_state is None:
            return None
        times = times_of(problem.x)
        return self.free(times)[:, None]

    def free(self, times: Float[Tensor, "*b"]) -> Float[Tensor, "*b o"]:
        """Return the response to the initial state, C e^{A (t - t_0)} h_0."""
        assert self.initial_state is not None
        flow = self.flow(times - self.origin)
        states = flow @ full(self.initial_state)
        c = full(self.output_matrix)
        return states @ c.mT

    # --- fast forms -------------------------------------------------------------------------------

    def taps(self, problem: Problem) -> Float[Tensor, "1 n o i"]:
        times = times_of(problem.y)[0]
        # On a regular grid all steps are the first one, and taps are powers of its flow.
        n = times.shape[0]
        if n > 1:
            step = times[1] - times[0]
        else:
            step = times.new_zeros(())
        with full_precision(times):
            b = full(self.input_matrix)
            columns = krylov(self.flow(step), b, n)
            taps = full(self.output_matrix) @ columns
            return taps[None]

    def scan(self, problem: Problem) -> Float[Tensor, "b 1 n o"]:
        q = problem.quadrature
        times = times_of(problem.y)
        times = _times_at_rest(times, q.valid)
        with full_precision(times):
            # The state before the first point is at rest, so that its first step may be zero long.
            first = torch.zeros_like(times[:, :1])
            later = times.diff(dim=1)
            elapsed = torch.cat([first, later], 1)
            signal = weighed(problem.uy, q.mass)[:, 0]
            b = full(self.input_matrix)
            drive = signal @ b.mT
            states = transition_scan(self.flow(elapsed), drive)
            c = full(self.output_matrix)
            out = (states @ c.mT)[:, None]
        return with_offset(q.scaled(out), self, problem)

    def start(self, u: Tensor) -> dict[str, Tensor]:
        state = u.new_zeros(u.shape[0], self.state_matrix.shape[0])
        state = full(state)
        # No point so far: infinitely long ago.
        time = torch.full_like(state[:, 0], torch.inf)
        return {"state": state, "time": time}

    def advance(
        self,
        point: Point,
        memory: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        batch = point.u.shape[0]
        time = times_of(point.x).expand(batch)
        with full_precision(time):
            # No time passes before the first point, whose previous time is ∞, nor at padding, whose
            # position 0 would lead back in time. (The form then drops the state after padding.)
            passes = memory["time"].isfinite()
            if point.real is not None:
                passes = passes & point.real
            elapsed = torch.where(passes, time - memory["time"], 0.0)

            flow = self.flow(elapsed)
            before = memory["state"][..., None]
            moved = flow @ before
            b = full(self.input_matrix)
            signal = point.weighed()[:, 0]
            drive = signal @ b.mT
            state = moved[..., 0] + drive

            c = full(self.output_matrix)
            out = state @ c.mT
            out = point.scaled(out[:, None])
            out = out[:, 0]
            if self.initial_state is not None:
                out = out + self.free(time)
        after = {"state": state, "time": time}
        return out[:, None], after


def _times_at_rest(
    times: Float[Tensor, "#b n"],
    valid: Bool[Tensor, "#b n"] | None,
) -> Float[Tensor, "#b n"]:
    """Return times that stand still at padding: those of the last real point, and before the first
    real point its own.
    """
    if valid is None:
        return times
    points = torch.arange(times.shape[1], device=times.device)
    real_points = torch.where(valid, points, -1)
    index = real_points.cummax(-1).values
    first = valid.int().argmax(-1, keepdim=True)
    index = torch.where(index < 0, first, index)
    times, index = torch.broadcast_tensors(times, index)
    return times.gather(1, index)


def times_of(x: Float[Tensor, "*b p"]) -> Float[Tensor, "*b"]:
    """Return positions (..., 1) as times."""
    if x.shape[-1] != 1:
        raise DomainError(
            f"a system in time: expected positions of one coordinate, got {x.shape[-1]}"
        )
    return x[..., 0]
