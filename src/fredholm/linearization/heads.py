"""Linear attention on queries, keys and values that a model has made: what takes softmax's place in
it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import ConversionError, OptionError
from ..integral import Memory
from ..integral.attention import FeatureAttention, check_floor
from ..integral.feature_map import is_per_head, is_pointwise
from ..integral.windowed import near_pairs, window_density
from ..ops.linear_attention import (
    Far,
    Points,
    WindowSizes,
    advance_window,
    at_scale,
    at_scale_of_seen,
    attend_in_pieces,
    largest_seen,
    linear_attention,
    linear_density,
    stored_naive,
    wants_pieces,
)
from ..quadrature import Quadrature
from .decay import GroupDecay, check_decay, fading_of
from .divergence import Noted, divergence, exact_divergence
from .masks import padding_of
from .seen import Seen, clean, softmax_attention, softmax_weights

# In a conversion each head has queries of its own scale, and begins near softmax.
CONVERSION_OPTIONS: dict[str, dict[str, Any]] = {
    "luna": {"per_head": True, "preset": "exponential"}
}

# The gain of maps that have learned nothing is lowered by this: a factor of a thousandth.
QUIET = math.log(1000)

# A gain whose exponential is zero in every precision.
SILENT = -1e4

# Points whose features are made at a time in inference on a processor: without an order, and in
# causal order, where what is made of them then stays in the processor's cache.
PIECE = 2048
STRETCH = 512


class Heads(nn.Module):
    """Base of what takes softmax's place on given heads: the modes, groups of keys, padding. A
    subclass defines the response and its weights.

    Attributes:
        mode: ``"linear"``; ``"softmax"``, the teacher's own response; ``"distil"``, the same, and
            ``loss`` is the divergence of the two attentions, the mean over the calls of one pass;
            ``"measure"``, the same with the exact divergence, see
            :func:`fredholm.linearization.divergence.exact_divergence`;
            ``"calibrate"``, the same as softmax, and what follows from data without a gradient is
            set by them, see :meth:`calibrate`.
    """

    name: str

    def __init__(self, heads: int, width: int):
        super().__init__()
        self.heads = heads
        self.width = width
        self.mode = "linear"
        self.noted = Noted()

    @property
    def loss(self) -> Tensor | None:
        """The mean divergence over the calls of one pass; None without any."""
        return self.noted.mean()

    def forward(
        self,
        query: Float[Tensor, "b h q e"],
        key: Float[Tensor, "b g k e"],
        value: Float[Tensor, "b g k d"],
        seen: Seen,
        *,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Float[Tensor, "b h q d"]:
        self.check(query, key)
        scale = self.factor(scale)
        clean_value = clean(value, seen.valid)
        if self.training and self.mode in ("linear", "distil"):
            self.observe(query, key, clean_value, seen, scale)
        if self.mode == "linear":
            return self._respond(query, clean(key, seen.valid), clean_value, seen, scale)

        # Everything else answers as the teacher, whose heads have keys and values of their own.
        key = self.share(key)
        value = self.share(value)
        if self.mode == "calibrate":
            self.calibrate(query, key, seen, scale, clean_value)
        if self.mode in ("softmax", "calibrate"):
            return softmax_attention(query, key, value, seen, scale, dropout)

        teacher = self.teacher_weights(query, key, seen, scale)
        student = self.student_weights(query, key, seen, scale, clean_value)
        real = seen.real(query, key)
        if self.mode == "measure":
            self.noted.measure(exact_divergence(teacher, student, real))
        else:
            visible = seen.quadrature(query.shape[2], key.shape[2], query).visible()
            self.noted.add(divergence(teacher, student, real, visible))
        return teacher.to(value.dtype) @ value

    def weights(
        self,
        query: Float[Tensor, "b h q e"],
        key: Float[Tensor, "b g k e"],
        seen: Seen,
        *,
        scale: float | None = None,
        value: Float[Tensor, "b g k d"] | None = None,
    ) -> Float[Tensor, "b h q k"]:
        """Return the share of each value in what a query receives, dense, rows of sum one: O(N²).
        In the teacher's modes these are softmax's.

        Args:
            value: needed by a store, which is chosen by values, and by a decay.
        """
        self.check(query, key)
        scale = self.factor(scale)
        key = self.share(clean(key, seen.valid))
        if self.mode != "linear":
            weights = self.teacher_weights(query, key, seen, scale)
        else:
            if value is not None:
                value = clean(value, seen.valid)
            weights = self.student_weights(query, key, seen, scale, value)
        return weights.expand(-1, -1, query.shape[2], -1)

    def observe(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seen: Seen,
        scale: float,
    ) -> None:
        """Update running statistics by the points of a call in training; nothing by default.

        Args:
            value: (B, G, Nk, d), zero at padding.
        """

    def calibrate(
        self,
        query: Tensor,
        key: Tensor,
        seen: Seen,
        scale: float,
        value: Tensor | None = None,
    ) -> None:
        """Set what follows from data without a gradient; nothing by default."""

    def student_weights(
        self,
        query: Tensor,
        key: Tensor,
        seen: Seen,
        scale: float,
        value: Tensor | None = None,
    ) -> Float[Tensor, "b h q k"]:
        """Return the weight that a query gives each key, dense, rows of sum one: O(N²).

        Args:
            query, key: with as many heads of keys as of queries, see :meth:`share`.
            value: of the model's own heads, (B, G, Nk, d).
        """
        raise NotImplementedError(f"{type(self).__name__} must define student_weights")

    def _respond(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seen: Seen,
        scale: float,
    ) -> Tensor:
        """Return the response in the mode ``"linear"``, (B, H, Nq, d); keys and values are those of
        the model's own heads, zero at padding.
        """
        raise NotImplementedError(f"{type(self).__name__} must define _respond")

    teacher_weights = staticmethod(softmax_weights)

    def check(self, query: Tensor, key: Tensor) -> None:
        """Check the shapes of a call.

        Raises:
            ConversionError: queries that the maps were not made for, or keys that form no groups.
        """
        if query.shape[1] != self.heads or query.shape[-1] != self.width:
            got = f"{query.shape[1]} heads of width {query.shape[-1]}"
            raise ConversionError(
                f"these maps are for {self.heads} heads of width {self.width}, the model gives "
                f"{got}"
            )
        if self.heads % key.shape[1]:
            raise ConversionError(
                f"{key.shape[1]} heads of keys and values do not divide {self.heads} heads of "
                "queries, so that no group is defined"
            )

    def factor(self, scale: float | None) -> float:
        """Return the factor of the products of queries and keys; by default one over the root of
        the width.
        """
        if scale is None:
            return float(self.width**-0.5)
        return float(scale)

    def share(self, x: Tensor) -> Tensor:
        """Return keys or values of fewer heads than queries, each repeated for its group."""
        if x.shape[1] == self.heads:
            return x
        return x.repeat_interleave(self.heads // x.shape[1], 1)


class LinearHeads(Heads, FeatureAttention):
    r"""Linear attention of given heads,
    :math:`\phi(q_i)\cdot\sum_j \psi(k_j) v_j / \phi(q_i)\cdot\sum_j \psi(k_j)`, ψ = φ where tied.

    Queries and keys are scaled by the root of the softmax's factor times :math:`\sqrt e`, so that
    maps see what they see at the usual factor :math:`1/\sqrt e`.

    With a ``window`` the last w visible keys, the first ``sinks`` of all, and those in a ``store``
    keep softmax's :math:`e^{s q_i\cdot k_j}`, the others have
    :math:`e^g \phi(q_i)\cdot\psi(k_j)`, and one normaliser is over all; the gain g is learned.

    With a ``decay`` these others fade, see :mod:`fredholm.linearization.decay`.

    Args:
        heads, width: H and e, of the queries; keys and values may come in fewer heads, each for a
            group of neighbours.
        feature_map: a name of :data:`fredholm.kernels.FEATURE_MAPS`.
        options: of the map; conversions of ``luna`` default to maps of each head's own.
        tied: one φ for queries and keys, or keys with a map of their own.
        floor: of the denominator.
        window: w, of causal layers: the last keys that softmax sees, the query's own included.
        sinks: beside a window, the first keys of all, which softmax sees from everywhere.
        store: beside a window, so many keys of each group behind it, which softmax sees as well:
            those that the state answers worst, see :mod:`fredholm.ops.linear_attention.store`.
        decay: of causal layers: ``"head"``, the state fades at a rate of each group of heads, or
            ``"token"``, at one that each token chooses; None for neither.
        groups: heads of keys and values, where they are fewer than H; read beside a decay.

    Shape: query (B, H, Nq, e), key (B, G, Nk, e), value (B, G, Nk, d) to (B, H, Nq, d); a query
    that sees nothing gets zero.

    Cost: O(N·H·r·d); with ``pairs``, and in the modes of the teacher, O(N²).

    Raises:
        ConversionError: key heads that do not divide the query heads.
        OptionError: an unknown map or option.

    Example:
        >>> x = torch.randn(2, 4, 5, 8)
        >>> LinearHeads(4, 8, feature_map="hedgehog")(x, x, x, Seen()).shape
        torch.Size([2, 4, 5, 8])
    """

    def __init__(
        self,
        heads: int,
        width: int,
        *,
        feature_map: str = "luna",
        options: dict[str, Any] | None = None,
        tied: bool = True,
        floor: float = 1e-6,
        window: int | None = None,
        sinks: int = 0,
        store: int = 0,
        decay: str | None = None,
        groups: int | None = None,
    ):
        super().__init__(heads, width)
        check_decay(decay)
        check_floor(floor)
        options = {**CONVERSION_OPTIONS.get(feature_map, {}), **(options or {})}
        if options.get("cap") == "batch":
            raise OptionError(
                'cap="batch" is a statistic of a call, which counts padding; use cap="running"'
            )

        self.name = feature_map
        self.build_features(
            feature_map,
            width,
            heads,
            options=options,
            tied=tied,
            floor=floor,
            window=window,
            sinks=sinks,
        )
        check_store(store, window, self.feature_map, self.key_map)
        self.store = store
        self.decay = None
        if decay is not None:
            self.decay = GroupDecay(groups or heads, width, decay)

    def reset_parameters(self) -> None:
        """Draw the feature maps again, and compute the gain from them. A decay resets itself."""
        self.draw_features()

    # --- features ---------------------------------------------------------------------------------

    def _scaled(self, x: Tensor, scale: float) -> Tensor:
        """Return queries or keys times the root of ``scale`` over the usual factor."""
        factor = (scale * self.width**0.5) ** 0.5
        if abs(factor - 1.0) <= 1e-6:
            return x
        return x * factor

    def query_features(self, query: Tensor, scale: float) -> Tensor:
        """Return φ(q), see :meth:`FeatureAttention.map_queries`."""
        return self.map_queries(self._scaled(query, scale))

    def key_features(
        self,
        key: Tensor,
        scale: float,
        valid: Tensor | None = None,
        least: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return ψ(k) over a common e^c, and c, see :meth:`FeatureAttention.map_keys`."""
        return self.map_keys(self._scaled(key, scale), valid, least)

    def far(
        self,
        query: Tensor,
        scale: float,
        value: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Far:
        """Return the features by which queries see the keys before the window.

        Args:
            query: (B, H, n, e).
            scale: the softmax's factor.
            value, valid: values of the same tokens, (B, G, n, d), and which are not padding. A
                decay needs both; None for the features without one.
        """

        def keys(
            x: Tensor,
            valid: Tensor | None,
            least: Tensor | None,
        ) -> tuple[Tensor, Tensor | None]:
            if is_per_head(self._key_map):
                x = self.share(x)
            return self.key_features(x, scale, valid, least)

        features, exponent = self.map_queries_before_window(self._scaled(query, scale))
        decay = None
        if value is not None:
            decay = self.exponents(value, valid)
        return Far(features, exponent, keys, decay)

    def exponents(self, value: Tensor, valid: Tensor | None) -> Tensor | None:
        """Return by how much the state fades as each token comes, (B, G, n); None without a
        decay.
        """
        if self.decay is None:
            return None
        return self.decay.exponents(value, valid)

    def _fading(
        self,
        value: Tensor | None,
        seen: Seen,
        queries: int,
    ) -> Tensor | None:
        """Return what is left of each key for each query, (B, H, Nq, Nk); None without a decay.

        Raises:
            ConversionError: no values, or keys without order.
        """
        if self.decay is None:
            return None
        if value is None:
            raise ConversionError(
                "expected values beside decay, whose rates follow from them, got none; give "
                "value=..."
            )
        batch, _, keys, _ = value.shape
        valid = seen.valid
        if seen.pairs is not None:
            valid = padding_of(seen.pairs, keys).expand(batch, -1)
        exponents = self.decay.exponents(value, valid)
        return fading_of(exponents, self.heads, queries)

    # --- what follows from data -------------------------------------------------------------------

    def observe(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seen: Seen,
        scale: float,
    ) -> None:
        """Show queries and keys that are not padding to their maps."""

        def scaled_keys() -> Tensor:
            by_head = self.share(clean(key, seen.valid))
            return self._scaled(by_head, scale)

        self.observe_points(
            lambda: self._scaled(query, scale),
            scaled_keys,
            seen.real(query, key),
            seen.valid,
            lambda: self._measure(query, key, value, seen),
        )

    def _measure(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seen: Seen,
    ) -> Quadrature:
        """Return the weights of the sum over keys, which a decay lets fade."""
        queries = query.shape[2]
        quadrature = seen.quadrature(queries, key.shape[2], query)
        if self.decay is None:
            return quadrature
        if seen.causal and seen.pairs is None:
            of_groups = self.decay.exponents(value, seen.valid)
            share = self.heads // of_groups.shape[1]
            of_heads = of_groups.repeat_interleave(share, 1)
            return replace(quadrature, decay=of_heads)

        # Elsewhere the fading is a density of all pairs, as in the definition.
        fading = self._fading(value, seen, queries)
        assert fading is not None
        density = fading.to(quadrature.mass.dtype)
        if quadrature.density is not None:
            density = quadrature.density * density
        return replace(quadrature, density=density, log_density=density.log())

    @torch.no_grad()
    def quieten(self) -> None:
        """Lower the gain beside a window to a thousandth of its weight.

        Maps that have learned nothing point nowhere: at softmax's weight their state drowns what
        the window, the sinks and kept groups find. :meth:`calibrate` gives it the weight back.
        """
        if self.gain is not None:
            self.gain.sub_(QUIET)

    @torch.no_grad()
    def silence(self) -> None:
        """Lower the gain beside a window until nothing of the state is left."""
        if self.gain is not None:
            self.gain.fill_(SILENT)

    @torch.no_grad()
    def calibrate(
        self,
        query: Tensor,
        key: Tensor,
        seen: Seen,
        scale: float,
        value: Tensor | None = None,
    ) -> None:
        r"""Set the gain beside a window, of each head, so that the sum over the points before the
        window is softmax's, in the geometric mean over queries,
        :math:`g = \operatorname{mean}_i \log \sum_j e^{s q_i\cdot k_j} - \log \sum_j
        \phi(q_i)\cdot\psi(k_j)`, each key of the second sum times what a decay leaves of it. O(N²).
        """
        if self.gain is None:
            return
        queries = query.shape[2]
        keys = key.shape[2]
        far = self.far(query, scale)
        features, shift = far.keys(key, seen.valid, None)
        # The pairs that the state answers, (B, H, Nq, Nk).
        visible = seen.quadrature(queries, keys, query).visible()
        before = ~self._softmax_pairs(visible, features, value, seen, queries)
        if visible is not None:
            before = visible & before

        # Logarithms of the two sums, (B, H, Nq).
        scores = (query.float() @ key.float().mT) * scale
        softmax_sums = scores.masked_fill(~before, -torch.inf).logsumexp(-1)
        pairs = far.query.float() @ features.float().mT
        fading = self._fading(value, seen, queries)
        if fading is not None:
            pairs = pairs * fading
        linear_sums = torch.where(before, pairs, 0.0).sum(-1).log()
        missing = softmax_sums - linear_sums
        if far.exponent is not None:
            missing = missing - far.exponent.float()
        if shift is not None:
            missing = missing - shift[..., None].float()

        # A query without keys before the window has no such ratio, and counts nothing.
        finite = missing.isfinite()
        count = finite.sum((0, 2)).clamp(min=1)
        total = torch.where(finite, missing, 0.0).sum((0, 2))
        mean = total / count
        self.gain.add_(mean.to(self.gain.dtype))

    # --- the definition, of all pairs -------------------------------------------------------------

    def student_weights(
        self,
        query: Tensor,
        key: Tensor,
        seen: Seen,
        scale: float,
        value: Tensor | None = None,
    ) -> Float[Tensor, "b h q k"]:
        """Return the weight that each query gives each key, dense: the definition of the response,
        which the fast paths compute without all pairs. Rows have a sum of one, or of zero for a
        query that sees nothing. O(N²).

        Args:
            query: (B, H, Nq, e).
            key: (B, H, Nk, e), repeated for the heads of each group, see :meth:`share`.
            seen: which keys a query sees.
            scale: the softmax's factor s.
            value: (B, G, Nk, d), not repeated. Only a store and a decay read it.
        """
        queries = query.shape[2]
        quadrature = seen.quadrature(queries, key.shape[2], query)
        # Masses of the sum over keys, (B | 1, H | 1, Nq, Nk), zero at pairs that are not seen.
        # Densities below are relative to them.
        weights = quadrature.weights()
        if self.window is not None:
            # Near pairs keep softmax's exponential, all others have e^g φ·ψ, with one normaliser.
            far = self.far(query, scale)
            features = far.keys(key, seen.valid, None)
            near = self._softmax_pairs(quadrature.visible(), features[0], value, seen, queries)
            dtype = torch.promote_types(query.dtype, torch.float32)
            scores = (query.to(dtype) @ key.to(dtype).mT) * scale
            fading = self._fading(value, seen, queries)
            density = window_density(scores, far[:2], features, weights, near, fading)
            return density * weights

        # Without a window φ·ψ is the numerator of every pair.
        features = self.query_features(query, scale)
        key_features, shift = self.key_features(key, scale, seen.valid)
        fading = self._fading(value, seen, queries)
        if fading is not None:
            weights = weights * fading.to(weights.dtype)
        # Keys were divided by one factor for all. The products of a query that sees only small ones
        # would fall below the floor of the denominator, so its features are scaled up.
        if shift is not None:
            features = at_scale_of_seen(features, key_features, weights, fading)
        density = linear_density(features, key_features, weights, self.floor)
        return density * weights

    def _softmax_pairs(
        self,
        visible: Tensor | None,
        features: Tensor,
        value: Tensor | None,
        seen: Seen,
        queries: int,
    ) -> Tensor:
        """Return the pairs that softmax weighs: of the window, the sinks and the store.

        Args:
            visible: pairs that are seen, or None for all.
            features: ψ, (B, S, Nk, r).
            value: (B, G, Nk, d).
            queries: Nq.
        """
        assert self.window is not None
        near = near_pairs(visible, self.window, features.shape[2], features.device, self.sinks)
        if not self.store:
            return near
        if value is None:
            raise ConversionError(
                f"expected values beside store={self.store}, which is chosen by them, got none; "
                "give value=..."
            )

        batch, groups, keys, _ = value.shape
        real = torch.ones(batch, keys, dtype=torch.bool, device=value.device)
        if seen.valid is not None:
            real = seen.valid
        elif seen.pairs is not None:
            real = padding_of(seen.pairs, keys).expand(batch, -1)
        stored = stored_naive(
            features,
            value,
            real,
            window=self.window,
            sinks=self.sinks,
            store=self.store,
            decay=self.exponents(value, real),
        )
        first = keys - queries
        stored_of_heads = stored[:, :, first:].repeat_interleave(self.heads // groups, 1)
        return near | stored_of_heads

    # --- the response -----------------------------------------------------------------------------

    def _respond(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seen: Seen,
        scale: float,
    ) -> Tensor:
        # A window and a decay need the order of one sequence. Queries of another, such as a step
        # over keys in a cache, take all pairs, as a mask of pairs does.
        ordered = self.window is not None or self.decay is not None
        if seen.pairs is not None or (ordered and not seen.causal):
            weights = self.student_weights(query, self.share(key), seen, scale, value)
            return weights.to(value.dtype) @ self.share(value)
        if self.window is not None:
            out, _ = self.in_window(query, key, value, seen.valid, scale, {})
            return out

        quadrature = self._measure(query, key, value, seen)
        points = max(query.shape[2], key.shape[2])
        if not seen.causal and self.pointwise and wants_pieces(query, points, PIECE):
            return self._in_pieces(query, key, value, quadrature, scale)

        features = self.query_features(query, scale)
        key_features, shift = self.key_features(self.share(key), scale, seen.valid)
        if seen.causal and shift is not None:
            # All keys were divided by one number. An early query sees only the small ones of them.
            largest = largest_seen(key_features.detach().amax(-1), quadrature.decay)
            features = at_scale(features, largest)
        value = self.share(value)
        out = linear_attention(features, key_features, value, quadrature, floor=self.floor)
        return out.to(value.dtype)

    def _in_pieces(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        quadrature: Quadrature,
        scale: float,
    ) -> Tensor:
        """Return the response without an order, with the features of a piece at a time."""
        key = self.share(key)
        value = self.share(value)
        valid = quadrature.valid

        def keys(
            part: slice,
            least: Tensor | None,
        ) -> tuple[Tensor, Tensor, Tensor | None]:
            real = None
            if valid is not None:
                real = valid[:, part]
            features, shift = self.key_features(key[:, :, part], scale, real, least)
            values = value[:, :, part]
            return features, values, shift

        def queries(part: slice) -> Tensor:
            return self.query_features(query[:, :, part], scale)

        out = attend_in_pieces(
            keys,
            queries,
            (query.shape[2], key.shape[2]),
            quadrature,
            floor=self.floor,
            piece=PIECE,
        )
        return out.to(value.dtype)

    def in_window(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        valid: Tensor | None,
        scale: float,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        """Return the response to the next tokens of a layer with a window, and the memory after
        them. Keys and values are those of the model's own heads, zero at padding.
        """
        assert self.window is not None
        if self.store and torch.compiler.is_exporting():
            raise ConversionError(
                f"expected a layer without a store in an exported program, got store={self.store}: "
                "which tokens it holds depends on their values; convert with store=0"
            )

        outs = []
        sizes = WindowSizes(self.window, self.sinks, self.store)
        for part in stretches(query, query.shape[2]):
            q = query[:, :, part]
            k = key[:, :, part]
            v = value[:, :, part]
            real = None
            mass = q.new_ones(1, q.shape[2])
            if valid is not None:
                real = valid[:, part]
                mass = real.to(q.dtype)
            points = Points(k, v, mass)
            far = self.far(q, scale, v, real)
            out, memory = advance_window(q * scale, points, far, memory, sizes, real)
            outs.append(out.to(value.dtype))
        if len(outs) == 1:
            return outs[0], memory
        return torch.cat(outs, 2), memory

    def extra_repr(self) -> str:
        parts = [f"heads={self.heads}, width={self.width}, feature_map={self.name}"]
        parts.append(f"tied={self.key_map is None}")
        if self.window is not None:
            parts.append(f"window={self.window}")
        if self.sinks:
            parts.append(f"sinks={self.sinks}")
        if self.store:
            parts.append(f"store={self.store}")
        if self.decay is not None:
            parts.append("decay")
        return ", ".join(parts)


def check_store(store: int, window: int | None, *feature_maps: Any) -> None:
    """Check the size of a store.

    Raises:
        OptionError: not a number of tokens; a store without a window, or beside features of a key
            that depend on other keys.
    """
    if type(store) is not int or store < 0:
        raise OptionError(f"expected store as a number of tokens, at least 0, got {store!r}")
    if store and window is None:
        raise OptionError(
            f"expected a window beside store={store}, got window=None; give window=..., or leave "
            "store out"
        )
    for one in feature_maps:
        if store and one is not None and not is_pointwise(one):
            raise OptionError(
                f"expected a map whose features of a key depend on that key alone beside "
                f"store={store}, got {type(one).__name__}; leave store out, or take another map"
            )


def stretches(like: Tensor, n: int) -> list[slice]:
    """Return spans of n tokens in causal order: of :data:`STRETCH` tokens each in inference on a
    processor, else one.
    """
    if not wants_pieces(like, n, STRETCH):
        return [slice(0, n)]
    spans = []
    for start in range(0, n, STRETCH):
        stop = min(start + STRETCH, n)
        spans.append(slice(start, stop))
    return spans
