"""Weight decay: the parameters that an optimiser decays, and dropout of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.nn import functional


def weight_decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups for an optimiser: one that decays and one that does not, without
    empty ones.

    Weight matrices decay. Biases, norms, tokens, tables of positions, frequencies and kernels'
    output biases do not. Of a weight-normalised matrix g v / |v| only the magnitude g decays,
    because the length of v has no effect.

    Example:
        >>> [len(group["params"]) for group in weight_decay_groups(nn.Linear(2, 2), 0.1)]
        [1, 1]
    """
    decays = _decays(model)
    decaying = []
    constant = []
    for name, parameter in model.named_parameters():
        if decays[name]:
            decaying.append(parameter)
        else:
            constant.append(parameter)
    groups = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": constant, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def is_weight(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a weight matrix, which decays."""
    leaf = name.rsplit(".", 1)[-1]
    # Biases are known by their names: one per head is a matrix, and a kernel's b2 is one matrix per
    # head.
    exempt = leaf.startswith("bias") or "fourier" in name or leaf in ("token", "table")
    return parameter.dim() >= 2 and not exempt


def _decays(model: nn.Module) -> dict[str, bool]:
    """Return whether each parameter decays, by name."""
    own = parts_of_weights(model)
    return {name: own.get(name, is_weight(name, x)) for name, x in model.named_parameters()}


def parts_of_weights(model: nn.Module) -> dict[str, bool]:
    """Return the parameters that weight matrices are made of, and whether each of them decays."""
    result = {}
    for path, module in model.named_modules():
        if isinstance(module, OwnWeight):
            for name, decays in module.parts.items():
                result[_qualified(path, name)] = decays
    return result


def _qualified(path: str, name: str) -> str:
    """Return a parameter's name in the model; the model itself has no path."""
    return f"{path}.{name}".lstrip(".")


def dropped_weights(model: nn.Module, rate: float) -> dict[str, Tensor]:
    """Return the weight matrices of a model for ``torch.func.functional_call``, each entry zero
    with probability ``rate`` and otherwise divided by 1 - rate.

    A layer whose weight is made of other parameters returns these by its method ``dropped(rate)``.

    Reference: Wan et al., Regularization of neural networks using DropConnect, 2013.

    Example:
        >>> import torch
        >>> layer = nn.Linear(100, 10)
        >>> weight = dropped_weights(layer, 0.5)["weight"]
        >>> kept = weight != 0
        >>> torch.equal(weight[kept], 2 * layer.weight[kept]), 400 < int(kept.sum()) < 600
        (True, True)
    """
    own = parts_of_weights(model)
    result = {
        name: functional.dropout(parameter, rate)
        for name, parameter in model.named_parameters()
        if is_weight(name, parameter) and name not in own
    }
    for path, module in model.named_modules():
        if isinstance(module, OwnWeight):
            for name, value in module.dropped(rate).items():
                result[_qualified(path, name)] = value
    return result


@runtime_checkable
class OwnWeight(Protocol):
    """A layer whose weight matrix is made of other parameters.

    Attributes:
        parts: their names, and whether each of them decays when the weight does.
    """

    parts: Mapping[str, bool]

    def dropped(self, rate: float) -> dict[str, Tensor]:
        """Return these parameters for a weight without a random share ``rate`` of its entries."""
        ...
