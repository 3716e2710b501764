r"""Constraints as terms, :math:`-\partial I_S(u)`: hard ones are projections, soft ones the penalty
of Moreau and Yosida.
"""

from __future__ import annotations

from math import exp
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....domain import Domain
from ....errors import OptionError
from .term import EXPLICIT, SubstepError, Term, mix


class Constraint(Term):
    r"""The term :math:`-\partial I_S(u)` of a set S, or its penalty.

    .. math:: -\nabla\,\tfrac{1}{2\mu}\mathrm{dist}(u, S)^2 = -(u - P_S u)/\mu

    Hard (``penalty=None``): :math:`v - u \in \partial I_S(u)` says that u is the projection of v on
    S, whatever the time step. Soft: with :math:`\lambda = h/\mu`, the implicit substep is the
    resolvent :math:`(v + \lambda P_S v)/(1 + \lambda)` and the exact one
    :math:`P_S v + e^{-\lambda}(v - P_S v)`, because v moves straight towards its projection, which
    stays where it is.

    The printed sign, :math:`+\partial I_S`, would push away from S: a penalty of that sign
    diverges.

    Args:
        dim: width of u, or None where any width will do.
        penalty: μ of the soft constraint, smaller is stiffer; None for the hard one.
        substep: as for ``Term``.

    Raises:
        OptionError: a penalty that is not positive.
        SubstepError: an explicit substep of a hard constraint.
    """

    serves: ClassVar[tuple[str, ...]] = ("implicit", "exact", *EXPLICIT)
    automatic: ClassVar[tuple[str, str]] = ("implicit", "exact")

    def __init__(
        self,
        dim: int | None,
        penalty: float | None,
        substep: str,
    ):
        if penalty is not None and not penalty > 0:
            raise OptionError(
                "expected a positive penalty μ (smaller is stiffer), or None for a hard set, got "
                f"{penalty}"
            )
        # Set before ``super().__init__``, whose check of the substep reads it.
        self.penalty = penalty
        super().__init__(dim, substep)

    def check(self, substep: str) -> str:
        if self.penalty is None and substep in EXPLICIT:
            why = "a hard constraint has no rate, its subdifferential is a set"
            raise SubstepError(
                f"{type(self).__name__} cannot serve substep={substep!r}: {why}; use implicit, or "
                "a penalty=..."
            )
        return super().check(substep)

    def project(self, u: Tensor) -> Tensor:
        """Return P_S u, the nearest point of S."""
        raise NotImplementedError(f"{type(self).__name__} must define project(u)")

    def distance(self, u: Tensor) -> Tensor:
        r"""Return the root mean square of :math:`u - P_S u` over features and points."""
        difference = u - self.project(u)
        return difference.square().mean().sqrt()

    def rate(self, u: Tensor, domain: Domain) -> Tensor:
        if self.penalty is None:
            # Raises, since a hard constraint has no rate.
            self.check("euler")
        assert self.penalty is not None
        return (self.project(u) - u) / self.penalty

    def implicit(
        self,
        u: Tensor,
        domain: Domain,
        h: float,
    ) -> Tensor:
        # (v + λ P v) / (1 + λ) with λ = h / μ: the share of P v is λ / (1 + λ).
        projected = self.project(u)
        if self.penalty is None:
            return projected
        share = h / (self.penalty + h)
        return mix(u, projected, share)

    def exact(
        self,
        u: Tensor,
        domain: Domain,
        h: float,
    ) -> Tensor:
        # P v + exp(-λ) (v - P v) with λ = h / μ: the share of P v is 1 - exp(-λ).
        projected = self.project(u)
        if self.penalty is None:
            return projected
        share = 1.0 - exp(-h / self.penalty)
        return mix(u, projected, share)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, penalty={self.penalty}"


class MomentErrors(NamedTuple):
    """Distances of each point's features from a mean and a standard deviation, (B, N).

    Attributes:
        mean, variance: absolute errors of the two moments.
        distance: distance to the functions with these moments, in the L² norm of the features.
    """

    mean: Tensor
    variance: Tensor
    distance: Tensor

    @classmethod
    def of(
        cls,
        u: Tensor,
        mean: Tensor | float,
        std: Tensor | float,
    ) -> MomentErrors:
        """Return the errors of features (B, N, D)."""
        alpha = u.mean(-1)
        beta = u.var(-1, correction=0)
        of_mean = alpha - mean
        of_deviation = beta.sqrt() - std
        return cls(
            mean=of_mean.abs(),
            variance=(beta - std**2).abs(),
            distance=(of_mean.square() + of_deviation.square()).sqrt(),
        )


class Moments(NamedTuple):
    """σ1 and σ2: numbers, learned numbers, or vectors."""

    mean: Tensor | float
    std: Tensor | float


class MomentConstraint(Constraint):
    r"""The set S1 of functions with mean σ1 and standard deviation σ2 over the features: layer
    normalisation is its projection,

    .. math::
        P(v)(x, y) = \sigma_2 \frac{v(x, y) - \alpha(x)}{\sqrt{\beta(x) + \varepsilon}} + \sigma_1,

    with α, β the mean and variance of v(x, ·). It is the exact projection for ε = 0; ε > 0 keeps it
    smooth where v is constant. (All of S1 is equally near to a constant; for ε = 0 it is sent to
    σ1.)

    Args:
        dim: width of u.
        affine: ``"vector"``: weight σ2(y) and bias σ1(y), as in a layer normalisation (then no
            projection, but one followed by a map of the features); ``"scalar"``: two learned
            numbers; ``"none"``: the numbers given.
        mean, std: σ1 and σ2, or where they start.
        bias: whether σ1 is learned as well; a vector-affine constraint without it has σ1 = 0.
        eps: ε.
        penalty: μ of the soft constraint; None for the hard one. Needs scalar moments.

    Reference: continuous transformer, Theorem 3.1 and Eq. 17, 21.

    Example:
        >>> constraint = MomentConstraint(4, affine="none", mean=1.0, eps=0.0)
        >>> constraint.project(torch.tensor([[[1.0, 1.0, 5.0, 5.0]]])).tolist()
        [[[0.0, 0.0, 2.0, 2.0]]]
    """

    def __init__(
        self,
        dim: int,
        *,
        affine: str = "vector",
        mean: float = 0.0,
        std: float = 1.0,
        bias: bool = True,
        eps: float = 1e-5,
        penalty: float | None = None,
        substep: str = "auto",
    ):
        super().__init__(dim, penalty, substep)
        if affine not in ("vector", "scalar", "none"):
            raise OptionError(f"expected affine='vector', 'scalar' or 'none', got {affine!r}")
        if affine == "vector" and penalty is not None:
            raise OptionError(
                "expected affine='scalar' or 'none' beside a penalty, got 'vector', which defines "
                "no set of functions"
            )
        if affine != "vector" and not std > 0:
            raise OptionError(f"expected a positive standard deviation, got std={std}")
        if not eps >= 0:
            raise OptionError(f"expected an ε of 0 or more, got eps={eps}")
        self.affine = affine
        self.eps = eps
        self.mean = mean
        self.std = std
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        shape: tuple[int, ...] = ()
        if affine == "vector":
            shape = (dim,)
        if affine != "none":
            start = torch.full(shape, float(std))
            self.weight = nn.Parameter(start)
        if affine != "none" and bias:
            start = torch.full(shape, float(mean))
            self.bias = nn.Parameter(start)

    def standardise(self, u: Tensor) -> Tensor:
        """Return u with mean 0 and variance 1 over the features, but for ε: before the affine
        map.
        """
        if self.eps > 0:
            return F.layer_norm(u, u.shape[-1:], eps=self.eps)
        centred = u - u.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)

        # A constant function has variance 0, and stays 0 instead of 0 / 0.
        variance = torch.where(variance > 0, variance, 1.0)
        return centred * variance.rsqrt()

    def moments(self) -> Moments:
        """Return σ1 and σ2. A vector-affine constraint without a bias has σ1 = 0."""
        if self.weight is None:
            return Moments(self.mean, self.std)
        if self.bias is not None:
            return Moments(self.bias, self.weight)
        if self.affine == "scalar":
            return Moments(self.mean, self.weight)
        return Moments(0.0, self.weight)

    def project(self, u: Tensor) -> Tensor:
        # The usual layer normalisation is one fused operation.
        if self.affine == "vector" and self.eps > 0:
            return F.layer_norm(
                u,
                u.shape[-1:],
                self.weight,
                self.bias,
                self.eps,
            )
        mean, std = self.moments()
        return self.standardise(u) * std + mean

    def distance(self, u: Tensor) -> Tensor:
        r"""Return the distance of :math:`u` to the functions of mean σ1 and standard deviation σ2,
        a mean over points, in the L² norm of the features.

        With vector moments, which define no set, to those of mean 0 and standard deviation 1.
        """
        moments = self.moments()
        if self.affine == "vector":
            moments = Moments(0.0, 1.0)
        errors = MomentErrors.of(u, *moments)
        return errors.distance.mean()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, affine={self.affine!r}, eps={self.eps}"


class PositivityConstraint(Constraint):
    """The set S2 of non-negative functions: the rectifier is its projection.

    Reference: continuous transformer, Eq. 31, 32.

    Example:
        >>> PositivityConstraint().project(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """

    def __init__(
        self,
        dim: int | None = None,
        *,
        penalty: float | None = None,
        substep: str = "auto",
    ):
        super().__init__(dim, penalty, substep)

    def project(self, u: Tensor) -> Tensor:
        return F.relu(u)
