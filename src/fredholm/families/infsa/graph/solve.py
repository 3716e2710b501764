"""All hops on a token graph: the resolvent, with its convergence checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ....errors import ConvergenceError, DerivativeError
from ....ops.backend import several_gradients
from ....ops.plain import differentiable_again
from .tiled import activated
from .token_graph import TokenGraph, edge_product

Map = Callable[[Tensor], Tensor]
BLOCK = 128  # rows solved together by substitution
ROUNDING = 16  # a residual of so many units in the last place is as small as one gets
TENSORS = ("query", "key", "mass", "scale", "density", "decay")  # of a graph
RESTART = 10  # vectors that GMRES keeps


@dataclass(frozen=True)
class Convergence:
    """How a resolvent was solved.

    Attributes:
        method: ``"neumann"``, ``"gmres"`` or ``"substitution"`` (causal order).
        iterations: products with M, the last one included, which measures the residual.
        residual: :math:`\\|v + Mz - z\\| / \\|z\\|`, the largest of all heads and samples; NaN
            where one has tokens that are not finite, whose answer is NaN and concerns no other.
        radius: estimate of the spectral radius of M; exact for substitution.
    """

    method: str
    iterations: int
    residual: float
    radius: float


def resolvent(
    graph: TokenGraph, value: Tensor, *, tol: float, max_iterations: int, method: str
) -> tuple[Tensor, Convergence]:
    r""":math:`((I - M)^{-1} - I)\,v = \sum_{t \ge 1} M^t v`, and how it was solved.

    Without order :math:`z = v + Mz` is iterated; in causal order M is triangular and z follows by
    substitution. The backward solves the transposed system, so memory does not grow with the number
    of iterations. Second derivatives solve with the whole matrix, :func:`resolvent_naive`.

    Raises:
        ConvergenceError: the residual stays above ``tol``.
    """
    if value.is_meta or not value.numel():  # no residual says when to stop
        return resolvent_naive(graph, value), Convergence(method, 0, 0.0, 0.0)
    reports: list[Convergence] = []

    def fast(value: Tensor, *tensors: Tensor | None) -> Tensor:
        out, report = _resolvent(_with_tensors(graph, tensors), value, tol, max_iterations, method)
        reports.append(report)
        return out

    def plain(value: Tensor, *tensors: Tensor | None) -> Tensor:
        return resolvent_naive(_with_tensors(graph, tensors), value)

    tensors = (getattr(graph, name) for name in TENSORS)
    out = differentiable_again(fast, plain, value, *tensors)
    return out, reports[0]


def resolvent_naive(graph: TokenGraph, value: Tensor) -> Tensor:
    """The same by a direct solution with the whole matrix, O(N³) time and O(N²) memory: what other
    derivatives than the first are taken of.
    """
    edges = graph.edges()
    factor = graph.factor(graph.sizes(edges))
    matrix = factor[..., None] * edges * graph.mass[:, None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return torch.linalg.solve(identity - matrix, value.to(matrix.dtype)) - value


def _with_tensors(graph: TokenGraph, tensors: Sequence[Tensor | None]) -> TokenGraph:
    return replace(graph, **dict(zip(TENSORS, tensors)))


def _resolvent(
    graph: TokenGraph, value: Tensor, tol: float, max_iterations: int, method: str
) -> tuple[Tensor, Convergence]:
    tol = max(tol, ROUNDING * torch.finfo(value.dtype).eps)
    _, factor = graph.start(value)
    with torch.no_grad():
        fixed = factor.detach()
        lost = _lost(value, graph.query, graph.key, fixed[..., None])
        if graph.causal:
            z, count, radius, method = (
                substitute(graph, value, fixed),
                0,
                diagonal_radius(graph, fixed),
                "substitution",
            )
        else:
            given = _without(lambda v: graph.apply(v, fixed), value, lost)
            z, count, radius = SOLVERS[method](*given, tol, max_iterations)
            z = z.masked_fill(lost, torch.nan)
    z = z.detach()  # a solver may hand back the right side itself
    # One more product, with gradients, measures the residual. By z = v + Mz its gradient is right
    # but for a factor (I - Mᵀ)⁻¹ on what arrives at z, which the hook applies by solving for it.
    attached = value + graph.apply(z, factor)
    residual = float(_relative(attached.detach() - z, z, lost))
    report = Convergence(method, count + 1, residual, radius)
    _check(report, tol)
    if bool(lost.any()):
        report = replace(report, residual=torch.nan)
    if attached.requires_grad:
        attached.register_hook(
            lambda g: (
                None
                if g is None
                else conjugate_solution(graph, g, fixed, tol, max_iterations, method, lost)
            )
        )
    return attached - value, report


@torch.no_grad()
def conjugate_solution(
    graph: TokenGraph,
    grad: Tensor,
    factor: Tensor,
    tol: float,
    max_iterations: int,
    method: str,
    lost: Tensor,
) -> Tensor:
    """λ with λ = g + Mᵀλ: what a gradient g of the resolvent becomes.

    Raises:
        DerivativeError: several gradients in one.
    """
    if several_gradients([grad]):
        raise DerivativeError(
            "a resolvent's gradient is solved for until its residual is small, which is_grads_"
            "batched=True and vectorize=True do not let it see; take the gradients one by one, or "
            "use torch.func.jacrev, which solves with the whole matrix"
        )
    if graph.causal:
        return substitute(graph, grad, factor, transposed=True)
    lost = lost | _lost(grad)
    given = _without(lambda v: graph.apply_transposed(v, factor), grad, lost)
    return solve(*given, tol, max_iterations, method)[0].masked_fill(lost, torch.nan)


def solve(
    apply: Map, right: Tensor, tol: float, max_iterations: int, method: str
) -> tuple[Tensor, Convergence]:
    """z = b + Az (B, H, N, d) for a linear map A given as a product, and how it was solved.

    Raises:
        ConvergenceError: the residual stays above ``tol``.

    Example:
        >>> z, report = solve(lambda v: 0.5 * v, torch.ones(1, 1, 2, 1), 1e-6, 100, "neumann")
        >>> z.flatten().round(decimals=4).tolist(), round(report.radius, 3)
        ([2.0, 2.0], 0.5)
    """
    solution, count, radius = SOLVERS[method](apply, right, tol, max_iterations)
    after = right + apply(solution)
    report = Convergence(method, count + 1, float(_relative(after - solution, solution)), radius)
    _check(report, tol)
    return after, report


def _lost(*tensors: Tensor) -> Tensor:
    """Heads and samples (B, H, 1, 1) with a number that is not finite: they have no solution."""
    result = ~tensors[0].isfinite().all((-2, -1), keepdim=True)
    for x in tensors[1:]:
        result = result | ~x.isfinite().all((-2, -1), keepdim=True)
    return result


def _without(apply: Map, right: Tensor, lost: Tensor) -> tuple[Map, Tensor]:
    """The system with zeros in place of what is lost, whose solution is zero: nothing of it says
    when the others' iterations end.
    """
    return lambda v: apply(v).masked_fill(lost, 0.0), right.masked_fill(lost, 0.0)


def substitute(
    graph: TokenGraph, value: Tensor, factor: Tensor, *, transposed: bool = False
) -> Tensor:
    """z = v + Mz (or Mᵀ) for a causal graph, a block of rows at a time: one pass over the
    triangle.

    The blocks already solved enter through the tiled product; only the square on the diagonal is
    made, and solved as the triangle it is.
    """
    n = value.shape[2]
    z = torch.zeros_like(value)
    weighted = factor.expand(*factor.shape[:2], n)[..., None]
    mass = graph.mass[:, None, :, None]
    for start in range(0, n, BLOCK) if not transposed else reversed(range(0, n, BLOCK)):
        rows = slice(start, min(start + BLOCK, n))
        known = slice(rows.stop, n) if transposed else slice(0, start)
        ends = (graph.key, graph.query) if transposed else (graph.query, graph.key)
        into, outof = (mass, weighted) if transposed else (weighted, mass)
        right = value[:, :, rows]
        if known.stop > known.start:
            density = _part(graph.density, rows, known, transposed)
            product, _ = edge_product(
                ends[0][:, :, rows],
                ends[1][:, :, known],
                (z * outof)[:, :, known],
                graph.mass[:, :1],
                density,
                activation=graph.activation,
                statistic="none",
                memory=graph.memory,
                backend=graph.backend,
            )
            right = right + into[:, :, rows] * product
        scores = graph.query[:, :, rows] @ graph.key[:, :, rows].mT
        block = activated(scores, graph.activation).tril()
        density = _part(graph.density, rows, rows, False)
        block = block if density is None else block * density
        system = torch.eye(block.shape[-1], dtype=block.dtype, device=block.device)
        system = system - weighted[:, :, rows] * block * mass[:, :, rows].mT
        z[:, :, rows] = torch.linalg.solve_triangular(
            system.mT if transposed else system, right, upper=transposed
        )
    return z


def _part(density: Tensor | None, rows: slice, columns: slice, transposed: bool) -> Tensor | None:
    if density is None:
        return None
    return density[:, :, columns, rows].mT if transposed else density[:, :, rows, columns]


def diagonal_radius(graph: TokenGraph, factor: Tensor) -> float:
    """The spectral radius of a causal graph's M: its largest diagonal entry."""
    diagonal = (
        activated((graph.query * graph.key).sum(-1), graph.activation)
        * factor
        * graph.mass[:, None]
    )
    if graph.density is not None:
        diagonal = diagonal * graph.density.diagonal(dim1=-2, dim2=-1)
    return float(diagonal.abs().max())


# --- iterations -----------------------------------------------------------------------------------


def neumann(
    apply: Map, right: Tensor, tol: float, max_iterations: int
) -> tuple[Tensor, int, float]:
    """z = b + Az by iterating just that: (z, products, spectral radius estimate). Stops early where
    it diverges.
    """
    z, before, radius = right, None, 0.0
    for count in range(1, max_iterations):
        after = right + apply(z)
        change = _size(after - z)
        if before is not None:
            radius = float(
                torch.where(before > 0, change / torch.where(before > 0, before, 1.0), 0.0).max()
            )
        before, small = change, bool((change <= tol * _size(after)).all())
        z = after
        if small or not bool(change.isfinite().all()):
            return z, count, radius
    return z, max_iterations - 1, radius


def gmres(apply: Map, right: Tensor, tol: float, max_iterations: int) -> tuple[Tensor, int, float]:
    """(I - A) z = b by restarted GMRES, every head and sample by itself: (z, products, spectral
    radius estimate).
    """
    z, count, radius = right, 0, 0.0
    while count < max_iterations - 1:
        residual = right + apply(z) - z
        count += 1
        size = _size(residual)
        if bool((size <= tol * _size(z)).all()):
            break
        steps = min(RESTART, max_iterations - 1 - count)
        if steps < 1:
            break
        basis, small = _arnoldi(apply, residual, size, steps)
        count += steps
        target = torch.zeros(*size.shape, steps + 1, 1, dtype=small.dtype, device=small.device)
        target[..., 0, 0] = size
        weights = torch.linalg.pinv(small) @ target
        z = z + torch.einsum("sbhnd,bhs->bhnd", basis[:steps], weights[..., 0].to(z.dtype))
        ritz = torch.linalg.eigvals(
            torch.eye(steps, dtype=small.dtype, device=small.device) - small[..., :steps, :]
        )
        largest = ritz.abs().amax(-1)  # 1 where there is nothing to solve
        radius = float(torch.where(size > 0, largest, 0.0).max())
    return z, count, radius


def _arnoldi(apply: Map, residual: Tensor, size: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Orthonormal vectors (steps + 1, B, H, N, d) of the Krylov space of I - A, and its Hessenberg
    matrix (B, H, ·, steps).
    """
    basis = residual.new_zeros(steps + 1, *residual.shape)
    basis[0] = _unit(residual, size)
    small = residual.new_zeros(*size.shape, steps + 1, steps)
    for s in range(steps):
        vector = basis[s] - apply(basis[s])
        for _ in range(2):  # twice is enough to be orthogonal
            along = torch.einsum("sbhnd,bhnd->bhs", basis[: s + 1], vector)
            vector = vector - torch.einsum("sbhnd,bhs->bhnd", basis[: s + 1], along)
            small[..., : s + 1, s] += along
        length = _size(vector)
        length = torch.where(
            length > torch.finfo(length.dtype).eps, length, 0.0
        )  # the space is exhausted
        small[..., s + 1, s] = length
        basis[s + 1] = _unit(vector, length)
    return basis, small


SOLVERS = {"neumann": neumann, "gmres": gmres}


def _unit(vector: Tensor, length: Tensor) -> Tensor:
    scale = torch.where(length > 0, 1.0 / torch.where(length > 0, length, 1.0), 0.0)
    return vector * scale[..., None, None]


def _size(x: Tensor) -> Tensor:
    """Euclidean length of each head and sample, (B, H)."""
    return torch.linalg.vector_norm(x, dim=(-2, -1))


def _relative(difference: Tensor, z: Tensor, lost: Tensor | None = None) -> Tensor:
    """The largest relative residual but those of what is lost; NaN where a solution overflowed."""
    size, whole = _size(difference), _size(z)
    ratio = torch.where(size == 0, 0.0, size / torch.where(whole > 0, whole, 1.0))
    return (ratio if lost is None else ratio.masked_fill(lost[..., 0, 0], 0.0)).max()


def _check(report: Convergence, tol: float) -> None:
    if report.residual <= tol:
        return
    raise ConvergenceError(
        f"the resolvent did not converge: residual {report.residual:.2e} after {report.iterations} "
        "products with M, tolerance "
        f"{tol:.0e}, spectral radius about {report.radius:.4g}. Below 1: allow more iterations, "
        "take method='gmres', or a "
        "tolerance above the rounding of the precision. At or above 1 the series has no limit: "
        "lower the decay",
        radius=report.radius,
        residual=report.residual,
        iterations=report.iterations,
    )
