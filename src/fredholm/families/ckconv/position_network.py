"""A small network of positions whose last hidden layer a kernel reads: sine networks and their
baselines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
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
    r"""A linear layer with weight :math:`W_i = g_i\,v_i / |v_i|`, one magnitude g and one direction
    v per output.

    torch's parametrisation of the same function cannot be pickled.

    Args:
        d_in, d_out: widths.

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
        """Draw torch's default weight, and set the bias to zero.

        The module that owns the layer calls this, and may change the values afterwards. It is not
        called ``reset_parameters``, because torch calls that of all modules, and would undo the
        owner's changes.
        """
        nn.init.kaiming_uniform_(self.direction, a=5**0.5)
        self.set_weight(self.direction.detach())
        self.bias.zero_()

    @property
    def weight(self) -> Tensor:
        """W, (d_out, d_in)."""
        # Where nothing is recorded, torch's fused function.
        if self.direction.dtype in SUMMED and unrecorded():
            norm = torch._weight_norm  # pyright: ignore[reportPrivateImportUsage]
            return norm(self.direction, self.magnitude[:, None])
        length = torch.linalg.vector_norm(self.direction, dim=-1)
        factor = self.magnitude / length
        return self.direction * factor[:, None]

    def dropped(self, rate: float) -> dict[str, Tensor]:
        """Return direction and magnitude, by parameter name, of the weight after dropout at
        ``rate``.

        Each entry of W is zeroed with probability ``rate``, and the remaining ones are divided by
        1 - rate. With v' the direction whose entries are zeroed, the new weight is
        g v' / (|v| (1 - rate)), so that its magnitude is g' = g |v'| / (|v| (1 - rate)).
        """
        kept = torch.rand_like(self.direction) >= rate
        direction = torch.where(kept, self.direction, 0.0)
        length = self.direction.norm(dim=-1)
        factor = direction.norm(dim=-1) / length / (1 - rate)

        # A row that loses every entry is zero through its magnitude alone. It keeps its direction,
        # because v' / |v'| would be 0 / 0.
        empty = ~kept.any(-1)
        magnitude = self.magnitude * factor
        return {
            "direction": torch.where(empty[:, None], self.direction, direction),
            "magnitude": torch.where(empty, 0.0, magnitude),
        }

    @torch.no_grad()
    def set_weight(self, weight: Tensor) -> None:
        """Set magnitude and direction so that the layer's weight is ``weight``."""
        self.direction.copy_(weight)
        self.magnitude.copy_(weight.norm(dim=-1))

    def draw_weight(self, bound: float) -> None:
        """Draw the layer's weight uniformly from ±``bound``."""
        weight = torch.empty_like(self.direction)
        self.set_weight(weight.uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        weight = prepared(self, "weight", lambda: self.weight)
        weight = cast(weight, x.dtype)
        bias = cast(self.bias, x.dtype)
        return F.linear(x, weight, bias)


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
        learned_omega: whether ω0 is a parameter.
        knots: ``"uniform"`` spreads the bends of piecewise activations over [-1, 1]; ``"zero"``
            leaves the biases at zero.
        preset: ``"paper"``: weights by Sitzmann's rule, :math:`U(\pm 1/p)` in the first layer and
            :math:`U(\pm\sqrt{6/w}/\omega_0)` in the others, biases :math:`U(\pm\pi/|W_i|)`;
            ``"released"``: the effect of the authors' code, torch's default weights for every ω0
            and biases U(-1, 1).

    Shape: (..., p) to (..., w), in float32 or better. So are its parameters, also in a model that
    is cast to a half precision.

    Cost: O(p·w + (L - 1)·w²) per position.

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
        _check(
            position_dim,
            width,
            depth,
            activation,
            omega,
            knots,
            preset,
        )
        if learned_omega and activation != "sine":
            raise OptionError(
                f"expected activation='sine' with learned_omega, got {activation!r}, which has no "
                "ω0 to learn; leave learned_omega out"
            )
        self.position_dim = position_dim
        self.width = width
        self.activation = activation
        self.preset = preset
        self.knots = knots
        # The ω0 to start from, where it is learned.
        self.first_omega = float(omega)

        self.fourier = None
        d_in = position_dim
        if activation == "rff":
            # Each wave gives a cosine and a sine, so that about ``width`` features come out.
            waves = max(1, width // 2)
            self.fourier = FourierFeatures(position_dim, waves, omega)
            d_in = 2 * waves
        widths = [d_in] + [width] * depth
        self.layers: Any = nn.ModuleList(
            WeightNormLinear(before, after) for before, after in pairwise(widths)
        )
        self.norms = None
        if activation not in ("sine", "rff"):
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

        self.omega: Tensor | None
        self._register_omega(learned_omega)
        self._by_preset()
        # Parameters stay in float32 or better, also where the default dtype is a half precision.
        if torch.get_default_dtype() not in SUMMED:
            self.float()

    def _register_omega(self, learned: bool) -> None:
        """Register ω0 of sine layers as a parameter or a buffer, and None for other networks."""
        value = None
        if self.activation == "sine":
            dtype = at_least_single(torch.get_default_dtype())
            value = torch.tensor(self.first_omega, dtype=dtype)
        if learned and value is not None:
            self.omega = nn.Parameter(value)
        else:
            self.register_buffer("omega", value)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Change dtype and device, but leave parameters in float32 under ``.to(bfloat16)``.

        A phase of hundreds of radians has no digits behind the point in bfloat16.
        """
        return super()._apply(unrounded(fn), recurse)

    @torch.no_grad()
    def draw(self) -> None:
        """Draw new values, in the order in which a network is built."""
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
        """Set weights and biases by activation, preset and knots."""
        if self.activation == "sine":
            self._reset_sine()
        elif self.activation != "rff" and self.knots == "uniform":
            self._spread_knots()

    @torch.no_grad()
    def _reset_sine(self) -> None:
        """Draw the weights and biases of sine layers, by the formulas of ``preset`` in the class.

        Weights of all layers but the first are divided by ω0, by which the activation multiplies.
        """
        for i, layer in enumerate(self.layers):
            # The released code leaves torch's default weights, which the layer has drawn itself.
            if self.preset == "released":
                layer.bias.uniform_(-1.0, 1.0)
                continue
            fan = layer.direction.shape[1]
            bound = 1.0 / fan
            if i > 0:
                bound = math.sqrt(6.0 / fan) / self.first_omega
            layer.draw_weight(bound)

            # The magnitude of unit i is |W_i|, the norm of its row of the weight just set.
            phase = torch.empty_like(layer.bias)
            phase.uniform_(-math.pi, math.pi)
            layer.bias.copy_(phase / layer.magnitude)

    @torch.no_grad()
    def _spread_knots(self) -> None:
        """Set each unit's bias so that its pre-activation W h(z) + b is zero at a position z of its
        own, drawn uniformly from [-1, 1]^p.

        h(z) is the layer's input there, which depends on the layers before, so these get their
        biases first. The layer norm that follows subtracts the mean over units, and so moves the
        bend of the activation away from z.
        """
        for i, layer in enumerate(self.layers):
            z = torch.empty(
                self.width,
                self.position_dim,
                device=layer.bias.device,
            )
            z.uniform_(-1.0, 1.0)

            # One position per unit, so that row i of h is the input at unit i's position.
            h = self._run(z, i)
            products = layer.weight * h
            unbiased = products.sum(-1)
            layer.bias.copy_(-unbiased)

    def forward(self, z: Tensor) -> Tensor:
        check_dimension(z, self.position_dim, "this network was built")
        return self._run(z, len(self.layers))

    def _run(self, z: Tensor, depth: int) -> Tensor:
        """Return the output of the first ``depth`` layers, in float32 or better."""
        with full_precision(z):
            h = z
            if self.fourier is not None:
                h = self.fourier(z)
            dtype = at_least_single(self.layers[0].bias.dtype)
            h = cast(h, promoted(h.dtype, dtype))
            in_place = unrecorded()
            for i in range(depth):
                layer = self.layers[i]
                h = self._activated(layer(h), i, in_place)

            return cast(h, dtype)

    def _activated(
        self,
        h: Tensor,
        layer: int,
        in_place: bool,
    ) -> Tensor:
        """Return σ of a layer's output, which may be overwritten if ``in_place``."""
        if self.omega is not None:
            omega = cast(self.omega, h.dtype)
            if in_place:
                return h.mul_(omega).sin_()
            return torch.sin(omega * h)
        if self.norms is None:
            return F.gelu(h)

        norm: Any = self.norms[layer]
        weight = norm.weight.to(h.dtype)
        bias = norm.bias.to(h.dtype)
        h = F.layer_norm(
            h,
            norm.normalized_shape,
            weight,
            bias,
            norm.eps,
        )
        return ACTIVATIONS[self.activation](h)

    def extra_repr(self) -> str:
        return (
            f"position_dim={self.position_dim}, width={self.width}, activation={self.activation!r}"
        )


def _check(
    position_dim,
    width,
    depth,
    activation,
    omega,
    knots,
    preset,
) -> None:
    sizes = {
        "position_dim": position_dim,
        "width": width,
        "depth": depth,
    }
    for name, value in sizes.items():
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
