"""Is a map faithful? Confidence as patches are removed in the map's order: most relevant first
(MoRF), least first (LeRF).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import OptionError, ShapeError
from ..modes import evaluating
from ..progress import steps as saying


@dataclass(frozen=True, eq=False)
class Degradation:
    r"""Relative confidence :math:`p_c(x_f) / p_c(x)` in the class c of the whole image, when a
    fraction f of its patches is removed.

    Attributes:
        fractions: f, (F,), from 0 to 1.
        curves: (B, F) by order: ``morf``, ``lerf``, and ``random``, the baseline for every map.
    """

    fractions: Float[Tensor, " f"]
    curves: dict[str, Float[Tensor, "b f"]]

    def area(self, order: str) -> Float[Tensor, " b"]:
        """Return one area per image, (B,): over the curve for MoRF, under it for LeRF and ``random``.

        More is better.
        """
        under = torch.trapezoid(self.curves[order], self.fractions)
        if order == "morf":
            return 1 - under
        return under


@torch.no_grad()
def degradation(
    model: nn.Module,
    images: Float[Tensor, "b c h w"],
    maps: Float[Tensor, "b rows columns"],
    *,
    steps: int = 10,
    value: float = 0.0,
    seed: int = 0,
    batch: int = 128,
) -> Degradation:
    """Confidence against the fraction of patches that are removed, in three orders.

    Args:
        model: images to logits; run in evaluation mode.
        images: normalised, so that 0 is the mean colour.
        maps: one per image over its patches; ties are broken at random, by ``seed``.
        steps: how many removals.
        value: what a removed patch is filled with.
        seed: of the random order and of ties.
        batch: images at once.

    Cost: 3·steps + 1 forward passes per image.

    Raises:
        ShapeError: maps that do not divide the images.
        OptionError: no step.

    Reference: Samek et al. 2017; InfSA §4.2.

    Example:
        >>> class Sum(nn.Module):
        ...     def forward(self, x):
        ...         return torch.stack([x.sum((1, 2, 3)), torch.zeros(len(x))], 1)
        >>> image = torch.tensor([[[[4.0, 0.0], [0.0, 0.0]]]])
        >>> found = degradation(Sum(), image, image[:, 0], steps=4)
        >>> [round(x, 3) for x in found.curves["morf"][0].tolist()], [round(x, 3) for x in found.curves["lerf"][0].tolist()]
        ([1.0, 0.509, 0.509, 0.509, 0.509], [1.0, 1.0, 1.0, 1.0, 0.509])
    """
    rows, columns = maps.shape[1:]
    height, width = images.shape[2:]
    count = rows * columns
    if len(maps) != len(images) or height % rows or width % columns:
        raise ShapeError(
            f"maps of {tuple(maps.shape)} do not fit images of {tuple(images.shape)}: one an "
            "image, patches that divide it"
        )
    if steps < 1:
        raise OptionError(f"steps is the number of removals, 1 or more, got {steps}")
    # Patches with equal values of a map are removed in random order.
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(
        len(images),
        count,
        generator=generator,
        dtype=torch.float64,
    )
    scores = maps.flatten(1).double().cpu()
    shuffled = noise.argsort(1)
    shuffled_scores = torch.gather(scores, 1, shuffled)
    falling = shuffled_scores.argsort(
        dim=1,
        descending=True,
        stable=True,
    )
    ranked = torch.gather(shuffled, 1, falling)
    orders = {
        "morf": ranked,
        "lerf": ranked.flip(1),
        "random": shuffled,
    }
    removed = [round(count * step / steps) for step in range(steps + 1)]
    with evaluating(model):
        whole = _probabilities(model, images, batch)
        confidence, chosen = whole.max(1)
        curves = {}
        for name, order in orders.items():
            # The inverse of a permutation is its argsort: when each patch is removed.
            place = order.argsort(1)
            untouched = torch.ones(len(images), dtype=torch.float64)
            points = [untouched]
            for number in saying(f"explain: patches removed, {name}", removed[1:]):
                # Patches, and then their pixels, (B, 1, height, width).
                gone = place < number
                gone = gone.view(-1, 1, rows, columns)
                gone = gone.repeat_interleave(height // rows, 2)
                gone = gone.repeat_interleave(width // columns, 3)
                rest = images.masked_fill(gone.to(images.device), value)
                probabilities = _probabilities(model, rest, batch)
                of_chosen = probabilities.gather(1, chosen[:, None])
                points.append(of_chosen[:, 0] / confidence)
            curves[name] = torch.stack(points, 1)
    fractions = torch.tensor(removed, dtype=torch.float64) / count
    return Degradation(fractions, curves)


def _probabilities(
    model: nn.Module,
    images: Tensor,
    batch: int,
) -> Tensor:
    """Return the probabilities of the classes, (B, classes), in float64 on the CPU."""
    device = next((p.device for p in model.parameters()), images.device)
    parts = []
    for part in images.split(batch):
        logits = model(part.to(device))
        probabilities = logits.double().softmax(-1)
        parts.append(probabilities.cpu())
    return torch.cat(parts)
