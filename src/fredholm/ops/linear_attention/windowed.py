"""Causal attention with a window: softmax on the last points, an inner product of features for all
before them, one normaliser over both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..backend import full_precision
from .chunked import (
    linear_attention_step,
    linear_attention_stretch,
    over_new_factor,
)

BLOCK = 64  # queries whose near keys are multiplied at once
KeyFeatures = Callable[[Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor | None]]


class Far(NamedTuple):
    """What the points before the window are seen by.

    Attributes:
        query: φ over :math:`e^a`, (B, H, n, r), not negative.
        exponent: a, (B, H, n), without a gradient; None where nothing was divided.
        keys: ψ over :math:`e^c`, (B, S, n, r), and c (B, S) or None, of keys (B, G, n, e), which of
            them are real (B, n), and the smallest c allowed. S is G, or H where heads that share a
            key have maps of their own.
    """

    query: Tensor
    exponent: Tensor | None
    keys: KeyFeatures


def advance_window(
    query: Float[Tensor, "b h n e"],
    key: Float[Tensor, "b g n e"],
    value: Float[Tensor, "b g n c"],
    mass: Float[Tensor, "#b n"],
    far: Far,
    memory: dict[str, Tensor],
    *,
    window: int,
    chunk: int = 64,
) -> tuple[Float[Tensor, "b h n c"], dict[str, Tensor]]:
    r"""The next n points in causal order: what they receive, and the memory after them.

    .. math:: y_i = \frac{\sum_{i-w<j\le i} m_j e^{q_i\cdot k_j} v_j
        + \sum_{j\le i-w} m_j\,\phi(q_i)\cdot\psi(k_j)\,v_j}
        {\text{the same with } v = 1}

    Both sums are kept over factors of their own, the largest near exponent and a + c; they meet
    over the larger of the two sizes, so that neither overflows and not both vanish.

    Args:
        query, key, value: q with softmax's scale in it, k and v; keys of fewer heads are each for a
            group of neighbouring queries' heads.
        mass: m, zero at padding.
        far: φ and ψ.
        memory: of the points before; empty before the first.
        window: w, points that softmax sees, the query's own included.
        chunk: of the linear part.

    Shape: the memory is ``moment`` (B, S, r, c + 1), ``shift`` c (B, S) where there is one, and the
    last w points: ``near_key`` (B, G, w, e), ``near_value`` (B, G, w, c), ``near_mass`` (B, w).

    Cost: O(n·(w·(e + c) + r·c)) time, whatever came before.

    Example:
        >>> x, mass = torch.ones(1, 1, 5, 2), torch.ones(1, 5)
        >>> far = Far(x, None, lambda key, real, least: (key, None))
        >>> out, memory = advance_window(x, x, x, mass, far, {}, window=3)
        >>> out[0, 0, 4].tolist(), tuple(memory["near_key"].shape), memory["moment"][0, 0].tolist()
        ([1.0, 1.0], (1, 1, 3, 2), [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]])
    """
    n = query.shape[2]
    dtype = torch.promote_types(query.dtype, torch.float32)
    keys, values, masses = _with_past(key, value, mass.to(dtype), memory, window)
    # Of the last w points and the new ones, query i sees i + 1 to i + w nearby, all up to i before.
    old = slice(0, n)
    real = masses[:, old] > 0
    features, shift = far.keys(keys[:, :, old], real, memory.get("shift"))
    with full_precision(query):
        near, top = _near(query.to(dtype), keys, values, masses, window)
        moment = memory.get("moment")
        if moment is not None:
            moment = moment.to(dtype)
            if shift is not None:
                moment = moment * over_new_factor(memory["shift"], shift).to(dtype)
        left = features, values[:, :, old], masses[:, old]
        rest, moment = _before(far.query, *left, moment, chunk)
        exponent = _exponent(far.exponent, shift, rest)
        out = _joined(near, top, rest, exponent)
    after = {} if shift is None else {"shift": shift}
    after |= {"moment": moment, "near_mass": masses[:, n:]}
    after |= {"near_key": keys[:, :, n:], "near_value": values[:, :, n:]}
    return out, after


def _with_past(
    key: Tensor, value: Tensor, mass: Tensor, memory: dict[str, Tensor], window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and masses behind the last ``window`` ones; before the first, empty ones."""
    mass = mass.expand(key.shape[0], -1)
    if not memory:
        # heads first in memory as well: other strides would fix a traced length
        keys, values = (F.pad(x.contiguous(), (0, 0, window, 0)) for x in (key, value))
        return keys, values, F.pad(mass, (window, 0))
    past = {"near_key": key, "near_value": value}
    keys, values = (torch.cat([memory[k].to(x.dtype), x], 2) for k, x in past.items())
    return keys, values, torch.cat([memory["near_mass"].to(mass.dtype), mass], 1)


def _folded(x: Tensor, groups: int) -> Tensor:
    """(B, H, ...) as (B·G, H/G, ...): heads of a group share their keys."""
    return x.reshape(x.shape[0] * groups, x.shape[1] // groups, *x.shape[2:])


def _near(
    query: Tensor, key: Tensor, value: Tensor, mass: Tensor, window: int
) -> tuple[Tensor, Tensor]:
    """Sums over the window of values and of ones, (B, H, n, c + 1), over e^top, and top, the
    largest score: a block of queries against the window before it and itself.
    """
    (b, h, n, e), groups = query.shape, key.shape[1]
    block = BLOCK if torch.compiler.is_compiling() else min(BLOCK, n)
    count = (n + block - 1) // block
    if torch.compiler.is_compiling():
        count += 1  # see _prefix_sums: a traced dimension of size 1 would be taken for a constant
    more = count * block - n
    # keys of block b: from the window before its first query to its last
    spans = {"size": block + window, "step": block, "count": count}
    mass = mass.repeat_interleave(groups, 0)[:, None, :, None]
    # the mass is a factor of both sums: on the values, of which there are fewer than scores
    value = F.pad(_folded(value, groups).to(query.dtype), (0, 1), value=1.0) * mass
    key = _folded(key, groups).to(query.dtype)
    key, value = (_spans(_padded(x, more), 2, **spans) for x in (key, value))
    real = _spans(_padded(mass, more), 2, **spans) > 0
    # (B·G, 1, blocks, heads of a group x block, e): those that share keys are one matrix
    queries = _padded(query, more)
    if torch.compiler.is_compiling():
        queries = _spans(queries, 2, size=block, step=block, count=count).mT
    else:
        queries = queries.unflatten(2, (count, block))
    queries = (
        _folded(queries, groups)
        .transpose(1, 2)
        .reshape(b * groups, 1, count, h // groups * block, e)
    )
    row, column = (torch.arange(k, device=query.device) for k in (block, block + window))
    ahead = column - row[:, None]
    seen = ((ahead > 0) & (ahead <= window) & real).repeat(1, 1, 1, h // groups, 1)
    # in place where no gradient asks for what was there
    scores = (queries @ key).masked_fill_(~seen, -torch.inf)
    top = scores.detach().amax(-1, keepdim=True)
    top = torch.where(top > -torch.inf, top, 0.0)
    out = scores.sub_(top).exp_() @ value.mT

    def in_order(x: Tensor) -> Tensor:
        x = x.reshape(b * groups, count, h // groups, block, x.shape[-1]).transpose(1, 2)
        return _first(x.reshape(b, h, count * block, x.shape[-1]), n)

    return in_order(out), in_order(top)


def _padded(x: Tensor, more: int) -> Tensor:
    """With so many empty points behind the last."""
    plain = not torch.compiler.is_compiling() and more == 0
    return x if plain else F.pad(x, (0, 0, 0, more))


def _first(x: Tensor, n: int) -> Tensor:
    """The first n points: by a negative pad in traced code, which would have to prove that there
    are as many.
    """
    if torch.compiler.is_compiling():
        return F.pad(x, (0, 0, 0, n - x.shape[2]))
    return x[:, :, :n]


def _spans(x: Tensor, dim: int, *, size: int, step: int, count: int) -> Tensor:
    """``x.unfold(dim, size, step)`` by an index: ``torch.func.vmap`` would take the gradient of
    unfold row by row, and its strides fix lengths that are traced.
    """
    steps = step * torch.arange(count, device=x.device)
    index = steps[:, None] + torch.arange(size, device=x.device)
    if torch.compiler.is_compiling():  # to traced code unflatten would be a claim of divisibility
        pieces = x[(slice(None),) * dim + (index,)]
    else:
        pieces = x.index_select(dim, index.flatten()).unflatten(dim, (count, size))
    return pieces.movedim(dim + 1, -1)


def _before(
    query: Tensor, key: Tensor, value: Tensor, mass: Tensor, moment: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor]:
    """Sums over the points before the window of values and of ones, (B, H, n, c + 1), and the
    moment after them, (B, S, r, c + 1).
    """
    (b, h, n, _), groups = query.shape, key.shape[1]
    value = value.repeat_interleave(groups // value.shape[1], 1)
    query, key = _folded(query, groups), _folded(key, groups)
    value = F.pad(_folded(value, groups).to(key.dtype), (0, 1), value=1.0)
    mass = mass.repeat_interleave(groups, 0)
    moment = None if moment is None else _folded(moment, groups)
    if n > 1:
        options = {"floor": None, "chunk": chunk}
        out, moment = linear_attention_stretch(query, key, value, mass, None, moment, **options)
    else:  # without chunks, whose padding would cost as much again
        point = query[:, :, 0], key[:, :, 0], value[:, :, 0]
        out, moment = linear_attention_step(*point, mass[:, 0], None, moment, floor=None)
        out = out[:, :, None]
    after = moment.reshape(b, groups, *moment.shape[2:])  # type: ignore[union-attr]
    return out.reshape(b, h, n, out.shape[-1]), after


def _exponent(query: Tensor | None, key: Tensor | None, like: Tensor) -> Tensor:
    """a + c, by which the sums before the window were divided, (B, H, n | 1, 1)."""
    result = like.new_zeros(())
    if query is not None:
        result = result + query[..., None].to(like.dtype)
    if key is not None:  # -∞ before the first key, whose sums are zero
        shared = like.shape[1] // key.shape[1]
        result = result + key.repeat_interleave(shared, 1)[..., None, None].to(like.dtype)
    return result


def _joined(near: Tensor, top: Tensor, rest: Tensor, exponent: Tensor) -> Tensor:
    """One quotient of both sums; zero where nothing is seen. All factors are of both sums or are
    undone, so that no gradient goes through them.
    """
    size = rest[..., -1:].detach()
    least = vanishing(size.dtype)
    some, size = size > least, size.clamp_min(least)
    above = torch.where(some, exponent.detach() + size.log() - top, -torch.inf)
    factors = (-above.relu()).exp(), (-(-above).relu()).exp() / size
    mass = factors[0] * near[..., -1:] + factors[1] * rest[..., -1:]
    mass = torch.where(mass > 0, mass, 1.0)
    return torch.addcmul(near[..., :-1] * (factors[0] / mass), rest[..., :-1], factors[1] / mass)


def vanishing(dtype: torch.dtype) -> float:
    """A sum of products of features, each at most 1, that counts as none: 10^-30 in float32, whose
    reciprocal still leaves a gradient finite.
    """
    return torch.finfo(dtype).tiny ** 0.8
