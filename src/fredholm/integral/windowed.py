"""A kernel of two parts, split by order: softmax's on the last points, an inner product of features
on all before. What kernels and converted layers need for it beside their maps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..errors import OptionError
from ..ops.backend import at_least_single, cast, full_precision
from ..ops.linear_attention import vanishing
from .feature_map import FeatureMap


def check_window(
    window: int | None,
    feature_map: Callable[[Tensor], Tensor],
    floor: float | None,
    sinks: int = 0,
) -> None:
    """OptionError for a window that cannot be: no whole number, or features without a normaliser
    that both parts could share; and for sinks that are no number of points, or without a window.
    """
    if type(sinks) is not int or sinks < 0:
        raise OptionError(f"expected sinks as a number of points, at least 0, got {sinks!r}")
    if window is None:
        if sinks:
            raise OptionError(
                f"expected a window beside sinks={sinks}, got window=None; give window=..., or "
                "leave sinks out"
            )
        return
    if window < 1:
        raise OptionError(f"window is a number of points, at least 1, or None; got {window}")
    if floor is None:
        raise OptionError(
            "a window needs normalised=True: softmax and features share one normaliser"
        )
    if isinstance(feature_map, FeatureMap) and not feature_map.positive:
        raise OptionError(
            f"{type(feature_map).__name__} has features that may be negative, and with a window "
            "the normaliser that they share with softmax could vanish; leave window out, or take "
            "a positive map"
        )


def query_parts(
    feature_map: Callable[[Tensor], Tensor], x: Tensor, gain: Float[Tensor, " h"]
) -> tuple[Float[Tensor, "b h n r"], Float[Tensor, "#b h #n"] | None]:
    """:math:`e^g \\phi` of queries over :math:`e^a`, and a, or None where nothing was divided.

    Without gradients :math:`e^g` is a part of :math:`e^a`: a number of each head, and no product.
    """
    features, exponent = (
        feature_map.parts_of_queries(x)
        if isinstance(feature_map, FeatureMap)
        else (cast(feature_map(x), at_least_single(x.dtype)), None)
    )
    if not torch.is_grad_enabled():
        more = gain.to(features.dtype)[None, :, None]
        return features, more if exponent is None else exponent + more
    with full_precision(features):
        return features * gain.to(features.dtype).exp()[:, None, None], exponent


def near_pairs(
    visible: Bool[Tensor, "#b #h #q k"] | None,
    window: int,
    keys: int,
    device: torch.device,
    sinks: int = 0,
) -> Bool[Tensor, "#b #h #q k"]:
    """Pairs in softmax's part: the last ``window`` keys that a query sees, and the first ``sinks``.

    Keys that it does not see take no place in either. ``visible`` is None where it sees all.
    """
    if visible is None:
        index = torch.arange(keys, device=device)
        return ((index > keys - 1 - window) | (index < sinks))[None, None, None]
    # A visible key's rank: 1 for the first that the query sees, ``count`` for the last.
    rank = visible.cumsum(-1)
    count = rank[..., -1:]
    return visible & ((rank > count - window) | (rank <= sinks))


def window_density(
    scores: Float[Tensor, "b h q k"],
    query: tuple[Tensor, Tensor | None],
    key: tuple[Tensor, Tensor | None],
    weights: Float[Tensor, "#b #h q k"],
    near: Bool[Tensor, "#b #h #q k"],
) -> Float[Tensor, "b h q k"]:
    r"""The density of both parts against the quadrature weights w,
    :math:`p_{ij} = a_{ij} / \sum_l w_{il} a_{il}` with :math:`a_{ij} = e^{s_{ij}}` nearby and
    :math:`\phi_i\cdot\psi_j` before. O(Nq·Nk).

    Args:
        scores: s.
        query, key: φ over :math:`e^a` and ψ over :math:`e^c`, with a (B, H, Nq) and c (B, H).
        weights: w.
        near: see :func:`near_pairs`.
    """
    dtype = torch.promote_types(scores.dtype, torch.float32)
    with full_precision(scores):
        weights, far = weights.to(dtype), query[0].to(dtype) @ key[0].to(dtype).mT
        exponent = weights.new_zeros(())
        for part, dims in ((query[1], 1), (key[1], 2)):
            if part is not None:
                exponent = exponent + part.detach().to(dtype)[(..., *[None] * dims)]
        seen, scores = weights > 0, scores.to(dtype)
        scores = scores.masked_fill(~(seen & near), -torch.inf)
        far = torch.where(seen & ~near, far, 0.0)
        size = far.detach().amax(-1, keepdim=True)
        least = vanishing(dtype)
        some, size = size > least, size.clamp_min(least)
        beyond = torch.where(some, exponent + size.log(), -torch.inf)
        top = torch.maximum(scores.detach().amax(-1, keepdim=True), beyond)
        top = torch.where(top > -torch.inf, top, 0.0)
        raw = (scores - top).exp() + far / size * (beyond - top).exp()
        mass = (raw * weights).sum(-1, keepdim=True)
        return raw / torch.where(mass > 0, mass, 1.0)


@torch.no_grad()
def first_gain(
    query_map: Callable[[Tensor], Tensor],
    key_map: Callable[[Tensor], Tensor],
    width: int,
    heads: int,
) -> Float[Tensor, " h"]:
    r"""The g that gives a point before the window, on average, what softmax would have given it,
    :math:`e^g\,E[\phi(q)\cdot\psi(k)] = E[e^{q\cdot k/\sqrt e}]` for independent standard normal q
    and k.

    Maps are made for a normaliser of their own, where no factor matters: Hedgehog's products are
    about 350 at width 64 where softmax's exponentials are about 1.6, and all that lies before the
    window would drown what is in it.
    """
    maps = [one for one in (query_map, key_map) if isinstance(one, nn.Module)]
    modes = [one.training for one in maps]
    held = (x for one in maps for x in (*one.parameters(), *one.buffers()))
    device = next((x.device for x in held), torch.get_default_device())
    draw = torch.Generator("cpu").manual_seed(0)  # the same every time, and nobody else's
    points = torch.randn(1, 1, 256, width, generator=draw, device="cpu").to(device)
    points = points.expand(1, heads, -1, -1)
    for one in maps:
        one.eval()  # a running average is that of the data
    query, key = (one(points).double().mean(2)[0] for one in (query_map, key_map))
    for one, mode in zip(maps, modes):
        one.train(mode)
    product = (query * key).sum(-1).clamp_min(1e-6)
    # E exp(q·k/√e) is (1 - 1/e)^(-e/2): near √e at every width
    softmax = (1 - 1 / max(width, 2)) ** (-max(width, 2) / 2)
    return (softmax / product).log().to(torch.get_default_dtype()).expand(heads).clone()
