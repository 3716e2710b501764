"""Operators by name, and files of the user's that register more of them."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..arguments import options_of, parameters_of, unknown
from ..errors import FixedOptionError, OptionError, UnknownOptionError
from ..registry import USER_FILES, Registry

OPERATORS: Registry[Callable[..., Any]] = Registry("operator")
# Operators that are made of others have no formula of their own, and are not listed.
COMBINED = ("sum",)
# The sources of all files that this process has imported by `import_file`.
_IMPORTED: set[bytes] = set()
Factory = TypeVar("Factory", bound=Callable[..., Any])


def register_operator(name: str) -> Callable[[Factory], Factory]:
    """Decorate an operator class or factory ``f(dim, heads=1, **options)`` to register it by name.

    Raises:
        OptionError: the name is already taken.
    """
    return OPERATORS.register(name)


def list_operators() -> list[str]:
    """Return the sorted names of all registered operators, except ``sum``, which needs operators to
    add.

    Example:
        >>> "softmax" in list_operators(), "sum" in list_operators()
        (True, False)
    """
    return [name for name in OPERATORS.names() if name not in COMBINED]


def operator_factory(name: str) -> Callable[..., Any]:
    """Return the class or function that ``create_operator`` calls for a name.

    Raises:
        OptionError: an unknown name.
    """
    return OPERATORS[name]


def create_operator(
    name: str,
    dim: int,
    heads: int = 1,
    *,
    from_data: Mapping[str, Any] | None = None,
    **options,
):
    """Create an operator by its registered name.

    Args:
        name: as in :func:`list_operators`, or ``"sum"``.
        dim, heads: width of u and number of heads.
        from_data: options that follow from the data, such as ``position_dim``. The operator gets
            those that it has, unless it sets them itself or ``options`` has them.
        options: of the operator, see :func:`operator_options`.

    Raises:
        OptionError: an unknown name, or an option the operator does not have.

    Example:
        >>> create_operator("softmax", 16, heads=2).dim
        16
    """
    factory = operator_factory(name)
    if from_data:
        known = options_of(factory)
        further = {key: value for key, value in from_data.items() if key in known}
        try:
            return create_operator(name, dim, heads, **(further | options))
        except FixedOptionError as slip:
            # Only a call tells whether a class with ``**options`` sets one of them itself.
            if slip.name in options or slip.name not in further:
                raise
            del further[slip.name]
        return create_operator(name, dim, heads, from_data=further, **options)

    try:
        return factory(dim, heads, **options)
    except UnknownOptionError as slip:
        # A name that the caller did not give comes from a call inside the factory.
        if slip.name not in options:
            raise
        raise unknown(f"operator {name!r}", slip.name, options_of(factory)) from slip
    except TypeError as error:
        # `Checked` does not check a factory that is a plain function, and Python raises. An error
        # about an argument that the caller did not give comes from a call inside the factory, and
        # stays as it is.
        slip = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if slip is None or slip[1] not in options:
            raise
        raise unknown(f"operator {name!r}", slip[1], options_of(factory)) from error


def operator_options(name: str) -> list[str]:
    """Return the names of an operator's options: its own, and those it passes on to its kernel
    (``options_class``) and the kernel's bases or parts.

    Example:
        >>> {"norm", "decay", "strategy"} <= set(operator_options("infsa"))
        True
    """
    return sorted({parameter.name for parameter in operator_parameters(name)})


def operator_parameters(name: str) -> list[inspect.Parameter]:
    """Return the parameters behind :func:`operator_options`, with annotations and defaults."""
    parameters = parameters_of(operator_factory(name))
    return [p for p in parameters if p.kind is p.KEYWORD_ONLY]


def import_file(path: str | Path):
    """Import a user's Python file, which registers its operators, and return the module.

    Importing executes its code. A file whose content equals that of the last import under its name
    is not executed again.

    The source is compiled here, and byte code in a ``__pycache__`` beside the file is neither read
    nor written: it may differ from the file that the user has read.

    Raises:
        OptionError: no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise OptionError(
            f"import: no such file {str(path)!r}; paths are relative to the recipe, or to the "
            "working folder"
        )

    name = f"{USER_FILES}{path.stem}"
    source = path.read_bytes()
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__fredholm_source__", None) == source:
        return known

    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    module.__fredholm_source__ = source
    sys.modules[name] = module
    try:
        exec(compile(source, path.resolve(), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        # A file that ran in part must not pass for an imported one next time.
        del sys.modules[name]
        raise
    _IMPORTED.add(source)
    return module


def was_imported(path: str | Path) -> bool:
    """Whether this process has already imported a file with exactly this content, so that importing
    it again runs no new code.
    """
    return Path(path).read_bytes() in _IMPORTED
