"""Kernels of regular grids: which keys an output point reads, where the output lives, and which
domains are refused.
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
from .facts import Layout
from .features import weighed
from .problem import Problem, merge_heads
from .window import Window


class LatticeKernel(MatrixKernel):
    """A kernel between points of a regular grid, addressed by index: positions only say where the
    output is drawn.

    Args:
        heads, d_in, d_out: as in :class:`Kernel`.
        windows: one :class:`Window` per axis (or another object with ``size``, ``centre``,
            ``keeps`` and ``refusal``).

    Attributes:
        ordered: whether the kernel is defined on a causal line.

    Raises:
        OptionError: windows for no axis, or for more than three.
    """

    reads_query = False
    sums = True
    ordered = False

    def __init__(
        self,
        heads: int,
        d_in: int,
        d_out: int,
        windows: tuple,
    ):
        super().__init__(heads, d_in, d_out)
        # PyTorch convolves and pools over at most three axes.
        if len(windows) not in (1, 2, 3):
            raise OptionError(
                f"windows: expected one for each of 1, 2 or 3 axes, got {len(windows)}; pass one "
                "per axis of the grid"
            )
        self.windows = windows

    # --- where the kernel lives -------------------------------------------------------------------

    def check(self, layout: Layout) -> None:
        name = type(self).__name__
        self._check_grid(name, layout.keys)
        if layout.given:
            raise DomainError(
                f"{name} writes to its own output grid; leave query and query_domain out"
            )
        for n, window in zip(layout.keys or (), self.windows):
            refusal = window.refusal(n)
            if refusal:
                raise DomainError(f"{name}: {refusal}")

        trouble = None
        if layout.padded:
            trouble = self.padding_refusal()
        if trouble:
            raise DomainError(
                f"{name} does not serve padding (valid): {trouble}; pass domains of one size "
                "together"
            )
        if layout.causal:
            self._check_order(name, layout)

    def _check_grid(self, name: str, keys: tuple[int, ...] | None) -> None:
        """Raise DomainError for keys on no grid, or on one with other axes than the kernel has."""
        axes = len(self.windows)
        if keys is None or len(keys) != axes:
            build = "Domain.line(n)"
            if axes > 1:
                build = f"Domain.grid({', '.join('hwd'[:axes])})"
            got = "points without one"
            if keys is not None:
                got = f"a grid of {len(keys)} axes"
            raise DomainError(
                f"{name} needs a regular grid of {axes} axes, got {got}; "
                f"build it with {build}, padding with {build[:-1]}, valid=...)"
            )

    def padding_refusal(self) -> str | None:
        """Return why padded points, which count as zeros, would change the outputs of the real
        ones; None where they do not.
        """
        if any(w.mode != "zeros" for w in self.windows):
            return (
                f"its own padding is {self.windows[0].mode}, which begins where the real points end"
            )
        if len(self.windows) > 1 and not all(w.keeps for w in self.windows):
            return "it changes the grid, and finds the end of the real points on a line only"
        return None

    def _check_order(self, name: str, layout: Layout) -> None:
        """Raise DomainError where the kernel has no meaning in causal order."""
        if not self.ordered:
            raise DomainError(
                f"{name} reads both directions of its grid; build the domain with causal=False"
            )
        window = self.windows[0]
        if len(self.windows) > 1 or window.stride > 1 or window.mode != "zeros" or layout.pairs:
            raise DomainError(
                f"{name} on a causal domain needs one axis, stride 1, zero padding and no pairs; "
                "build the domain with causal=False otherwise"
            )
        # The size at n = 0 is the number of outputs beyond that of points.
        missing = -window.size(0)
        if missing > 0:
            raise DomainError(
                f"{name} on a causal domain needs an output at every point, it has {missing} fewer "
                "than points; pad a convolution by dilation * (kernel_size - 1)"
            )

    def default_domain(
        self,
        n: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Domain:
        if len(self.windows) > 1:
            example = "Domain.grid(d, h, w, ...)"
            if len(self.windows) == 2:
                example = "Domain.grid(h, w, measure='counting')"
            raise DomainError(
                f"{n} points do not tell the extents of a grid: pass a domain, such as {example}"
            )
        return default_line(n, measure="counting", device=device, dtype=dtype)

    def small_domain(self) -> Domain:
        """Return a grid with other extents along each axis, and two outputs along each where there
        may be two.
        """
        extents = []
        for axis, window in enumerate(self.windows):
            outputs = min(2, window.size(10**6))
            n = 4 + axis
            while window.refusal(n) or window.size(n) < outputs:
                n += 1
            extents.append(n)
        return Domain.grid(*extents, measure="counting")

    def output_domain(self, domain: Domain) -> Domain | None:
        """Return the grid of the outputs, each in the middle of the keys that it reads; None where
        it is ``domain`` itself.

        Masses given point by point have no meaning there, so that the measure becomes uniform;
        ``spacing`` grows by the stride.
        """
        if domain.causal or all(w.keeps for w in self.windows):
            return None
        domain.refuse_shards(f"{type(self).__name__}, whose output is another grid")
        self.check(Layout.of(domain))

        shape = domain.shape or ()
        sizes = []
        centres = []
        for window, n in zip(self.windows, shape):
            outputs = window.size(n)
            index = torch.arange(outputs, device=domain.positions.device)
            sizes.append(outputs)
            centres.append(window.centre(index, n))
        positions = _positions_at(domain, centres)

        kind = domain.kind
        if kind not in ("uniform", "counting", "spacing"):
            kind = "uniform"
        masses = domain.measure
        measure = torch.ones(prod(sizes), dtype=masses.dtype, device=masses.device)
        if kind == "spacing":
            # The cell of an output, in cells of the keys.
            cell = prod(w.centre(1, n) - w.centre(0, n) for w, n in zip(self.windows, shape))
            measure = measure * masses.reshape(-1)[0] * cell

        valid = None
        if domain.valid is not None:
            valid = self._valid_outputs(domain.valid, sizes[0])
        return Domain(
            positions,
            measure,
            valid,
            shape=tuple(sizes),
            kind=kind,
        )

    def _valid_outputs(self, valid: Tensor, outputs: int) -> Tensor:
        """Return which outputs of a line are real: as many as the real points alone would have."""
        _refuse_gaps(valid)
        numbers = torch.arange(1, valid.shape[-1] + 1, device=valid.device)
        real_points = (valid * numbers).amax(-1, keepdim=True)
        window = self.windows[0]
        index = torch.arange(outputs, device=valid.device)
        return index < window.size(real_points)

    # --- parts ------------------------------------------------------------------------------------

    @property
    def image_windows(self) -> tuple[Window, ...]:
        """Windows of the image that :func:`read_grid` makes."""
        if len(self.windows) > 1:
            return self.windows
        return (Window(1), *self.windows)

    def outputs(self, problem: Problem) -> list[Tensor]:
        """Return the grid index of each query, one tensor (R,) per axis."""
        extents = problem.layout.queries or ()
        index = problem.index
        if index is None:
            index = torch.arange(problem.ux.shape[2], device=problem.x.device)

        # The last axis runs fastest.
        indices = []
        for n in reversed(extents):
            indices.append(index % n)
            index = index.div(n, rounding_mode="floor")
        return indices[::-1]


def _refuse_gaps(valid: Tensor) -> None:
    """Raise DomainError where padding lies before a real point: a stride counts from the first
    point, and outputs of padding alone would pass for real ones.

    Values are looked at only where that does not wait for a GPU, see :func:`cheap_to_read`.
    """
    if valid.shape[-1] < 2 or not cheap_to_read(valid):
        return
    behind_padding = valid[..., 1:] & ~valid[..., :-1]
    if bool(behind_padding.any()):
        raise DomainError(
            "a window whose output is another grid needs padding at the end alone; valid has a "
            "real point behind padding: pad on the right"
        )


def _positions_at(domain: Domain, axes: list[Tensor]) -> Tensor:
    """Return the positions of a regular grid at fractional indices, (M, p) or (B, M, p).

    A regular grid is affine: x at index (i, j) is the first point plus i and j times the step of
    each axis.
    """
    shape = domain.shape or ()
    x = domain.positions
    if domain.valid is not None:
        x = torch.where(domain.valid[..., None], x, 0.0)

    first = x[..., :1, :]
    positions = first
    for a, index in enumerate(axes):
        next_point = prod(shape[a + 1 :])
        if shape[a] > 1:
            step = x[..., next_point : next_point + 1, :] - first
        else:
            # An axis of one point has no spacing; a grid's cell has length 1.
            step = torch.zeros_like(first)
            step[..., min(a, x.shape[-1] - 1)] = 1.0
        offsets = index.to(x.dtype)[:, None] * step[..., None, :, :]
        positions = (positions[..., :, None, :] + offsets).flatten(-3, -2)
    return positions


def read_grid(problem: Problem, *, masses: bool = True) -> Tensor:
    """Return u times its masses as an image (B, H·d_in, *grid); a line is an image of one row.

    The image is a view of u where masses are one, and in float32 or better where they are not: a
    half precision may not hold a mass. A line becomes two-dimensional, because torch's 2-D
    convolutions read channels last as they are and its 1-D ones copy.
    """
    u = problem.uy
    grid = problem.layout.keys or ()
    if masses and problem.layout.measure != "counting":
        u = weighed(u, problem.quadrature.mass)
    if len(grid) == 1 and u.shape[1] == 1:
        return u.permute(0, 3, 1, 2)
    image = grid
    if len(grid) == 1:
        image = (1, *grid)
    return merge_heads(u).mT.unflatten(-1, image)


def summed(problem: Problem) -> AbstractContextManager:
    """Return the context in which an image of :func:`read_grid` is summed: outside autocast if it
    has masses.
    """
    if problem.layout.measure == "counting":
        return UNCHANGED
    return full_precision(problem.uy)


def write_points(image: Tensor, heads: int) -> Float[Tensor, "b h m o"]:
    """Return an image (B, H·d_out, *grid) as features by head, (B, H, M, d_out).

    Example:
        >>> write_points(torch.zeros(1, 6, 2, 5), 3).shape
        torch.Size([1, 3, 10, 2])
    """
    # A line is an image of one row, which is the dimension of heads here.
    if heads == 1 and image.dim() == 4 and image.shape[2] == 1:
        return image.permute(0, 2, 3, 1)
    flat = image.flatten(2)
    if heads == 1:
        return flat.mT.unsqueeze(1)
    return flat.unflatten(1, (heads, -1)).transpose(2, 3)


def call_on_grid(layer: nn.Module, u: Tensor, domain: Domain) -> Tensor:
    """Call a layer that takes images (B, C, *grid) on features (B, N, C) of a grid's points."""
    image = u.mT.unflatten(-1, domain.shape or (-1,))
    out = layer(image)
    return out.flatten(2).mT
