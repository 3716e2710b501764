"""Models by name."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import OptionError, suggest
from ..registry import Registry


@dataclass(frozen=True)
class Family:
    """A model class, its configuration class, and the presets that carry names."""

    name: str
    model: type[nn.Module]
    config: type[Any]


FAMILIES: Registry[Family] = Registry("model family")
PRESETS: Registry[tuple[Family, Callable[[], Any]]] = Registry("model")


def register_family(name: str, model: type[nn.Module], config: type[Any]) -> Family:
    """Make a family known under the name that its ``config.json`` carries."""
    return FAMILIES.add(name, Family(name, model, config))


def register_model(family: Family, name: str, preset: Callable[[], Any]) -> None:
    """Make ``preset()``, a configuration of ``family``, known by name."""
    PRESETS.add(name, (family, preset))


def family(name: str) -> Family:
    """A family by name, or an OptionError."""
    return FAMILIES[name]


def list_models(pattern: str = "*") -> list[str]:
    """Names of models matching a shell pattern, sorted.

    Example:
        >>> list_models("itnet_s*")
        ['itnet_s', 'itnet_s_compact']
    """
    return sorted(fnmatch.filter(PRESETS.names(), pattern))


def model_config(name: str, **overrides: Any) -> Any:
    """The configuration of a named model with some fields replaced.

    Example:
        >>> model_config("itnet_nano", depth=2).depth
        2

    Another ``operator`` starts from that operator's own defaults unless ``operator_options`` are
    given.

    Raises:
        OptionError: an unknown model or field.
    """
    found, preset = PRESETS[name]
    fields = [f.name for f in dataclasses.fields(found.config)]
    for key in overrides:
        if key not in fields:
            raise OptionError(f"model {name!r} has no option {key!r}{suggest(key, fields)}")
    base = preset()
    if overrides.get("operator", getattr(base, "operator", None)) != getattr(
        base, "operator", None
    ):
        overrides.setdefault(
            "operator_options", {}
        )  # a preset's options belong to its own operator
    return dataclasses.replace(base, **overrides)


def create_model(name: str, **overrides: Any) -> Any:
    """A model by name, freshly initialised. Overrides are fields of its configuration.

    Example:
        >>> model = create_model("itnet_nano", num_classes=3, operator="softmax")
        >>> model(torch.zeros(1, 1, 28, 28)).shape
        torch.Size([1, 3])
    """
    config = model_config(name, **overrides)
    return PRESETS[name][0].model(config)
