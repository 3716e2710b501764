"""Configurations of the parts of a model: frozen dataclasses, one beside each class."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from .errors import OptionError, suggest
from .registry import Registry

Part = TypeVar("Part", bound="Configuration")


@dataclass(frozen=True)
class Configuration:
    """A part of a model as plain values: a frozen dataclass that checks its fields.

    A subclass is registered under its ``kind``, and lists in :meth:`idle` the fields that play no
    role beside the others. Such a field must be None.

    Raises:
        OptionError: a field that plays no role, or a flag that is neither true nor false.
    """

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, why in self.idle(vars(self)).items():
            if getattr(self, name) is not None:
                raise OptionError(f"{name}: plays no role with {why}; remove it")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool) and value not in (True, False):
                raise OptionError(f"{field.name}: expected true or false, got {value!r}")

    @classmethod
    def idle(cls, given: Mapping[str, Any]) -> dict[str, str]:
        """Return the fields that play no role where the others are ``given``, with the reason."""
        return {}

    @classmethod
    def fields(cls) -> list[str]:
        """Return the names of all fields."""
        return [field.name for field in dataclasses.fields(cls)]

    def to_dict(self) -> dict[str, Any]:
        """Return the kind and every field, as plain values for JSON."""
        return {"kind": self.kind, **dataclasses.asdict(self)}


def from_dict(table: Registry[type[Part]], given: Mapping[str, Any]) -> Part:
    """Return the configuration that :meth:`Configuration.to_dict` wrote.

    Raises:
        OptionError: an unknown kind or field.
    """
    fields = dict(given)
    kind = fields.pop("kind", None)
    try:
        cls = table[kind]
    except OptionError as error:
        raise OptionError(f"{error}; if a file registers it, import that file first") from None
    return cls(**known_fields(cls, fields, table.what))


def known_fields(
    cls: type[Configuration],
    fields: dict[str, Any],
    what: str,
) -> dict[str, Any]:
    """Return ``fields`` with lists as tuples, which JSON and YAML do not have.

    Raises:
        OptionError: an unknown field.
    """
    names = cls.fields()
    known = {}
    for key, value in fields.items():
        if key not in names:
            raise OptionError(f"{what} {cls.kind!r} has no option {key!r}{suggest(key, names)}")
        if isinstance(value, list):
            value = tuple(value)
        known[key] = value
    return known


def options_of(config: Configuration, *without: str) -> dict[str, Any]:
    """Return the fields that are set, by name, but those ``without``: None leaves a default."""
    options = {}
    for name in config.fields():
        value = getattr(config, name)
        if name not in without and value is not None:
            options[name] = value
    return options


def image_sides(size: Sequence[int] | int) -> tuple[int, ...]:
    """Return the height and width of ``size``, one side or both.

    Example:
        >>> image_sides(28), image_sides([16, 32])
        ((28, 28), (16, 32))
    """
    if isinstance(size, int):
        return size, size
    return tuple(size)


# --- checks of fields -----------------------------------------------------------------------------


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_counts(config: Any, *names: str) -> None:
    """OptionError unless these fields are positive integers, or tuples of them; None is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        counts = (value,)
        if isinstance(value, tuple):
            # An empty tuple counts as 0.
            counts = value or (0,)
        for count in counts:
            if count is not None and not _is_count(count):
                raise OptionError(f"{name}: expected a positive integer, got {count!r}")


def check_rates(config: Any, *names: str) -> None:
    """OptionError unless these fields are rates in [0, 1)."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise OptionError(f"{name}: expected a rate in [0, 1), got {value!r}")


def check_ratio(value: Any) -> None:
    """OptionError unless ``mlp_ratio`` is a number, 0 or more."""
    if not isinstance(value, int | float) or value < 0:
        raise OptionError(f"mlp_ratio: expected a number of 0 or more, got {value!r}")


def check_known(config: Any, **known: Iterable[str]) -> None:
    """OptionError unless each field is one of its known names."""
    for name, names in known.items():
        check_name(name, getattr(config, name), names)


def check_name(option: str, value: object, known: Iterable[str]) -> None:
    """OptionError unless an option's value is one of its known names."""
    if value not in list(known):
        hint = suggest(str(value), known)
        raise OptionError(f"{option}: expected a known name, got {value!r}{hint}")


def check_positive(config: Any, *names: str) -> None:
    """OptionError unless these fields are numbers above 0; None is allowed."""
    for name in names:
        value = getattr(config, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and value > 0):
            raise OptionError(f"{name}: expected a number above 0, got {value!r}")


def check_heads(dim: int, heads: int) -> None:
    """OptionError unless the heads share the width."""
    if dim % heads:
        raise OptionError(f"expected heads that divide dim={dim}, got heads={heads}")


def check_patch(size: Sequence[int], patch: Sequence[int] | int) -> None:
    """OptionError unless the patch, one side or both, divides the image."""
    sides = image_sides(patch)
    if len(sides) != 2 or any(side % part for side, part in zip(size, sides)):
        image = "x".join(map(str, size))
        got = "x".join(map(str, sides))
        raise OptionError(f"expected a patch that divides the image of {image}, got {got}")
