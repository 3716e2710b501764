r"""Scalar networks with one ReLU layer as what they are: piecewise linear functions with at most h
knots each.

The knots of all networks of a set are merged, so that one search and one gather do for all
channels. In segment k, :math:`\psi_l(u) = a_{lk} u + c_{lk}`; the gradients of a and c are sums
over the scalars of a segment.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..custom_op import custom_op
from ..tiles import rectangles
from .naive import Bank

# Scalars whose values at 8 channels stay in a CPU's cache, and enough of them for every thread.
CHUNK = 32_768
ACCELERATOR_CHUNK = 4_194_304
CELLS = 16  # grid cells per knot
FEW = 4_096  # scalars
PASSES = 12  # more knots than this in one cell: binary search


def segments(
    bank: Bank,
) -> tuple[Float[Tensor, "s k"], Float[Tensor, "s l k1"], Float[Tensor, "s l k1"]]:
    r"""Sorted knots (S, K = G·h), and slopes and intercepts of all channels in the K + 1 segments,
    differentiable.

    Crossing its knot from the left, unit j adds :math:`|w_j| R_j` to the slope and
    :math:`\mathrm{sign}(w_j)\,b_j R_j` to the intercept; what is left of all knots belongs to the
    units with :math:`w_j < 0`, and to those without slope. Sums in float64.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> bank = Bank(one, -one, one[None], one)  # ReLU(u - 1) + 1
        >>> [x.flatten().tolist() for x in segments(bank)]
        [[1.0], [0.0, 1.0], [1.0, 0.0]]
    """
    double = torch.float64 if bank.weight.device.type != "mps" else bank.weight.dtype
    weight, bias, readout, shift = (x.to(double) for x in bank)
    flat = weight == 0
    knots = torch.where(flat, torch.inf, -bias / torch.where(flat, 1.0, weight)).flatten(1).detach()
    knots, order = knots.sort(-1)
    before = torch.stack(
        [
            weight.clamp(max=0.0),
            torch.where(weight < 0, bias, torch.where(flat, bias.clamp(min=0.0), 0.0)),
        ]
    )
    across = torch.stack([weight.abs(), weight.sign() * bias])
    start = torch.einsum("xsgh,sgch->xsgc", before, readout) + torch.stack(
        [torch.zeros_like(shift), shift]
    )
    # (2, S, G, C, h), to the units of all networks of a set: (2, S, G·C, G·h). A channel jumps at
    # the knots of its network alone, hence the identity over networks.
    jumps = across[:, :, :, None] * readout
    same = torch.eye(weight.shape[1], dtype=double, device=weight.device)[:, None, :, None]
    jumps = (jumps[..., None, :] * same).flatten(4, 5).flatten(2, 3)
    jumps = jumps.gather(-1, order[:, None].expand(jumps.shape))
    lines = start.flatten(2, 3)[..., None] + F.pad(jumps.cumsum(-1), (1, 0))
    dtype = bank.weight.dtype
    return knots.to(dtype), lines[0].to(dtype), lines[1].to(dtype)


def size_of(shape: Any) -> int:
    return int(torch.Size(shape).numel())


def chunk_of(u: Tensor) -> int:
    return CHUNK if u.device.type == "cpu" else ACCELERATOR_CHUNK


class Search:
    """The number of knots below a scalar, exactly as a binary search finds it, but from a grid of
    cells over the data.

    A cell's number grows with the scalar, in floating point too, so that only knots in the
    scalar's cell need a comparison.
    """

    def __init__(self, knots: Tensor, u: Tensor):
        self.knots, self.start, self.passes = knots, None, 0
        count = knots.shape[0]
        if u.device.type != "cpu" or u.numel() < 4 * CELLS * count:
            return
        low, high = u.aminmax()
        self.low, self.last = low, CELLS * count - 1
        self.rate = self.last / (high - low)
        if not (self.rate.isfinite() and self.rate > 0):
            return
        counts = torch.bincount(
            self._cell(knots[(knots >= low) & (knots <= high)]), minlength=self.last + 1
        )
        self.passes = int(counts.max())
        if self.passes <= PASSES:
            self.start = (counts.cumsum(0) - counts + (knots < low).sum()).int()
            self.padded = F.pad(knots, (0, 1), value=torch.inf)

    def _cell(self, u: Tensor) -> Tensor:
        return ((u - self.low) * self.rate).clamp_(0, self.last).int()

    def __call__(self, u: Tensor) -> Tensor:
        if self.start is None:
            return torch.searchsorted(self.knots, u, out_int32=True)
        below = self.start.index_select(0, self._cell(u))
        for _ in range(self.passes):
            below += self.padded.index_select(0, below) < u
        return below


def forward(u: Tensor, knots: Tensor, slope: Tensor, intercept: Tensor, nonneg: bool) -> Tensor:
    """(R, S, T) scalars to (R, S, L, T)."""
    (rows, sets, columns), channels = u.shape, slope.shape[1]
    out = u.new_empty(rows, sets, channels, columns)
    lines = torch.cat([slope, intercept], 1)
    for s in range(sets):
        search = Search(knots[s].contiguous(), u[:, s])
        for r, c in rectangles(rows, columns, chunk_of(u)):
            part = u[r, s, c]
            slopes, offsets = (
                lines[s].index_select(1, search(part.reshape(-1))).view(2, channels, *part.shape)
            )
            y = out[r, s, :, c].transpose(0, 1)
            torch.addcmul(offsets, slopes, part, out=y)
            if nonneg:
                y.clamp_(min=0.0)
    return out


def piecewise_linear(
    u: Float[Tensor, "r s t"],
    knots: Float[Tensor, "s k"],
    slope: Float[Tensor, "s l k1"],
    intercept: Float[Tensor, "s l k1"],
    nonneg: bool,
) -> Float[Tensor, "r s l t"]:
    """The functions that :func:`segments` describes, at many scalars; O(T·L)."""
    if torch.is_grad_enabled() or u.numel() > FEW:
        return piecewise_linear_op(u, knots, slope, intercept, nonneg)
    return plain(u, knots, slope, intercept, nonneg)  # a call of an op costs more than this


def plain(u: Tensor, knots: Tensor, slope: Tensor, intercept: Tensor, nonneg: bool) -> Tensor:
    """:func:`forward` in torch's differentiable operations."""
    line, index = lines_at(u, knots, slope)
    offset = intercept[None].expand(u.shape[0], -1, -1, -1).gather(-1, index.expand_as(line))
    out = line * u[:, :, None] + offset
    return torch.relu(out) if nonneg else out


def lines_at(u: Tensor, knots: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """The slopes of the lines that scalars read, (R, S, L, T), and their segments (R, S, 1, T)."""
    with torch.no_grad():
        points = u.transpose(0, 1).flatten(1).contiguous()
        index = torch.searchsorted(knots.detach().contiguous(), points)
        index = index.unflatten(1, (u.shape[0], u.shape[2])).transpose(0, 1)[:, :, None]
    where = index.expand(-1, -1, slope.shape[1], -1)
    return slope[None].expand(u.shape[0], -1, -1, -1).gather(-1, where), index


def backward(
    grad: Tensor, out: Tensor | None, u: Tensor, knots: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of u and of slopes and intercepts, (S, 2L, K + 1); ``out`` where its ReLU cuts the
    gradient.
    """
    (rows, sets, columns), channels = u.shape, slope.shape[1]
    du, dlines = u.new_empty(u.shape), slope.new_zeros(sets, 2 * channels, slope.shape[2])
    for s in range(sets):
        search = Search(knots[s].contiguous(), u[:, s])
        for r, c in rectangles(rows, columns, chunk_of(u)):
            part = u[r, s, c]
            index = search(part.reshape(-1))
            both = part.new_empty(2, channels, *part.shape)
            of_slope, of_value = both
            here = grad[r, s, :, c].transpose(0, 1)
            if out is None:
                of_value.copy_(here)
            else:
                kept = out[r, s, :, c].transpose(0, 1)
                torch.ops.aten.threshold_backward.grad_input(here, kept, 0.0, grad_input=of_value)
            torch.mul(of_value, part, out=of_slope)
            line = slope[s].index_select(1, index).view(channels, *part.shape)
            torch.sum(line.mul_(of_value), 0, out=du[r, s, c])
            dlines[s].scatter_add_(
                1, index.long().expand(2 * channels, -1), both.view(2 * channels, -1)
            )
    return du, dlines


# --- registration ---------------------------------------------------------------------------------


def _lines(u: Tensor, knots: Tensor, slope: Tensor, intercept: Tensor, nonneg: bool) -> Tensor:
    return u.new_empty(u.shape[0], u.shape[1], slope.shape[1], u.shape[2])


def _line_gradients(
    grad: Tensor, out: Tensor | None, u: Tensor, knots: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), slope.new_empty(slope.shape[0], 2 * slope.shape[1], slope.shape[2])


def _plain_line_gradients(
    grad: Tensor, out: Tensor | None, u: Tensor, knots: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients are linear in grad, u and slope; where the ReLU cuts, and which line a scalar
    reads, does not change with them.
    """
    grad = grad if out is None else grad * (out > 0)
    line, index = lines_at(u, knots, slope)
    both = torch.cat([grad * u[:, :, None], grad], 2)
    target = both.new_zeros(*both.shape[:3], slope.shape[2])
    of_lines = target.scatter_add(-1, index.expand_as(both), both).sum(0)
    return (grad * line).sum(2), of_lines


piecewise_linear_backward_op = custom_op(
    "piecewise_linear_backward",
    "(Tensor grad, Tensor? out, Tensor u, Tensor knots, Tensor slope) -> (Tensor, Tensor)",
    backward,
    fake=_line_gradients,
    plain=_plain_line_gradients,
    flops=lambda grad, out, u, knots, slope: 5 * size_of(u) * slope[1],
)


def _save_lines(ctx: Any, inputs: tuple, output: Tensor) -> None:
    u, knots, slope, _, nonneg = inputs
    ctx.save_for_backward(output if nonneg else None, u, knots, slope)


def _lines_backward(ctx: Any, grad: Tensor) -> tuple:
    # A knot only says which line a scalar reads; ψ is continuous there, so that moving a knot while
    # the lines stay changes nothing to first order. :func:`segments` detaches it for that reason.
    du, lines = piecewise_linear_backward_op(grad, *ctx.saved_tensors)
    return du, None, *lines.chunk(2, 1), None


piecewise_linear_op = custom_op(
    "piecewise_linear",
    "(Tensor u, Tensor knots, Tensor slope, Tensor intercept, bool nonneg) -> Tensor",
    forward,
    fake=_lines,
    plain=plain,
    flops=lambda u, knots, slope, intercept, nonneg: 2 * size_of(u) * slope[1],
    setup_context=_save_lines,
    backward=_lines_backward,
)
