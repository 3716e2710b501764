"""Sections about what operators learned: kernels against distance, the shares of position and
content in their variance, and the steps of a continuous model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...errors import DomainError, ShapeError
from ...explain.kernels import Profile, kernel_profile
from ...explain.variance import VarianceShare, variance_share
from ...models.bodies.continuous import ContinuousBody
from ...models.encoders import Inputs
from ...models.trajectory import trajectory
from ...modes import device_of
from ...progress import steps
from .layers import View, plain
from .page import Data, Numbered, Picture, Section, words
from .panels import DOT, dots, percent
from .style import Theme, has_negative, new_figure, panels, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Quantities of a trajectory, and the titles of their panels.
QUANTITIES = {
    "energy": "energy ½‖u‖²",
    "distance": "distance to mean 0, sd 1",
    "growth": "growth of a difference",
}

# Labels of what is plotted against distance.
LABELS = {
    "norm": "‖K‖ (Frobenius)",
    "weight": "weight of a pair",
}


def profile_section(view: View, *, seed: int, queries: int) -> Numbered:
    """Return the mean kernel norm against distance, one panel per layer, and its numbers; also the
    weights, unless they are the norm times a constant. No section if all points lie in one place.
    """
    profiles = []
    numbers = {}
    for layer in steps("explain: kernels and distance", view.layers, unit="layers"):
        profile = kernel_profile(
            layer.operator,
            layer.u,
            layer.domain,
            queries=queries,
            seed=seed,
        )
        profiles.append(profile)
        numbers[layer.name] = plain(vars(profile))

    farthest = max(float(profile.distance.max()) for profile in profiles)
    if farthest == 0:
        return None, numbers

    # All layers are read at equally many samples and queries.
    first = profiles[0]
    count = f"{first.samples} samples × {first.queries} queries × all keys per layer, seed {seed}."
    caption = words(
        "profile_caption",
        many=len(first.norm) > 1,
        count=count,
        kind=view.kind,
    )
    norms = _profile_picture("profile", view, profiles, "norm", caption)
    pictures = [norms]
    if not all(_proportional(profile) for profile in profiles):
        scalar = view.layers[0].has_weights
        caption = words("weights_caption", scalar=scalar, count=count)
        weights = _profile_picture("profile-weights", view, profiles, "weight", caption)
        pictures.append(weights)
    text = words("profile", point=view.kind.point)
    return Section("profile", "Kernel and distance", text, pictures), numbers


def _profile_picture(
    key: str,
    view: View,
    profiles: Sequence[Profile],
    what: str,
    caption: str,
) -> Picture:
    """Return the picture of the ``"norm"`` or the ``"weight"`` of pairs against distance."""
    ends = []
    rows = []
    most = 0
    for name, profile in zip(view.names, profiles):
        distances = profile.distance.tolist()
        mean, sd = profile.pooled(what)
        mean = mean.tolist()
        ends.append(f"{name}: {mean[0]:.3g} at distance 0, {mean[-1]:.3g} farthest")

        heads = getattr(profile, what)
        most = max(most, len(heads))
        columns = [distances, mean, sd.tolist(), *heads.tolist()]
        for cells in zip(*columns):
            rows.append([name, *cells])

    numbered = [f"head {head + 1}" for head in range(most)]
    head = ["layer", "distance", "mean", "sd", *numbered]
    alt = f"{LABELS[what]} against distance. {', '.join(ends)}"
    drawn = render(draw_profiles, view.names, profiles, what)
    return Picture(key, alt, caption, drawn, Data(head, rows))


def _proportional(profile: Profile) -> bool:
    """Return whether weights are norms times one constant per head: a second picture would show
    the same.
    """
    norm = profile.norm
    weight = profile.weight
    there = norm > 0
    ratio = weight / norm.where(there, torch.ones(()))

    total = (ratio * there).sum(1, keepdim=True)
    count = there.sum(1, keepdim=True).clamp(min=1)
    mean = total / count
    near = (ratio - mean).abs() <= 1e-3 * mean

    both_zero = ~there & (weight == 0)
    return bool((near | both_zero).all())


def share_section(view: View, *, seed: int) -> Numbered:
    """Return the shares of content and position in the kernel's variance, one bar per layer, and
    their numbers. No section if they are undefined; the numbers then say why.
    """
    shares = []
    try:
        for layer in steps("explain: content and position", view.layers, unit="layers"):
            share = variance_share(layer.operator, layer.u, layer.domain, seed=seed)
            shares.append(share)
    except (DomainError, ShapeError) as error:
        return None, {"skipped": str(error)}

    names = view.names
    parts = []
    numbers = {}
    for name, share in zip(names, shares):
        parts.append(f"{name}: {_percent(share.share)} position")
        numbers[name] = plain(vars(share))
    data = Data.of(
        {
            "layer": names,
            "share of position": [share.share for share in shares],
            "standard error": [share.error for share in shares],
            "varies by": [share.relative for share in shares],
        }
    )
    picture = Picture(
        "shares",
        "; ".join(parts),
        words("shares_caption", first=shares[0], seed=seed, kind=view.kind),
        render(draw_shares, names, shares),
        data,
    )
    text = words("shares", point=view.kind.point)
    section = Section("shares", "Content and position", text, [picture])
    return section, numbers


def _percent(value: float) -> str:
    # A kernel that is constant has no variance to share: NaN.
    if value != value:
        return "undefined"
    return f"{value:.0%}"


def evolution_section(
    model: Any,
    inputs: Tensor | Inputs,
    *,
    seed: int,
) -> Numbered:
    """Return energy, distance to the constraint and growth of a perturbation after each step of a
    continuous model, at N, 2N and 4N steps, and their numbers; no section for other models.
    """
    body = getattr(model, "body", None)
    if not isinstance(body, ContinuousBody) or not isinstance(inputs, Tensor):
        return None, {}

    built = body.evolution.steps
    counts = [built, 2 * built, 4 * built]
    if model.config.body.scheme == "relaxed":
        # Its weights are of single steps.
        counts = [built]
    device = device_of(model)
    inputs = inputs.to(device)

    paths = {}
    numbers = {}
    ends = []
    rows = []
    for count in counts:
        path = trajectory(model, inputs, count, seed)
        paths[count] = path
        numbers[str(count)] = path
        last = ", ".join(f"{key} {path[key][-1]:.3g}" for key in QUANTITIES)
        ends.append(f"{count} steps end at {last}")
        columns = [path[key] for key in ("time", *QUANTITIES)]
        for line in zip(*columns):
            rows.append([count, *line])

    picture = Picture(
        "steps",
        "; ".join(ends),
        words("evolution_caption", samples=len(inputs), seed=seed),
        render(draw_steps, paths),
        Data(["steps", "time", *QUANTITIES], rows),
    )
    horizon = f"{body.evolution.horizon:g}"
    text = words("evolution", steps=built, horizon=horizon)
    section = Section("steps", "Step by step", text, [picture])
    return section, numbers


# --- pictures -------------------------------------------------------------------------------------


def draw_profiles(
    theme: Theme,
    names: Sequence[str],
    found: Sequence[Profile],
    what: str,
) -> Figure:
    """Plot a mean against distance, one panel per layer: all heads with their band, and each head
    as a thin line.

    Args:
        what: ``"norm"`` or ``"weight"``.
    """
    columns = theme.pick(min(3, len(found)), 1)
    figure, every = panels(
        theme,
        len(found),
        2.5,
        columns=columns,
        margin=0.3,
        sharex=True,
    )
    for axes, name, profile in zip(every, names, found):
        _profile(axes, theme, profile, what)
        axes.set_title(name)
    figure.supxlabel("distance |x − y|", fontsize=9)
    figure.supylabel(LABELS[what], fontsize=9)
    return figure


def _profile(
    axes: Axes,
    theme: Theme,
    profile: Profile,
    what: str,
) -> None:
    distance = profile.distance.numpy()
    mean, sd = (values.numpy() for values in profile.pooled(what))
    heads = getattr(profile, what).numpy()

    # Norms are never negative, nor are most weights: their band ends at 0.
    low = mean - sd
    if not has_negative(heads):
        low = np.maximum(low, 0)
    high = mean + sd
    colour = theme.series[0]
    axes.fill_between(
        distance,
        low,
        high,
        color=colour,
        alpha=0.18,
        linewidth=0,
    )
    if len(heads) > 1:
        axes.plot(
            distance,
            heads.T,
            color=theme.faint,
            linewidth=0.8,
            alpha=0.8,
        )
    axes.plot(distance, mean, color=colour, **DOT)
    axes.tick_params(labelbottom=True)
    top = max(0.0, float(high.max()), float(heads.max()))
    bottom = min(0.0, float(low.min()), float(heads.min()))
    margin = 0.08 * (top - bottom)
    if bottom < 0:
        bottom -= margin
    axes.set_ylim(bottom, top + margin or 1)
    axes.grid(axis="y")


def draw_shares(
    theme: Theme,
    names: Sequence[str],
    found: Sequence[VarianceShare],
) -> Figure:
    """Plot stacked bars, position then content, one row per layer; the error at their border, heads
    as dots.
    """
    figure = new_figure(theme.width, 0.46 * len(found) + 1.1)
    axes = figure.subplots()
    labels = []
    for row, share in enumerate(found):
        _share(axes, theme, row, share)
        labels.append(f"{names[row]}\nvaries by {share.relative:.2g}")
    axes.set_yticks(range(len(found)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    percent(axes.xaxis)
    axes.set_xlabel("share of the kernel's variance")
    if axes.containers:
        axes.legend(
            axes.patches[:2],
            ["position", "content"],
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=2,
            borderaxespad=0.2,
        )
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def _share(
    axes: Axes,
    theme: Theme,
    row: int,
    share: VarianceShare,
) -> None:
    if not np.isfinite(share.share):
        text = "constant kernel: no variance to share"
        axes.text(0.01, row, text, va="center", color=theme.faint)
        return

    # An estimate from few samples can leave [0, 1].
    part = min(max(share.share, 0.0), 1.0)
    axes.barh(row, part, color=theme.position, height=0.62)
    axes.barh(
        row,
        1 - part,
        left=part,
        color=theme.content,
        height=0.62,
    )
    axes.errorbar(
        part,
        row,
        xerr=share.error,
        color=theme.ink,
        capsize=3,
        linewidth=1.2,
    )
    heads = share.head_share.clamp(0, 1).numpy()
    if len(heads) > 1:
        axes.scatter(
            heads,
            np.full(len(heads), row),
            s=14,
            zorder=3,
            color=theme.paper,
            edgecolor=theme.ink,
            linewidth=0.8,
        )
    text = f"{part:.0%} ± {share.error:.1%}"
    axes.text(1.012, row, text, va="center", fontsize=8.5)


def draw_steps(
    theme: Theme,
    paths: Mapping[int, Mapping[str, list[float]]],
) -> Figure:
    """Plot each quantity against time: one panel per quantity, one line per number of steps."""
    figure, every = panels(theme, len(QUANTITIES), 2.7)
    for axes, (key, title) in zip(every, QUANTITIES.items()):
        for colour, (count, path) in zip(theme.series, paths.items()):
            axes.plot(
                path["time"],
                path[key],
                color=colour,
                label=f"{count} steps",
                **dots(count),
            )
        axes.set_title(title)
        axes.set_xlabel("time t")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
    every[0].legend()
    return figure
