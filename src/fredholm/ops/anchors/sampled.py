"""An MLP kernel's integral over keys drawn for each query, hidden units first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import OptionError, suggest
from ..tiles import ACTIVATIONS, root_of

KEY_TERMS = ("key_bias", "key", "key_positions", "table", "place")
QUERY_TERMS = (
    "query_bias", "query", "scale", "query2", "scale2", "query_positions", "distance_scale",
    "place", "mid", "activation",
)  # fmt: skip


def take_keys(
    x: Float[Tensor, "#b #h k c"],
    index: Int[Tensor, "b h q s"],
) -> Float[Tensor, "b h q s c"]:
    """Return rows of ``x``, which belong to keys, at the keys drawn for each query.

    Cost: O(B·H·Nq·S·c).

    Example:
        >>> x, index = torch.tensor([[[[1.0], [2.0]]]]), torch.tensor([[[[1, 1, 0]]]])
        >>> take_keys(x, index).flatten().tolist()
        [2.0, 2.0, 1.0]
    """
    batch, heads, n, channels = x.shape

    # Keys of all matrices are numbered through, (b, h) by (b, h): ``index_select`` then copies
    # complete rows, which is faster than ``gather``, that reads single numbers.
    sample = torch.arange(batch, device=x.device)[:, None]
    matrix = sample * heads + torch.arange(heads, device=x.device)
    rows = index + n * matrix[:, :, None, None]
    drawn = x.reshape(-1, channels).index_select(0, rows.flatten())
    return drawn.unflatten(0, index.shape)


def sampled_mlp_kernel(
    index: Int[Tensor, "b h q s"],
    weight: Float[Tensor, "b h q s"],
    signal: Float[Tensor, "#b #h k d"],
    readout: Float[Tensor, "h o d w"],
    bias: Float[Tensor, "h o d"] | None,
    keys: dict[str, Tensor],
    queries: dict[str, Any],
) -> Float[Tensor, "b h q o"]:
    r"""Return :math:`\sum_s c_{qs} K(x_q, y_{qs})\, u(y_{qs})` for keys drawn per query.

    The readout of K is linear, and so hidden units h are summed before it:

    .. math:: out_o = \sum_{k,i} R_{oik} \Big(\sum_s h_k(x_q, y_{qs})\, c_{qs} u_i(y_{qs})\Big)
        + \sum_i R_{0,oi} \sum_s c_{qs} u_i(y_{qs})

    Args:
        index, weight: the keys y of each query and their coefficients c.
        signal: u at all keys.
        readout, bias: R and R_0 of :class:`fredholm.kernels.HiddenReadout`.
        keys, queries: the terms of :class:`fredholm.kernels.SplitHidden` for all keys and for these
            queries, with appended columns; or, on a regular grid, with a ``table`` of the
            displacement term (1 | h, displacements, w) and the ``place`` of each point in it.

    Cost: O(Nq·S·w·(c + d)) time for c columns, O(Nq·(w·(c + S + d) + S·(c + d))) memory.

    Raises:
        OptionError: a term that drawn keys do not have.

    Reference: ITNet, Eq. 13.
    """
    # A term that is left out in silence would be a wrong integral.
    _check_terms(keys, KEY_TERMS)
    _check_terms(queries, QUERY_TERMS)
    hidden = _hidden_units(index, keys, queries)

    # (B, H, Nq, w, S) @ (B, H, Nq, S, d): per query the moments of its hidden units.
    drawn = weight[..., None].to(signal.dtype) * take_keys(signal, index)
    moments = hidden.mT @ drawn
    out = torch.einsum("bhqwi,hoiw->bhqo", moments, readout.to(moments.dtype))
    if bias is None:
        return out
    sum_of_signal = drawn.sum(3)
    return out + torch.einsum("hoi,bhqi->bhqo", bias.to(out.dtype), sum_of_signal)


def _check_terms(terms: Iterable[str], known: tuple[str, ...]) -> None:
    """Raise OptionError for a term that is not known."""
    for name in terms:
        if name not in known:
            raise OptionError(f"drawn keys have no term {name!r}{suggest(name, known)}")


def _hidden_units(
    index: Tensor,
    keys: dict[str, Tensor],
    queries: dict[str, Any],
) -> Tensor:
    """Return the hidden units of the drawn pairs, (B, H, Nq, S, w).

    The first layer is a sum of a term of the key, one of the query, an inner product of columns of
    both ends, one of their distance, and one of their displacement, all but the first two optional.
    """
    units = take_keys(keys["key_bias"], index) + queries["query_bias"][:, :, :, None]
    if "query" in queries:
        coefficients = _coefficients(queries).mT.to(units.dtype)
        units = units + take_keys(keys["key"], index) @ coefficients
    if "distance_scale" in queries:
        drawn_positions = take_keys(keys["key_positions"][:, None], index)
        apart = queries["query_positions"][:, None, :, None] - drawn_positions
        distance = root_of(apart.square().sum(-1, keepdim=True))
        of_distance = distance * queries["distance_scale"][:, None, None]
        units = units + of_distance.to(units.dtype)

    function = ACTIVATIONS[queries["activation"]].function
    if "table" in keys:
        # On a regular grid a displacement is a difference of places, zero in the table's middle.
        table = keys["table"][None].to(units.dtype)
        middle = table.shape[2] // 2
        place = queries["place"][:, None] - keys["place"][index] + middle
        units = units + take_keys(table, place)

    hidden = function(units)
    for matrix, shift in queries.get("mid", ()):
        hidden = function(F.linear(hidden, matrix, shift))
    return hidden


def _coefficients(queries: dict[str, Any]) -> Tensor:
    """Return the factors of the keys' columns, (B, H, Nq, w, c): query times scale for each unit.

    The second pair of them is shorter and belongs to the last columns.
    """

    def product(query: Tensor, scale: Tensor) -> Tensor:
        return query[:, :, :, None] * scale[:, None]

    coefficients = product(queries["query"], queries["scale"])
    if "query2" in queries:
        last = product(queries["query2"], queries["scale2"])
        missing = coefficients.shape[-1] - last.shape[-1]
        coefficients = coefficients + F.pad(last, (missing, 0))
    return coefficients
