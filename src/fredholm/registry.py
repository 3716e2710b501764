"""What is known by name: one table for operators, strategies, feature maps, models
and converters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from .arguments import refuse_kind
from .errors import OptionError, suggest

USER_FILES = "fredholm_user_"  # what the modules of a user's files are called, before their name
Entry = TypeVar("Entry")
Registered = TypeVar("Registered")


def qualified_name(kind: type) -> str:
    """A class by its module and name, by which it is known without importing it.

    Example:
        >>> from collections import Counter
        >>> qualified_name(Counter)
        'collections.Counter'
    """
    return f"{kind.__module__}.{kind.__qualname__}"


class Registry(Mapping[str, Entry]):
    """A table of names that fills itself: the library's own entries are registered by the modules
    that define them, which are imported at the first look-up, so that importing a lower room never
    needs a higher one.

    Args:
        what: what is registered, for errors: ``"operator"``.
        home: module whose import registers the library's own entries, or None.
        attribute: of an entry, where its name is written; None: entries do not know their names.

    Raises:
        OptionError: an unknown name, or one that is taken by something else.

    Example:
        >>> colours: Registry[int] = Registry("colour")
        >>> colours.add("red", 1)
        1
        >>> colours.names(), colours["red"]
        (['red'], 1)
    """

    def __init__(
        self, what: str, home: str | None = "fredholm.families", attribute: str | None = None
    ):
        self.what, self.home, self.attribute = what, home, attribute
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, entry: Entry) -> Entry:
        """Make ``entry`` known as ``name``. The same definition may come twice (a file imported
        again); another one may not. A definition from elsewhere meets all of the library's.
        """
        if not _place(entry)[0].startswith("fredholm."):
            self._load()
        known = self._entries.get(name)
        if known is not None and _identity(known) != _identity(entry):
            raise OptionError(
                f"{self.what} name {name!r} is taken by {_origin(known)}; choose another name"
            )
        if self.attribute is not None:
            setattr(entry, self.attribute, name)
        self._entries[name] = entry
        return entry

    def register(self, name: str) -> Callable[[Registered], Registered]:
        """Decorator form of :meth:`add`.

        Example:
            >>> shapes: Registry[type] = Registry("shape", None, attribute="kind")
            >>> @shapes.register("square")
            ... class Square: ...
            >>> Square.kind, shapes.names()
            ('square', ['square'])
        """

        def decorate(entry: Registered) -> Registered:
            self.add(name, entry)  # type: ignore[arg-type]
            return entry

        return decorate

    def __getitem__(self, name: str) -> Entry:
        if not isinstance(name, str):
            raise OptionError(refuse_kind(self.what, name, "a name"))
        if name not in self:
            known = suggest(str(name), self._entries)
            raise OptionError(f"unknown {self.what} {name!r}{known}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def get(self, name: str, default: Any = None) -> Any:
        """The entry, or ``default`` where there is none."""
        return self[name] if name in self else default  # noqa: SIM401

    def names(self) -> list[str]:
        """All names, sorted."""
        self._load()
        return sorted(self._entries)

    def registered(self) -> list[Entry]:
        """What is registered so far, without filling the table; traced code, which cannot import,
        may ask.
        """
        return list(self._entries.values())

    def _load(self) -> None:
        if self.home is None:
            return
        home = import_module(self.home)  # other threads wait here; a failure is raised again
        spec = getattr(home, "__spec__", None)
        if not getattr(spec, "_initializing", False):  # not from inside that import
            self.home = None


def _place(entry: object) -> tuple[str, str]:
    """The module and the qualified name of a definition; of a dataclass, of one of its
    functions.
    """
    named = entry
    if not hasattr(entry, "__qualname__"):
        values = vars(entry).values() if hasattr(entry, "__dict__") else ()
        named = next((v for v in values if callable(v) and hasattr(v, "__qualname__")), type(entry))
    return getattr(named, "__module__", None) or "", getattr(named, "__qualname__", "")


def _origin(entry: object) -> str:
    """Where a definition stands: ``my_kernel.py (Mine)``, ``fredholm.operators.SoftmaxAttention``;
    of a dataclass, where one of its functions does.
    """
    module, name = _place(entry)
    if module.startswith(USER_FILES):
        return f"{module.removeprefix(USER_FILES)}.py ({name})"
    return f"{module}.{name}"


def _file(module: str) -> str:
    """A module by one name, whether its file is imported, alone or from a package, run or named in
    a recipe.
    """
    if module in ("__main__", "__mp_main__"):
        module = Path(getattr(sys.modules.get(module), "__file__", None) or module).stem
    if module.startswith("fredholm."):
        return module
    return module.rpartition(".")[2].removeprefix(USER_FILES)


def _identity(entry: object) -> object:
    """What makes two definitions the same: module and qualified name where there is one, field by
    field in a dataclass, whose functions are new ones when its file runs again, and the class of
    an object that does not say what it equals; of what is called there may be many in a class.
    """
    if hasattr(entry, "__qualname__"):
        module, name = _place(entry)
        return _file(module), name
    if is_dataclass(entry) and not isinstance(entry, type):
        values = (getattr(entry, field.name) for field in fields(entry))
        return type(entry), tuple(_identity(value) for value in values)
    if type(entry).__eq__ is object.__eq__ and not callable(entry):
        return _identity(type(entry))
    return entry
