"""Random Fourier features of positions."""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..domain import Domain
from ..errors import OptionError, ShapeError
from ..ops.backend import at_least_single, cast, full_precision, promoted, unrounded
from .contract import prepared

FEW = 1 << 15  # angles that a domain keeps between calls


def check_dimension(x: Tensor, position_dim: int, built: str) -> None:
    """ShapeError for positions of another dimension than something was ``built`` for."""
    if x.shape[-1] != position_dim:
        raise ShapeError(
            f"positions have dimension {x.shape[-1]}, {built} for {position_dim}; pass "
            f"position_dim={x.shape[-1]}, or a domain of {position_dim}-dimensional positions"
        )


class FourierFeatures(nn.Module):
    r""":math:`\gamma(x) = [\cos 2\pi Bx, \sin 2\pi Bx]`, with :math:`B_{ij} \sim N(0, \sigma^2)`.

    B is drawn from a generator of its own, so that all layers and heads built alike share one B, as
    the paper asks, without sharing a tensor and without a draw from the global generator. Its seed
    is that of the last ``torch.manual_seed``: the model of another run has another B.

    Args:
        position_dim: p.
        frequencies: m; γ has 2m values.
        sigma: standard deviation of B, in cycles per unit of position.
        learned: make B a parameter (an ablation) instead of a buffer.
        seed: of the draw; default ``torch.initial_seed()``.

    Shape: (..., p) to (..., 2m), in the positions' own precision or B's (float32 at least, whatever
    a model is cast to, also under autocast). Turns are counted in float64: far from the origin the
    fraction of a turn, which alone counts, would be rounded away.

    Raises:
        OptionError: a non-positive size or scale.
        ShapeError: positions of another dimension than p.

    Reference: ITNet §3; Rahimi and Recht 2007.

    Example:
        >>> FourierFeatures(2, frequencies=4)(torch.zeros(3, 2)).shape
        torch.Size([3, 8])
    """

    keeps_single = True

    def __init__(
        self,
        position_dim: int,
        frequencies: int = 64,
        sigma: float = 10.0,
        learned: bool = False,
        seed: int | None = None,
    ):
        super().__init__()
        if position_dim < 1 or frequencies < 1 or sigma <= 0:
            got = f"position_dim={position_dim}, frequencies={frequencies}, sigma={sigma}"
            raise OptionError(f"Fourier features need positive sizes and scale, got {got}")
        self.frequencies, self.position_dim = frequencies, position_dim
        self.sigma, self.seed = sigma, seed
        dtype = at_least_single(torch.get_default_dtype())
        matrix = torch.empty(frequencies, position_dim, dtype=dtype)
        self.matrix: Tensor
        if learned:
            self.matrix = nn.Parameter(matrix)
        else:
            self.register_buffer("matrix", matrix)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """B as it was drawn, or by the seed of a later ``torch.manual_seed``."""
        seed = torch.initial_seed() if self.seed is None else self.seed
        generator = torch.Generator("cpu").manual_seed(seed)
        options: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
        self.matrix.copy_(
            self.sigma * torch.randn(self.matrix.shape, generator=generator, **options)
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """``.to(bfloat16)`` leaves B in float32: rounded, it has other frequencies."""
        return super()._apply(unrounded(fn), recurse)

    def forward(self, x: Tensor) -> Tensor:
        check_dimension(x, self.position_dim, "these Fourier features were built")
        dtype = promoted(x.dtype, self.matrix.dtype)
        wide = torch.float64 if x.device.type != "mps" else dtype
        with full_precision(x):
            matrix = prepared(self, ("turns", wide), lambda: cast(self.matrix, wide).mT)
            angle = 2 * math.pi * cast((cast(x, wide) @ matrix).frac(), dtype)
            return torch.cat([angle.cos(), angle.sin()], -1)

    def on(self, domain: Domain | None, x: Tensor, name: str = "points") -> Tensor:
        """γ at the positions x of a domain's own points, or at what else of it has a ``name``; few
        of them are kept with the domain.
        """
        matrix = self.matrix
        if domain is None or torch.compiler.is_compiling():
            return self(x)
        plain = type(matrix) is Tensor and not (matrix.requires_grad or matrix.is_inference())
        shared = x.dim() == 2 or x.shape[0] == 1
        if not (plain and shared) or x.shape[-2] * self.frequencies > FEW:
            return self(x)
        table = domain.kept(("γ", name, x.dtype), WeakKeyDictionary)
        known = table.get(self)
        if known is None or known[0] is not matrix or known[1] != matrix._version:
            with torch.inference_mode(False):  # what is kept may meet autograd later
                known = table[self] = matrix, matrix._version, self(x)
        return known[2]

    def extra_repr(self) -> str:
        return f"position_dim={self.position_dim}, frequencies={self.frequencies}"
