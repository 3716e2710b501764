"""The parts of one domain over a process group."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import DomainError
from .peers import answering_peers


@dataclass(frozen=True, eq=False)
class Shards:
    """The points that each rank owns: rank r has the r-th stretch of the domain.

    Attributes:
        group: the torch process group of the ranks.
        rank: the number of this process in the group.
        sizes: number of points of each rank; a rank may have none.
        extents: extents of the complete domain if it is a regular grid, else None.
        holes: ranks without points, which have one point of padding instead, see :attr:`filled`.

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
        """Return the ranks of a device mesh, or of one dimension of it, with one point each.

        Raises:
            DomainError: no process group, no mesh, or no such dimension.
        """
        group = _group_of(mesh, dimension)
        count = dist.get_world_size(group)
        rank = dist.get_rank(group)
        if rank < 0:
            raise DomainError(
                "mesh: expected a mesh with this process in it, got one without; give each process "
                "the mesh that it belongs to"
            )
        return cls(group, rank, (1,) * count)

    @classmethod
    def of_parts(cls, mesh: Any, points: int) -> Shards:
        """Return the ranks of a mesh of one dimension, from the number of points of this one.

        Each rank sends one number to every other.
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
        """Number of points of the complete domain."""
        return sum(self.sizes)

    @property
    def start(self) -> int:
        """Place of this rank's first point in the complete domain."""
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
        """The same ranks, where those without points have one, which the caller makes padding."""
        holes = tuple(r for r, n in enumerate(self.sizes) if n == 0)
        if not holes:
            return self
        sizes = tuple(max(1, n) for n in self.sizes)
        return replace(self, sizes=sizes, holes=holes)

    @property
    def kept(self) -> list[int]:
        """Places of points of the domain, without the padding of :attr:`holes`."""
        places: list[int] = []
        start = 0
        for r, n in enumerate(self.sizes):
            if r not in self.holes:
                places += range(start, start + n)
            start += n
        return places

    def __deepcopy__(self, memo: dict) -> Shards:
        # A process group cannot be copied.
        return self


def shares(total: int, count: int) -> tuple[int, ...]:
    """Divide ``total`` things between ``count`` ranks as evenly as possible; some may get none.

    Example:
        >>> shares(3, 2), shares(1, 3)
        ((2, 1), (1, 0, 0))
    """
    return tuple(total // count + (r < total % count) for r in range(count))


def even_sizes(points: int, count: int) -> tuple[int, ...]:
    """Divide ``points`` between ``count`` ranks as evenly as possible, the first ones with more.

    Raises:
        DomainError: fewer points than ranks.

    Example:
        >>> even_sizes(7, 3)
        (3, 2, 2)
    """
    if points < count:
        raise DomainError(
            f"mesh: expected at most as many ranks as the domain has points ({points}), got "
            f"{count}; use a smaller mesh, or leave ranks empty: domain.shard(mesh, sizes=(...))"
        )
    return shares(points, count)


def checked_sizes(
    sizes: Sequence[int],
    points: int,
    count: int,
) -> tuple[int, ...]:
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
            f"sizes: expected {count} numbers of points, one per rank, with sum {points}, got "
            f"{given}; leave sizes out to divide the points evenly"
        )
    return given


def agreed(facts: dict[str, Any], shards: Shards) -> list[dict[str, Any]]:
    """Return the facts of all ranks, after a check that those under ``same`` are equal on all.

    They travel in one message of each rank. Values are hashable, and every rank has the same names.

    Raises:
        DomainError: on every rank, naming the first fact that differs, and each value's ranks.
    """
    every: list[Any] = [None] * shards.count
    with answering_peers(shards):
        dist.all_gather_object(every, facts, group=shards.group)
    for name in every[0]["same"]:
        ranks: dict[Any, list[int]] = {}
        for r, other in enumerate(every):
            ranks.setdefault(other["same"][name], []).append(r)
        if len(ranks) > 1:
            values = [f"{value} on {_listed(who)}" for value, who in ranks.items()]
            found = " and ".join(values)
            raise DomainError(
                f"{name}: expected the same on all ranks of a sharded domain, got {found}; give "
                "every rank the same domain, or its part of one"
            )
    return every


def _listed(ranks: list[int]) -> str:
    """Return ranks in words."""
    plural = "" if len(ranks) == 1 else "s"
    return f"rank{plural} {', '.join(map(str, ranks))}"


def checksum(tensor: Tensor | None) -> str | None:
    """Return a hash of a tensor's dtype, shape and values in order; None of None.

    Equal values give the same on every device and in every memory layout. Zeros of both signs count
    as equal, and so do all NaN. O(N) on the processor.

    Example:
        >>> rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> checksum(rows) == checksum(rows.mT.contiguous().mT)
        True
        >>> checksum(rows) == checksum(rows.flip(0))
        False
    """
    if tensor is None:
        return None
    values = tensor.detach().cpu()
    if values.is_floating_point():
        values = torch.where(values.isnan(), torch.nan, values + 0.0)
    content = hashlib.blake2b(f"{values.dtype} {tuple(values.shape)}".encode(), digest_size=8)
    data = values.contiguous().flatten().view(torch.uint8)
    content.update(data.numpy().data)
    return f"checksum {content.hexdigest()}"


def _group_of(mesh: Any, dimension: str | None) -> Any:
    """Return the process group of a device mesh, or of one of its dimensions."""
    if not dist.is_available() or not dist.is_initialized():
        raise DomainError(
            "shard: expected a torch process group, got none; start the processes with torchrun "
            "and call torch.distributed.init_process_group first"
        )
    if not hasattr(mesh, "get_group") or not hasattr(mesh, "mesh_dim_names"):
        raise DomainError(
            "mesh: expected a torch.distributed.device_mesh.DeviceMesh, got "
            f"{type(mesh).__name__}; "
            'make one with init_device_mesh("cpu", (count,), mesh_dim_names=("domain",))'
        )
    names = mesh.mesh_dim_names or ()
    if dimension is None:
        if mesh.ndim != 1:
            raise DomainError(
                f"mesh: expected one dimension, got {mesh.ndim} {names}; name the one to shard the "
                "domain over: domain.shard(mesh, dimension=...)"
            )
        return mesh.get_group()
    if dimension not in names:
        known = ", ".join(names) or "none, since the mesh has no names"
        raise DomainError(f"dimension: expected one of {known}, got {dimension!r}")
    return mesh.get_group(dimension)
