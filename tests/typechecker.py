"""The check of annotations in the tests, at every call of the package.

An int passes as a float, as in Python's numeric tower.

jaxtyping's hook binds the arguments of every function once more and checks them twice, so that
sizes agree among arguments and result. A function without shapes in its annotations gets one check
of their types alone, which takes a tenth of the time. A function inside another gets no check,
because the check would be built again at every call of the outer one.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from functools import partial, update_wrapper
from inspect import isfunction
from types import FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

SHAPED = re.compile(r"\b(Bool|Complex|Float|Inexact|Int|Num|Real|Shaped|UInt)\d*\[")
conf = BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError)
checked = beartype(conf=conf)
whole = jaxtyping.jaxtyped


def install() -> None:
    """Check the package from its next import on."""
    # The hook looks up its decorators by this name.
    jaxtyping.jaxtyped = jaxtyped
    jaxtyping.install_import_hook("fredholm", "tests.typechecker.checked")


def jaxtyped(fn: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """Apply ``jaxtyping.jaxtyped`` where an annotation has a shape, or the typechecker alone."""
    if fn is None:
        return partial(jaxtyped, typechecker=typechecker)
    if not isfunction(fn):
        return whole(fn, typechecker=typechecker)
    if any(SHAPED.search(str(hint)) for hint in fn.__annotations__.values()):
        return whole(fn, typechecker=typechecker)
    if "<locals>" in fn.__qualname__:
        return fn
    hints = {name: _resolved(hint, fn.__globals__) for name, hint in fn.__annotations__.items()}
    if any(SHAPED.search(str(hint)) for hint in hints.values()):
        return whole(fn, typechecker=typechecker)
    if all(hint is Any for hint in hints.values()):
        return fn
    plain = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    plain.__kwdefaults__ = fn.__kwdefaults__
    plain.__annotations__ = hints
    plain.__module__, plain.__qualname__ = fn.__module__, fn.__qualname__
    return update_wrapper(typechecker(plain), fn)


def _resolved(hint: Any, names: dict[str, Any]) -> Any:
    """Return an annotation as a type, or Any if only static checks know its names."""
    try:
        return typing.get_type_hints(
            type("one", (), {"__annotations__": {"hint": hint}}), names, include_extras=True
        )["hint"]
    # Evaluating an annotation may raise anything.
    except Exception:
        return Any
