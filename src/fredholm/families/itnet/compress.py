"""A low-rank operator fitted to a trained exact one, and how near it is to the best that its rank
allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from ...domain import Domain
from ...errors import ConversionError, OptionError
from ...integral import IntegralOperator, Kernel, Problem, choose
from ...modes import evaluating
from ...ops.backend import at_least_single, cast
from .low_rank import LowRankKernel
from .operator import LowRankITNetOperator

Signals = Sequence[tuple[Tensor, Domain]]
LARGEST = 4096
"""Largest side of a matrix that is decomposed."""
BYTES = 1 << 26
"""Bytes of the rows of the teacher's matrix that one step compares."""


@dataclass(frozen=True)
class CompressionReport:
    r"""Errors of a low-rank operator against the exact one, on signals it was not fitted to. All
    errors are relative.

    Attributes:
        rank: r, per head.
        steps: optimisation steps taken.
        response_error: of the integrals' responses, :math:`|T_r u - T u| / |T u|`.
        matrix_error: of the kernels' matrices in the measure, :math:`|K_r - K|_F / |K|_F`.
        optimum: the smallest matrix error that any matrix of rank r per head has, chosen
            anew for each signal (Eckart-Young).
        bound: Proposition 12's upper bound of the optimum, :math:`|K|_* / (\sqrt{r + 1}\,|K|_F)`.
    """

    rank: int
    steps: int
    response_error: float
    matrix_error: float
    optimum: float
    bound: float

    def __str__(self) -> str:
        return (
            f"rank {self.rank} after {self.steps} steps: response {self.response_error:.3f}, "
            f"matrix {self.matrix_error:.3f} "
            f"(Eckart-Young optimum {self.optimum:.3f}, bound {self.bound:.3f})"
        )


def compress(
    exact: IntegralOperator,
    rank: int,
    signals: Signals,
    *,
    held_out: Signals,
    steps: int = 2000,
    lr: float = 1e-2,
    patience: int = 200,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
    **kernel_options,
) -> tuple[LowRankITNetOperator, CompressionReport]:
    r"""Distil ``exact`` into a low-rank operator. The residual and the projection are copied and
    not trained.

    Adam lowers the sum of two relative squared errors: of the responses to the signals, and of
    randomly chosen rows of the kernel matrix (which is also right for signals that share the
    features' statistics but not their values). The factors start at the singular vectors of the
    mean kernel.

    Args:
        exact: a trained operator, which is not changed; its kernel maps slices of equal width and
            has no offset.
        rank: r, per head.
        signals: batches (u, domain), drawn repeatedly in random order.
        held_out: batches for the report, of at most 4,096 / d_h points each.
        steps, lr: of Adam; the rate falls linearly to zero. Computed in float32.
        patience: stop when the mean loss of this many steps is not 1% below that of as many before.
        seed: of initial values, order and rows; it determines the result.
        progress: called with (step, loss) after every step.
        kernel_options: of :class:`fredholm.kernels.LowRankKernel`; γ is that of the exact
            kernel where it has one.

    Returns: the low-rank operator, in the exact one's precision, and its report.

    Raises:
        OptionError: a rank above N·d_h of a held-out signal, signals too large to decompose, no
            signals, or fewer than one step or patience of one.
        ConversionError: a kernel that no low-rank kernel can approximate.

    Reference: ITNet §3.3, Proposition 12 and Remark 15.

    Example:
        >>> from fredholm.operators import ITNetOperator
        >>> data = [(torch.randn(2, 6, 8), Domain.line(6))]
        >>> exact = ITNetOperator(8, 2, width=8)
        >>> low, report = compress(exact, 2, data, held_out=data, steps=3, width=8)
        >>> report.optimum <= report.matrix_error, report.optimum <= report.bound
        (True, True)
    """
    first = next(exact.parameters())
    devices = []
    if first.is_cuda:
        devices.append(first.device)
    with torch.random.fork_rng(devices=devices):
        fitting = Fitting(
            exact,
            rank,
            signals,
            held_out=held_out,
            seed=seed,
            **kernel_options,
        )
        taken = _descend(fitting, steps, lr, patience, progress)
    return fitting.finish(taken)


class Fitting:
    """The minimisation of :func:`compress`, for any training loop: operators, loss and report.

    Its arguments are those of :func:`compress`. It seeds torch's global random numbers and draws
    from them.

    Attributes:
        teacher: the exact operator, a copy in float32.
        student: the low-rank one; its kernel learns.
        batches: of signals, in float32.
    """

    def __init__(
        self,
        exact: IntegralOperator,
        rank: int,
        signals: Signals,
        *,
        held_out: Signals,
        seed: int = 0,
        **kernel_options: Any,
    ):
        _check(exact, rank, signals, held_out)
        device = next(exact.parameters()).device
        self.exact = exact
        self.held_out = held_out
        self.teacher = deepcopy(exact).float().eval()
        self.batches = []
        for u, domain in signals:
            batch = (u.to(device, torch.float32), domain.to(device))
            self.batches.append(batch)
        torch.manual_seed(seed)
        self.student = _student(
            self.teacher,
            rank,
            self.batches[0],
            kernel_options,
        )

    def loss(self, u: Tensor, domain: Domain) -> Tensor:
        """Return the loss of one batch. Draws the rows of the matrix that are compared."""
        return _loss(self.teacher, self.student, u, domain)

    def operator(self) -> LowRankITNetOperator:
        """Return the low-rank operator as it stands, in the exact one's precision."""
        exact = self.exact
        student = self.student
        student.eval()
        dtype = next(exact.parameters()).dtype
        student.to(dtype)
        # Copied after the change of precision, so that they are not rounded on the way.
        student.residual = deepcopy(exact.residual)
        student.projection = deepcopy(exact.projection)
        return student

    def finish(self, steps: int) -> tuple[LowRankITNetOperator, CompressionReport]:
        """Return the operator after ``steps``, and its report."""
        student = self.operator()
        like = next(self.exact.parameters())
        unseen = []
        for u, domain in self.held_out:
            unseen.append((u.to(like), domain.to(like.device)))
        with evaluating(self.exact):
            report = _report(self.exact, student, unseen, steps)
        return student, report


class Plateau:
    """Stopping rule: the mean loss of ``patience`` steps is not 1% below that of as many before.

    Raises:
        OptionError: a patience below one step.
    """

    def __init__(self, patience: int):
        if patience < 1:
            raise OptionError(
                f"patience: expected 1 step or more, got {patience}; for no early stop, give as "
                "many as there are steps"
            )
        self.patience = patience
        self.step = 0
        self.window = 0.0
        self.before = float("inf")

    def reached(self, loss: float) -> bool:
        """Take the loss of one step, and return whether it is time to stop."""
        self.step += 1
        self.window += loss
        if self.step % self.patience:
            return False
        if self.window > 0.99 * self.before:
            return True
        self.before = self.window
        self.window = 0.0
        return False


def optimizer_of(
    fitting: Fitting,
    lr: float,
    steps: int,
) -> tuple[torch.optim.Adam, LambdaLR]:
    """Return Adam on the factors, and its rate, which falls linearly to zero.

    Raises:
        OptionError: fewer than one step.
    """
    if steps < 1:
        raise OptionError(
            f"steps: expected 1 or more, got {steps}; give as many as the fit may take"
        )
    parameters = list(fitting.student.kernel.parameters())
    optimizer = torch.optim.Adam(parameters, lr=lr)

    def rate(step: int) -> float:
        """Return the factor of the learning rate: from 1 to 0 along a line."""
        return max(0.0, 1.0 - step / steps)

    return optimizer, LambdaLR(optimizer, rate)


def _check(
    exact: IntegralOperator,
    rank: int,
    signals: Signals,
    held_out: Signals,
) -> None:
    kernel = exact.kernel
    affine = type(kernel).offset is not Kernel.offset
    if kernel.whole or kernel.d_in != kernel.d_out or affine:
        raise ConversionError(
            "compress: expected a kernel whose heads map a slice to a slice of equal width, "
            f"without offset, got {type(kernel).__name__}, which cannot be compressed"
        )
    if not signals or not held_out:
        raise OptionError(
            "compress: expected at least one batch of signals and of held_out, got "
            f"{len(signals)} and {len(held_out)}"
        )
    for u, _ in held_out:
        points = u.shape[1]
        side = points * kernel.d_in
        if side > LARGEST:
            raise OptionError(
                f"held_out: expected matrices of side {LARGEST} at most, got {side} from {points} "
                f"points of {kernel.d_in} features per head; cut the signals"
            )
        if rank > side:
            raise OptionError(
                f"rank: expected at most N·d_h = {side} of a held-out signal, where the rank is "
                f"exact, got {rank}"
            )


# --- fitting --------------------------------------------------------------------------------------


def _student(
    teacher: IntegralOperator,
    rank: int,
    batch: tuple[Tensor, Domain],
    options: dict[str, Any],
) -> LowRankITNetOperator:
    """Return an operator whose factors start at the mean kernel's singular vectors."""
    u, domain = batch
    fourier = getattr(teacher.kernel, "fourier", None)
    if fourier is not None:
        options = {"frequencies": fourier.frequencies} | options
    student = LowRankITNetOperator(
        teacher.dim,
        teacher.heads,
        position_dim=domain.dim,
        rank=rank,
        out_dim=teacher.out_dim,
        **options,
    )
    student = student.to(u.device, torch.float32)
    kernel: LowRankKernel = student.kernel  # type: ignore[assignment]
    if fourier is not None and fourier.matrix.shape == kernel.fourier.matrix.shape:
        kernel.fourier.matrix.data.copy_(fourier.matrix)

    with torch.no_grad():
        # The mean over samples and pairs, one matrix (d, d) per head: K̄ = (U √S) (V √S)ᵀ.
        count = min(domain.size, _rows(teacher, u))
        rows = torch.arange(count, device=u.device)
        matrices = teacher.kernel_matrix(u, domain, rows=rows)
        mean = matrices.mean((0, 2, 3))
        left, values, right = torch.linalg.svd(mean)
        r = min(rank, values.shape[-1])
        root = values[:, None, :r].sqrt()
        kernel.query.bias2[..., :r] = left[..., :r] * root
        kernel.key.bias2[..., :r] = right.mT[..., :r] * root
        # Further directions start silent; the key's factor is not zero, so that they can learn.
        kernel.query.bias2[..., r:] = 0.0
    return student


def _descend(
    fitting: Fitting,
    steps: int,
    lr: float,
    patience: int,
    progress: Callable[[int, float], None] | None,
) -> int:
    """Fit the factors by gradient descent, and return the number of steps taken: ``steps``, or
    fewer where the loss stops falling.

    ``progress(step, loss)`` is called after each step.

    This plain loop keeps the operators free of a training library. The command ``fredholm
    compress`` does not use it: it fits with the trainer of all other commands
    (``lab/training/fit.py``).
    """
    optimizer, schedule = optimizer_of(fitting, lr, steps)
    plateau = Plateau(patience)
    batches = islice(_forever(fitting.batches), steps)
    for step, (u, domain) in enumerate(batches, 1):
        loss = fitting.loss(u, domain)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

        value = float(loss.detach())
        if progress is not None:
            progress(step, value)
        if plateau.reached(value):
            return step
    return steps


def _forever(batches: list[tuple[Tensor, Domain]]) -> Iterator[tuple[Tensor, Domain]]:
    """Yield the batches in a new random order each time, without end."""
    while True:
        for i in torch.randperm(len(batches)).tolist():
            yield batches[i]


def _loss(
    teacher: IntegralOperator,
    student: IntegralOperator,
    u: Tensor,
    domain: Domain,
) -> Tensor:
    """Return the relative squared error of the responses plus that of some rows of the matrix."""
    problem = teacher.problem(u, domain)
    rows = torch.randperm(domain.size, device=u.device)
    rows = rows[: _rows(teacher, u)]
    part = problem.rows(rows)
    # The mass of each key, (B, 1, 1, Nk, 1, 1).
    mass = problem.quadrature.mass[:, None, None, :, None, None]
    mass = mass.to(u.dtype)
    with torch.no_grad():
        exact = _respond(teacher, problem)
        matrix = teacher.kernel.matrix(part)
        scale = _power(matrix, mass)

    # Relative to the response at real queries.
    real = _real_queries(problem, exact.dtype)
    difference = (_respond(student, problem) - exact) * real
    response_power = (exact * real).square().sum()
    response_error = difference.square().sum() / response_power
    matrix_difference = student.kernel.matrix(part) - matrix
    matrix_error = _power(matrix_difference, mass) / scale
    return response_error + matrix_error


def _respond(operator: IntegralOperator, problem: Problem) -> Tensor:
    """Return the integral of an operator's kernel over an existing problem."""
    facts = problem.facts._replace(training=operator.kernel.training)
    form = choose(operator.strategy, operator.kernel, facts)
    return form.respond(operator.kernel, problem)


def _real_queries(problem: Problem, dtype: torch.dtype) -> Tensor | float:
    """Return a factor that is zero at padded queries, broadcastable to (B, H, Nq, d)."""
    if problem.real is None:
        return 1.0
    real = problem.real[:, None, :, None]
    return real.to(dtype)


def _power(matrix: Tensor, mass: Tensor) -> Tensor:
    """Return the sum of squares of a matrix's entries times the masses of their keys."""
    return (matrix.square() * mass).sum()


def _rows(teacher: IntegralOperator, u: Tensor) -> int:
    """Return how many rows of the matrix fit the budget, at 4 bytes per number."""
    batch, points, _ = u.shape
    block = teacher.kernel.d_in**2
    numbers_per_row = batch * points * teacher.heads * block
    return max(1, BYTES // (4 * numbers_per_row))


# --- report ---------------------------------------------------------------------------------------


class SquaredSums(NamedTuple):
    """Squared norms over the held-out signals, from which the report's ratios follow.

    Attributes:
        response_error, response: of the responses' difference, and of the exact response.
        matrix_error, matrix: of the matrices' difference, and of the exact matrix.
        tail: of the singular values beyond the rank: the Eckart-Young optimum.
        bound: of the nuclear norm over √(r + 1).
    """

    response_error: float
    response: float
    matrix_error: float
    matrix: float
    tail: float
    bound: float


@torch.no_grad()
def _report(
    exact: IntegralOperator,
    student: IntegralOperator,
    held_out: Sequence[tuple[Tensor, Domain]],
    steps: int,
) -> CompressionReport:
    kernel: LowRankKernel = student.kernel  # type: ignore[assignment]
    rank = kernel.rank
    total = torch.zeros(len(SquaredSums._fields), dtype=torch.float64)
    for u, domain in held_out:
        problem = exact.problem(u, domain)
        real = _real_queries(problem, u.dtype)
        response = _respond(exact, problem) * real
        error = _respond(student, problem) * real - response

        root = problem.quadrature.mass.sqrt()
        matrix = _matrix_in_measure(exact.kernel.matrix(problem), root)
        found = _matrix_in_measure(student.kernel.matrix(problem), root)
        matrix_error = matrix - found
        values = torch.linalg.svdvals(matrix)
        tail = values[..., rank:]
        nuclear = values.sum(-1)
        bound = nuclear / (rank + 1) ** 0.5

        parts = [error, response, matrix_error, matrix, tail, bound]
        sums = [x.double().square().sum().cpu() for x in parts]
        total += torch.stack(sums)

    sums = SquaredSums(*total.tolist())
    return CompressionReport(
        rank,
        steps,
        response_error=(sums.response_error / sums.response) ** 0.5,
        matrix_error=(sums.matrix_error / sums.matrix) ** 0.5,
        optimum=(sums.tail / sums.matrix) ** 0.5,
        bound=(sums.bound / sums.matrix) ** 0.5,
    )


def _matrix_in_measure(blocks: Tensor, root: Tensor) -> Tensor:
    """Return blocks K_ij (B, H, N, N, d, d) as one matrix √m_i K_ij √m_j, (B, H, N·d, N·d), in
    single precision or better: its Frobenius norm is the kernel's Hilbert-Schmidt norm.
    """
    blocks = cast(blocks, at_least_single(blocks.dtype))
    root = root.to(blocks.dtype)[:, None]
    mass = root[..., :, None] * root[..., None, :]
    scaled = blocks * mass[..., None, None]
    # (B, H, N, N, d, d) to (B, H, N, d, N, d) to a matrix.
    rows_and_columns = scaled.transpose(3, 4)
    return rows_and_columns.flatten(4, 5).flatten(2, 3)
