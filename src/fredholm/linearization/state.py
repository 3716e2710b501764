"""The state of a converted causal layer: what it keeps of the tokens before, whose size does not
depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..integral import Memory
from ..integral.feature_map import is_per_head
from ..ops.backend import at_least_single, cast
from ..ops.linear_attention import JointFeatures, Points, advance_moment, guarded, step_window
from ..quadrature import Quadrature, reciprocal
from .heads import Heads, LinearHeads, stretches
from .kept import MixedHeads
from .seen import clean


class Tokens(NamedTuple):
    """Tokens as a layer receives them.

    Attributes:
        key, value: (B, G, n, ·).
        valid: tokens that are not padding, (B, n); None for all.
    """

    key: Tensor
    value: Tensor
    valid: Tensor | None

    @property
    def count(self) -> int:
        return self.key.shape[2]

    def part(self, span: slice) -> Tokens:
        """Return some of the tokens."""
        key = self.key[:, :, span]
        value = self.value[:, :, span]
        valid = self.valid
        if valid is not None:
            valid = valid[:, span]
        return Tokens(key, value, valid)

    def map(self, change: Callable[[Tensor], Tensor]) -> Tokens:
        """Return the tokens with every tensor changed."""
        key = change(self.key)
        value = change(self.value)
        valid = self.valid
        if valid is not None:
            valid = change(valid)
        return Tokens(key, value, valid)


def has_state(heads: Heads) -> bool:
    """Whether a layer can keep a state of fixed size: linear attention, and features of a key that
    depend on no other.
    """
    if isinstance(heads, MixedHeads):
        heads = heads.linear
    return isinstance(heads, LinearHeads) and heads.pointwise


def shares_keys(heads: LinearHeads) -> bool:
    """Whether heads that share a key also share its features: one state for all of them."""
    return not is_per_head(heads._key_map)


def advance(
    heads: LinearHeads,
    query: Float[Tensor, "b h n e"],
    key: Float[Tensor, "b g n e"],
    value: Float[Tensor, "b g n d"],
    valid: Bool[Tensor, "b n"] | None,
    memory: Memory,
    *,
    scale: float | None = None,
) -> tuple[Float[Tensor, "b h n d"], Memory]:
    r"""Return the response to the next n tokens of a causal sequence, and the state after them.

    Without a window the state is :math:`\sum_j \psi(k_j) [v_j, 1]^T / e^c` over the real tokens j
    so far, each faded where there is a decay, their number, and c where the map is exponential: of
    every head of keys where maps are shared, else of every head of queries. With one it is that sum
    over the tokens before the last w, these w, and the sinks: see
    :func:`fredholm.ops.linear_attention.advance_window`.

    Args:
        heads: the converted layer's.
        valid: tokens that are not padding; None for all.
        memory: the state before; empty before the first token.

    Shape: ``moment`` (B, G, r, d + 1), ``real`` (B,), ``shift`` (B, G); G is H where each head has
    a map of its own. Of a window the keys and values are those of the model's heads of keys.

    Cost: O(n·H·r·d) time, whatever came before.

    Raises:
        ConversionError: heads that the layer's maps were not made for.

    Example:
        >>> heads, x = LinearHeads(2, 4, feature_map="elu"), torch.randn(1, 2, 3, 4)
        >>> _, memory = advance(heads, x, x, x, None, {})
        >>> out, memory = advance(heads, x, x, x, None, memory)
        >>> tuple(memory["moment"].shape), memory["real"].tolist()
        ((1, 2, 4, 5), [6])
    """
    heads.check(query, key)
    scale = heads.factor(scale)
    key = clean(key, valid)
    value = clean(value, valid)
    if heads.window is not None:
        return heads.in_window(query, key, value, valid, scale, memory)

    parts = stretches(query, query.shape[2])
    if len(parts) > 1:
        tokens = Tokens(key, value, valid)
        outs = []
        for span in parts:
            next_query = query[:, :, span]
            next_tokens = tokens.part(span)
            out, memory = advance(heads, next_query, *next_tokens, memory, scale=scale)
            outs.append(out)
        return torch.cat(outs, 2), memory

    value_by_group = value
    if not shares_keys(heads):
        key = heads.share(key)
        value = heads.share(value)
    b, h, n, _ = query.shape
    groups = key.shape[1]

    # The sums are in float32 or better. A memory that was moved to a half precision is cast back.
    dtype = torch.promote_types(key.dtype, torch.float32)
    sums = {}
    for name in ("moment", "shift"):
        if name in memory:
            sums[name] = memory[name].to(dtype)
    features, shift = heads.key_features(key, scale, valid, sums.get("shift"))

    # Every real token has mass 1, and a query's scale is one over the number of those so far.
    mass = torch.ones(b, n, dtype=features.dtype, device=key.device)
    if valid is not None:
        mass = mass * valid
    before = memory.get("real", mass.new_zeros(b, dtype=torch.long))
    # (B, n)
    counted = mass.long().cumsum(-1) + before[:, None]
    query_scale = reciprocal(counted.to(features.dtype))

    # The op has one state per head. Heads of a group share one, so that groups go to the batch,
    # (B·G, H/G, …), and their keys and values have one head, (B·G, 1, …).
    def folded(x: Tensor) -> Tensor:
        share = x.shape[1] // groups
        return x.reshape(b * groups, share, *x.shape[2:])

    def unfolded(x: Tensor) -> Tensor:
        return x.reshape(b, groups, *x.shape[2:])

    def per_group(x: Tensor) -> Tensor:
        return x.repeat_interleave(groups, 0)

    if shift is not None:
        shift = folded(shift)
    decay = heads.exponents(value_by_group, valid)
    if decay is not None:
        decay = decay.repeat_interleave(groups // decay.shape[1], 1)
        decay = folded(decay[..., None])[..., 0]
    joint = JointFeatures(
        folded(heads.query_features(query, scale)),
        folded(features),
        shift,
        folded(value),
    )
    folded_sums = {name: folded(x) for name, x in sums.items()}
    quadrature = Quadrature(
        per_group(mass),
        per_group(query_scale)[:, None],
        decay=decay,
    )
    out, moments = advance_moment(joint, quadrature, folded_sums, floor=heads.floor)

    out = out.reshape(b, h, n, -1).to(value.dtype)
    after = {name: unfolded(x) for name, x in moments.items()}
    after["real"] = counted[:, -1]
    return out, after


def steps_in_place(
    heads: LinearHeads,
    query: Tensor,
    key: Tensor,
    memory: Memory,
) -> bool:
    """Whether :func:`step` can take the next tokens: one, of a sequence that has begun, without
    gradients, in the memory's own precision.
    """
    moment = memory.get("moment")
    if moment is None or query.shape[2] != 1:
        return False
    if torch.is_grad_enabled() or moment.requires_grad:
        return False
    if torch.compiler.is_compiling() or moment.dtype != at_least_single(query.dtype):
        return False
    # Outside inference mode torch refuses to write to a tensor that was made inside.
    if moment.is_inference() and not torch.is_inference_mode_enabled():
        return False
    # Keys with a common factor may raise it, by which the whole moment is then divided: `advance`.
    if heads.window is None:
        return "shift" not in memory
    # A token can take the oldest one's place once the sinks and the window are full.
    near = memory["near_key"]
    if "sinks_filled" in memory or near.shape[2] < heads.sinks + heads.window:
        return False
    return near.dtype == key.dtype


def step(
    heads: LinearHeads,
    query: Float[Tensor, "b h 1 e"],
    new: Tokens,
    memory: Memory,
    slot: int | Int[Tensor, " b"],
    *,
    scale: float | None = None,
    left: int | None = None,
) -> Float[Tensor, "b h 1 d"]:
    """Return :func:`advance` of one token, and change the tensors of the memory in place, so that
    nothing is allocated that stays.

    Args:
        new: the token.
        slot: of a window, where its oldest token lies; the new one takes its place. One per row
            where hidden tokens came.
        left: of a store, see :func:`fredholm.ops.linear_attention.step_window`.
    """
    heads.check(query, new.key)
    scale = heads.factor(scale)
    valid = new.valid
    key = clean(new.key, valid)
    value = clean(new.value, valid)
    if heads.window is not None:
        mass = key.new_ones(1, 1)
        if valid is not None:
            mass = valid.to(key.dtype)
        far = heads.far(query, scale, value, valid)
        point = Points(key, value, mass)
        out = step_window(query * scale, point, far, memory, slot, valid, left)
        return cast(out, value.dtype)

    assert heads.floor is not None  # converted layers are normalised
    decay = heads.exponents(value, valid)
    if not shares_keys(heads):
        key = heads.share(key)
        value = heads.share(value)
    b, h, _, _ = query.shape
    groups = key.shape[1]
    moment = memory["moment"]
    count = memory["real"]
    features, _ = heads.key_features(key, scale, valid)
    if valid is None:
        count.add_(1)
    else:
        features = features * valid[:, :, None, None]
        count.add_(valid[:, 0])

    # The moment (B, G, r, d + 1) fades, and then takes the new key times [value, 1].
    if decay is not None:
        decay = decay.repeat_interleave(groups // decay.shape[1], 1)
        remaining = cast(decay, moment.dtype).neg().exp()
        moment.mul_(remaining[..., None])
    with_one = torch.nn.functional.pad(cast(value, moment.dtype), (0, 1), value=1.0)
    moment.addcmul_(features.mT, with_one)

    # Its last column is the denominator. Both are means over the real tokens so far, so that the
    # floor means the same at every length.
    query_features = heads.query_features(query, scale)
    by_group = query_features.reshape(b, groups, h // groups, -1)
    sums = by_group @ moment
    means = sums / count.clamp_min(1)[:, None, None, None]
    denominator = guarded(means[..., -1:], heads.floor)
    out = means[..., :-1] / denominator
    return cast(out.view(b, h, 1, -1), value.dtype)
