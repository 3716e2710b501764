"""The token graph: edges over one norm per head, as a product that is never stored; hops on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ....errors import OptionError, ShapeError, suggest
from ....ops.backend import (
    at_least_single,
    cast,
    checkable,
    choose_backend,
    followed,
    full_precision,
    wants_triton,
)
from ....ops.launch import grid_refusal
from ....ops.tiles import find_activation, root_of
from ....quadrature import Quadrature
from .registration import edge_product_op
from .tiled import ACTIVATIONS, activated

EDGE_PRODUCT = "the edge product"
NORMS = {"frobenius": "squares", "rows": "sums"}
STATISTICS = ("squares", "sums", "none")

DEFAULT_BYTES = 1 << 20
"""Memory of one tile of pairs; a backward holds two, which fit into a CPU core's cache."""

DEFAULT_CUDA_BYTES = 256_000_000
"""Memory of one tile of pairs on a GPU."""

FEW = 1 << 17
"""Pairs that are in memory at once: `python -m evidence time small tune`."""

WIDEST = 256
"""Columns of a query or a value that fit into the registers of a Triton program."""


def total_norm(
    row: Tensor,
    mass: Tensor,
    norm: str,
    causal: bool,
) -> Tensor:
    r"""Return one number per head from the rows' sizes r (B, H, N): :math:`\sqrt{\sum_i m_i r_i}`
    or :math:`\max_i r_i`, (B, H, 1).

    In causal order the norm of every prefix, (B, H, N). Points without mass do not count; the
    gradient at zero is zero.

    Example:
        >>> total_norm(torch.tensor([[[9.0, 16.0]]]), torch.ones(1, 2), "frobenius", True).tolist()
        [[[3.0, 5.0]]]
    """
    weight = mass[:, None]
    if norm == "rows":
        row = torch.where(weight > 0, row, 0.0)
        if causal:
            return row.cummax(-1).values
        return row.amax(-1, keepdim=True)
    weighted = weight * row
    if causal:
        return root_of(weighted.cumsum(-1))
    return root_of(weighted.sum(-1, keepdim=True))


def row_factor(
    norm: Tensor,
    scale: Tensor | None,
    decay: Tensor,
    eps: float,
) -> Tensor:
    r"""Return :math:`\gamma s_i / (s_i n_i + \varepsilon)`, which multiplies row i of the product
    P m v, (B, H, N | 1); 0 where n is 0.

    Args:
        norm: n, (B, H, N), or (B, H, 1) where all rows share it.
        scale: s, or None for 1.
        decay: γ, (H,).
        eps: ε.
    """
    above = decay[:, None]
    below = norm
    if scale is not None:
        above = above * scale
        below = scale * below
    below = below + eps
    if not eps:
        # A division by zero gives NaN in the gradient also where its result is not taken.
        below = torch.where(below > 0, below, 1.0)
    return torch.where(norm > 0, above / below, 0.0)


def row_sizes(pairs: Tensor, mass: Tensor, norm: str) -> Tensor:
    r"""Return the sizes of rows of edges P (B, H, Nq, Nk), :math:`\sum_j m_j P_{ij}^2` or
    :math:`\sum_j m_j |P_{ij}|`, with masses (B | 1, Nk).
    """
    if NORMS[norm] == "squares":
        size = pairs.square()
    else:
        size = pairs.abs()
    mass = mass[:, None, None]
    return (size * mass).sum(-1)


class Hop(NamedTuple):
    """M v (B, H, N, d), and the factors of the rows (B, H, N | 1), which further hops reuse."""

    product: Tensor
    factor: Tensor


# Nobody writes to a graph, but it is not frozen: a frozen class takes three times as long to build.
@dataclass(eq=False)
class TokenGraph:
    r"""The operator :math:`(Mv)_i = \sum_j M_{ij} v_j` of a decayed, normalised graph on one set of
    tokens,

    .. math:: M_{ij} = \frac{\gamma\, s_i\, P_{ij}\, m_j}{s_i n_i + \varepsilon}, \qquad
              P_{ij} = \rho_{ij}\,[j \le i]\,\phi(q_i \cdot k_j)

    with masses m, the measure's normalisation s and the norm n of :func:`total_norm`; s cancels but
    for ε, so that with equal masses and no ε M is γ P / ‖P‖.

    Attributes:
        query, key: (B, H, N, e), in the precision of the computation.
        mass: (B | 1, N). ``equal``: all of them are the same.
        scale: s (B | 1, 1 | H, N) or None. density: ρ (B | 1, H | 1, N, N) or None.
        decay: γ, (H,).
        causal, activation, norm, eps: see :class:`fredholm.kernels.HopKernel`.
        memory, backend, half: of one product, see :func:`edge_product`.
    """

    query: Tensor
    key: Tensor
    mass: Tensor
    scale: Tensor | None
    density: Tensor | None
    decay: Tensor
    causal: bool
    equal: bool
    activation: str = "relu"
    norm: str = "frobenius"
    eps: float = 1e-6
    memory: int | None = None
    backend: str = "auto"
    half: torch.dtype | None = None

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        quadrature: Quadrature,
        decay: Tensor,
        **options,
    ) -> TokenGraph:
        """Return the graph of tokens that see one another as ``quadrature`` says; computed in
        float32 at least.
        """
        q = quadrature
        dtype = at_least_single(query.dtype)
        scale = q.scale
        if scale is not None:
            scale = cast(scale, dtype)
        density = q.density
        if density is not None:
            density = cast(density, dtype)
        return cls(
            query=cast(query, dtype),
            key=cast(key, dtype),
            mass=cast(q.mass, dtype),
            scale=scale,
            density=density,
            decay=cast(decay, dtype),
            causal=q.query_time is not None,
            equal=q.equal and q.valid is None,
            **options,
        )

    # --- hops -------------------------------------------------------------------------------------

    def start(self, value: Tensor) -> Hop:
        """Return M v and the rows' factors, in one pass. O(N²) time, O(N) memory; up to
        :data:`FEW` pairs are in memory all at once.
        """
        if self._few():
            if self._even():
                return self._evenly(value)
            pairs = self.edges()
            factor = self.factor(self.sizes(pairs))
            product = pairs @ self._weighted(value)
            return Hop(product * factor[..., None], factor)
        product, row = self._product(
            self.query,
            self.key,
            self._weighted(value),
            self.density,
            NORMS[self.norm],
        )
        factor = self.factor(row)
        return Hop(product * factor[..., None], factor)

    def factor(self, row: Tensor) -> Tensor:
        """Return the rows' factors from their sizes (B, H, N)."""
        norm = total_norm(row, self.mass, self.norm, self.causal)
        return row_factor(norm, self.scale, self.decay, self.eps)

    def apply(self, value: Tensor, factor: Tensor) -> Tensor:
        """Return M v, with the factors of :meth:`start`: one hop."""
        product, _ = self._product(
            self.query,
            self.key,
            self._weighted(value),
            self.density,
            "none",
        )
        return product * factor[..., None]

    def apply_transposed(self, value: Tensor, factor: Tensor) -> Tensor:
        """Return Mᵀ v: one hop backwards."""
        # Mᵀ swaps the roles of queries and keys.
        query = self.key
        key = self.query
        weighted = value * factor[..., None]
        density = None
        if self.density is not None:
            density = self.density.mT
        if not self.causal:
            product, _ = self._product(
                query,
                key,
                weighted,
                density,
                "none",
            )
            return self._weighted(product)

        # Its triangle is the upper one: with the points turned round, it is the lower one that the
        # causal product computes.
        if density is not None:
            density = density.flip(2).flip(3)
        query = query.flip(2)
        key = key.flip(2)
        weighted = weighted.flip(2)
        product, _ = self._product(
            query,
            key,
            weighted,
            density,
            "none",
        )
        return self._weighted(product.flip(2))

    def _product(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        density: Tensor | None,
        statistic: str,
    ) -> tuple[Tensor, Tensor]:
        """Return the product with unnormalised edges, and their rows' sizes."""
        mass = self.mass
        if self.equal or statistic == "none":
            mass = mass[:, :1]
        options = EdgeOptions(
            causal=self.causal,
            activation=self.activation,
            statistic=statistic,
            memory=self.memory,
            half=self.half,
        )
        return edge_product(
            query,
            key,
            value,
            mass,
            density,
            options,
            backend=self.backend,
        )

    def _weighted(self, value: Tensor) -> Tensor:
        """Return values times their masses."""
        mass = self.mass[:, None, :, None]
        return cast(value, self.query.dtype) * mass

    # --- every pair in memory ---------------------------------------------------------------------

    def edges(self) -> Tensor:
        """Return P, every pair in memory at once, (B, H, N, N)."""
        pairs = activated(self.query @ self.key.mT, self.activation)
        if self.density is not None:
            pairs = pairs * self.density
        if self.causal:
            pairs = pairs.tril()
        return pairs

    def sizes(self, pairs: Tensor) -> Tensor:
        """Return the rows' sizes (B, H, N) from :meth:`edges`."""
        return row_sizes(pairs, self.mass, self.norm)

    def _few(self) -> bool:
        """Whether all pairs together cost less than to lay out tiles of them."""
        if torch.compiler.is_compiling() or self.memory is not None:
            return False
        if self.query.device.type != "cpu" or wants_triton(self.backend):
            return False
        b, h, n, _ = self.query.shape
        pairs = b * h * n * n
        return pairs <= FEW

    def _even(self) -> bool:
        """Whether every point sees every other with one mass, and no gradient asks for the norm's
        slope where there is no edge.
        """
        if self.causal or not self.equal or not self.eps or self.norm != "frobenius":
            return False
        if self.scale is not None or self.density is not None or self.mass.shape[0] > 1:
            return False
        if self.mass.shape[1] == 0:
            return False
        return not (followed(self.query) or followed(self.key))

    def _evenly(self, value: Tensor) -> Hop:
        """Return :meth:`start` there: γ P V / (‖P‖ + ε / m), samples and heads as one dimension."""
        b, h, n, _ = self.query.shape
        query = self.query.flatten(0, 1)
        key = self.key.flatten(0, 1)
        pairs = activated(torch.bmm(query, key.mT), self.activation)

        values = cast(value, pairs.dtype)
        product = torch.bmm(pairs, values.flatten(0, 1))

        # γ / (‖P‖ + ε / m), a number per sample and head.
        mass = self.mass[:, :1]
        norm = torch.linalg.vector_norm(pairs, dim=(1, 2))
        norm = norm.view(b, h)
        below = norm + self.eps / mass
        share = (self.decay / below).unsqueeze(2)

        product = product.view(b, h, n, product.shape[-1])
        out = product * share.unsqueeze(3)
        return Hop(out, share / mass)


def sum_of_hops(graph: TokenGraph, value: Tensor, hops: int) -> Tensor:
    r"""Return :math:`\sum_{t=1}^{hops} M^t v`, by :math:`y \leftarrow M(v + y)`. O(hops·N²) time,
    O(hops·N) memory with gradients.
    """
    with full_precision(value):
        out, factor = graph.start(value)
        for _ in range(hops - 1):
            out = graph.apply(value + out, factor)
    return out


# --- one product with the edges -------------------------------------------------------------------


class EdgeOptions(NamedTuple):
    """Options of :func:`edge_product`.

    Attributes:
        causal: query i sees the keys j ≤ i.
        activation: φ, a name of :data:`ACTIVATIONS`.
        statistic: ``"squares"``, ``"sums"`` (of magnitudes), or ``"none"`` (r is zero).
        memory: bytes of one tile of the PyTorch form.
        half: the half precision in which a Triton kernel multiplies, where the tensors came from
            it; sums stay in float32.
    """

    causal: bool = False
    activation: str = "relu"
    statistic: str = "squares"
    memory: int | None = None
    half: torch.dtype | None = None


DEFAULT_OPTIONS = EdgeOptions()


@checkable(EDGE_PRODUCT)
def edge_product(
    query: Float[Tensor, "b h q e"],
    key: Float[Tensor, "b h k e"],
    value: Float[Tensor, "b h k d"],
    mass: Float[Tensor, "#b #k"],
    density: Float[Tensor, "#b #h q k"] | None = None,
    options: EdgeOptions = DEFAULT_OPTIONS,
    *,
    backend: str = "auto",
) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h q"]]:
    r"""Return edges times values, and the size of every row, in one pass over tiles:

    .. math:: P_{ij} = \rho_{ij}\,[j \le i]\,\phi(q_i \cdot k_j), \qquad
              o_i = \sum_j P_{ij} v_j, \qquad
              r_i = \sum_j m_j P_{ij}^2 \ \text{ or } \ \sum_j m_j |P_{ij}|

    A norm that is one number per head (or per prefix) is a function of r and divides o afterwards,
    so that nothing of size Nq × Nk is kept. The quadrature masses of the product belong in
    ``value``.

    Args:
        query, key, value: (B, H, Nq, e), (B, H, Nk, e), (B, H, Nk, d); d may be 0 where only r is
            wanted.
        mass: m of the row statistic, (B | 1, Nk), or (B | 1, 1) where all keys have the same.
        density: ρ, (B | 1, H | 1, Nq, Nk).
        options: the order, φ, the statistic, and memory and precision of the computation.
        backend: see :mod:`fredholm.ops.backend`.

    Returns:
        o and r, in float32 at least.

    Cost: O(B·H·Nq·Nk·(e + d)) time, O(N) memory and three tiles, forward and backward, which
    computes tiles again.

    Raises:
        BackendError: a requested backend that cannot run.
        OptionError: unknown activation, statistic or backend, memory below one byte.
        ShapeError: shapes that do not fit.

    Reference: InfSA Eqs. 11, 12, with the division moved behind the product.

    Example:
        >>> one = torch.ones(1, 1, 2, 1)
        >>> options = EdgeOptions(causal=True)
        >>> out, row = edge_product(one, one, one, torch.ones(1, 1), options=options)
        >>> out.flatten().tolist(), row.round(decimals=4).flatten().tolist()
        ([1.0, 2.0], [1.0, 2.0])
    """
    causal, activation, statistic, memory, half = options
    find_activation(activation, ACTIVATIONS)
    if statistic not in STATISTICS:
        raise OptionError(f"unknown statistic {statistic!r}{suggest(statistic, STATISTICS)}")
    if memory is not None and memory < 1:
        raise OptionError(f"expected memory of one byte or more for a tile, got {memory}")
    if memory is None:
        memory = DEFAULT_CUDA_BYTES
        if value.device.type == "cpu":
            memory = DEFAULT_BYTES
    _check_shapes(query, key, value, causal)

    tensors = (query, key, value, mass, density)
    dtype = torch.float32
    if any(x is not None and x.dtype == torch.float64 for x in tensors):
        dtype = torch.float64
    mass = cast(mass, dtype)
    if density is not None:
        density = cast(density, dtype)

    def refusal() -> str | None:
        return triton_refusal(dtype, query, value)

    if choose_backend(backend, EDGE_PRODUCT, value.device, refusal) == "triton":
        # Imported here, because Triton may not be installed.
        from ..triton.op import edge_product_triton

        if half is not None:
            query, key, value = (x.to(half) for x in (query, key, value))
        return edge_product_triton(
            query,
            key,
            value,
            mass,
            density,
            causal,
            activation,
            statistic,
        )

    return edge_product_op(
        cast(query, dtype),
        cast(key, dtype),
        cast(value, dtype),
        mass,
        density,
        causal,
        activation,
        statistic,
        memory,
    )


def _check_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool,
) -> None:
    """Raise ShapeError unless queries, keys and values fit one another."""
    b, h, nk, _ = value.shape
    nq = query.shape[2]
    if key.shape[:3] != (b, h, nk) or query.shape != (b, h, nq, key.shape[3]):
        shapes = f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
        raise ShapeError(
            f"expected query (B, H, Nq, e), key (B, H, Nk, e) and value (B, H, Nk, d), got {shapes}"
        )
    if causal and nq != nk:
        raise ShapeError(f"expected as many queries as keys in a causal product, got {nq} and {nk}")


def triton_refusal(
    dtype: torch.dtype,
    query: Tensor,
    value: Tensor,
) -> str | None:
    """Return why the Triton kernels cannot compute a product of these tensors in the precision of
    the computation, or None.
    """
    if dtype == torch.float64:
        return "its sums are in float32, and the tensors are in float64"
    if max(query.shape[3], value.shape[3]) > WIDEST:
        return (
            f"it holds up to {WIDEST} columns of a query or a value, got {query.shape[3]} and "
            f"{value.shape[3]}"
        )
    return grid_refusal(value.shape[0] * value.shape[1])
