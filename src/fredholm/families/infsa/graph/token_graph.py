"""The token graph: edges over one norm per head, as a product that is never stored; hops on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ....errors import OptionError, ShapeError, suggest
from ....ops import backend
from ....ops.backend import at_least_single, cast, choose_backend, followed, full_precision
from ....ops.comparison import Form, Sampler
from ....ops.launch import grid_refusal
from ....ops.tiles import find_activation, root_of
from ....quadrature import Quadrature
from .registration import edge_product_op
from .sample import sample
from .tiled import ACTIVATIONS, activated

EDGE_PRODUCT = "the edge product"
NORMS = {"frobenius": "squares", "rows": "sums"}
DEFAULT_BYTES = 1 << 20  # one tile of pairs; a backward holds two, which a CPU core's cache takes
DEFAULT_CUDA_BYTES = 256_000_000
FEW = 1 << 17  # pairs that are held at once: `python -m evidence time small tune`
WIDEST = 256  # columns of a query or a value that the registers of a Triton program can hold
STATISTICS = ("squares", "sums", "none")


def total_norm(row: Tensor, mass: Tensor, norm: str, causal: bool) -> Tensor:
    r"""One number per head from the rows' sizes r (B, H, N): :math:`\sqrt{\sum_i m_i r_i}` or
    :math:`\max_i r_i`, (B, H, 1).

    In causal order the norm of every prefix, (B, H, N). Points without mass do not count; the
    gradient at zero is zero.

    Example:
        >>> total_norm(torch.tensor([[[9.0, 16.0]]]), torch.ones(1, 2), "frobenius", True).tolist()
        [[[3.0, 5.0]]]
    """
    weight = mass[:, None]
    if norm == "rows":
        row = torch.where(weight > 0, row, 0.0)
        return row.cummax(-1).values if causal else row.amax(-1, keepdim=True)
    total = (weight * row).cumsum(-1) if causal else (weight * row).sum(-1, keepdim=True)
    return root_of(total)


def row_factor(norm: Tensor, scale: Tensor | None, decay: Tensor, eps: float) -> Tensor:
    r""":math:`\gamma s_i / (s_i n_i + \varepsilon)`: what a row of the unnormalised product is
    multiplied with; 0 where n is 0.
    """
    above = decay[:, None] if scale is None else decay[:, None] * scale
    below = (norm if scale is None else scale * norm) + eps
    if not eps:  # nothing may be divided by zero, also where the quotient is not taken
        below = torch.where(below > 0, below, 1.0)
    return torch.where(norm > 0, above / below, 0.0)


@dataclass(eq=False)  # nobody writes to one; a frozen class takes three times as long to build
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
        cls, query: Tensor, key: Tensor, quadrature: Quadrature, decay: Tensor, **options
    ) -> TokenGraph:
        """The graph of tokens that see one another as ``quadrature`` says; computed in float32 at
        least.
        """
        q, dtype = quadrature, at_least_single(query.dtype)
        return cls(
            query=cast(query, dtype),
            key=cast(key, dtype),
            mass=cast(q.mass, dtype),
            scale=None if q.scale is None else cast(q.scale, dtype),
            density=None if q.density is None else cast(q.density, dtype),
            decay=cast(decay, dtype),
            causal=q.query_time is not None,
            equal=q.equal and q.valid is None,
            **options,
        )

    def start(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """M v and the rows' factors (B, H, N | 1), in one pass. O(N²) time, O(N) memory; few pairs
        are held at once.
        """
        if self._few():
            if self._even():
                return self._evenly(value)
            pairs = self.edges()
            factor = self.factor(self.sizes(pairs))
            return (pairs @ self._weighted(value)) * factor[..., None], factor
        mass = self.mass[:, :1] if self.equal else self.mass
        product, row = edge_product(
            self.query,
            self.key,
            self._weighted(value),
            mass,
            self.density,
            statistic=NORMS[self.norm],
            **self._options,
        )
        factor = self.factor(row)
        return product * factor[..., None], factor

    def factor(self, row: Tensor) -> Tensor:
        """The rows' factors from their sizes (B, H, N)."""
        return row_factor(
            total_norm(row, self.mass, self.norm, self.causal), self.scale, self.decay, self.eps
        )

    def apply(self, value: Tensor, factor: Tensor) -> Tensor:
        """M v, with the factors of :meth:`start`: one hop."""
        none = {"statistic": "none", **self._options}
        mass = self.mass[:, :1]
        return (
            edge_product(self.query, self.key, self._weighted(value), mass, self.density, **none)[0]
            * factor[..., None]
        )

    def apply_transposed(self, value: Tensor, factor: Tensor) -> Tensor:
        """Mᵀ v: one hop backwards. In causal order the points are turned round, so that later ones
        come first.
        """
        # Mᵀ swaps the roles of queries and keys, and its triangle is the upper one: turned round,
        # it is the lower one that the causal product computes.
        parts = [
            self.key,
            self.query,
            value * factor[..., None],
            None if self.density is None else self.density.mT,
        ]
        if self.causal:
            parts = [None if x is None else x.flip(2) for x in parts]
            parts[3] = None if parts[3] is None else parts[3].flip(3)
        query, key, weighted, density = parts
        options = {"statistic": "none", **self._options}
        product, _ = edge_product(query, key, weighted, self.mass[:, :1], density, **options)  # type: ignore[arg-type]
        return self._weighted(product.flip(2) if self.causal else product)

    def edges(self) -> Tensor:
        """P, every pair in memory at once, (B, H, N, N)."""
        pairs = activated(self.query @ self.key.mT, self.activation)
        pairs = pairs if self.density is None else pairs * self.density
        return pairs.tril() if self.causal else pairs

    def sizes(self, pairs: Tensor) -> Tensor:
        """The rows' sizes (B, H, N) from :meth:`edges`."""
        size = pairs.square() if NORMS[self.norm] == "squares" else pairs.abs()
        return (size * self.mass[:, None, None]).sum(-1)

    def _few(self) -> bool:
        """Whether all pairs together cost less than to lay out tiles of them."""
        if torch.compiler.is_compiling() or self.memory is not None:
            return False
        (b, h, n, _), device = self.query.shape, self.query.device
        # where kernels may run, they and not these pairs are what `auto` compares
        plain = device.type == "cpu" and not backend.accelerated(device)
        return plain and self.backend != "triton" and b * h * n * n <= FEW

    def _even(self) -> bool:
        """Whether every point sees every other with one mass, and no gradient asks what happens
        where there is no edge.
        """
        if self.causal or not self.equal or not self.eps or self.norm != "frobenius":
            return False
        if self.scale is not None or self.density is not None or self.mass.shape[0] > 1:
            return False
        return not (followed(self.query) or followed(self.key)) and self.mass.shape[1] > 0

    def _evenly(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`start` there: γ P V / (‖P‖ + ε / m), samples and heads as one dimension."""
        b, h, n, _ = self.query.shape
        pairs = torch.bmm(self.query.flatten(0, 1), self.key.flatten(0, 1).mT)
        pairs = activated(pairs, self.activation)
        product = torch.bmm(pairs, cast(value, pairs.dtype).flatten(0, 1))
        mass = self.mass[:, :1]
        below = torch.linalg.vector_norm(pairs, dim=(1, 2)).view(b, h) + self.eps / mass
        share = (self.decay / below).unsqueeze(2)
        return product.view(b, h, n, -1) * share.unsqueeze(3), share / mass

    def _weighted(self, value: Tensor) -> Tensor:
        return cast(value, self.query.dtype) * self.mass[:, None, :, None]

    @property
    def _options(self) -> dict:
        return {
            "causal": self.causal,
            "activation": self.activation,
            "memory": self.memory,
            "backend": self.backend,
            "half": self.half,
        }


def sum_of_hops(graph: TokenGraph, value: Tensor, hops: int) -> Tensor:
    r""":math:`\sum_{t=1}^{hops} M^t v`, by :math:`y \leftarrow M(v + y)`. O(hops·N²) time,
    O(hops·N) memory with gradients.
    """
    with full_precision(value):
        out, factor = graph.start(value)
        for _ in range(hops - 1):
            out = graph.apply(value + out, factor)
    return out


# --- one product with the edges -------------------------------------------------------------------


def edge_product(
    query: Float[Tensor, "b h q e"],
    key: Float[Tensor, "b h k e"],
    value: Float[Tensor, "b h k d"],
    mass: Float[Tensor, "#b #k"],
    density: Float[Tensor, "#b #h q k"] | None = None,
    *,
    causal: bool = False,
    activation: str = "relu",
    statistic: str = "squares",
    memory: int | None = None,
    backend: str = "auto",
    half: torch.dtype | None = None,
) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h q"]]:
    r"""Edges times values, and the size of every row, in one pass over tiles:

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
        causal: query i sees the keys j ≤ i.
        activation: φ, a name of :data:`ACTIVATIONS`.
        statistic: ``"squares"``, ``"sums"`` (of magnitudes), or ``"none"`` (r is zero).
        memory: bytes of one tile of the PyTorch form.
        backend: see :mod:`fredholm.ops.backend`.
        half: the half precision in which a Triton kernel multiplies, where the tensors came from
            it; sums stay in float32.

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
        >>> out, row = edge_product(one, one, one, torch.ones(1, 1), causal=True)
        >>> out.flatten().tolist(), row.round(decimals=4).flatten().tolist()
        ([1.0, 2.0], [1.0, 2.0])
    """
    find_activation(activation, ACTIVATIONS)
    if statistic not in STATISTICS:
        raise OptionError(f"unknown statistic {statistic!r}{suggest(statistic, STATISTICS)}")
    if memory is not None and memory < 1:
        raise OptionError(f"memory is the bytes of one tile, at least 1, got {memory}")
    if memory is None:
        memory = DEFAULT_BYTES if value.device.type == "cpu" else DEFAULT_CUDA_BYTES
    b, h, nk, _ = value.shape
    if key.shape[:3] != (b, h, nk) or query.shape != (b, h, query.shape[2], key.shape[3]):
        shapes = f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
        raise ShapeError(
            "edge_product needs query (B, H, Nq, e), key (B, H, Nk, e), value (B, H, Nk, d); "
            f"got {shapes}"
        )
    if causal and query.shape[2] != nk:
        raise ShapeError(
            f"a causal product has as many queries as keys, got {query.shape[2]} and {nk}"
        )
    given = [x for x in (query, key, value, mass, density) if x is not None]
    dtype = torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32
    parts = [None if x is None else cast(x, dtype) for x in (query, key, value, mass, density)]

    def form() -> tuple[Sampler, torch.dtype, Form]:
        options = ("activation", activation), ("statistic", statistic), ("causal", causal)
        sizes = ("e", query.shape[3]), ("d", value.shape[3])
        return sample, half or torch.float32, (*options, ("density", density is not None), *sizes)

    def refusal() -> str | None:
        return triton_refusal(dtype, query, value)

    if choose_backend(backend, EDGE_PRODUCT, value.device, refusal, form) == "triton":
        from ..triton.op import edge_product_triton

        low = [x if half is None else x.to(half) for x in (query, key, value)]
        return edge_product_triton(*low, *parts[3:], causal, activation, statistic)
    return edge_product_op(*parts, causal, activation, statistic, memory)


def triton_refusal(dtype: torch.dtype, query: Tensor, value: Tensor) -> str | None:
    """Why the Triton kernels cannot compute a product of these tensors in the precision of the
    computation, or None.
    """
    if dtype == torch.float64:
        return "its sums are in float32, and the tensors are in float64"
    if max(query.shape[3], value.shape[3]) > WIDEST:
        return (
            f"it holds up to {WIDEST} columns of a query or a value, got {query.shape[3]} and "
            f"{value.shape[3]}"
        )
    return grid_refusal(value.shape[0] * value.shape[1])
