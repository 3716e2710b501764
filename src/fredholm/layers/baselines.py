"""Classical layers in an operator's place: what a user would pick instead, in the same blocks.

Registered as the baselines ``convolution``, ``gru`` and ``lstm``. Their kernels are stencils and
recurrences: a convolution needs a grid; a recurrence reads points in the order of their index with
a mass of one each, wherever they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..domain import Domain
from ..errors import OptionError
from ..integral import CausalState, IntegralOperator, Plan
from ..integral.checks import check_domains
from ..models.baselines import register_baseline
from .convolution import StencilKernel
from .recurrence import RecurrentKernel

TAPS = {1: 7, 2: 3, 3: 3}
"""Taps along each axis by the number of axes."""


class Recurrence(IntegralOperator):
    """A GRU or an LSTM over points in the order of their index, whatever their positions and
    masses, and a projection.

    Both directions of half the width each, or one of the full width where ``causal``. The state
    passes padding by.

    Args:
        cell: ``"gru"`` or ``"lstm"``.
        dim: width of the features; even where both directions are read.
        causal: forwards only.

    Shape: (B, N, dim) on any domain without pairs or reach, causal like the operator, to
        (B, N, dim).

    Raises:
        OptionError: an odd width for two directions.

    Example:
        >>> import torch
        >>> Recurrence("gru", 8)(torch.randn(2, 6, 8), Domain.grid(2, 3)).shape
        torch.Size([2, 6, 8])
    """

    def __init__(self, cell: str, dim: int, *, causal: bool = False):
        if dim % 2 and not causal:
            raise OptionError(
                f"dim: expected an even width for a {cell} of two directions, got {dim}"
            )
        kind = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
        width = dim
        if not causal:
            width = dim // 2
        recurrent = kind(
            dim,
            width,
            batch_first=True,
            bidirectional=not causal,
        )
        super().__init__(
            dim,
            kernel=RecurrentKernel(recurrent),
            residual=False,
        )

    def plan(self, domain: Domain, query_domain: Domain | None = None) -> Plan:
        return super().plan(in_reading_order(domain), query_domain)

    def init_state(self, batch: int, domain: Domain) -> CausalState:
        return super().init_state(batch, in_reading_order(domain))

    def _problem(
        self,
        u,
        domain,
        query,
        query_domain,
    ):
        if domain is not None:
            domain = in_reading_order(domain, getattr(u, "device", None))
        return super()._problem(u, domain, query, query_domain)


class Convolution(IntegralOperator):
    """A convolution: 3 x 3 taps on an image, 7 on a line, all in the past where
    ``causal``.

    Args:
        dim: channels.
        position_dim: axes of the grid.
        causal: on a line, taps at the point and before it.
        taps: along each axis; odd, unless causal.
        dilation: points from one tap to the next: those of a temporal convolutional network double
            from block to block, ``{"blocks": [1, 2, 4, 8]}`` in a backbone.
        depthwise: one filter per channel instead of all pairs of channels.

    Shape: (B, N, dim) on a regular grid with a mass of one per point to (B, N, dim).

    Raises:
        OptionError: an even number of taps around a point, or a dilation below 1.

    Example:
        >>> import torch
        >>> grid = Domain.grid(2, 3, measure="counting")
        >>> Convolution(8, position_dim=2)(torch.randn(2, 6, 8), grid).shape
        torch.Size([2, 6, 8])
    """

    def __init__(
        self,
        dim: int,
        *,
        position_dim: int = 1,
        causal: bool = False,
        taps: int | None = None,
        dilation: int = 1,
        depthwise: bool = False,
    ):
        taps = taps or TAPS[position_dim]
        if taps % 2 == 0 and not causal:
            raise OptionError(
                f"taps: expected an odd number, as many before a point as after it, got {taps}"
            )
        if dilation < 1:
            raise OptionError(f"dilation: expected 1 or more, got {dilation}")
        span = dilation * (taps - 1)
        ends = (span // 2, span // 2)
        if causal:
            ends = (span, 0)

        # torch's layer is built for its initial weights alone.
        kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[position_dim]
        groups = 1
        if depthwise:
            groups = dim
        layer = kind(dim, dim, taps, groups=groups)
        kernel = StencilKernel(
            layer.weight,
            layer.bias,
            heads=groups,
            dilation=dilation,
            padding=[ends] * position_dim,
        )
        super().__init__(
            dim,
            groups,
            kernel=kernel,
            residual=False,
            projection=False,
        )


def in_reading_order(domain: Domain, device: torch.device | None = None) -> Domain:
    """Return the points on a line in the order of their index, with a mass of one each, on
    ``device`` or where they are. Padding, pairs and reach stay.
    """
    check_domains(domain=domain)
    domain.refuse_shards("a recurrence in reading order")
    device = device or domain.positions.device

    def make() -> Domain:
        line = Domain.line(
            domain.size,
            causal=domain.causal,
            measure="counting",
        )
        line = line.replace(valid=domain.valid, pairs=domain.pairs, reach=domain.reach)
        return line.to(device)

    return domain.kept(("reading order", device), make)


@register_baseline("convolution")
def _convolution(
    dim: int,
    heads: int,
    *,
    position_dim: int,
    causal: bool,
    **options: Any,
) -> IntegralOperator:
    return Convolution(dim, position_dim=position_dim, causal=causal, **options)


@register_baseline("gru")
def _gru(
    dim: int,
    heads: int,
    *,
    position_dim: int,
    causal: bool,
) -> IntegralOperator:
    return Recurrence("gru", dim, causal=causal)


@register_baseline("lstm")
def _lstm(
    dim: int,
    heads: int,
    *,
    position_dim: int,
    causal: bool,
) -> IntegralOperator:
    return Recurrence("lstm", dim, causal=causal)
