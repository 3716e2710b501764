"""The token graph: edges over one norm per head, as a product that is never stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ....ops.distance import root_of
from ....quadrature import Quadrature
from .activations import activated
from .product import edge_product

NORMS = {"frobenius": "squares", "rows": "sums"}


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
    scale = torch.ones_like(norm) if scale is None else scale
    below = scale * norm + eps
    return decay[:, None] * torch.where(norm > 0, scale / torch.where(below > 0, below, 1.0), 0.0)


@dataclass(frozen=True, eq=False)
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
        q, dtype = quadrature, torch.promote_types(query.dtype, torch.float32)
        return cls(
            query=query.to(dtype),
            key=key.to(dtype),
            mass=q.mass.to(dtype),
            scale=None if q.scale is None else q.scale.to(dtype),
            density=None if q.density is None else q.density.to(dtype),
            decay=decay.to(dtype),
            causal=q.query_time is not None,
            equal=q.equal and q.valid is None,
            **options,
        )

    def start(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """M v and the rows' factors (B, H, N | 1), in one pass. O(N²) time, O(N) memory."""
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

    def _weighted(self, value: Tensor) -> Tensor:
        return value.to(self.query.dtype) * self.mass[:, None, :, None]

    @property
    def _options(self) -> dict:
        return {
            "causal": self.causal,
            "activation": self.activation,
            "memory": self.memory,
            "backend": self.backend,
            "half": self.half,
        }
