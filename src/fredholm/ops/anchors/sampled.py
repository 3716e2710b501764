"""An MLP kernel's integral over keys drawn for each query, hidden units first."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import OptionError, suggest
from ..tiles import ACTIVATIONS, root_of


def take_keys(
    x: Float[Tensor, "#b #h k c"], index: Int[Tensor, "b h q s"]
) -> Float[Tensor, "b h q s c"]:
    """What belongs to keys, at the keys drawn for each query. O(B·H·Nq·S·c).

    Example:
        >>> x, index = torch.tensor([[[[1.0], [2.0]]]]), torch.tensor([[[[1, 1, 0]]]])
        >>> take_keys(x, index).flatten().tolist()
        [2.0, 2.0, 1.0]
    """
    b, h, n, c = x.shape
    first = torch.arange(b, device=x.device)[:, None] * h + torch.arange(h, device=x.device)
    rows = index + n * first[:, :, None, None]
    return (
        x.reshape(-1, c).index_select(0, rows.flatten()).unflatten(0, index.shape)
    )  # whole rows: faster than gather


KEY_TERMS = ("key_bias", "key", "key_positions", "table", "place")
QUERY_TERMS = (
    "query_bias", "query", "scale", "query2", "scale2", "query_positions", "distance_scale",
    "place", "mid", "activation",
)  # fmt: skip


def _check_terms(keys: dict[str, Tensor], queries: dict[str, Any]) -> None:
    """A term left out in silence would be a wrong integral."""
    for given, known in ((keys, KEY_TERMS), (queries, QUERY_TERMS)):
        for name in given:
            if name not in known:
                raise OptionError(f"drawn keys have no term {name!r}{suggest(name, known)}")


def sampled_mlp_kernel(
    index: Int[Tensor, "b h q s"],
    weight: Float[Tensor, "b h q s"],
    signal: Float[Tensor, "#b #h k d"],
    readout: Float[Tensor, "h o d w"],
    bias: Float[Tensor, "h o d"] | None,
    keys: dict[str, Tensor],
    queries: dict[str, Any],
) -> Float[Tensor, "b h q o"]:
    r""":math:`\sum_s c_{qs} K(x_q, y_{qs}) u(y_{qs})` with hidden units summed before the readout.

    Args:
        index, weight: keys y of each query and their coefficients c.
        signal: u at all keys.
        readout, bias: R and R_0 of :class:`fredholm.kernels.HiddenReadout`.
        keys, queries: the terms of :class:`fredholm.kernels.SplitHidden` for all keys and these
            queries, with appended columns; or on a regular grid with a ``table`` of the
            displacement term (1 | h, displacements, w) and every point's ``place`` in it.

    Cost: O(Nq·S·w·(c + d)) time for c columns, O(Nq·(w·(c + S + d) + S·(c + d))) memory.

    Raises:
        OptionError: a term that drawn keys do not have.
    """
    _check_terms(keys, queries)
    units = take_keys(keys["key_bias"], index) + queries["query_bias"][:, :, :, None]
    if "query" in queries:
        coefficient = queries["query"][:, :, :, None] * queries["scale"][:, None]
        if "query2" in queries:
            tail = queries["query2"][:, :, :, None] * queries["scale2"][:, None]
            coefficient = coefficient + F.pad(tail, (coefficient.shape[-1] - tail.shape[-1], 0))
        units = units + take_keys(keys["key"], index) @ coefficient.mT.to(units.dtype)
    if "distance_scale" in queries:
        apart = queries["query_positions"][:, None, :, None] - take_keys(
            keys["key_positions"][:, None], index
        )
        far = root_of(apart.square().sum(-1, keepdim=True))
        units = units + (far * queries["distance_scale"][:, None, None]).to(units.dtype)
    function = ACTIVATIONS[queries["activation"]].function
    if "table" in keys:
        table = keys["table"][None].to(units.dtype)
        apart = queries["place"][:, None] - keys["place"][index] + table.shape[2] // 2
        units = units + take_keys(table, apart)
    hidden = function(units)
    for matrix, shift in queries.get("mid", ()):
        hidden = function(F.linear(hidden, matrix, shift))
    drawn = weight[..., None].to(signal.dtype) * take_keys(signal, index)
    out = torch.einsum("bhqwi,hoiw->bhqo", hidden.mT @ drawn, readout)
    return (
        out
        if bias is None
        else out + torch.einsum("hoi,bhqi->bhqo", bias.to(out.dtype), drawn.sum(3))
    )
