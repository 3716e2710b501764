"""A solver of Darcy's equation, and random media."""

from __future__ import annotations

import numpy as np
import torch

from fredholm.errors import DataError, ShapeError, require
from fredholm.lab.data.counter import uniform


def solve_darcy(a: np.ndarray, f: np.ndarray | float = 1.0) -> np.ndarray:
    r"""Solve :math:`-\nabla\cdot(a\,\nabla u) = f` on the unit square with u = 0 on the border.

    The solution is returned at the centres of an n × n grid. The method is finite volumes: the flux
    through a face between two cells is the harmonic mean of their a times the difference of u over
    h; through the border it is 2 a u / h; the fluxes of a cell sum to h² f. The matrix is symmetric
    positive definite and banded, so the cost is O(n⁴). The order is 2 where a is smooth.

    Args:
        a: (n, n), positive.
        f: (n, n) or a number.

    Raises:
        ShapeError: a is not a square grid.
        DataError: a is not positive and finite.

    Reference: Patankar 1980, §4.2.

    Example:
        >>> u = solve_darcy(np.ones((8, 8)))
        >>> u.shape, bool(abs(u.max() - 0.0737) < 0.003)
        ((8, 8), True)
    """
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ShapeError(f"a: expected a square grid (n, n), got {a.shape}")
    if not np.isfinite(a).all() or a.min() <= 0:
        raise DataError(f"a: expected a positive, finite coefficient, got {a.min()} to {a.max()}")
    n = len(a)
    linalg = require("scipy.linalg", "train", "solving Darcy's equation")
    # Conductances of the faces between rows, and between columns.
    down = 2 * a[:-1] * a[1:] / (a[:-1] + a[1:])
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
    # The lower form of SciPy: row d has the entries (i + d, i) of the matrix.
    bands = np.zeros((n + 1, n * n))
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
    r"""Return random media (count, n, n) with the two values ``low`` and ``high``.

    They depend on the sign of a Gaussian field with covariance :math:`(-\Delta + 9)^{-2}` and a
    Neumann border. The field is a sum of cosines, so the same ``keys`` give the same medium at
    every resolution.

    Reference: Li et al. 2021 (FNO), A.3.2.

    Example:
        >>> fine, coarse = random_coefficients(32, 2, 7), random_coefficients(16, 2, 7)
        >>> fine.shape, sorted(set(fine.ravel().tolist()))
        ((2, 32, 32), [3.0, 12.0])
    """
    modes = 16
    sample = torch.arange(count)[:, None]
    mode = torch.arange(modes * modes)
    u = uniform(*keys, 0, sample, mode).numpy()
    v = uniform(*keys, 1, sample, mode).numpy()
    # Box and Muller's transform of uniform to normal numbers.
    normal = (np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)).reshape(count, modes, modes)
    k = np.arange(modes)
    spread = 1.0 / (np.pi**2 * (k[:, None] ** 2 + k[None] ** 2) + 9.0)
    spread[0, 0] = 0.0
    wave = np.cos(np.pi * k[:, None] * (np.arange(n)[None] + 0.5) / n)
    field = np.einsum("bkl,ki,lj->bij", normal * spread, wave, wave, optimize=True)
    return np.where(field >= 0, high, low)
