"""Where a pretrained vision transformer looks, and whether the object is there: which reading of
its attention finds stamps on canvases and crowns of trees. Nothing is trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fredholm.explain import Traced, attention_quality, localisation, patch_targets
from fredholm.explain.quality import mean_error
from fredholm.lab import data
from fredholm.lab.compare.backbones import vit
from fredholm.lab.report.attention import draw_overlays

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
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the weights' own training
MAPS = {
    "attention": "class token, last layer",
    "rollout": "rollout, all layers",
    "incoming": "incoming centrality, last layer",
    "contrast": "colour's distance from the image's mean, no model",
    "centre": "nearness to the centre, no model",
}
MEASURES = {"roc_auc": "ROC-AUC", "pr_auc": "PR-AUC", "mass": "mass inside"}


def normal(pixels: Tensor) -> Tensor:
    """Pictures in [0, 1] as the weights were trained on them."""
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD))
    return (pixels - mean) / std


def contrast(pixels: Tensor, rows: int, columns: int) -> Tensor:
    """How far a patch's mean colour is from the image's, (B, rows, columns): what any map must
    beat that claims to have learned something.
    """
    patches = torch.nn.functional.adaptive_avg_pool2d(pixels.double(), (rows, columns))
    return (patches - patches.mean((2, 3), keepdim=True)).norm(dim=1)


def centre(pixels: Tensor, rows: int, columns: int) -> Tensor:
    """A bump in the middle, (B, rows, columns)."""
    y, x = (torch.linspace(-1, 1, n, dtype=torch.float64) for n in (rows, columns))
    bump = (-(y[:, None] ** 2 + x**2) / 0.5).exp()
    return bump.expand(len(pixels), -1, -1)


def judge(dataset: Any, model: Traced, limit: int | None) -> list[dict[str, Tensor]]:
    """The measures of every map on one split, (n,) each."""
    kind = "mask" if dataset.masks([0]) is not None else "box"
    found: list[dict[str, Tensor]] = []
    for part in torch.arange(min(limit or len(dataset), len(dataset))).split(BATCH):
        pixels, inside = dataset.raw(part)[0].float() / 255, dataset.masks(part, kind)
        known = {"masks" if kind == "mask" else "boxes": inside}
        quality = attention_quality(model, normal(pixels), steps=0, **known)
        rows, columns = quality.targets[kind].shape[1:]
        own = patch_targets(inside, (rows, columns))
        places = {name: by[kind] for name, by in quality.localisation.items()}
        for name, plain in (("contrast", contrast), ("centre", centre)):
            places[name] = localisation(plain(pixels, rows, columns), own)
        found.append({f"{m}/{k}": v for m, by in places.items() for k, v in by.items()})
    return found


def run(options: Options) -> None:
    """All maps on both sets."""
    model = Traced(vit(data.fetch("vit-s-focus")).model)
    limit = 4 if options.small else None
    result: dict[str, Any] = {"machine": describe(), "side": SIDE, "sets": {}}
    for name in options.chosen(SETS):
        parts: list[dict[str, Tensor]] = []
        for split in SPLITS[name]:
            parts += judge(data.create_dataset(name, split, image_size=SIDE), model, limit)
        whole = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        scores = {
            m: {k: mean_error(whole[f"{m}/{k}"]) for k in (*MEASURES, "chance")} for m in MAPS
        }
        apart = {
            m: mean_error(whole[f"{m}/roc_auc"] - whole["attention/roc_auc"])
            for m in MAPS
            if m != "attention"
        }
        result["sets"][name] = {"maps": scores, "beyond_attention": apart}
    save(result, FILE, options.results)
    if not options.small and DRAWN in result["sets"]:
        draw(model)


def draw(model: Traced) -> None:
    """Some tiles, and what the maps say of them: docs/results/infsa-pretrained.png."""
    dataset = data.create_dataset(DRAWN, "test", image_size=SIDE)
    chosen = torch.arange(len(dataset))[4 :: len(dataset) // 6][:6]
    pixels, inside = dataset.raw(chosen)[0].float() / 255, dataset.masks(chosen, "box")
    quality = attention_quality(model, normal(pixels), boxes=inside, steps=0)
    maps = {MAPS[name].split(",")[0]: one.numpy() for name, one in quality.maps.items()}
    pictures = [picture.permute(1, 2, 0).numpy() for picture in pixels]
    own = quality.targets["box"].numpy()
    save_picture(lambda theme: draw_overlays(theme, pictures, maps, own, [""] * 6), PAGES / PICTURE)


def section() -> str:
    """The part of docs/results/infsa.md."""
    found, command = load(FILE), "`python -m evidence run infsa pretrained`"
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
            gap = here["beyond_attention"].get(key)
            cells = [_score(scores[measure]) for measure in MEASURES]
            lines.append((label, *cells, "" if gap is None else _score(gap, signed=True)))
        share = here["maps"]["attention"]["chance"]
        heads = "map", *MEASURES.values(), "ROC-AUC beyond the class token's"
        about = (
            f"**{title}** (n = {share['n']}, {found['side']} × {found['side']} pixels; {100 * share['mean']:.1f}% of the patches inside, which "
            "is PR-AUC and mass of a blind map)."
        )
        parts.append(f"{about}\n\n{table(heads, lines)}\n\n{_behind(here['maps'])}")
    parts.append(
        f"![Six tiles and three maps; outlined are the patches with a crown]({PICTURE})\n\n"
        "Photographs: the National Ecological Observatory Network, from deepforest (MIT)."
    )
    machine = f"Command: {command}. Machine: {machine_line(found['machine'])}"
    return "\n\n".join([*parts, machine])


def _behind(maps: dict[str, Any]) -> str:
    """Which of the model's maps are not above both maps without a model."""
    bound = {k: max(maps[plain][k]["mean"] for plain in ("contrast", "centre")) for k in MEASURES}
    lines = []
    for key in ("attention", "rollout", "incoming"):
        lost = [MEASURES[k] for k in MEASURES if maps[key][k]["mean"] <= bound[k]]
        if lost:
            lines.append(f"{MAPS[key].split(',')[0]} in {', '.join(lost)}")
    return f"Not above the better one without a model: {'; '.join(lines) or 'none'}."


def _score(found: dict[str, Any], *, signed: bool = False) -> str:
    mean, error = 100 * found["mean"], 100 * found["error"]
    return f"{mean:{'+' if signed else ''}.1f} ± {error:.1f}"
