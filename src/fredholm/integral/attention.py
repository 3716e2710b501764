"""Base kernels of attention: maps to queries, keys and values, stored as three layers or as one;
attention by features of given queries and keys; and the kernel that is both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..domain import Domain, default_line
from ..errors import DomainError, OptionError
from ..forms.weights import WeightBlocks
from ..forms.windowed import WindowChunks, WindowMoment
from ..ops.linear_attention import at_scale_of_seen, measured_density
from ..quadrature import Quadrature
from .bases import SEPARABLE, WeightedKernel
from .capabilities import Decaying, JointFeatures, Windowed, measure_of
from .contract import Part, answering, prepared, weight_and_bias
from .decay import check_order, read_decay
from .denominators import DenominatorWatch, counted_denominators
from .facts import Layout
from .feature_map import (
    FeatureMap,
    build_feature_map,
    floor_of,
    is_pointwise,
    key_features,
    query_features,
)
from .features import head_width
from .problem import Problem, split_heads
from .projections import Projections, projected_widths
from .windowed import (
    ScaledFeatures,
    check_window,
    first_gain,
    near_pairs,
    query_parts,
    window_density,
)

MAPS = ("query", "key", "value")
QUERY, KEY, VALUE = range(3)
"""Numbers of the three maps, for the methods that take one."""

# Up to this many points a feature map takes queries and keys in one call, because a call then costs
# more than its arithmetic.
FEW_POINTS = 32

# Methods whose work :meth:`FeatureAttentionKernel.together` does at once. It may do so only where a
# subclass has changed none of them.
JOINT_METHODS = (
    "_heads",
    "key_features",
    "query_features",
    "stable_key_features",
    "stable_query_features",
    "values",
)


class AttentionKernel(WeightedKernel):
    """Base of kernels with queries, keys and values: the linear maps, their widths and the value
    bias.

    The value bias is an offset, because the weights of an attention integrate to one. Only weight
    and bias of the maps are used, and their ``forward`` is not called. Forward hooks on them
    therefore do not run, and a map may be replaced only by another linear layer.

    Args:
        dim: width of u; every head reads all of it.
        heads: H; must divide ``dim`` without ``projections``.
        bias: biases of the three maps, without ``projections``.
        projections: layers of your own: (query, key, value), or one that maps u to all three, in
            this order. Keys and values may have fewer heads than queries, each shared by a group of
            neighbouring heads.

    Attributes:
        width: features of a query or a key, e.
        groups: heads of keys and values, each shared by H / groups heads of queries.

    Raises:
        OptionError: widths that do not fit one another; in a call, a map that is not a linear
            layer.
    """

    whole = True
    query, key, value, packed = Part(), Part(), Part(), Part()

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        bias: bool = True,
        projections: Projections | None = None,
    ):
        fresh = projections is None
        if projections is None:
            head_width(dim, heads)
            projections = (
                nn.Linear(dim, dim, bias),
                nn.Linear(dim, dim, bias),
                nn.Linear(dim, dim, bias),
            )
        widths = projected_widths(dim, heads, projections)
        super().__init__(heads, dim, widths.value)
        self.width, self.groups = widths.query, widths.groups

        self.packed = None
        if isinstance(projections, nn.Linear):
            self.packed = projections
        else:
            self.query, self.key, self.value = projections

        # Only new layers are initialised: the caller's keep their weights.
        if fresh:
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw Xavier-uniform weights for each map separately, and set biases to zero."""
        for part in (QUERY, KEY, VALUE):
            weight, bias = self._map(part)
            nn.init.xavier_uniform_(weight)
            if bias is not None:
                nn.init.zeros_(bias)

    def _map(self, part: int) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias of one of the three maps."""
        modules = self._modules
        packed = modules.get("packed")
        if packed is None:
            return weight_and_bias(modules[MAPS[part]], MAPS[part])  # type: ignore[arg-type]

        weight, bias = weight_and_bias(packed, "packed")
        if bias is not None:
            bias = bias.chunk(3)[part]
        return weight.chunk(3)[part], bias

    def _heads(self, u: Tensor, part: int) -> Tensor:
        """Return queries, keys or values of (B, 1, N, dim) as (B, H, N, ·); values without bias."""
        return self._project(u.squeeze(1), part)

    def _project(self, u: Tensor, part: int) -> Tensor:
        weight, bias = self._map(part)
        if part == QUERY:
            return split_heads(F.linear(u, weight, bias), self.heads)
        # The values' bias is the kernel's offset.
        if part == VALUE:
            bias = None
        return self._share(split_heads(F.linear(u, weight, bias), self.groups))

    def _all_heads(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of the same points, (B, H, N, ·) each: one matrix product
        where the maps are packed, or their weights joined inside :class:`.inference`.
        """
        u = u.squeeze(1)
        flat = self._one_product(u)
        if flat is None:
            return self._project(u, QUERY), self._project(u, KEY), self._project(u, VALUE)
        if self._alike:
            return split_heads(flat, 3 * self.heads).chunk(3, 1)  # type: ignore[return-value]

        sizes = (self.heads * self.width, self.groups * self.width, self.groups * self.d_out)
        query, key, value = flat.split(sizes, -1)
        return (
            split_heads(query, self.heads),
            self._share(split_heads(key, self.groups)),
            self._share(split_heads(value, self.groups)),
        )

    @property
    def _alike(self) -> bool:
        """Whether queries, keys and values have as many heads of one width."""
        return self.groups == self.heads and self.width == self.d_out

    def _one_product(self, u: Tensor) -> Tensor | None:
        """Return queries, keys and values of (B, N, dim) by one matrix product, (B, N, ·), values
        without bias; None where three products are better.
        """
        if self.packed is not None:
            weight, bias = weight_and_bias(self.packed, "packed")
            if bias is not None:
                # Without the values' third, which is the kernel's offset.
                third = bias.shape[0] // 3
                bias = F.pad(bias[: 2 * third], (0, third))
            return F.linear(u, weight, bias)

        # Joining the weights at each call costs what one product saves.
        if not answering(self):
            return None
        weight, bias = prepared(self, "side by side", self._joined)
        return F.linear(u, weight, bias)

    def _joined(self) -> tuple[Tensor, Tensor | None]:
        """Return the three maps' weights above one another, and their biases, with zeros for that
        of the values.
        """
        weights, biases = zip(*(self._map(part) for part in (QUERY, KEY, VALUE)))
        weight = torch.cat(weights)
        if biases[QUERY] is None and biases[KEY] is None:
            return weight, None

        filled = []
        for one, bias in zip(weights, (biases[QUERY], biases[KEY], None)):
            if bias is None:
                bias = weight.new_zeros(one.shape[0])
            filled.append(bias)
        return weight, torch.cat(filled)

    def _share(self, u: Tensor) -> Tensor:
        """Repeat keys or values of each group for all of its heads: (B, groups, N, ·) to (B, H, N,
        ·).
        """
        if self.groups == self.heads:
            return u
        return u.repeat_interleave(self.heads // self.groups, 1)

    def values(self, y: Tensor, uy: Tensor) -> Tensor:
        return self._heads(uy, VALUE)

    def value_map(self) -> Tensor:
        """Return V, (H, d_out, dim)."""
        weight, _ = self._map(VALUE)
        per_group = weight.view(self.groups, self.d_out, weight.shape[1])
        if self.groups == self.heads:
            return per_group
        return per_group.repeat_interleave(self.heads // self.groups, 0)

    def value_bias(self) -> Tensor | None:
        """Return the bias of the values by head, (1, H, 1, d_out), or None."""
        _, bias = self._map(VALUE)
        if bias is None:
            return None
        return self._share(bias.view(1, self.groups, 1, self.d_out))

    def offset(self, problem: Problem) -> Tensor | None:
        return self.value_bias()


# --- where the weight is an inner product of features ---------------------------------------------


def check_floor(floor: float) -> None:
    """Check the smallest denominator of a normalised attention.

    Raises:
        OptionError: it is not positive.
    """
    if not floor > 0:
        raise OptionError(
            f"floor: expected a positive smallest denominator, got {floor}; leave it out for 1e-6"
        )


class FeatureAttention(nn.Module):
    r"""Base of attention on given queries, keys and values whose weight is
    :math:`\phi(q_i)\cdot\psi(k_j)` over its sum. ψ is φ where the maps are tied.

    With a window, softmax weighs the last keys that a query sees, and features all others (see
    :class:`fredholm.integral.FeatureAttentionKernel`).

    Attributes:
        width, heads: e and H.
        feature_map: φ, from (B, H, N, e) to (B, H, N, r).
        builds_maps: whether the maps were built here, and not passed as a module.
        key_map: ψ, or None for φ.
        floor: the smallest denominator; None for no denominator.
        watch: counts denominators that vanish in training; None where none can.
        window: w, the last points that softmax sees; None for features alone.
        sinks: the first points, which softmax sees from everywhere.
        gain: g of each head beside a window, (H,), or None without one.
    """

    width: int
    heads: int
    builds_maps: bool
    floor: float | None
    watch: DenominatorWatch | None
    window: int | None
    sinks: int
    gain: nn.Parameter | None

    def build_features(
        self,
        feature_map: str | Callable[[Tensor], Tensor],
        width: int,
        heads: int,
        *,
        options: dict[str, Any],
        tied: bool,
        floor: float | None,
        window: int | None,
        sinks: int,
    ) -> None:
        """Build the maps, the gain, and the watch on denominators. Call it once, in a constructor.

        Args:
            feature_map, options: see :func:`build_feature_map`.
            width, heads: e and H.
            tied: one map for queries and keys.
            floor: a positive number, or None for no denominator.
            window, sinks: see :func:`fredholm.integral.windowed.check_window`.

        Raises:
            OptionError: an unknown map or option; a window or sinks that the map cannot have.
        """
        self.feature_map = build_feature_map(feature_map, width, heads, **options)
        self.builds_maps = isinstance(feature_map, str | type)
        self.key_map = None
        if not tied:
            # A named map, or a class of maps, is built again and draws weights of its own. A module
            # is copied, so that both maps begin with the same weights and then learn apart. A
            # function has no weights, and queries and keys share it.
            if self.builds_maps:
                self.key_map = build_feature_map(feature_map, width, heads, **options)
            else:
                self.key_map = copy.deepcopy(self.feature_map)

        self.floor = None
        self.watch = None
        if floor is not None:
            self.floor = floor_of(floor, self.feature_map, self.key_map)
            self.watch = DenominatorWatch.of(self.feature_map, self.key_map)

        check_window(window, self.feature_map, floor, sinks)
        self.window = window
        self.sinks = sinks
        self.gain = None
        if window is not None:
            gain = first_gain(self.feature_map, self._key_map, width, heads)
            self.gain = nn.Parameter(gain)

    @torch.no_grad()
    def draw_features(self) -> None:
        """Draw the parameters of the feature maps again, and compute the gain from the new ones.

        A map that was passed as a module keeps its own, which may be trained or shared.
        """
        for feature_map in (self.feature_map, self.key_map):
            if self.builds_maps and isinstance(feature_map, FeatureMap):
                feature_map.draw()
        if self.gain is not None:
            first = first_gain(self.feature_map, self._key_map, self.width, self.heads)
            self.gain.copy_(first)

    @property
    def _key_map(self) -> Callable[[Tensor], Tensor]:
        """The keys' map, or the queries' where both share one."""
        if self.key_map is None:
            return self.feature_map
        return self.key_map

    @property
    def pointwise(self) -> bool:
        """Whether the features of each point depend on that point alone, in the queries' map and in
        the keys'.

        Features may then be computed for a few points at a time, such as one step or one rank's
        part. A :class:`FeatureMap` declares it, and functions of FEATURE_MAPS are pointwise. It is
        unknown for other functions, so False.
        """
        if self.key_map is not None and not is_pointwise(self.key_map):
            return False
        return is_pointwise(self.feature_map)

    def map_queries(self, query: Tensor) -> Tensor:
        """Return φ of queries up to a factor of each query, which cancels in the quotient."""
        return query_features(self.feature_map, query)

    def map_keys(
        self,
        key: Tensor,
        valid: Tensor | None = None,
        least: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return ψ of keys divided by e^c, and c; see :meth:`FeatureMap.of_keys`."""
        return key_features(self._key_map, key, valid, least)

    def map_queries_before_window(self, query: Tensor) -> ScaledFeatures:
        """Return e^g φ of queries divided by e^a, and a: beside softmax's exponentials no factor of
        a query cancels.
        """
        assert self.gain is not None
        return query_parts(self.feature_map, query, self.gain)

    def observe_points(
        self,
        queries: Callable[[], Tensor],
        keys: Callable[[], Tensor],
        real: Tensor | None,
        valid: Tensor | None,
        measure: Callable[[], Quadrature],
    ) -> None:
        """Show the points of a call in training to the maps that keep statistics, and count the
        denominators of maps that may be negative.

        Most maps do neither, so queries, keys and the measure are functions, called only where one
        does.

        Args:
            queries, keys: return q (B, H, Nq, e) and k (B, H, Nk, e).
            real, valid: queries and keys that are not padding, or None for all.
            measure: returns the weights of the sum over keys.
        """
        for feature_map, points, counted in (
            (self.feature_map, queries, real),
            (self._key_map, keys, valid),
        ):
            if not isinstance(feature_map, FeatureMap):
                continue
            if feature_map.observes and feature_map.training:
                feature_map.observe(points(), counted)

        if self.watch is not None:
            # The floor is left out, because it would hide what is counted. So is a window: maps
            # that may be negative refuse one.
            def compute() -> Tensor:
                query = self.feature_map(queries())
                key = self._key_map(keys())
                return counted_denominators(query, key, measure(), real)

            self.watch.observe(compute)


class FeatureAttentionKernel(AttentionKernel, FeatureAttention, Windowed, Decaying):
    r"""Base of kernels :math:`K_h(x, y; u) = \phi(Q_h u(x))\cdot\phi(K_h u(y))\,V_h / Z_h(x)`.

    .. math:: Z_h(x) = \int \phi(Q_h u(x))\cdot\phi(K_h u(y))\,d\mu(y)

    With a ``window`` the past is split in two, one measure :math:`\mu = \mu_{near} + \mu_{far}`:
    softmax's kernel on the last w points that a query sees (and on the first ``sinks`` of all),
    features on all others, over one Z,

    .. math:: K_h(x, y; u)\,Z_h(x) = V_h \begin{cases}
        e^{Q_h u(x)\cdot K_h u(y) / \sqrt e} & y \text{ near} \\
        e^{g_h}\,\phi(Q_h u(x))\cdot\phi(K_h u(y)) & y \text{ before} \end{cases}

    The gain g is learned, one number per head. A factor of φ cancels in a quotient of features
    alone, but not beside softmax's exponentials.

    With a ``decay`` the past fades at a learned rate, a density of the measure from the point y to
    the point x, in the numerator and in Z alike:

    .. math:: d\mu_x(y) = e^{-\int_y^x \lambda_h(t)\,dt}\,d\mu(y)

    Beside a window it acts on the features alone: what softmax sees keeps its whole mass. Time is
    that of the domain's points where it has a clock (:meth:`fredholm.Domain.timestamps`); elsewhere
    each real point is a step.

    Args:
        dim, heads, bias, projections: see :class:`AttentionKernel`.
        feature_map: φ, from (…, e) to (…, r): a name of :data:`fredholm.kernels.FEATURE_MAPS`, a
            function, or a module with parameters of its own. Where it may be negative, Z may
            vanish; a warning in training then counts how often.
        feature_options: options of a named map.
        tied: one φ for queries and keys, a positive semi-definite kernel; otherwise keys have a map
            of their own.
        normalised: divide by Z; without it the values' layer must have no bias, whose response
            would not be constant.
        floor: smallest Z, see :func:`fredholm.ops.linear_attention.guarded`; at most 1e-17 for maps
            whose features come up to factors (exponentials).
        window: w, points back to which softmax sees, the query's own included; domains are then
            causal. None for features alone.
        sinks: beside a window, the first points of all, which softmax sees from everywhere.
        decay: ``"head"``, a rate λ for each head; ``"token"``, one that each point chooses, see
            :class:`fredholm.integral.decay.Decay`; domains are then causal. None for none.
        half_life: beside a decay, points, or units of time on a clock, after which half is left
            before anything is learned; None for 700.

    Cost: O(N·r·d_h) with the strategy ``Linear``, causal or not; ``step`` O(r·d_h). A window adds
    O(N·w·d_h), and O(w·d_h).

    Raises:
        OptionError: an unknown feature map; no positive floor; a value bias without normalisation;
            a window without normalisation, or with features that may be negative; an unknown decay.
        DomainError: in a call with a window or a decay, a domain without order; with a decay,
            queries on another domain.

    Reference: Katharopoulos et al. 2020, Eqs. 4-7; of the decay, RetNet (Sun et al. 2023), gated
    linear attention (Yang et al. 2024) and Mamba-2 (Dao and Gu 2024).
    """

    forms = (*SEPARABLE, WindowChunks, WindowMoment, WeightBlocks)
    reads_position = False
    feature_map, key_map = Part(), Part()

    _joint = True

    def __init_subclass__(cls, **options: Any) -> None:
        """Note whether a subclass keeps all methods that :meth:`together` replaces."""
        super().__init_subclass__(**options)
        base = FeatureAttentionKernel
        cls._joint = all(getattr(cls, name) is getattr(base, name) for name in JOINT_METHODS)

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        feature_map: str | Callable[[Tensor], Tensor],
        feature_options: dict[str, Any] | None = None,
        tied: bool = True,
        normalised: bool = True,
        floor: float = 1e-6,
        window: int | None = None,
        sinks: int = 0,
        decay: str | None = None,
        half_life: float | None = None,
        bias: bool = True,
        projections: Projections | None = None,
    ):
        super().__init__(dim, heads, bias=bias, projections=projections)
        check_floor(floor)
        _, value_bias = self._map(VALUE)
        if not normalised and value_bias is not None:
            raise OptionError(
                "normalised=False: expected values without bias, got one with; pass bias=False, or "
                "such projections"
            )

        denominator_floor = None
        if normalised:
            denominator_floor = floor
        self.build_features(
            feature_map,
            self.width,
            heads,
            options=feature_options or {},
            tied=tied,
            floor=denominator_floor,
            window=window,
            sinks=sinks,
        )
        # Functions of FEATURE_MAPS know no heads and no neighbouring points, so that queries and
        # keys of all heads may be passed to one at once.
        known = not isinstance(self.feature_map, nn.Module) and is_pointwise(self.feature_map)
        self.named_map = None
        if known:
            self.named_map = self.feature_map
        self.decay = read_decay(dim, heads, decay, half_life)

    def reset_parameters(self) -> None:
        """Draw the three linear maps and the feature maps again, and compute the gain from them."""
        super().reset_parameters()

        # The base class calls this in its constructor, before there are feature maps.
        if getattr(self, "feature_map", None) is not None:
            self.draw_features()

    @property
    def nonnegative(self) -> bool:  # type: ignore[override]
        """Whether the map is a named function that declares so."""
        return self.key_map is None and getattr(self.named_map, "nonnegative", False)

    @property
    def rowwise(self) -> bool:  # type: ignore[override]
        """Whether no feature depends on other queries."""
        return self.pointwise

    @property
    def local(self) -> bool:
        """Whether a query needs no other keys than its own: a window counts all points before, and
        a decay adds up over them.
        """
        return self.rowwise and self.window is None and self.decay is None

    @property
    def fades(self) -> bool:  # type: ignore[override]
        """Whether the past fades."""
        return self.decay is not None

    def rates(self, y: Tensor, uy: Tensor) -> Tensor:
        assert self.decay is not None
        return self.decay.rates(uy.squeeze(1))

    def query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        return self.feature_map(self._heads(ux, QUERY))

    def key_features(self, y: Tensor, uy: Tensor) -> Tensor:
        return self._key_map(self._heads(uy, KEY))

    def stable_query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        """Return :meth:`query_features` up to a factor of each query, which cancels in the
        quotient.
        """
        if self.floor is None:
            return self.query_features(x, ux)
        return self.map_queries(self._heads(ux, QUERY))

    def stable_key_features(
        self,
        y: Tensor,
        uy: Tensor,
        valid: Tensor | None = None,
        least: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return :meth:`key_features` divided by e^c, and c (B, H), or None where nothing was
        divided.
        """
        if self.floor is None:
            return self.key_features(y, uy), None
        return self.map_keys(self._heads(uy, KEY), valid, least)

    def observe(self, problem: Problem) -> None:
        self.observe_points(
            lambda: self._heads(problem.ux, QUERY),
            lambda: self._heads(problem.uy, KEY),
            problem.real,
            problem.quadrature.valid,
            lambda: measure_of(self, problem),
        )

    # --- with a window ----------------------------------------------------------------------------

    def near_queries(self, x: Tensor, ux: Tensor) -> Tensor:
        return self._heads(ux, QUERY) * self.width**-0.5

    def near_keys(self, y: Tensor, uy: Tensor) -> Tensor:
        return self._heads(uy, KEY)

    def far_queries(self, x: Tensor, ux: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.map_queries_before_window(self._heads(ux, QUERY))

    def far_keys(
        self,
        keys: Tensor,
        valid: Tensor | None = None,
        least: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        return self.map_keys(keys, valid, least)

    def check(self, layout: Layout) -> None:
        if self.window is not None and not layout.causal:
            raise DomainError(
                f"{type(self).__name__}: expected a causal domain beside window={self.window}, got "
                "one without order; build it with causal=True, or leave window out"
            )
        if self.decay is not None:
            check_order(type(self).__name__, layout)

    def default_domain(
        self,
        n: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Domain:
        ordered = self.window is not None or self.decay is not None
        return default_line(n, causal=ordered, device=device, dtype=dtype)

    # --- the definition ---------------------------------------------------------------------------

    def weights(self, problem: Problem) -> Tensor:
        r"""Return the density p of the attention, (B, H, Nq, Nk): :math:`\phi_i\cdot\psi_j / Z_i`
        times the decay, where there is one.

        It is a density against the domain's quadrature weights w. With a denominator
        :math:`\sum_j w_{ij} p_{ij} = 1`, without one p is the numerator.
        """
        if self.window is not None:
            return self._window_weights(problem, self.window)

        query = self.stable_query_features(problem.x, problem.ux)
        key, shift = self.stable_key_features(problem.y, problem.uy, problem.quadrature.valid)
        measure = measure_of(self, problem)

        # All keys of a head were divided by one factor e^shift. The keys that a query sees may be
        # tiny beside it, so its features are divided by the largest of them. The quotient stays the
        # same, and the floor does not cut off its denominator.
        if shift is not None:
            query = at_scale_of_seen(query, key, problem.quadrature.weights(), measure.fading())
        return measured_density(query, key, measure, self.floor)

    def _window_weights(self, problem: Problem, window: int) -> Tensor:
        """Return the density of both parts over one denominator, (B, H, Nq, Nk): exponentials of
        scores on near pairs, products of features on all others; see :func:`.window_density`.

        The scores' factor 1/√e is in ``near_queries``, and the gain e^g in ``far_queries``. The
        decay is passed apart from the weights, because it acts on the features' part alone.
        """
        p, quadrature = problem, problem.quadrature
        keys = self.near_keys(p.y, p.uy)
        near = near_pairs(quadrature.visible(), window, keys.shape[2], keys.device, self.sinks)
        return window_density(
            self.near_queries(p.x, p.ux) @ keys.mT,
            self.far_queries(p.x, p.ux),
            self.far_keys(keys, quadrature.valid),
            quadrature.weights(),
            near,
            measure_of(self, problem).fading(),
        )

    # --- queries and keys at once -----------------------------------------------------------------

    def together(
        self,
        x: Tensor,
        u: Tensor,
        valid: Tensor | None = None,
        least: Tensor | None = None,
    ) -> JointFeatures:
        if not self._joint:
            return super().together(x, u, valid, least)

        # A named function takes queries and keys of all heads in one call.
        feature_map = self._key_map
        if self.key_map is None and feature_map is self.named_map:
            flat = None
            if self._alike:
                flat = self._one_product(u.squeeze(1))
            if flat is not None:
                heads = self.heads
                stacked = split_heads(flat, 3 * heads)
                query, key = feature_map(stacked.narrow(1, 0, 2 * heads)).chunk(2, 1)
                return JointFeatures(query, key, None, stacked.narrow(1, 2 * heads, heads))

        queries, keys, values = self._all_heads(u)
        if self.floor is None:
            return JointFeatures(self.feature_map(queries), feature_map(keys), None, values)

        # A map that is the same for both, point by point, takes them as points of one call.
        shared = self.key_map is None and isinstance(feature_map, FeatureMap) and feature_map.alike
        points = queries.shape[2]
        few = not torch.compiler.is_compiling() and points <= FEW_POINTS
        if shared and few and queries.shape[1] == keys.shape[1]:
            query, key = feature_map(torch.cat([queries, keys], 2)).split(points, 2)
            return JointFeatures(query, key, None, values)

        query = self.map_queries(queries)
        key, shift = self.map_keys(keys, valid, least)
        return JointFeatures(query, key, shift, values)
