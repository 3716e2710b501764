"""Does a map find the object? Ranking quality and mass of maps against known boxes or masks, one
number an image.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import ShapeError


def patch_targets(
    masks: Bool[Tensor, "b h w"], grid: tuple[int, int], share: float = 0.5
) -> Bool[Tensor, "b rows columns"]:
    """Patches of which at least ``share`` belongs to the object; where no patch reaches that, the
    one with most of it.

    Raises:
        ShapeError: a grid that does not divide the image.

    Example:
        >>> patch_targets(torch.eye(4, dtype=torch.bool)[None], (2, 2)).tolist()
        [[[True, False], [False, True]]]
    """
    (height, width), (rows, columns) = masks.shape[1:], grid
    if height % rows or width % columns:
        raise ShapeError(
            f"a grid of {rows}x{columns} patches does not divide masks of {height}x{width}"
        )
    part = masks.float().unflatten(2, (columns, -1)).unflatten(1, (rows, -1)).mean((2, 4))
    found = part >= share
    most = part.flatten(1).amax(1)[:, None, None]
    return torch.where(found.flatten(1).any(1)[:, None, None], found, (part == most) & (most > 0))


def roc_auc(scores: Float[Tensor, "b n"], inside: Bool[Tensor, "b n"]) -> Float[Tensor, " b"]:
    """Area under the ROC curve an image: how often a point inside scores above one outside, ties
    counting half. NaN without both kinds.

    Example:
        >>> roc_auc(torch.tensor([[0.1, 0.4, 0.4, 0.9]]), torch.tensor([[False, False, True, True]])).item()
        0.875
    """
    ranks = average_ranks(scores)
    good = inside.sum(1).double()
    bad = inside.shape[1] - good
    above = (ranks * inside).sum(1) - good * (good + 1) / 2
    return torch.where((good > 0) & (bad > 0), above / (good * bad).clamp(min=1), torch.nan)


def pr_auc(scores: Float[Tensor, "b n"], inside: Bool[Tensor, "b n"]) -> Float[Tensor, " b"]:
    r"""Average precision an image, :math:`\sum_k (R_k - R_{k-1}) P_k` over distinct thresholds. NaN
    where nothing is inside.

    A map that knows nothing has the share of points inside.

    Example:
        >>> pr_auc(torch.tensor([[0.1, 0.4, 0.4, 0.9]]), torch.tensor([[False, False, True, True]])).item()
        0.8333333333333333
    """
    found = []
    for row, own in zip(scores.double(), inside):
        order = row.argsort(descending=True)
        hits, values = own[order].double().cumsum(0), row[order]
        last = torch.cat(
            [values.diff() != 0, values.new_ones(1, dtype=torch.bool)]
        )  # of each group of ties
        hits, count = hits[last], (torch.arange(len(row)) + 1.0)[last.cpu()].to(hits)
        recall = hits / own.sum().clamp(min=1)
        gained = recall.diff(prepend=recall.new_zeros(1))
        found.append(
            (gained * hits / count).sum() if bool(own.any()) else row.new_tensor(torch.nan)
        )
    return torch.stack(found)


def mass_inside(maps: Float[Tensor, "b n"], inside: Bool[Tensor, "b n"]) -> Float[Tensor, " b"]:
    """Share of a map's mass that lies inside, NaN for an empty map.

    Example:
        >>> mass_inside(torch.tensor([[1.0, 3.0]]), torch.tensor([[False, True]])).item()
        0.75
    """
    total = maps.double().sum(1)
    return torch.where(
        total > 0, (maps * inside).double().sum(1) / total.clamp(min=1e-300), torch.nan
    )


def localisation(
    maps: Float[Tensor, "b rows columns"], inside: Bool[Tensor, "b rows columns"]
) -> dict[str, Tensor]:
    """The three measures, and what a map that knows nothing has of the last two: ``chance``, the
    share of patches inside; (B,) each.
    """
    scores, own = maps.flatten(1), inside.flatten(1)
    return {
        "roc_auc": roc_auc(scores, own),
        "pr_auc": pr_auc(scores, own),
        "mass": mass_inside(scores, own),
        "chance": own.double().mean(1),
    }


def average_ranks(values: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """Ranks from 1 along the last dimension, equal values sharing the mean of theirs, in float64.

    Example:
        >>> average_ranks(torch.tensor([5.0, 1.0, 5.0])).tolist()
        [2.5, 1.0, 2.5]
    """
    ordered = values.contiguous().sort(-1).values
    below = torch.searchsorted(ordered, values.contiguous(), side="left")
    upto = torch.searchsorted(ordered, values.contiguous(), side="right")
    return (below + upto + 1).double() / 2
