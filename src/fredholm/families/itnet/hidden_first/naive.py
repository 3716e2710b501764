"""The MLP kernel's integral in its plainest form: what the tiled op must equal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ....ops.tiles import find_activation
from .terms import FIRST_LAYER, Tensors
from .tiled import complete


def hidden_pairs(
    groups: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str = "gelu",
) -> Float[Tensor, "b h q k w"]:
    r"""Return the hidden units of a kernel network, literally: inputs are concatenated pair by
    pair, then layer follows layer.

    .. math:: h_{ij} = \sigma(W_L \cdots \sigma(W_1 z_{ij} + b_1) \cdots + b_L), \qquad
        z_{ij} = [g^1_{ij}, g^2_{ij}, \dots]

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
    function = find_activation(activation).function
    shapes = [group.shape[:-1] for group in groups]
    pairs = torch.broadcast_shapes(*shapes)
    inputs = [group.expand(*pairs, -1) for group in groups]
    hidden = torch.cat(inputs, -1)
    for weight, bias in zip(weights, biases, strict=True):
        if weight.dim() == 3:
            heads = weight.shape[0]
            by_head = hidden.expand(-1, heads, -1, -1, -1)
            product = torch.einsum("bhqkc,hwc->bhqkw", by_head, weight)
            shift = bias[:, None, None]
            hidden = function(product + shift)
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
    mid: Sequence[tuple[Tensor, Tensor]] = (),
    activation: str = "gelu",
    memory: int | None = None,
    **terms: Tensor | None,
) -> Float[Tensor, "b h q o"]:
    """Compute :func:`mlp_kernel` with every pair's hidden units at once: the definition, for any
    float dtype.

    Arguments and result are those of :func:`.tiled.mlp_kernel`, where the formula stands;
    ``memory`` is ignored. Cost O(B·H·Nq·Nk·w·(e + d)), memory O(B·H·Nq·Nk·w).

    Raises:
        OptionError: for an unknown activation or tensor.

    Example:
        >>> q, v, bias = torch.ones(1, 1, 2, 3), torch.ones(1, 1, 4, 1), torch.zeros(1, 1, 2, 5)
        >>> k, ones = torch.ones(1, 1, 4, 3), torch.ones(1, 5, 3)
        >>> readout = torch.ones(1, 1, 1, 5)
        >>> options = {"query_bias": bias, "scale": ones, "activation": "relu"}
        >>> mlp_kernel_naive(q, k, v, readout, **options).tolist()
        [[[[60.0], [60.0]]]]
    """
    function = find_activation(activation).function
    core = {
        "query": query,
        "key": key,
        "value": value,
        "readout": readout,
    }
    tensors = complete(core | {"query_bias": query_bias} | terms)
    x = Tensors(**tensors)

    # Terms whose tensors are left out are None.
    parts = [term(x) for term in FIRST_LAYER]
    present = [part for part in parts if part is not None]
    hidden = function(reduce(torch.add, present))
    for weight, bias in mid:
        hidden = function(F.linear(hidden, weight, bias))

    if x.density is not None:
        hidden = hidden * x.density[..., None]
    if x.query_time is not None and x.key_time is not None:
        key_time = x.key_time[..., None, :]
        query_time = x.query_time[..., :, None]
        visible = key_time <= query_time
        visible = visible[:, None, ..., None]
        hidden = torch.where(visible, hidden, 0.0)

    # out = R M with the moments M = Σ_j h_ij v_jᵀ of each query.
    batch, heads, keys, _ = value.shape
    queries = query_bias.shape[2]
    width = readout.shape[-1]
    hidden = hidden.expand(batch, heads, queries, keys, width)
    moments = torch.einsum("bhqkw,bhkd->bhqwd", hidden, value)
    return torch.einsum("hodw,bhqwd->bhqo", readout, moments)
