"""All hops on a token graph: the resolvent, with its convergence checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ....errors import ConvergenceError, DerivativeError
from ....ops.backend import several_gradients
from ....ops.plain import differentiable_again
from .tiled import activated
from .token_graph import EdgeOptions, TokenGraph, edge_product

Map = Callable[[Tensor], Tensor]

BLOCK = 128
"""Rows that substitution solves together."""

ROUNDING = 16
"""A residual of so many units in the last place is as small as one gets."""

RESTART = 10
"""Vectors of the Krylov space that GMRES builds before it restarts."""

TENSORS = ("query", "key", "mass", "scale", "density", "decay")
"""Tensors of a graph."""


@dataclass(frozen=True)
class Convergence:
    """The method that solved a resolvent, and its accuracy.

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


class Solved(NamedTuple):
    """A solution (B, H, N, d), and how it was reached."""

    solution: Tensor
    convergence: Convergence


class Iterate(NamedTuple):
    """The last iterate z of a solver, the products it took, and its estimate of the spectral
    radius.
    """

    z: Tensor
    products: int
    radius: float


class Limits(NamedTuple):
    """Options of an iteration, see :class:`fredholm.operators.Resolvent`."""

    tol: float
    max_iterations: int
    method: str


class System(NamedTuple):
    """The system z = b + Az, with A given as a product."""

    apply: Map
    right: Tensor

    def without(self, lost: Tensor) -> System:
        """Return the system with zeros in place of heads and samples that are ``lost``. Their
        solution is then zero, so that the others' iterations do not wait for it.
        """

        def apply(v: Tensor) -> Tensor:
            return self.apply(v).masked_fill(lost, 0.0)

        return System(apply, self.right.masked_fill(lost, 0.0))

    def solve(self, limits: Limits) -> Iterate:
        """Iterate until the relative residual is within the tolerance, or products run out."""
        solver = SOLVERS[limits.method]
        return solver(
            self.apply,
            self.right,
            limits.tol,
            limits.max_iterations,
        )


def resolvent(
    graph: TokenGraph,
    value: Tensor,
    *,
    tol: float,
    max_iterations: int,
    method: str,
) -> Solved:
    r"""Return :math:`((I - M)^{-1} - I)\,v = \sum_{t \ge 1} M^t v`, and how it was solved.

    Without order :math:`z = v + Mz` is iterated; in causal order M is triangular and z follows by
    substitution. The backward solves the transposed system, so memory does not grow with the number
    of iterations. Second derivatives solve with the whole matrix, :func:`resolvent_naive`.

    Raises:
        ConvergenceError: the residual stays above ``tol``.
    """
    if value.is_meta or not value.numel():
        # Without values there is no residual by which iterations could stop.
        report = Convergence(method, 0, 0.0, 0.0)
        return Solved(resolvent_naive(graph, value), report)
    smallest = ROUNDING * torch.finfo(value.dtype).eps
    limits = Limits(max(tol, smallest), max_iterations, method)
    reports: list[Convergence] = []

    def fast(value: Tensor, *tensors: Tensor | None) -> Tensor:
        out, report = _resolvent(_with_tensors(graph, tensors), value, limits)
        reports.append(report)
        return out

    def plain(value: Tensor, *tensors: Tensor | None) -> Tensor:
        return resolvent_naive(_with_tensors(graph, tensors), value)

    tensors = (getattr(graph, name) for name in TENSORS)
    out = differentiable_again(fast, plain, value, *tensors)
    return Solved(out, reports[0])


def resolvent_naive(graph: TokenGraph, value: Tensor) -> Tensor:
    """Return the same by a direct solution with the whole matrix, O(N³) time and O(N²) memory, of
    which derivatives other than the first are taken.
    """
    edges = graph.edges()
    factor = graph.factor(graph.sizes(edges))
    of_rows = factor[..., None]
    of_columns = graph.mass[:, None, None]
    matrix = of_rows * edges * of_columns

    identity = torch.eye(
        matrix.shape[-1],
        dtype=matrix.dtype,
        device=matrix.device,
    )
    right = value.to(matrix.dtype)
    solution = torch.linalg.solve(identity - matrix, right)
    return solution - value


def _with_tensors(graph: TokenGraph, tensors: Sequence[Tensor | None]) -> TokenGraph:
    return replace(graph, **dict(zip(TENSORS, tensors)))


def _resolvent(graph: TokenGraph, value: Tensor, limits: Limits) -> Solved:
    """Return the resolvent with its first derivatives."""
    factor = graph.start(value).factor
    fixed = factor.detach()
    with torch.no_grad():
        lost = _lost(
            value,
            graph.query,
            graph.key,
            fixed[..., None],
        )
        if graph.causal:
            limits = limits._replace(method="substitution")
            z = substitute(graph, value, fixed)
            found = Iterate(
                z,
                products=0,
                radius=diagonal_radius(graph, fixed),
            )
        else:
            apply = partial(graph.apply, factor=fixed)
            system = System(apply, value)
            found = system.without(lost).solve(limits)
            z = found.z.masked_fill(lost, torch.nan)
            found = found._replace(z=z)

    # A solver may hand back the right side itself, with its gradient.
    z = found.z.detach()

    # One more product, with gradients, measures the residual. By z = v + Mz its gradient is right
    # but for a factor (I - Mᵀ)⁻¹ on the gradient that arrives at z: the hook solves for it.
    attached = value + graph.apply(z, factor)
    difference = attached.detach() - z
    residual = float(_relative(difference, z, lost))
    products = found.products + 1
    report = Convergence(limits.method, products, residual, found.radius)
    _check(report, limits.tol)
    if bool(lost.any()):
        report = replace(report, residual=torch.nan)

    def solve_transposed(grad: Tensor | None) -> Tensor | None:
        if grad is None:
            return None
        return conjugate_solution(graph, grad, fixed, limits, lost)

    if attached.requires_grad:
        attached.register_hook(solve_transposed)
    return Solved(attached - value, report)


@torch.no_grad()
def conjugate_solution(
    graph: TokenGraph,
    grad: Tensor,
    factor: Tensor,
    limits: Limits,
    lost: Tensor,
) -> Tensor:
    """Return λ with λ = g + Mᵀλ, which a gradient g of the resolvent becomes.

    Raises:
        DerivativeError: several gradients in one.
    """
    if several_gradients([grad]):
        raise DerivativeError(
            "expected one gradient of a resolvent, got several at once: it is solved for until its "
            "residual is small, which is_grads_batched=True and vectorize=True do not let it see; "
            "take the gradients one by one, or use torch.func.jacrev, which solves with the whole "
            "matrix"
        )
    if graph.causal:
        return substitute(graph, grad, factor, transposed=True)
    lost = lost | _lost(grad)
    apply = partial(graph.apply_transposed, factor=factor)
    system = System(apply, grad).without(lost)
    solution = _solve(system, limits).solution
    return solution.masked_fill(lost, torch.nan)


def solve(
    apply: Map,
    right: Tensor,
    tol: float,
    max_iterations: int,
    method: str,
) -> Solved:
    """Return z = b + Az (B, H, N, d) for a linear map A given as a product, and how it was solved.

    Raises:
        ConvergenceError: the residual stays above ``tol``.

    Example:
        >>> z, report = solve(lambda v: 0.5 * v, torch.ones(1, 1, 2, 1), 1e-6, 100, "neumann")
        >>> z.flatten().round(decimals=4).tolist(), round(report.radius, 3)
        ([2.0, 2.0], 0.5)
    """
    return _solve(System(apply, right), Limits(tol, max_iterations, method))


def _solve(system: System, limits: Limits) -> Solved:
    """Return the solution after one more product, which measures the residual."""
    z, products, radius = system.solve(limits)
    after = system.right + system.apply(z)
    residual = float(_relative(after - z, z))
    report = Convergence(limits.method, products + 1, residual, radius)
    _check(report, limits.tol)
    return Solved(after, report)


def _lost(*tensors: Tensor) -> Tensor:
    """Return the heads and samples (B, H, 1, 1) with a number that is not finite: they have no
    solution.
    """
    first, *others = [~x.isfinite().all((-2, -1), keepdim=True) for x in tensors]
    lost = first
    for other in others:
        lost = lost | other
    return lost


# --- substitution ---------------------------------------------------------------------------------


def substitute(
    graph: TokenGraph,
    value: Tensor,
    factor: Tensor,
    *,
    transposed: bool = False,
) -> Tensor:
    """Return z = v + Mz for a causal graph, or with Mᵀ, a block of rows at a time: one pass over
    the triangle.

    The blocks already solved enter through the tiled product. Only the square on the diagonal is
    made, and solved as the triangle it is. Rows of M are solved from the first to the last, those
    of Mᵀ from the last to the first.
    """
    n = value.shape[2]
    z = torch.zeros_like(value)
    batch, heads = factor.shape[:2]
    factor = factor.expand(batch, heads, n)
    factor = factor[..., None]
    mass = graph.mass[:, None, :, None]

    # M_ij = factor_i P_ij mass_j: the transposed product swaps ends and factors.
    query = graph.query
    key = graph.key
    of_row = factor
    of_column = mass
    starts = range(0, n, BLOCK)
    if transposed:
        query, key = key, query
        of_row = mass
        of_column = factor
        starts = reversed(starts)

    options = EdgeOptions(activation=graph.activation, statistic="none", memory=graph.memory)
    # In memory are one block of rows and its square on the diagonal, (B, H, BLOCK, BLOCK).
    for start in starts:
        rows = slice(start, min(start + BLOCK, n))
        known = slice(0, start)
        if transposed:
            known = slice(rows.stop, n)
        right = value[:, :, rows]
        if known.stop > known.start:
            product, _ = edge_product(
                query[:, :, rows],
                key[:, :, known],
                (z * of_column)[:, :, known],
                graph.mass[:, :1],
                _part(graph.density, rows, known, transposed),
                options,
                backend=graph.backend,
            )
            right = right + of_row[:, :, rows] * product

        # (I - M) on the diagonal block: lower triangular, and transposed an upper triangle.
        block = _diagonal_block(graph, rows)
        size = block.shape[-1]
        identity = torch.eye(size, dtype=block.dtype, device=block.device)
        row_factor = factor[:, :, rows]
        row_mass = mass[:, :, rows].mT
        triangle = identity - row_factor * block * row_mass
        if transposed:
            triangle = triangle.mT
        solved = torch.linalg.solve_triangular(triangle, right, upper=transposed)
        z[:, :, rows] = solved
    return z


def _diagonal_block(graph: TokenGraph, rows: slice) -> Tensor:
    """Return the edges P of some rows among themselves, a lower triangle."""
    query = graph.query[:, :, rows]
    key = graph.key[:, :, rows]
    edges = activated(query @ key.mT, graph.activation)
    block = edges.tril()
    density = _part(graph.density, rows, rows, transposed=False)
    if density is None:
        return block
    return block * density


def _part(
    density: Tensor | None,
    rows: slice,
    columns: slice,
    transposed: bool,
) -> Tensor | None:
    """Return the density of a block of pairs, or of the transposed block."""
    if density is None:
        return None
    if transposed:
        return density[:, :, columns, rows].mT
    return density[:, :, rows, columns]


def diagonal_radius(graph: TokenGraph, factor: Tensor) -> float:
    """Return the spectral radius of a causal graph's M: its largest diagonal entry."""
    scores = (graph.query * graph.key).sum(-1)
    edges = activated(scores, graph.activation)
    diagonal = edges * factor * graph.mass[:, None]
    if graph.density is not None:
        own_density = graph.density.diagonal(dim1=-2, dim2=-1)
        diagonal = diagonal * own_density
    return float(diagonal.abs().max())


# --- iterations -----------------------------------------------------------------------------------


def neumann(
    apply: Map,
    right: Tensor,
    tol: float,
    max_iterations: int,
) -> Iterate:
    """Solve z = b + Az by iterating just that. Stops early where it diverges.

    The change of z shrinks by the spectral radius in each step, in the end.
    """
    z = right
    before = None
    radius = 0.0
    for products in range(1, max_iterations):
        after = right + apply(z)
        change = _size(after - z)
        if before is not None:
            radius = float(_ratio(change, before).max())
        limit = tol * _size(after)
        converged = bool((change <= limit).all())
        diverges = not bool(change.isfinite().all())

        z = after
        before = change
        if converged or diverges:
            return Iterate(z, products, radius)
    return Iterate(z, max_iterations - 1, radius)


def gmres(
    apply: Map,
    right: Tensor,
    tol: float,
    max_iterations: int,
) -> Iterate:
    """Solve (I - A) z = b by restarted GMRES, every head and sample by itself."""
    z = right
    products = 0
    radius = 0.0
    while products < max_iterations - 1:
        residual = right + apply(z) - z
        products += 1
        size = _size(residual)
        limit = tol * _size(z)
        if bool((size <= limit).all()):
            break
        steps = min(RESTART, max_iterations - 1 - products)
        if steps < 1:
            break
        basis, small = _arnoldi(apply, residual, size, steps)
        products += steps

        # The combination of basis vectors whose residual is least: a small least-squares problem.
        shape = (*size.shape, steps + 1, 1)
        target = torch.zeros(shape, dtype=small.dtype, device=small.device)
        target[..., 0, 0] = size
        inverse = torch.linalg.pinv(small)
        weights = (inverse @ target)[..., 0].to(z.dtype)
        correction = torch.einsum("sbhnd,bhs->bhnd", basis[:steps], weights)
        z = z + correction

        # Ritz values of A: eigenvalues of I - H. They are 1 where there is nothing to solve.
        identity = torch.eye(steps, dtype=small.dtype, device=small.device)
        square = small[..., :steps, :]
        ritz = torch.linalg.eigvals(identity - square)
        largest = ritz.abs().amax(-1)
        largest = torch.where(size > 0, largest, 0.0)
        radius = float(largest.max())
    return Iterate(z, products, radius)


class KrylovSpace(NamedTuple):
    """Orthonormal vectors (steps + 1, B, H, N, d) of the Krylov space of I - A, and its Hessenberg
    matrix (B, H, steps + 1, steps).
    """

    basis: Tensor
    hessenberg: Tensor


def _arnoldi(
    apply: Map,
    residual: Tensor,
    size: Tensor,
    steps: int,
) -> KrylovSpace:
    """Build the Krylov space of a residual by Gram and Schmidt's method."""
    basis = residual.new_zeros(steps + 1, *residual.shape)
    basis[0] = _unit(residual, size)
    hessenberg = residual.new_zeros(*size.shape, steps + 1, steps)
    for s in range(steps):
        known = basis[: s + 1]
        vector = basis[s] - apply(basis[s])

        # Rounding leaves a part along the basis; subtracting twice is enough to be orthogonal.
        for _ in range(2):
            along = torch.einsum("sbhnd,bhnd->bhs", known, vector)
            vector = vector - torch.einsum("sbhnd,bhs->bhnd", known, along)
            hessenberg[..., : s + 1, s] += along

        # A length of rounding alone says that the space is exhausted.
        length = _size(vector)
        smallest = torch.finfo(length.dtype).eps
        length = torch.where(length > smallest, length, 0.0)
        hessenberg[..., s + 1, s] = length
        basis[s + 1] = _unit(vector, length)
    return KrylovSpace(basis, hessenberg)


SOLVERS = {"neumann": neumann, "gmres": gmres}


def _unit(vector: Tensor, length: Tensor) -> Tensor:
    """Return vectors divided by their length, zero where that is zero."""
    some = length > 0
    reciprocal = 1.0 / torch.where(some, length, 1.0)
    scale = torch.where(some, reciprocal, 0.0)
    return vector * scale[..., None, None]


def _ratio(size: Tensor, before: Tensor) -> Tensor:
    """Return by how much sizes have grown, zero where there was none before."""
    some = before > 0
    ratio = size / torch.where(some, before, 1.0)
    return torch.where(some, ratio, 0.0)


def _size(x: Tensor) -> Tensor:
    """Return the Euclidean length of each head and sample, (B, H)."""
    return torch.linalg.vector_norm(x, dim=(-2, -1))


def _relative(
    difference: Tensor,
    z: Tensor,
    lost: Tensor | None = None,
) -> Tensor:
    """Return the largest relative residual of all heads and samples that are not lost; NaN where a
    solution overflowed.
    """
    size = _size(difference)
    solution = _size(z)
    ratio = size / torch.where(solution > 0, solution, 1.0)
    # A difference of zero counts as none, whatever the solution.
    ratio = torch.where(size == 0, 0.0, ratio)
    if lost is not None:
        lost_matrices = lost[..., 0, 0]
        ratio = ratio.masked_fill(lost_matrices, 0.0)
    return ratio.max()


def _check(report: Convergence, tol: float) -> None:
    """ConvergenceError where the residual is above the tolerance, or NaN."""
    if report.residual <= tol:
        return
    raise ConvergenceError(
        f"the resolvent did not converge: expected a residual of at most {tol:g}, got "
        f"{report.residual:g} after {report.iterations} products with M, spectral radius about "
        f"{report.radius:.4g}. Below 1: allow more iterations, take method='gmres', or a tolerance "
        "above the rounding of the precision. At or above 1 the series has no limit: lower the "
        "decay",
        radius=report.radius,
        residual=report.residual,
        iterations=report.iterations,
    )
