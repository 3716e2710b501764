"""An estimator's fitted attributes as JSON."""

from __future__ import annotations

from collections.abc import Mapping
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
        OptionError: values of an array that are neither numbers nor words nor dates of NumPy, or
            names or weights of ``class_weight`` that are neither numbers nor words.
    """
    params = estimator.get_params()
    plain = {name: plain_number(value) for name, value in params.items()}
    if isinstance(plain.get("class_weight"), Mapping):
        plain["class_weight"] = _pairs(plain["class_weight"])
    state: dict[str, Any] = {"class": type(estimator).__name__, "params": plain}
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


def params_of(state: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of :func:`to_json`."""
    params = dict(state["params"])
    if isinstance(params.get("class_weight"), list):
        params["class_weight"] = dict(params["class_weight"])
    return params


def from_json(estimator: Any, state: dict[str, Any]) -> None:
    """Set the fitted attributes of :func:`to_json`."""
    for name, value in state.items():
        if not name.endswith("_"):
            continue
        if isinstance(value, dict) and set(value) == {"dtype", "values"}:
            value = np.array(value["values"], dtype=value["dtype"])
        setattr(estimator, name, value)


def _pairs(weights: Mapping[Any, Any]) -> list[list[Any]]:
    """Return a mapping of classes to weights as pairs: the keys of JSON's objects are texts only.

    Raises:
        OptionError: a class or a weight that JSON does not hold.
    """
    pairs = []
    for name, weight in weights.items():
        pair = [plain_number(name), plain_number(weight)]
        for value in pair:
            if not isinstance(value, str | int | float):
                raise OptionError(
                    f"class_weight: expected numbers or words to save, got {value!r}; fit on such "
                    "classes, and give such weights"
                )
        pairs.append(pair)
    return pairs


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
