"""Linear attention on queries, keys and values that a model has made: what takes softmax's place in
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..domain import Domain
from ..errors import ConversionError, OptionError
from ..integral import FeatureMap
from ..integral.denominators import DenominatorWatch, denominators
from ..integral.feature_map import (
    build_feature_map,
    floor_of,
    is_per_head,
    is_pointwise,
    key_features,
    query_features,
)
from ..integral.windowed import check_window, first_gain, near_pairs, query_parts, window_density
from ..ops.linear_attention import (
    Far,
    advance_window,
    at_scale,
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

CONVERSION_OPTIONS: dict[str, dict[str, Any]] = {
    "luna": {
        "per_head": True,
        "preset": "exponential",
    }  # each head has queries of its own scale, and softmax to begin with
}
QUIET = math.log(1000)  # by which the gain of maps that have learned nothing is lowered
SILENT = -1e4  # a gain whose exponential is zero in every precision
PIECE = 2048  # points whose features a processor makes at a time, in inference
STRETCH = 512  # and in causal order: what is made of them stays in its cache


@dataclass(frozen=True, eq=False)
class Seen:
    """Which keys the queries of a call see.

    Attributes:
        valid: keys that are no padding, (B, Nk), or None for all.
        causal: query i sees the keys up to i; queries and keys are then the same tokens.
        pairs: any other mask, boolean or additive, (B | 1, H | 1, Nq, Nk); it takes the quadratic
            form.
    """

    valid: Bool[Tensor, "b k"] | None = None
    causal: bool = False
    pairs: Tensor | None = None

    def quadrature(self, queries: int, keys: int, like: Tensor) -> Quadrature:
        """The weights of the sum over keys, equal masses over what a query sees."""
        options: dict[str, Any] = {
            "device": like.device,
            "dtype": torch.promote_types(like.dtype, torch.float32),
        }
        domain = Domain.line(keys, causal=self.causal, **options).replace(
            valid=self.valid, pairs=self.pairs
        )
        if self.causal and queries != keys:
            raise ConversionError(
                f"causal attention of {queries} queries over {keys} keys needs a mask of pairs"
            )
        return domain.quadrature(None if queries == keys else Domain.line(queries, **options))

    def real(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Queries that are no padding, where they are the same tokens as the keys."""
        return self.valid if query.shape[2] == key.shape[2] else None

    def bias(self, queries: int, keys: int, like: Tensor) -> Tensor | None:
        """The same as an additive mask of a softmax, (B | 1, H | 1, Nq, Nk), or None."""
        seen = self.quadrature(queries, keys, like).visible()
        if seen is None:
            return None
        bias = torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill(
            ~seen, -torch.inf
        )
        if self.pairs is not None and self.pairs.dtype != torch.bool:
            bias = bias + self.pairs.to(like.dtype)
        return bias


class Heads(nn.Module):
    """What takes softmax's place on given heads: the modes, groups of keys, padding; a subclass
    says how it responds.

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
        self.heads, self.width = heads, width
        self.mode = "linear"
        self.noted = Noted()

    @property
    def loss(self) -> Tensor | None:
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
        if self.training and self.mode in ("linear", "distil"):
            self.observe(query, key, seen, scale)
        if self.mode == "linear":
            return self._respond(
                query, clean(key, seen.valid), clean(value, seen.valid), seen, scale
            )
        by_group = value
        key, value = (self.share(x) for x in (key, value))
        if self.mode == "calibrate":
            self.calibrate(query, key, seen, scale, clean(by_group, seen.valid))
        if self.mode in ("softmax", "calibrate"):
            return softmax_attention(query, key, value, seen, scale, dropout)
        weights = self.teacher_weights(query, key, seen, scale)
        by_group = clean(by_group, seen.valid)
        ours = self.student_weights(query, key, seen, scale, by_group)
        real = seen.real(query, key)
        if self.mode == "measure":
            self.noted.measure(exact_divergence(weights, ours, real))
        else:
            visible = seen.quadrature(query.shape[2], key.shape[2], query).visible()
            self.noted.add(divergence(weights, ours, real, visible))
        return weights.to(value.dtype) @ value

    def weights(
        self,
        query: Float[Tensor, "b h q e"],
        key: Float[Tensor, "b g k e"],
        seen: Seen,
        *,
        scale: float | None = None,
        value: Float[Tensor, "b g k d"] | None = None,
    ) -> Float[Tensor, "b h q k"]:
        """The share of each value in what a query receives, dense, rows of sum one: O(N²). In the
        modes of the teacher softmax's.

        Args:
            value: (B, G, Nk, d), of a layer with a store, which is chosen by them.
        """
        self.check(query, key)
        scale, key = self.factor(scale), self.share(clean(key, seen.valid))
        if self.mode != "linear":
            weights = self.teacher_weights(query, key, seen, scale)
        else:
            value = None if value is None else clean(value, seen.valid)
            weights = self.student_weights(query, key, seen, scale, value)
        return weights.expand(-1, -1, query.shape[2], -1)

    def observe(self, query: Tensor, key: Tensor, seen: Seen, scale: float) -> None:
        """Take note of the points of a call in training: running statistics; nothing here."""

    def calibrate(
        self, query: Tensor, key: Tensor, seen: Seen, scale: float, value: Tensor | None = None
    ) -> None:
        """Set what follows from data without a gradient; nothing here."""

    def student_weights(
        self, query: Tensor, key: Tensor, seen: Seen, scale: float, value: Tensor | None = None
    ) -> Float[Tensor, "b h q k"]:
        """What a query gives each key, dense, rows of sum one: O(N²). A store needs the values."""
        raise NotImplementedError(f"{type(self).__name__} must define student_weights")

    def _respond(
        self, query: Tensor, key: Tensor, value: Tensor, seen: Seen, scale: float
    ) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define _respond")

    @staticmethod
    def teacher_weights(
        query: Tensor, key: Tensor, seen: Seen, scale: float
    ) -> Float[Tensor, "b h q k"]:
        """Return the weights of softmax attention, softmax(scale · Q Kᵀ + bias), in float32.

        The bias is that of ``seen``. Keys have one head per head of queries, see :meth:`share`. The
        row of a query that sees no key is zero. Dense: O(N²).
        """
        scores = (query.float() @ key.float().mT) * scale
        bias = seen.bias(query.shape[2], key.shape[2], scores)
        if bias is None:
            return scores.softmax(-1)

        # The softmax of a row of -∞ is NaN, and so is its gradient. Such rows are replaced before
        # it, which keeps the gradient finite, and again after it, where their weights become 0.
        sees_a_key = (bias > -torch.inf).any(-1, keepdim=True)
        finite_scores = torch.where(sees_a_key, scores + bias, 0.0)
        return torch.where(sees_a_key, finite_scores.softmax(-1), 0.0)

    def check(self, query: Tensor, key: Tensor) -> None:
        """ConversionError for queries that the maps are not for, and keys that form no groups."""
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
        """What multiplies the products of queries and keys; one over the root of the width by
        default.
        """
        return float(self.width**-0.5 if scale is None else scale)

    def share(self, x: Tensor) -> Tensor:
        """Keys or values of fewer heads than queries, each repeated for its group."""
        if x.shape[1] == self.heads:
            return x
        return x.repeat_interleave(self.heads // x.shape[1], 1)


class LinearHeads(Heads):
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
        check_decay(decay, store)
        if not floor > 0:
            raise OptionError(f"the denominator's floor must be positive, got {floor}")
        options = {**CONVERSION_OPTIONS.get(feature_map, {}), **(options or {})}
        if options.get("cap") == "batch":
            raise OptionError(
                'cap="batch" is a statistic of a call, which counts padding; use cap="running"'
            )
        self.name = feature_map
        self.feature_map = build_feature_map(feature_map, width, heads, **options)
        self.key_map = None if tied else build_feature_map(feature_map, width, heads, **options)
        self.floor = floor_of(floor, self.feature_map, self.key_map)
        self.watch = DenominatorWatch.of(self.feature_map, self.key_map)
        check_window(window, self.feature_map, floor, sinks)
        check_store(store, window, self.feature_map, self.key_map)
        self.window, self.sinks, self.store = window, sinks, store
        gain = None
        if window is not None:
            gain = first_gain(self.feature_map, self._key_map, width, heads)
        self.gain = None if gain is None else nn.Parameter(gain)
        self.decay = None
        if decay is not None:
            self.decay = GroupDecay(groups or heads, width, decay)

    @property
    def _key_map(self) -> Any:
        return self.feature_map if self.key_map is None else self.key_map

    def query_features(self, query: Tensor, scale: float) -> Tensor:
        """φ(q) up to a factor of each query, which the denominator takes away, in
        float32 at least.
        """
        return query_features(self.feature_map, self._scaled(query, scale))

    def key_features(
        self, key: Tensor, scale: float, valid: Tensor | None = None, least: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """ψ(k) over a common e^c, and c, see :func:`fredholm.integral.key_features`."""
        return key_features(self._key_map, self._scaled(key, scale), valid, least)

    def far(
        self,
        query: Tensor,
        scale: float,
        value: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Far:
        """What queries see before the window.

        Args:
            query: (B, H, n, e).
            scale: the softmax's factor.
            value, valid: of the same tokens, (B, G, n, d), and which are no padding: where the
                past fades, by how much it does as each of them comes.
        """

        def keys(
            x: Tensor, valid: Tensor | None, least: Tensor | None
        ) -> tuple[Tensor, Tensor | None]:
            x = self.share(x) if is_per_head(self._key_map) else x
            return self.key_features(x, scale, valid, least)

        assert self.gain is not None
        parts = query_parts(self.feature_map, self._scaled(query, scale), self.gain)
        decay = None if value is None else self.exponents(value, valid)
        return Far(*parts, keys, decay)

    def exponents(self, value: Tensor, valid: Tensor | None) -> Tensor | None:
        """By how much the state fades as each token comes, (B, G, n); None without a decay."""
        return None if self.decay is None else self.decay.exponents(value, valid)

    def _fading(self, value: Tensor | None, seen: Seen, queries: int) -> Tensor | None:
        """What is left of each key for each query, (B, H, Nq, Nk); None without a decay.

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
        valid = seen.valid
        if seen.pairs is not None:
            valid = padding_of(seen.pairs, value.shape[2]).expand(len(value), -1)
        return fading_of(self.decay.exponents(value, valid), self.heads, queries)

    def observe(self, query: Tensor, key: Tensor, seen: Seen, scale: float) -> None:
        """Show queries and keys that are no padding to their maps."""
        for one, x, real in (
            (self.feature_map, query, seen.real(query, key)),
            (self._key_map, self.share(clean(key, seen.valid)), seen.valid),
        ):
            if isinstance(one, FeatureMap) and one.observes and one.training:
                one.observe(self._scaled(x, scale), real)
        if self.watch is not None:
            self.watch.observe(lambda: self._denominators(query, key, seen, scale))

    def _denominators(self, query: Tensor, key: Tensor, seen: Seen, scale: float) -> Tensor:
        shared = self.share(clean(key, seen.valid))
        quadrature = seen.quadrature(query.shape[2], key.shape[2], query)
        features = self.key_features(shared, scale)[0]
        return denominators(self.query_features(query, scale), features, quadrature)

    @torch.no_grad()
    def quieten(self) -> None:
        """Lower the gain beside a window to a thousandth of its weight.

        Maps that have learned nothing point nowhere: at softmax's weight their state drowns what
        the window, the sinks and kept groups find. :meth:`calibrate` gives it the weight back.
        """
        if self.gain is not None:
            self.gain -= QUIET

    @torch.no_grad()
    def silence(self) -> None:
        """Lower the gain beside a window until nothing of the state is left."""
        if self.gain is not None:
            self.gain.fill_(SILENT)

    @torch.no_grad()
    def calibrate(
        self, query: Tensor, key: Tensor, seen: Seen, scale: float, value: Tensor | None = None
    ) -> None:
        r"""Of a window the gain of each head: that with which the sum over the points before the
        window is softmax's, in the geometric mean over queries,
        :math:`g = \operatorname{mean}_i \log \sum_j e^{s q_i\cdot k_j} - \log \sum_j
        \phi(q_i)\cdot\psi(k_j)`. O(N²).
        """
        if self.window is None or self.gain is None:
            return
        quadrature, far = (
            seen.quadrature(query.shape[2], key.shape[2], query),
            self.far(query, scale),
        )
        features, shift = far.keys(key, seen.valid, None)
        sees = quadrature.visible()
        near = self._softmax_pairs(sees, features, value, seen, query.shape[2])
        before = ~near if sees is None else sees & ~near
        scores = (query.float() @ key.float().mT) * scale
        ours = torch.where(before, far.query.float() @ features.float().mT, 0.0).sum(-1)
        theirs = scores.masked_fill(~before, -torch.inf).logsumexp(-1)
        missing = theirs - ours.log()
        for exponent in (far.exponent, None if shift is None else shift[..., None]):
            missing = missing if exponent is None else missing - exponent.float()
        real = missing.isfinite()
        mean = torch.where(real, missing, 0.0).sum((0, 2)) / real.sum((0, 2)).clamp(min=1)
        self.gain += mean.to(self.gain.dtype)

    def _scaled(self, x: Tensor, scale: float) -> Tensor:
        factor = (scale * self.width**0.5) ** 0.5
        return x * factor if abs(factor - 1.0) > 1e-6 else x

    def student_weights(
        self, query: Tensor, key: Tensor, seen: Seen, scale: float, value: Tensor | None = None
    ) -> Float[Tensor, "b h q k"]:
        """What a query gives each key, dense: O(N²)."""
        quadrature = seen.quadrature(query.shape[2], key.shape[2], query)
        if self.window is not None:
            weights, far = quadrature.weights(), self.far(query, scale)
            features = far.keys(key, seen.valid, None)
            near = self._softmax_pairs(
                quadrature.visible(), features[0], value, seen, query.shape[2]
            )
            dtype = torch.promote_types(query.dtype, torch.float32)
            scores = (query.to(dtype) @ key.to(dtype).mT) * scale
            fading = self._fading(value, seen, query.shape[2])
            return window_density(scores, far[:2], features, weights, near, fading) * weights
        left = self.query_features(query, scale)
        right, shift = self.key_features(key, scale, seen.valid)
        weights = quadrature.weights()
        fading = self._fading(value, seen, query.shape[2])
        if fading is not None:
            weights = weights * fading.to(weights.dtype)
        if shift is not None:
            size = right.detach().amax(-1)[:, :, None]
            if fading is not None:
                size = size * fading.detach()
            left = at_scale(left, torch.where(weights > 0, size, 0.0).amax(-1))
        return linear_density(left, right, weights, self.floor) * weights

    def _softmax_pairs(
        self,
        sees: Tensor | None,
        features: Tensor,
        value: Tensor | None,
        seen: Seen,
        queries: int,
    ) -> Tensor:
        """The pairs that softmax weighs: of the window, the sinks and the store, by the definition.

        Args:
            sees: pairs that are visible, or None for all.
            features: ψ, (B, S, Nk, r).
            value: (B, G, Nk, d).
            queries: Nq.
        """
        assert self.window is not None
        near = near_pairs(sees, self.window, features.shape[2], features.device, self.sinks)
        if not self.store:
            return near
        if value is None:
            raise ConversionError(
                f"expected values beside store={self.store}, which is chosen by them, got none; "
                "give value=..."
            )
        n = value.shape[2]
        visible = torch.ones(len(value), n, dtype=torch.bool, device=value.device)
        if seen.valid is not None:
            visible = seen.valid
        elif seen.pairs is not None:
            visible = padding_of(seen.pairs, n).expand(len(value), -1)
        sizes = {"window": self.window, "sinks": self.sinks, "store": self.store}
        stored = stored_naive(features, value, visible, **sizes)[:, :, n - queries :]
        return near | stored.repeat_interleave(self.heads // value.shape[1], 1)

    def _respond(
        self, query: Tensor, key: Tensor, value: Tensor, seen: Seen, scale: float
    ) -> Tensor:
        ordered = self.window is not None or self.decay is not None
        single = ordered and not seen.causal  # a step over keys in a cache
        pairs = seen.pairs is not None or single
        if self.window is not None and not pairs:
            return self.in_window(query, key, value, seen.valid, scale, {})[0]
        by_group = value
        key, value = self.share(key), self.share(value)
        if pairs:
            weights = self.student_weights(query, key, seen, scale, by_group)
            return weights.to(value.dtype) @ value
        sizes = query.shape[2], key.shape[2]
        quadrature = seen.quadrature(*sizes, query)
        pointwise = all(
            is_pointwise(one) for one in (self.feature_map, self.key_map) if one is not None
        )
        if seen.causal or not pointwise or not wants_pieces(query, max(sizes), PIECE):
            left = self.query_features(query, scale)
            right, shift = self.key_features(key, scale, seen.valid)
            exponents = self.exponents(by_group, seen.valid)
            if exponents is not None:
                exponents = exponents.repeat_interleave(self.heads // exponents.shape[1], 1)
                quadrature = replace(quadrature, decay=exponents)
            if seen.causal and shift is not None:
                left = at_scale(left, largest_seen(right.detach().amax(-1), exponents))
            return linear_attention(left, right, value, quadrature, floor=self.floor).to(
                value.dtype
            )

        def keys(part: slice, least: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
            valid = None if seen.valid is None else seen.valid[:, part]
            features, shift = self.key_features(key[:, :, part], scale, valid, least)
            return features, value[:, :, part], shift

        def queries(part: slice) -> Tensor:
            return self.query_features(query[:, :, part], scale)

        options = {"floor": self.floor, "piece": PIECE}
        return attend_in_pieces(keys, queries, sizes, quadrature, **options).to(value.dtype)

    def in_window(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        valid: Tensor | None,
        scale: float,
        memory: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The next tokens of a layer with a window, and the memory after them; keys and values of
        the model's own heads, zero at padding.
        """
        assert self.window is not None
        if self.store and torch.compiler.is_exporting():
            raise ConversionError(
                f"expected a layer without a store in an exported program, got store={self.store}: "
                "which tokens it holds depends on their values; convert with store=0"
            )
        outs, n = [], query.shape[2]
        for part in stretches(query, n):
            q, k, v = (x[:, :, part] for x in (query, key, value))
            mass = q.new_ones(1, q.shape[2]) if valid is None else valid[:, part].to(q.dtype)
            real = None if valid is None else valid[:, part]
            points, far = (q * scale, k, v, mass), self.far(q, scale, v, real)
            options = {"window": self.window, "sinks": self.sinks, "store": self.store}
            out, memory = advance_window(*points, far, memory, **options, valid=real)
            outs.append(out.to(value.dtype))
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2), memory

    def extra_repr(self) -> str:
        shape = f"heads={self.heads}, width={self.width}"
        window = "" if self.window is None else f", window={self.window}"
        window += f", sinks={self.sinks}" if self.sinks else ""
        window += f", store={self.store}" if self.store else ""
        window += "" if self.decay is None else ", decay"
        return f"{shape}, feature_map={self.name}, tied={self.key_map is None}{window}"


def check_store(store: int, window: int | None, *feature_maps: Any) -> None:
    """Check the size of a store.

    Raises:
        OptionError: no number of keys; a store without a window, or beside features of a key that
            depend on other keys.
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
    """n tokens in causal order in parts of :data:`STRETCH`, in inference on a processor."""
    if not wants_pieces(like, n, STRETCH):
        return [slice(0, n)]
    return [slice(start, min(start + STRETCH, n)) for start in range(0, n, STRETCH)]


def clean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Zero at padding, which may hold anything."""
    return (
        x
        if valid is None
        else torch.where(
            valid[:, None, :, None], x, torch.zeros((), dtype=x.dtype, device=x.device)
        )
    )


def softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, seen: Seen, scale: float, dropout: float = 0.0
) -> Tensor:
    """The teacher's response, by torch's fused attention."""
    plain = seen.causal and seen.valid is None and seen.pairs is None
    bias = None if plain else seen.bias(query.shape[2], key.shape[2], query)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, dropout_p=dropout, is_causal=plain, scale=scale
    )
