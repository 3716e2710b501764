"""Darcy's equation, and media to solve it in."""

from __future__ import annotations

import numpy as np
import torch

from fredholm.errors import DataError, ShapeError, require
from fredholm.lab.data.counter import uniform


def solve_darcy(a: np.ndarray, f: np.ndarray | float = 1.0) -> np.ndarray:
    r"""u of :math:`-\nabla\cdot(a\,\nabla u) = f` on the unit square, u = 0 on its border, at the
    centres of an n × n grid.

    Finite volumes: the flux through a face between two cells is the harmonic mean of their a times
    the difference over h, through the border 2 a u / h; the fluxes of a cell sum to h² f. Symmetric
    positive definite, banded, O(n⁴). Second order where a is smooth.

    Args:
        a: (n, n), positive.
        f: (n, n) or a number.

    Raises:
        ShapeError: an a that is no square grid.
        DataError: an a that is not positive and finite.

    Reference: Patankar 1980, §4.2.

    Example:
        >>> u = solve_darcy(np.ones((8, 8)))
        >>> u.shape, bool(abs(u.max() - 0.0737) < 0.003)
        ((8, 8), True)
    """
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ShapeError(f"a: received {a.shape}; needs a square grid (n, n)")
    if not np.isfinite(a).all() or a.min() <= 0:
        raise DataError(
            f"a: from {a.min()} to {a.max()}; the equation needs a positive, finite coefficient"
        )
    n = len(a)
    linalg = require("scipy.linalg", "train", "solving Darcy's equation")
    down = (
        2 * a[:-1] * a[1:] / (a[:-1] + a[1:])
    )  # conductances of the faces between rows, and between columns
    right = 2 * a[:, :-1] * a[:, 1:] / (a[:, :-1] + a[:, 1:])
    diagonal = np.zeros((n, n))
    for face, first, second in (
        (down, np.s_[:-1], np.s_[1:]),
        (right, np.s_[:, :-1], np.s_[:, 1:]),
    ):
        diagonal[first] += face
        diagonal[second] += face
    for border in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        diagonal[border] += 2 * a[border]
    bands = np.zeros((n + 1, n * n))  # lower form: row d holds entries (i + d, i)
    bands[0] = diagonal.ravel()
    beside = np.zeros((n, n))
    beside[:, :-1] = -right
    bands[1] = beside.ravel()
    bands[n, : n * (n - 1)] = -down.ravel()
    source = np.broadcast_to(np.asarray(f, float), (n, n)) / n**2
    return linalg.solveh_banded(bands, source.ravel(), lower=True).reshape(n, n)


def random_coefficients(
    n: int, count: int, *keys: int, low: float = 3.0, high: float = 12.0
) -> np.ndarray:
    r"""Coefficients (count, n, n) of two values: the sign of a Gaussian field with covariance
    :math:`(-\Delta + 9)^{-2}`, Neumann border.

    The field is a sum of cosines, so the same ``keys`` give the same medium at every resolution.

    Reference: Li et al. 2021 (FNO), A.3.2.

    Example:
        >>> fine, coarse = random_coefficients(32, 2, 7), random_coefficients(16, 2, 7)
        >>> fine.shape, sorted(set(fine.ravel().tolist()))
        ((2, 32, 32), [3.0, 12.0])
    """
    modes = 16
    sample = torch.arange(count)[:, None]
    place = torch.arange(modes * modes)
    u, v = (uniform(*keys, part, sample, place).numpy() for part in (0, 1))
    normal = (np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)).reshape(count, modes, modes)
    k = np.arange(modes)
    spread = 1.0 / (np.pi**2 * (k[:, None] ** 2 + k[None] ** 2) + 9.0)
    spread[0, 0] = 0.0
    wave = np.cos(np.pi * k[:, None] * (np.arange(n)[None] + 0.5) / n)
    field = np.einsum("bkl,ki,lj->bij", normal * spread, wave, wave, optimize=True)
    return np.where(field >= 0, high, low)
