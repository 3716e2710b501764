"""An estimator's fitted attributes as JSON."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from ...errors import OptionError
from .options import plain_number

PLAIN = (
    "kind_",
    "operator_",
    "n_iter_",
    "temperature_",
    "history_",
    "n_features_in_",
    "single_",
)
"""Attributes that JSON holds as they are."""


def to_json(estimator: Any, arrays: tuple[str, ...]) -> dict[str, Any]:
    """Return class, parameters and fitted attributes.

    Args:
        estimator: a fitted one.
        arrays: names of attributes that are arrays; those that it does not have are left out.

    Raises:
        OptionError: values of an array that are neither numbers nor words nor dates of NumPy.
    """
    params = estimator.get_params()
    state: dict[str, Any] = {
        "class": type(estimator).__name__,
        "params": {name: plain_number(value) for name, value in params.items()},
    }
    for name in PLAIN:
        if hasattr(estimator, name):
            state[name] = getattr(estimator, name)

    for name in arrays:
        if hasattr(estimator, name):
            values = getattr(estimator, name)
            state[name] = {
                "dtype": str(values.dtype),
                "values": _listed(name, values),
            }
    return state


def from_json(estimator: Any, state: dict[str, Any]) -> None:
    """Set the fitted attributes of :func:`to_json`."""
    for name, value in state.items():
        if not name.endswith("_"):
            continue
        if isinstance(value, dict) and set(value) == {"dtype", "values"}:
            value = np.array(value["values"], dtype=value["dtype"])
        setattr(estimator, name, value)


def _listed(name: str, values: np.ndarray) -> list[Any]:
    """Return the values of an array (n,) as JSON holds them.

    Dates and spans of time become integers that count their unit, such as days since 1970; the
    dtype, which is saved beside them, names the unit.

    Args:
        name: of the attribute, for the error.
        values: the array.

    Raises:
        OptionError: a value that is neither a number nor text.
    """
    if values.dtype.kind in "mM":
        values = values.astype(np.int64)
    listed = [plain_number(value) for value in values.tolist()]
    for value in listed:
        if not isinstance(value, str | Real):
            raise OptionError(
                f"{name}: expected numbers, words or np.datetime64, got {value!r}; fit on such "
                "values to save the estimator"
            )
    return listed
