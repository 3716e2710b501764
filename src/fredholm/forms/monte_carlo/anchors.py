"""Points that stand for clusters of a domain's points."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """Points that stand for clusters of a domain's points: made once for a domain, by the caller,
    and passed to ``MonteCarlo``.

    Attributes:
        index: the anchors among the points, (1 | B, S).
        cluster: the number of each point's anchor, (1 | B, N).

    Example:
        >>> Anchors.of(Domain.line(6), 2).cluster.tolist()
        [[0, 0, 0, 1, 1, 1]]
    """

    index: Tensor
    cluster: Tensor

    @classmethod
    def of(cls, domain: Domain, samples: int) -> Anchors:
        """k-means of a domain's positions; see :func:`fredholm.ops.anchors.spread_anchors`."""
        domain.refuse_shards("Anchors.of")
        check_count(samples, domain.size)
        mass = domain.quadrature().mass
        positions = domain.positions if domain.positions.dim() == 3 else domain.positions[None]
        if domain.valid is not None:
            positions = torch.where(domain.valid[..., None], positions, 0.0)
        return cls.among(positions, mass, samples)

    @classmethod
    def among(cls, positions: Tensor, mass: Tensor, samples: int) -> Anchors:
        """The same from positions (1 | B, N, p) and masses (1 | B, N)."""
        n = positions.shape[1]
        if samples == n:  # every point stands for itself, coinciding ones too
            every = torch.arange(n, device=positions.device)[None]
            return cls(every, every)
        b = max(positions.shape[0], mass.shape[0])
        return cls(
            *spread_anchors(
                positions.expand(b, -1, -1), mass.to(positions.dtype).expand(b, -1), samples
            )
        )


def at_anchors(problem: Problem, anchors: Anchors | None, samples: int) -> Problem:
    """The same integral with anchors for keys, each of its cluster's mass as the query sees it;
    None makes ``samples`` of them.

    Raises:
        DomainError: anchors of another domain.
    """
    p = problem
    index, quadrature = anchor_keys(p, anchors, samples)
    pick = index[:, None].expand(max(index.shape[0], p.uy.shape[0]), p.uy.shape[1], -1)[..., None]
    return with_anchors(
        p, index, quadrature, p.uy.gather(2, pick.expand(-1, -1, -1, p.uy.shape[-1]))
    )


def with_anchors(problem: Problem, index: Tensor, quadrature: Quadrature, uy: Tensor) -> Problem:
    """A problem over the anchors among its keys, whose features are ``uy``."""
    p = problem
    return Problem(
        x=p.x,
        y=p.y.expand(index.shape[0], -1, -1).gather(
            1, index[..., None].expand(-1, -1, p.y.shape[-1])
        ),
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


def anchor_keys(
    problem: Problem, anchors: Anchors | None, samples: int
) -> tuple[Tensor, Quadrature]:
    """The anchors among a problem's keys, (1 | B, S), and what they count for each query."""
    p, q, n = problem, problem.quadrature, problem.y.shape[1]
    if anchors is None:
        anchors = Anchors.among(p.y, q.mass, samples)
    if anchors.cluster.shape[-1] != n:
        raise DomainError(
            f"these anchors are of a domain of {anchors.cluster.shape[-1]} points, the call has {n}"
        )
    if anchors.index.shape[0] not in (1, p.uy.shape[0]):
        raise DomainError(
            f"these anchors are of a batch of {anchors.index.shape[0]}, the call has "
            f"{p.uy.shape[0]}"
        )
    b = max(anchors.index.shape[0], q.mass.shape[0], p.y.shape[0])
    index, cluster = anchors.index.expand(b, -1), anchors.cluster.expand(b, -1)
    member = F.one_hot(cluster, index.shape[-1]).to(q.mass.dtype) * q.mass[..., None]
    quadrature = Quadrature(mass=member.sum(1))
    if q.query_time is not None and q.key_time is not None:
        seen = member.cumsum(1) if q.triangular else q.order().to(member.dtype) @ member  # type: ignore[union-attr]
        quadrature = Quadrature(torch.ones_like(member[:, 0]), q.scale, density=seen[:, None])
        time = torch.where(member > 0, q.key_time[..., None], torch.inf)
        index = torch.where((member > 0).any(1), time.argmin(1), index)
    return index, quadrature


def check_count(samples: int, points: int) -> None:
    """OptionError where more points are wanted than there are."""
    if samples > points:
        raise OptionError(
            f"samples={samples} exceeds the {points} points of the domain; use 'exact', or fewer "
            "samples"
        )
