"""Convolution with a continuous kernel that ends: a causal step needs only the last points."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import DomainError, OptionError
from ...integral import CausalTransition, Point
from ...ops.backend import at_least_single, full_precision, promoted
from ...validation import cheap_to_read
from .kernel import ContinuousConvolutionKernel


class FiniteHorizonKernel(ContinuousConvolutionKernel, CausalTransition):
    r"""A :class:`ContinuousConvolutionKernel` that ends: ψ(δ) = 0 from ``horizon`` training steps
    on.

    A point at the training rate sees itself and the ``horizon - 1`` points before it, and a causal
    step keeps that many.

    Args:
        horizon: in steps of training (``extent / length`` each).
        memory: points that a causal step keeps; the horizon by default. At a finer rate more points
            lie within the horizon.
        options: of :class:`ContinuousConvolutionKernel`; positions have one axis.

    Cost: a causal step O(memory); elsewhere that of the kernel without an end.

    Raises:
        OptionError: a horizon or memory below 1, or several axes.
        DomainError: from a step, where more points than ``memory`` lie within the horizon.

    Reference: CKConv §3 (the memory horizon of a convolution).

    Example:
        >>> kernel = FiniteHorizonKernel(1, 2, length=8, horizon=3)
        >>> kernel.lag_features(torch.arange(4.0)[:, None] / 8)[:, -1].tolist()
        [1.0, 1.0, 1.0, 0.0]
    """

    def __init__(
        self,
        heads: int,
        d_in: int,
        d_out: int | None = None,
        *,
        horizon: int,
        memory: int | None = None,
        **options,
    ):
        if memory is None:
            memory = horizon
        if horizon < 1 or memory < 1:
            raise OptionError(
                f"expected horizon and memory of at least 1, got {horizon} and {memory}; give "
                "whole numbers of training steps and of points"
            )
        axes = options.get("position_dim", 1)
        if axes != 1:
            raise OptionError(
                f"expected positions with one axis, time, for a horizon, got {axes}; leave horizon "
                "out"
            )
        super().__init__(heads, d_in, d_out, **options)
        self.horizon = horizon
        self.memory = memory

    def lag_features(self, displacements: Tensor) -> Tensor:
        """Return h and a constant unit, zero beyond the horizon: (..., w + 1).

        The constant unit has the readout's bias as its row, which thus ends there as well.
        """
        # Compared in the positions' own precision.
        end = self._end(displacements.dtype)
        inside = displacements.abs() < end
        h = super().lag_features(displacements)
        ones = torch.ones_like(h[..., :1])
        with_constant = torch.cat([h, ones], -1)
        return with_constant * inside.to(h.dtype)

    def _end(self, dtype: torch.dtype) -> Tensor:
        """Return the displacement at which ψ ends.

        Half a step before the horizon: rounding moves no sample of the training grid across it.
        """
        steps = self.horizon - 0.5
        return steps * self.extent.to(dtype) / self.length

    def readout(self) -> tuple[Tensor, Tensor | None]:
        weight, bias = super().readout()
        assert bias is not None
        constant = bias[..., None]
        with_constant = torch.cat([weight, constant], -1)
        return with_constant, None

    @property
    def width(self) -> int:
        """Hidden units, the constant one included."""
        return self.network.width + 1

    # --- the causal step --------------------------------------------------------------------------

    def start(self, u: Tensor) -> dict[str, Tensor]:
        batch, heads, d = u.shape
        dtype = at_least_single(u.dtype)
        return {
            "signal": u.new_zeros(batch, self.memory, heads, d, dtype=dtype),
            "mass": u.new_zeros(batch, self.memory, dtype=dtype),
            "positions": u.new_zeros(batch, self.memory, 1, dtype=dtype),
        }

    def advance(
        self,
        point: Point,
        memory: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        batch = point.u.shape[0]
        x = point.x.expand(batch, -1)
        positions = memory["positions"]
        # Positions may be more precise than the signal, and remain so.
        x = x.to(promoted(x.dtype, positions.dtype))
        mass = point.mass.expand(batch)
        mass = mass.to(memory["mass"].dtype)
        memory = memory | {"positions": positions.to(x.dtype)}
        self._check_memory(x, mass, memory)

        # The oldest of the ``memory`` points leaves, and the new one comes last.
        new_point = {
            "signal": point.weighed(),
            "mass": mass,
            "positions": x,
        }
        after = {}
        for name, new in new_point.items():
            remaining = memory[name][:, 1:]
            last = new[:, None]
            last = last.to(remaining.dtype)
            after[name] = torch.cat([remaining, last], 1)

        # A slot without a point has no position. It gets that of the new point, at lag 0, where its
        # mass of zero leaves it out.
        here = x[:, None]
        occupied = (after["mass"] > 0)[..., None]
        positions = torch.where(occupied, after["positions"], here)
        hidden = self.lag_features(here - positions)

        # Hidden units are summed before the readout: (B, H, d_in, w + 1) numbers.
        weight, _ = self.readout()
        dtype = at_least_single(point.u.dtype)
        with full_precision(point.u):
            hidden = hidden.to(dtype)
            signal = after["signal"].to(dtype)
            moment = torch.einsum("bkw,bkhi->bhiw", hidden, signal)
            weight = weight.to(dtype)
            out = torch.einsum("hoiw,bhiw->bho", weight, moment)
        out = point.scaled(out)
        if self.bias is not None:
            bias = self.bias.view(1, self.heads, self.d_out)
            out = out + bias
        return out, after

    def _check_memory(
        self,
        x: Tensor,
        mass: Tensor,
        memory: dict[str, Tensor],
    ) -> None:
        """Refuse to forget a point that lies within the horizon.

        In eager code alone, because this reads values.
        """
        if not cheap_to_read(mass, waited=True):
            return
        if not cheap_to_read(x, waited=True):
            return
        oldest_mass = memory["mass"][:, 0]
        both_exist = (mass > 0) & (oldest_mass > 0)
        oldest_position = memory["positions"][:, 0]
        lag_of_oldest = x - oldest_position
        lag_of_oldest = lag_of_oldest[:, 0]
        lost = both_exist & (lag_of_oldest < self._end(x.dtype))
        if bool(lost.any()):
            raise DomainError(
                f"expected at most {self.memory} points within the horizon of {self.horizon} "
                "training steps, got more, because the samples are finer than in training; give "
                "memory= as many points as the horizon holds"
            )
