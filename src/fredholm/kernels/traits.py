"""Traits: the fast forms a kernel may have. Strategies ask for these and never for a kernel's
class.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from .base import Layout, Point, Problem


class HiddenReadout(Protocol):
    r"""The last layer is linear: :math:`K = \sum_k h_k(x, y)\,R_k + R_0`, so hidden units can be
    integrated first.
    """

    def hidden(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        """h at broadcast pairs, (B, H, Nq, Nk, w)."""
        ...

    def readout(self) -> tuple[Tensor, Tensor | None]:
        """R (H, d_out, d_in, w) and R_0 (H, d_out, d_in) or None."""
        ...


class SplitHidden(HiddenReadout, Protocol):
    """The first layer splits into a query term, a key term, a product and a displacement term:
    nothing wide per pair.

    The dictionaries hold the arguments of :func:`fredholm.ops.mlp_kernel.mlp_kernel` of the same
    names.
    """

    def key_terms(self, y: Tensor, uy: Tensor, *, columns: bool) -> dict[str, Tensor]:
        """What belongs to keys, points on dimension -2; ``columns``: the displacement term as
        appended columns.
        """
        ...

    def query_terms(self, x: Tensor, ux: Tensor, *, columns: bool) -> dict[str, Any]:
        """What belongs to queries and to the layer itself."""
        ...

    def table(self, displacements: Tensor) -> Tensor | None:
        """Displacement term at given displacements (D, p), as (1 | H, w, D), or None where there is
        no such term.
        """
        ...


class WeightedValue(Protocol):
    r"""A scalar weight times a value map: :math:`K_h = \alpha_h(x, y; u)\,V_h`."""

    def weights(self, problem: Problem) -> Tensor:
        """α, densities (B, H, Nq, Nk)."""
        ...

    def value_map(self) -> Tensor:
        """V, (H, d_out, d_in)."""
        ...


class SoftmaxScores(WeightedValue, Protocol):
    """The weight is a softmax of inner products, which fused attention evaluates."""

    def queries(self, x: Tensor, ux: Tensor) -> Tensor:
        """Scaled queries (B, H, Nq, e)."""
        ...

    def keys(self, y: Tensor, uy: Tensor) -> Tensor:
        """Keys (B, H, Nk, e)."""
        ...

    def values(self, y: Tensor, uy: Tensor) -> Tensor:
        """Values (B, H, Nk, d_out), without the part that :meth:`Kernel.offset` adds."""
        ...


class JointScores(SoftmaxScores, Protocol):
    """Where queries and keys are the same points, one matrix product may give everything."""

    def project(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What ``queries``, ``keys`` and ``values`` give, together."""
        ...


class Separable(Protocol):
    r"""The weight is an inner product of features, so the integral needs one moment of the keys:

    .. math:: r(x) = \phi(x)^T \int \psi(y)\,v(y)^T\,d\mu(y) \;\Big/\; \phi(x)^T \int \psi(y)\,d\mu(y)

    Attributes:
        floor: the smallest denominator (see :func:`fredholm.ops.linear_attention.guarded`), or None
            for no denominator at all.
    """

    floor: float | None

    def query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        """φ, (B, H, Nq, r)."""
        ...

    def key_features(self, y: Tensor, uy: Tensor) -> Tensor:
        """ψ, (B, H, Nk, r)."""
        ...

    def values(self, y: Tensor, uy: Tensor) -> Tensor:
        """v, (B, H, Nk, c), without the part that :meth:`Kernel.offset` adds; c = d_out unless the
        kernel is ``Expanded``.
        """
        ...


class Stabilised(Separable, Protocol):
    """Features up to factors that the denominator takes away, so that exponentials neither overflow
    nor all vanish.

    Attributes:
        pointwise: the features of a point are a function of that point alone, so that they may be
            made in pieces.
    """

    pointwise: bool

    def stable_query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        """φ up to a factor of each query, (B, H, Nq, r)."""
        ...

    def stable_key_features(
        self, y: Tensor, uy: Tensor, valid: Tensor | None = None, least: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """ψ divided by e^c, and c of each sample and head, (B, H), no smaller than ``least``; None
        where nothing was divided.
        """
        ...


class Banked(Separable, Protocol):
    """The features are a bank of scalar networks at projections, which a GPU evaluates where they
    are used and does not keep.
    """

    def banked(self, problem: Problem) -> dict[str, Any] | None:
        """Scalars, banks and rules of :func:`fredholm.ops.linear_attention.banked_attention`; None
        where more acts on the features.
        """
        ...


class Expanded(Separable, Protocol):
    r"""A matrix at the query acts on the integral: :math:`\Phi(x)\,r(x)`. A matrix-valued kernel of
    low rank,
    :math:`K = \Phi(x)\,\Psi(y)^T`, has features 1 and values :math:`\Psi(y)^T u(y)`.
    """

    def expand(self, x: Tensor, ux: Tensor, response: Tensor) -> Tensor:
        """(B, H, Nq, c) to (B, H, Nq, d_out)."""
        ...


class Pooled(Expanded, Protocol):
    """Both factors' last layers are linear, so that where all queries see all keys their hidden
    units are integrated first.
    """

    def pooled(self, problem: Problem) -> Tensor:
        """∫ K u dμ, (B, H, Nq, d_out)."""
        ...


class GraphDiffusion(WeightedValue, Protocol):
    """The weight is an affinity of inner products over one norm of the whole graph: a product that
    may be applied again.
    """

    def tokens(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, H, N, ·) each."""
        ...

    def rules(self) -> dict[str, Any]:
        """The options of :class:`fredholm.ops.infsa.TokenGraph`: decay, activation, norm, eps."""
        ...

    def gain(self) -> Tensor:
        """Factor of the response, (H,)."""
        ...


class OwnForm(Protocol):
    """The kernel evaluates its whole response, offset included, faster than any generic form: a
    stencil, a recurrence.
    """

    def evaluates(self, layout: Layout) -> bool:
        """Whether the own form serves these static facts; where it does not, the definition is
        used.
        """
        ...

    def evaluate(self, problem: Problem) -> Tensor:
        """∫ K u dμ + offset, (B, H, Nq, d_out)."""
        ...


class LagTaps(Protocol):
    r"""The kernel depends on the lag alone, :math:`K(t, s) = \kappa(t - s)`, and lags are whole
    steps.

    Attributes:
        skips_padding: lags count real points only, so that padding is no point; otherwise time goes
            on at padding.
    """

    skips_padding: bool

    def regular(self, layout: Layout) -> bool:
        """Whether lags are whole steps on such a domain, causal and without pairs."""
        ...

    def taps(self, problem: Problem) -> Tensor:
        """κ at lags 0 to N - 1, (H, N, d_out, d_in)."""
        ...


class LagFeatures(HiddenReadout, Protocol):
    """The hidden units depend on the displacement alone, so that on a regular grid they are
    convolved by FFT.
    """

    def lag_features(self, displacements: Tensor) -> Tensor:
        """h at displacements (L, p), (L, w)."""
        ...


class StateScan(Protocol):
    """The response to a whole sequence through the states of a linear recurrence."""

    def scans(self, layout: Layout) -> bool:
        """Whether the scan serves these static facts."""
        ...

    def scan(self, problem: Problem) -> Tensor:
        """∫ K u dμ + offset, (B, H, Nq, d_out)."""
        ...


class CausalTransition(Protocol):
    """A causal response with a state of fixed size. Tensors of the state have the batch on
    dimension 0.
    """

    def start(self, u: Tensor) -> dict[str, Tensor]:
        """The state before the first point, for features like ``u`` (B, H, d_in)."""
        ...

    def advance(self, point: Point, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Response at the next point, offset included, (B, H, d_out), and the state after it."""
        ...


def has_trait(kernel: object, trait: type) -> bool:
    """Whether the kernel's class has every method of a trait.

    ``isinstance`` asks the same of a runtime protocol, but not in a way that torch.compile can
    trace.
    """
    return all(hasattr(type(kernel), name) for name in TRAITS[trait])


def _members(trait: type) -> tuple[str, ...]:
    bodies = (
        vars(c) for c in trait.__mro__ if c not in (Protocol, object) and c.__module__ == __name__
    )
    return tuple(sorted({name for body in bodies for name in body if not name.startswith("_")}))


TRAIT_TYPES = (
    HiddenReadout,
    SplitHidden,
    WeightedValue,
    SoftmaxScores,
    JointScores,
    Separable,
    Banked,
    Stabilised,
    Expanded,
    Pooled,
    GraphDiffusion,
    OwnForm,
    LagTaps,
    LagFeatures,
    StateScan,
    CausalTransition,
)
TRAITS = {trait: _members(trait) for trait in TRAIT_TYPES}
