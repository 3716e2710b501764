"""ITNet's kernel: a small network of positions and features at both ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from ...ops.tiles import find_activation, root_of
from .capabilities import SplitHidden
from .drawn import HiddenLattice, HiddenSamples
from .hidden_first import hidden_pairs
from .hidden_first.tiled import TiledColumns, TiledTable
from .neighbours import NeighbourHidden

GROUPS = (
    "query_position",
    "key_position",
    "relative",
    "distance",
    "query",
    "key",
    "product",
)
"""The seven input groups of Eq. 3, in the order in which their columns lie in W1."""
OUTPUTS = ("full", "compact")
_FOURIER = GROUPS[:3]


def ablations() -> dict[str, tuple[str, ...]]:
    """Return the thirteen choices of input groups of ITNet's Table 5, by name.

    Example:
        >>> ablations()["content only"], len(ablations())
        (('query', 'key', 'product'), 13)
    """
    absolute = GROUPS[:2]
    content = GROUPS[4:]
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
        _check_sizes(depth, rank, frequencies, epsilon)
        _check_names(groups, output, activation)
        self.width = width
        self.depth = depth
        self.output = output
        self.activation = activation
        self.position_dim = position_dim
        self.groups = tuple(group for group in GROUPS if group in groups)
        self.reads_query = "query" in groups or "product" in groups

        # Columns of W1 that read each group.
        encoded = 2 * frequencies or position_dim
        columns = dict.fromkeys(_FOURIER, encoded) | {"distance": 1}
        self.sizes = {group: columns.get(group, dim) for group in self.groups}

        self.fourier = None
        if frequencies and any(group in self.groups for group in _FOURIER):
            self.fourier = FourierFeatures(position_dim, frequencies, sigma, learned_frequencies)

        first_heads = 1
        if per_head_hidden:
            first_heads = heads
        inputs = sum(self.sizes.values())
        self.weight1 = _empty(first_heads, width, inputs)
        self.bias1 = _empty(first_heads, width)
        further = range(depth - 2)
        self.mid_weights = nn.ParameterList(_empty(width, width) for _ in further)
        self.mid_biases = nn.ParameterList(_empty(width) for _ in further)
        if output == "full":
            self.weight2 = _empty(heads, dim, dim, width)
        else:
            self.diagonal = _empty(heads, dim, width)
            self.left = _empty(heads, dim, rank, width)
            self.right = _empty(heads, dim, rank, width)
        self.bias2 = _empty(heads, dim, dim)
        self.epsilon = epsilon
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the paper's initial weights: near-linear hidden units, and an output that starts as
        the identity, up to ``epsilon``.
        """
        nn.init.normal_(self.weight1, std=0.02)
        nn.init.zeros_(self.bias1)
        for weight, bias in self.mid_layers():
            std = self.width**-0.5
            nn.init.normal_(weight, std=std)
            nn.init.zeros_(bias)

        std = self.epsilon * self.width**-0.5
        if self.output == "full":
            nn.init.normal_(self.weight2, std=std)
        else:
            nn.init.normal_(self.diagonal, std=std)
            # An entry of U Vᵀ is a sum of `rank` products of two factors of this deviation: its
            # variance is rank · factor⁴ = std².
            rank = self.left.shape[2]
            factor = (std**2 / rank) ** 0.25
            nn.init.normal_(self.left, std=factor)
            nn.init.normal_(self.right, std=factor)

        with torch.no_grad():
            self.bias2.copy_(torch.eye(self.d_in))

    # --- the definition ---------------------------------------------------------------------------

    def hidden(
        self,
        x: Tensor,
        y: Tensor,
        ux: Tensor,
        uy: Tensor,
    ) -> Tensor:
        """Return h at broadcast pairs, (…, w), literally: the groups are concatenated and the
        network is run pair by pair.
        """
        shapes = [each.shape[:-1] for each in (x, y, ux, uy)]
        lead = torch.broadcast_shapes(*shapes)
        inputs = []
        for group in self.groups:
            values = self._group_input(group, x, y, ux, uy)
            values = values.to(uy.dtype)
            inputs.append(values.expand(*lead, -1))
        if not inputs:
            # The constant kernel: a network of no inputs, whose bias alone answers.
            inputs.append(uy.new_zeros(*lead, 0))

        weights = [self.weight1.expand(self.heads, -1, -1), *self.mid_weights]
        biases = [self.bias1, *self.mid_biases]
        return hidden_pairs(inputs, weights, biases, self.activation)

    def _group_input(
        self,
        group: str,
        x: Tensor,
        y: Tensor,
        ux: Tensor,
        uy: Tensor,
    ) -> Tensor:
        """Return one of the seven inputs of Eq. 3, (…, size), at broadcast pairs: positions x, y
        (…, p) and features ux, uy (…, d) of query and key.
        """
        if group == "query_position":
            return self.gamma(x)
        if group == "key_position":
            return self.gamma(y)
        if group == "relative":
            return self.gamma(x - y)
        if group == "distance":
            # ``root_of`` has gradient zero where both points coincide; that of ``sqrt`` is NaN.
            squares = (x - y).square()
            return root_of(squares.sum(-1, keepdim=True))
        if group == "query":
            return ux
        if group == "key":
            return uy
        # The last group, "product".
        return ux * uy

    def readout(self) -> tuple[Tensor, Tensor]:
        if self.output == "full":
            return self.weight2, self.bias2
        # K = Σ_k h_k (diag(d_k) + U_k V_kᵀ) as one matrix per hidden unit.
        low_rank = torch.einsum("hork,hirk->hoik", self.left, self.right)
        identity = torch.eye(self.d_in, device=low_rank.device)
        identity = identity[..., None]
        diagonal = identity * self.diagonal[:, :, None]
        return low_rank + diagonal, self.bias2

    def mid_layers(self) -> list[tuple[Tensor, Tensor]]:
        """Return weight and bias of every hidden layer but the first."""
        return list(zip(self.mid_weights, self.mid_biases))

    # --- the split first layer --------------------------------------------------------------------

    def _weight(self, group: str) -> Tensor:
        """Return the columns of W1 that read one group, (1 | H, w, size)."""
        start = 0
        for name, size in self.sizes.items():
            if name == group:
                return self.weight1[..., start : start + size]
            start += size
        raise KeyError(group)

    def gamma(
        self,
        x: Tensor,
        domain: Domain | None = None,
        name: str = "points",
    ) -> Tensor:
        """Return γ(x). Where x are positions of a ``domain``, named by ``name``, the domain may
        cache it: see :meth:`FourierFeatures.on`.
        """
        if self.fourier is not None:
            return self.fourier.on(domain, x, name)
        check_dimension(x, self.position_dim, "this kernel was built")
        return x

    def _project(self, inputs: Tensor, group: str) -> Tensor:
        """Return W z for the columns of W1 that read a group and its values z (..., N, size)."""
        weight = cast(self._weight(group), inputs.dtype)
        if weight.shape[0] == 1 and inputs.dim() > 2:
            return F.linear(inputs, weight[0])
        return torch.matmul(inputs, weight.mT)

    def _project_positions(
        self,
        group: str,
        x: Tensor,
        gamma: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return W γ(x) of a group, (1 | B, 1, N, w). ``gamma`` is γ(x) if the caller has it."""

        def make() -> Tensor:
            encoded = gamma
            if encoded is None:
                encoded = self.gamma(x)[:, None]
            return self._project(cast(encoded, dtype), group)

        # A single point belongs to a causal step. The next step has another, so caching is useless.
        if x.shape[1] == 1:
            return make()
        return prepared(
            self,
            (group, dtype),
            make,
            of=(x,),
        )

    def _splits_shift(self, columns: bool) -> bool:
        """Return whether γ(x - y) enters by columns that multiply γ(y) (the addition theorems)."""
        return columns and "relative" in self.groups and self.fourier is not None

    def _subtracts_positions(self, columns: bool) -> bool:
        """Return whether γ(x - y) is x - y itself, so that each end adds its own term."""
        return columns and "relative" in self.groups and self.fourier is None

    def key_terms(
        self,
        y: Tensor,
        uy: Tensor,
        *,
        columns: bool,
        gamma: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the key side of the hidden units: an additive bias, and the columns multiplied
        with the query's.

        The relative group's columns γ(y) come last: a second set of query columns meets them alone.
        ``gamma`` is γ(y), (1 | B, 1, N, 2m), if the caller has it.
        """
        if gamma is None and self._splits_shift(columns):
            gamma = self.gamma(y)[:, None]

        bias = None
        if "key_position" in self.groups:
            bias = self._project_positions("key_position", y, gamma, uy.dtype)
        if "key" in self.groups:
            of_content = self._project(uy, "key")
            if bias is None:
                bias = of_content
            else:
                bias = bias + of_content
        if bias is None:
            keys = uy.shape[2]
            bias = uy.new_zeros(1, 1, keys, self.width)
        if self._subtracts_positions(columns):
            # W (x - y) = W x - W y, and this end has the second term.
            of_position = self._project_positions("relative", y, None, uy.dtype)
            bias = bias - of_position
        terms: dict[str, Tensor] = {"key_bias": bias}

        parts = []
        if "product" in self.groups:
            parts.append(uy)
        if gamma is not None and self._splits_shift(columns):
            parts.append(_like(gamma, uy))
        if parts:
            terms["key"] = _joined(parts)
        if columns and "distance" in self.groups:
            terms["key_positions"] = y
        return terms

    def query_terms(
        self,
        x: Tensor,
        ux: Tensor,
        *,
        columns: bool,
        gamma: Tensor | None = None,
    ) -> dict[str, Any]:
        r"""Return the query side of the hidden units: with c, s the two halves of γ(x),
        :math:`W_{rel}\gamma(x-y) = [W_c c + W_s s, W_c s - W_s c]\cdot\gamma(y)`.

        The op multiplies columns, Σ_c scale_c query_c key_c, and each column of γ(y) = [c', s'] has
        two summands, one with W_c and one with W_s. From cos(a - b) = cos a cos b + sin a sin b and
        sin(a - b) = sin a cos b - cos a sin b,

        - W_c meets c c' + s s': query [c, s] under the scale [W_c, W_c];
        - W_s meets s c' - c s': query2 [s, -c] under the scale [W_s, W_s].

        So the shift costs 2m columns of keys, and no number per pair. ``gamma`` is γ(x),
        (1 | B, 1, N, 2m), if the caller has it.
        """
        if gamma is None and self._splits_shift(columns):
            gamma = self.gamma(x)[:, None]
        terms: dict[str, Any] = {"activation": self.activation}

        bias = cast(self.bias1, ux.dtype)
        bias = bias[:, None]
        if "query_position" in self.groups:
            of_position = self._project_positions("query_position", x, gamma, ux.dtype)
            bias = bias + of_position
        if "query" in self.groups:
            bias = bias + self._project(ux, "query")
        if self._subtracts_positions(columns):
            of_position = self._project_positions("relative", x, None, ux.dtype)
            bias = bias + of_position
        if bias.dim() == 3:
            # Neither positions nor features entered: the bias of a head is the same at all queries.
            bias = bias[None]
        # The op reads the number of queries off this tensor.
        batch, heads, _, _ = bias.shape
        points = ux.shape[2]
        terms["query_bias"] = bias.expand(batch, heads, points, self.width)

        queries: list[Tensor] = []
        scales: list[Tensor] = []
        if "product" in self.groups:
            queries.append(ux)
            scales.append(self._weight("product"))
        if gamma is not None and self._splits_shift(columns):
            cos, sin = _like(gamma, ux).chunk(2, -1)
            weight = self._weight("relative")
            of_cos, of_sin = weight.chunk(2, -1)

            first_query = torch.cat([cos, sin], -1)
            queries.append(first_query)
            first_scale = torch.cat([of_cos, of_cos], -1)
            scales.append(first_scale)

            terms["query2"] = torch.cat([sin, -cos], -1)
            both_sines = [of_sin, of_sin]
            terms["scale2"] = prepared(
                self,
                "scale2",
                lambda: torch.cat(both_sines, -1),
            )
        if len(queries) == 1:
            (terms["query"],) = queries
            (terms["scale"],) = scales
        elif queries:
            terms["query"] = torch.cat(queries, -1)
            name = ("scale", columns)
            terms["scale"] = prepared(
                self,
                name,
                lambda: torch.cat(scales, -1),
            )

        if columns and "distance" in self.groups:
            terms["query_positions"] = x
            terms["distance_scale"] = self._weight("distance")[..., 0]
        if self.depth > 2:
            terms["mid"] = self.mid_layers()
        return terms

    def both_terms(self, problem: Problem) -> dict[str, Any]:
        x = problem.x
        y = problem.y
        gamma = None
        # Where queries are keys, both ends read the same γ, which is a good part of the cost of a
        # small call. Inside `inference` the projected positions are cached, and γ is not needed.
        if x is y and "query_position" in self.groups and not answering(self):
            gamma = self.gamma(x)[:, None]
        of_keys: dict[str, Any] = self.key_terms(
            y,
            problem.uy,
            columns=False,
            gamma=gamma,
        )
        of_queries = self.query_terms(
            x,
            problem.ux,
            columns=False,
            gamma=gamma,
        )
        return of_keys | of_queries

    def table(self, displacements: Tensor) -> Tensor | None:
        """Return the displacement term r(δ) at given displacements (D, p), (1 | H, w, D), or None
        where no group reads it.

        On a regular grid both groups of x - y are functions of one of D = O(N) displacements: the
        table replaces their columns, at one gather per pair instead of 2m multiply-adds.
        """

        def make() -> Tensor | None:
            return self._table(displacements)

        return prepared(self, "table", make, of=(displacements,))

    def _table(self, displacements: Tensor) -> Tensor | None:
        dtype = self.weight1.dtype
        total = None
        if "relative" in self.groups:
            gamma = self.gamma(displacements)
            total = self._project(gamma.to(dtype), "relative")
        if "distance" in self.groups:
            length = torch.linalg.vector_norm(displacements, dim=-1, keepdim=True)
            of_length = self._project(length.to(dtype), "distance")
            if total is None:
                total = of_length
            else:
                total = of_length + total
        if total is None:
            return None
        return total.mT

    def extra_repr(self) -> str:
        network = f"width={self.width}, depth={self.depth}, output={self.output}"
        return f"{super().extra_repr()}, {network}, groups={self.groups}"


def _empty(*shape: int) -> nn.Parameter:
    """Return a parameter of this shape, which ``reset_parameters`` fills."""
    return nn.Parameter(torch.empty(*shape))


def _joined(columns: Sequence[Tensor]) -> Tensor:
    """Return columns side by side, without a copy where there is one set."""
    if len(columns) == 1:
        return columns[0]
    return torch.cat(list(columns), -1)


def _like(gamma: Tensor, u: Tensor) -> Tensor:
    """Return γ (1 | B, 1, N, 2m) with u's dtype, batch and heads, so that both can stand in one
    tensor of columns.
    """
    batch, heads = u.shape[:2]
    like_u = cast(gamma, u.dtype)
    return like_u.expand(batch, heads, -1, -1)


def _check_sizes(
    depth: int,
    rank: int,
    frequencies: int,
    epsilon: float,
) -> None:
    if depth < 2:
        raise OptionError(
            f"depth: expected at least 2, which is one hidden layer and the output, got {depth}"
        )
    if rank < 1:
        raise OptionError(f"rank: expected at least 1, got {rank}")
    if frequencies < 0:
        raise OptionError(
            f"frequencies: expected 0 or more, got {frequencies}; 0 reads raw coordinates"
        )
    if not 0 <= epsilon < math.inf:
        raise OptionError(
            f"epsilon: expected a finite scale of 0 or more, got {epsilon}; the paper has 0.01"
        )


def _check_names(
    groups: Sequence[str],
    output: str,
    activation: str,
) -> None:
    """Raise OptionError for an unknown input group, form of the output, or activation."""
    for group in groups:
        if group not in GROUPS:
            raise OptionError(
                f"groups: expected names among {', '.join(GROUPS)}, got {group!r}"
                f"{suggest(group, GROUPS)}"
            )
    if output not in OUTPUTS:
        raise OptionError(
            f"output: expected {' or '.join(OUTPUTS)}, got {output!r}{suggest(output, OUTPUTS)}"
        )

    # Called for its error alone: it knows the names of the activations.
    find_activation(activation)
