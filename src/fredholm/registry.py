"""Registries: tables of operators, strategies, feature maps, models and converters by name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .arguments import refuse_kind
from .errors import OptionError, suggest

USER_FILES = "fredholm_user_"
"""Prefix of the names of modules that are imported from a user's files."""

Entry = TypeVar("Entry")
Registered = TypeVar("Registered")


def qualified_name(kind: type) -> str:
    """Return a class's module and name, by which it is known without importing it.

    Example:
        >>> from collections import Counter
        >>> qualified_name(Counter)
        'collections.Counter'
    """
    return f"{kind.__module__}.{kind.__qualname__}"


class Registry(Mapping[str, Entry]):
    """A table of names that fills itself.

    The library's own entries are registered by the modules that define them. These are imported at
    the first look-up, so that importing a lower room never needs a higher one.

    Args:
        what: the kind of entry, for errors: ``"operator"``.
        home: module whose import registers the library's own entries, or None.
        attribute: an entry's attribute that receives its name, or None.

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
        self,
        what: str,
        home: str | None = "fredholm.families",
        attribute: str | None = None,
    ):
        self.what, self.home, self.attribute = what, home, attribute
        self._entries: dict[str, Entry] = {}
        self._sources: dict[str, _Source | None] = {}

    def add(self, name: str, entry: Entry) -> Entry:
        """Register ``entry`` as ``name``. The same definition may come twice, when its file is
        imported again; another one may not.

        A definition of the same name in a file of the same name counts as the same, because runs
        keep copies of a user's files. Where the two files differ, a warning names both.
        """
        # A definition from outside must not take a name of the library that is still to come.
        if not _definition(entry).module.startswith("fredholm."):
            self._load()
        known = self._entries.get(name)
        if known is not None and _identity(known) != _identity(entry):
            raise OptionError(
                f"expected a free {self.what} name, but {name!r} is taken by {_origin(known)}; "
                "choose another name"
            )
        source = _source(entry)
        before = self._sources.get(name)
        if known is not None and before is not None and source is not None:
            self._warn_of_other_file(name, before, source)
            if before.content == source.content:
                # Either of two equal files may change later without counting as another one.
                source = source._replace(files=before.files | source.files)
        if self.attribute is not None:
            setattr(entry, self.attribute, name)
        self._entries[name] = entry
        self._sources[name] = source
        return entry

    def _warn_of_other_file(self, name: str, before: _Source, now: _Source) -> None:
        """Warn where an entry replaces that of another file with other content."""
        if now.files <= before.files or before.content == now.content:
            return
        [file] = now.files
        earlier = " and ".join(sorted(map(str, before.files)))
        warnings.warn(
            f"{self.what} {name!r} of {file} replaces that of {earlier}, a file of the "
            "same name with other content; rename one of the files and its entry to have both",
            stacklevel=3,
        )

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
            raise OptionError(f"unknown {self.what} {name!r}{suggest(name, self._entries)}")
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
        """Return the entry named ``name``, or ``default`` where there is none."""
        if name not in self:
            return default
        return self[name]

    def names(self) -> list[str]:
        """Return all names, sorted."""
        self._load()
        return sorted(self._entries)

    def registered(self) -> list[Entry]:
        """Return the entries registered so far, without filling the table: for traced code, which
        cannot import.
        """
        return list(self._entries.values())

    def _load(self) -> None:
        """Import the modules that register the library's own entries, once.

        Setting ``home`` to None records that the table is complete, so that later look-ups import
        nothing.
        """
        if self.home is None:
            return
        # Python's import lock makes other threads wait here. ``home`` is left as it is where the
        # import fails, so that the next look-up imports, and fails, again.
        home = import_module(self.home)

        # This look-up may itself come from a module that ``home`` is importing. The table is not
        # complete then, so it is left to a later look-up to record that it is.
        spec = getattr(home, "__spec__", None)
        if not getattr(spec, "_initializing", False):
            self.home = None


# --- which definitions are the same ---------------------------------------------------------------


class _Source(NamedTuple):
    """The content of a user's file when it registered an entry, and the files that had it."""

    files: frozenset[Path]
    content: bytes


def _source(entry: object) -> _Source | None:
    """Return the file that defines an entry; None for the library's own and where there is none."""
    module = _definition(entry).module
    if module.startswith("fredholm."):
        return None
    name = getattr(sys.modules.get(module), "__file__", None)
    if name is None or not Path(name).is_file():
        return None
    file = Path(name).resolve()
    return _Source(frozenset({file}), file.read_bytes())


class _Definition(NamedTuple):
    """The module and the qualified name of a definition."""

    module: str
    name: str


def _definition(entry: object) -> _Definition:
    """Return where an entry is defined; for an object, where its first function or its class is."""
    named = entry
    if not hasattr(entry, "__qualname__"):
        named = type(entry)
        for value in getattr(entry, "__dict__", {}).values():
            if callable(value) and hasattr(value, "__qualname__"):
                named = value
                break
    module = getattr(named, "__module__", None)
    return _Definition(module or "", getattr(named, "__qualname__", ""))


def _origin(entry: object) -> str:
    """Describe where an entry is defined: ``my_kernel.py (Mine)``, or
    ``fredholm.operators.SoftmaxAttention``.
    """
    module, name = _definition(entry)
    if module.startswith(USER_FILES):
        return f"{module.removeprefix(USER_FILES)}.py ({name})"
    return f"{module}.{name}"


def _module_name(module: str) -> str:
    """Return one name for a module, however its file was loaded: imported alone or from a package,
    run, or named in a recipe.
    """
    if module in ("__main__", "__mp_main__"):
        file = getattr(sys.modules.get(module), "__file__", None)
        module = Path(file or module).stem
    if module.startswith("fredholm."):
        return module
    return module.rpartition(".")[2].removeprefix(USER_FILES)


def _identity(entry: object) -> object:
    """Return a value that is equal for equal definitions.

    - A class or function: its module and qualified name.
    - A dataclass object: its fields one by one, because its functions are new ones when its file
      runs again.
    - Another object that defines no equality: its class. A callable one is equal to itself only,
      because a class may have many of them.
    """
    if hasattr(entry, "__qualname__"):
        module, name = _definition(entry)
        return _module_name(module), name
    if is_dataclass(entry) and not isinstance(entry, type):
        values = (getattr(entry, field.name) for field in fields(entry))
        return type(entry), tuple(_identity(value) for value in values)
    if type(entry).__eq__ is object.__eq__ and not callable(entry):
        return _identity(type(entry))
    return entry
