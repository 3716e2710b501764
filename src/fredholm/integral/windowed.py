"""Attention with a window: a kernel of two parts, split by order. Softmax weighs the last points
that a query sees, an inner product of features all points before. Kernels and converted layers
share these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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
    """Check the options of a window.

    Args:
        window: points back to which softmax sees, or None for features alone.
        feature_map: φ of the points before.
        floor: smallest denominator, or None for no normaliser.
        sinks: first points, which softmax sees from everywhere.

    Raises:
        OptionError: a window or sinks that are not a number of points; sinks without a window; a
            window with features that have no normaliser, or may be negative.
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
        raise OptionError(
            f"window: expected a number of points, at least 1, or None, got {window}; leave it out "
            "for features alone"
        )
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


class ScaledFeatures(NamedTuple):
    """Features without a factor that could overflow.

    Attributes:
        features: divided by the exponential of ``exponent``, (B, H, N, r).
        exponent: of each point or of all, (1 | B, H, 1 | N), or None where nothing was divided.
    """

    features: Tensor
    exponent: Tensor | None


def query_parts(
    feature_map: Callable[[Tensor], Tensor],
    x: Tensor,
    gain: Float[Tensor, " h"],
) -> ScaledFeatures:
    """Return :math:`e^g \\phi` of queries over :math:`e^a`, and a.

    Without gradients :math:`e^g` becomes a part of :math:`e^a`: one addition per query in place of
    a product per feature.
    """
    if isinstance(feature_map, FeatureMap):
        features, exponent = feature_map.parts_of_queries(x)
    else:
        features = cast(feature_map(x), at_least_single(x.dtype))
        exponent = None

    gain = gain.to(features.dtype)
    if not torch.is_grad_enabled():
        shift = gain[None, :, None]
        if exponent is not None:
            shift = exponent + shift
        return ScaledFeatures(features, shift)
    with full_precision(features):
        factor = gain.exp()[:, None, None]
        return ScaledFeatures(features * factor, exponent)


def near_pairs(
    visible: Bool[Tensor, "#b #h #q k"] | None,
    window: int,
    keys: int,
    device: torch.device,
    sinks: int = 0,
) -> Bool[Tensor, "#b #h #q k"]:
    """Return the pairs of softmax's part: the last ``window`` keys that a query sees, and the first
    ``sinks``.

    A key that the query does not see counts in neither.

    Args:
        visible: which pairs are seen; None where all are.
        window, sinks: numbers of points.
        keys, device: number of keys and where they are.

    Example:
        >>> near_pairs(None, 2, 5, torch.device("cpu"), sinks=1).flatten().tolist()
        [True, False, False, True, True]
    """
    if visible is None:
        index = torch.arange(keys, device=device)
        near = (index > keys - 1 - window) | (index < sinks)
        return near[None, None, None]

    # A visible key's rank: 1 for the first that the query sees, ``count`` for the last.
    rank = visible.cumsum(-1)
    count = rank[..., -1:]
    near = (rank > count - window) | (rank <= sinks)
    return visible & near


def window_density(
    scores: Float[Tensor, "b h q k"],
    query: tuple[Tensor, Tensor | None],
    key: tuple[Tensor, Tensor | None],
    weights: Float[Tensor, "#b #h q k"],
    near: Bool[Tensor, "#b #h #q k"],
    fading: Float[Tensor, "#b #h #q k"] | None = None,
) -> Float[Tensor, "b h q k"]:
    r"""Return the density of both parts against the quadrature weights w,
    :math:`p_{ij} = a_{ij} / \sum_l w_{il} a_{il}` with :math:`a_{ij} = e^{s_{ij}}` nearby and
    :math:`\phi_i\cdot\psi_j` before. O(Nq·Nk).

    Args:
        scores: s.
        query, key: φ over :math:`e^a` and ψ over :math:`e^c`, with a (B, H, Nq) and c (B, H).
        weights: w.
        near: see :func:`near_pairs`.
        fading: a factor of the terms before, of at most 1; None for none.
    """
    dtype = torch.promote_types(scores.dtype, torch.float32)
    with full_precision(scores):
        weights = weights.to(dtype)
        seen = weights > 0

        # Both parts without the pairs of the other, and the features' factor e^(a + c) apart.
        features, query_exponent = query
        key_features, key_exponent = key
        scores = scores.to(dtype).masked_fill(~(seen & near), -torch.inf)
        far = features.to(dtype) @ key_features.to(dtype).mT
        far = torch.where(seen & ~near, far, 0.0)
        if fading is not None:
            far = far * fading.to(dtype)
        exponent = weights.new_zeros(())
        if query_exponent is not None:
            exponent = exponent + query_exponent.detach().to(dtype)[..., None]
        if key_exponent is not None:
            exponent = exponent + key_exponent.detach().to(dtype)[..., None, None]

        # e^beyond is the largest far term of a query; divided by it, far terms are at most 1. Below
        # `vanishing` (1e-30 in float32) they count as none: the gradient has a reciprocal of them.
        largest = far.detach().amax(-1, keepdim=True)
        least = vanishing(dtype)
        some_far = largest > least
        largest = largest.clamp_min(least)
        beyond = torch.where(some_far, exponent + largest.log(), -torch.inf)

        # Both parts are divided by the larger of their largest terms, as a softmax is: float32
        # exponentials overflow above 88. A query that sees nothing has -∞ in both.
        largest_score = scores.detach().amax(-1, keepdim=True)
        top = torch.maximum(largest_score, beyond)
        top = torch.where(top > -torch.inf, top, 0.0)
        far_factor = (beyond - top).exp()
        terms = (scores - top).exp() + far / largest * far_factor
        mass = (terms * weights).sum(-1, keepdim=True)
        divisor = torch.where(mass > 0, mass, 1.0)
        return terms / divisor


@torch.no_grad()
def first_gain(
    query_map: Callable[[Tensor], Tensor],
    key_map: Callable[[Tensor], Tensor],
    width: int,
    heads: int,
) -> Float[Tensor, " h"]:
    r"""Return the g that gives a point before the window, on average, the weight that softmax would
    have given it: :math:`e^g\,E[\phi(q)\cdot\psi(k)] = E[e^{q\cdot k/\sqrt e}]` for independent
    standard normal q and k.

    Maps are made for a normaliser of their own, where no factor matters: Hedgehog's products are
    about 350 at width 64 where softmax's exponentials are about 1.6, and all points before the
    window together would drown those in it.

    Args:
        query_map, key_map: φ and ψ.
        width, heads: features of each head, and their number.
    """
    modules = [one for one in (query_map, key_map) if isinstance(one, nn.Module)]
    tensors: list[Tensor] = []
    for one in modules:
        tensors += [*one.parameters(), *one.buffers()]
    device = torch.get_default_device()
    if tensors:
        device = tensors[0].device

    # From a generator of its own, so that a seed promises the same weights with and without it.
    draw = torch.Generator("cpu").manual_seed(0)
    points = torch.randn(1, 1, 256, width, generator=draw, device="cpu").to(device)
    points = points.expand(1, heads, -1, -1)

    # In evaluation mode, so that running averages do not take these points for data.
    modes = [one.training for one in modules]
    for one in modules:
        one.eval()
    query = query_map(points).double().mean(2)[0]
    key = key_map(points).double().mean(2)[0]
    for one, mode in zip(modules, modes):
        one.train(mode)

    # The mean of φ(q)·ψ(k) over independent q and k is the product of their means.
    product = (query * key).sum(-1).clamp_min(1e-6)
    # At width w, E exp(q·k/√w) is (1 - 1/w)^(-w/2): 2.0 at width 2 and 1.66 at 64.
    w = max(width, 2)
    softmax = (1 - 1 / w) ** (-w / 2)
    gain = (softmax / product).log().to(torch.get_default_dtype())
    return gain.expand(heads).clone()
