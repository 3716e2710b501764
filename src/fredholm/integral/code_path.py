"""Whether a module computes what its class says: what is converted is the code that was read."""

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
RECORDERS = "transformers.utils.output_capturing"
# What a subclass may define without changing what its layer computes.
HARMLESS = {"__init__", "__repr__", "extra_repr", "reset_parameters", "_reset_parameters"}
# Whose classes are read as they are; what derives from them elsewhere is somebody's own code.
LIBRARIES = ("torch.", "transformers.", "torch_geometric.", "timm.", "mambapy.", "fredholm.")


def check_path(module: nn.Module) -> None:
    """ConversionError unless every module in ``module`` computes what its class says: what is
    converted is the code that was read, and nothing else.

    Refused by name: a ``forward`` or another method replaced on an instance (accelerate, PEFT,
    quantisers), hooks of any kind, parametrised weights, and classes outside the libraries that
    override what they inherit.
    """
    if not isinstance(module, nn.Module):
        raise ConversionError(f"a torch.nn.Module is converted, got {type(module).__name__}")
    kind = type(module)
    name = qualified_name(kind)
    if name.startswith(("torch.jit.", "torch._dynamo.")):
        raise ConversionError(f"{name} is a compiled module; convert the module it was made from")
    if "quantized" in kind.__module__ or ".ao." in kind.__module__:
        raise ConversionError(f"{name} is quantised; convert the float module it was made from")
    for path, part in module.named_modules():
        where = type(part).__name__ + (f" at {path!r}" if path else "")
        _check_instance(part, where)
        overridden = overrides(type(part))
        if path and overridden:
            raise ConversionError(
                f"{where} overrides {', '.join(overridden)} of the class it derives from, so its "
                "response is not known"
            )


def _check_instance(part: nn.Module, where: str) -> None:
    """What may differ between one module and its class."""
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in part._parameters.values()):
        raise ConversionError(f"{where} has seen no input yet and has no weights; call it once")
    replaced = [
        name
        for name, value in vars(part).items()
        if callable(value)
        and callable(getattr(type(part), name, None))
        and not isinstance(value, nn.Module)
    ]
    if replaced:
        raise ConversionError(
            f"{where} has its {', '.join(replaced)} replaced on the instance (as accelerate, PEFT "
            "and quantisers do), which the result would not run; convert the module before it is "
            "wrapped, or unwrap it first"
        )
    if any(_changes(hook) for name in HOOKS for hook in (getattr(part, name, None) or {}).values()):
        raise ConversionError(
            f"{where} has hooks, which the result would not run; remove them first"
        )
    if nn.utils.parametrize.is_parametrized(part):
        raise ConversionError(
            f"{where} has parametrised weights (weight norm, spectral norm, LoRA, ...); "
            "call torch.nn.utils.parametrize.remove_parametrizations on a copy first"
        )


def _changes(hook: Any) -> bool:
    """Whether a hook may change what is computed: all but those by which transformers notes what it
    gives as ``attentions`` and ``hidden_states``, once it was asked for them.
    """
    return getattr(hook, "__module__", "") != RECORDERS


def overrides(kind: type) -> list[str]:
    """Methods that a class outside the libraries defines over those of the library's class that it
    derives from.

    Example:
        >>> class Loud(nn.Linear):
        ...     __module__ = "mine"
        ...     def forward(self, u):
        ...         return 2 * super().forward(u)
        >>> overrides(Loud), overrides(nn.Linear)
        (['forward'], [])
    """
    changed: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith(LIBRARIES) or base.__module__ == "torch":
            inherited = base
            break
        changed |= _defined(base)
    else:
        return []
    if inherited is nn.Module:  # not derived from a layer: nothing is overridden
        return []
    known = {name for name in changed - HARMLESS if hasattr(inherited, name)}
    return sorted(known - {"__module__", "__doc__", "__class__"})


def _defined(kind: type) -> set[str]:
    """Names of the methods that a class defines by itself."""
    result = {name for name, value in vars(kind).items() if callable(value)}
    # PyTorch Geometric writes these into every class from its own template.
    generated = getattr(vars(kind).get("_jinja_propagate"), "__module__", None)
    original = getattr(vars(kind).get("_orig_propagate"), "__module__", "")
    if generated is not None and original.startswith(LIBRARIES):
        result -= {n for n in result if getattr(vars(kind)[n], "__module__", None) == generated}
        result -= {"_orig_propagate"}
    return result


def differing(kind: type, base: type) -> list[str]:
    """Methods of ``base`` that ``kind``, of the same library, defines anew."""
    between = kind.__mro__[: kind.__mro__.index(base)]
    changed = {n for one in between for n in _defined(one)}
    return sorted(n for n in changed - HARMLESS if hasattr(base, n) and n != "__class__")
