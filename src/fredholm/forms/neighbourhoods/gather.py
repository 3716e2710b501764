"""The problems of a tile: rows of tensors that have one per point or per edge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...integral.problem import Problem
from ...quadrature import Quadrature
from .tiles import Group

End = Literal["query", "key", "edge"]

HIDDEN = -1e30
"""Added to the score of a hidden key: its exponential is zero beside that of any other."""


class Rows(NamedTuple):
    """Tensors with a row per query, key or edge.

    Attributes:
        tensors: by name, (samples · rows, width).
        ends: which end of a pair each belongs to, and how many samples it has: all, or one that
            they share.
    """

    tensors: dict[str, Tensor]
    ends: dict[str, tuple[End, int]]

    @classmethod
    def of(cls, parts: Mapping[str, tuple[End, Tensor | None]]) -> Rows:
        """Tensors (1 | B, rows, width) by name; None is left out."""
        tensors: dict[str, Tensor] = {}
        ends: dict[str, tuple[End, int]] = {}
        for name, (end, x) in parts.items():
            if x is not None:
                tensors[name], ends[name] = x.flatten(0, 1), (end, x.shape[0])
        return cls(tensors, ends)

    def index(self, name: str, part: Group) -> Tensor:
        """The rows of a tensor that a tile gathers, (R, b) or (R, k)."""
        end, samples = self.ends[name]
        if end == "edge":
            assert part.edge is not None
            return part.edge
        index = part.query.clamp_min(0) if end == "query" else part.key
        if samples == 1:
            return index
        rows = self.tensors[name].shape[0] // samples
        return index + part.sample[:, None] * rows

    def gather(self, part: Group, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows that a tile needs of ``tensors``, (R, b | k, width)."""
        rows = {}
        for name, x in tensors.items():
            index = self.index(name, part)
            if x.shape[0] == 0:  # edges of a graph without any: all slots are padding
                rows[name] = x.new_zeros(*index.shape, x.shape[1])
                continue
            rows[name] = x.index_select(0, index.flatten()).unflatten(0, index.shape)
        return rows

    def width(self) -> int:
        """Numbers that are gathered for each pair of a query and a key."""
        per_pair = [x for name, x in self.tensors.items() if self.ends[name][0] != "query"]
        return sum(x.shape[1] for x in per_pair)


def by_point(x: Tensor) -> Tensor:
    """Features (1 | B, H, N, d) with a row per point, (1 | B, N, H · d)."""
    return x.transpose(1, 2).flatten(2)


def measure_rows(problem: Problem, *, mass: bool = True) -> dict[str, tuple[End, Tensor | None]]:
    """The quadrature's numbers of points and edges: ``mass``, ``scale`` and ``log_density``;
    without ``mass`` the first two are left out, as a softmax leaves them out.
    """
    q = problem.quadrature
    rows: dict[str, tuple[End, Tensor | None]] = {}
    if mass:
        rows["mass"] = "key", q.mass[..., None]
        rows["scale"] = "query", None if q.scale is None else q.scale.mT
    if q.edges is not None:
        rows["log_density"] = "edge", edge_rows(problem, "log_density")
    return rows


def edge_rows(problem: Problem, name: str) -> Tensor | None:
    """``log_density``, ``features`` or ``shift`` of the edges, (1, E, width)."""
    edges = problem.quadrature.edges
    x = None if edges is None else getattr(edges, name)
    return None if edges is None or x is None else x.reshape(1, edges.count, -1)


class Neighbours(NamedTuple):
    """The problems of one tile with all that was gathered for them.

    Attributes:
        part: which queries and keys they have.
        rows: what was gathered, by name, (R, b | k, width).
        real: keys that are there and no padding, (R, k).
        full: every key is known to be real.
        quadrature: of the whole problem.
    """

    part: Group
    rows: dict[str, Tensor]
    real: Tensor
    full: bool
    quadrature: Quadrature

    @classmethod
    def of(cls, part: Group, rows: dict[str, Tensor], quadrature: Quadrature) -> Neighbours:
        real, valid = part.real, quadrature.valid
        if valid is not None:
            sample = part.sample if valid.shape[0] > 1 else torch.zeros_like(part.sample)
            real = real & valid[sample[:, None], part.key]
        return cls(part, rows, real, part.full and valid is None, quadrature)

    def heads(self, name: str, count: int) -> Tensor:
        """Rows by head, (R, H, b | k, width / H)."""
        return self.rows[name].unflatten(-1, (count, -1)).transpose(1, 2)

    def displacements(self) -> Tensor:
        """x - y of the gathered positions ``x`` and ``y``, images in a periodic box included: (R,
        b, k, p).
        """
        y = self.rows["y"]
        if "shift" in self.rows:
            y = y + self.rows["shift"].to(y.dtype)
        return self.rows["x"][:, :, None] - y[:, None]

    def density(self) -> tuple[Tensor, Tensor]:
        """ρ and log ρ, (R | 1, 1 | H, b, k), also where the domain has none: kernels may weigh
        hidden pairs by other means than masses.
        """
        if "log_density" in self.rows:
            log_density = self.rows["log_density"].mT[:, :, None]
            return log_density.exp(), log_density
        seen = self.part.seen
        mask = self.part.real[:, None, None] if seen is None else seen[None, None]
        density = mask.to(self.quadrature.mass.dtype)
        return density, torch.zeros_like(density).masked_fill(~mask, -torch.inf)

    def mass(self) -> Tensor:
        """m, zero where there is no key, (R, k)."""
        mass = self.rows["mass"][..., 0]
        return mass if self.full else torch.where(self.real, mass, 0.0)

    def weights(self, *, spread: bool = True) -> Tensor:
        """w = s m ρ, (R, 1 | H, b | 1, k); without ``spread`` one number stands for equal weights
        of all keys, (R, 1 | H, b | 1, k | 1).
        """
        mass = self.mass()
        alike = self.full and self.quadrature.equal and not self.rows["mass"].requires_grad
        if alike and not spread:
            mass = mass[:, :1]
        weights = mass[:, None, None]
        if "log_density" in self.rows:
            weights = weights * self.rows["log_density"].mT[:, :, None].exp()
        elif self.part.seen is not None:
            weights = weights * self.part.seen
        if "scale" in self.rows:
            weights = weights * self.rows["scale"].mT[..., None]
        return weights

    def bias(self) -> tuple[Tensor | None, Tensor | None]:
        """The term that a softmax adds to the scores, (R, 1 | H, b | 1, k): log ρ, the gathered
        ``log_mass``, and :data:`HIDDEN` where there is no key; and which queries see nothing, (R,
        1 | H, b | 1, 1). None where every query sees every key alike.

        A finite number hides keys, so that a query that sees none has a softmax all the same, and
        nothing has to be taken out before it.
        """
        bias = None
        if "log_mass" in self.rows:
            bias = self.rows["log_mass"].mT[:, :, None]
        if "log_density" in self.rows:
            log_density = self.rows["log_density"].mT[:, :, None]
            bias = log_density if bias is None else bias + log_density
        seen = self.part.seen
        if self.full and seen is None and bias is None:
            return None, None

        mask = self.real[:, None, None]
        if seen is not None:
            mask = mask & seen
        if bias is None:
            visible = torch.zeros((), dtype=self.quadrature.mass.dtype, device=mask.device)
            return torch.where(mask, visible, HIDDEN), ~mask.any(-1, keepdim=True)
        mask = mask & (bias > -torch.inf)
        return torch.where(mask, bias, HIDDEN), ~mask.any(-1, keepdim=True)
