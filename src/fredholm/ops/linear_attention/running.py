"""The running moment: causal linear attention in parts, a memory of fixed size between them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from .chunked import at_scale, linear_attention_point, linear_attention_stretch, over_new_factor


def advance_moment(
    query: Float[Tensor, "#b #h n r"],
    key: Float[Tensor, "#b #h n r"],
    value: Float[Tensor, "#b #h n c"],
    shift: Float[Tensor, "#b #h"] | None,
    mass: Float[Tensor, "#b n"],
    scale: Float[Tensor, "#b #h n"] | None,
    memory: dict[str, Tensor],
    *,
    floor: float | None,
    positive: bool = False,
    chunk: int = 64,
) -> tuple[Float[Tensor, "b h n c"], dict[str, Tensor]]:
    """The next n points in causal order: what they receive, and the memory after them.

    Args:
        query: features φ.
        key, shift: features ψ over :math:`e^c`, and c, no smaller than the memory's; None where
            nothing was divided.
        mass, scale: see :class:`fredholm.quadrature.Quadrature`.
        memory: ``moment`` of the points before, and ``shift`` where there is one; empty before the
            first.
        floor, positive, chunk: see :func:`linear_attention`.

    Shape: query heads may share the keys of fewer heads by broadcasting.

    Cost: O(n·r·c) time; a memory of r·(c + 1) numbers per head, and c.

    Example:
        >>> u, mass = torch.ones(1, 1, 3, 2), torch.ones(1, 3)
        >>> out, memory = advance_moment(u, u, u, None, mass, None, {}, floor=1e-6)
        >>> tuple(memory["moment"].shape)
        (1, 1, 2, 3)
    """
    moment, after = memory.get("moment"), {}
    if shift is not None:
        largest = key.detach().amax(-1).cummax(-1).values
        if moment is not None:  # the moment so far, over the new common factor e^c
            ratio = over_new_factor(memory["shift"], shift)
            moment = moment * ratio.to(moment.dtype)
            largest = torch.maximum(largest, ratio[..., 0].to(largest.dtype))
        query, after = at_scale(query, largest), {"shift": shift}
    if query.shape[2] > 1:
        options = {"floor": floor, "chunk": chunk}
        out, moment = linear_attention_stretch(query, key, value, mass, scale, moment, **options)
    else:  # without chunks, whose padding would cost as much again
        options = {"floor": floor, "positive": positive}
        out, moment = linear_attention_point(query, key, value, mass, scale, moment, **options)
    return out, {"moment": moment, **after}
