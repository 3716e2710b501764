"""Capabilities: abilities of a kernel beside its definition, each of which allows a faster form.

They are stateless abstract classes to inherit beside the definition,
``class Mine(WeightedKernel, Separable)``. Forms look for them by ``isinstance``, and never
for a kernel's class. A form that needs a capability names it as the type of its kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from torch import Tensor

from ..ops.linear_attention import JointFeatures
from ..quadrature import Quadrature
from .facts import Layout
from .problem import Problem
from .steps import Point

if TYPE_CHECKING:
    # A capability stands beside a kernel's definition, so whoever has it is a kernel.
    from .contract import Kernel as Capability
else:
    Capability = ABC

Kind = TypeVar("Kind", bound=type)

CAPABILITIES: list[type] = []
"""The capabilities that a form looks for, in the order of their definition."""


def capability(kind: Kind) -> Kind:
    """Register a class as a capability that a form looks for; see :func:`lacking`."""
    CAPABILITIES.append(kind)
    return kind


@capability
class HiddenReadout(Capability):
    r"""The last layer is linear: :math:`K = \sum_k h_k(x, y)\,R_k + R_0`, so hidden units can be
    integrated first.
    """

    @abstractmethod
    def hidden(
        self,
        x: Tensor,
        y: Tensor,
        ux: Tensor,
        uy: Tensor,
    ) -> Tensor:
        """Return h at broadcast pairs, (B, H, Nq, Nk, w)."""

    @abstractmethod
    def readout(self) -> tuple[Tensor, Tensor | None]:
        """Return R (H, d_out, d_in, w), and R_0 (H, d_out, d_in) or None."""


@capability
class WeightedValue(Capability):
    r"""A scalar weight times a value map: :math:`K_h = \alpha_h(x, y; u)\,V_h`."""

    @abstractmethod
    def weights(self, problem: Problem) -> Tensor:
        """Return α, densities (B, H, Nq, Nk)."""

    @abstractmethod
    def value_map(self) -> Tensor:
        """Return V, (H, d_out, d_in)."""


@capability
class SoftmaxScores(WeightedValue):
    """The weight is a softmax of inner products, which fused attention evaluates.

    Attributes:
        factor: the factor of the scores that the queries of :meth:`project` lack.
    """

    factor: float = 1.0

    @abstractmethod
    def queries(self, x: Tensor, ux: Tensor) -> Tensor:
        """Return scaled queries, (B, H, Nq, e)."""

    @abstractmethod
    def keys(self, y: Tensor, uy: Tensor) -> Tensor:
        """Return keys, (B, H, Nk, e)."""

    @abstractmethod
    def values(self, y: Tensor, uy: Tensor) -> Tensor:
        """Return values, (B, H, Nk, d_out), without the part that :meth:`Kernel.offset` adds."""

    def project(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of the same points, possibly by one matrix product.

        The queries may lack ``factor``, which fused attention applies to the scores.
        """
        return self.queries(x, u), self.keys(x, u), self.values(x, u)


@capability
class Separable(Capability):
    r"""The weight is an inner product of features, so the integral needs one moment of the keys:

    .. math:: r(x) = \phi(x)^T \int \psi(y)\,v(y)^T\,d\mu(y)
        \;\Big/\; \phi(x)^T \int \psi(y)\,d\mu(y)

    Attributes:
        floor: the smallest denominator (see :func:`fredholm.ops.linear_attention.guarded`), or None
            for no denominator at all.
        nonnegative: no feature of either end is ever negative.
        pointwise: the features of a point depend on that point alone, so that they can be computed
            in pieces.
    """

    floor: float | None
    nonnegative: bool = False
    pointwise: bool = True

    @abstractmethod
    def query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        """Return φ, (B, H, Nq, r)."""

    @abstractmethod
    def key_features(self, y: Tensor, uy: Tensor) -> Tensor:
        """Return ψ, (B, H, Nk, r)."""

    @abstractmethod
    def values(self, y: Tensor, uy: Tensor) -> Tensor:
        """Return v, (B, H, Nk, c), without the part that :meth:`Kernel.offset` adds; c = d_out
        unless the kernel is ``Expanded``.
        """

    # Exponential features overflow in float32 at exponents above 88, and all vanish below -104.
    # Where there is a denominator, features may come up to factors that cancel in the quotient.

    def stable_query_features(self, x: Tensor, ux: Tensor) -> Tensor:
        """Return φ up to a factor of each query, (B, H, Nq, r)."""
        return self.query_features(x, ux)

    def stable_key_features(
        self,
        y: Tensor,
        uy: Tensor,
        valid: Tensor | None = None,
        least: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return ψ divided by e^c, and c of each sample and head, (B, H), no smaller than
        ``least``; None where nothing was divided.

        Args:
            y, uy: positions and features of the keys.
            valid: keys that are not padding, or None where all are real.
            least: c of the keys before, where keys come in parts.
        """
        return self.key_features(y, uy), None

    def together(
        self,
        x: Tensor,
        u: Tensor,
        valid: Tensor | None = None,
        least: Tensor | None = None,
    ) -> JointFeatures:
        """Return features and values of points that are both queries and keys, possibly by one
        matrix product. Arguments as of :meth:`stable_key_features`.
        """
        query = self.stable_query_features(x, u)
        key, shift = self.stable_key_features(x, u, valid, least)
        return JointFeatures(query, key, shift, self.values(x, u))


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
        """Return queries with softmax's scale in them, (B, H, Nq, e)."""

    @abstractmethod
    def near_keys(self, y: Tensor, uy: Tensor) -> Tensor:
        """Return keys, (B, H, Nk, e)."""

    @abstractmethod
    def far_queries(self, x: Tensor, ux: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return φ over e^a, and a (B, H, Nq), or None where nothing was divided.

        Their inner products with ψ stand beside softmax's exponentials, in the same unit.
        """

    @abstractmethod
    def far_keys(
        self,
        keys: Tensor,
        valid: Tensor | None = None,
        least: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return ψ of :meth:`near_keys` over e^c, and c; see
        :meth:`Separable.stable_key_features`.
        """


@capability
class Decaying(Separable):
    r"""The past of an order fades: a density :math:`e^{-\int\lambda}` of the measure between a key
    and a query.

    Attributes:
        fades: whether this kernel has a decay; without one it is a :class:`Separable` as others.
    """

    fades: bool

    @abstractmethod
    def rates(self, y: Tensor, uy: Tensor) -> Tensor:
        """Return λ ≥ 0 at keys, (1 | B, H, Nk); called only where the kernel fades."""


def measure_of(kernel: object, problem: Problem) -> Quadrature:
    """Return the quadrature of a problem, with the kernel's decay where it has one."""
    if isinstance(kernel, Decaying) and kernel.fades:
        return problem.quadrature.decayed(kernel.rates(problem.y, problem.uy))
    return problem.quadrature


@capability
class Expanded(Separable):
    r"""A matrix at the query acts on the integral: :math:`\Phi(x)\,r(x)`.

    A matrix-valued kernel of low rank, :math:`K = \Phi(x)\,\Psi(y)^T`, has features 1 and values
    :math:`\Psi(y)^T u(y)`.
    """

    @abstractmethod
    def expand(self, x: Tensor, ux: Tensor, response: Tensor) -> Tensor:
        """Map a response (B, H, Nq, c) to (B, H, Nq, d_out)."""


@capability
class OwnForm(Capability):
    """The kernel evaluates its complete response, offset included, faster than any generic form: a
    stencil, a recurrence.
    """

    @abstractmethod
    def evaluates(self, layout: Layout) -> bool:
        """Whether :meth:`evaluate` is defined for these static facts; otherwise the definition is
        used.
        """

    @abstractmethod
    def evaluate(self, problem: Problem) -> Tensor:
        """Return ∫ K u dμ + offset, (B, H, Nq, d_out)."""


@capability
class LagTaps(Capability):
    r"""The kernel depends on the lag alone, :math:`K(t, s) = \kappa(t - s)`, and lags are integers.

    Attributes:
        skips_padding: lags count real points only; otherwise time advances at padding too.
    """

    skips_padding: bool

    @abstractmethod
    def regular(self, layout: Layout) -> bool:
        """Whether lags are integers on such a domain, which is causal and has no pairs."""

    @abstractmethod
    def taps(self, problem: Problem) -> Tensor:
        """Return κ at lags 0 to N - 1, (H, N, d_out, d_in)."""


@capability
class StateScan(Capability):
    """The response to all points of a sequence through the states of a linear recurrence."""

    @abstractmethod
    def scans(self, layout: Layout) -> bool:
        """Whether the scan is defined for these static facts."""

    @abstractmethod
    def scan(self, problem: Problem) -> Tensor:
        """Return ∫ K u dμ + offset, (B, H, Nq, d_out)."""


@capability
class CausalTransition(Capability):
    """A causal response with a state of fixed size, in O(1) time per point.

    Tensors of the state have the batch on dimension 0.

    Attributes:
        counts_padding: padding advances the state, as a point without mass and features; otherwise
            it is not a point, and the state stays as it was.
    """

    counts_padding: bool = False

    @abstractmethod
    def start(self, u: Tensor) -> dict[str, Tensor]:
        """Return the state before the first point, for features like ``u`` (B, H, d_in)."""

    @abstractmethod
    def advance(
        self,
        point: Point,
        memory: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the response at the next point, offset included, (B, H, d_out), and the state
        after it.
        """


class MissingBase(NamedTuple):
    """A capability that a class defines without inheriting it.

    Attributes:
        capability: the abstract class.
        methods: its methods, all of which the class defines.
    """

    capability: type
    methods: list[str]


def lacking(kind: type) -> MissingBase | None:
    """Return the first capability whose every method a class defines without inheriting it, so that
    its faster form would never be taken; None where there is none.

    The two capabilities that belong to a definition are the definition's to check.
    """
    for capability in CAPABILITIES:
        if capability in (HiddenReadout, WeightedValue) or issubclass(kind, capability):
            continue
        methods = sorted(capability.__abstractmethods__)  # type: ignore[attr-defined]
        if all(hasattr(kind, name) for name in methods):
            return MissingBase(capability, methods)
    return None
