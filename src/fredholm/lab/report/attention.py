"""Attention quality as sections of a page: overlays, removal, localisation,
centrality. Captions say what is plotted and from how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import DomainError, OptionError
from ...explain.alignment import eigenvector_alignment
from ...explain.centrality import token_chain
from ...explain.kernels import image_grid
from ...explain.quality import AREAS, MEASURES, Quality, attention_quality, mean_error
from ...explain.vision import Traced
from ...integral import IntegralOperator
from . import attention_plots
from .given import Samples
from .layers import Layer, plain
from .page import Data, Picture, Section, table, words
from .samples import choose_samples
from .style import render

SHOWN = 8  # images of the overlays
STEPS = 10  # removals of patches
WORK = 2**28  # kernel entries that the maps of one image may need
NAMES = {
    "attention": "read-out's attention, last layer",
    "rollout": "rollout, all layers",
    "incoming": "incoming centrality",
}


def quality_sections(
    model: Any,
    inputs: Any,
    pictures: Sequence[Any],
    layers: Sequence[Layer],
    chosen: Sequence[int],
    samples: Samples,
    *,
    seed: int = 0,
) -> tuple[list[Section], dict[str, Any]]:
    """All sections for the ``chosen`` of some images (inputs of another kind have none chosen), and
    their numbers.

    None where no image is chosen, where the operators do not live on a grid of patches, and where
    whole maps of their kernels would be too large.
    """
    if not chosen or not layers:
        return [], {}
    reason = _refusal(layers, tuple(inputs.shape[2:]))
    if reason:
        return [], {"skipped": reason}
    index = torch.as_tensor(chosen)
    box, mask = (
        None if known is None else known[index] for known in (samples.boxes, samples.masks)
    )
    device = next(model.parameters()).device
    images = inputs[index].to(device)
    # Of a backbone without a classifier nothing is known that removed patches could change.
    steps = STEPS if not isinstance(model, Traced) or model.classifies(images) else 0
    result = attention_quality(model, images, boxes=box, masks=mask, steps=steps, seed=seed)
    labels, classes = samples.labels, samples.classes or ()
    names = None if labels is None else [classes[int(labels[i])] for i in chosen]
    sections = [
        _overlay_section(result, [pictures[i] for i in chosen], names, seed),
    ]
    sections += [_removal_section(result)] if steps else []
    sections += [_place_section(result)] if result.targets else []
    centrality, numbers = centrality_section(layers)
    sections += [centrality] if centrality else []
    return sections, {**result.summary(), "centrality": numbers}


def choose_marked(
    count: int, number: int, seed: int, picture: int | None, marked: Tensor | None
) -> list[int]:
    """Up to ``number`` of ``count`` images, drawn with ``seed``; those in which an object is marked
    come first.
    """
    order = choose_samples(count, count, seed, picture) if number > 0 else []
    if marked is not None:
        has = marked.flatten(1).any(1)
        order = sorted(order, key=lambda i: not has[i])
    return order[: max(0, number)]


def centrality_section(layers: Sequence[Layer]) -> tuple[Section | None, dict[str, Any]]:
    """Each layer as an absorbing chain: how near one step comes to the limit of many, how long
    walks are, where γ had to be lowered.
    """
    names, found, rows, numbers = [], [], [], {}
    for layer in layers:
        try:
            alignment = eigenvector_alignment(layer.operator, layer.u, layer.domain)
            chain = token_chain(layer.operator, layer.u, layer.domain)
        except (DomainError, OptionError) as error:
            numbers[layer.name] = {"skipped": str(error)}
            continue
        states = (chain.real[..., 0] > 0).expand_as(chain.row_sums)
        facts = {
            "cosine": mean_error(alignment.cosine.flatten()),
            "spearman": mean_error(alignment.spearman.flatten()),
            "samples": alignment.cosine.numel(),
            "outgoing": float(chain.outgoing[states].mean()),
            "least_absorption": float(chain.absorption[states].min()),
            "limited": float(chain.limited.double().mean()),
        }
        numbers[layer.name] = plain(facts)
        names.append(layer.name)
        found.append(alignment)
        rows.append(
            [
                layer.name,
                _score(facts["cosine"]),
                _score(facts["spearman"]),
                f"{facts['outgoing']:.2f}",
                f"{facts['limited']:.0%}",
            ]
        )
    if not rows:
        return None, numbers
    count = sum(one.cosine.numel() for one in found)
    caption = words("centrality_caption", dots=count, images=len(layers[0].u))
    alt = "; ".join(
        f"{name}: cosine {float(one.cosine.nanmean()):.3f}" for name, one in zip(names, found)
    )
    drawn = render(lambda theme: attention_plots.alignments(theme, names, found))
    head = ["layer", "cosine", "Spearman", "visits of a walk", "heads where γ was lowered"]
    return Section(
        "centrality",
        "Centrality",
        words("centrality"),
        [Picture("alignment", alt, caption, drawn, _alignment_data(names, found))],
        after=table(head, rows),
    ), numbers


# --- parts ----------------------------------------------------------------------------------------


def _alignment_data(names: Sequence[str], found: Sequence[Any]) -> Data:
    rows = [
        [name, place, *pair]
        for name, one in zip(names, found)
        for place, pair in enumerate(
            zip(one.cosine.flatten().tolist(), one.spearman.flatten().tolist())
        )
    ]
    return Data(["layer", "dot", "cosine", "spearman"], rows)


def _overlay_section(
    found: Quality, pictures: Sequence[np.ndarray], labels: Sequence[str] | None, seed: int
) -> Section:
    count = min(SHOWN, len(pictures))
    kind = next(iter(found.targets), None)
    inside = None if kind is None else found.targets[kind][:count].numpy()
    maps = {NAMES[m].split(",")[0]: values[:count].numpy() for m, values in found.maps.items()}
    names = [str(labels[i]) for i in range(count)] if labels is not None else [""] * count
    text = words("attention")
    caption = words("attention_caption", kind=kind, images=count, seed=seed)
    alt = f"Attention maps over {count} images: {', '.join(maps)}"
    drawn = render(
        lambda theme: attention_plots.overlays(theme, pictures[:count], maps, inside, names)
    )
    rows = [
        [i, name, row, column, float(value)]
        for name, values in maps.items()
        for (i, row, column), value in np.ndenumerate(values)
    ]
    data = Data(["image", "map", "row", "column", "value"], rows)
    picture = Picture("overlays", alt, caption, drawn, data)
    return Section("attention", "Attention maps", text, [picture])


def _removal_section(found: Quality) -> Section:
    one = next(iter(found.degradation.values()))
    count = len(one.curves["morf"])
    rows = [
        [NAMES[m], *(_score(mean_error(d.area(order))) for order in AREAS)]
        for m, d in found.degradation.items()
    ]
    after = table(["map", *(label for label in AREAS.values())], rows)
    caption = words("removal_caption", images=count)
    curves = {
        NAMES[m].split(",")[0]: {o: v.numpy() for o, v in d.curves.items()}
        for m, d in found.degradation.items()
    }
    drawn = render(lambda theme: attention_plots.removals(theme, one.fractions.numpy(), curves))
    lines = {(m, o): v.mean(0).tolist() for m, orders in curves.items() for o, v in orders.items()}
    head = ["share removed", *(f"{m}, {o}" for m, o in lines)]
    data = Data(head, list(zip(one.fractions.tolist(), *lines.values())))
    alt = "; ".join(
        f"{NAMES[m]}: MoRF {float(d.area('morf').mean()):.2f}" for m, d in found.degradation.items()
    )
    return Section(
        "removal",
        "Removing patches",
        words("removal"),
        [Picture("removal", alt, caption, drawn, data)],
        after=after,
    )


def _place_section(found: Quality) -> Section:
    kinds = list(found.targets)
    rows = [
        [NAMES[m], kind, *(_score(mean_error(measures[key])) for key in MEASURES)]
        for m, by_kind in found.localisation.items()
        for kind, measures in by_kind.items()
    ]
    after = table(["map", "object as", *MEASURES.values()], rows)
    kind = kinds[0]
    marked = found.targets[kind].flatten(1).any(1)
    maps = {NAMES[m].split(",")[0]: values[marked].numpy() for m, values in found.maps.items()}
    inside = found.targets[kind][marked].numpy()
    caption = words("place_caption", kind=kind, images=int(marked.sum()))
    drawn = render(lambda theme: attention_plots.rankings(theme, maps, inside))
    alt = "ROC and precision-recall of " + ", ".join(maps)
    columns = [values.ravel().tolist() for values in (inside.astype(int), *maps.values())]
    patches = list(zip(*columns))
    return Section(
        "localisation",
        "Finding the object",
        words("place"),
        [Picture("rankings", alt, caption, drawn, Data(["inside", *maps], patches))],
        after=after,
    )


def _score(found: Mapping[str, Any]) -> str:
    if found["mean"] is None:
        return "undefined"
    return f"{found['mean']:.3f}" + ("" if found["error"] is None else f" ± {found['error']:.3f}")


def _refusal(layers: Sequence[Layer], size: tuple[int, ...]) -> str | None:
    """Why images of this size have no maps here, or None."""
    grid = image_grid(layers[-1].domain)
    if grid is None:
        return "the operators do not live on a grid of patches"
    if size[0] % grid.shape[0] or size[1] % grid.shape[1]:
        return f"the grid of {grid.shape[0]}x{grid.shape[1]} points does not divide images of {size[0]}x{size[1]}"
    if not all(isinstance(layer.operator, IntegralOperator) for layer in layers):
        return "an operator has no weights"
    return (
        f"{_work(layers):,} kernel entries an image are too many" if _work(layers) > WORK else None
    )


def _work(layers: Sequence[Layer]) -> int:
    """Kernel entries of one image over all layers: a matrix-valued kernel of many points is too
    large for whole maps.
    """
    total = 0
    for layer in layers:
        kernel = getattr(layer.operator, "kernel", None)
        scalar = layer.operator.has_weights
        entries = 1 if scalar else getattr(kernel, "d_out", 1) * getattr(kernel, "d_in", 1)
        total += entries * getattr(layer.operator, "heads", 1) * layer.domain.size**2
    return total
