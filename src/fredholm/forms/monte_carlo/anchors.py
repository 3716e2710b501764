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
    def among(cls, positions: Tensor, mass: Tensor, samples: int) -> Anchors:
        """Return the same from positions (1 | B, N, p) and masses (1 | B, N)."""
        n = positions.shape[1]
        if samples == n:
            # Every point stands for itself; k-means would merge points that coincide.
            every = torch.arange(n, device=positions.device)[None]
            return cls(every, every)
        b = max(positions.shape[0], mass.shape[0])
        positions = positions.expand(b, -1, -1)
        mass = mass.to(positions.dtype).expand(b, -1)
        return cls(*spread_anchors(positions, mass, samples))


class AnchoredKeys(NamedTuple):
    """The anchors among a problem's keys, (1 | B, S), and their weights for each query."""

    index: Tensor
    quadrature: Quadrature


def at_anchors(problem: Problem, anchors: Anchors | None, samples: int) -> Problem:
    """Return the same integral with anchors for keys, each of its cluster's mass as the query sees
    it; None makes ``samples`` of them.

    Raises:
        DomainError: anchors of another domain.
    """
    uy = problem.uy
    index, quadrature = anchor_keys(problem, anchors, samples)
    b = max(index.shape[0], uy.shape[0])
    every_number = index[:, None, :, None].expand(b, uy.shape[1], -1, uy.shape[-1])
    return with_anchors(problem, index, quadrature, uy.gather(2, every_number))


def with_anchors(problem: Problem, index: Tensor, quadrature: Quadrature, uy: Tensor) -> Problem:
    """Return a problem over the anchors among its keys, whose features are ``uy``."""
    p = problem
    every_number = index[..., None].expand(-1, -1, p.y.shape[-1])
    return Problem(
        x=p.x,
        y=p.y.expand(index.shape[0], -1, -1).gather(1, every_number),
        ux=p.ux,
        uy=uy,
        quadrature=quadrature,
        layout=replace(
            p.layout,
            keys=None,
            cross=True,
            causal=False,
            pairs=quadrature.density is not None,
            padded=False,
            sharded=False,
        ),
    )


def anchor_keys(problem: Problem, anchors: Anchors | None, samples: int) -> AnchoredKeys:
    """Return the anchors among a problem's keys, and their weights for each query.

    Without order an anchor has the mass of its cluster. In causal order it has the mass of the
    part that the query sees, and the earliest point of the cluster stands for it: every query that
    sees a part sees that point.
    """
    p, q, n = problem, problem.quadrature, problem.y.shape[1]
    if anchors is None:
        anchors = Anchors.among(p.y, q.mass, samples)
    if anchors.cluster.shape[-1] != n:
        raise DomainError(
            f"expected anchors of a domain of {n} points, got those of "
            f"{anchors.cluster.shape[-1]}; make them by Anchors.of(domain, samples)"
        )
    if anchors.index.shape[0] not in (1, p.uy.shape[0]):
        raise DomainError(
            f"expected anchors of a batch of {p.uy.shape[0]}, got those of "
            f"{anchors.index.shape[0]}; make them of this batch's domain"
        )
    b = max(anchors.index.shape[0], q.mass.shape[0], p.y.shape[0])
    index, cluster = anchors.index.expand(b, -1), anchors.cluster.expand(b, -1)

    # The mass of each point in the column of its cluster, (B, N, S).
    member = F.one_hot(cluster, index.shape[-1]).to(q.mass.dtype) * q.mass[..., None]
    if q.query_time is None or q.key_time is None:
        return AnchoredKeys(index, Quadrature(mass=member.sum(1)))

    if q.triangular:
        seen = member.cumsum(1)
    else:
        before = q.key_time[:, None, :] <= q.query_time[:, :, None]
        seen = before.to(member.dtype) @ member
    ones = torch.ones_like(member[:, 0])
    time = torch.where(member > 0, q.key_time[..., None], torch.inf)
    index = torch.where((member > 0).any(1), time.argmin(1), index)
    return AnchoredKeys(index, Quadrature(ones, q.scale, density=seen[:, None]))


def check_count(samples: int, points: int) -> None:
    """OptionError where more points are wanted than there are."""
    if samples > points:
        raise OptionError(
            f"expected at most as many samples as the domain has points, {points}, got "
            f"samples={samples}; use 'exact', or fewer samples"
        )
