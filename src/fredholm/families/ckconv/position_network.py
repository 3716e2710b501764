"""A small network of positions whose last hidden layer a kernel reads: sine networks and what they
are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import OptionError, suggest
from ...integral import FourierFeatures, prepared
from ...integral.fourier import check_dimension
from ...ops.backend import (
    SUMMED,
    at_least_single,
    cast,
    full_precision,
    promoted,
    unrecorded,
    unrounded,
)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "silu": F.silu,
    "gelu": F.gelu,
}
PRESETS = ("paper", "released")


class WeightNormLinear(nn.Module):
    r"""A linear layer with weight :math:`W_i = g_i\,v_i / |v_i|`, one magnitude and one direction
    per output.

    torch's parametrisation cannot be pickled; this is the same function as a module of two
    parameters.

    Reference: Salimans and Kingma 2016.

    Example:
        >>> layer = WeightNormLinear(3, 2)
        >>> layer.set_weight(torch.eye(2, 3))
        >>> layer.weight.tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    parts: ClassVar[Mapping[str, bool]] = {"direction": False, "magnitude": True}

    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.direction = nn.Parameter(torch.empty(d_out, d_in))
        self.magnitude = nn.Parameter(torch.empty(d_out))
        self.bias = nn.Parameter(torch.empty(d_out))
        self.draw()

    @torch.no_grad()
    def draw(self) -> None:
        """Torch's default weight and no bias. Whoever owns the layer draws it, and may go on from
        there: a ``reset_parameters`` would be called after the owner's, and undo it.
        """
        nn.init.kaiming_uniform_(self.direction, a=5**0.5)
        self.set_weight(self.direction.detach())
        self.bias.zero_()

    @property
    def weight(self) -> Tensor:
        """W (out, in)."""
        if self.direction.dtype in SUMMED and unrecorded():
            norm = torch._weight_norm  # pyright: ignore[reportPrivateImportUsage]
            return norm(self.direction, self.magnitude[:, None])
        length = torch.linalg.vector_norm(self.direction, dim=-1)
        return self.direction * (self.magnitude / length)[:, None]

    def dropped(self, rate: float) -> dict[str, Tensor]:
        """Direction and magnitude of a weight without a share ``rate`` of its entries, the others
        divided by 1 - rate.
        """
        kept = torch.rand_like(self.direction) >= rate
        direction = torch.where(kept, self.direction, 0.0)
        none = ~kept.any(-1)
        share = direction.norm(dim=-1) / self.direction.norm(dim=-1) / (1 - rate)
        return {
            # A row of which nothing is left keeps a direction, at no magnitude.
            "direction": torch.where(none[:, None], self.direction, direction),
            "magnitude": torch.where(none, 0.0, self.magnitude * share),
        }

    @torch.no_grad()
    def set_weight(self, weight: Tensor) -> None:
        """Choose magnitude and direction so that the effective weight is this one."""
        self.direction.copy_(weight)
        self.magnitude.copy_(weight.norm(dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        weight = prepared(self, "weight", lambda: self.weight)
        return F.linear(x, cast(weight, x.dtype), cast(self.bias, x.dtype))


class PositionNetwork(nn.Module):
    r"""Hidden features of a position,
    :math:`h(z) = \sigma(W_L \cdots \sigma(W_1 z + b_1) \cdots + b_L)`, weight normalised.

    Args:
        position_dim: p.
        width: w, units of every hidden layer.
        depth: L, hidden layers.
        activation: ``"sine"``, :math:`\sin(\omega_0 (W z + b))`; or ``relu``, ``leaky_relu``,
            ``silu``, ``gelu``, each after a layer norm; or ``"rff"``: random Fourier features, then
            GELU layers.
        omega: ω0 of the sine layers, and in cycles per unit the scale of random Fourier features.
        learned_omega: make ω0 a parameter.
        knots: ``"uniform"`` spreads the bends of piecewise activations over [-1, 1]; ``"zero"``
            leaves the biases at zero.
        preset: ``"paper"``: weights by Sitzmann's rule, :math:`U(\pm 1/p)` first and
            :math:`U(\pm\sqrt{6/w}/\omega_0)` after, biases
            :math:`U(\pm\pi/|W_i|)`; ``"released"``: what the authors' code has in effect, torch's
            default weights for every ω0 and biases U(-1, 1).

    Shape: (..., p) to (..., w), in float32 at least; so are its parameters, whatever a model is
    cast to.

    Raises:
        OptionError: an unknown name or a non-positive size.
        ShapeError: positions of another dimension.

    Reference: CKConv §4.2, App. B; Sitzmann et al. 2020.

    Example:
        >>> PositionNetwork(2, width=16)(torch.zeros(5, 2)).shape
        torch.Size([5, 16])
    """

    keeps_single = True

    def __init__(
        self,
        position_dim: int = 1,
        *,
        width: int = 32,
        depth: int = 2,
        activation: str = "sine",
        omega: float = 30.0,
        learned_omega: bool = False,
        knots: str = "uniform",
        preset: str = "paper",
    ):
        super().__init__()
        _check(position_dim, width, depth, activation, omega, knots, preset)
        if learned_omega and activation != "sine":
            raise OptionError(
                f"learned_omega: activation={activation!r} has no ω0 to learn; needs "
                "activation='sine', or leave it out"
            )
        self.position_dim, self.width = position_dim, width
        self.activation, self.preset, self.knots = activation, preset, knots
        self.first_omega = float(omega)  # where a learned ω0 begins
        waves = max(1, width // 2)
        self.fourier = FourierFeatures(position_dim, waves, omega) if activation == "rff" else None
        first = position_dim if self.fourier is None else 2 * waves
        self.layers: Any = nn.ModuleList(
            WeightNormLinear(first if i == 0 else width, width) for i in range(depth)
        )
        normed = activation not in ("sine", "rff")
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth)) if normed else None
        self.omega: Tensor | None
        dtype = at_least_single(torch.get_default_dtype())
        value = torch.tensor(float(omega), dtype=dtype) if activation == "sine" else None
        if learned_omega and value is not None:
            self.omega = nn.Parameter(value)
        else:
            self.register_buffer("omega", value)
        self._by_preset()
        if torch.get_default_dtype() not in SUMMED:
            self.float()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """``.to(bfloat16)`` leaves a phase's parameters in float32: rounded, they are noise."""
        return super()._apply(unrounded(fn), recurse)

    @torch.no_grad()
    def draw(self) -> None:
        """All values anew, in the order in which a network is built."""
        for layer in self.layers:
            layer.draw()
        norm: Any
        for norm in self.norms or ():
            norm.reset_parameters()
        if self.fourier is not None:
            self.fourier.reset_parameters()
        if self.omega is not None:
            self.omega.fill_(self.first_omega)
        self._by_preset()

    def _by_preset(self) -> None:
        """What the layers' own weights and biases become by activation, preset and knots."""
        if self.activation == "sine":
            self._reset_sine(self.first_omega)
        elif self.activation != "rff" and self.knots == "uniform":
            self._spread_knots()

    @torch.no_grad()
    def _reset_sine(self, omega: float) -> None:
        for i, layer in enumerate(self.layers):
            if self.preset == "released":
                layer.bias.uniform_(-1.0, 1.0)
                continue
            fan = layer.direction.shape[1]
            bound = 1.0 / fan if i == 0 else math.sqrt(6.0 / fan) / omega
            layer.set_weight(torch.empty_like(layer.direction).uniform_(-bound, bound))
            layer.bias.copy_(
                torch.empty_like(layer.bias).uniform_(-math.pi, math.pi) / layer.magnitude
            )

    @torch.no_grad()
    def _spread_knots(self) -> None:
        """One bend per unit, at a position drawn uniformly for it: b = -W h(z)."""
        for i, layer in enumerate(self.layers):
            z = torch.empty(self.width, self.position_dim, device=layer.bias.device)
            z.uniform_(-1.0, 1.0)
            h = self._run(z, i)
            layer.bias.copy_(-(layer.weight * h).sum(-1))

    def forward(self, z: Tensor) -> Tensor:
        check_dimension(z, self.position_dim, "this network was built")
        return self._run(z, len(self.layers))

    def _run(self, z: Tensor, depth: int) -> Tensor:
        """The first ``depth`` layers, in float32 or better whatever the parameters are: a bfloat16
        phase is noise.
        """
        with full_precision(z):
            h = z if self.fourier is None else self.fourier(z)
            dtype = at_least_single(self.layers[0].bias.dtype)
            h = cast(h, promoted(h.dtype, dtype))
            values = unrecorded()
            for i in range(depth):
                h = self.layers[i](h)
                if self.omega is not None:
                    omega = cast(self.omega, h.dtype)
                    h = h.mul_(omega).sin_() if values else torch.sin(omega * h)
                elif self.norms is None:
                    h = F.gelu(h)
                else:
                    norm: Any = self.norms[i]
                    h = F.layer_norm(
                        h,
                        norm.normalized_shape,
                        norm.weight.to(h.dtype),
                        norm.bias.to(h.dtype),
                        norm.eps,
                    )
                    h = ACTIVATIONS[self.activation](h)
            return cast(h, dtype)

    def extra_repr(self) -> str:
        return (
            f"position_dim={self.position_dim}, width={self.width}, activation={self.activation!r}"
        )


def _check(position_dim, width, depth, activation, omega, knots, preset) -> None:
    for name, value in (("position_dim", position_dim), ("width", width), ("depth", depth)):
        if value < 1:
            raise OptionError(f"{name} must be at least 1, got {value}")
    if not omega > 0:
        raise OptionError(f"omega must be positive, got {omega}")
    for name, value, known in (
        ("activation", activation, ("sine", *ACTIVATIONS, "rff")),
        ("knots", knots, ("uniform", "zero")),
        ("preset", preset, PRESETS),
    ):
        if value not in known:
            raise OptionError(f"unknown {name} {value!r}{suggest(value, known)}")
