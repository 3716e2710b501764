"""InfSA on queries, keys and values that a model has made: one hop on a graph of its tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConversionError, OptionError, suggest
from ..families.infsa.centres import Tokens, centre_weights, rows_of_centres, shared_centres
from ..families.infsa.graph import TokenGraph, activated, sum_of_hops
from ..ops.backend import full_precision
from ..quadrature import Quadrature
from .heads import Heads
from .seen import Seen

GRAPHS = ("infsa", "linear_infsa")
OPTIONS = ("decay", "activation", "norm", "steps")

# Smallest sum of a row's weights.
EPS = 1e-6


class GraphHeads(Heads):
    r"""One hop on a token graph, :math:`\gamma_h \hat A_h V_h`, or its linear
    form; γ of each head is learned.

    The weights of a row do not sum to one, and γ is all there is to learn, so that nothing is
    distilled: the model adapts when it is tuned.

    Args:
        heads, width: see :class:`fredholm.linearization.heads.LinearHeads`.
        name: ``"infsa"`` or ``"linear_infsa"``.
        options: ``decay``, where γ starts (0.95), ``activation``, of the first ``norm``, of the
            second ``steps``.

    Cost: ``"infsa"`` O(N²) time, O(N) memory; ``"linear_infsa"`` O(N), in causal order O(N²) time.

    Raises:
        ConversionError: queries that are not the keys' tokens: a graph has one set of them.
        OptionError: an unknown option.

    Reference: InfSA, Eqs. 9-12 and 16-21.

    Example:
        >>> x = torch.randn(2, 4, 5, 8)
        >>> GraphHeads(4, 8, "linear_infsa")(x, x, x, Seen()).shape
        torch.Size([2, 4, 5, 8])
    """

    def __init__(
        self,
        heads: int,
        width: int,
        name: str,
        options: dict[str, Any] | None = None,
    ):
        super().__init__(heads, width)
        options = dict(options or {})
        for key in options:
            if key not in OPTIONS:
                raise OptionError(f"{name} has no option {key!r}{suggest(key, OPTIONS)}")
        decay = float(options.pop("decay", 0.95))
        if not 0.0 < decay < 1.0:
            raise OptionError(f"decay is γ in (0, 1), got {decay}")
        self.name = name
        self.options = options
        # γ is the sigmoid of what is learned.
        logit = math.log(decay / (1 - decay))
        self.decay_logit = nn.Parameter(torch.full((heads,), logit))

    def student_weights(
        self,
        query: Tensor,
        key: Tensor,
        seen: Seen,
        scale: float,
        value: Tensor | None = None,
    ) -> Tensor:
        quadrature = self._quadrature(query, key, seen)
        weights = quadrature.weights()
        if self.name == "linear_infsa":
            tokens = self._tokens(query, key)
            raw = centre_weights(tokens, query.float(), weights)
        else:
            activation = self.options.get("activation", "relu")
            raw = activated(query.float() @ key.float().mT, activation)
        raw = raw * weights
        return raw / raw.sum(-1, keepdim=True).clamp(min=EPS)

    def _respond(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seen: Seen,
        scale: float,
    ) -> Tensor:
        key = self.share(key)
        value = self.share(value)
        quadrature = self._quadrature(query, key, seen)
        decay = torch.sigmoid(self.decay_logit)
        with full_precision(query):
            if self.name == "infsa":
                graph = TokenGraph.of(query, key, quadrature, decay, **self.options)
                hop = sum_of_hops(graph, value.to(graph.query.dtype), 1)
                return hop.to(value.dtype)

            tokens = self._tokens(query, key)
            wide = value.float()
            if quadrature.query_time is None and quadrature.density is None:
                # Without order and pairs all queries share one response, (B, H, 1, d).
                weights, _ = shared_centres(tokens, quadrature.mass)
                shared = weights[:, :, 0:1] @ wide
                out = shared.expand(-1, -1, query.shape[2], -1)
            else:
                out = rows_of_centres(tokens, wide, quadrature)
            scaled = out * decay[:, None, None]
            return scaled.to(value.dtype)

    def _tokens(self, query: Tensor, key: Tensor) -> Tokens:
        query = query.float()
        key = key.float()
        # Norms of the queries, (B, H, 1, N).
        lengths = torch.linalg.vector_norm(query, dim=-1)
        options = {}
        for name in ("activation", "steps"):
            if name in self.options:
                options[name] = self.options[name]
        return Tokens(query, key, lengths[:, :, None], eps=EPS, **options)

    def _quadrature(self, query: Tensor, key: Tensor, seen: Seen) -> Quadrature:
        """Return the weights of the sum over tokens, which are queries and keys alike."""
        queries = query.shape[2]
        keys = key.shape[2]
        if queries != keys:
            raise ConversionError(
                f"{self.name} lets one set of tokens act on itself; {queries} queries over {keys} "
                "keys (cross attention, or a step of a decoder with a cache: pass "
                "use_cache=False) are not defined"
            )
        return seen.quadrature(queries, keys, query)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, width={self.width}, name={self.name}, {self.options}"


def graph_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of InfSA's kernels with a γ that is learned, from the start that it has in
    :class:`GraphHeads`.
    """
    return {"decay": 0.95, "tied": False, **options, "learned_decay": True}
