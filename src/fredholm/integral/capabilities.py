"""Capabilities: what a kernel can do beside its definition, each of which allows a faster form.

Stateless abstract classes to inherit beside the definition,
``class Mine(WeightedKernel, Separable)``. Forms look for them by ``isinstance``, and never
for a kernel's class. A form that needs a capability names it as the type of its kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from torch import Tensor

from .problem import Layout, Point, Problem

if TYPE_CHECKING:
    # A capability stands beside a kernel's definition, so whoever has it is a kernel.
    from .contract import Kernel as Capability
else:
    Capability = ABC

Kind = TypeVar("Kind", bound=type)

CAPABILITIES: list[type] = []
"""The capabilities that a form looks for."""


def capability(kind: Kind) -> Kind:
    """Note a class as a capability that a form looks for; see :func:`lacking`."""
    CAPABILITIES.append(kind)
    return kind


@capability
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


@capability
class WeightedValue(Capability):
    r"""A scalar weight times a value map: :math:`K_h = \alpha_h(x, y; u)\,V_h`."""

    @abstractmethod
    def weights(self, problem: Problem) -> Tensor:
        """α, densities (B, H, Nq, Nk)."""

    @abstractmethod
    def value_map(self) -> Tensor:
        """V, (H, d_out, d_in)."""


@capability
class SoftmaxScores(WeightedValue):
    """The weight is a softmax of inner products, which fused attention evaluates.

    Attributes:
        factor: what the inner products of :meth:`project` are still to be multiplied with.
    """

    factor: float = 1.0

    @abstractmethod
    def queries(self, x: Tensor, ux: Tensor) -> Tensor:
        """Scaled queries (B, H, Nq, e)."""

    @abstractmethod
    def keys(self, y: Tensor, uy: Tensor) -> Tensor:
        """Keys (B, H, Nk, e)."""

    @abstractmethod
    def values(self, y: Tensor, uy: Tensor) -> Tensor:
        """Values (B, H, Nk, d_out), without the part that :meth:`Kernel.offset` adds."""

    def project(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the same points, which one matrix product may give.

        The queries may lack ``factor``.
        """
        return self.queries(x, u), self.keys(x, u), self.values(x, u)


class JointFeatures(NamedTuple):
    """What :meth:`Separable.together` gives.

    Attributes:
        query: φ up to a factor of each query, (B, H, N, r).
        key: ψ divided by e^shift, (B, H, N, r).
        shift: the exponent, (B, H), or None where nothing was divided.
        value: (B, H, N, c).
    """

    query: Tensor
    key: Tensor
    shift: Tensor | None
    value: Tensor


@capability
class Separable(Capability):
    r"""The weight is an inner product of features, so the integral needs one moment of the keys:

    .. math:: r(x) = \phi(x)^T \int \psi(y)\,v(y)^T\,d\mu(y)
        \;\Big/\; \phi(x)^T \int \psi(y)\,d\mu(y)

    Attributes:
        floor: the smallest denominator (see :func:`fredholm.ops.linear_attention.guarded`), or None
            for no denominator at all.
        nonnegative: no feature of either end is ever negative.
        pointwise: the features of a point are a function of that point alone, so that they may be
            made in pieces.
    """

    floor: float | None
    nonnegative: bool = False
    pointwise: bool = True

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

    # Exponential features overflow, or all vanish. Where there is a denominator, features may come
    # up to factors that it takes away.

    def stable_query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        """φ up to a factor of each query, (B, H, Nq, r)."""
        return self.query_features(x, ux)

    def stable_key_features(
        self, y: Tensor, uy: Tensor, valid: Tensor | None = None, least: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """ψ divided by e^c, and c of each sample and head, (B, H), no smaller than ``least``; None
        where nothing was divided.
        """
        return self.key_features(y, uy), None

    def together(
        self, x: Tensor, u: Tensor, valid: Tensor | None = None, least: Tensor | None = None
    ) -> JointFeatures:
        """The features and values of points that are both queries and keys, which one matrix
        product may give.
        """
        key, shift = self.stable_key_features(x, u, valid, least)
        return JointFeatures(self.stable_query_features(x, u), key, shift, self.values(x, u))


@capability
class Windowed(Separable):
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
        """ψ of :meth:`near_keys` over e^c, and c, see :meth:`Separable.stable_key_features`."""


@capability
class Expanded(Separable):
    r"""A matrix at the query acts on the integral: :math:`\Phi(x)\,r(x)`. A matrix-valued kernel of
    low rank,
    :math:`K = \Phi(x)\,\Psi(y)^T`, has features 1 and values :math:`\Psi(y)^T u(y)`.
    """

    @abstractmethod
    def expand(self, x: Tensor, ux: Tensor, response: Tensor) -> Tensor:
        """(B, H, Nq, c) to (B, H, Nq, d_out)."""


@capability
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


@capability
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


@capability
class StateScan(Capability):
    """The response to a whole sequence through the states of a linear recurrence."""

    @abstractmethod
    def scans(self, layout: Layout) -> bool:
        """Whether the scan is defined for these static facts."""

    @abstractmethod
    def scan(self, problem: Problem) -> Tensor:
        """∫ K u dμ + offset, (B, H, Nq, d_out)."""


@capability
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
