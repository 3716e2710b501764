"""The section on the signed entries of one row of a kernel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ....domain import Domain
from ....explain.kernels import image_grid, output_points
from ..layers import Layer, first_sample, places_of, plain
from ..page import Data, Numbered, Picture, Section, words
from ..style import render
from . import draw

# Entries of a kernel's row that are drawn.
SHOWN = 12


def entry_section(layer: Layer) -> Numbered:
    """Return the section with the strongest entries K[o, i] of the middle query, each over the
    domain with its sign, for the first sample; and its numbers.

    No section where the domain is neither a line nor a grid.
    """
    grid = image_grid(layer.domain)
    if grid is None and layer.domain.dim > 1:
        return None, {}
    target = output_points(layer.operator, layer.domain)
    query = _middle(target)
    entries = _kernel_row(layer, target, query)
    size = entries.square().sum(1).flatten()
    # Entries of zero are not drawn, unless all are.
    nonzero = int((size > 0).sum())
    count = min(SHOWN, len(size), max(1, nonzero))
    chosen = size.topk(count).indices

    values = {}
    heads_out_in = np.unravel_index(chosen.numpy(), entries[:, 0].shape)
    for head, o, i in zip(*heads_out_in):
        name = f"{i + 1} → {o + 1}"
        if len(entries) > 1:
            name += f", head {head + 1}"
        values[name] = entries[head, :, o, i]

    total = size.sum().clamp(min=1e-300)
    share = float(size[chosen].sum() / total)
    caption = words(
        "entries_caption",
        chosen=count,
        count=f"{len(size):,}",
        query=query + 1,
        share=f"{share:.0%}",
        grid=grid is not None,
    )
    at = places_of(target)[query].numpy()
    if grid is None:
        places = places_of(layer.domain)
        x = places[:, 0].numpy()
        lines = {name: line.numpy() for name, line in values.items()}
        drawn = render(draw.draw_entry_lines, lines, x, float(at[0]))
    else:
        maps = {name: line[grid].numpy() for name, line in values.items()}
        drawn = render(draw.draw_entry_maps, maps, at)

    columns = {"point": range(layer.domain.size)}
    for name, line in values.items():
        columns[name] = line.tolist()
    picture = Picture(
        "entries",
        f"Signed entries of one kernel row: {', '.join(values)}",
        caption,
        drawn,
        Data.of(columns),
    )
    text = words("entries")
    section = Section("entries", "Entries of the kernel", text, [picture])
    return section, {"query": query, "entries": plain(values)}


@torch.no_grad()
def _kernel_row(layer: Layer, target: Domain, query: int) -> Tensor:
    """Return what a unit of u_i at y adds to output o at the query, (H, N, o, i)."""
    domain = first_sample(layer.domain)
    queries = None
    if target is not layer.domain:
        queries = first_sample(target)
    rows = layer.operator.kernel_matrix(layer.u[:1], domain, rows=[query])
    row = rows[0, :, 0].double().cpu()
    masses = domain.quadrature(queries).weights([query])
    mass = masses[0, :, 0].double().cpu()
    return row * mass[..., None, None]


def _middle(domain: Domain) -> int:
    """Return the point nearest to the centre; of a causal line the last one, which sees all."""
    if domain.dim == 1 and domain.causal:
        return domain.size - 1
    x = places_of(domain)
    centre = (x.amin(0) + x.amax(0)) / 2
    distance = (x - centre).norm(dim=-1)
    return int(distance.argmin())
