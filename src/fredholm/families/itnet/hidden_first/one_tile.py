"""ITNet's kernel where the hidden units of all pairs are few: one tile, in a dozen of torch's
operations. The tiled op would spend longer on laying out its tensors.

Hidden units lie as (B, H, Nk, Nq, w): the product term and the moments are then one matrix product
per head and sample, and what belongs to an end is added along contiguous rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....ops.backend import at_least_single, cast, full_precision
from ....ops.tiles import by_head, find_activation
from ....quadrature import Quadrature
from .first_layer import pair_values


def one_tile(
    terms: Mapping[str, Any],
    value: Tensor,
    readout: Tensor,
    quadrature: Quadrature,
) -> Tensor:
    """Return the same as :func:`.tiled.mlp_kernel`, (B, H, Nq, o), from the same terms of the first
    layer; order and density of pairs are those of ``quadrature``.
    """
    b, h, _, d = value.shape
    dtype = at_least_single(value.dtype)
    activation = find_activation(terms["activation"]).function
    with full_precision(value):
        hidden = activation(pair_values(terms, dtype))
        for weight, bias in terms.get("mid", ()):
            weight = cast(weight, dtype)
            bias = cast(bias, dtype)
            hidden = F.linear(hidden, weight, bias)
            hidden = activation(hidden)
        seen = seen_pairs(quadrature, dtype)
        if seen is not None:
            hidden = hidden * seen

        # M of all queries at once: (d × Nk) times (Nk × Nq·w).
        queries, width = hidden.shape[3:]
        hidden = hidden.expand(b, h, -1, -1, -1)
        hidden = hidden.flatten(3)
        moments = cast(value, dtype).mT @ hidden
        moments = moments.view(b, h, d, queries, width)
        by_query = moments.transpose(2, 3).flatten(3)
        columns = cast(readout, dtype).flatten(2)
        out = by_head(by_query, columns)
    return cast(out, value.dtype)


def seen_pairs(quadrature: Quadrature, dtype: torch.dtype) -> Tensor | None:
    """Return the factor (B | 1, 1 | H, Nk, Nq, 1) of the hidden units of pairs, or None."""
    seen = quadrature.density
    order = quadrature.order()
    if order is not None:
        visible = order[:, None]
        if seen is None:
            seen = visible
        else:
            seen = seen * visible
    if seen is None:
        return None
    return cast(seen, dtype).mT[..., None]
