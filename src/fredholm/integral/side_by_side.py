"""Maps of the same features whose parameters lie one above another in memory, so that one matrix
product is all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.backend import MACHINES, transforms


class SideBySide:
    """Layers whose parameters share one piece of memory. Each stays a parameter by itself, by its
    name and with a storage of its own, and whoever writes to it writes there; where gradients are
    recorded it is used by itself as well. :func:`.read_together` says whether they still lie there.

    Args:
        layers: each with its name.
        names: of a layer's weight (out, in) and bias.
        last: whether the last bias is a part of the product; otherwise zeros are.

    Attributes:
        weight, bias: the weights above one another, and the biases or None.
        layers: of each its name, itself, its table of parameters, weight and bias.
        parameters, memory: all of them, and where they lie.

    Example:
        >>> layers = {name: nn.Linear(2, 3) for name in ("query", "key", "value")}
        >>> together = SideBySide(layers)
        >>> nn.init.ones_(layers["key"].weight).sum() == together.weight[3:6].sum()
        tensor(True)
    """

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        names: tuple[str, str] = ("weight", "bias"),
        last: bool = False,
    ):
        self.names = names
        tables: list[Any] = [layer._parameters for layer in layers.values()]
        weights, biases = ([table.get(name) for table in tables] for name in names)
        self.layers = list(zip(layers, layers.values(), tables, weights, biases))
        self.weight: Tensor = torch.cat([x.detach() for x in weights])
        self.bias: Tensor | None = None
        places = list(self.weight.split([x.shape[0] for x in weights]))
        self.parameters = weights
        if biases[0] is not None:
            own = biases[-1].detach()
            parts = [x.detach() for x in biases[:-1]] + ([own] if last else [own * 0, own])
            whole = torch.cat(parts)
            self.bias = whole[: self.weight.shape[0]]
            rows = whole.split([x.shape[0] for x in parts])
            places += [*rows[: len(biases) - 1], rows[-1]]
            self.parameters = weights + biases
        for parameter, place in zip(self.parameters, places):
            # no view: of tensors with one storage, what writes checkpoints keeps one alone
            parameter.data = torch.from_dlpack(place)
        self.memory = [x.data_ptr() for x in self.parameters]


def side_by_side(
    layers: Mapping[str, nn.Module | None],
    kind: type[nn.Module],
    names: tuple[str, str] = ("weight", "bias"),
    last: bool = False,
) -> SideBySide | None:
    """The layers' parameters in one piece of memory; None where they are not plain layers of this
    kind, with parameters of their own, all with or all without bias, which lie on a CPU or GPU and
    are not shared with other processes.
    """
    if torch._C._len_torch_dispatch_stack() or transforms():
        return None
    given: list[Any] = [layer for layer in layers.values() if type(layer) is kind]
    tables = [layer._parameters for layer in given]
    parameters = [x for table in tables for x in map(table.get, names) if x is not None]
    if len(given) < len(layers) or not all(map(_movable, parameters)):
        return None
    alike = {(x.device, x.dtype) for x in parameters}
    own = len({id(x) for x in parameters})
    if len(alike) > 1 or own not in (len(given), 2 * len(given)):
        return None
    return SideBySide(layers, names, last)  # type: ignore[arg-type]


def _movable(x: Tensor) -> bool:
    """Whether a parameter is an ordinary one that this process may lay elsewhere."""
    if type(x) is not nn.Parameter or x.device.type not in MACHINES:
        return False
    return x.device.type != "cpu" or not x.is_shared()  # a GPU's memory always says it is


class Aligned:
    """Base of modules some of whose layers' parameters lie side by side: they do so again after a
    move, a copy and a pickle.
    """

    _aligned: SideBySide | None = None

    def _neighbours(self) -> SideBySide | None:
        """The layers, moved side by side."""
        raise NotImplementedError(f"{type(self).__name__} must define _neighbours()")

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[misc]
        self._aligned = self._neighbours()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in self.__dict__.items() if name != "_aligned"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self._aligned = self._neighbours()
