"""The attention quality suite: maps of a model, whether they are faithful to it, and whether they
find the objects.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..errors import DomainError, OptionError, ShapeError
from ..modes import evaluating
from .attention import METHODS, check_method, maps_of
from .removal import Degradation, degradation
from .targets import localisation, patch_targets
from .vision import traced

AREAS = {
    "morf": "MoRF, area over",
    "lerf": "LeRF, area under",
    "random": "random order, area under",
}
MEASURES = {
    "roc_auc": "ROC-AUC",
    "pr_auc": "PR-AUC",
    "mass": "mass inside",
    "chance": "patches inside",
}
# Images whose maps are made at once.
BATCH = 64


@dataclass(frozen=True, eq=False)
class Quality:
    """Maps of a model's attention and their quality, see :func:`attention_quality`. Every number
    belongs to one image.

    Attributes:
        maps: (B, rows, columns) by method.
        degradation: by method.
        localisation: measures (B,) by method and by kind of annotation (``box``, ``mask``).
        targets: the patches that belong to the object (B, rows, columns), by kind of
            annotation.
        skipped: why a method has no map, by method.
    """

    maps: dict[str, Float[Tensor, "b rows columns"]]
    degradation: dict[str, Degradation]
    localisation: dict[str, dict[str, dict[str, Tensor]]]
    targets: dict[str, Bool[Tensor, "b rows columns"]]
    skipped: dict[str, str]

    def summary(self) -> dict[str, Any]:
        """Return the means over images, ready for JSON.

        Each number is a dictionary of mean, standard error and count, see :func:`mean_error`:

        - ``degradation[method][order]``, orders as in :data:`AREAS`;
        - ``localisation[method][kind][measure]``, kinds ``box`` and ``mask``, measures as in
          :data:`MEASURES`.
        """
        areas: dict[str, Any] = {}
        for method, result in self.degradation.items():
            areas[method] = {}
            for order in AREAS:
                area = result.area(order)
                areas[method][order] = mean_error(area)

        places: dict[str, Any] = {}
        for method, kinds in self.localisation.items():
            places[method] = {}
            for kind, measures in kinds.items():
                places[method][kind] = {
                    measure: mean_error(values) for measure, values in measures.items()
                }
        return {
            "degradation": areas,
            "localisation": places,
            "skipped": self.skipped,
        }


def attention_quality(
    model: nn.Module,
    images: Float[Tensor, "b c h w"],
    *,
    boxes: Tensor | None = None,
    masks: Tensor | None = None,
    methods: Sequence[str] = METHODS,
    steps: int = 10,
    seed: int = 0,
) -> Quality:
    """Return maps of a model's attention, and their quality: MoRF, LeRF and, if objects are known,
    ROC-AUC, PR-AUC and the mass inside.

    It works for every model with ``trace(images)`` on a grid of patches, whatever its operator, and
    for vision transformers of torch, timm and transformers (:func:`fredholm.explain.traced`). A
    method that is not defined for a model (a chain of negative weights, rollout over different
    grids) is omitted and listed in ``skipped``.

    Args:
        model: from images to logits, with ``trace`` or a vision transformer. If ``steps`` is 0, it
            needs no classifier.
        images: normalised.
        boxes, masks: the pixels of each image's object, (B, H, W) bool; images without any are
            ignored in these measures.
        methods: of :func:`fredholm.explain.image_maps`.
        steps: removals of MoRF and LeRF; 0 for maps and localisation alone.
        seed: of the random order and of ties.

    Raises:
        OptionError: an unknown method, or none.
        ShapeError: boxes or masks of another shape than the images.
        DomainError: operators that do not live on a grid of patches, or a model for which no method
            is defined.

    Reference: InfSA §4.2, §4.5.

    Example:
        >>> from fredholm.models import create_model
        >>> found = attention_quality(create_model("infvit_pure_pico"), torch.rand(2, 1, 56, 56), steps=2)
        >>> sorted(found.maps), found.degradation["rollout"].curves["morf"].shape
        (['attention', 'incoming', 'rollout'], torch.Size([2, 3]))
    """
    if not methods:
        raise OptionError(f"methods: expected one or more of {', '.join(METHODS)}, got none")
    for method in methods:
        check_method(method)
    readable = traced(model)
    known = {"box": boxes, "mask": masks}
    shape = (len(images), *images.shape[2:])
    for kind, given in known.items():
        if given is not None and given.shape != shape:
            raise ShapeError(f"{kind}: received {tuple(given.shape)}; needs one an image, {shape}")
    maps: dict[str, Tensor] = {}
    skipped: dict[str, str] = {}
    with evaluating(readable):
        parts = [readable.trace(part) for part in images.split(BATCH)]
        for method in methods:
            try:
                maps_of_parts = [maps_of(seen, method) for seen in parts]
                maps[method] = torch.cat(maps_of_parts)
            except (OptionError, DomainError) as error:
                if method == "attention":
                    raise
                skipped[method] = str(error)
    if not maps:
        reasons = "; ".join(f"{method}: {reason}" for method, reason in skipped.items())
        raise DomainError(
            f"expected a method that is defined for this model, got none: {reasons}; give others of "
            f"{', '.join(METHODS)}"
        )
    first_map = next(iter(maps.values()))
    grid: Any = tuple(first_map.shape[1:])
    targets = {}
    for kind, given in known.items():
        if given is not None:
            targets[kind] = patch_targets(given.cpu(), grid)
    places: dict[str, Any] = {}
    for method, result in maps.items():
        places[method] = {}
        for kind, own in targets.items():
            places[method][kind] = localisation(result, own)
    loss = {}
    if steps:
        for method, result in maps.items():
            loss[method] = degradation(
                readable,
                images,
                result,
                steps=steps,
                seed=seed,
            )
    return Quality(maps, loss, places, targets, skipped)


def mean_error(values: Float[Tensor, " b"]) -> dict[str, float | int | None]:
    """Return the mean of the numbers that are not NaN, its standard error (None for one image),
    and how many there are.

    Example:
        >>> mean_error(torch.tensor([1.0, 3.0, torch.nan]))
        {'mean': 2.0, 'error': 1.0, 'n': 2}
    """
    defined = ~values.isnan()
    good = values[defined].double()
    if not len(good):
        return {"mean": None, "error": None, "n": 0}
    error = None
    if len(good) > 1:
        deviation = float(good.std())
        error = deviation / math.sqrt(len(good))
    return {
        "mean": float(good.mean()),
        "error": error,
        "n": len(good),
    }
