"""Kernels of regular grids: which keys an output point reads, where the output lives, and on which
domains that means something.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..domain import Domain, default_line
from ..errors import DomainError, OptionError
from ..ops.backend import UNCHANGED, full_precision
from ..validation import cheap_to_read
from .bases import MatrixKernel
from .heads import weighed
from .problem import Layout, Problem, merge_heads
from .window import Window


class LatticeKernel(MatrixKernel):
    """A kernel between points of a regular grid, addressed by index: positions only say where the
    output is drawn.

    Args:
        heads, d_in, d_out: as in :class:`Kernel`.
        windows: one :class:`Window` an axis (or another object with ``size``, ``centre``, ``keeps``
            and ``refusal``).

    Attributes:
        ordered: whether the kernel is defined on a causal line.
    """

    reads_query = False
    sums = True
    ordered = False

    def __init__(self, heads: int, d_in: int, d_out: int, windows: tuple):
        super().__init__(heads, d_in, d_out)
        if len(windows) not in (1, 2, 3):
            raise OptionError(f"a grid has 1, 2 or 3 axes, got {len(windows)} windows")
        self.windows = windows

    # --- where the kernel lives -------------------------------------------------------------------

    def check(self, layout: Layout) -> None:
        name, dims = type(self).__name__, len(self.windows)
        keys = layout.keys
        build = "Domain.line(n)" if dims == 1 else f"Domain.grid({', '.join('hwd'[:dims])})"
        if keys is None or len(keys) != dims:
            got = "points without one" if keys is None else f"a grid of {len(keys)} axes"
            raise DomainError(
                f"{name} needs a regular grid of {dims} axes, got {got}; "
                f"build it with {build}, padding with {build[:-1]}, valid=...)"
            )
        if layout.given:
            raise DomainError(
                f"{name} writes to its own output grid; leave query and query_domain out"
            )
        for n, window in zip(keys, self.windows):
            lacks = window.refusal(n)
            if lacks:
                raise DomainError(f"{name}: {lacks}")
        trouble = self.padding_refusal() if layout.padded else None
        if trouble:
            raise DomainError(
                f"{name} does not serve padding (valid): {trouble}; pass domains of one size "
                "together"
            )
        if layout.causal:
            self._check_order(name, layout)

    def padding_refusal(self) -> str | None:
        """Why padded points, which count as zeros, would not leave the outputs of the real ones as
        they are; or None.
        """
        if any(w.mode != "zeros" for w in self.windows):
            return (
                f"its own padding is {self.windows[0].mode}, which begins where the real points end"
            )
        if len(self.windows) > 1 and not all(w.keeps for w in self.windows):
            return "it changes the grid, and finds the end of the real points on a line only"
        return None

    def _check_order(self, name: str, layout: Layout) -> None:
        if not self.ordered:
            raise DomainError(
                f"{name} reads both directions of its grid; build the domain with causal=False"
            )
        window = self.windows[0]
        if len(self.windows) > 1 or window.stride > 1 or window.mode != "zeros" or layout.pairs:
            what = "one axis, stride 1, zero padding and no pairs"
            raise DomainError(
                f"{name} on a causal domain needs {what}; build the domain with causal=False "
                "otherwise"
            )
        if window.size(0) < 0:
            short = (
                f"it has {-window.size(0)} fewer than points; pad a convolution by dilation * "
                "(kernel_size - 1)"
            )
            raise DomainError(f"{name} on a causal domain needs an output at every point, {short}")

    def default_domain(self, n: int, *, device: torch.device, dtype: torch.dtype) -> Domain:
        if len(self.windows) > 1:
            hint = (
                "Domain.grid(h, w, measure='counting')"
                if len(self.windows) == 2
                else "Domain.grid(d, h, w, ...)"
            )
            raise DomainError(
                f"{n} points do not tell the extents of a grid: pass a domain, such as {hint}"
            )
        return default_line(n, measure="counting", device=device, dtype=dtype)

    def small_domain(self) -> Domain:
        """A grid of other extents along each axis, two outputs along each where there may be."""
        extents = []
        for axis, window in enumerate(self.windows):
            n, enough = 4 + axis, min(2, window.size(10**6))
            while window.refusal(n) or window.size(n) < enough:
                n += 1
            extents.append(n)
        return Domain.grid(*extents, measure="counting")

    def output_domain(self, domain: Domain) -> Domain | None:
        """The grid of the outputs, each in the middle of what it reads; None where it is ``domain``
        itself.

        Masses given point by point have no meaning there, so that the measure becomes uniform;
        ``spacing`` grows by the stride.
        """
        if domain.causal or all(w.keeps for w in self.windows):
            return None
        domain.refuse_shards(f"{type(self).__name__}, whose output is another grid,")
        self.check(Layout.of(domain))
        shape = domain.shape or ()
        sizes = tuple(w.size(n) for w, n in zip(self.windows, shape))
        positions = _lattice(
            domain,
            [
                w.centre(torch.arange(m, device=domain.positions.device), n)
                for w, n, m in zip(self.windows, shape, sizes)
            ],
        )
        kind = domain.kind if domain.kind in ("uniform", "counting", "spacing") else "uniform"
        measure = torch.ones(prod(sizes), dtype=domain.measure.dtype, device=domain.measure.device)
        if kind == "spacing":
            wider = prod(w.centre(1, n) - w.centre(0, n) for w, n in zip(self.windows, shape))
            measure = measure * domain.measure.reshape(-1)[0] * wider
        valid = None
        if (
            domain.valid is not None
        ):  # padding at the end of a line: as many outputs as the real points alone would have
            _refuse_gaps(domain.valid)
            last = (
                domain.valid * torch.arange(1, domain.size + 1, device=domain.valid.device)
            ).amax(-1, keepdim=True)
            valid = torch.arange(sizes[0], device=last.device) < self.windows[0].size(last)
        return Domain(positions, measure, valid, None, False, sizes, kind)

    # --- parts ------------------------------------------------------------------------------------

    @property
    def image_windows(self) -> tuple[Window, ...]:
        """Windows of the image that :func:`read_grid` makes."""
        return self.windows if len(self.windows) > 1 else (Window(1), *self.windows)

    def outputs(self, problem: Problem) -> list[Tensor]:
        """Grid index of each query, one tensor (R,) an axis."""
        extents = problem.layout.queries or ()
        index = problem.index
        if index is None:
            index = torch.arange(problem.ux.shape[2], device=problem.x.device)
        indices = []
        for n in reversed(extents):
            indices.append(index % n)
            index = index.div(n, rounding_mode="floor")
        return indices[::-1]


def _refuse_gaps(valid: Tensor) -> None:
    """DomainError where padding lies before a real point: a stride counts from the first point, and
    outputs of padding alone would pass for real ones; looked for where :func:`cheap_to_read`.
    """
    if valid.shape[-1] < 2 or not cheap_to_read(valid):
        return
    if bool((valid[..., 1:] & ~valid[..., :-1]).any()):
        raise DomainError(
            "a window whose output is another grid needs padding at the end alone; valid has a "
            "real point behind padding: pad on the right"
        )


def _lattice(domain: Domain, axes: list[Tensor]) -> Tensor:
    """Positions at fractional grid indices: the affine map that a regular grid is, (M, p) or (B, M,
    p).
    """
    shape, x = domain.shape or (), domain.positions
    if domain.valid is not None:
        x = torch.where(domain.valid[..., None], x, 0.0)
    places = x[..., :1, :]
    for a, at in enumerate(axes):
        jump = prod(shape[a + 1 :])
        if shape[a] > 1:
            step = x[..., jump : jump + 1, :] - x[..., :1, :]
        else:  # one point has no spacing; a grid's cell has length 1
            step = torch.zeros_like(x[..., :1, :])
            step[..., min(a, x.shape[-1] - 1)] = 1.0
        places = (
            places[..., :, None, :] + at.to(x.dtype)[:, None] * step[..., None, :, :]
        ).flatten(-3, -2)
    return places


def read_grid(problem: Problem, *, masses: bool = True) -> Tensor:
    """u times its masses as an image (B, H·d_in, *grid); a line is an image of one row.

    torch's 2-D code takes channels last as they are, and its 1-D code copies: the image is a view
    of u where masses are one, and in float32 at least where they are not.
    """
    u, grid = problem.uy, problem.layout.keys or ()
    if masses and problem.layout.measure != "counting":
        u = weighed(u, problem.quadrature.mass)
    if len(grid) == 1 and u.shape[1] == 1:
        return u.permute(0, 3, 1, 2)
    return merge_heads(u).mT.unflatten(-1, grid if len(grid) > 1 else (1, *grid))


def summed(problem: Problem) -> AbstractContextManager:
    """Where an image of :func:`read_grid` is summed: outside autocast if it has masses."""
    return UNCHANGED if problem.layout.measure == "counting" else full_precision(problem.uy)


def write_points(image: Tensor, heads: int) -> Float[Tensor, "b h m o"]:
    """(B, H·d_out, *grid) as (B, H, M, d_out)."""
    if heads == 1 and image.dim() == 4 and image.shape[2] == 1:  # of a line
        return image.permute(0, 2, 3, 1)
    flat = image.flatten(2)
    if heads == 1:
        return flat.mT.unsqueeze(1)
    return flat.unflatten(1, (heads, -1)).transpose(2, 3)


def call_on_grid(layer: nn.Module, u: Tensor, domain: Domain) -> Tensor:
    """A layer that takes images (B, C, *grid), on the points of a grid."""
    return layer(u.mT.unflatten(-1, domain.shape or (-1,))).flatten(2).mT
