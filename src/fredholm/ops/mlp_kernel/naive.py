"""The MLP kernel's integral in its plainest form: what the tiled op must equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..activations import activation_named
from ..distance import distances


def hidden_pairs(
    groups: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str = "gelu",
) -> Float[Tensor, "b h q k w"]:
    r"""Hidden units of a kernel network, literally: inputs concatenated pair by pair, then layer
    after layer.

    .. math:: h_{ij} = \sigma(W_L \cdots \sigma(W_1 z_{ij} + b_1) \cdots + b_L), \qquad z_{ij} = [g^1_{ij}, g^2_{ij}, \dots]

    The kernel is a linear readout of these. This is the definition that the split, tiled forms are
    held to.

    Args:
        groups: input groups (B | 1, H | 1, Nq | 1, Nk | 1, c_g), broadcast against one another.
        weights, biases: of each hidden layer: (H, width, width before) and (H | 1, width), or
            without heads.
        activation: σ, a name in ``ACTIVATIONS``.

    Cost: O(B·H·Nq·Nk·Σ width·width before) time, O(B·H·Nq·Nk·Σ c) memory.

    Reference: ITNet, Eqs. 3, 196, 197 and Algorithm 1.

    Example:
        >>> x, y = torch.ones(1, 1, 2, 1, 3), torch.ones(1, 1, 1, 4, 3)
        >>> hidden_pairs([x, y], [torch.ones(1, 5, 6)], [torch.zeros(1, 5)], "relu").shape
        torch.Size([1, 1, 2, 4, 5])
    """
    function = activation_named(activation).function
    shape = torch.broadcast_shapes(*(g.shape[:-1] for g in groups))
    hidden = torch.cat([g.expand(*shape, g.shape[-1]) for g in groups], -1)
    for weight, bias in zip(weights, biases, strict=True):
        if weight.dim() == 3:
            hidden = torch.einsum(
                "bhqkc,hwc->bhqkw", hidden.expand(-1, weight.shape[0], -1, -1, -1), weight
            )
            hidden = function(hidden + bias[:, None, None])
        else:
            hidden = function(F.linear(hidden, weight, bias))
    return hidden


def mlp_kernel_naive(
    query: Float[Tensor, "#b #h q e"] | None,
    key: Float[Tensor, "#b #h k e"] | None,
    value: Float[Tensor, "b h k d"],
    readout: Float[Tensor, "h o d v"],
    *,
    query_bias: Float[Tensor, "#b #h q w"],
    key_bias: Float[Tensor, "#b #h k w"] | None = None,
    scale: Float[Tensor, "#h w e"] | None = None,
    query2: Float[Tensor, "#b #h q f"] | None = None,
    scale2: Float[Tensor, "#h w f"] | None = None,
    table: Float[Tensor, "#h w t"] | None = None,
    query_index: Int[Tensor, " q"] | None = None,
    key_index: Int[Tensor, " k"] | None = None,
    distance_scale: Float[Tensor, "#h w"] | None = None,
    query_positions: Float[Tensor, "*bp q p"] | None = None,
    key_positions: Float[Tensor, "*bk k p"] | None = None,
    density: Float[Tensor, "#b #h q k"] | Bool[Tensor, "#b #h q k"] | None = None,
    query_time: Tensor | None = None,
    key_time: Tensor | None = None,
    mid: Sequence[tuple[Tensor, Tensor]] = (),
    activation: str = "gelu",
    memory: int | None = None,
) -> Float[Tensor, "b h q o"]:
    """:func:`mlp_kernel` with every pair's hidden units held at once: the definition, for any float
    dtype.

    Arguments and result are those of :func:`~fredholm.ops.mlp_kernel.mlp_kernel`, where the formula
    stands; ``memory`` is ignored. Cost O(B·H·Nq·Nk·w·(e + d)), memory O(B·H·Nq·Nk·w).

    Raises:
        OptionError: for an unknown activation.

    Example:
        >>> q, v, bias = torch.ones(1, 1, 2, 3), torch.ones(1, 1, 4, 1), torch.zeros(1, 1, 2, 5)
        >>> k, ones = torch.ones(1, 1, 4, 3), torch.ones(1, 5, 3)
        >>> mlp_kernel_naive(q, k, v, torch.ones(1, 1, 1, 5), query_bias=bias, scale=ones, activation="relu").tolist()
        [[[[60.0], [60.0]]]]
    """
    function = activation_named(activation).function
    s = query_bias[:, :, :, None, :]
    if key_bias is not None:
        s = s + key_bias[:, :, None, :, :]
    if query is not None and key is not None and scale is not None:
        s = s + torch.einsum("bhqe,hwe,bhke->bhqkw", *_expanded(query, scale, key, value))
    if query2 is not None and key is not None and scale2 is not None:
        tail = key[..., key.shape[-1] - query2.shape[-1] :]
        s = s + torch.einsum("bhqe,hwe,bhke->bhqkw", *_expanded(query2, scale2, tail, value))
    if table is not None and query_index is not None and key_index is not None:
        s = s + table[:, :, query_index[:, None] - key_index].permute(0, 2, 3, 1)
    if distance_scale is not None and query_positions is not None and key_positions is not None:
        far = distances(query_positions, key_positions)
        far = far[:, None] if far.dim() == 3 else far
        s = s + far[..., None] * distance_scale[:, None, None, :]
    hidden = function(s)
    for weight, bias in mid:
        hidden = function(F.linear(hidden, weight, bias))
    if density is not None:
        hidden = hidden * density[..., None]
    if query_time is not None and key_time is not None:
        visible = key_time[..., None, :] <= query_time[..., :, None]
        visible = visible[:, None] if visible.dim() == 3 else visible
        hidden = torch.where(visible[..., None], hidden, 0.0)
    b, h, k, _ = value.shape
    hidden = hidden.expand(b, h, query_bias.shape[2], k, readout.shape[-1])
    moments = torch.einsum("bhqkw,bhkd->bhqwd", hidden, value)
    return torch.einsum("hodw,bhqwd->bhqo", readout, moments)


def _expanded(
    query: Tensor, scale: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    b, h = value.shape[:2]
    return query.expand(b, h, -1, -1), scale.expand(h, -1, -1), key.expand(b, h, -1, -1)
