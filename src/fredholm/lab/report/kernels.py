"""The learned kernels against distance, and the shares of position and content in their variance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import DomainError, ShapeError
from ...explain.kernels import kernel_profile
from ...explain.variance import variance_share
from ...progress import steps
from ..data.kinds.kind import SAMPLES, Kind
from . import kernel_plots
from .layers import Layer, has_weights, plain
from .page import Data, Picture, Section, words
from .style import render


def profile_section(
    layers: Sequence[Layer], *, seed: int, queries: int, kind: Kind = SAMPLES
) -> tuple[Section | None, dict[str, Any]]:
    """Mean kernel norm against distance, one panel per layer; the weights too where they are not the
    norm times a constant. None where all points lie in one place.
    """
    result = [
        kernel_profile(layer.operator, layer.u, layer.domain, queries=queries, seed=seed)
        for layer in steps("explain: kernels and distance", layers, unit="layers")
    ]
    names = [layer.name for layer in layers]
    count = f"{result[0].samples} samples × {result[0].queries} queries × all keys a layer, seed {seed}."
    numbers = {layer.name: plain(vars(profile)) for layer, profile in zip(layers, result)}
    if max(float(profile.distance.max()) for profile in result) == 0:
        return None, numbers
    many = result[0].norm.shape[0] > 1
    caption = words("profile_caption", many=many, count=count, kind=kind)
    pictures = [_profile_picture("profile", names, result, "norm", "‖K‖_F", caption)]
    if not all(_proportional(profile) for profile in result):
        caption = words("weights_caption", scalar=has_weights(layers[0]), count=count)
        pictures.append(
            _profile_picture(
                "profile-weights", names, result, "weight", "weight of a pair", caption
            )
        )
    text = words("profile", point=kind.point)
    return Section("profile", "Kernel and distance", text, pictures), numbers


def share_section(
    layers: Sequence[Layer], *, seed: int, kind: Kind = SAMPLES
) -> tuple[Section | None, dict[str, Any]]:
    """Content against position in the kernel's variance, one bar per layer; None where that is
    undefined, and the numbers then say why.
    """
    try:
        result = [
            variance_share(layer.operator, layer.u, layer.domain, seed=seed)
            for layer in steps("explain: content and position", layers, unit="layers")
        ]
    except (DomainError, ShapeError) as error:
        return None, {"skipped": str(error)}
    names = [layer.name for layer in layers]
    one = result[0]
    caption = words("shares_caption", samples=one.samples, pairs=one.pairs, seed=seed, kind=kind)
    alt = "; ".join(
        f"{name}: {_percent(share.share)} position" for name, share in zip(names, result)
    )
    drawn = render(lambda theme: kernel_plots.shares(theme, names, result))
    numbers = {name: plain(vars(share)) for name, share in zip(names, result)}
    text = words("shares", point=kind.point)
    rows = [[name, share.share, share.error, share.relative] for name, share in zip(names, result)]
    data = Data(["layer", "share of position", "standard error", "varies by"], rows)
    picture = Picture("shares", alt, caption, drawn, data)
    return Section("shares", "Content and position", text, [picture]), numbers


def _profile_picture(key, names, found, what, label, caption) -> Picture:
    label = "‖K‖ (Frobenius)" if label == "‖K‖_F" else label
    near = ", ".join(
        f"{n}: {p.pooled(what)[0][0]:.3g} at distance 0, {p.pooled(what)[0][-1]:.3g} farthest"
        for n, p in zip(names, found)
    )
    rows = []
    for name, profile in zip(names, found):
        mean, sd = profile.pooled(what)
        heads = getattr(profile, what).T
        columns = zip(profile.distance.tolist(), mean.tolist(), sd.tolist(), heads.tolist())
        rows += [[name, distance, m, s, *each] for distance, m, s, each in columns]
    count = max(len(getattr(profile, what)) for profile in found)
    head = ["layer", "distance", "mean", "sd", *(f"head {i + 1}" for i in range(count))]
    drawn = render(lambda theme: kernel_plots.profiles(theme, names, found, what, label))
    return Picture(key, f"{label} against distance. {near}", caption, drawn, Data(head, rows))


def _proportional(profile) -> bool:
    """Whether weights are norms times one constant a head, so that a second picture would show the
    same.
    """
    there = profile.norm > 0
    ratio = profile.weight / profile.norm.where(there, torch.ones(()))
    mean = (ratio * there).sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp(min=1)
    return bool((((ratio - mean).abs() <= 1e-3 * mean) | (~there & (profile.weight == 0))).all())


def _percent(value: float) -> str:
    return "undefined" if value != value else f"{value:.0%}"
