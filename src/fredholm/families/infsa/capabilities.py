"""Capabilities of kernels that InfSA's forms, and the pages that explain them, ask for."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

from torch import Tensor

from ...integral.capabilities import Capability, WeightedValue, capability


class QueryKeyValue(NamedTuple):
    """Queries, keys and values of a set of tokens, (B, H, N, ·) each."""

    query: Tensor
    key: Tensor
    value: Tensor


@capability
class TokenGraphWeights(WeightedValue):
    """The weights are the edges of a token graph, activated inner products over one norm of the
    graph: one hop, which may be taken again.
    """

    @abstractmethod
    def tokens(self, u: Tensor) -> QueryKeyValue:
        """Return queries, keys and values of features (B, 1, N, dim)."""

    @abstractmethod
    def rules(self) -> dict[str, Any]:
        """Return the options of :class:`fredholm.families.infsa.graph.TokenGraph`: decay,
        activation, norm, eps.
        """

    @abstractmethod
    def gain(self) -> Tensor | None:
        """Return the factor of the response, (H,), or None where there is none."""


class DecayingWeights(Capability):
    """The weights hold a decay below one for every step, so that a walk by them ends by itself."""

    @abstractmethod
    def decay(self) -> Tensor:
        """Return γ in (0, 1) of each head, (H,), that the weights hold."""

    def gain(self) -> Tensor | None:
        """Return a factor of the weights per head beside one γ, (H,), or None."""
        return None


class CentredWeights(WeightedValue):
    """The weights are a key's likeness to a centre of all queries, a few steps towards the leading
    eigenvector of the token graph of queries and keys: with one centre the same for every query,
    with several a mixture by query.

    Attributes:
        activation: φ of the graph's edges.
        centres: how many centres a head has.
    """

    activation: str
    centres: int

    @abstractmethod
    def tokens(self, u: Tensor) -> QueryKeyValue:
        """Return queries, keys and values of features (B, 1, N, dim)."""
