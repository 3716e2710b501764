r"""Decay: a learned density of the measure, by which the past of an order fades.

Where it enters. A kernel on an order integrates against μ; with a decay it integrates against

.. math:: d\mu_x(y) = e^{-(\Lambda(x) - \Lambda(y))}\,d\mu(y), \qquad
    \Lambda(t) = \int^t \lambda\,ds \approx \sum_{t_j \le t} \lambda_j\,\Delta t_j,

- *definition*: the weights of all pairs times :math:`e^{-(\Lambda_i - \Lambda_j)}`
  (:meth:`fredholm.quadrature.Quadrature.fading`);
- *chunks*: :mod:`fredholm.ops.linear_attention.decayed`, where only ratios of at most 1 occur;
- *step*: the moment of the points before times :math:`e^{-\lambda_t\,\Delta t}`, then the new key
  with its full mass;
- *shards*: a rank's moment reaches a later rank times the decays of all ranks between;
- *gradients*: those of the same operations, of any order.

Λ itself is never an exponent: only differences over points in between are.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import DomainError, OptionError, suggest
from ..ops.backend import at_least_single, cast, full_precision
from .facts import Layout

DECAYS = ("head", "token")

HALF_LIFE = 700.0
"""Points, or units of time on a clock, after which half is left before anything is learned."""


class Decay(nn.Module):
    r"""The rates λ ≥ 0 at which the past fades, one per head and, as an option, per point:

    .. math:: \lambda_h = e^{a_h} \qquad\text{or}\qquad
        \lambda_h(t) = e^{a_h}\,\mathrm{softplus}(w_h\cdot u(t) + b_h).

    A point's gate is :math:`e^{-\lambda\,\Delta t}`. With a = 0 the second is the gate
    :math:`\sigma(-w_h\cdot u - b_h)` of gated linear attention; with :math:`e^{a} = A` it is that
    of Mamba-2.

    Args:
        dim: width of u.
        heads: H.
        gate: ``"head"`` or ``"token"``.
        half_life: points, or units of time on a clock, after which half of a point's weight is
            left, where training begins.

    Raises:
        OptionError: an unknown gate, or a half-life that is not positive.

    Example:
        >>> rates = Decay(8, 2, half_life=1.0).rates(torch.zeros(1, 3, 8))
        >>> (-rates).exp()[0, 0].tolist()
        [0.5, 0.5, 0.5]
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        gate: str = "head",
        half_life: float = HALF_LIFE,
    ):
        super().__init__()
        if gate not in DECAYS:
            raise OptionError(
                f"decay: expected 'head', 'token' or None, got {gate!r}{suggest(str(gate), DECAYS)}"
            )
        if not 0 < half_life < math.inf:
            raise OptionError(
                f"half_life: expected a positive number of points, got {half_life}; leave it out "
                f"for {HALF_LIFE:.0f}"
            )
        self.half_life = half_life
        self.log_rate = nn.Parameter(torch.empty(heads))
        self.weight, self.bias = None, None
        if gate == "token":
            self.weight = nn.Parameter(torch.empty(heads, dim))
            self.bias = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set every rate to ln 2 over the half-life, whatever u is."""
        rate = math.log(2) / self.half_life
        if self.weight is None or self.bias is None:
            self.log_rate.fill_(math.log(rate))
            return
        self.log_rate.zero_()
        self.weight.zero_()
        # The inverse of softplus; exact for rates of any size.
        self.bias.fill_(rate + math.log(-math.expm1(-rate)))

    def rates(self, u: Float[Tensor, "b n d"]) -> Float[Tensor, "#b h n"]:
        """Return λ at each point, in float32 or better."""
        dtype = at_least_single(u.dtype)
        with full_precision(u):
            rate = cast(self.log_rate, dtype).exp()[:, None]
            if self.weight is None or self.bias is None:
                return rate.expand(1, -1, u.shape[1])
            raw = cast(self.weight, dtype) @ cast(u, dtype).mT + cast(self.bias, dtype)[:, None]
            return rate * nn.functional.softplus(raw)

    def extra_repr(self) -> str:
        return f"heads={self.log_rate.shape[0]}, half_life={self.half_life}"


def read_decay(
    dim: int,
    heads: int,
    decay: str | None,
    half_life: float | None,
) -> Decay | None:
    """Return the decay that a kernel's options ask for, or None.

    Raises:
        OptionError: see :class:`Decay`; a half-life without a decay.
    """
    if decay is None:
        if half_life is not None:
            raise OptionError(
                f"half_life: expected decay='head' or 'token' beside it, got {half_life} with "
                "decay=None; give decay, or leave half_life out"
            )
        return None
    if half_life is None:
        half_life = HALF_LIFE
    return Decay(dim, heads, gate=decay, half_life=half_life)


def check_order(name: str, layout: Layout) -> None:
    """Refuse domains on which a decay means nothing.

    Args:
        name: of the kernel, for messages.
        layout: of the domain.

    Raises:
        DomainError: a domain without order; queries at other points than the domain's own.
    """
    if not layout.causal:
        raise DomainError(
            f"{name}: expected a causal domain beside decay, got one without order; build it with "
            "causal=True, or leave decay out"
        )
    if layout.sharded and layout.edges:
        raise DomainError(
            f"{name}: expected edges in one process beside decay, got edges in shards; the decay "
            "between two points is that of all points between them, which no rank has: leave the "
            "domain whole, or leave decay out"
        )
    if layout.cross:
        raise DomainError(
            f"{name}: expected queries at the domain's own points beside decay, got a "
            "query_domain; leave it out, or leave decay out"
        )
