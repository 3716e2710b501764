"""The sections on the quality of attention maps: overlays, removal of patches, finding the object,
centrality. Captions say what is plotted and from how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....errors import DomainError, OptionError
from ....explain.alignment import Alignment, eigenvector_alignment
from ....explain.centrality import token_chain
from ....explain.kernels import image_grid
from ....explain.quality import AREAS, MEASURES, Quality, attention_quality, mean_error
from ....explain.vision import Traced
from ....integral import IntegralOperator
from ....progress import working
from ..given import ReportOptions
from ..layers import Layer, plain
from ..page import Data, Numbered, Numbers, Picture, Section, table, words
from ..style import render
from ..subject import Subject, choose_samples
from .draw import draw_alignments, draw_overlays, draw_rankings, draw_removals

# Images of the overlays.
SHOWN = 8

# Removals of patches.
STEPS = 10

# Kernel entries that the maps of one image may need.
WORK = 2**28

# Names of maps in figures.
NAMES = {
    "attention": "read-out's attention",
    "rollout": "rollout",
    "incoming": "incoming centrality",
}

# Names of maps in tables.
TITLES = NAMES | {
    "attention": "read-out's attention, last layer",
    "rollout": "rollout, all layers",
}


def quality_sections(
    subject: Subject,
    layers: Sequence[Layer],
    options: ReportOptions,
) -> tuple[list[Section], Numbers]:
    """Return all sections for some images of a model, and their numbers.

    No section if no image is chosen, if the operators do not live on a grid of patches, or if
    complete maps of their kernels would be too large; the numbers then say why.
    """
    chosen = choose_marked(subject, options)
    if not chosen or not layers:
        return [], {}
    size = tuple(subject.inputs.shape[2:])
    reason = refusal(layers, size)
    if reason:
        return [], {"skipped": reason}
    with working("explain: attention maps"):
        return _sections(subject, layers, torch.as_tensor(chosen))


def _sections(
    subject: Subject,
    layers: Sequence[Layer],
    chosen: Tensor,
) -> tuple[list[Section], Numbers]:
    model = subject.model
    samples = subject.samples
    images = subject.inputs[chosen].to(subject.device)
    # Without a classifier there is no answer that removed patches could change.
    steps = STEPS
    if isinstance(model, Traced) and not model.classifies(images):
        steps = 0
    boxes = samples.boxes
    masks = samples.masks
    if boxes is not None:
        boxes = boxes[chosen]
    if masks is not None:
        masks = masks[chosen]
    quality = attention_quality(
        model,
        images,
        boxes=boxes,
        masks=masks,
        steps=steps,
        seed=subject.seed,
    )

    shown = chosen[:SHOWN].tolist()
    sections = [_overlay_section(subject, quality, shown)]
    if steps:
        sections.append(_removal_section(quality))
    if quality.targets:
        sections.append(_place_section(quality))
    centrality, numbers = _centrality_section(layers)
    if centrality is not None:
        sections.append(centrality)
    return sections, {**quality.summary(), "centrality": numbers}


def choose_marked(subject: Subject, options: ReportOptions) -> list[int]:
    """Return the images that are judged, drawn with the seed of the options; those in which an
    object is marked come first.
    """
    if not subject.kind.judged or options.quality < 1:
        return []
    count = len(subject.inputs)
    samples = subject.samples
    order = choose_samples(count, count, options.seed, options.picture)
    marked = samples.boxes
    if marked is None:
        marked = samples.masks
    if marked is not None:
        has = marked.flatten(1).any(1)
        # Sorting is stable: the order within both groups stays.
        order = sorted(order, key=lambda image: not has[image])
    return order[: options.quality]


def refusal(layers: Sequence[Layer], size: tuple[int, ...]) -> str | None:
    """Return why images of ``size`` (height, width), in pixels, have no maps in these layers; None if
    they have.

    A map has one value per patch and is laid over the image. The patches must therefore form a grid
    that divides the image, every layer must be an integral operator with weights between points,
    and all weights of one image, N² per head and layer, must fit in memory (:data:`WORK`).
    """
    # The layers share their points; the last one stands for all.
    grid = image_grid(layers[-1].domain)
    if grid is None:
        return "the operators do not live on a grid of patches"
    rows, columns = grid.shape
    if size[0] % rows or size[1] % columns:
        return f"the grid of {rows}x{columns} points does not divide images of {size[0]}x{size[1]}"
    if not all(isinstance(layer.operator, IntegralOperator) for layer in layers):
        return "an operator has no weights"

    work = sum(_entries(layer) for layer in layers)
    if work > WORK:
        return f"{work:,} kernel entries per image are too many"
    return None


def _entries(layer: Layer) -> int:
    """Return the number of kernel entries of one image: a matrix-valued kernel of many points is
    too large for complete maps.
    """
    operator = layer.operator
    entries = 1
    if not layer.has_weights:
        entries = operator.kernel.d_out * operator.kernel.d_in
    return entries * operator.heads * layer.domain.size**2


def _overlay_section(subject: Subject, quality: Quality, chosen: Sequence[int]) -> Section:
    """Return the section with maps laid over ``chosen``, the first images of ``quality``."""
    assert subject.things is not None
    count = len(chosen)

    # The patches of the object (images, rows, columns), where they are known.
    kind = next(iter(quality.targets), None)
    inside = None
    if kind is not None:
        inside = quality.targets[kind][:count].numpy()

    names = [""] * count
    labels = subject.samples.labels
    if labels is not None:
        names = [subject.classes[int(labels[image])] for image in chosen]
    pictures = [subject.things[image] for image in chosen]

    maps = {}
    rows = []
    for method, values in quality.maps.items():
        name = NAMES[method]
        maps[name] = values[:count].numpy()
        for place, value in np.ndenumerate(maps[name]):
            image, row, column = place
            rows.append([image, name, row, column, float(value)])
    picture = Picture(
        "overlays",
        f"Attention maps over {count} images: {', '.join(maps)}",
        words("attention_caption", kind=kind, images=count, seed=subject.seed),
        render(draw_overlays, pictures, maps, inside, names),
        Data(["image", "map", "row", "column", "value"], rows),
    )
    return Section("attention", "Attention maps", words("attention"), [picture])


def _removal_section(quality: Quality) -> Section:
    """Return the section on the confidence that is left when patches are removed."""
    first = next(iter(quality.degradation.values()))
    fractions = first.fractions.numpy()
    curves = {}
    columns = {"share removed": fractions.tolist()}
    areas = []
    ends = []
    for method, result in quality.degradation.items():
        name = NAMES[method]
        orders = {order: values.numpy() for order, values in result.curves.items()}
        curves[name] = orders
        for order, values in orders.items():
            columns[f"{name}, {order}"] = values.mean(0).tolist()

        scores = []
        for order in AREAS:
            found = mean_error(result.area(order))
            scores.append(_score(found))
        areas.append([TITLES[method], *scores])
        relevant_first = float(result.area("morf").mean())
        ends.append(f"{TITLES[method]}: MoRF {relevant_first:.2f}")

    picture = Picture(
        "removal",
        "; ".join(ends),
        words("removal_caption", images=len(first.curves["morf"])),
        render(draw_removals, fractions, curves),
        Data.of(columns),
    )
    after = table(["map", *AREAS.values()], areas)
    return Section("removal", "Removing patches", words("removal"), [picture], after)


def _place_section(quality: Quality) -> Section:
    """Return the section on maps as detectors of the object's patches."""
    rows = []
    for method, kinds in quality.localisation.items():
        for kind, measures in kinds.items():
            scores = []
            for key in MEASURES:
                found = mean_error(measures[key])
                scores.append(_score(found))
            rows.append([TITLES[method], kind, *scores])

    # The figure is of the first of box and mask, and of the images in which it is marked.
    kind, targets = next(iter(quality.targets.items()))
    marked = targets.flatten(1).any(1)
    inside = targets[marked].numpy()
    maps = {}
    columns = {"inside": inside.astype(int).ravel().tolist()}
    for method, values in quality.maps.items():
        name = NAMES[method]
        maps[name] = values[marked].numpy()
        columns[name] = maps[name].ravel().tolist()
    picture = Picture(
        "rankings",
        f"ROC and precision-recall of {', '.join(maps)}",
        words("place_caption", kind=kind, images=len(inside)),
        render(draw_rankings, maps, inside),
        Data.of(columns),
    )
    after = table(["map", "object as", *MEASURES.values()], rows)
    return Section("localisation", "Finding the object", words("place"), [picture], after)


def _centrality_section(layers: Sequence[Layer]) -> Numbered:
    """Return the section on layers as absorbing chains, and its numbers: how near one step comes to
    the limit of many, how long walks are, where γ had to be lowered.
    """
    found: dict[str, Alignment] = {}
    numbers = {}
    rows = []
    for layer in layers:
        try:
            alignment = eigenvector_alignment(layer.operator, layer.u, layer.domain)
            facts = _chain_facts(layer, alignment)
        except (DomainError, OptionError) as error:
            numbers[layer.name] = {"skipped": str(error)}
            continue
        found[layer.name] = alignment
        numbers[layer.name] = plain(facts)
        cosine = _score(facts["cosine"])
        spearman = _score(facts["spearman"])
        visits = f"{facts['outgoing']:.2f}"
        limited = f"{facts['limited']:.0%}"
        rows.append([layer.name, cosine, spearman, visits, limited])
    if not found:
        return None, numbers

    dots = []
    means = []
    for name, alignment in found.items():
        cosines = alignment.cosine.flatten().tolist()
        spearmans = alignment.spearman.flatten().tolist()
        for dot, pair in enumerate(zip(cosines, spearmans)):
            dots.append([name, dot, *pair])
        mean = float(alignment.cosine.nanmean())
        means.append(f"{name}: cosine {mean:.3f}")

    images = len(layers[0].u)
    picture = Picture(
        "alignment",
        "; ".join(means),
        words("centrality_caption", dots=len(dots), images=images),
        render(draw_alignments, found),
        Data(["layer", "dot", "cosine", "spearman"], dots),
    )
    head = ["layer", "cosine", "Spearman", "visits of a walk", "heads where γ was lowered"]
    after = table(head, rows)
    section = Section("centrality", "Centrality", words("centrality"), [picture], after)
    return section, numbers


def _chain_facts(layer: Layer, alignment: Alignment) -> Numbers:
    """Return the numbers of a layer as an absorbing chain."""
    cosine = alignment.cosine.flatten()
    spearman = alignment.spearman.flatten()
    chain = token_chain(layer.operator, layer.u, layer.domain)
    real = chain.real[..., 0] > 0
    real = real.expand_as(chain.row_sums)
    outgoing = chain.outgoing[real]
    absorption = chain.absorption[real]
    limited = chain.limited.double()
    return {
        "cosine": mean_error(cosine),
        "spearman": mean_error(spearman),
        "samples": cosine.numel(),
        "outgoing": float(outgoing.mean()),
        "least_absorption": float(absorption.min()),
        "limited": float(limited.mean()),
    }


def _score(found: Mapping[str, Any]) -> str:
    """Return a mean with its standard error, from :func:`.mean_error`."""
    if found["mean"] is None:
        return "undefined"
    mean = f"{found['mean']:.3f}"
    # One image alone has no standard error.
    if found["error"] is None:
        return mean
    return f"{mean} ± {found['error']:.3f}"
