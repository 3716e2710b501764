"""Parameters that an operator shares with the layer it was made from, when the layer replaces
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ..errors import ConversionError


@dataclass
class Link:
    """One parameter: where the layer keeps it, and where the operator does.

    Attributes:
        owner, name: the layer's module and the parameter's name in it.
        path: its name in the layer, for errors.
        seen: the parameter that both had last.
        places: modules of the operator, and the name in each.
    """

    owner: nn.Module
    name: str
    path: str
    seen: nn.Parameter | None
    places: list[tuple[nn.Module, str]]


class Sharing:
    """What an operator looks at before it answers: whether its layer still has the parameters, and
    the inner layers, that it was made from.

    A replaced parameter of the same shape is taken over, as after
    ``layer.load_state_dict(..., assign=True)`` or ``layer.weight = nn.Parameter(...)``; anything
    else that was replaced is a ConversionError. Modules that layer and operator have in common need
    no look. A copy of the operator, or one that was pickled, shares nothing.

    Cost: one comparison of identities per parameter and inner layer.
    """

    def __init__(self, layer: nn.Module, operator: nn.Module):
        self.layer = type(layer).__name__
        common = {id(module) for module in operator.modules()}
        places: dict[int, list[tuple[nn.Module, str]]] = {}
        for module in operator.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((module, name))
        self.links, self.parts = [], []
        for path, owner in layer.named_modules():
            if id(owner) in common:
                continue
            head = f"{path}." if path else ""
            self.parts += [(owner, n, head + n, m) for n, m in owner._modules.items()]
            self.links += [
                Link(owner, name, head + name, parameter, places.get(id(parameter), []))
                for name, parameter in owner._parameters.items()
            ]

    def follow(self) -> None:
        """Take over what the layer replaced, or a ConversionError."""
        for link in self.links:
            now = link.owner._parameters.get(link.name)
            if now is not link.seen:
                self._take(link, now)
        for owner, name, path, module in self.parts:
            if owner._modules.get(name) is not module:
                raise self._stale(f"its layer {path!r} was replaced")

    def _take(self, link: Link, now: nn.Parameter | None) -> None:
        if now is None or link.seen is None:
            what = "removed" if now is None else "added"
            raise self._stale(f"its parameter {link.path!r} was {what}")
        if now.shape != link.seen.shape:
            sizes = f"{tuple(link.seen.shape)} to {tuple(now.shape)}"
            raise self._stale(f"its parameter {link.path!r} went from {sizes}")
        for module, name in link.places:
            # A parameter that the operator has replaced by itself is no longer shared.
            if module._parameters.get(name) is link.seen:
                setattr(module, name, now)
        link.seen = now

    def _stale(self, what: str) -> ConversionError:
        return ConversionError(
            f"this operator was made from a {self.layer} that has changed since: {what}. Convert "
            "the layer again"
        )

    def __deepcopy__(self, memo) -> None:
        return None

    def __reduce__(self):
        return _nothing, ()


def _nothing() -> None:
    return None
