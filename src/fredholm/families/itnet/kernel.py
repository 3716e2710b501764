"""ITNet's kernel: a small network of positions and features at both ends."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...domain import Domain
from ...errors import OptionError, suggest
from ...forms import AnchorKeys
from ...integral import FourierFeatures, HiddenKernel, Problem, answering, prepared
from ...integral.fourier import check_dimension
from ...ops.backend import cast
from ...ops.tiles import root_of
from .capabilities import SplitHidden
from .drawn import HiddenLattice, HiddenSamples
from .hidden_first import ACTIVATIONS, hidden_pairs
from .hidden_first.tiled import TiledColumns, TiledTable
from .neighbours import NeighbourHidden

GROUPS = ("query_position", "key_position", "relative", "distance", "query", "key", "product")
_FOURIER = GROUPS[:3]


def ablations() -> dict[str, tuple[str, ...]]:
    """The thirteen choices of input groups of ITNet's Table 5, by name.

    Example:
        >>> ablations()["content only"], len(ablations())
        (('query', 'key', 'product'), 13)
    """
    absolute, content = GROUPS[:2], GROUPS[4:]
    return {
        "full": GROUPS,
        "no product": GROUPS[:6],
        "no distance": (*GROUPS[:3], *content),
        "no relative": (*absolute, *content),
        "content only": content,
        "content without product": content[:2],
        "position only": GROUPS[:4],
        "only absolute": absolute,
        "only relative": ("relative",),
        "only distance": ("distance",),
        "only query": ("query",),
        "only product": ("product",),
        "constant": (),
    }


class MLPKernel(HiddenKernel, SplitHidden):
    r"""A network over seven input groups, reshaped to a matrix:

    .. math:: z = [\gamma(x), \gamma(y), \gamma(x-y), |x-y|, u(x), u(y), u(x) \odot u(y)],\quad
              h = \mathrm{GELU}(W_1 z + b_1),\quad K = \mathrm{reshape}(W_2 h + b_2)

    W1, b1 are shared by the heads of a layer and W2, b2 are per head (the reading that fits the
    paper's Table 11).

    Args:
        heads: H.
        dim: features d of the slice of u that a head reads; K is d × d.
        position_dim: p.
        width: hidden width w.
        depth: layers of the network, 2 or more; each further one is w × w, shared by heads, and run
            for every pair.
        groups: which of :data:`GROUPS` the network reads; ``()`` is the constant kernel. See
            :func:`ablations`.
        frequencies, sigma, learned_frequencies: of γ, see :class:`FourierFeatures`; without
            ``frequencies`` (0) γ(x) = x, the raw coordinates, which should lie near zero: W x - W y
            is rounded where they do not.
        epsilon: ε, the scale of W2 at first.
        per_head_hidden: a W1 for each head.
        output: ``"full"``, or ``"compact"``:
            :math:`K = \sum_k h_k (\mathrm{diag}(d_k) + U_k V_k^T) + b_2`.
        rank: of the compact output's U, V.
        activation: a name of :data:`fredholm.families.itnet.hidden_first.ACTIVATIONS`.

    Initialisation: W1 ~ N(0, 0.02²), b1 = 0, W2 ~ N(0, ε² / w), b2 = I: the operator starts as
    the global mean. The compact output has the same variance.

    Raises:
        OptionError: unknown group, output or activation, sizes that are not positive.

    Reference: ITNet Eqs. 3, 196-198, Tables 5, 11, 23; App. H.3. W1's scale is not given there;
    0.02 is ours.

    Example:
        >>> MLPKernel(heads=2, dim=4, groups=("query", "key")).width
        128
    """

    forms = (
        TiledTable,
        TiledColumns,
        NeighbourHidden,
        HiddenSamples,
        HiddenLattice,
        AnchorKeys,
    )

    def __init__(
        self,
        heads: int,
        dim: int,
        *,
        position_dim: int = 1,
        width: int = 128,
        depth: int = 2,
        groups: tuple[str, ...] | list[str] = GROUPS,
        frequencies: int = 64,
        sigma: float = 10.0,
        learned_frequencies: bool = False,
        per_head_hidden: bool = False,
        output: str = "full",
        rank: int = 2,
        activation: str = "gelu",
        epsilon: float = 0.01,
    ):
        super().__init__(heads, dim)
        _check_options(width, depth, groups, output, rank, activation)
        _check_scales(frequencies, epsilon)
        self.width, self.depth, self.output, self.activation = width, depth, output, activation
        self.groups = tuple(g for g in GROUPS if g in groups)
        self.reads_query = any(g in self.groups for g in ("query", "product"))
        self.fourier, self.position_dim = None, position_dim
        if frequencies and any(g in self.groups for g in _FOURIER):
            self.fourier = FourierFeatures(position_dim, frequencies, sigma, learned_frequencies)
        self.sizes = {
            g: (2 * frequencies or position_dim) if g in _FOURIER else 1 if g == "distance" else dim
            for g in self.groups
        }
        h = heads if per_head_hidden else 1
        self.weight1 = nn.Parameter(torch.empty(h, width, sum(self.sizes.values())))
        self.bias1 = nn.Parameter(torch.empty(h, width))
        self.mid_weights = nn.ParameterList(
            nn.Parameter(torch.empty(width, width)) for _ in range(depth - 2)
        )
        self.mid_biases = nn.ParameterList(
            nn.Parameter(torch.empty(width)) for _ in range(depth - 2)
        )
        if output == "full":
            self.weight2 = nn.Parameter(torch.empty(heads, dim, dim, width))
        else:
            self.diagonal = nn.Parameter(torch.empty(heads, dim, width))
            self.left = nn.Parameter(torch.empty(heads, dim, rank, width))
            self.right = nn.Parameter(torch.empty(heads, dim, rank, width))
        self.bias2 = nn.Parameter(torch.empty(heads, dim, dim))
        self.reset_parameters(epsilon)

    def reset_parameters(self, epsilon: float = 0.01) -> None:
        """The paper's initialisation: near-linear hidden units, and an output that starts as the
        identity.
        """
        nn.init.normal_(self.weight1, std=0.02)
        nn.init.zeros_(self.bias1)
        for weight, bias in zip(self.mid_weights, self.mid_biases):
            nn.init.normal_(weight, std=self.width**-0.5)
            nn.init.zeros_(bias)
        std = epsilon * self.width**-0.5
        if self.output == "full":
            nn.init.normal_(self.weight2, std=std)
        else:
            nn.init.normal_(self.diagonal, std=std)
            factor = (std**2 / self.left.shape[2]) ** 0.25
            nn.init.normal_(self.left, std=factor)
            nn.init.normal_(self.right, std=factor)
        with torch.no_grad():
            self.bias2.copy_(torch.eye(self.d_in))

    # --- the definition ---------------------------------------------------------------------------

    def hidden(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        """h at broadcast pairs (…, w), literally: the groups are concatenated and the network is
        run pair by pair.
        """
        make = {
            "query_position": lambda: self.gamma(x),
            "key_position": lambda: self.gamma(y),
            "relative": lambda: self.gamma(x - y),
            "distance": lambda: root_of((x - y).square().sum(-1, keepdim=True)),
            "query": lambda: ux,
            "key": lambda: uy,
            "product": lambda: ux * uy,
        }
        lead = torch.broadcast_shapes(x.shape[:-1], y.shape[:-1], ux.shape[:-1], uy.shape[:-1])
        inputs = [make[g]().to(uy.dtype).expand(*lead, -1) for g in self.groups] or [
            uy.new_zeros(*lead, 0)
        ]
        weights = [self.weight1.expand(self.heads, -1, -1), *self.mid_weights]
        return hidden_pairs(inputs, weights, [self.bias1, *self.mid_biases], self.activation)

    def readout(self) -> tuple[Tensor, Tensor]:
        if self.output == "full":
            return self.weight2, self.bias2
        low_rank = torch.einsum("hork,hirk->hoik", self.left, self.right)
        identity_matrix = torch.eye(self.d_in, device=low_rank.device)[..., None]
        return low_rank + identity_matrix * self.diagonal[:, :, None], self.bias2

    def mid_layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of every hidden layer but the first."""
        return list(zip(self.mid_weights, self.mid_biases)) if self.depth > 2 else []

    # --- the split first layer --------------------------------------------------------------------

    def _weight(self, group: str) -> Tensor:
        """The columns of W1 that read one group, (1 | H, w, size)."""
        start = 0
        for name, size in self.sizes.items():
            if name == group:
                return self.weight1[..., start : start + size]
            start += size
        raise KeyError(group)

    def gamma(self, x: Tensor, domain: Domain | None = None, name: str = "points") -> Tensor:
        """γ; of what ``name`` means on a domain, kept there: see :meth:`FourierFeatures.on`."""
        if self.fourier is not None:
            return self.fourier.on(domain, x, name)
        check_dimension(x, self.position_dim, "this kernel was built")
        return x

    def _project(self, inputs: Tensor, group: str) -> Tensor:
        weight = cast(self._weight(group), inputs.dtype)
        if weight.shape[0] == 1 and inputs.dim() > 2:
            return F.linear(inputs, weight[0])
        return torch.matmul(inputs, weight.mT)

    def _of_positions(
        self, group: str, x: Tensor, gamma: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """W γ(x) of a group (1 | B, 1, N, w), which fixed positions decide; ``gamma`` where it is
        known.
        """

        def make() -> Tensor:
            known = self.gamma(x)[:, None] if gamma is None else gamma
            return self._project(cast(known, dtype), group)

        # a single point is a step's, and the next step's is another
        return make() if x.shape[1] == 1 else prepared(self, (group, dtype), make, of=(x,))

    def key_terms(self, y: Tensor, uy: Tensor, *, columns: bool) -> dict[str, Tensor]:
        """Key side of the hidden units: an additive bias, and the columns multiplied with the
        query's.

        The relative group's columns γ(y) come last: a second set of query columns meets them alone.
        """
        relative = columns and "relative" in self.groups and self.fourier is not None
        gamma = self.gamma(y)[:, None] if relative else None
        return self._key_terms(y, uy, gamma, columns=columns)

    def _key_terms(
        self, y: Tensor, uy: Tensor, gamma: Tensor | None, *, columns: bool
    ) -> dict[str, Tensor]:
        """:meth:`key_terms` where γ(y) may be known."""
        bias = None
        if "key_position" in self.groups:
            bias = self._of_positions("key_position", y, gamma, uy.dtype)
        if "key" in self.groups:
            of_content = self._project(uy, "key")
            bias = of_content if bias is None else bias + of_content
        if bias is None:
            bias = uy.new_zeros(1, 1, uy.shape[2], self.width)
        relative = columns and "relative" in self.groups
        if relative and self.fourier is None:  # W (x - y) = W x - W y
            bias = bias - self._of_positions("relative", y, None, uy.dtype)
        terms: dict[str, Tensor] = {"key_bias": bias}
        parts = [uy] if "product" in self.groups else []
        if relative and self.fourier is not None:
            assert gamma is not None
            parts.append(_like(gamma, uy))
        if parts:
            terms["key"] = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if columns and "distance" in self.groups:
            terms["key_positions"] = y
        return terms

    def query_terms(self, x: Tensor, ux: Tensor, *, columns: bool) -> dict[str, Any]:
        r"""Query side: with c, s the two halves of γ(x),
        :math:`W_{rel}\gamma(x-y) = [W_c c + W_s s, W_c s - W_s c]\cdot\gamma(y)`.

        The op multiplies columns, Σ_c scale_c query_c key_c, and each column of γ(y) = [c', s'] has
        two summands, one with W_c and one with W_s. From cos(a - b) = cos a cos b + sin a sin b and
        sin(a - b) = sin a cos b - cos a sin b,

        - W_c meets c c' + s s': query [c, s] under the scale [W_c, W_c];
        - W_s meets s c' - c s': query2 [s, -c] under the scale [W_s, W_s].

        So the shift costs 2m columns of keys, and no number per pair.
        """
        relative = columns and "relative" in self.groups and self.fourier is not None
        gamma = self.gamma(x)[:, None] if relative else None
        return self._query_terms(x, ux, gamma, columns=columns)

    def both_terms(self, problem: Problem) -> dict[str, Any]:
        p, gamma = problem, None
        # γ of the same points once; where it is kept between calls, not even that
        if p.x is p.y and "query_position" in self.groups and not answering(self):
            gamma = self.gamma(p.x)[:, None]
        terms: dict[str, Any] = dict(self._key_terms(p.y, p.uy, gamma, columns=False))
        return terms | self._query_terms(p.x, p.ux, gamma, columns=False)

    def _query_terms(
        self, x: Tensor, ux: Tensor, gamma: Tensor | None, *, columns: bool
    ) -> dict[str, Any]:
        """:meth:`query_terms` where γ(x) may be known."""
        terms: dict[str, Any] = {"activation": self.activation}
        bias = cast(self.bias1, ux.dtype)[:, None]
        if "query_position" in self.groups:
            bias = bias + self._of_positions("query_position", x, gamma, ux.dtype)
        if "query" in self.groups:
            bias = bias + self._project(ux, "query")
        relative = columns and "relative" in self.groups
        if relative and self.fourier is None:
            bias = bias + self._of_positions("relative", x, None, ux.dtype)
        # a bias without positions or features is the same at all queries; the op reads N from it
        lead = bias.shape[:-2] if bias.dim() == 4 else (1, bias.shape[0])
        terms["query_bias"] = bias.expand(*lead, ux.shape[2], self.width)
        # W_rel γ(x - y) by the addition theorems: two products with γ(y), no sine per pair. Two,
        # because W_c and W_s trade places between them.
        parts, scales = ([ux], [self._weight("product")]) if "product" in self.groups else ([], [])
        if relative and self.fourier is not None:
            assert gamma is not None
            cos, sin = _like(gamma, ux).chunk(2, -1)
            of_cos, of_sin = self._weight("relative").chunk(2, -1)
            parts.append(torch.cat([cos, sin], -1))
            scales.append(torch.cat([of_cos, of_cos], -1))
            terms["query2"] = torch.cat([sin, -cos], -1)
            terms["scale2"] = prepared(self, "scale2", lambda: torch.cat([of_sin, of_sin], -1))
        if parts:
            alone = len(parts) == 1
            terms["query"] = parts[0] if alone else torch.cat(parts, -1)
            terms["scale"] = (
                scales[0]
                if alone
                else prepared(self, ("scale", columns), lambda: torch.cat(scales, -1))
            )
        if columns and "distance" in self.groups:
            terms["query_positions"] = x
            terms["distance_scale"] = self._weight("distance")[..., 0]
        if self.depth > 2:
            terms["mid"] = self.mid_layers()
        return terms

    def table(self, displacements: Tensor) -> Tensor | None:
        """The displacement term r(δ) at given displacements (D, p): (1 | H, w, D), or None where no
        group reads it.

        On a regular grid both groups of x - y are functions of one of D = O(N) displacements: the
        table replaces their columns, at one gather per pair instead of 2m multiply-adds.
        """
        return prepared(self, "table", lambda: self._table(displacements), of=(displacements,))

    def _table(self, displacements: Tensor) -> Tensor | None:
        total = None
        if "relative" in self.groups:
            total = self._project(self.gamma(displacements).to(self.weight1.dtype), "relative")
        if "distance" in self.groups:
            length = torch.linalg.vector_norm(displacements, dim=-1, keepdim=True).to(
                self.weight1.dtype
            )
            total = self._project(length, "distance") + (0.0 if total is None else total)
        return None if total is None else total.mT

    def extra_repr(self) -> str:
        network = f"width={self.width}, depth={self.depth}, output={self.output}"
        return f"{super().extra_repr()}, {network}, groups={self.groups}"


def _like(gamma: Tensor, u: Tensor) -> Tensor:
    """γ (1 | B, 1, N, 2m) with u's dtype, batch and heads, so that both can stand in one tensor of
    columns.
    """
    return cast(gamma, u.dtype).expand(u.shape[0], u.shape[1], -1, -1)


def _check_scales(frequencies, epsilon) -> None:
    if frequencies < 0:
        raise OptionError(f"frequencies must be at least 0, got {frequencies}")
    if not 0 <= epsilon < math.inf:
        raise OptionError(f"epsilon must be finite and at least 0, got {epsilon}")


def _check_options(width, depth, groups, output, rank, activation) -> None:
    if width < 1 or depth < 2 or rank < 1:
        raise OptionError(
            f"width and rank must be at least 1 and depth at least 2, got {width}, {rank} and "
            f"{depth}"
        )
    for group in groups:
        if group not in GROUPS:
            raise OptionError(f"unknown input group {group!r}{suggest(group, GROUPS)}")
    if output not in ("full", "compact"):
        raise OptionError(f"unknown kernel output {output!r}{suggest(output, ('full', 'compact'))}")
    if activation not in ACTIVATIONS:
        raise OptionError(f"unknown activation {activation!r}{suggest(activation, ACTIVATIONS)}")
