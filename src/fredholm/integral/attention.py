"""What attention kernels share: maps to queries, keys and values, stored as three
layers or as one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import OptionError
from .bases import WeightedKernel
from .problem import Problem, head_width, split_heads

Projections = nn.Linear | tuple[nn.Linear, nn.Linear, nn.Linear]


class TransposedLinear(nn.Linear):
    """A linear layer whose parameter is stored as (in, out), as GPT-2 stores it; ``weight`` is its
    transpose, a view.

    Example:
        >>> layer = TransposedLinear(nn.Parameter(torch.randn(4, 6)))
        >>> layer.weight.shape, layer(torch.zeros(1, 4)).shape
        (torch.Size([6, 4]), torch.Size([1, 6]))
    """

    def __init__(self, stored: nn.Parameter, bias: nn.Parameter | None = None):
        nn.Module.__init__(self)
        self.in_features, self.out_features = stored.shape
        self.stored = stored
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.stored.mT


class AttentionKernel(WeightedKernel):
    """Base of kernels with queries, keys and values: the linear maps, their widths and the value
    bias.

    The value bias is an offset, because the weights of an attention integrate to one.

    Args:
        dim: width of u; every head reads all of it.
        heads: H; must divide ``dim`` where no projections are given.
        bias: biases of the three maps, where no projections are given.
        projections: layers of your own: (query, key, value), or one that maps u to all three, in
            this order. Keys and values may have fewer heads than queries, each shared by a group of
            neighbouring heads.

    Raises:
        OptionError: widths that do not fit one another.
    """

    whole = True

    def __init__(
        self, dim: int, heads: int, *, bias: bool = True, projections: Projections | None = None
    ):
        fresh = projections is None
        if projections is None:
            head_width(dim, heads)
            projections = (
                nn.Linear(dim, dim, bias),
                nn.Linear(dim, dim, bias),
                nn.Linear(dim, dim, bias),
            )
        width, groups, d_out = _widths(dim, heads, projections)
        super().__init__(heads, dim, d_out)
        self.width, self.groups = width, groups
        self.packed = None
        if isinstance(projections, nn.Linear):
            self.packed = projections
        else:
            self.query, self.key, self.value = projections
        if fresh:
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Xavier-uniform weights, each map by itself, and zero biases."""
        for part in range(3):
            weight, bias = self._map(part)
            nn.init.xavier_uniform_(weight)
            if bias is not None:
                nn.init.zeros_(bias)

    def _map(self, part: int) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the queries' (0), keys' (1) or values' (2) map."""
        if self.packed is None:
            layer = (self.query, self.key, self.value)[part]
            return layer.weight, layer.bias
        bias = self.packed.bias
        return self.packed.weight.chunk(3)[part], None if bias is None else bias.chunk(3)[part]

    def _heads(self, u: Tensor, part: int) -> Tensor:
        """Queries, keys or values of (B, 1, N, dim) as (B, H, N, ·); values without bias, keys and
        values of all heads.
        """
        weight, bias = self._map(part)
        flat = F.linear(u.squeeze(1), weight, bias if part < 2 else None)
        return (
            split_heads(flat, self.heads)
            if part == 0
            else self._share(split_heads(flat, self.groups))
        )

    def _all_heads(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the same points: one matrix product where the maps are
        packed.
        """
        if self.packed is None:
            return self._heads(u, 0), self._heads(u, 1), self._heads(u, 2)
        bias = self.packed.bias
        if bias is not None:  # without the values' part, which is the offset
            bias = F.pad(bias[: bias.shape[0] // 3 * 2], (0, bias.shape[0] // 3))
        query, key, value = F.linear(u.squeeze(1), self.packed.weight, bias).chunk(3, -1)
        return (
            split_heads(query, self.heads),
            split_heads(key, self.heads),
            split_heads(value, self.heads),
        )

    def _share(self, u: Tensor) -> Tensor:
        return u if self.groups == self.heads else u.repeat_interleave(self.heads // self.groups, 1)

    def values(self, y: Tensor, uy: Tensor) -> Tensor:
        return self._heads(uy, 2)

    def value_map(self) -> Tensor:
        """V, (H, d_out, dim)."""
        per_group = self._map(2)[0].unflatten(0, (self.groups, self.d_out))
        return (
            per_group
            if self.groups == self.heads
            else per_group.repeat_interleave(self.heads // self.groups, 0)
        )

    def offset(self, problem: Problem) -> Tensor | None:
        bias = self._map(2)[1]
        return None if bias is None else self._share(bias.view(1, self.groups, 1, self.d_out))


def _widths(dim: int, heads: int, projections: Projections) -> tuple[int, int, int]:
    """Width of a query, heads of keys and values, width of a value; OptionError where the layers do
    not fit.
    """
    layers = [projections] if isinstance(projections, nn.Linear) else list(projections)
    if any(layer.in_features != dim for layer in layers):
        got = [layer.in_features for layer in layers]
        raise OptionError(f"projections must read the width of u, {dim}; they read {got}")
    if len(layers) == 1:
        width = layers[0].out_features // (3 * heads)
        if width * 3 * heads != layers[0].out_features:
            got = layers[0].out_features
            raise OptionError(
                f"one projection must give queries, keys and values of {heads} heads; {got} "
                "features do not split"
            )
        return width, heads, width
    query, key, value = (layer.out_features for layer in layers)
    width = head_width(query, heads)
    groups = key // width
    if groups < 1 or groups * width != key or heads % groups or value % groups:
        raise OptionError(
            f"keys of {key} and values of {value} features do not fit {heads} heads of queries of "
            f"width {width}: "
            "their number of heads must divide the queries'"
        )
    return width, groups, value // groups
