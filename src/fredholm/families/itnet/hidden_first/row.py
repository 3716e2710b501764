"""A causal step of ITNet's kernel: one query against all keys so far, in a dozen of torch's
operations. A tiled op would spend longer on laying out the readout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....integral import heads_apart
from ....ops.tiles import find_activation
from ....quadrature import Quadrature
from .first_layer import row_values

BYTES = 1 << 26  # of the hidden units of one query


def fits(keys: Mapping[str, Tensor], heads: int, width: int) -> bool:
    """Whether the hidden units of one query at all keys are few enough to be held at once."""
    signal = keys["signal"]
    return signal.shape[0] * heads * signal.shape[2] * width * signal.element_size() <= BYTES


def one_query(
    kernel: Any, terms: Mapping[str, Any], signal: Tensor, quadrature: Quadrature
) -> Tensor:
    """∫ K u dμ at one query, (B, H, 1, d_out), from the terms of the first layer.

    Args:
        terms: of keys and of the query, as :func:`.tiled.mlp_kernel` takes them.
        signal: u at the keys, (B, H, t, d).
        quadrature: what the query sees of them.
    """
    dtype = torch.promote_types(signal.dtype, torch.float32)
    terms = {name: _in(x, dtype) for name, x in terms.items()}
    hidden = row_values(terms)
    activation = find_activation(terms["activation"]).function
    hidden = activation(hidden)
    for weight, bias in terms.get("mid", ()):
        hidden = activation(F.linear(hidden, weight.to(dtype), bias.to(dtype)))
    weight = quadrature.mass[:, None, :, None].to(dtype)
    if quadrature.density is not None:
        weight = weight * quadrature.density.to(dtype).mT
    if quadrature.scale is not None:
        weight = weight * quadrature.scale[..., None].to(dtype)
    value = weight * signal.to(dtype)
    readout, bias = kernel.readout()
    # hidden units are summed over the keys first, in the order in which the readout lies
    moment = (value.mT @ hidden).flatten(2)
    out = heads_apart(moment, readout.to(dtype).flatten(2))
    if bias is not None:
        out = out + heads_apart(value.sum(2), bias.to(dtype))
    return out[:, :, None].to(signal.dtype)


def _in(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype) if isinstance(x, Tensor) and x.dtype != dtype else x
