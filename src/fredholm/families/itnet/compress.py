"""A low-rank operator fitted to a trained exact one, and how near it is to the best that its rank
allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

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
LARGEST = 4096  # side of a matrix that is decomposed
BYTES = 1 << 26  # of the rows of the teacher's matrix that one step compares


@dataclass(frozen=True)
class CompressionReport:
    r"""How near a low-rank operator is to the exact one, on signals it was not fitted to. All
    errors are relative.

    Attributes:
        rank: r, per head.
        steps: optimisation steps taken.
        response_error: of the integrals' responses, :math:`|T_r u - T u| / |T u|`.
        matrix_error: of the kernels' matrices in the measure, :math:`|K_r - K|_F / |K|_F`.
        optimum: the smallest matrix error that any matrix of rank r per head has, chosen
            anew for each signal (Eckart-Young).
        bound: what Proposition 12 promises the optimum to stay below,
            :math:`|K|_* / (\sqrt{r + 1}\,|K|_F)`.
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
    r"""Distil ``exact`` into a low-rank operator with the same residual and projection, which are
    copied and not trained.

    Adam lowers the sum of two relative squared errors: of the responses to the signals, and of
    randomly chosen rows of the kernel matrix (which is also right for signals that share the
    features' statistics but not their values). The factors start at the singular vectors of the
    mean kernel.

    Args:
        exact: a trained operator, left as it is; its kernel maps slices of equal width and has no
            offset.
        rank: r, per head.
        signals: batches (u, domain), drawn in a random order for ever.
        held_out: batches for the report, of at most 4,096 / d_h points each.
        steps, lr: of Adam; the rate falls linearly to zero. Computed in float32.
        patience: stop where the mean loss of so many steps is not 1% below that of as many before.
        seed: of initial values, order and rows; the result is a function of it.
        progress: called with (step, loss) after every step.
        kernel_options: of :class:`fredholm.kernels.LowRankKernel`; γ is that of the exact
            kernel where it has one.

    Returns: the low-rank operator, in the exact one's precision, and its report.

    Raises:
        OptionError: a rank above N·d_h of a held-out signal, signals too large to decompose, no
            signals.
        ConversionError: a kernel that no low-rank kernel can stand for.

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
    with torch.random.fork_rng(devices=[first.device] if first.is_cuda else []):
        fitting = Fitting(exact, rank, signals, held_out=held_out, seed=seed, **kernel_options)
        taken = _descend(fitting, steps, lr, patience, progress)
    return fitting.finish(taken)


class Fitting:
    """A low-rank operator on its way: what :func:`compress` minimises, for any loop that does so.

    Args: as those of :func:`compress`. Draws from torch's global random numbers, after seeding
        them.

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
        self.exact, self.held_out = exact, held_out
        self.teacher = deepcopy(exact).float().eval()
        self.batches = [(u.to(device, torch.float32), domain.to(device)) for u, domain in signals]
        torch.manual_seed(seed)
        self.student = _student(self.teacher, rank, self.batches[0], kernel_options)

    def loss(self, u: Tensor, domain: Domain) -> Tensor:
        """Of one batch; draws the rows of the matrix that are compared."""
        return _loss(self.teacher, self.student, u, domain)

    def operator(self) -> LowRankITNetOperator:
        """The low-rank operator as it stands, in the exact one's precision."""
        exact, student = self.exact, self.student
        student.eval().to(next(exact.parameters()).dtype)
        # Copied after the change of precision, so that they are not rounded on the way.
        student.residual, student.projection = deepcopy(exact.residual), deepcopy(exact.projection)
        return student

    def finish(self, steps: int) -> tuple[LowRankITNetOperator, CompressionReport]:
        """The operator after ``steps``, and its report."""
        exact, student = self.exact, self.operator()
        first = next(exact.parameters())
        unseen = [
            (u.to(first.device, first.dtype), domain.to(first.device))
            for u, domain in self.held_out
        ]
        with evaluating(exact):
            report = _report(exact, student, unseen, steps)
        return student, report


class Plateau:
    """Whether the mean loss of ``patience`` steps is not 1% below that of as many before."""

    def __init__(self, patience: int):
        self.patience, self.step = patience, 0
        self.window, self.before = 0.0, float("inf")

    def reached(self, loss: float) -> bool:
        """Take the loss of one step; whether it is time to stop."""
        self.step += 1
        self.window += loss
        if self.step % self.patience:
            return False
        if self.window > 0.99 * self.before:
            return True
        self.window, self.before = 0.0, self.window
        return False


def optimizer_of(fitting: Fitting, lr: float, steps: int) -> tuple[torch.optim.Adam, LambdaLR]:
    """Adam on the factors, and its rate, which falls linearly to zero."""
    optimizer = torch.optim.Adam(list(fitting.student.kernel.parameters()), lr=lr)
    return optimizer, LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / steps))


def _check(exact: IntegralOperator, rank: int, signals: Signals, held_out: Signals) -> None:
    kernel = exact.kernel
    name = type(kernel).__name__
    if kernel.whole or kernel.d_in != kernel.d_out or type(kernel).offset is not Kernel.offset:
        raise ConversionError(
            f"{name} cannot be compressed: its heads must map a slice to a slice of equal width, "
            "without offset"
        )
    if not signals or not held_out:
        raise OptionError(
            f"compress needs signals and held_out, got {len(signals)} and {len(held_out)} batches"
        )
    for u, _ in held_out:
        side = u.shape[1] * kernel.d_in
        if side > LARGEST:
            raise OptionError(
                f"held-out signals of {u.shape[1]} points make matrices of side {side} > "
                f"{LARGEST}; cut them"
            )
        if rank > side:
            raise OptionError(
                f"rank={rank} exceeds N·d_h = {side} of a held-out signal, where rank {side} is "
                "exact"
            )


# --- fitting --------------------------------------------------------------------------------------


def _student(
    teacher: IntegralOperator, rank: int, batch: tuple[Tensor, Domain], options: dict
) -> LowRankITNetOperator:
    """An operator whose factors start at the mean kernel's singular vectors."""
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
        rows = torch.arange(min(domain.size, _rows(teacher, u)), device=u.device)
        mean = teacher.kernel_matrix(u, domain, rows=rows).mean((0, 2, 3))
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
    """Fit in torch alone, which is all that operators need; ``fredholm compress`` fits as all
    training does (``lab/training/fit.py``). Returns the steps taken.
    """
    optimizer, schedule = optimizer_of(fitting, lr, steps)
    plateau = Plateau(patience)
    for step, (u, domain) in enumerate(islice(_forever(fitting.batches), steps), 1):
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


def _forever(batches: list):
    while True:
        for i in torch.randperm(len(batches)).tolist():
            yield batches[i]


def _loss(
    teacher: IntegralOperator, student: IntegralOperator, u: Tensor, domain: Domain
) -> Tensor:
    problem = teacher.problem(u, domain)
    rows = torch.randperm(domain.size, device=u.device)[: _rows(teacher, u)]
    part = problem.rows(rows)
    mass = problem.quadrature.mass[:, None, :, None, None].to(u.dtype)
    with torch.no_grad():
        wanted, matrix = _respond(teacher, problem), teacher.kernel.matrix(part)
        scale = _power(matrix, mass[:, :, None])
    of_response = _response_error(_respond(student, problem), wanted, problem.real)
    return of_response + _power(student.kernel.matrix(part) - matrix, mass[:, :, None]) / scale


def _respond(operator: IntegralOperator, problem: Problem) -> Tensor:
    facts = problem.facts._replace(training=operator.kernel.training)
    form = choose(operator.strategy, operator.kernel, facts)
    return form.respond(operator.kernel, problem)


def _response_error(actual: Tensor, wanted: Tensor, valid: Tensor | None) -> Tensor:
    """Relative squared error at real queries."""
    real = 1.0 if valid is None else valid[:, None, :, None].to(wanted.dtype)
    return ((actual - wanted) * real).square().sum() / (wanted * real).square().sum()


def _power(matrix: Tensor, mass: Tensor) -> Tensor:
    return (matrix.square() * mass).sum()


def _rows(teacher: IntegralOperator, u: Tensor) -> int:
    """Rows of the matrix that fit the budget."""
    return max(1, BYTES // (4 * u.shape[0] * u.shape[1] * teacher.heads * teacher.kernel.d_in**2))


# --- report ---------------------------------------------------------------------------------------


@torch.no_grad()
def _report(
    exact: IntegralOperator, student: IntegralOperator, held_out: list, steps: int
) -> CompressionReport:
    kernel: LowRankKernel = student.kernel  # type: ignore[assignment]
    rank, sums = kernel.rank, torch.zeros(6, dtype=torch.float64)
    for u, domain in held_out:
        problem = exact.problem(u, domain)
        real = 1.0 if problem.real is None else problem.real[:, None, :, None].to(u.dtype)
        wanted, actual = _respond(exact, problem) * real, _respond(student, problem) * real
        root = problem.quadrature.mass.sqrt()
        matrix = _whole(exact.kernel.matrix(problem), root)
        error = matrix - _whole(student.kernel.matrix(problem), root)
        values = torch.linalg.svdvals(matrix)
        parts = [
            actual - wanted,
            wanted,
            error,
            matrix,
            values[..., rank:],
            values.sum(-1) / (rank + 1) ** 0.5,
        ]
        sums += torch.stack([x.double().square().sum().cpu() for x in parts])
    response, total, error, power, tail, bound = sums.tolist()

    def ratio(a: float, b: float) -> float:
        return (a / b) ** 0.5

    return CompressionReport(
        rank,
        steps,
        ratio(response, total),
        ratio(error, power),
        ratio(tail, power),
        ratio(bound, power),
    )


def _whole(matrix: Tensor, root: Tensor) -> Tensor:
    """Blocks K_ij as one matrix (B, H, N·d, N·d) in the measure, in single precision at least: a
    Hilbert-Schmidt norm is then a Frobenius norm.
    """
    matrix = cast(matrix, at_least_single(matrix.dtype))
    root = root.to(matrix.dtype)[:, None]
    scaled = matrix * (root[..., :, None] * root[..., None, :])[..., None, None]
    return scaled.transpose(3, 4).flatten(4, 5).flatten(2, 3)
