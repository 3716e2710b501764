"""Attention maps of a pretrained vision transformer, compared with the position of known objects.

Different readings of its attention are tried on stamps on canvases and on crowns of trees. Nothing
is trained.
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fredholm.explain import Traced, attention_quality, localisation, patch_targets
from fredholm.explain.quality import mean_error
from fredholm.lab import data
from fredholm.lab.compare.backbones import vit
from fredholm.lab.report.attention.draw import draw_overlays
from fredholm.lab.report.style import Theme

from ..kit.machine import describe, machine_line
from ..kit.page import PAGES, load, save, save_picture, table
from ..kit.subject import Options

FILE = "infsa-pretrained.json"
SETS = {
    "stamps-canvas": "Stamps on canvases, by masks",
    "tree-crowns": "Crowns of trees in tiles of aerial photographs, by boxes",
}
SPLITS = {"stamps-canvas": ("train", "val", "test"), "tree-crowns": ("test",)}
SIDE, BATCH = 224, 32
DRAWN, PICTURE = "tree-crowns", "infsa-pretrained.png"
# Statistics of the colours in the training of the weights.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
MAPS = {
    "attention": "class token, last layer",
    "rollout": "rollout, all layers",
    "incoming": "incoming centrality, last layer",
    "contrast": "colour's distance from the image's mean, no model",
    "centre": "nearness to the centre, no model",
}
MEASURES = {"roc_auc": "ROC-AUC", "pr_auc": "PR-AUC", "mass": "mass inside"}


def normal(pixels: Tensor) -> Tensor:
    """Normalise pictures in [0, 1] as in the training of the weights."""
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD))
    return (pixels - mean) / std


def contrast(pixels: Tensor, rows: int, columns: int) -> Tensor:
    """Return the distance of each patch's mean colour from the image's, (B, rows, columns).

    A map that learned something about the object should be better than this one.
    """
    patches = torch.nn.functional.adaptive_avg_pool2d(pixels.double(), (rows, columns))
    return (patches - patches.mean((2, 3), keepdim=True)).norm(dim=1)


def centre(pixels: Tensor, rows: int, columns: int) -> Tensor:
    """Return a Gaussian bump in the middle, (B, rows, columns)."""
    y, x = (torch.linspace(-1, 1, n, dtype=torch.float64) for n in (rows, columns))
    bump = (-(y[:, None] ** 2 + x**2) / 0.5).exp()
    return bump.expand(len(pixels), -1, -1)


def judge(dataset: Any, model: Traced, limit: int | None) -> list[dict[str, Tensor]]:
    """Measure every map on the images of a split.

    Returns one dictionary per batch, which maps ``MAP/MEASURE`` to values of shape (batch,).
    """
    kind = "mask" if dataset.masks([0]) is not None else "box"
    found: list[dict[str, Tensor]] = []
    for part in torch.arange(min(limit or len(dataset), len(dataset))).split(BATCH):
        pixels, inside = dataset.raw(part)[0].float() / 255, dataset.masks(part, kind)
        known = {"masks" if kind == "mask" else "boxes": inside}
        quality = attention_quality(model, normal(pixels), steps=0, **known)
        rows, columns = quality.targets[kind].shape[1:]
        targets = patch_targets(inside, (rows, columns))
        by_map = {name: by[kind] for name, by in quality.localisation.items()}
        for name, baseline in (("contrast", contrast), ("centre", centre)):
            by_map[name] = localisation(baseline(pixels, rows, columns), targets)

        values: dict[str, Tensor] = {}
        for name, measures in by_map.items():
            for measure, value in measures.items():
                values[f"{name}/{measure}"] = value
        found.append(values)
    return found


def run(options: Options) -> None:
    """Measure all maps on both sets."""
    model = Traced(vit(data.fetch("vit-s-focus")).model)
    limit = 4 if options.small else None
    result: dict[str, Any] = {"machine": describe(), "side": SIDE, "sets": {}}
    for name in options.chosen(SETS):
        parts: list[dict[str, Tensor]] = []
        for split in SPLITS[name]:
            parts += judge(data.create_dataset(name, split, image_size=SIDE), model, limit)
        values = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

        scores: dict[str, Any] = {}
        beyond: dict[str, Any] = {}
        for one in MAPS:
            scores[one] = {m: mean_error(values[f"{one}/{m}"]) for m in (*MEASURES, "chance")}
            if one != "attention":
                gap = values[f"{one}/roc_auc"] - values["attention/roc_auc"]
                beyond[one] = mean_error(gap)
        result["sets"][name] = {"maps": scores, "beyond_attention": beyond}
    save(result, FILE, options.results)
    if not options.small and DRAWN in result["sets"]:
        draw(model)


def draw(model: Traced) -> None:
    """Draw six tiles and the maps on them, docs/results/infsa-pretrained.png."""
    dataset = data.create_dataset(DRAWN, "test", image_size=SIDE)
    chosen = torch.arange(len(dataset))[4 :: len(dataset) // 6][:6]
    pixels, inside = dataset.raw(chosen)[0].float() / 255, dataset.masks(chosen, "box")
    quality = attention_quality(model, normal(pixels), boxes=inside, steps=0)
    maps = {MAPS[name].split(",")[0]: one.numpy() for name, one in quality.maps.items()}
    pictures = [picture.permute(1, 2, 0).numpy() for picture in pixels]
    targets = quality.targets["box"].numpy()

    def render(theme: Theme) -> Figure:
        return draw_overlays(theme, pictures, maps, targets, [""] * 6)

    save_picture(render, PAGES / PICTURE)


def section() -> str:
    """Return the part of docs/results/infsa.md."""
    found = load(FILE)
    command = "`python -m evidence run infsa pretrained`"
    if not found:
        return f"Not measured yet: {command}."
    parts = []
    for name, title in SETS.items():
        if name not in found["sets"]:
            continue
        here = found["sets"][name]
        lines = []
        for key, label in MAPS.items():
            scores = here["maps"][key]
            cells = [_score(scores[measure]) for measure in MEASURES]
            gap = ""
            if key in here["beyond_attention"]:
                gap = _score(here["beyond_attention"][key], signed=True)
            lines.append((label, *cells, gap))
        share = here["maps"]["attention"]["chance"]
        heads = "map", *MEASURES.values(), "ROC-AUC beyond the class token's"
        about = (
            f"**{title}** (n = {share['n']}, {found['side']} × {found['side']} pixels; {100 * share['mean']:.1f}% of the patches inside, which "
            "is PR-AUC and mass of an uninformative map)."
        )
        parts.append(f"{about}\n\n{table(heads, lines)}\n\n{_behind(here['maps'])}")
    parts.append(
        f"![Six tiles and three maps; the patches with a crown are outlined]({PICTURE})\n\n"
        "Photographs: the National Ecological Observatory Network, from deepforest (MIT)."
    )
    machine = f"Command: {command}. Machine: {machine_line(found['machine'])}"
    return "\n\n".join([*parts, machine])


def _behind(maps: dict[str, Any]) -> str:
    """Name the model's maps that aren't better than both baselines, with the measures."""
    bound: dict[str, float] = {}
    for measure in MEASURES:
        bound[measure] = max(maps["contrast"][measure]["mean"], maps["centre"][measure]["mean"])
    lines = []
    for key in ("attention", "rollout", "incoming"):
        lost = [MEASURES[k] for k in MEASURES if maps[key][k]["mean"] <= bound[k]]
        if lost:
            lines.append(f"{MAPS[key].split(',')[0]} in {', '.join(lost)}")
    return f"Maps that are not better than the better map without a model: {'; '.join(lines) or 'none'}."


def _score(found: dict[str, Any], *, signed: bool = False) -> str:
    """Format mean ± standard error in percent."""
    style = "+.1f" if signed else ".1f"
    return f"{format(100 * found['mean'], style)} ± {100 * found['error']:.1f}"
