r"""Scalar networks with one ReLU layer as piecewise linear functions, with at most h knots each.

The knots of all networks of a set are merged, so that one search and one gather serve all channels.
In segment k

.. math:: \psi_l(u) = a_{lk} u + c_{lk},

and the gradients of a and c are sums over the scalars in a segment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..custom_op import custom_op
from ..tiles import rectangles
from .naive import Bank

CHUNK = 32_768
"""Scalars of a tile on a processor: their values at 8 channels stay in its cache, and they are
enough for every thread. 8,192 to 262,144 take the same time (docs/log.md, 2026-11-23, "LUNA at
16,384 points").
"""
ACCELERATOR_CHUNK = 4_194_304
CELLS = 16
"""Cells of the search grid per knot."""
FEW = 4_096
"""Scalars up to which the call of an op costs more than its work."""
MOST_PASSES = 12
"""Knots in one cell beyond which a binary search is faster than comparing one after another."""


class Segments(NamedTuple):
    """Piecewise linear functions, all channels of a set over the same segments.

    Attributes:
        knots: ends of the segments in ascending order, (S, K).
        slope, intercept: of every channel in every segment, (S, L, K + 1) each.
    """

    knots: Float[Tensor, "s k"]
    slope: Float[Tensor, "s l k1"]
    intercept: Float[Tensor, "s l k1"]


def segments(bank: Bank) -> Segments:
    r"""Return the K = G·h sorted knots of a bank, and all channels' slopes and intercepts between
    them.

    Unit j has its knot at :math:`-b_j / w_j`. Crossing it from the left adds :math:`|w_j| R_j` to
    the slope and :math:`\mathrm{sign}(w_j)\, b_j R_j` to the intercept. Left of all knots the units
    with :math:`w_j < 0` are active, and those without slope that have a positive bias. Slopes and
    intercepts are differentiable.

    Cost: O(L·K), summed in float64.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> bank = Bank(one, -one, one[None], one)  # ReLU(u - 1) + 1
        >>> [x.flatten().tolist() for x in segments(bank)]
        [[1.0], [0.0, 1.0], [1.0, 0.0]]
    """
    # Sums over hundreds of knots in float32 would add their rounding errors up. MPS has no float64.
    dtype = bank.weight.dtype
    double = dtype
    if bank.weight.device.type != "mps":
        double = torch.float64
    weight, bias, readout, shift = (x.to(double) for x in bank)

    # A unit without slope has no knot: it goes to infinity, where no scalar crosses it.
    flat = weight == 0
    crossings = -bias / torch.where(flat, 1.0, weight)
    crossings = torch.where(flat, torch.inf, crossings)
    knots, order = crossings.flatten(1).detach().sort(-1)

    # Slopes and intercepts are stacked, (2, S, G, C), left of all knots.
    start = _left_of_knots(weight, bias, readout, shift, flat)
    # What is gained at each knot, (2, S, L, K), in the order of knots.
    gain_of_unit = torch.stack([weight.abs(), weight.sign() * bias])
    jumps = _jumps(gain_of_unit, readout)
    jumps = jumps.gather(-1, _for_all_channels(order, start))

    gained = F.pad(
        jumps.cumsum(-1),
        (1, 0),
    )
    slope, intercept = start.flatten(2, 3)[..., None] + gained
    return Segments(
        knots.to(dtype),
        slope.to(dtype),
        intercept.to(dtype),
    )


def _left_of_knots(
    weight: Tensor,
    bias: Tensor,
    readout: Tensor,
    shift: Tensor,
    flat: Tensor,
) -> Tensor:
    """Return slopes and intercepts in the first segment, (2, S, G, C)."""
    # A unit's line: its slope and its bias where it is active, else zero.
    constant = torch.where(flat, bias.clamp(min=0.0), 0.0)
    offset = torch.where(weight < 0, bias, constant)
    active = torch.stack([weight.clamp(max=0.0), offset])

    # The shift of a channel belongs to its intercept.
    shifts = torch.stack([torch.zeros_like(shift), shift])
    return torch.einsum("xsgh,sgch->xsgc", active, readout) + shifts


def _jumps(gain_of_unit: Tensor, readout: Tensor) -> Tensor:
    """Return what each channel gains at each knot, (2, S, L, K), knots in the order of units.

    A channel jumps at the knots of its own network alone, hence the identity over networks.
    """
    jumps = gain_of_unit[:, :, :, None] * readout
    networks = readout.shape[1]
    same = torch.eye(networks, dtype=readout.dtype, device=readout.device)

    # (2, S, G, C, h) to (2, S, G, C, G, h), and then both pairs of G are flattened.
    of_all_networks = jumps[..., None, :] * same[:, None, :, None]
    return of_all_networks.flatten(4, 5).flatten(2, 3)


def _for_all_channels(order: Tensor, start: Tensor) -> Tensor:
    """Expand an order of knots (S, K) to (2, S, L, K)."""
    _, sets, networks, outputs = start.shape
    channels = networks * outputs
    return order[:, None].expand(2, sets, channels, order.shape[-1])


def size_of(shape: Any) -> int:
    """Return the number of elements of a shape, for counts of FLOPs."""
    return int(torch.Size(shape).numel())


def chunk_of(u: Tensor) -> int:
    """Return the number of scalars in a tile on the device of ``u``."""
    if u.device.type == "cpu":
        return CHUNK
    return ACCELERATOR_CHUNK


class Search:
    """The number of knots below each scalar, by a grid of cells over the data.

    A cell's number grows with the scalar, in floating point too. Hence only the knots in a scalar's
    own cell are compared with it, and the number is exactly that of a binary search, at a tenth of
    the time (docs/log.md, 2026-11-21, "searchsorted"). Where a cell holds too many knots, or there
    are too few scalars for a grid, it is a binary search.

    Args:
        knots: of one set in ascending order, (K,).
        u: all scalars that will be looked up, of any shape.
    """

    def __init__(self, knots: Tensor, u: Tensor):
        self.knots = knots
        self.below_cell: Tensor | None = None
        count = knots.shape[0]
        if u.device.type != "cpu" or u.numel() < 4 * CELLS * count:
            return

        self.low, high = u.aminmax()
        self.last_cell = CELLS * count - 1
        self.rate = self.last_cell / (high - self.low)
        # Scalars that are all equal, or NaN, span no grid.
        if not (self.rate.isfinite() and self.rate > 0):
            return

        within_data = (knots >= self.low) & (knots <= high)
        cells = self._cell(knots[within_data])
        counts = torch.bincount(cells, minlength=self.last_cell + 1)
        self.passes = int(counts.max())
        if self.passes <= MOST_PASSES:
            # Knots below a cell: those left of the data, and those in the cells before it.
            left_of_data = (knots < self.low).sum()
            in_cells_before = counts.cumsum(0) - counts
            self.below_cell = (in_cells_before + left_of_data).int()
            # Infinity behind the last knot ends every comparison.
            self.padded = F.pad(knots, (0, 1), value=torch.inf)

    def _cell(self, u: Tensor) -> Tensor:
        number = (u - self.low) * self.rate
        return number.clamp_(0, self.last_cell).int()

    def __call__(self, u: Tensor) -> Tensor:
        """Return the segment of each scalar (n,), int32; at a knot the one on its left."""
        if self.below_cell is None:
            return torch.searchsorted(self.knots, u, out_int32=True)

        # Begin with the knots left of the cell, and pass one knot of the cell at a time.
        below = self.below_cell.index_select(0, self._cell(u))
        for _ in range(self.passes):
            below += self.padded.index_select(0, below) < u
        return below


# --- values and gradients -------------------------------------------------------------------------


def piecewise_linear(
    u: Float[Tensor, "r s t"],
    knots: Float[Tensor, "s k"],
    slope: Float[Tensor, "s l k1"],
    intercept: Float[Tensor, "s l k1"],
    nonneg: bool,
) -> Float[Tensor, "r s l t"]:
    """Return the functions that :func:`segments` describes, at many scalars.

    Args:
        u: scalars; set s of the segments is applied to ``u[:, s]``.
        knots, slope, intercept: see :class:`Segments`.
        nonneg: whether a ReLU follows.

    Cost: O(T·L) time and memory.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> lines = segments(Bank(one, -one, one[None], 0 * one))  # ReLU(u - 1)
        >>> piecewise_linear(torch.tensor([[[-1.0, 3.0]]]), *lines, nonneg=False).tolist()
        [[[[0.0, 2.0]]]]
    """
    if torch.is_grad_enabled() or u.numel() > FEW:
        return piecewise_linear_op(u, knots, slope, intercept, nonneg)
    return plain(u, knots, slope, intercept, nonneg)


def forward(
    u: Tensor,
    knots: Tensor,
    slope: Tensor,
    intercept: Tensor,
    nonneg: bool,
) -> Tensor:
    """Return the values (R, S, L, T) at scalars (R, S, T).

    A tile is a chunk of scalars of one set. In memory are its segments, and the slopes and
    intercepts that its scalars read, (2, L, chunk); the values are written where they belong.
    """
    rows, sets, columns = u.shape
    channels = slope.shape[1]
    out = u.new_empty(rows, sets, channels, columns)

    # Slopes and intercepts side by side, so that one gather fetches both.
    lines = torch.cat([slope, intercept], 1)
    for s in range(sets):
        search = Search(
            knots[s].contiguous(),
            u[:, s],
        )
        for r, c in rectangles(rows, columns, chunk_of(u)):
            part = u[r, s, c]
            segment = search(part.reshape(-1))
            of_scalars = lines[s].index_select(1, segment)
            slopes, offsets = of_scalars.view(2, channels, *part.shape)

            y = out[r, s, :, c].transpose(0, 1)
            torch.addcmul(offsets, slopes, part, out=y)
            if nonneg:
                y.clamp_(min=0.0)
    return out


def plain(
    u: Tensor,
    knots: Tensor,
    slope: Tensor,
    intercept: Tensor,
    nonneg: bool,
) -> Tensor:
    """Return :func:`forward` in torch's differentiable operations."""
    segment = segments_at(u, knots)
    slopes = read_at(slope, segment)
    offsets = read_at(intercept, segment)
    out = slopes * u[:, :, None] + offsets
    if nonneg:
        return torch.relu(out)
    return out


@torch.no_grad()
def segments_at(u: Tensor, knots: Tensor) -> Tensor:
    """Return the segment of each scalar, (R, S, 1, T)."""
    rows, _, columns = u.shape
    # ``searchsorted`` takes all scalars of a set in one row.
    points = u.transpose(0, 1).flatten(1).contiguous()
    segment = torch.searchsorted(knots.detach().contiguous(), points)
    return segment.unflatten(1, (rows, columns)).transpose(0, 1)[:, :, None]


def read_at(lines: Tensor, segment: Tensor) -> Tensor:
    """Return slopes or intercepts (S, L, K + 1) of each scalar's segment, (R, S, L, T)."""
    rows = segment.shape[0]
    index = segment.expand(-1, -1, lines.shape[1], -1)
    return lines[None].expand(rows, -1, -1, -1).gather(-1, index)


def backward(
    grad: Tensor,
    out: Tensor | None,
    u: Tensor,
    knots: Tensor,
    slope: Tensor,
) -> tuple[Tensor, Tensor]:
    r"""Return the gradients of u (R, S, T), and of slopes and intercepts (S, 2L, K + 1).

    With g the gradient of ψ, zero where the ReLU behind it is,

    .. math:: \bar u_t = \sum_l g_{lt}\, a_{l k(t)}, \qquad
        \bar a_{lk} = \sum_{t:\, k(t) = k} g_{lt}\, u_t, \qquad
        \bar c_{lk} = \sum_{t:\, k(t) = k} g_{lt}.

    Tiles are those of :func:`forward`, and segments are searched again. In memory are the tile's
    segments, g u and g (2, L, chunk), and its slopes (L, chunk).

    Args:
        grad: of the values, (R, S, L, T).
        out: the values, where a ReLU made them; else None.
        u, knots, slope: as in :func:`forward`.
    """
    rows, sets, columns = u.shape
    channels = slope.shape[1]
    du = u.new_empty(u.shape)
    dlines = slope.new_zeros(sets, 2 * channels, slope.shape[2])

    for s in range(sets):
        search = Search(
            knots[s].contiguous(),
            u[:, s],
        )
        for r, c in rectangles(rows, columns, chunk_of(u)):
            part = u[r, s, c]
            segment = search(part.reshape(-1))

            of_lines = part.new_empty(2, channels, *part.shape)
            of_slope, of_value = of_lines
            upstream = grad[r, s, :, c].transpose(0, 1)
            if out is None:
                of_value.copy_(upstream)
            else:
                values = out[r, s, :, c].transpose(0, 1)
                torch.ops.aten.threshold_backward.grad_input(
                    upstream,
                    values,
                    0.0,
                    grad_input=of_value,
                )
            torch.mul(of_value, part, out=of_slope)

            slopes = slope[s].index_select(1, segment).view(channels, *part.shape)
            torch.sum(
                slopes.mul_(of_value),
                0,
                out=du[r, s, c],
            )
            index = segment.long().expand(2 * channels, -1)
            dlines[s].scatter_add_(1, index, of_lines.view(2 * channels, -1))
    return du, dlines


# --- registration ---------------------------------------------------------------------------------


def _fake(
    u: Tensor,
    knots: Tensor,
    slope: Tensor,
    intercept: Tensor,
    nonneg: bool,
) -> Tensor:
    rows, sets, columns = u.shape
    channels = slope.shape[1]
    return u.new_empty(rows, sets, channels, columns)


def _fake_gradients(
    grad: Tensor,
    out: Tensor | None,
    u: Tensor,
    knots: Tensor,
    slope: Tensor,
) -> tuple[Tensor, Tensor]:
    sets, channels, count = slope.shape
    return (
        u.new_empty(u.shape),
        slope.new_empty(sets, 2 * channels, count),
    )


def _plain_gradients(
    grad: Tensor,
    out: Tensor | None,
    u: Tensor,
    knots: Tensor,
    slope: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return :func:`backward` in torch's differentiable operations.

    The gradients are linear in grad, u and slope. Where the ReLU cuts, and which segment a scalar
    lies in, does not change to first order.
    """
    if out is not None:
        grad = grad * (out > 0)
    segment = segments_at(u, knots)
    slopes = read_at(slope, segment)

    # The gradients of slope and intercept at each scalar, (R, S, 2L, T), added up by segments.
    of_scalars = torch.cat([grad * u[:, :, None], grad], 2)
    rows, sets, lines, _ = of_scalars.shape
    nothing = of_scalars.new_zeros(rows, sets, lines, slope.shape[2])
    of_segments = nothing.scatter_add(-1, segment.expand_as(of_scalars), of_scalars)
    of_lines = of_segments.sum(0)

    of_u = (grad * slopes).sum(2)
    return of_u, of_lines


piecewise_linear_backward_op = custom_op(
    "piecewise_linear_backward",
    "(Tensor grad, Tensor? out, Tensor u, Tensor knots, Tensor slope) -> (Tensor, Tensor)",
    backward,
    fake=_fake_gradients,
    plain=_plain_gradients,
    flops=lambda grad, out, u, knots, slope: 5 * size_of(u) * slope[1],
)


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    u, knots, slope, _, nonneg = inputs
    # The values show where the ReLU cut.
    values = None
    if nonneg:
        values = output
    ctx.save_for_backward(values, u, knots, slope)


def _gradients(ctx: Any, grad: Tensor) -> tuple:
    # Knots have no gradient. A knot only decides which line a scalar reads, and ψ is continuous
    # there: moving a knot while the lines stay changes nothing to first order. That is why
    # :func:`segments` detaches them.
    du, dlines = piecewise_linear_backward_op(grad, *ctx.saved_tensors)
    dslope, dintercept = dlines.chunk(2, 1)
    return du, None, dslope, dintercept, None


piecewise_linear_op = custom_op(
    "piecewise_linear",
    "(Tensor u, Tensor knots, Tensor slope, Tensor intercept, bool nonneg) -> Tensor",
    forward,
    fake=_fake,
    plain=plain,
    flops=lambda u, knots, slope, intercept, nonneg: 2 * size_of(u) * slope[1],
    setup_context=_save,
    backward=_gradients,
)
