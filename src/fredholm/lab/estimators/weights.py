"""Weights of samples, as scikit-learn's ``sample_weight`` has them."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array, check_consistent_length

from ...errors import OptionError, ShapeError


def check_weights(sample_weight: Any, X: Any) -> np.ndarray | None:
    """Return the weights (N,) of samples in float64; None if there are none.

    Zero weights stay in the result; the estimators leave their samples out.

    Args:
        sample_weight: one weight per sample, a single number for all of them, or None.
        X: the samples.

    Raises:
        ValueError: not as many weights as samples, or a weight that is not finite.
        ShapeError: weights with more than one axis.
        OptionError: a negative weight, or none above zero.
    """
    if sample_weight is None:
        return None
    # scikit-learn takes a single number as well.
    if isinstance(sample_weight, Real):
        sample_weight = np.full(len(X), sample_weight)

    options: dict[str, Any] = {"ensure_2d": False, "dtype": np.float64}
    weights = check_array(sample_weight, input_name="sample_weight", **options)
    if weights.ndim != 1:
        raise ShapeError(f"sample_weight: expected one per sample, (N,), got {weights.shape}")
    check_consistent_length(X, weights)
    if (weights < 0).any():
        row = int((weights < 0).argmax())
        raise OptionError(
            f"sample_weight: expected 0 or more, got {weights[row]:g} of sample {row}; a sample of "
            "weight zero is left out"
        )
    if not weights.any():
        raise OptionError("sample_weight: expected a weight above zero, got zero weights only")
    return weights


def scaled_weights(weights: np.ndarray | None) -> np.ndarray | None:
    """Return weights of mean one; None where they are all equal.

    Example:
        >>> scaled_weights(np.array([1.0, 3.0])), scaled_weights(np.array([2.0, 2.0]))
        (array([0.5, 1.5]), None)
    """
    if weights is None or (weights == weights[0]).all():
        return None
    return weights / weights.mean()
