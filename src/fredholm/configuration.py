"""What the parts of a model are made from: frozen dataclasses, one beside each class."""

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

    A subclass is registered under its ``kind``, and says in :meth:`idle` which of its fields play
    no role beside the others. Such a field is None; written, it is refused.

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
                raise OptionError(f"{field.name}: received {value!r}; needs true or false")

    @classmethod
    def idle(cls, given: Mapping[str, Any]) -> dict[str, str]:
        """The fields that play no role where the others are ``given``, each with the reason."""
        return {}

    @classmethod
    def fields(cls) -> list[str]:
        """The names of all fields."""
        return [field.name for field in dataclasses.fields(cls)]

    def to_dict(self) -> dict[str, Any]:
        """The kind and every field, as JSON takes them."""
        return {"kind": self.kind, **dataclasses.asdict(self)}


def from_dict(table: Registry[type[Part]], given: Mapping[str, Any]) -> Part:
    """The configuration that :meth:`Configuration.to_dict` wrote.

    Raises:
        OptionError: an unknown kind or field.
    """
    fields = dict(given)
    cls = table[fields.pop("kind", None)]
    return cls(**known_fields(cls, fields, table.what))


def known_fields(cls: type[Configuration], fields: dict[str, Any], what: str) -> dict[str, Any]:
    """``fields``, lists as tuples (JSON and YAML have none); an OptionError for unknown ones."""
    names = cls.fields()
    for key in fields:
        if key not in names:
            raise OptionError(f"{what} {cls.kind!r} has no option {key!r}{suggest(key, names)}")
    return {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}


def given(config: Configuration, *names: str) -> dict[str, Any]:
    """The named fields that are not None, as options of a class that has defaults of its own."""
    values = {name: getattr(config, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def image_sides(size: Sequence[int] | int) -> tuple[int, ...]:
    """Height and width of ``size``, a side or both.

    Example:
        >>> image_sides(28), image_sides([16, 32])
        ((28, 28), (16, 32))
    """
    return (size, size) if isinstance(size, int) else tuple(size)


def check_counts(config: Any, *names: str) -> None:
    """OptionError unless these fields are positive integers, or tuples of them; None is left."""
    for name in names:
        value = getattr(config, name)
        for one in value or (0,) if isinstance(value, tuple) else (value,):
            if one is not None and (not isinstance(one, int) or isinstance(one, bool) or one < 1):
                raise OptionError(f"{name}: received {one!r}; needs a positive integer")


def check_rates(config: Any, *names: str) -> None:
    """OptionError unless these fields are rates in [0, 1)."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise OptionError(f"{name}: received {value!r}; needs a rate in [0, 1)")


def check_ratio(value: Any) -> None:
    """OptionError unless ``mlp_ratio`` is a number, 0 or more."""
    if not isinstance(value, int | float) or value < 0:
        raise OptionError(f"mlp_ratio: received {value!r}; needs a number, 0 or more")


def check_known(config: Any, **known: Iterable[str]) -> None:
    """OptionError unless each field is one of its known names."""
    for name, names in known.items():
        value = getattr(config, name)
        if value not in names:
            raise OptionError(f"{name}: received {value!r}{suggest(str(value), names)}")


def check_positive(config: Any, *names: str) -> None:
    """OptionError unless these fields are numbers above 0; None is left."""
    for name in names:
        value = getattr(config, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and value > 0):
            raise OptionError(f"{name}: received {value!r}; needs a number above 0")


def check_heads(dim: int, heads: int) -> None:
    """OptionError unless the heads share the width."""
    if dim % heads:
        raise OptionError(f"heads must divide dim: {heads} does not divide {dim}")


def check_patch(size: Sequence[int], patch: Sequence[int] | int) -> None:
    """OptionError unless the patch, a side or both, divides the image."""
    sides = image_sides(patch)
    if len(sides) != 2 or any(side % part for side, part in zip(size, sides)):
        name = sides[0] if len(set(sides)) == 1 else "x".join(map(str, sides))
        raise OptionError(
            f"the patch must divide the image: {name} does not divide {size[0]}x{size[1]}"
        )
