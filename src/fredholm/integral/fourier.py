"""Random Fourier features of positions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..domain import Domain
from ..errors import OptionError, ShapeError
from ..ops.backend import at_least_single, cast, full_precision, promoted, unrounded
from .contract import prepared

# Largest number of angles that a domain caches between calls.
FEW_ANGLES = 1 << 15


def check_dimension(x: Tensor, position_dim: int, built: str) -> None:
    """Raise ShapeError for positions of another dimension than something was built for.

    Args:
        x: positions (..., p).
        position_dim: p.
        built: for the message, as ``"these Fourier features were built"``.
    """
    got = x.shape[-1]
    if got != position_dim:
        raise ShapeError(
            f"expected positions of dimension {position_dim}, for which {built}, got {got}; pass "
            f"position_dim={got}, or a domain of {position_dim}-dimensional positions"
        )


class CachedFeatures(NamedTuple):
    """Features that a domain caches, with the matrix B they were made from and its version."""

    matrix: Tensor
    version: int
    features: Tensor


class FourierFeatures(nn.Module):
    r""":math:`\gamma(x) = [\cos 2\pi Bx, \sin 2\pi Bx]`, with :math:`B_{ij} \sim N(0, \sigma^2)`.

    B is drawn from a separate generator, so that all layers and heads of the same configuration
    have the same B, as in the paper, without sharing a tensor and without a draw from the global
    generator. The seed is that of the last ``torch.manual_seed``, so another run has another B.

    Args:
        position_dim: p.
        frequencies: m; γ has 2m values.
        sigma: standard deviation of B, in cycles per unit of position.
        learned: make B a parameter (an ablation) instead of a buffer.
        seed: of the draw; default ``torch.initial_seed()``.

    Shape: (..., p) to (..., 2m), in the higher of the positions' precision and B's. B stays in
    float32 or better whatever a model is cast to. O(N·m·p).

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
            raise OptionError(
                f"Fourier features: expected positive sizes and scale, got "
                f"position_dim={position_dim}, frequencies={frequencies}, sigma={sigma}; make "
                "each of them positive"
            )
        self.frequencies = frequencies
        self.position_dim = position_dim
        self.sigma = sigma
        self.seed = seed

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
        """Draw B again: the same B, or another one after another ``torch.manual_seed``."""
        seed = self.seed
        if seed is None:
            seed = torch.initial_seed()
        generator = torch.Generator("cpu").manual_seed(seed)
        # In float64 on the CPU, so that every dtype and device has the same B up to rounding.
        draws = torch.randn(
            self.matrix.shape,
            generator=generator,
            dtype=torch.float64,
            device="cpu",
        )
        self.matrix.copy_(self.sigma * draws)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Leave B in float32 where a module is cast to half precision: rounded, it would have other
        frequencies.
        """
        return super()._apply(unrounded(fn), recurse)

    def forward(self, x: Tensor) -> Tensor:
        check_dimension(x, self.position_dim, "these Fourier features were built")
        dtype = promoted(x.dtype, self.matrix.dtype)
        # Only the fraction of a turn counts. Float32 has 24 bits, so that at 2^10 turns 14 of them
        # are left for the fraction; turns are therefore counted in float64, which mps lacks.
        wide = torch.float64
        if x.device.type == "mps":
            wide = dtype
        with full_precision(x):
            matrix = prepared(self, ("turns", wide), lambda: cast(self.matrix, wide).mT)
            turns = cast(x, wide) @ matrix
            angle = 2 * math.pi * cast(turns.frac(), dtype)
            return torch.cat([angle.cos(), angle.sin()], -1)

    def on(
        self,
        domain: Domain | None,
        x: Tensor,
        name: str = "points",
    ) -> Tensor:
        """Return γ at positions that belong to a domain, cached with it where they are few.

        Args:
            domain: whose positions they are, or None for others.
            x: positions (..., N, p).
            name: which of the domain's positions: its points, its displacements.
        """
        matrix = self.matrix
        if domain is None or torch.compiler.is_compiling():
            return self(x)
        unversioned = matrix.requires_grad or matrix.is_inference()
        plain = type(matrix) is Tensor and not unversioned
        shared = x.dim() == 2 or x.shape[0] == 1
        if not (plain and shared) or x.shape[-2] * self.frequencies > FEW_ANGLES:
            return self(x)

        # An entry is valid for one matrix, until that is written to.
        table = domain.kept(("γ", name, x.dtype), WeakKeyDictionary)
        known = table.get(self)
        if known is None or known.matrix is not matrix or known.version != matrix._version:
            # In inference mode the result would be a tensor that autograd refuses later.
            with torch.inference_mode(False):
                known = CachedFeatures(matrix, matrix._version, self(x))
            table[self] = known
        return known.features

    def extra_repr(self) -> str:
        return f"position_dim={self.position_dim}, frequencies={self.frequencies}"
