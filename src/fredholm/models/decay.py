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
    """Whether a parameter is a weight matrix, which decays."""
    leaf = name.rsplit(".", 1)[-1]
    # Biases have names of their own: one per head is a matrix, and a kernel's b2 is one matrix
    # a head.
    exempt = leaf.startswith("bias") or "fourier" in name or leaf in ("token", "table")
    return parameter.dim() >= 2 and not exempt


def in_todays_order(state: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """What an optimiser of :func:`weight_decay_groups` knew, by the places of today: before, decay
    fell on directions, which stood among the weights in their magnitudes' place.
    """
    named, known = dict(model.named_parameters()), state["state"]

    def order(decays: Mapping[str, bool]) -> list[str]:
        return sorted(named, key=lambda name: not decays[name])

    def fits(names: list[str]) -> bool:
        moments = ((name, known.get(place, {}).get("exp_avg")) for place, name in enumerate(names))
        return all(one is None or one.shape == named[name].shape for name, one in moments)

    today = order(_decays(model))
    before = order({name: is_weight(name, parameter) for name, parameter in named.items()})
    if fits(today) or not fits(before):
        return state
    places = {name: place for place, name in enumerate(before)}
    moved = {
        place: known[places[name]] for place, name in enumerate(today) if places[name] in known
    }
    return {**state, "state": moved}


def _decays(model: nn.Module) -> dict[str, bool]:
    """Of each parameter, whether decay falls on it."""
    own = parts_of_weights(model)
    return {name: own.get(name, is_weight(name, x)) for name, x in model.named_parameters()}


def parts_of_weights(model: nn.Module) -> dict[str, bool]:
    """The parameters that weight matrices are made of, and on which of them decay falls."""
    return {
        f"{path}.{name}" if path else name: decays
        for path, module in model.named_modules()
        if isinstance(module, OwnWeight)
        for name, decays in module.parts.items()
    }


def dropped_weights(model: nn.Module, rate: float) -> dict[str, Tensor]:
    """The weight matrices of a model, each entry zero with probability ``rate`` and otherwise
    divided by 1 - rate; for ``torch.func.functional_call``. A layer whose weight is made of
    other parameters says itself what they are then, by a method ``dropped(rate)``.

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
            head = f"{path}." if path else ""
            result |= {head + name: value for name, value in module.dropped(rate).items()}
    return result


@runtime_checkable
class OwnWeight(Protocol):
    """A layer whose weight matrix is made of other parameters.

    Attributes:
        parts: their names, and whether a decay of the weight is a decay of this one.
    """

    parts: Mapping[str, bool]

    def dropped(self, rate: float) -> dict[str, Tensor]:
        """These parameters where a share ``rate`` of the weight's entries is left out."""
        ...
