"""Points that stand for clusters of a domain's points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...domain import Domain
from ...errors import DomainError, OptionError
from ...integral.problem import Problem
from ...ops.anchors import spread_anchors
from ...quadrature import Quadrature


@dataclass(frozen=True, eq=False)
class Anchors:
    """Points that represent clusters of a domain's points. The caller computes them once per domain
    and passes them to ``MonteCarlo``.

    Attributes:
        index: the anchors among the points, (1 | B, S).
        cluster: the number of each point's anchor among the anchors, (1 | B, N).

    Example:
        >>> Anchors.of(Domain.line(6), 2).cluster.tolist()
        [[0, 0, 0, 1, 1, 1]]
    """

    index: Tensor
    cluster: Tensor

    @classmethod
    def of(cls, domain: Domain, samples: int) -> Anchors:
        """Return anchors by k-means of a domain's positions; see
        :func:`fredholm.ops.anchors.spread_anchors`.
        """
        domain.refuse_shards("Anchors.of")
        check_count(samples, domain.size)
        mass = domain.quadrature().mass
        positions = domain.positions.reshape(-1, domain.size, domain.dim)
        if domain.valid is not None:
            positions = torch.where(domain.valid[..., None], positions, 0.0)
        return cls.among(positions, mass, samples)

    @classmethod
    def among(
        cls,
        positions: Tensor,
        mass: Tensor,
        samples: int,
    ) -> Anchors:
        """Return the same from positions (1 | B, N, p) and masses (1 | B, N)."""
        n = positions.shape[1]
        if samples == n:
            # Every point stands for itself; k-means would merge points that coincide.
            every = torch.arange(n, device=positions.device)[None]
            return cls(every, every)
        batch = max(positions.shape[0], mass.shape[0])
        positions = positions.expand(batch, -1, -1)
        mass = mass.to(positions.dtype).expand(batch, -1)
        index, cluster = spread_anchors(positions, mass, samples)
        return cls(index, cluster)


class AnchoredKeys(NamedTuple):
    """The anchors among a problem's keys, (1 | B, S), and their weights for each query."""

    index: Tensor
    quadrature: Quadrature


def at_anchors(
    problem: Problem,
    anchors: Anchors | None,
    samples: int,
) -> Problem:
    """Return the same integral with anchors for keys, each of its cluster's mass as the query sees
    it; None makes ``samples`` of them.

    Raises:
        DomainError: anchors of another domain.
    """
    index, quadrature = anchor_keys(problem, anchors, samples)
    rows, heads, _, channels = problem.uy.shape
    batch = max(index.shape[0], rows)
    every_number = index[:, None, :, None].expand(batch, heads, -1, channels)
    uy = problem.uy.gather(2, every_number)
    return with_anchors(problem, index, quadrature, uy)


def with_anchors(
    problem: Problem,
    index: Tensor,
    quadrature: Quadrature,
    uy: Tensor,
) -> Problem:
    """Return a problem whose keys are A anchors among the problem's own.

    Args:
        problem: the problem over all keys.
        index: numbers of the anchors among the keys, (1 | B, A).
        quadrature: that of the anchors.
        uy: features of the anchors, (B, H, A, d).
    """
    every_coordinate = index[..., None].expand(-1, -1, problem.y.shape[-1])
    positions = problem.y.expand(index.shape[0], -1, -1)
    layout = replace(
        problem.layout,
        keys=None,
        cross=True,
        causal=False,
        pairs=quadrature.density is not None,
        padded=False,
        sharded=False,
    )
    return Problem(
        x=problem.x,
        y=positions.gather(1, every_coordinate),
        ux=problem.ux,
        uy=uy,
        quadrature=quadrature,
        layout=layout,
    )


def anchor_keys(
    problem: Problem,
    anchors: Anchors | None,
    samples: int,
) -> AnchoredKeys:
    """Return the anchors among a problem's keys, and their weights for each query.

    Without order an anchor has the mass of its cluster. In causal order it has the mass of the
    part that the query sees, and the earliest point of the cluster stands for it: every query that
    sees a part sees that point.
    """
    q = problem.quadrature
    if anchors is None:
        anchors = Anchors.among(problem.y, q.mass, samples)
    _refuse_other_domains(problem, anchors)

    batch = max(
        anchors.index.shape[0],
        q.mass.shape[0],
        problem.y.shape[0],
    )
    index = anchors.index.expand(batch, -1)
    cluster = anchors.cluster.expand(batch, -1)

    # The mass of each point in the column of its cluster, (B, N, S).
    member = F.one_hot(cluster, index.shape[-1]).to(q.mass.dtype)
    member = member * q.mass[..., None]
    if q.query_time is None or q.key_time is None:
        quadrature = Quadrature(mass=member.sum(1))
        return AnchoredKeys(index, quadrature)

    # The mass of each cluster that each query sees, (B, Nq, S).
    if q.triangular:
        seen = member.cumsum(1)
    else:
        before = q.key_time[:, None, :] <= q.query_time[:, :, None]
        seen = before.to(member.dtype) @ member

    # The earliest point of a cluster; one without mass keeps its anchor.
    has_mass = member > 0
    time = torch.where(has_mass, q.key_time[..., None], torch.inf)
    index = torch.where(has_mass.any(1), time.argmin(1), index)

    ones = torch.ones_like(member[:, 0])
    quadrature = Quadrature(ones, q.scale, density=seen[:, None])
    return AnchoredKeys(index, quadrature)


def _refuse_other_domains(problem: Problem, anchors: Anchors) -> None:
    """Raise DomainError for anchors of another number of points, or of another batch."""
    points = problem.y.shape[1]
    points_of_anchors = anchors.cluster.shape[-1]
    if points_of_anchors != points:
        raise DomainError(
            f"expected anchors of a domain of {points} points, got those of {points_of_anchors}; "
            "make them by Anchors.of(domain, samples)"
        )
    batch = problem.uy.shape[0]
    batch_of_anchors = anchors.index.shape[0]
    if batch_of_anchors not in (1, batch):
        raise DomainError(
            f"expected anchors of a batch of {batch}, got those of {batch_of_anchors}; make them "
            "of this batch's domain"
        )


def check_count(samples: int, points: int) -> None:
    """OptionError where more points are wanted than there are."""
    if samples > points:
        raise OptionError(
            f"expected at most as many samples as the domain has points, {points}, got "
            f"samples={samples}; use 'exact', or fewer samples"
        )
