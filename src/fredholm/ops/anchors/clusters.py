"""k-means of positions without randomness."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..backend import at_least_single, full_precision


class Anchors(NamedTuple):
    """Anchors among points, and the clusters around them.

    Attributes:
        index: of each anchor among the points, (B, S).
        cluster: for each point the number of its nearest anchor, (B, N).
    """

    index: Int[Tensor, "b s"]
    cluster: Int[Tensor, "b n"]


def spread_anchors(
    positions: Float[Tensor, "b n p"],
    mass: Float[Tensor, "b n"],
    count: int,
    *,
    iterations: int = 10,
) -> Anchors:
    """Choose anchors among the points that have mass, by k-means with a deterministic start.

    Centroids start at the heaviest point, and then one by one at the point farthest from all before
    (by distance times the root of its mass, so that many light points outweigh one). Lloyd's
    iterations follow. An anchor is the point nearest to its centroid; ties go to the lower index.
    Where fewer than ``count`` distinct positions have mass, some anchors repeat and have no points.

    Args:
        positions: of the points; they get no gradient.
        mass: of the points, zero at padding; a batch of 1 is shared.
        count: S, the number of anchors.
        iterations: of Lloyd's algorithm.

    Cost: O(N·S·(p + iterations)) time, O(N·S) memory.

    Reference: ITNet §3.2 (k-means anchors at evaluation); the deterministic start is ours.

    Example:
        >>> x = torch.tensor([[[0.0], [0.1], [1.0], [1.1]]])
        >>> index, cluster = spread_anchors(x, torch.ones(1, 4), 2)
        >>> index.tolist(), cluster.tolist()
        ([[0, 2]], [[0, 0, 1, 1]])
    """
    x = positions.detach()
    x = x.to(at_least_single(x.dtype))
    mass = mass.detach().expand(x.shape[0], -1)
    real = mass > 0

    start = _farthest_points(x, mass, real, count)
    centroids = _points_at(x, start)
    for _ in range(iterations):
        centroids = _lloyd_step(x, mass, centroids)

    # Padding is infinitely far from every centroid, so that no anchor lies on it.
    from_centroids = distances(centroids, x)
    from_centroids = torch.where(real[:, None], from_centroids, torch.inf)
    index = from_centroids.argmin(-1)
    return Anchors(index, nearest_anchor(x, index))


def _farthest_points(
    x: Tensor,
    mass: Tensor,
    real: Tensor,
    count: int,
) -> Tensor:
    """Return the indices (B, S) of the heaviest point and of those farthest from all before."""
    index = mass.argmax(-1, keepdim=True)
    # The squared distance of each point from the nearest of those chosen so far, (B, N).
    square = torch.full_like(mass, torch.inf)
    for _ in range(count - 1):
        latest = _points_at(x, index[:, -1:])
        from_latest = (x - latest).square().sum(-1)
        square = torch.minimum(square, from_latest)

        # Padding comes after all points, of which some may be at distance zero.
        weighted = torch.where(real, square * mass, -1.0)
        farthest = weighted.argmax(-1, keepdim=True)
        index = torch.cat([index, farthest], -1)
    return index


def _lloyd_step(x: Tensor, mass: Tensor, centroids: Tensor) -> Tensor:
    """Move each centroid (B, S, p) to the mean of the points nearest to it, weighted by mass."""
    cluster = distances(x, centroids).argmin(-1)
    member = F.one_hot(cluster, centroids.shape[1]).to(x.dtype)
    # (B, N, S): the mass of each point in the column of its cluster.
    weights = member * mass[..., None].to(x.dtype)
    total = weights.sum(1)[..., None]

    # Autocast would round positions to a half precision.
    with full_precision(x):
        sums = weights.mT @ x
    # A centroid without points stays where it is.
    has_points = total > 0
    mean = sums / torch.where(has_points, total, 1.0)
    return torch.where(has_points, mean, centroids)


def nearest_anchor(
    positions: Float[Tensor, "b n p"],
    index: Int[Tensor, "b s"],
) -> Int[Tensor, "b n"]:
    """Return for each point the number of its nearest anchor, the first of equals.

    Args:
        positions: of the points.
        index: of the anchors among them.

    Cost: O(N·S·p).

    Example:
        >>> nearest_anchor(torch.tensor([[[0.0], [2.0], [3.0]]]), torch.tensor([[0, 2]])).tolist()
        [[0, 1, 1]]
    """
    anchors = _points_at(positions, index)
    return distances(positions, anchors).argmin(-1)


def distances(
    a: Float[Tensor, "b n p"],
    b: Float[Tensor, "b m p"],
) -> Float[Tensor, "b n m"]:
    """Return the Euclidean distance of each pair, in float32 or better.

    By differences, not by inner products: |a|² - 2 a·b + |b|² leaves near points no digits.

    Cost: O(N·M·p) time, O(N·M) memory.

    Example:
        >>> distances(torch.tensor([[[0.0], [3.0]]]), torch.tensor([[[1.0]]])).tolist()
        [[[1.0], [2.0]]]
    """
    dtype = at_least_single(torch.promote_types(a.dtype, b.dtype))
    return torch.cdist(
        a.to(dtype),
        b.to(dtype),
        compute_mode="donot_use_mm_for_euclid_dist",
    )


def _points_at(x: Tensor, index: Tensor) -> Tensor:
    """Return the points (B, S, p) of ``x`` (B, N, p) at indices (B, S)."""
    index = index[..., None].expand(-1, -1, x.shape[-1])
    return x.gather(1, index)
