"""Does a map find the object? Ranking quality and mass of maps against known boxes or masks, one
number an image.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import ShapeError, require


def patch_targets(
    masks: Bool[Tensor, "b h w"],
    grid: tuple[int, int],
    share: float = 0.5,
) -> Bool[Tensor, "b rows columns"]:
    """Return the patches of which at least ``share`` belongs to the object, or the patch with the
    largest share if there is none.

    Raises:
        ShapeError: a grid that does not divide the image.

    Example:
        >>> patch_targets(torch.eye(4, dtype=torch.bool)[None], (2, 2)).tolist()
        [[[True, False], [False, True]]]
    """
    height, width = masks.shape[1:]
    rows, columns = grid
    if height % rows or width % columns:
        raise ShapeError(
            f"a grid of {rows}x{columns} patches does not divide masks of {height}x{width}"
        )
    # (B, rows, pixels, columns, pixels)
    patches = masks.float()
    patches = patches.unflatten(2, (columns, -1))
    patches = patches.unflatten(1, (rows, -1))
    part = patches.mean((2, 4))
    reached = part >= share

    # A small object may fill the share of no patch.
    most = part.amax((1, 2), keepdim=True)
    fullest = (part == most) & (most > 0)
    some_reached = reached.any(1).any(1)
    some_reached = some_reached[:, None, None]
    return torch.where(some_reached, reached, fullest)


def roc_auc(
    scores: Float[Tensor, "b n"],
    inside: Bool[Tensor, "b n"],
) -> Float[Tensor, " b"]:
    """Return the area under the ROC curve of each image: how often a point inside scores above one outside, ties
    counting half. NaN without both kinds.

    Example:
        >>> roc_auc(torch.tensor([[0.1, 0.4, 0.4, 0.9]]), torch.tensor([[False, False, True, True]])).item()
        0.875
    """
    metrics = require("sklearn.metrics", "train", "ROC-AUC")
    return _per_image(metrics.roc_auc_score, scores, inside, needs_outside=True)


def pr_auc(
    scores: Float[Tensor, "b n"],
    inside: Bool[Tensor, "b n"],
) -> Float[Tensor, " b"]:
    r"""Return the average precision of each image, :math:`\sum_k (R_k - R_{k-1}) P_k` over distinct thresholds. NaN
    where nothing is inside.

    A map that knows nothing has the share of points inside.

    Example:
        >>> pr_auc(torch.tensor([[0.1, 0.4, 0.4, 0.9]]), torch.tensor([[False, False, True, True]])).item()
        0.8333333333333333
    """
    metrics = require("sklearn.metrics", "train", "PR-AUC")
    return _per_image(metrics.average_precision_score, scores, inside, needs_outside=False)


def mass_inside(
    maps: Float[Tensor, "b n"],
    inside: Bool[Tensor, "b n"],
) -> Float[Tensor, " b"]:
    """Return the share of a map's mass that lies inside, NaN for an empty map or where nothing is inside.

    Example:
        >>> mass_inside(torch.tensor([[1.0, 3.0]]), torch.tensor([[False, True]])).item()
        0.75
    """
    total = maps.double().sum(1)
    mass = (maps * inside).double().sum(1)
    share = mass / total.clamp(min=1e-300)
    defined = (total > 0) & inside.any(1)
    return torch.where(defined, share, torch.nan)


def localisation(
    maps: Float[Tensor, "b rows columns"],
    inside: Bool[Tensor, "b rows columns"],
) -> dict[str, Tensor]:
    """Return the three measures, and ``chance``, the share of patches inside, which is the value of
    the last two for an uninformative map. Each is (B,), and NaN where nothing is inside.
    """
    scores = maps.flatten(1)
    own = inside.flatten(1)
    share = own.double().mean(1)
    some_inside = own.any(1)
    return {
        "roc_auc": roc_auc(scores, own),
        "pr_auc": pr_auc(scores, own),
        "mass": mass_inside(scores, own),
        "chance": torch.where(some_inside, share, torch.nan),
    }


# --- parts ----------------------------------------------------------------------------------------


def _per_image(
    score: Callable[..., float],
    scores: Tensor,
    inside: Tensor,
    *,
    needs_outside: bool,
) -> Tensor:
    """Return a ranking score per image, (B,); NaN where no point lies inside the object.

    Args:
        score: a metric of scikit-learn, called with labels (N,) and scores (N,).
        scores, inside: (B, N).
        needs_outside: whether the score is also NaN where every point lies inside.
    """
    labels = inside.cpu().numpy()
    wide_scores = scores.detach().double()
    values = wide_scores.cpu().numpy()

    results = []
    for label, value in zip(labels, values):
        undefined = not label.any() or (needs_outside and label.all())
        result = float("nan")
        if not undefined:
            result = score(label, value)
        results.append(result)
    return torch.tensor(
        results,
        dtype=torch.float64,
        device=scores.device,
    )
