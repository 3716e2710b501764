"""Convolution with a continuous kernel: a small network of the displacement."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ...domain import Domain
from ...errors import OptionError
from ...integral import HiddenKernel, Problem, prepared
from ...integral.bases import RECURRENT
from ...ops.backend import at_least_single, cast, unrounded
from ...validation import cheap_to_read
from .capabilities import LagFeatures
from .grid_convolution.fft import DirectConvolution, HiddenConvolution
from .lag_steps import LagSteps
from .position_network import PositionNetwork, WeightNormLinear

ORIGINS = ("start", "centre")


class ContinuousConvolutionKernel(HiddenKernel, LagFeatures):
    r"""A kernel of the displacement alone:

    .. math:: K_h(x, y) = R_h\,h(z) + R_{h,0}, \qquad z = 2 (x - y) / extent - 1

    h is a :class:`PositionNetwork`, and the readout R one weight-normalised linear layer, so that a
    horizon of any length costs the same number of parameters. A mass of one per training sample
    makes the integral the sum of an ordinary convolution. At another rate, or with irregular
    samples, the measure is their spacing in training steps.

    Args:
        heads: groups; each reads and writes a slice of the channels.
        d_in, d_out: channels of a group.
        position_dim: p.
        extent: length of the training domain in units of position. It is the scale of z and saved
            with the weights; shorter or coarser inputs do not change it.
        length: samples of the training domain; with ``unit_variance`` the kernel starts with
            variance 1 / (d_in · length), so that a white signal of that length keeps its variance.
        origin: ``"start"`` maps displacement 0 to z = -1 (causal lags fill [-1, 1]); ``"centre"``
            maps it to 0, z = (x - y) / extent.
        bias: whether there is a constant response of each output channel.
        unit_variance: see ``length``.
        blur: spacing of the samples in training steps where that is below 1, or None. ψ is then
            smoothed by a Gaussian of half a sample, which removes frequencies that training has not
            seen; one axis only. It is not a parameter and may be changed.
        network_options: of :class:`PositionNetwork`: ``width``, ``depth``, ``activation``,
            ``omega``, ``learned_omega``, ``knots``, ``preset``.

    Cost: by FFT on a regular grid O(N log N), hidden units first; anywhere else O(N²), with memory
    O(N).

    Raises:
        OptionError: an unknown origin, a non-positive extent or length, or a blur outside (0, 1].

    Reference: CKConv Eqs. 1-4, §4.1-4.2, E.1-E.3.

    Example:
        >>> kernel = ContinuousConvolutionKernel(1, 2, 3, length=16)
        >>> kernel.lag_features(torch.rand(7, 1)).shape, kernel.readout()[0].shape
        (torch.Size([7, 32]), torch.Size([1, 3, 2, 32]))
    """

    forms = (
        DirectConvolution,
        HiddenConvolution,
        *RECURRENT,
        LagSteps,
        *HiddenKernel.forms[len(RECURRENT) :],
    )

    reads_query = False
    options_class = PositionNetwork

    def __init__(
        self,
        heads: int,
        d_in: int,
        d_out: int | None = None,
        *,
        position_dim: int = 1,
        extent: float = 1.0,
        length: int = 1024,
        origin: str = "start",
        bias: bool = True,
        unit_variance: bool = True,
        blur: float | None = None,
        **network_options,
    ):
        super().__init__(heads, d_in, d_out)
        if origin not in ORIGINS:
            raise OptionError(f"expected origin to be one of {', '.join(ORIGINS)}, got {origin!r}")
        if not extent > 0 or length < 1:
            raise OptionError(
                f"expected extent and length above zero, got {extent} and {length}; give those of "
                "the training domain"
            )
        if blur is not None and not (0 < blur <= 1 and position_dim == 1):
            raise OptionError(
                f"expected a blur in (0, 1] on one axis, got {blur!r} on {position_dim} "
                "axes; give the spacing of the samples in training steps, or None"
            )
        self.blur = blur
        self.network = PositionNetwork(position_dim, **network_options)
        entries = heads * self.d_out * d_in
        self.readout_layer = WeightNormLinear(self.network.width, entries)
        self.bias = nn.Parameter(torch.zeros(heads * self.d_out)) if bias else None
        self.extent: Tensor
        dtype = at_least_single(torch.get_default_dtype())
        training_extent = torch.tensor(float(extent), dtype=dtype)
        self.register_buffer("extent", training_extent)
        self.origin = origin
        self.length = length
        self.first_extent = float(extent)
        self.unit_variance = unit_variance
        self._warned = False
        self._readout_by_preset()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new values for the network and the readout, and restore the first ``extent``."""
        self.network.draw()
        self.readout_layer.draw()
        if self.bias is not None:
            self.bias.zero_()
        self.extent.fill_(self.first_extent)
        self._readout_by_preset()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Change dtype and device, but leave ``extent`` in float32 under ``.to(bfloat16)``.

        It scales all displacements: rounded, it would move every lag and the horizon.
        """
        extent = self.extent
        super()._apply(fn, recurse)
        self.extent = unrounded(fn)(extent)
        return self

    @torch.no_grad()
    def _readout_by_preset(self) -> None:
        """Draw the readout's weights by the network's preset, and scale them to a variance of
        1 / (d_in · length) with ``unit_variance``.
        """
        layer = self.readout_layer
        network = self.network
        if network.preset == "paper":
            # Sitzmann's rule for layers after the first, U(±√(6 / w) / ω0).
            omega = 1.0
            if network.omega is not None and not network.omega.is_meta:
                omega = float(network.omega)
            bound = (6.0 / network.width) ** 0.5 / omega
            layer.draw_weight(bound)

        if self.unit_variance:
            # The deviation of the kernel's entries at random positions.
            z = torch.empty(
                512,
                network.position_dim,
                device=layer.bias.device,
            )
            z.uniform_(-1.0, 1.0)
            hidden = network(z)
            weight = cast(layer.weight, hidden.dtype)
            entries = nn.functional.linear(hidden, weight)
            spread = entries.std()
            wanted = (self.d_in * self.length) ** -0.5
            # The only unit behind a layer norm is constant, and has no spread to divide by.
            factor = torch.where(spread > 0, wanted / spread, 1.0)
            layer.magnitude.mul_(factor)

    # --- hidden units and readout -----------------------------------------------------------------

    def lag_features(self, displacements: Tensor) -> Tensor:
        """Return h at displacements (..., p): (..., w)."""
        name = ("hidden", self.blur)
        of = (displacements,)
        return prepared(
            self,
            name,
            lambda: self._smooth(displacements),
            of=of,
        )

    def _smooth(self, displacements: Tensor) -> Tensor:
        """Return h, smoothed along the displacement where the samples are finer than in training.

        A Gaussian with a standard deviation of half a sample, at 2·(training step / sample) + 1
        whole samples around each displacement, its weights normalised.

        Reference: CKConv, E.3.
        """
        self._warn_beyond_extent(displacements)
        if self.blur is None:
            return self._features(displacements)

        reach = round(1 / self.blur)
        offsets = range(-reach, reach + 1)
        # exp(-k² / 2σ²) with σ = 1/2
        weights = [math.exp(-2.0 * k * k) for k in offsets]
        sum_of_weights = sum(weights)
        sample = self.blur * self.extent / self.length
        total = torch.zeros((), device=displacements.device)
        for k, weight in zip(offsets, weights):
            share = weight / sum_of_weights
            shifted = self._features(displacements + k * sample)
            total = total + share * shifted
        return total

    def _features(self, displacements: Tensor) -> Tensor:
        """Return h at displacements, in the network's coordinate z."""
        z = displacements / cast(self.extent, displacements.dtype)
        if self.origin == "start":
            z = 2 * z - 1
        return self.network(z)

    def hidden(
        self,
        x: Tensor,
        y: Tensor,
        ux: Tensor,
        uy: Tensor,
    ) -> Tensor:
        return self.lag_features(x - y)

    def readout(self) -> tuple[Tensor, Tensor | None]:
        layer = self.readout_layer
        shape = (self.heads, self.d_out, self.d_in)
        weight = prepared(
            self,
            "readout",
            lambda: layer.weight.reshape(*shape, -1),
        )
        return weight, layer.bias.reshape(shape)

    def offset(self, problem: Problem) -> Tensor | None:
        if self.bias is None:
            return None
        return self.bias.view(1, self.heads, 1, self.d_out)

    @property
    def width(self) -> int:
        """w, the number of hidden units."""
        return self.network.width

    def _warn_beyond_extent(self, displacements: Tensor) -> None:
        """Warn once of displacements longer than the training domain.

        In eager code alone, because this reads values.
        """
        if self._warned or not displacements.numel() or self.extent.is_meta:
            return
        if not cheap_to_read(displacements, waited=True):
            return
        longest_lag = torch.linalg.vector_norm(displacements.detach(), math.inf)
        longest = float(longest_lag)
        extent = float(self.extent)
        # Positions of a grid are rounded, and may pass the extent by that.
        if longest > extent * (1 + 1e-6):
            self._warned = True
            warnings.warn(
                f"displacements of {longest:.6g} are longer than the {extent:.6g} the kernel was "
                "built for: it is extrapolated there (warned once)",
                stacklevel=2,
            )

    # --- where the kernel lives -------------------------------------------------------------------

    def default_domain(
        self,
        n: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Domain:
        """Return a line of n samples at the training rate, with a mass of one per sample.

        It is causal where displacement 0 is the start of the kernel.
        """
        causal = self.origin == "start"
        line = Domain.line(
            n,
            length=1.0,
            causal=causal,
            measure="counting",
            device=device,
            dtype=dtype,
        )
        # No value of ``extent`` is read, so that traced code can do the same.
        step = self.extent.to(line.positions) / self.length
        return line.replace(positions=line.positions * step)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, origin={self.origin!r}, length={self.length}"
