"""Conversion of layers to operators: the registry of converters, and the checks of every
conversion.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from ..domain import Domain
from ..errors import ConversionError, OptionError, closest, suggest
from ..registry import Registry, qualified_name
from .code_path import check_path, differing, overrides
from .operator import IntegralOperator
from .probe import BATCH
from .probe import probe as run_probe
from .sharing import Sharing

Function = TypeVar("Function", bound=Callable[..., IntegralOperator])


def call_on_points(layer: nn.Module, u: Tensor, domain: Domain) -> Tensor:
    """Return ``layer(u)``: how a layer is called unless its converter is registered with another
    ``call``.
    """
    return layer(u)


@dataclass(frozen=True)
class Converter:
    """The knowledge about a class of layers: how one becomes an operator, and how it is called.

    Attributes:
        convert: ``f(layer, **options) -> IntegralOperator``.
        call: ``f(layer, u, domain, **options)`` returns the layer's output (B, Nq, out_dim) on a
            signal u (B, N, dim) at the points of ``domain``. It returns None where the layer cannot
            be called, or where the options ask for another function than the layer's. It receives
            those of the options that it names.
        domain: ``f(layer) -> Domain``, where layer and operator are compared; by default a small
            domain of the kernel's.
    """

    convert: Callable[..., IntegralOperator]
    call: Callable[..., Tensor | None] = call_on_points
    domain: Callable[[Any], Domain] | None = None


CONVERTERS: Registry[Converter] = Registry("converter", home="fredholm.layers")
"""Converters by the qualified names of the classes they convert."""


def register_converter(
    *sources: str,
    call: Callable[..., Tensor | None] = call_on_points,
    domain: Callable[[Any], Domain] | None = None,
) -> Callable[[Function], Function]:
    """Decorate a function ``f(layer, **options) -> IntegralOperator`` that converts layers of these
    classes.

    Args:
        sources: fully qualified class names, ``"torch.nn.modules.conv.Conv1d"``; the package need
            not be installed.
        call: how to call the layer on points, if not as ``layer(u)``; see
            :class:`Converter`.
        domain: where layer and operator are compared, if the kernel cannot provide a domain (a
            graph).

    Raises:
        OptionError: a class that already has a converter.
    """

    def register(function: Function) -> Function:
        for source in sources:
            CONVERTERS.add(source, Converter(function, call, domain))
        return function

    return register


def convertible() -> list[str]:
    """Return the fully qualified names of all classes that :func:`as_operator` converts, sorted.

    Example:
        >>> "torch.nn.modules.conv.Conv2d" in convertible()
        True
    """
    return CONVERTERS.names()


def as_operator(
    module: nn.Module,
    *,
    parameters: Literal["shared", "copied"] = "shared",
    probe: bool = True,
    **options: Any,
) -> IntegralOperator:
    r"""Return a classical layer as an integral operator with the same output, the same gradients
    and an explicit kernel.

    .. math:: y = \int K(x, y; u)\,u(y)\,d\mu(y) + W u(x) + \text{offset}

    Args:
        module: a layer with its weights; :func:`convertible` lists the classes.
        parameters: ``"shared"`` uses the module's parameters, so that training either trains both.
            A parameter that the module replaces (``load_state_dict(..., assign=True)``) is adopted
            at the next call; any other replacement is an error. ``"copied"`` makes
            a deep copy first.
        probe: compare output and input gradient of module and operator on a small random signal, in
            the module's mode; random state, buffers and gradients are restored. A module on the
            meta device is not compared.
        options: of the layer's family, such as ``initial_state`` of a recurrence; see
            ``docs/unification.md``.

    Shape: the operator maps (B, N, dim) to (B, Nq, out_dim), points on the second dimension
    whatever the module's layout; its default domain is the one on which it equals the module.

    Raises:
        ConversionError: an unknown class, or an option of the layer that the conversion does not
            support (named in the error); a layer whose output differs from that of its class.
        OptionError: an option that the family does not have.

    Reference: ITNet Theorems 1-3, Appendices C-E; CKConv App. A.3.

    Example:
        >>> conv = nn.Conv1d(2, 3, 5, padding=2)
        >>> op, u = as_operator(conv), torch.randn(1, 7, 2)
        >>> torch.allclose(op(u), conv(u.mT).mT, atol=1e-6)
        True
    """
    if parameters not in ("shared", "copied"):
        raise OptionError(
            f"parameters: expected 'shared' or 'copied', got {parameters!r}; 'shared' trains layer "
            "and operator together"
        )
    check_path(module)
    converter = find_converter(module)
    _check_options(module, converter, options)

    if parameters == "copied":
        module = copy.deepcopy(module)
    operator = converter.convert(module, **options).train(module.training)
    _check_parameters(module, operator)
    operator.layer = type(module).__name__
    if parameters == "shared":
        operator.sharing = Sharing(module, operator)
    if probe:
        compare(module, operator, **options)
    return operator


def _check_options(
    module: nn.Module,
    converter: Converter,
    options: dict[str, Any],
) -> None:
    """Raise OptionError for options that the converter does not have."""
    known = _options(converter.convert)
    for name in options:
        if name not in known:
            hint = "; it has none"
            if known:
                hint = suggest(name, known)
            raise OptionError(
                f"the conversion of {type(module).__name__} has no option {name!r}{hint}"
            )


def _options(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's options: its keyword-only arguments."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def compare(
    module: nn.Module,
    operator: IntegralOperator,
    **options: Any,
) -> float | None:
    """Return how far an operator is from the layer that it was made from with these options, on a
    small signal: see :func:`fredholm.integral.probe.probe`.

    Raises:
        ConversionError: further than rounding explains.
    """
    converter = find_converter(module)
    call_options = {name: options[name] for name in _options(converter.call) if name in options}
    if converter.domain is None:
        domain = operator.kernel.small_domain()
    else:
        domain = converter.domain(module)

    def at(u: Tensor) -> Domain:
        """The domain in the precision and on the device of u."""
        dtype = torch.promote_types(u.dtype, torch.float32)
        return domain.to(u.device, dtype)

    return run_probe(
        module,
        lambda u: converter.call(module, u, at(u), **call_options),
        lambda u: operator(u, at(u)),
        (BATCH, domain.size, operator.dim),
        advice="if the layer is called in another way than layer(u), say how: "
        "register_converter(..., call=f) with f(layer, u, domain); probe=False leaves this out",
    )


# --- finding a converter --------------------------------------------------------------------------


def find_converter(module: nn.Module) -> Converter:
    """Return the converter of a module's class, or of a base class that it changes nothing of.

    Raises:
        ConversionError: no converter; the message says what stands in the way.
    """
    kind = type(module)
    name = qualified_name(kind)
    converter = CONVERTERS.get(name)
    if converter is not None:
        return converter

    for base in kind.__mro__[1:]:
        if qualified_name(base) in CONVERTERS:
            changed = overrides(kind) or differing(kind, base)
            if not changed:
                return CONVERTERS[qualified_name(base)]
            raise ConversionError(
                f"{name} overrides {', '.join(changed)} of {base.__name__}, so its response is not "
                f"known; register a converter for it, or convert a {base.__name__}"
            )
    raise ConversionError(f"{name} is not understood{_instead(module)}")


def _instead(module: nn.Module) -> str:
    """Return a hint at what may be converted instead: a class of nearly that name, or parts of the
    module.
    """
    full_names = {source.rsplit(".", 1)[-1]: source for source in CONVERTERS.names()}
    close = closest(type(module).__name__, full_names)
    if close is not None:
        hint = close
        if close == type(module).__name__:
            # A class of the same name lies in another package, which the hint has to name.
            hint = full_names[close]
        return f"; did you mean {hint!r}?"

    parts = []
    for path, part in module.named_modules():
        if path and qualified_name(type(part)) in CONVERTERS:
            parts.append(f"{path} ({type(part).__name__})")
    if parts:
        more = ""
        if len(parts) > 3:
            more = f" and {len(parts) - 3} more"
        return f"; parts of it may be converted one by one: {', '.join(parts[:3])}{more}"
    return f"; fredholm.convert.convertible() lists the {len(CONVERTERS)} classes that are"


# --- refusals -------------------------------------------------------------------------------------


def _check_parameters(module: nn.Module, operator: nn.Module) -> None:
    """Check that the operator has every parameter of the module, so that none is dropped in
    silence.
    """
    present = {id(p) for p in operator.parameters()}
    lost = [name for name, p in module.named_parameters() if id(p) not in present]
    if lost:
        raise ConversionError(
            f"{type(module).__name__}: expected a place in the operator for every parameter, got "
            f"none for {lost}; the converter must use them or refuse the layer"
        )


def refuse_dropout(module: nn.Module, rate: float) -> None:
    """Raise ConversionError where dropout is active: a random layer is not an integral operator."""
    if module.training and rate:
        raise refuse(
            module,
            f"dropout={rate} in training mode",
            "dropout 0, or evaluation mode: call .eval() first",
        )


def refuse_unless(
    module: nn.Module,
    expected: dict[str, Any],
    options: object | None = None,
) -> None:
    """Raise ConversionError where a layer has another value of an option than is understood.

    Args:
        module: the layer.
        expected: values by the names of options.
        options: has them as attributes, where the layer does not.
    """
    for name, value in expected.items():
        got = getattr(options or module, name)
        if got != value:
            raise refuse(module, f"{name}={got!r}", f"{name}={value!r}")


def refuse(module: nn.Module, option: str, supported: str) -> ConversionError:
    """Return the error of a conversion that does not understand an option of a layer.

    Args:
        module: the layer.
        option: the option and its value, as in its constructor.
        supported: values that the conversion understands.

    Example:
        >>> str(refuse(nn.ReLU(), "inplace=True", "inplace=False"))
        'ReLU(inplace=True) cannot be converted; supported: inplace=False'
    """
    return ConversionError(
        f"{type(module).__name__}({option}) cannot be converted; supported: {supported}"
    )
