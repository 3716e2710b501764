"""Capabilities: what a kernel can do beside its definition, each of which allows a faster form.

Stateless abstract classes to inherit beside the definition,
``class Mine(WeightedKernel, Separable)``. Forms look for them by ``isinstance``, and never
for a kernel's class. A form that needs a capability names it as the type of its kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .problem import Layout, Point, Problem

if TYPE_CHECKING:
    # A capability stands beside a kernel's definition, so whoever has it is a kernel.
    from .contract import Kernel as Capability
else:
    Capability = ABC


class HiddenReadout(Capability):
    r"""The last layer is linear: :math:`K = \sum_k h_k(x, y)\,R_k + R_0`, so hidden units can be
    integrated first.
    """

    @abstractmethod
    def hidden(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        """h at broadcast pairs, (B, H, Nq, Nk, w)."""

    @abstractmethod
    def readout(self) -> tuple[Tensor, Tensor | None]:
        """R (H, d_out, d_in, w) and R_0 (H, d_out, d_in) or None."""


class SplitHidden(HiddenReadout):
    """The first layer splits into a query term, a key term, a product and a displacement term:
    nothing wide per pair.

    The dictionaries hold the arguments, by name, of
    :func:`fredholm.families.itnet.hidden_first.mlp_kernel`.
    """

    @abstractmethod
    def key_terms(self, y: Tensor, uy: Tensor, *, columns: bool) -> dict[str, Tensor]:
        """What belongs to keys, points on dimension -2; ``columns``: the displacement term as
        appended columns.
        """

    @abstractmethod
    def query_terms(self, x: Tensor, ux: Tensor, *, columns: bool) -> dict[str, Any]:
        """What belongs to queries and to the layer itself."""

    def both_terms(self, problem: Problem) -> dict[str, Any]:
        """Both ends' terms without columns of displacements; what they share may be made once."""
        p = problem
        terms: dict[str, Any] = dict(self.key_terms(p.y, p.uy, columns=False))
        return terms | self.query_terms(p.x, p.ux, columns=False)

    @abstractmethod
    def table(self, displacements: Tensor) -> Tensor | None:
        """Displacement term at given displacements (D, p), as (1 | H, w, D), or None where there is
        no such term.
        """


class WeightedValue(Capability):
    r"""A scalar weight times a value map: :math:`K_h = \alpha_h(x, y; u)\,V_h`."""

    @abstractmethod
    def weights(self, problem: Problem) -> Tensor:
        """α, densities (B, H, Nq, Nk)."""

    @abstractmethod
    def value_map(self) -> Tensor:
        """V, (H, d_out, d_in)."""


class SoftmaxScores(WeightedValue):
    """The weight is a softmax of inner products, which fused attention evaluates."""

    @abstractmethod
    def queries(self, x: Tensor, ux: Tensor) -> Tensor:
        """Scaled queries (B, H, Nq, e)."""

    @abstractmethod
    def keys(self, y: Tensor, uy: Tensor) -> Tensor:
        """Keys (B, H, Nk, e)."""

    @abstractmethod
    def values(self, y: Tensor, uy: Tensor) -> Tensor:
        """Values (B, H, Nk, d_out), without the part that :meth:`Kernel.offset` adds."""


class JointScores(SoftmaxScores):
    """Where queries and keys are the same points, one matrix product may give everything.

    Attributes:
        factor: what the inner products of ``project`` are still to be multiplied with, where its
            queries lack it.
    """

    factor: float = 1.0

    @abstractmethod
    def project(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What ``queries``, ``keys`` and ``values`` give, together."""


class Separable(Capability):
    r"""The weight is an inner product of features, so the integral needs one moment of the keys:

    .. math:: r(x) = \phi(x)^T \int \psi(y)\,v(y)^T\,d\mu(y)
        \;\Big/\; \phi(x)^T \int \psi(y)\,d\mu(y)

    Attributes:
        floor: the smallest denominator (see :func:`fredholm.ops.linear_attention.guarded`), or None
            for no denominator at all.
        nonnegative: no feature of either end is ever negative.
    """

    floor: float | None
    nonnegative: bool = False

    @abstractmethod
    def query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        """φ, (B, H, Nq, r)."""

    @abstractmethod
    def key_features(self, y: Tensor, uy: Tensor) -> Tensor:
        """ψ, (B, H, Nk, r)."""

    @abstractmethod
    def values(self, y: Tensor, uy: Tensor) -> Tensor:
        """v, (B, H, Nk, c), without the part that :meth:`Kernel.offset` adds; c = d_out unless the
        kernel is ``Expanded``.
        """


class Stabilised(Separable):
    """Features up to factors that the denominator takes away, so that exponentials neither overflow
    nor all vanish.

    Attributes:
        pointwise: the features of a point are a function of that point alone, so that they may be
            made in pieces.
    """

    pointwise: bool

    @abstractmethod
    def stable_query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        """φ up to a factor of each query, (B, H, Nq, r)."""

    @abstractmethod
    def stable_key_features(
        self, y: Tensor, uy: Tensor, valid: Tensor | None = None, least: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """ψ divided by e^c, and c of each sample and head, (B, H), no smaller than ``least``; None
        where nothing was divided.
        """


class JointFeatures(Stabilised):
    """Where queries and keys are the same points, one matrix product may give everything."""

    @abstractmethod
    def together(
        self, x: Tensor, u: Tensor, valid: Tensor | None = None, least: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """What ``stable_query_features``, ``stable_key_features`` (two) and ``values`` give."""


class Windowed(Stabilised):
    r"""Softmax's weight on the last points of an order, an inner product of features on all before,
    over one normaliser.

    Attributes:
        window: points back to which softmax sees, the query's own included; None for features
            alone.
        sinks: the first points of all, which softmax sees from everywhere.
    """

    window: int | None
    sinks: int = 0

    @abstractmethod
    def near_queries(self, x: Tensor, ux: Tensor) -> Tensor:
        """Queries (B, H, Nq, e), softmax's scale in them."""

    @abstractmethod
    def near_keys(self, y: Tensor, uy: Tensor) -> Tensor:
        """Keys (B, H, Nk, e)."""

    @abstractmethod
    def far_queries(self, x: Tensor, ux: Tensor) -> tuple[Tensor, Tensor | None]:
        """φ over e^a, and a (B, H, Nq), or None where nothing was divided; in the measure of
        softmax's exponentials.
        """

    @abstractmethod
    def far_keys(
        self, keys: Tensor, valid: Tensor | None = None, least: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """ψ of :meth:`near_keys` over e^c, and c, see :meth:`Stabilised.stable_key_features`."""


class Banked(Separable):
    """The features are a bank of scalar networks at projections, which a GPU evaluates where they
    are used and does not keep.
    """

    @abstractmethod
    def banked(self, problem: Problem) -> dict[str, Any] | None:
        """Scalars, banks and rules of :func:`fredholm.ops.linear_attention.banked_attention`; None
        where more acts on the features.
        """


class Expanded(Separable):
    r"""A matrix at the query acts on the integral: :math:`\Phi(x)\,r(x)`. A matrix-valued kernel of
    low rank,
    :math:`K = \Phi(x)\,\Psi(y)^T`, has features 1 and values :math:`\Psi(y)^T u(y)`.
    """

    @abstractmethod
    def expand(self, x: Tensor, ux: Tensor, response: Tensor) -> Tensor:
        """(B, H, Nq, c) to (B, H, Nq, d_out)."""


class Pooled(Expanded):
    """Both factors' last layers are linear, so that where all queries see all keys their hidden
    units are integrated first.
    """

    @abstractmethod
    def pooled(self, problem: Problem, total: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """∫ K u dμ, (B, H, Nq, d_out); of a part of a problem, with the moment of the whole, which
        ``total`` makes from that of the part.
        """


class TokenGraphWeights(WeightedValue):
    """The weights are the edges of a token graph, activated inner products over one norm of the
    graph: one hop, which may be taken again.
    """

    @abstractmethod
    def tokens(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, H, N, ·) each."""

    @abstractmethod
    def rules(self) -> dict[str, Any]:
        """The options of :class:`fredholm.families.infsa.graph.TokenGraph`: decay, activation,
        norm, eps.
        """

    @abstractmethod
    def gain(self) -> Tensor | None:
        """Factor of the response, (H,), or None where there is none."""


class DecayingWeights(Capability):
    """The weights hold a decay below one for every step, so that a walk by them ends by itself."""

    @abstractmethod
    def decay(self) -> Tensor:
        """γ in (0, 1) of each head, (H,), that the weights hold."""

    def gain(self) -> Tensor | None:
        """What the weights hold beside one γ, (H,); None where that is all."""
        return None


class CentredWeights(WeightedValue):
    """The weights are a key's likeness to a centre of all queries, the same for every query: a few
    steps towards the leading eigenvector of the token graph of queries and keys.

    Attributes:
        activation: of the graph's edges.
    """

    activation: str

    @abstractmethod
    def tokens(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, H, N, ·) each."""


class OwnForm(Capability):
    """The kernel evaluates its whole response, offset included, faster than any generic form: a
    stencil, a recurrence.
    """

    @abstractmethod
    def evaluates(self, layout: Layout) -> bool:
        """Whether :meth:`evaluate` is defined for these static facts; elsewhere the definition is
        used.
        """

    @abstractmethod
    def evaluate(self, problem: Problem) -> Tensor:
        """∫ K u dμ + offset, (B, H, Nq, d_out)."""


class LagTaps(Capability):
    r"""The kernel depends on the lag alone, :math:`K(t, s) = \kappa(t - s)`, and lags are whole
    steps.

    Attributes:
        skips_padding: lags count real points only, so that padding is not a point; otherwise time
            goes on at padding.
    """

    skips_padding: bool

    @abstractmethod
    def regular(self, layout: Layout) -> bool:
        """Whether lags are whole steps on such a domain, causal and without pairs."""

    @abstractmethod
    def taps(self, problem: Problem) -> Tensor:
        """κ at lags 0 to N - 1, (H, N, d_out, d_in)."""


class LagFeatures(HiddenReadout):
    """The hidden units depend on the displacement alone, so that on a regular grid they are
    convolved by FFT.
    """

    @abstractmethod
    def lag_features(self, displacements: Tensor) -> Tensor:
        """h at displacements (L, p), (L, w)."""


class StateScan(Capability):
    """The response to a whole sequence through the states of a linear recurrence."""

    @abstractmethod
    def scans(self, layout: Layout) -> bool:
        """Whether the scan is defined for these static facts."""

    @abstractmethod
    def scan(self, problem: Problem) -> Tensor:
        """∫ K u dμ + offset, (B, H, Nq, d_out)."""


class CausalTransition(Capability):
    """A causal response with a state of fixed size. Tensors of the state have the batch on
    dimension 0.

    Attributes:
        counts_padding: padding has a place of its own in the state, as a point without mass and
            features; otherwise it is not a point, and the state stays as it was.
    """

    counts_padding: bool = False

    @abstractmethod
    def start(self, u: Tensor) -> dict[str, Tensor]:
        """The state before the first point, for features like ``u`` (B, H, d_in)."""

    @abstractmethod
    def advance(self, point: Point, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Response at the next point, offset included, (B, H, d_out), and the state after it."""


# Those that a form needs; what only says more of the weights (`DecayingWeights`, `CentredWeights`)
# is missed by no form.
CAPABILITIES: tuple[type, ...] = (
    HiddenReadout,
    SplitHidden,
    WeightedValue,
    SoftmaxScores,
    JointScores,
    Separable,
    Banked,
    Stabilised,
    JointFeatures,
    Windowed,
    Expanded,
    Pooled,
    TokenGraphWeights,
    OwnForm,
    LagTaps,
    LagFeatures,
    StateScan,
    CausalTransition,
)


def has_trait(kernel: object, trait: type) -> bool:
    """Whether a kernel has a capability: ``isinstance(kernel, trait)``."""
    return isinstance(kernel, trait)


def lacking(kind: type) -> tuple[type, list[str]] | None:
    """A capability whose every method a class defines without inheriting it, and those methods: its
    faster form would never be taken. None where there is no such slip. The two that belong to a
    definition are the definition's to check.
    """
    for capability in CAPABILITIES:
        if capability in (HiddenReadout, WeightedValue):
            continue
        methods = sorted(capability.__abstractmethods__)  # type: ignore[attr-defined]
        if not issubclass(kind, capability) and all(hasattr(kind, name) for name in methods):
            return capability, methods
    return None
