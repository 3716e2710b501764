"""k-means of positions without randomness."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..backend import at_least_single, full_precision


def spread_anchors(
    positions: Float[Tensor, "b n p"],
    mass: Float[Tensor, "b n"],
    count: int,
    *,
    iterations: int = 10,
) -> tuple[Int[Tensor, "b s"], Int[Tensor, "b n"]]:
    """Anchors among the points that have mass, and each point's anchor.

    Centroids start at the heaviest point and then, one by one, at the point farthest from all
    before (distance times the root of its mass, so that many light points outweigh one). Lloyd's
    iterations follow; an anchor is the point nearest to its centroid. Ties go to the lower index.
    Where fewer than ``count`` distinct positions have mass, some anchors repeat and have no point.

    Returns: indices of the anchors, and for every point the number of the nearest anchor.

    Cost: O(N·count·(p + iterations)) time, O(N·count) memory. Positions get no gradient.

    Reference: ITNet §3.2 (k-means anchors at evaluation); the deterministic start is ours.

    Example:
        >>> x = torch.tensor([[[0.0], [0.1], [1.0], [1.1]]])
        >>> index, cluster = spread_anchors(x, torch.ones(1, 4), 2)
        >>> index.tolist(), cluster.tolist()
        ([[0, 2]], [[0, 0, 1, 1]])
    """
    x, mass = positions.detach(), mass.detach().expand(positions.shape[0], -1)
    x = x.to(at_least_single(x.dtype))
    real = mass > 0
    index = mass.argmax(-1, keepdim=True)
    far = torch.full_like(mass, torch.inf)
    for _ in range(count - 1):
        far = torch.minimum(far, (x - _take(x, index[:, -1:])).square().sum(-1))
        index = torch.cat([index, torch.where(real, far * mass, -1.0).argmax(-1, keepdim=True)], -1)
    centroid = _take(x, index)
    for _ in range(iterations):
        cluster = distances(x, centroid).argmin(-1)
        member = torch.nn.functional.one_hot(cluster, count).to(x.dtype) * mass[..., None].to(
            x.dtype
        )
        total = member.sum(1)[..., None]
        with full_precision(x):  # autocast would round positions
            sums = member.mT @ x
        centroid = torch.where(total > 0, sums / torch.where(total > 0, total, 1.0), centroid)
    apart = distances(centroid, x)
    index = torch.where(real[:, None], apart, torch.inf).argmin(-1)
    return index, nearest_anchor(x, index)


def nearest_anchor(
    positions: Float[Tensor, "b n p"], index: Int[Tensor, "b s"]
) -> Int[Tensor, "b n"]:
    """Number of the nearest anchor of every point, the first of equals. O(N·S·p).

    Example:
        >>> nearest_anchor(torch.tensor([[[0.0], [2.0], [3.0]]]), torch.tensor([[0, 2]])).tolist()
        [[0, 1, 1]]
    """
    return distances(positions, _take(positions, index)).argmin(-1)


def distances(a: Float[Tensor, "b n p"], b: Float[Tensor, "b m p"]) -> Float[Tensor, "b n m"]:
    """Euclidean distance of every pair, by differences, so that near points keep their digits; half
    precisions are taken in float32. O(N·M·p).

    Example:
        >>> distances(torch.tensor([[[0.0], [3.0]]]), torch.tensor([[[1.0]]])).tolist()
        [[[1.0], [2.0]]]
    """
    dtype = at_least_single(torch.promote_types(a.dtype, b.dtype))
    return torch.cdist(a.to(dtype), b.to(dtype), compute_mode="donot_use_mm_for_euclid_dist")


def _take(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
