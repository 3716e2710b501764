"""Low-rank changes of a model's linear layers (LoRA), for models too large to train all weights."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import ConversionError
from ...linearization import Replaced


class LowRankChange(nn.Module):
    r"""A linear layer and a change of rank r, :math:`W x + b + B A x`, zero at first.

    The change is in float32 at least, whatever the layer is in, so that small steps change it.

    Args:
        layer: keeps its weights, which are not trained.
        rank: r.

    Example:
        >>> layer = nn.Linear(6, 4)
        >>> changed = LowRankChange(layer, 2)
        >>> torch.equal(changed(torch.ones(1, 6)), layer(torch.ones(1, 6)))
        True
    """

    affine = True

    def __init__(self, layer: nn.Linear, rank: int):
        super().__init__()
        self.layer = layer
        weight = layer.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        like: dict[str, Any] = {"device": weight.device, "dtype": dtype}
        self.down = nn.Parameter(torch.empty(rank, layer.in_features, **like))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank, **like))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        low = F.linear(x.to(self.down.dtype), self.down)
        change = F.linear(low, self.up)
        return out + change.to(out.dtype)

    @property
    def weight(self) -> Tensor:
        """W + B A in W's dtype, for operators that read their layers' weights."""
        weight = self.layer.weight
        change = self.up @ self.down
        return weight + change.to(weight.dtype)

    @property
    def bias(self) -> Tensor | None:
        """The layer's bias."""
        return self.layer.bias

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return the layer with the change added to its weights."""
        self.layer.weight += self.up @ self.down
        return self.layer


class Lora:
    """Low-rank changes of every linear layer inside the converted attention of a model.

    The constructor puts a :class:`LowRankChange` in the place of each of these layers, until
    :meth:`merge`. Only the changes and the feature maps learn.

    Args:
        replaced: the converted model, which is changed in place.
        rank: rank of each change.
        seed: seed of the changes' initial weights. They do not depend on earlier draws, of which a
            resumed conversion makes fewer because it skips finished stages.

    Raises:
        ConversionError: attention without linear layers of torch.

    Reference: Hu et al. 2022, §4.1.
    """

    def __init__(self, replaced: Replaced, rank: int, seed: int):
        self.model = replaced.model
        self.replaced = replaced

        # Subclasses of nn.Linear may compute something else than W x + b, and are left alone.
        attention = tuple(f"{layer.name}." for layer in replaced.layers)
        self.names = []
        for name, module in self.model.named_modules():
            if type(module) is nn.Linear and name.startswith(attention):
                self.names.append(name)
        if not self.names:
            kind = type(self.model).__name__
            raise ConversionError(
                f"lora: expected attention with torch.nn.Linear, got {kind}, whose converted "
                "attention has none; train all weights, lora=None"
            )

        # The caller's random numbers continue as if nothing had been drawn here.
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layers = map(self.model.get_submodule, self.names)
            self.changes = [LowRankChange(layer, rank) for layer in layers]
        for name, change in zip(self.names, self.changes):
            self.model.set_submodule(name, change)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are trained: the changes and the feature maps."""
        changes = []
        for change in self.changes:
            changes += [change.down, change.up]
        return [*changes, *self.replaced.new_parameters().values()]

    def merge(self) -> None:
        """Add the changes to the weights; the model has its own layers again."""
        for name, change in zip(self.names, self.changes):
            self.model.set_submodule(name, change.merged())
