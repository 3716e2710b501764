"""Linear maps of the same features whose parameters lie one above another in memory, so that one
matrix product evaluates all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..ops.backend import MACHINES, transforms


class LayerEntry(NamedTuple):
    """One of the layers of a :class:`SideBySide`.

    Attributes:
        name: its name.
        layer: the module.
        parameters: the module's table of parameters.
        weight, bias: the parameters in it; ``bias`` may be None.
    """

    name: str
    layer: nn.Module
    parameters: dict[str, Any]
    weight: Any
    bias: Any


class SideBySide:
    """Layers whose parameters share one piece of memory.

    On few points one matrix product is faster than three, but to copy three weights beside one
    another at each call costs what it saves (docs/log.md, "Small calls, what is left of them").

    Each remains a parameter by itself, by its name and with a storage of its own, and whoever
    writes to it writes into the common memory. Where gradients are recorded, each layer is used by
    itself. :func:`.read_together` checks whether the parameters still lie there.

    Args:
        layers: each with its name.
        names: of a layer's weight (out, in) and bias.
        last: whether the last bias is a part of the product; otherwise zeros are.

    Attributes:
        weight, bias: the weights above one another, and the biases or None.
        layers: an entry per layer.
        parameters, addresses: of all layers, and where each parameter lies in memory.

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
        weight_name, bias_name = names
        self.layers: list[LayerEntry] = []
        for name, layer in layers.items():
            table = layer._parameters
            entry = LayerEntry(name, layer, table, table.get(weight_name), table.get(bias_name))
            self.layers.append(entry)

        weights = [entry.weight for entry in self.layers]
        self.weight: Tensor = torch.cat([x.detach() for x in weights])
        self.bias: Tensor | None = None
        self.parameters = weights
        places = list(self.weight.split([x.shape[0] for x in weights]))

        biases = [entry.bias for entry in self.layers]
        if biases[0] is not None:
            self.parameters = weights + biases
            places += self._join_biases(biases, last)

        for parameter, place in zip(self.parameters, places):
            # A view would share its storage with the others, and writers of checkpoints save only
            # one of several tensors with the same storage. A tensor from DLPack has its own.
            parameter.data = torch.from_dlpack(place)
        self.addresses = [x.data_ptr() for x in self.parameters]

    def _join_biases(self, biases: list[Any], last: bool) -> list[Tensor]:
        """Join the biases and return the place of each in memory.

        Where the last bias is not a part of the product, zeros stand there, and the bias itself
        lies behind them.
        """
        parts = [x.detach() for x in biases]
        if not last:
            parts.insert(-1, torch.zeros_like(parts[-1]))
        joined = torch.cat(parts)
        self.bias = joined[: self.weight.shape[0]]

        pieces = joined.split([x.shape[0] for x in parts])
        return [*pieces[: len(biases) - 1], pieces[-1]]


def side_by_side(
    layers: Mapping[str, nn.Module | None],
    kind: type[nn.Module],
    names: tuple[str, str] = ("weight", "bias"),
    last: bool = False,
) -> SideBySide | None:
    """Lay the layers' parameters side by side in memory, or return None where that cannot be.

    It takes plain layers of this kind with parameters of their own, all with or all without bias,
    of one dtype, on one CPU or GPU, and not shared with other processes.
    """
    # Fake tensors and tensors of torch.func have no memory to lie in.
    if torch._C._len_torch_dispatch_stack() or transforms():
        return None

    plain: list[Any] = [layer for layer in layers.values() if type(layer) is kind]
    if len(plain) < len(layers):
        return None
    parameters: list[Any] = []
    for layer in plain:
        table = layer._parameters
        parameters += [table[name] for name in names if table.get(name) is not None]
    if not all(map(_movable, parameters)):
        return None

    # One parameter per layer, or two: other numbers mean that only some layers have a bias, or that
    # two layers share a parameter.
    places = {(x.device, x.dtype) for x in parameters}
    distinct = len({id(x) for x in parameters})
    if len(places) > 1 or distinct not in (len(plain), 2 * len(plain)):
        return None
    return SideBySide(layers, names, last)  # type: ignore[arg-type]


def _movable(x: Tensor) -> bool:
    """Whether a parameter is an ordinary one that this process may lay elsewhere."""
    if type(x) is not nn.Parameter or x.device.type not in MACHINES:
        return False
    # A tensor on a GPU always answers that it is shared.
    return x.device.type != "cpu" or not x.is_shared()


class Aligned:
    """Base of modules some of whose layers' parameters lie side by side: they do so again after a
    move, a copy and a pickle.
    """

    _aligned: SideBySide | None = None

    def _neighbours(self) -> SideBySide | None:
        """Lay the layers side by side, or return None where that cannot be."""
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
