"""Arguments of constructors, checked before anything is computed from them: unknown names, and
values of another kind than the annotation says.

:func:`checked` decorates a function; :class:`Checked` is the metaclass of kernels, operators and
strategies, so that a subclass is checked without a word of its own. Annotations are read where they
are made of :data:`KINDS` and their unions; values under other annotations are not looked at.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from .errors import FredholmError, OptionError, UnknownOptionError, suggest

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Device = torch.device | str | int

# What other libraries call these, and what has another place here.
SYNONYMS = {
    "embed_dim": "dim",
    "d_model": "dim",
    "hidden_size": "dim",
    "num_attention_heads": "heads",
    "nhead": "heads",
}
ELSEWHERE = {
    "causal": "order belongs to the domain: Domain.line(n, causal=True)",
    "is_causal": "order belongs to the domain: Domain.line(n, causal=True)",
    "attn_mask": "who sees whom belongs to the domain: Domain.line(n, pairs=mask)",
    "mask": "who sees whom belongs to the domain: Domain.line(n, pairs=mask)",
    "key_padding_mask": "padding belongs to the domain: Domain.line(n, valid=real)",
    "measure": "the measure belongs to the domain: Domain.line(n, measure='counting')",
}
# At least one of each.
SIZES = ("dim", "heads", "out_dim", "d_in", "d_out", "position_dim", "width")


# --- kinds of values ------------------------------------------------------------------------------


class Kind(NamedTuple):
    """What an annotation asks for: in words, and whether a value is one."""

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
    return isinstance(x, bool) or type(x).__name__ == "bool"  # numpy's too


def _is_device(x: Any) -> bool:
    try:
        return isinstance(x, (str, int, torch.device)) and bool(torch.device(x))
    except (RuntimeError, TypeError):
        return False


def _is_linear(x: Any) -> bool:
    return hasattr(x, "in_features") and hasattr(x, "out_features")


def _all(count: int | None, fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A tuple or list of ``count`` values (None: any number) that all fit."""

    def check(x: Any) -> bool:
        if not isinstance(x, (tuple, list)) or count not in (None, len(x)):
            return False
        return all(fits(part) for part in x)

    return check


KINDS = {
    "None": Kind("None", lambda x: x is None),
    "int": Kind("a whole number", _is_whole),
    "float": Kind("a number", _is_number),
    "bool": Kind("True or False", _is_flag),
    "str": Kind("a name", lambda x: isinstance(x, str)),
    "Kernel": Kind("a Kernel", lambda x: isinstance(x, nn.Module) and hasattr(x, "whole")),
    "Callable[[Tensor], Tensor]": Kind("a function", callable),
    "Strategy": Kind("a Strategy", lambda x: hasattr(x, "stepping")),
    "Mapping[str, Any]": Kind("a mapping of options", lambda x: isinstance(x, Mapping)),
    "nn.Linear": Kind("a Linear layer", _is_linear),
    "Projections": Kind(
        "a Linear layer or three", lambda x: _is_linear(x) or _all(3, _is_linear)(x)
    ),
    "dict[str, Any]": Kind("a dictionary of options", lambda x: isinstance(x, dict)),
    "tuple[str, ...]": Kind("names", _all(None, lambda x: isinstance(x, str))),
    "list[str]": Kind("a list of names", _all(None, lambda x: isinstance(x, str))),
    "tuple[float, float]": Kind("two numbers", _all(2, _is_number)),
    "Sequence[Domain]": Kind("a list of Domains", _all(None, lambda x: hasattr(x, "quadrature"))),
    "Tensor": Kind("a tensor", lambda x: isinstance(x, Tensor)),
    "Edges": Kind("edges", lambda x: hasattr(x, "log_density") and hasattr(x, "source")),
    "Domain": Kind("a Domain", lambda x: hasattr(x, "quadrature")),
    "Device": Kind("a device that there is", _is_device),
    "torch.dtype": Kind("a dtype", lambda x: isinstance(x, torch.dtype)),
}


def describe(value: Any) -> str:
    """A value in a few words, for errors.

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
        return text if len(text) <= 40 else f"{text[:37]}..."
    return f"a {type(value).__name__}"


def refuse_kind(label: str, value: Any, needed: str) -> str:
    """The message of a value that is no ``needed``, with the likely fix."""
    fix = ""
    if "a tensor" in needed and isinstance(value, (list, tuple)):
        fix = "; make one of it by torch.tensor(...)"
    elif "a tensor" in needed and type(value).__module__ == "numpy":
        fix = "; make one of it by torch.from_numpy(...)"
    elif "a whole number" in needed and isinstance(value, (list, tuple)):
        fix = "; write the numbers one by one, without brackets"
    elif "a Domain" in needed and isinstance(value, Tensor):
        fix = "; make one of positions by Domain.points(positions)"
    return f"{label} needs {needed}, got {describe(value)}{fix}"


# --- checking a call ------------------------------------------------------------------------------


class Signature(NamedTuple):
    """What is read off a function once: parameters by position, the kinds of those with a plain
    annotation, all names, those without a default, the name that takes further positions, and
    whether further names are passed on.
    """

    places: list[str]
    kinds: dict[str, list[Kind]]
    names: list[str]
    required: list[str]
    rest: str | None
    open: bool


@cache
def _signature(function: Callable[..., Any]) -> Signature:
    parameters = list(inspect.signature(function).parameters.values())
    parameters = [p for p in parameters if p.name not in ("self", "cls")]
    kinds = {p.name: list(_kinds(p.annotation)) for p in parameters}
    flexible = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    plain = [p for p in parameters if p not in flexible]
    return Signature(
        places=[p.name for p in plain if p.kind is not p.KEYWORD_ONLY],
        kinds={name: wanted for name, wanted in kinds.items() if wanted},
        names=[p.name for p in plain],
        required=[p.name for p in plain if p.default is p.empty],
        rest=next((p.name for p in flexible if p.kind is p.VAR_POSITIONAL), None),
        open=any(p.kind is p.VAR_KEYWORD for p in flexible),
    )


def _kinds(annotation: Any) -> Iterator[Kind]:
    """The kinds of an annotation, none where a part of it is not plain."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    parts = [part.strip() for part in text.split("|")]
    if all(part in KINDS for part in parts):
        yield from (KINDS[part] for part in parts)


def check_call(
    label: str,
    signature: Signature,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    error: type[FredholmError] = OptionError,
) -> None:
    """``error`` where a call leaves out an argument, has one too many or one of another kind."""
    given = list(zip(signature.places, arguments)) + list(options.items())
    more = arguments[len(signature.places) :]
    if more and signature.rest is None:
        most = f"{', '.join(signature.places)} without their names"
        raise error(f"{label} takes {most}, got {len(arguments)} values; name the others")
    given += [(signature.rest or "", value) for value in more]
    names = {name for name, _ in given}
    missing = [name for name in signature.required if name not in names]
    if missing:
        raise error(f"{label} needs {', '.join(missing)}")
    for name, value in given:
        wanted = signature.kinds.get(name)
        if wanted is None:
            continue
        place = f"{label}: {name}"
        if not any(kind.fits(value) for kind in wanted):
            raise error(refuse_kind(place, value, " or ".join(kind.words for kind in wanted)))
        if name in SIZES and value is not None and value < 1:
            raise error(f"{place} must be at least 1, got {value}")


def unknown(label: str, name: str, known: list[str]) -> UnknownOptionError:
    """The error of a name that is no argument: where it belongs, or the nearest that is one.

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


# --- where it is used -----------------------------------------------------------------------------


def checked(
    error: type[FredholmError],
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorator: calls whose arguments are no such arguments raise ``error``. Traced calls are not
    checked.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        label = function.__qualname__
        skip = next(iter(inspect.signature(function).parameters)) in ("self", "cls")

        @wraps(function)
        def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
            if not torch.compiler.is_compiling():
                for name in options:
                    if name not in _signature(function).names:
                        slip = unknown(label, name, _signature(function).names)
                        raise error(str(slip).replace("has no option", "takes no"))
                check_call(label, _signature(function), arguments[skip:], options, error)
            return function(*arguments, **options)

        return call

    return decorate


class Checked(ABCMeta):
    """Metaclass of what is constructed with options: a slip in them is an
    :class:`~fredholm.errors.OptionError`.
    """

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's, as help and documentation show it."""
        signature = inspect.signature(cls.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    if not TYPE_CHECKING:  # type checkers read the constructor itself

        def __call__(cls, *arguments, **options):
            if not _signature(cls.__init__).open:
                for name in options:
                    if name not in _signature(cls.__init__).names:
                        raise unknown(cls.__name__, name, options_of(cls))
            check_call(cls.__name__, _constructor(cls), arguments, options)
            try:
                return super().__call__(*arguments, **options)
            except UnknownOptionError as slip:  # of a kernel that these options were passed on to
                if slip.name not in options:
                    raise
                raise unknown(cls.__name__, slip.name, options_of(cls)) from slip
            except TypeError as slip:  # Python's own, of what the options were passed on to
                text, _, rest = str(slip).partition(" argument '")
                name = rest.partition("'")[0]
                if name not in options or not text.endswith(("keyword", "values for")):
                    raise
                if text.endswith("unexpected keyword"):
                    raise unknown(cls.__name__, name, options_of(cls)) from slip
                raise OptionError(f"{cls.__name__} sets {name!r} itself; leave it out") from slip


@cache
def _constructor(kind: type) -> Signature:
    """The constructor's signature, with the kinds of what it passes on."""
    own = _signature(kind.__init__)
    if not own.open:
        return own
    kinds: dict[str, list[Kind]] = {}
    for place in (*_passed_on(kind), *_passed_on(getattr(kind, "kernel_class", None))):
        kinds = _signature(place).kinds | kinds
    return own._replace(kinds=kinds)


def options_of(factory: Any) -> list[str]:
    """Names that a class or function takes: its own, and where it passes others on, those of its
    ``kernel_class`` or else of its bases.
    """
    return sorted({p.name for p in parameters_of(factory)})


def parameters_of(factory: Any) -> list[inspect.Parameter]:
    """The parameters behind :func:`options_of`."""
    kernel = getattr(factory, "kernel_class", None)
    places = [factory, *_passed_on(kernel)]
    if kernel is None and isinstance(factory, type):
        places = _passed_on(factory)
    return [
        p
        for place in places
        for p in inspect.signature(place).parameters.values()
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"
    ]


def _passed_on(kind: type | None) -> list[Any]:
    """The constructors that a class's options reach: up to the first that takes no others."""
    reached = []
    for base in () if kind is None else kind.__mro__:
        if "__init__" in vars(base):
            reached.append(base.__init__)
            if not _signature(base.__init__).open:
                break
    return reached
