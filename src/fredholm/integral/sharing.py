"""Parameters that an operator shares with the layer it was made from, and what happens when the
layer replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from ..errors import ConversionError


def own_parameter(x: Tensor) -> nn.Parameter:
    """Return a layer's tensor as a parameter: itself if it is one.

    A Parameter around a Parameter would be trained apart from the layer.

    Example:
        >>> weight = nn.Linear(2, 3).weight
        >>> own_parameter(weight) is weight
        True
    """
    if isinstance(x, nn.Parameter):
        return x
    return nn.Parameter(x)


@dataclass
class Link:
    """One shared parameter: where the layer holds it, and where the operator does.

    Attributes:
        owner, name: the layer's module and the parameter's name in it.
        path: its name in the layer, for errors.
        current: the parameter that both had at the last look.
        places: modules of the operator, and the name in each.
    """

    owner: nn.Module
    name: str
    path: str
    current: nn.Parameter | None
    places: list[tuple[nn.Module, str]]


class InnerLayer(NamedTuple):
    """A submodule of the layer.

    Attributes:
        owner, name: its parent and its name there.
        path: its name in the layer, for errors.
        module: itself at the time of the conversion; None where the parent had none.
    """

    owner: nn.Module
    name: str
    path: str
    module: nn.Module | None


class Sharing:
    """The parameters and inner layers that a layer had when an operator was made from it.

    :meth:`follow` compares them with the layer's present ones. A replaced parameter of the same
    shape is taken over, as after ``layer.load_state_dict(..., assign=True)`` or
    ``layer.weight = nn.Parameter(...)``; any other replacement is a ConversionError. Modules that
    layer and operator have in common need no comparison. A copy of the operator, or one that was
    pickled, shares nothing.

    Args:
        layer: the layer that was converted.
        operator: the operator that was made from it.

    Cost: one comparison of identities per parameter and inner layer.
    """

    def __init__(self, layer: nn.Module, operator: nn.Module):
        self.layer = type(layer).__name__
        common = {id(module) for module in operator.modules()}
        places = _places_of_parameters(operator)

        self.links: list[Link] = []
        self.inner: list[InnerLayer] = []
        for path, owner in layer.named_modules():
            if id(owner) in common:
                continue
            prefix = ""
            if path:
                prefix = f"{path}."
            for name, module in owner._modules.items():
                self.inner.append(InnerLayer(owner, name, prefix + name, module))
            for name, parameter in owner._parameters.items():
                shared = places.get(id(parameter), [])
                self.links.append(Link(owner, name, prefix + name, parameter, shared))

    def follow(self) -> None:
        """Take over the parameters that the layer replaced.

        Raises:
            ConversionError: anything else was replaced, removed or added.
        """
        for link in self.links:
            parameter = link.owner._parameters.get(link.name)
            if parameter is not link.current:
                self._take_over(link, parameter)
        for owner, name, path, module in self.inner:
            if owner._modules.get(name) is not module:
                raise self._stale(f"its layer {path!r} was replaced")

    def _take_over(self, link: Link, parameter: nn.Parameter | None) -> None:
        if parameter is None or link.current is None:
            change = "added"
            if parameter is None:
                change = "removed"
            raise self._stale(f"its parameter {link.path!r} was {change}")
        if parameter.shape != link.current.shape:
            shapes = f"{tuple(link.current.shape)} to {tuple(parameter.shape)}"
            raise self._stale(f"its parameter {link.path!r} went from {shapes}")

        for module, name in link.places:
            # A parameter that the operator has replaced by itself is no longer shared.
            if module._parameters.get(name) is link.current:
                setattr(module, name, parameter)
        link.current = parameter

    def _stale(self, change: str) -> ConversionError:
        return ConversionError(
            f"this operator was made from a {self.layer} that has changed since: {change}. Convert "
            "the layer again"
        )

    # Copies and pickles of an operator share nothing: None stands in their place.

    def __deepcopy__(self, memo) -> None:
        return None

    def __reduce__(self):
        return _nothing, ()


def _places_of_parameters(operator: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """Return the modules and names under which an operator has each parameter, by its identity."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in operator.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    return places


def _nothing() -> None:
    """Return what a pickled operator has in place of its sharing. Pickles name this function."""
