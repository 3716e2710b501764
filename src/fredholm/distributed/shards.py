"""The parts of one domain over a process group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from ..errors import DomainError
from .peers import answering_peers


@dataclass(frozen=True, eq=False)
class Shards:
    """Which points of a domain are whose: rank r has the r-th stretch of them.

    Attributes:
        group: the torch process group of the ranks.
        rank: this process among them.
        sizes: points of each rank; a rank may have none.
        extents: of the regular grid that the whole domain is, or None.
        holes: ranks whose one point only stands for having none, see :attr:`filled`.

    Example:
        >>> Shards(None, 1, (3, 0, 2)).start, Shards(None, 2, (3, 0, 2)).start
        (3, 3)
    """

    group: Any
    rank: int
    sizes: tuple[int, ...]
    extents: tuple[int, ...] | None = None
    holes: tuple[int, ...] = ()

    @classmethod
    def over(cls, mesh: Any, dimension: str | None = None) -> Shards:
        """The ranks of a device mesh, or of one dimension of it, before any has points.

        Raises:
            DomainError: no process group, no mesh, or no such dimension.
        """
        group = _group_of(mesh, dimension)
        count, rank = dist.get_world_size(group), dist.get_rank(group)
        if rank < 0:
            raise DomainError("this process is no rank of the mesh that the domain is sharded over")
        return cls(group, rank, (1,) * count)

    @classmethod
    def of_parts(cls, mesh: Any, points: int) -> Shards:
        """The ranks of a mesh of one dimension, each of which says how many ``points`` it has. O(1)
        numbers are sent.
        """
        ranks = cls.over(mesh)
        sizes: list[Any] = [None] * ranks.count
        with answering_peers(ranks):
            dist.all_gather_object(sizes, points, group=ranks.group)
        return replace(ranks, sizes=tuple(sizes))

    @property
    def count(self) -> int:
        """Number of ranks P."""
        return len(self.sizes)

    @property
    def total(self) -> int:
        """Points of the whole domain."""
        return sum(self.sizes)

    @property
    def start(self) -> int:
        """This rank's first point among those of the whole."""
        return sum(self.sizes[: self.rank])

    @property
    def size(self) -> int:
        """This rank's number of points."""
        return self.sizes[self.rank]

    @property
    def ones(self) -> Shards:
        """The same ranks, with one point each."""
        return replace(self, sizes=(1,) * self.count)

    @property
    def filled(self) -> Shards:
        """The same ranks; those without points have one, which the caller makes padding."""
        holes = tuple(r for r, n in enumerate(self.sizes) if n == 0)
        if not holes:
            return self
        return replace(self, sizes=tuple(max(1, n) for n in self.sizes), holes=holes)

    @property
    def kept(self) -> list[int]:
        """The places that are points of the domain, those of :attr:`holes` left out."""
        places: list[int] = []
        start = 0
        for r, n in enumerate(self.sizes):
            places += range(start, start + n) if r not in self.holes else ()
            start += n
        return places

    def __deepcopy__(self, memo: dict) -> Shards:
        return self  # a process group is one thing, whatever is copied around it


def shares(total: int, count: int) -> tuple[int, ...]:
    """``total`` things over ``count`` ranks as evenly as can be; a rank may get none.

    Example:
        >>> shares(3, 2), shares(1, 3)
        ((2, 1), (1, 0, 0))
    """
    return tuple(total // count + (r < total % count) for r in range(count))


def even_sizes(points: int, count: int) -> tuple[int, ...]:
    """``points`` over ``count`` ranks, the first ones with one more where it does not divide.

    Raises:
        DomainError: fewer points than ranks.

    Example:
        >>> even_sizes(7, 3)
        (3, 2, 2)
    """
    if points < count:
        raise DomainError(
            f"a domain of {points} points has fewer than the {count} ranks of the mesh; use a "
            "smaller mesh, or say who has none: domain.shard(mesh, sizes=(...))"
        )
    return shares(points, count)


def checked_sizes(sizes: Sequence[int], points: int, count: int) -> tuple[int, ...]:
    """Return the numbers of points per rank that a caller gave, as integers.

    Args:
        sizes: points of each rank; a rank may have none.
        points: points of the whole domain.
        count: number of ranks.

    Raises:
        DomainError: another number of ranks, a negative size, or another sum.
    """
    given = tuple(int(n) for n in sizes)
    if len(given) != count or min(given) < 0 or sum(given) != points:
        raise DomainError(
            f"sizes={given} must give each of {count} ranks its number of points, {points} in all"
        )
    return given


def agreed(facts: dict[str, Any], shards: Shards) -> list[dict[str, Any]]:
    """All ranks' facts, those under ``same`` alike on all.

    Raises:
        DomainError: on every rank, naming the first fact in which two ranks differ.
    """
    every: list[Any] = [None] * shards.count
    with answering_peers(shards):
        dist.all_gather_object(every, facts, group=shards.group)
    for r, other in enumerate(every):
        for name, value in other["same"].items():
            first = every[0]["same"][name]
            if value != first:
                raise DomainError(
                    f"the ranks of one sharded domain differ: {name} is {first} on rank 0 and "
                    f"{value} on rank {r}; give every rank the same domain, or its part of one"
                )
    return every


def _group_of(mesh: Any, dimension: str | None) -> Any:
    """The process group of a device mesh with one dimension, or of one of its dimensions."""
    if not dist.is_available() or not dist.is_initialized():
        raise DomainError(
            "a domain is sharded over the processes of a torch process group, and there is none; "
            "start them with torchrun and call torch.distributed.init_process_group first"
        )
    if not hasattr(mesh, "get_group") or not hasattr(mesh, "mesh_dim_names"):
        raise DomainError(
            f"mesh must be a torch.distributed.device_mesh.DeviceMesh, got {type(mesh).__name__}; "
            'make one with init_device_mesh("cpu", (count,), mesh_dim_names=("domain",))'
        )
    names = mesh.mesh_dim_names or ()
    if dimension is None:
        if mesh.ndim != 1:
            raise DomainError(
                f"the mesh has {mesh.ndim} dimensions {names}; say which one the domain is sharded "
                "over: domain.shard(mesh, dimension=...)"
            )
        return mesh.get_group()
    if dimension not in names:
        raise DomainError(f"the mesh has no dimension {dimension!r}; it has {names or 'no names'}")
    return mesh.get_group(dimension)
