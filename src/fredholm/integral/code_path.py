"""Checks that a module computes what its class says, because a conversion reads the class."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..errors import ConversionError
from ..registry import qualified_name

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
# transformers records ``attentions`` and ``hidden_states`` by hooks of this module.
RECORDERS = "transformers.utils.output_capturing"
# Methods that a subclass may define without changing what its layer computes.
HARMLESS = {"__init__", "__repr__", "extra_repr", "reset_parameters", "_reset_parameters"}
# Classes of these libraries are read as they are; a class elsewhere that derives from one of them
# is the user's own code.
LIBRARIES = ("torch.", "transformers.", "torch_geometric.", "timm.", "mambapy.", "fredholm.")


def check_path(module: nn.Module) -> None:
    """Check that every module in ``module`` computes what its class says: a conversion reproduces
    the code that was read, and nothing else.

    Raises:
        ConversionError: a ``forward`` or another method replaced on an instance (accelerate, PEFT,
            quantisers), hooks, parametrised weights, compiled or quantised modules, and classes
            outside the libraries that override what they inherit.

    Example:
        >>> check_path(nn.Linear(2, 3))
    """
    if not isinstance(module, nn.Module):
        raise ConversionError(
            f"expected a torch.nn.Module, got {type(module).__name__}; pass the layer itself"
        )
    kind = type(module)
    name = qualified_name(kind)
    if name.startswith(("torch.jit.", "torch._dynamo.")):
        raise ConversionError(f"{name} is a compiled module; convert the module it was made from")
    if "quantized" in kind.__module__ or ".ao." in kind.__module__:
        raise ConversionError(f"{name} is quantised; convert the float module it was made from")

    for path, part in module.named_modules():
        where = type(part).__name__
        if path:
            where += f" at {path!r}"
        _check_instance(part, where)

        # Overrides of the outermost class are the converter look-up's to judge.
        overridden = overrides(type(part))
        if path and overridden:
            raise ConversionError(
                f"{where} overrides {', '.join(overridden)} of the class it derives from, so its "
                "response is not known; convert a layer of that class"
            )


def _check_instance(part: nn.Module, where: str) -> None:
    """Check that one module computes what its class says.

    Args:
        part: the module, without its submodules.
        where: its class and path, for messages.

    Raises:
        ConversionError: a lazy module without weights, a method replaced on the instance, a hook
            that may change the output, or parametrised weights.
    """
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in part._parameters.values()):
        raise ConversionError(f"{where} has seen no input yet and has no weights; call it once")

    replaced = [name for name, value in vars(part).items() if _replaces_method(part, name, value)]
    if replaced:
        raise ConversionError(
            f"{where} has its {', '.join(replaced)} replaced on the instance (as accelerate, PEFT "
            "and quantisers do), which the result would not run; convert the module before it is "
            "wrapped, or unwrap it first"
        )

    # Some modules lack a table of hooks, or have None in its place.
    hooks = (hook for name in HOOKS for hook in (getattr(part, name, None) or {}).values())
    if any(_changes_results(hook) for hook in hooks):
        raise ConversionError(
            f"{where} has hooks, which the result would not run; remove them first"
        )
    if nn.utils.parametrize.is_parametrized(part):
        raise ConversionError(
            f"{where} has parametrised weights (weight norm, spectral norm, LoRA, ...); "
            "call torch.nn.utils.parametrize.remove_parametrizations on a copy first"
        )


def _replaces_method(part: nn.Module, name: str, value: object) -> bool:
    """Whether an attribute of an instance is a function in the place of a method of its class."""
    if not callable(value) or isinstance(value, nn.Module):
        return False
    return callable(getattr(type(part), name, None))


def _changes_results(hook: Any) -> bool:
    """Whether a hook may change a layer's output. The recorders of transformers do not: they stay
    on a model after it was once asked for its attentions.
    """
    return getattr(hook, "__module__", "") != RECORDERS


def overrides(kind: type) -> list[str]:
    """Return the methods that a class outside the libraries defines over those of the library's
    class that it derives from.

    Example:
        >>> class Loud(nn.Linear):
        ...     __module__ = "mine"
        ...     def forward(self, u):
        ...         return 2 * super().forward(u)
        >>> overrides(Loud), overrides(nn.Linear)
        (['forward'], [])
    """
    changed: set[str] = set()
    inherited: type | None = None
    for base in kind.__mro__:
        if base.__module__.startswith(LIBRARIES) or base.__module__ == "torch":
            inherited = base
            break
        changed |= _defined(base)

    # A class of its own, or one that derives from no layer, overrides nothing.
    if inherited is None or inherited is nn.Module:
        return []
    known = {name for name in changed - HARMLESS if hasattr(inherited, name)}
    return sorted(known - {"__module__", "__doc__", "__class__"})


def _defined(kind: type) -> set[str]:
    """Return the names of the methods that a class defines by itself."""
    result = {name for name, value in vars(kind).items() if callable(value)}

    # PyTorch Geometric writes methods into every class from a template of its own.
    generated = getattr(vars(kind).get("_jinja_propagate"), "__module__", None)
    original = getattr(vars(kind).get("_orig_propagate"), "__module__", "")
    if generated is not None and original.startswith(LIBRARIES):
        from_template = {
            name for name in result if getattr(vars(kind)[name], "__module__", None) == generated
        }
        result -= from_template | {"_orig_propagate"}
    return result


def differing(kind: type, base: type) -> list[str]:
    """Return the methods of ``base`` that ``kind``, of the same library, defines anew.

    Example:
        >>> differing(nn.modules.linear.NonDynamicallyQuantizableLinear, nn.Linear)
        []
    """
    between = kind.__mro__[: kind.__mro__.index(base)]
    changed = {name for one in between for name in _defined(one)}
    return sorted(n for n in changed - HARMLESS if hasattr(base, n) and n != "__class__")
