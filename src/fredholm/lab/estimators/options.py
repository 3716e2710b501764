"""Options of an estimator: their checks, and the recipe that is made of them."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ... import models, operators
from ...errors import OptionError, suggest
from ..compare.tasks import small_options
from ..data.memory import MemorySource
from ..training.recipe import Recipe
from ..training.usual import usual_recipe

if TYPE_CHECKING:
    from .base import Estimator

AUTO = "auto"
DEVICES = {"auto": "auto", "cpu": "cpu", "cuda": "gpu"}
"""Our names of devices, and Lightning's."""

OPERATORS = {
    "rows": "softmax",
    "images": "softmax",
    "texts": "softmax",
    "series": "luna",
    "clouds": "luna",
    "fields": "luna",
}
"""The operator that learns each kind of samples in seconds to minutes on a CPU: softmax has all
pairs of few points, LUNA sums over many."""

COUNTS = ("dim", "depth", "heads", "epochs", "batch_size", "patience")


def check_options(estimator: Estimator) -> None:
    """Check an estimator's options, named as the caller gave them.

    Raises:
        OptionError: an option that no training can be made of.
    """
    for name in COUNTS:
        _check_count(name, getattr(estimator, name))
    _check_numbers(estimator)
    _check_operator(estimator.operator)
    if accelerator_of(estimator.device) == "gpu" and not torch.cuda.is_available():
        raise OptionError(
            "device: expected cpu or auto, since PyTorch finds no CUDA device here, got 'cuda'"
        )


def _check_count(name: str, value: Any) -> None:
    if value is None:
        return
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value <= 0:
        raise OptionError(f"{name}: expected a positive whole number or None, got {value!r}")


def _check_numbers(estimator: Estimator) -> None:
    """Check the options that are numbers but not counts, and that ``patience`` has samples.

    ``minutes`` matters only to the comparison of ``operator="auto"``, and is not checked otherwise.

    Raises:
        OptionError: naming the option.
    """
    lr = estimator.lr
    if lr is not None and not _is_positive(lr):
        raise OptionError(f"lr: expected a positive number or None, got {lr!r}")

    share = estimator.validation_fraction
    if share is not None and not (_is_number(share) and 0 <= share < 1):
        raise OptionError(
            "validation_fraction: expected a share of the samples, at least 0 and less than 1, got "
            f"{share!r}"
        )

    minutes = estimator.minutes
    if estimator.operator == AUTO and not _is_positive(minutes):
        raise OptionError(f"minutes: expected a positive number, got {minutes!r}")

    # Patience counts epochs without a lower loss of the held-out samples.
    if estimator.patience is not None and not share:
        raise OptionError(
            f"patience: expected held-out samples beside it, got validation_fraction={share!r}; "
            "set validation_fraction=0.1"
        )


def _check_operator(operator: Any) -> None:
    """Check the name of the operator; None stands for the usual one of the kind of samples.

    Raises:
        OptionError: not a name, or one that is neither an operator nor a baseline nor ``auto``.
    """
    if operator is None:
        return
    if not isinstance(operator, str):
        raise OptionError(
            f"operator: expected the name of one or None, got {operator!r}; "
            "fredholm.operators.list_operators() lists them"
        )
    known = [AUTO, *operators.list_operators(), *models.list_baselines()]
    if operator not in known:
        raise OptionError(f"operator: unknown operator {operator!r}{suggest(operator, known)}")


def accelerator_of(device: Any) -> str:
    """Return Lightning's name of a device.

    Raises:
        OptionError: an unknown device.
    """
    if device not in DEVICES:
        raise OptionError(f"device: expected one of {', '.join(DEVICES)}, got {device!r}")
    return DEVICES[device]


def recipe_sections(estimator: Estimator, source: MemorySource) -> dict[str, Any]:
    """Return the usual recipe of such samples, changed by the options that the caller gave."""
    recipe = usual_recipe(source)
    _set(
        recipe["model"]["body"],
        dim=estimator.dim,
        depth=estimator.depth,
        heads=estimator.heads,
    )
    _set(recipe["data"], batch_size=estimator.batch_size)
    _set(recipe["optimizer"], lr=estimator.lr)
    _set(recipe["training"], epochs=estimator.epochs)

    batch_size = recipe["data"]["batch_size"]
    recipe["data"]["batch_size"] = min(batch_size, len(source.training))
    epochs = recipe["training"]["epochs"]
    recipe["schedule"]["warmup_epochs"] = epochs / 10
    return recipe


def set_operator(recipe: dict[str, Any], operator: str | None, kind: str) -> None:
    """Write the operator into a recipe, by default the usual one of the kind of samples."""
    name = operator
    if name is None:
        name = OPERATORS[kind]
    # The usual recipe may have the operator already, with options that suit the samples.
    if name != recipe["operator"]["name"]:
        recipe["operator"] = {"name": name, **small_options(str(name))}


def recipe_of(sections: dict[str, Any], seed: int) -> Recipe:
    """Return the checked recipe of an estimator's sections."""
    return Recipe.model_validate({"name": "estimator", "seed": seed, **sections})


def plain_number(value: Any) -> Any:
    """Return a NumPy scalar as a Python number, and any other value unchanged.

    Grids of parameters are often NumPy arrays; recipes and their files hold Python's numbers.
    """
    if isinstance(value, np.generic):
        return value.item()
    return value


def _set(section: dict[str, Any], **options: Any) -> None:
    """Write the options that are not None into a section of a recipe."""
    for name, value in options.items():
        if value is not None:
            section[name] = plain_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and bool(0 < value < math.inf)
