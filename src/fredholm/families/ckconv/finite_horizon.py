"""Convolution with a continuous kernel that ends: a causal step needs the last few points only."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import DomainError, OptionError
from ...integral import CausalTransition, Point
from ...ops.backend import at_least_single, full_precision, promoted
from ...validation import cheap_to_read
from .kernel import ContinuousConvolutionKernel


class FiniteHorizonKernel(ContinuousConvolutionKernel, CausalTransition):
    r"""A :class:`ContinuousConvolutionKernel` that is zero from ``horizon`` steps of training on,
    :math:`\psi(\delta) = 0` there.

    A point at the training rate sees itself and the ``horizon - 1`` points before it, so that a
    causal step keeps that many.

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
        memory = horizon if memory is None else memory
        if horizon < 1 or memory < 1:
            raise OptionError(f"horizon and memory must be at least 1, got {horizon} and {memory}")
        if options.get("position_dim", 1) != 1:
            raise OptionError(
                f"horizon: positions have {options['position_dim']} axes; needs one, time"
            )
        super().__init__(heads, d_in, d_out, **options)
        self.horizon, self.memory = horizon, memory

    def lag_features(self, displacements: Tensor) -> Tensor:
        """h and a constant unit, so that the readout's bias ends there too: (..., w + 1)."""
        # Half a step before the horizon: samples of the training grid lie clear of the edge.
        end = (self.horizon - 0.5) * self.extent.to(displacements.dtype) / self.length
        inside = (displacements.abs() < end).to(
            torch.promote_types(displacements.dtype, torch.float32)
        )
        h = super().lag_features(displacements)
        return torch.cat([h, torch.ones_like(h[..., :1])], -1) * inside.to(h.dtype)

    def readout(self) -> tuple[Tensor, Tensor | None]:
        weight, bias = super().readout()
        assert bias is not None
        return torch.cat([weight, bias[..., None]], -1), None

    @property
    def width(self) -> int:
        """Hidden units, the constant one included."""
        return self.network.width + 1

    # --- the causal step --------------------------------------------------------------------------

    def start(self, u: Tensor) -> dict[str, Tensor]:
        batch, heads, d = u.shape
        dtype = torch.promote_types(u.dtype, torch.float32)
        return {
            "signal": u.new_zeros(batch, self.memory, heads, d, dtype=dtype),
            "mass": u.new_zeros(batch, self.memory, dtype=dtype),
            "positions": u.new_zeros(batch, self.memory, 1, dtype=dtype),
        }

    def advance(self, point: Point, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        batch = point.u.shape[0]
        x, places = point.x.expand(batch, -1), memory["positions"]
        x = x.to(promoted(x.dtype, places.dtype))  # a domain keeps its precision
        mass = point.mass.expand(batch).to(memory["mass"].dtype)
        memory = memory | {"positions": places.to(x.dtype)}
        self._check_memory(x, mass, memory)
        news = {"signal": point.weighed(), "mass": mass, "positions": x}
        after = {
            name: torch.cat([memory[name][:, 1:], new[:, None].to(memory[name].dtype)], 1)
            for name, new in news.items()
        }
        # a slot without a point lies nowhere: here, where its mass of zero leaves it out
        full = (after["mass"] > 0)[..., None]
        hidden = self.lag_features(x[:, None] - torch.where(full, after["positions"], x[:, None]))
        weight, _ = self.readout()
        dtype = at_least_single(point.u.dtype)
        with full_precision(point.u):
            moment = torch.einsum("bkw,bkhi->bhiw", hidden.to(dtype), after["signal"].to(dtype))
            out = torch.einsum("hoiw,bhiw->bho", weight.to(dtype), moment)
        out = point.scaled(out)
        if self.bias is not None:
            out = out + self.bias.view(1, self.heads, self.d_out)
        return out, after

    def _check_memory(self, x: Tensor, mass: Tensor, memory: dict[str, Tensor]) -> None:
        """The point that is forgotten must lie beyond the horizon. Eager code only: it reads
        values.
        """
        if not (cheap_to_read(mass, waited=True) and cheap_to_read(x, waited=True)):
            return
        end = (self.horizon - 0.5) * self.extent.to(x.dtype) / self.length
        seen = (
            (mass > 0) & (memory["mass"][:, 0] > 0) & ((x - memory["positions"][:, 0])[:, 0] < end)
        )
        if bool(seen.any()):
            raise DomainError(
                f"more than {self.memory} points lie within the horizon of {self.horizon} steps: "
                "the samples are finer than in "
                "training; pass memory= as many points as the horizon holds"
            )
