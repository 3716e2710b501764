"""A call's tensors as its tiles see them.

Inside the op every tensor has the heads first, (H | 1, B | 1, ...): a head's weights then meet all
batch entries at once.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ....ops.tiles import Span, cut
from .terms import PAIR_TENSORS, PairTensor, Tensors


def prepare(x: Tensors) -> Tensors:
    """``x`` heads first, but for what belongs to points alone. O(N) memory.

    The keys get a last column of ones, which carries the query bias through the product.
    """
    b, h, k, _ = x.value.shape
    e = 0 if x.key is None else x.key.shape[-1]
    key = x.value.new_ones(h, b, k, e + 1)
    if x.key is not None:
        key[..., :e] = x.key.transpose(0, 1)
    tensors: dict[str, Any] = {
        name: heads_first(fact, getattr(x, name))
        for name, fact in PAIR_TENSORS.items()
        if name != "key" and getattr(x, name) is not None
    }
    return Tensors(**tensors, key=key)


def heads_first(fact: PairTensor, x: Tensor) -> Tensor:
    """(H | 1, B | 1, ...) from a tensor as the op takes it; the density is not copied, being
    quadratic, and indices stay as they are.
    """
    if fact.kind == "index":
        return x
    for place, size in enumerate(("b", "h")):
        if size not in fact.sizes:
            x = x.unsqueeze(place)
    x = x.permute(_order(fact))
    return x if fact.side == "pair" else x.contiguous()


def as_given(fact: PairTensor, x: Tensor, like: Tensor) -> Tensor:
    """The inverse of :func:`heads_first` for a gradient, summed over what ``like`` shares."""
    order = _order(fact)
    x = x.permute([order.index(i) for i in range(len(order))])
    for place, size in enumerate(("b", "h")):
        if size not in fact.sizes:
            x = x.select(place if "b" in fact.sizes else 0, 0)
    return x.sum_to_size(like.shape).contiguous()


def _order(fact: PairTensor) -> list[int]:
    """Where each heads-first dimension lies in (b, h, the others as they are given)."""
    others = [size for size in fact.sizes if size not in ("b", "h")]
    tile = fact.tile.split() or others
    return [1, 0, *(2 + others.index(size) for size in tile)]


def cut_pairs(x: Tensors, h: Span, b: Span) -> Tensors:
    """Heads ``h`` and batch entries ``b`` of all heads-first tensors."""
    parts = {
        name: cut(getattr(x, name), h, b)
        for name, fact in PAIR_TENSORS.items()
        if fact.kind != "index"
    }
    return Tensors(**parts)


def pair_weight(f: Tensors, q: Span, k: Span) -> tuple[Tensor | None, bool]:
    """Factor (h, b, Tq, 1, Tk) of a tile's hidden units, or None, and whether the tile may be
    skipped.

    Visibility is inspected only on a CPU: on a GPU the answer would have to travel back before the
    next launch.
    """
    weight = None
    if f.density is not None:
        weight = f.density[:, :, q, k].to(f.value.dtype)[:, :, :, None, :]
    if f.query_time is None or f.key_time is None:
        return weight, False
    visible = f.key_time[:, :, None, k] <= f.query_time[:, :, q, None]
    if visible.device.type == "cpu":
        if not visible.any():
            return None, True
        if visible.all():
            return weight, False
    seen = visible[:, :, :, None, :].to(f.value.dtype)
    return (seen if weight is None else weight * seen), False
