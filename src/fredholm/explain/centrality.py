"""Centrality of tokens: an operator's weights as the transitions of an absorbing Markov chain.

Only the operator contract is used (``weights``), so that softmax, ITNet or a converted layer can be
read like InfSA. Small domains hold the matrix; on large ones every quantity is found by products
with it, a block of rows or a tile at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ..domain import Domain
from ..errors import ConvergenceError, OptionError
from ..families.infsa.capabilities import DecayingWeights, TokenGraphWeights
from ..families.infsa.graph import TokenGraph, solve
from ..integral import IntegralOperator
from .kernels import BUDGET, PairwiseOperator, check, masses, pair_weights

# Points up to which the matrix is in memory.
DENSE = 1024

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class TokenChain:
    r"""The absorbing chain :math:`M = \gamma W` of an operator's weights W, with absorption
    :math:`R_i = 1 - \sum_j M_{ij}`.

    Tensors are in float64 on the operator's device. Every head of every sample is a separate
    chain. Padded points and points without mass (a class token) are not states; their quantities
    are 0.

    Attributes:
        decay: the γ in use, (B, H). It is smaller than the requested one where row sums would
            exceed 1 - margin.
        requested: the requested γ, one number or one per head.
        row_sums: of W, (B, H, N).
        real: points that are states, (B | 1, 1, N, 1), as 0 and 1.
        matrix: M (B, H, N, N), or None if it is applied without being stored.
        apply, apply_transposed: products with W and its transpose, (B, H, N, k) to the same.
        tol, max_iterations: of the solutions and iterations.
    """

    decay: Tensor
    requested: float | Tensor
    row_sums: Tensor
    real: Tensor
    matrix: Tensor | None
    apply: Product
    apply_transposed: Product
    tol: float
    max_iterations: int

    @property
    def limited(self) -> Tensor:
        """Heads and samples (B, H) whose γ had to be lowered."""
        return self.decay < self.requested

    @property
    def absorption(self) -> Tensor:
        """R, the probability to stop at each point, (B, H, N): at least the margin."""
        going_on = self.decay[..., None] * self.row_sums
        return (1.0 - going_on) * self.real[..., 0]

    @cached_property
    def outgoing(self) -> Tensor:
        r""":math:`\sum_j N_{ij}`, (B, H, N): expected visits, the start included, of a walk from i
        before it stops (Eq. 15).
        """
        solved = self._solved(self._start(), transposed=False)
        return solved[..., 0]

    @cached_property
    def incoming(self) -> Tensor:
        r""":math:`\sum_i N_{ij}`, (B, H, N): expected visits to j of one walk from every point: how
        central j is.
        """
        solved = self._solved(self._start(), transposed=True)
        return solved[..., 0]

    @property
    def katz(self) -> Tensor:
        r"""Katz centrality :math:`(I - M)^{-1} e - e`, (B, H, N): outgoing visits without the start
        (Eq. 8).
        """
        return self.outgoing - self.real[..., 0]

    def fundamental(self, rows: list[int] | None = None) -> Tensor:
        r"""Return R rows of :math:`(I - M)^{-1}`, (B, H, R, N): entry (i, j) is the expected number
        of visits to j of a walk from i. Rows of padded points are 0.

        Args:
            rows: the starting points i; None for all N, which needs the dense matrix.

        Raises:
            OptionError: all rows of a matrix that is not stored.
        """
        n = self.row_sums.shape[-1]
        if rows is None and self.matrix is None:
            raise OptionError(
                f"N has {n}² entries; ask for rows=[...], or raise dense={n} if there is memory "
                "for them"
            )
        index = torch.arange(n)
        if rows is not None:
            index = torch.as_tensor(rows)

        # Row i of the inverse solves (I - M)ᵀ x = eᵢ. The unit vectors are columns, (B | 1, 1, N, R).
        columns = torch.nn.functional.one_hot(index, n).mT
        unit = columns.to(self.row_sums) * self.real
        unit = unit.expand(*self.decay.shape, -1, -1)
        return self._solved(unit, transposed=True).mT

    @torch.no_grad()
    def stationary(self, *, damping: float = 1.0) -> Tensor:
        """Stationary distribution of W with rows made to sum to one, (B, H, N): the closed chain of
        TokenRank, for comparison.

        From an empty row the chain jumps to a random point, and so does every step with probability
        1 - ``damping``. If the chain is reducible (causal order without damping), the result is the
        limit from the uniform distribution.

        Raises:
            OptionError: damping outside (0, 1].
            ConvergenceError: the distribution still moves after ``max_iterations``.
        """
        if not 0.0 < damping <= 1.0:
            raise OptionError(f"damping lies in (0, 1], got {damping}")
        points = self.real.sum(2, keepdim=True)
        uniform = self.real / points
        row_sums = self.row_sums[..., None]
        some = row_sums > 0
        divisor = torch.where(some, row_sums, 1.0)
        rate = torch.where(some, 1.0 / divisor, 0.0)
        state = uniform.expand(*self.decay.shape, -1, -1)
        change = before = 1.0
        for _ in range(self.max_iterations):
            at_sinks = torch.where(some, 0.0, state)
            lost = at_sinks.sum(2, keepdim=True)
            walked = self.apply_transposed(state * rate) + lost * uniform
            moved = damping * walked + (1 - damping) * uniform
            # A lazy walk has the same limit, and no period that would keep it from the limit.
            after = (state + moved) / 2
            before = change
            difference = (after - state).abs()
            change = float(difference.sum(2).max())
            state = after
            if change <= self.tol:
                return state[..., 0]
        raise ConvergenceError(
            f"the distribution still moves by {change:g} a step after {self.max_iterations} "
            f"steps (tol {self.tol:g}); allow "
            "more iterations, or jump now and then with damping=0.85",
            radius=change / max(before, 1e-300),
            residual=change,
            iterations=self.max_iterations,
        )

    def _start(self) -> Tensor:
        return self.real.expand(*self.decay.shape, -1, -1)

    @torch.no_grad()
    def _solved(self, start: Tensor, *, transposed: bool) -> Tensor:
        """Return (I - M)⁻¹, or its transpose, applied to (B, H, N, k)."""
        if self.matrix is not None:
            unit = torch.eye(self.matrix.shape[-1])
            unit = unit.to(self.matrix)
            system = unit - self.matrix
            if transposed:
                system = system.mT
            return torch.linalg.solve(system, start)
        product = self.apply
        if transposed:
            product = self.apply_transposed
        gamma = self.decay[..., None, None]
        solution, *_ = solve(
            lambda v: gamma * product(v),
            start,
            self.tol,
            self.max_iterations,
            "gmres",
        )
        return solution


@torch.no_grad()
def token_chain(
    operator: PairwiseOperator,
    u: Float[Tensor, "b n d"],
    domain: Domain | None = None,
    *,
    decay: float | Tensor | None = None,
    margin: float = 0.05,
    dense: int = DENSE,
    tol: float = 1e-10,
    max_iterations: int = 2000,
    budget: int = BUDGET,
) -> TokenChain:
    r"""Return the absorbing chain of an operator's weights W, with
    :math:`\gamma = \min(decay,\ (1 - margin) / \max_i \sum_j W_{ij})`.

    InfSA's Frobenius norm does not bound the row sums, which can reach √N, so its γ may leave no
    probability to stop. Then γ is lowered, and ``chain.limited`` marks where.

    Args:
        operator: anything with ``weights(u, domain, rows=...)``, non-negative.
        u: its inputs, (B, N, D).
        domain: where they live, by default where the operator puts them without one.
        decay: γ; by default what leaves one γ in the weights of an operator that holds a decay (its
            kernel is :class:`fredholm.families.infsa.capabilities.DecayingWeights`, as InfSA's, in block l of a model
            often γ^l), else 0.7.
        margin: least probability to stop at any point.
        dense: number of points up to which the matrix is stored.
        tol, max_iterations: of the solutions above that: relative residual and products at most.
        budget: bytes of weights evaluated at once above that.

    Cost: dense O(N³) time for N, O(N²) memory; matrix-free O(N²) time per product and ``budget``
    memory.

    Raises:
        OptionError: a decay, margin or tolerance outside its interval, or negative weights.
        ConvergenceError: a quantity did not converge; it is raised when the quantity is used.

    Reference: InfSA §3.3, Eqs. 13-15; Katz 1953; TokenRank for :meth:`TokenChain.stationary`.

    Example:
        >>> from fredholm.operators import create_operator
        >>> chain = token_chain(create_operator("softmax", 8, heads=2), torch.randn(1, 5, 8), decay=0.5)
        >>> chain.outgoing.round(decimals=4).flatten().tolist()[:3], bool(chain.limited.any())
        ([2.0, 2.0, 2.0], False)
    """
    domain = check(operator, u, domain)
    if decay is None:
        decay = _own_decay(getattr(operator, "kernel", None))
    factors = torch.as_tensor(decay)
    positive = bool((factors > 0).all())
    if not positive or not 0 < margin < 1 or not 0 < tol < 1:
        raise OptionError(
            f"a chain needs decay > 0, margin and tol in (0, 1), got {decay}, {margin} and {tol}"
        )
    # (B | 1, 1, N, 1): points with a mass that are not padding.
    has_mass = masses(domain) > 0
    has_mass = has_mass.to(u.device)
    real = has_mass[:, None, :, None].double()
    weights: Tensor | None = None
    if domain.size <= dense:
        every = pair_weights(operator, u, domain).detach().double()
        weights = every * real * real.mT
        _check_signs(weights)
        heads = weights.shape[1]
        products: tuple[Product, Product] | None = (weights.matmul, weights.mT.matmul)
    else:
        products = _graph_products(operator, u, domain, real)
        if products is None:
            products = _row_products(operator, u, domain, real, budget)
        first_row = pair_weights(operator, u, domain, rows=[0])
        heads = first_row.shape[1]
    product, product_transposed = products
    ones = real.expand(len(u), heads, -1, -1)
    row_sums = product(ones)[..., 0]

    # A walk must be able to stop everywhere: its row sums stay below 1.
    most = 1 - margin
    largest = row_sums.amax(-1)
    highest = most / largest.clamp(min=1e-300)
    gamma = torch.where(decay * largest > most, highest, decay)
    matrix = None
    if weights is not None:
        matrix = gamma[..., None, None] * weights
    return TokenChain(
        gamma,
        decay,
        row_sums,
        real,
        matrix,
        product,
        product_transposed,
        tol,
        max_iterations,
    )


@torch.no_grad()
def _own_decay(kernel: object) -> float | Tensor:
    """Return the decay that leaves one γ in the weights of a kernel with a decay of its own."""
    if not isinstance(kernel, DecayingWeights):
        return 0.7
    gain = kernel.gain()
    if gain is None:
        return 1.0
    return 1.0 / gain.double()


def _graph_products(
    operator: PairwiseOperator,
    u: Tensor,
    domain: Domain,
    real: Tensor,
) -> tuple[Product, Product] | None:
    """Return products with a token graph, by tiles; None for other operators, and for GELU, whose
    weights may be negative.
    """
    if not isinstance(operator, IntegralOperator):
        return None
    kernel = operator.kernel
    if not isinstance(kernel, TokenGraphWeights) or kernel.rules()["activation"] == "gelu":
        return None
    problem = operator.problem(u, domain)
    query, key, _ = kernel.tokens(problem.uy)
    graph = TokenGraph.of(
        query.double(),
        key.double(),
        problem.quadrature,
        **kernel.rules(),
    )
    no_values = query.new_zeros(*query.shape[:3], 0)
    _, factor = graph.start(no_values.double())
    gain = kernel.gain()
    if gain is not None:
        factor = factor * gain.double()[:, None]
    return (
        lambda v: graph.apply(v * real, factor) * real,
        lambda v: graph.apply_transposed(v * real, factor) * real,
    )


def _row_products(
    operator: PairwiseOperator,
    u: Tensor,
    domain: Domain,
    real: Tensor,
    budget: int,
) -> tuple[Product, Product]:
    """Return products with W and with Wᵀ, each from (B, H, N, k) to (B, H, N, k), that never hold
    W: every call evaluates its rows again, in blocks of at most ``budget`` bytes, in float64.

    Only the product with W checks for negative weights. That suffices: :func:`token_chain` calls it
    first, for the row sums.
    """
    # Every row takes as many bytes as this one, (B, H, 1, N); 8 bytes per number in float64.
    probe = pair_weights(operator, u, domain, rows=[0])
    bytes_per_row = 8 * probe.numel()
    size = max(1, budget // bytes_per_row)
    blocks = torch.arange(domain.size).split(size)

    def rows(block: Tensor) -> Tensor:
        """Return some rows of W, (B, H, r, N), zero where either point is not a state."""
        weights = pair_weights(operator, u, domain, rows=block)
        to_real = weights.detach().double() * real.mT
        return to_real * real[:, :, block]

    def apply(v: Tensor) -> Tensor:
        """Return W v. Each block yields the rows of the result that belong to its queries."""
        parts = []
        for block in blocks:
            part = rows(block)
            _check_signs(part)
            parts.append(part @ v)
        return torch.cat(parts, 2)

    def apply_transposed(v: Tensor) -> Tensor:
        """Return Wᵀ v. Each block contributes to all rows of the result, so blocks are added."""
        first, *others = blocks
        total = rows(first).mT @ v[:, :, first]
        for block in others:
            total = total + rows(block).mT @ v[:, :, block]
        return total

    return apply, apply_transposed


def _check_signs(weights: Tensor) -> None:
    if bool((weights < 0).any()):
        raise OptionError(
            "a Markov chain needs non-negative weights, this operator's go down to "
            f"{float(weights.min()):.3g}; take an activation that is not negative, such as relu "
            "or abs"
        )
