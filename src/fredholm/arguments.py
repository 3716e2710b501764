"""Arguments of constructors, checked before anything is computed from them: unknown names, and
values of another kind than the annotation says.

:func:`checked` decorates a function; :class:`Checked` is the metaclass of kernels, operators and
strategies, so that subclasses are checked without further code. Annotations are read where they are
made of :data:`KINDS` and their unions; values under other annotations are not checked.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from .errors import (
    FixedOptionError,
    FredholmError,
    OptionError,
    UnknownOptionError,
    suggest,
)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Device = torch.device | str | int

# Names of other libraries for the same argument.
SYNONYMS = {
    "embed_dim": "dim",
    "d_model": "dim",
    "hidden_size": "dim",
    "num_attention_heads": "heads",
    "nhead": "heads",
}
# Arguments of other libraries that belong to the domain here.
ELSEWHERE = {
    "causal": "order belongs to the domain: Domain.line(n, causal=True)",
    "is_causal": "order belongs to the domain: Domain.line(n, causal=True)",
    "attn_mask": "who sees whom belongs to the domain: Domain.line(n, pairs=mask)",
    "mask": "who sees whom belongs to the domain: Domain.line(n, pairs=mask)",
    "key_padding_mask": "padding belongs to the domain: Domain.line(n, valid=real)",
    "measure": "the measure belongs to the domain: Domain.line(n, measure='counting')",
}
# Counts that are 1 or more.
SIZES = ("dim", "heads", "out_dim", "d_in", "d_out", "position_dim", "width")


# --- kinds of values ------------------------------------------------------------------------------


class Kind(NamedTuple):
    """The values that an annotation allows: in words, and a test of one value."""

    words: str
    fits: Callable[[Any], bool]


def _is_whole(x: Any) -> bool:
    if isinstance(x, (bool, Tensor)):
        return False
    return isinstance(x, (int, torch.SymInt)) or hasattr(x, "__index__")


def _is_number(x: Any) -> bool:
    if isinstance(x, Tensor):
        return x.numel() == 1 and not x.is_complex()
    return hasattr(x, "__float__") and not isinstance(x, (bool, str, bytes))


def _is_flag(x: Any) -> bool:
    # numpy's flags have a class of the same name.
    return type(x).__name__ == "bool"


def _is_device(x: Any) -> bool:
    try:
        return isinstance(x, (str, int, torch.device)) and bool(torch.device(x))
    except (RuntimeError, TypeError):
        return False


def _is_linear(x: Any) -> bool:
    return hasattr(x, "in_features") and hasattr(x, "out_features")


def _all(count: int | None, fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a test for a tuple or list of ``count`` values (None: any number) that all fit."""

    def check(x: Any) -> bool:
        is_sequence = isinstance(x, (tuple, list))
        return is_sequence and count in (None, len(x)) and all(fits(part) for part in x)

    return check


KINDS = {
    "None": Kind("None", lambda x: x is None),
    "int": Kind("a whole number", _is_whole),
    "float": Kind("a number", _is_number),
    "bool": Kind("True or False", _is_flag),
    "str": Kind("a name", lambda x: isinstance(x, str)),
    "Kernel": Kind(
        "a Kernel",
        lambda x: isinstance(x, nn.Module) and hasattr(x, "whole"),
    ),
    "Callable[[Tensor], Tensor]": Kind("a function", callable),
    "Strategy": Kind("a Strategy", lambda x: hasattr(x, "stepping")),
    "Mapping[str, Any]": Kind("a mapping of options", lambda x: isinstance(x, Mapping)),
    "nn.Linear": Kind("a Linear layer", _is_linear),
    "Projections": Kind(
        "a Linear layer or three",
        lambda x: _is_linear(x) or _all(3, _is_linear)(x),
    ),
    "dict[str, Any]": Kind("a dictionary of options", lambda x: isinstance(x, dict)),
    "tuple[str, ...]": Kind(
        "names",
        _all(None, lambda x: isinstance(x, str)),
    ),
    "list[str]": Kind(
        "a list of names",
        _all(None, lambda x: isinstance(x, str)),
    ),
    "tuple[float, float]": Kind("two numbers", _all(2, _is_number)),
    "Sequence[Domain]": Kind(
        "a list of Domains",
        _all(None, lambda x: hasattr(x, "quadrature")),
    ),
    "Tensor": Kind("a tensor", lambda x: isinstance(x, Tensor)),
    "Edges": Kind(
        "edges",
        lambda x: hasattr(x, "log_density") and hasattr(x, "source"),
    ),
    "Domain": Kind("a Domain", lambda x: hasattr(x, "quadrature")),
    "Device": Kind("a device that there is", _is_device),
    "torch.dtype": Kind("a dtype", lambda x: isinstance(x, torch.dtype)),
}


def describe(value: Any) -> str:
    """Describe a value in a few words, for errors.

    Example:
        >>> describe(torch.ones(2, 3)), describe([1, 2]), describe("x")
        ('a tensor of shape (2, 3)', 'a list of 2', "'x'")
    """
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple, dict, set)):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, (str, bytes, int, float, complex)):
        text = repr(value)
        if len(text) > 40:
            return f"{text[:37]}..."
        return text
    return f"a {type(value).__name__}"


def refuse_kind(label: str, value: Any, needed: str) -> str:
    """Return the message for a value that is not a ``needed`` one, with the likely fix."""
    is_list = isinstance(value, (list, tuple))
    fix = ""
    if "a tensor" in needed and is_list:
        fix = "; make one of it by torch.tensor(...)"
    elif "a tensor" in needed and type(value).__module__ == "numpy":
        fix = "; make one of it by torch.from_numpy(...)"
    elif "a whole number" in needed and is_list:
        fix = "; write the numbers one by one, without brackets"
    elif "a Domain" in needed and isinstance(value, Tensor):
        fix = "; make one of positions by Domain.points(positions)"
    return f"{label}: expected {needed}, got {describe(value)}{fix}"


# --- checking a call ------------------------------------------------------------------------------


class Signature(NamedTuple):
    """The facts of a function's signature that a check needs.

    Attributes:
        places: parameters that may be given by position.
        kinds: kinds of the parameters that have a plain annotation.
        names: all parameters with a name.
        required: those without a default.
        rest: the parameter that takes further positions (``*shape``), or None.
        open: whether further names are passed on (``**options``).
    """

    places: list[str]
    kinds: dict[str, list[Kind]]
    names: list[str]
    required: list[str]
    rest: str | None
    open: bool


@cache
def _signature(function: Callable[..., Any]) -> Signature:
    """Return the facts of a function's parameters, ``self`` and ``cls`` left out.

    Each function is read once, because ``inspect.signature`` is slow beside the check of a call.
    Callers share the result, and must not change its lists.
    """
    parsed = Signature([], {}, [], [], None, False)
    for parameter in inspect.signature(function).parameters.values():
        name = parameter.name
        if name in ("self", "cls"):
            continue

        # The annotation of ``*rest`` is that of each further value.
        kinds = _kinds(parameter.annotation)
        if kinds:
            parsed.kinds[name] = kinds
        if parameter.kind is parameter.VAR_POSITIONAL:
            parsed = parsed._replace(rest=name)
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            parsed = parsed._replace(open=True)
            continue
        parsed.names.append(name)
        if parameter.kind is not parameter.KEYWORD_ONLY:
            parsed.places.append(name)
        if parameter.default is parameter.empty:
            parsed.required.append(name)
    return parsed


def _kinds(annotation: Any) -> list[Kind]:
    """Return the kinds of an annotation, none where a part of it is not plain."""
    text = annotation
    if not isinstance(annotation, str):
        text = getattr(annotation, "__name__", "")
    parts = [part.strip() for part in text.split("|")]
    if not all(part in KINDS for part in parts):
        return []
    return [KINDS[part] for part in parts]


def check_call(
    label: str,
    signature: Signature,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    error: type[FredholmError] = OptionError,
) -> None:
    """Raise ``error`` where a call leaves out an argument, has one too many or one of another
    kind.
    """
    places = signature.places
    given = [*zip(places, arguments), *options.items()]
    further = arguments[len(places) :]
    if further and signature.rest is None:
        raise error(
            f"{label}: expected at most {len(places)} arguments without their names, "
            f"{', '.join(places)}, got {len(arguments)} values; name the others"
        )
    given += [(signature.rest or "", value) for value in further]
    names = {name for name, _ in given}
    missing = [name for name in signature.required if name not in names]
    if missing:
        raise error(
            f"{label}: expected {', '.join(missing)}, got nothing; give every argument that has no "
            "default"
        )
    for name, value in given:
        kinds = signature.kinds.get(name)
        if kinds is None:
            continue
        argument = f"{label}({name}=...)"
        if not any(kind.fits(value) for kind in kinds):
            words = " or ".join(kind.words for kind in kinds)
            raise error(refuse_kind(argument, value, words))
        if name in SIZES and value is not None and value < 1:
            raise error(f"{argument}: expected 1 or more, got {value}")


def unknown(
    label: str,
    name: str,
    known: list[str],
) -> UnknownOptionError:
    """Return the error for an unknown argument: where it belongs, or the nearest known name.

    Example:
        >>> str(unknown("SoftmaxAttention", "num_heads", ["dim", "heads"]))
        "SoftmaxAttention has no option 'num_heads'; did you mean 'heads'?"
    """
    if name in ELSEWHERE:
        hint = f"; {ELSEWHERE[name]}"
    elif SYNONYMS.get(name) in known:
        hint = f"; did you mean {SYNONYMS[name]!r}?"
    else:
        hint = suggest(name, known)
    return UnknownOptionError(f"{label} has no option {name!r}{hint}", name=name)


def fixed(label: str, name: str) -> FixedOptionError:
    """Return the error for an argument that a class sets itself.

    Example:
        >>> str(fixed("LunaAttention", "width"))
        "LunaAttention sets 'width' itself; leave it out"
    """
    return FixedOptionError(f"{label} sets {name!r} itself; leave it out", name=name)


# --- where it is used -----------------------------------------------------------------------------


def checked(
    error: type[FredholmError],
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a function so that a call with unknown or unfitting arguments raises ``error``.
    Traced calls are not checked.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        label = function.__qualname__
        first = next(iter(inspect.signature(function).parameters))
        skip = first in ("self", "cls")

        @wraps(function)
        def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
            if not torch.compiler.is_compiling():
                signature = _signature(function)
                for name in options:
                    if name not in signature.names:
                        raise error(str(unknown(label, name, signature.names)))
                check_call(label, signature, arguments[skip:], options, error)
            return function(*arguments, **options)

        return call

    return decorate


class Checked(ABCMeta):
    """Metaclass of classes that are constructed with options: a mistake in them is an
    :class:`~fredholm.errors.OptionError`.
    """

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's signature, as help and documentation show it."""
        signature = inspect.signature(cls.__init__)
        _, *parameters = signature.parameters.values()
        return signature.replace(parameters=parameters)

    if not TYPE_CHECKING:  # type checkers read the constructor itself

        def __call__(cls, *arguments, **options):
            own = _signature(cls.__init__)
            for name in options:
                if not own.open and name not in own.names:
                    raise unknown(cls.__name__, name, options_of(cls))
            check_call(cls.__name__, _constructor(cls), arguments, options)
            try:
                return super().__call__(*arguments, **options)
            except UnknownOptionError as error:
                # Options may be passed on to a kernel. The user needs the names of this class.
                if error.name not in options:
                    raise
                raise unknown(cls.__name__, error.name, options_of(cls)) from error
            except FixedOptionError as error:
                if error.name not in options:
                    raise
                raise fixed(cls.__name__, error.name) from error
            except TypeError as error:
                # Python's own error, where options are passed on to a function. It speaks of an
                # argument where the other value has a position, else of a keyword argument.
                text, _, rest = str(error).partition(" argument '")
                name = rest.partition("'")[0]
                if name in options and text.endswith("unexpected keyword"):
                    raise unknown(cls.__name__, name, options_of(cls)) from error
                if name in options and text.endswith(("values for", "values for keyword")):
                    raise fixed(cls.__name__, name) from error
                raise


@cache
def _constructor(kind: type) -> Signature:
    """Return the constructor's signature, with the kinds of the options that it passes on.

    Where two of the constructors that options reach annotate the same name, the first one counts.
    """
    own = _signature(kind.__init__)
    if not own.open:
        return own
    kinds: dict[str, list[Kind]] = {}
    claimed: set[str] = set()
    for place in _passed_on(kind):
        signature = _signature(place)
        # An option is that of the first constructor that names it, which may take other kinds.
        for name, fitting in signature.kinds.items():
            if name not in claimed:
                kinds[name] = fitting
        claimed.update(signature.names)
    return own._replace(kinds=kinds)


def options_of(factory: Any) -> list[str]:
    """Return the names that a class or function takes: its own, and those that a class passes on.

    A constructor with ``**options`` passes them to that of its base, or to the class that it
    declares as ``options_class``: an operator to its kernel.
    """
    return sorted({parameter.name for parameter in parameters_of(factory)})


def parameters_of(factory: Any) -> list[inspect.Parameter]:
    """Return the parameters behind :func:`options_of`."""
    places = [factory]
    if isinstance(factory, type):
        places = _passed_on(factory)
    found = []
    for place in places:
        for parameter in inspect.signature(place).parameters.values():
            by_name = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            if by_name and parameter.name != "self":
                found.append(parameter)
    return found


def _passed_on(kind: type) -> list[Any]:
    """Return the constructors that options of a class reach: up to one that passes none on."""
    reached = []
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        reached.append(base.__init__)
        if not _signature(base.__init__).open:
            break
        options_class = vars(base).get("options_class")
        if options_class is not None:
            return [*reached, *_passed_on(options_class)]
    return reached
