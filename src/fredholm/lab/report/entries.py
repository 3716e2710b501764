"""The signed entries of one row of a kernel: the taps of a convolution, the memory of a recurrence."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...explain.kernels import image_grid, output_points, take_samples
from .page import Data, Picture, Section, words
from .plots import _short
from .sections import Layer, _plain
from .style import Theme, diverging, new_figure, render

SHOWN = 12


def entry_section(layer: Layer) -> tuple[Section | None, dict[str, Any]]:
    """The strongest entries K[o, i] of the middle query, each over the domain with its sign, for
    the first sample.

    Nothing where the domain is neither a line nor a grid.
    """
    target, grid = output_points(layer.operator, layer.domain), image_grid(layer.domain)
    if grid is None and layer.domain.dim > 1:
        return None, {}
    query = _middle(target)
    domain = take_samples(layer.domain, slice(0, 1))
    with torch.no_grad():
        row = (
            layer.operator.kernel_matrix(layer.u[:1], domain, rows=[query])[0, :, 0].double().cpu()
        )
        weights = domain.quadrature(
            None if target is layer.domain else take_samples(target, slice(0, 1))
        )
        mass = weights.weights([query])[0, :, 0].double().cpu()
    entries = (
        row * mass[..., None, None]
    )  # (H, N, o, i): what one unit of u_i at y adds to output o
    size = entries.pow(2).sum(1).flatten()
    chosen = size.topk(min(SHOWN, len(size))).indices[: max(1, int((size > 0).sum()))]
    heads, outputs, inputs = row.shape[0], row.shape[2], row.shape[3]
    names, values = [], []
    for index in chosen.tolist():
        head, o, i = index // (outputs * inputs), index // inputs % outputs, index % inputs
        names.append(f"{i + 1} → {o + 1}" + (f", head {head + 1}" if heads > 1 else ""))
        values.append(entries[head, :, o, i].numpy())
    share = float(size[chosen].sum() / size.sum().clamp(min=1e-300))
    at = target.positions.reshape(-1, target.size, target.dim)[0, query].double().cpu().numpy()
    place = domain.positions.reshape(-1, domain.size, domain.dim)[0, :, 0].double().cpu().numpy()
    drawn = render(
        lambda t: (
            _maps(t, names, values, grid, at)
            if grid is not None
            else _lines(t, names, values, place, at)
        )
    )
    facts = {"chosen": len(chosen), "count": f"{len(size):,}", "query": query}
    shown = words("entries_caption", **facts, share=f"{share:.0%}", grid=grid is not None)
    alt = f"Signed entries of one kernel row: {', '.join(names)}"
    rows = [[i, *line] for i, line in enumerate(zip(*(v.tolist() for v in values)))]
    picture = Picture("entries", alt, shown, drawn, Data(["point", *names], rows))
    numbers = {
        "query": query,
        "entries": dict(zip(names, (_plain(torch.from_numpy(v)) for v in values))),
    }
    return Section("entries", "Entries of the kernel", words("entries"), [picture]), numbers


def _middle(domain: Any) -> int:
    x = domain.positions.reshape(-1, domain.size, domain.dim)[0].double().cpu()
    if domain.dim == 1 and domain.causal:
        return domain.size - 1  # the last point sees everything
    return int((x - (x.amin(0) + x.amax(0)) / 2).norm(dim=-1).argmin())


def _maps(theme: Theme, names: list[str], values: list[np.ndarray], grid: Tensor, at: np.ndarray):
    across = 3 if theme.narrow else 6
    columns = min(across, len(names))
    rows = -(-len(names) // columns)
    shape = grid.shape[0] / grid.shape[1]
    side = (theme.width - 0.4) / across
    figure = new_figure(max(side * columns, 3.0), (side * shape + 0.35) * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    limit = max(float(np.abs(v).max()) for v in values) or 1.0
    for axes, name, value in zip(panels, names, values):
        axes.imshow(
            value[grid.numpy()],
            cmap=diverging(theme),
            vmin=-limit,
            vmax=limit,
            extent=(0, 1, 1, 0),
            aspect=shape,
        )
        axes.plot(
            at[1],
            at[0],
            marker="o",
            markersize=7,
            color="none",
            markeredgecolor=theme.mark,
            markeredgewidth=1.2,
        )
        axes.set_title(name, fontsize=8)
        axes.set_xlabel(
            f"{_short(value.min())} – {_short(value.max())}",
            fontsize=7,
            color=theme.faint,
            labelpad=2,
        )
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(True)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    return figure


def _lines(theme: Theme, names: list[str], values: list[np.ndarray], x: np.ndarray, at: np.ndarray):
    columns = min(2 if theme.narrow else 4, len(names))
    rows = -(-len(names) // columns)
    figure = new_figure(theme.width if columns > 1 else min(theme.width, 4.5), 1.4 * rows + 0.5)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, name, value in zip(panels, names, values):
        axes.axhline(0, color=theme.rule, linewidth=0.8)
        axes.plot(
            x, value, color=theme.series[0], marker="o" if len(x) <= 40 else None, markersize=2.5
        )
        axes.axvline(at[0], color=theme.mark, linewidth=1, linestyle="--")
        axes.tick_params(labelbottom=True, labelleft=True)
        axes.set_title(name, fontsize=8)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    figure.supxlabel("position", fontsize=9)
    return figure
