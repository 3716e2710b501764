"""Which function converts which layer, and what every conversion checks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from torch import nn

from ..errors import ConversionError, OptionError, suggest
from ..registry import Registry
from .operator import IntegralOperator

Converter = Callable[..., IntegralOperator]
Function = TypeVar("Function", bound=Converter)

CONVERTERS: Registry[Converter] = Registry("converter")
"""Converters by the qualified names of the classes they convert."""


def register_converter(*sources: str) -> Callable[[Function], Function]:
    """Decorator: ``f(module, **options) -> IntegralOperator`` converts layers of these classes.

    Args:
        sources: fully qualified class names, ``"torch.nn.modules.conv.Conv1d"``; the package need
            not be installed.
    """

    def register(function: Function) -> Function:
        for source in sources:
            CONVERTERS.add(source, function)
        return function

    return register


def convertible() -> list[str]:
    """Fully qualified names of all classes that :func:`as_operator` understands, sorted.

    Example:
        >>> "torch.nn.modules.conv.Conv2d" in convertible()
        True
    """
    return CONVERTERS.names()


def as_operator(
    module: nn.Module, *, parameters: Literal["shared", "copied"] = "shared", **options: Any
) -> IntegralOperator:
    r"""A classical layer as an integral operator with the same output, the same gradients and an
    explicit kernel.

    .. math:: y = \int K(x, y; u)\,u(y)\,d\mu(y) + W u(x) + \text{offset}

    Args:
        module: a layer with its weights; :func:`convertible` lists the classes.
        parameters: ``"shared"`` keeps the module's own parameters, so that training either trains
            both; ``"copied"`` takes a deep copy first.
        options: of the layer's family, such as ``initial_state`` of a recurrence; see
            ``docs/unification.md``.

    Shape: the operator maps (B, N, dim) to (B, Nq, out_dim), points on the second dimension
    whatever the module's layout; its default domain is the one on which it equals the module.

    Raises:
        ConversionError: an unknown class, or an option of the layer that the conversion does not
            understand, by name.
        OptionError: an option that the family does not have.

    Reference: ITNet Theorems 1-3, Appendices C-E; CKConv App. A.3.

    Example:
        >>> conv = nn.Conv1d(2, 3, 5, padding=2)
        >>> op, u = as_operator(conv), torch.randn(1, 7, 2)
        >>> torch.allclose(op(u), conv(u.mT).mT, atol=1e-6)
        True
    """
    if parameters not in ("shared", "copied"):
        raise OptionError(f"parameters is 'shared' or 'copied', got {parameters!r}")
    convert = _converter(module)
    known = [
        p.name for p in inspect.signature(convert).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    for name in options:
        if name not in known:
            what = f"the conversion of {type(module).__name__} has no option {name!r}"
            raise OptionError(what + (suggest(name, known) if known else "; it has none"))
    if parameters == "copied":
        module = copy.deepcopy(module)
    operator = convert(module, **options)
    _account(module, operator)
    return operator.train(module.training)


def _converter(module: nn.Module) -> Converter:
    """The function for a module's class, or a ConversionError that says what stands in the way."""
    if not isinstance(module, nn.Module):
        raise ConversionError(f"as_operator takes a torch.nn.Module, got {type(module).__name__}")
    kind = type(module)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name.startswith(("torch.jit.", "torch._dynamo.")):
        raise ConversionError(f"{name} is a compiled module; convert the module it was made from")
    if "quantized" in kind.__module__ or ".ao." in kind.__module__:
        raise ConversionError(f"{name} is quantised; convert the float module it was made from")
    if nn.utils.parametrize.is_parametrized(module):
        raise ConversionError(
            f"{kind.__name__} has parametrised weights (weight norm, spectral norm, ...); "
            "call torch.nn.utils.parametrize.remove_parametrizations on a copy first"
        )
    if any(
        getattr(module, hooks)
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    ):
        raise ConversionError(
            f"{kind.__name__} has hooks, which an operator would not run; remove them first"
        )
    found = CONVERTERS.get(name)
    if found is not None:
        return found
    for base in kind.__mro__[1:]:
        if f"{base.__module__}.{base.__qualname__}" in CONVERTERS:
            if kind.forward is base.forward:  # type: ignore[attr-defined]
                return CONVERTERS[f"{base.__module__}.{base.__qualname__}"]
            raise ConversionError(
                f"{name} overrides the forward of {base.__name__}, so its response is not known"
            )
    short = {source.rsplit(".", 1)[-1] for source in CONVERTERS}
    raise ConversionError(f"{name} is not understood{suggest(kind.__name__, short)}")


def _account(module: nn.Module, operator: nn.Module) -> None:
    """Every parameter of the module must be one of the operator's: nothing is dropped in silence."""
    kept = {id(p) for p in operator.parameters()}
    lost = [name for name, p in module.named_parameters() if id(p) not in kept]
    if lost:
        raise ConversionError(
            f"{type(module).__name__}: the parameters {lost} have no place in the operator"
        )


def refuse_dropout(module: nn.Module, rate: float) -> None:
    """ConversionError where dropout is active: a random layer is no integral operator."""
    if module.training and rate:
        raise refuse(
            module,
            f"dropout={rate} in training mode",
            "dropout 0, or evaluation mode: call .eval() first",
        )


def refuse(module: nn.Module, option: str, supported: str) -> ConversionError:
    """The error of a conversion that does not understand an option of a layer."""
    return ConversionError(
        f"{type(module).__name__}({option}) cannot be converted; supported: {supported}"
    )
