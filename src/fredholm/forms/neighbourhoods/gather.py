"""The problems of a tile: rows of tensors that have one per point or per edge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...integral.problem import Problem
from ...quadrature import PairDensity, Quadrature
from .tiles import Group

End = Literal["query", "key", "edge"]

HIDDEN = -1e30
"""Added to the score of a hidden key: its exponential is zero beside that of any other."""

PerEnd = Mapping[str, tuple[End, Tensor | None]]
"""Tensors (1 | B, rows, width) by name, each with the end of a pair that its rows belong to."""


class Rows(NamedTuple):
    """Tensors with a row per query, key or edge.

    Attributes:
        tensors: by name, (samples · rows, width).
        ends: the end of a pair that each tensor belongs to, and its number of samples: all, or one
            that they share.
    """

    tensors: dict[str, Tensor]
    ends: dict[str, tuple[End, int]]

    @classmethod
    def of(cls, parts: PerEnd) -> Rows:
        """Return the rows of tensors; None is left out."""
        tensors: dict[str, Tensor] = {}
        ends: dict[str, tuple[End, int]] = {}
        for name, (end, x) in parts.items():
            if x is not None:
                tensors[name] = x.flatten(0, 1)
                ends[name] = end, x.shape[0]
        return cls(tensors, ends)

    def index(self, name: str, part: Group) -> Tensor:
        """Return the rows of a tensor that a tile gathers, (R, b) or (R, k)."""
        end, samples = self.ends[name]
        if end == "edge":
            assert part.edge is not None
            return part.edge
        index = part.key
        if end == "query":
            # A missing query has the number -1; any row will do for it.
            index = part.query.clamp_min(0)
        if samples == 1:
            return index
        rows = self.tensors[name].shape[0] // samples
        return index + part.sample[:, None] * rows

    def gather(self, part: Group, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the rows that a tile needs of ``tensors``, (R, b | k, width)."""
        rows = {}
        for name, x in tensors.items():
            index = self.index(name, part)
            if x.shape[0] == 0:
                # A graph without edges: all slots are padding.
                rows[name] = x.new_zeros(*index.shape, x.shape[1])
                continue
            found = x.index_select(0, index.flatten())
            rows[name] = found.unflatten(0, index.shape)
        return rows

    def width(self) -> int:
        """Return the number of numbers that are gathered for each pair of a query and a key."""
        width = 0
        for name, x in self.tensors.items():
            end, _ = self.ends[name]
            if end != "query":
                width += x.shape[1]
        return width


def by_point(x: Tensor) -> Tensor:
    """Return features (1 | B, H, N, d) with a row per point, (1 | B, N, H · d)."""
    return x.transpose(1, 2).flatten(2)


def measure_rows(
    problem: Problem,
    *,
    mass: bool = True,
) -> dict[str, tuple[End, Tensor | None]]:
    """Return the quadrature's numbers of points and edges: ``mass``, ``scale`` and
    ``log_density``; without ``mass`` the first two are left out, because a softmax cancels them.
    """
    q = problem.quadrature
    rows: dict[str, tuple[End, Tensor | None]] = {}
    if mass:
        rows["mass"] = "key", q.mass[..., None]
    if mass and q.scale is not None:
        rows["scale"] = "query", q.scale.mT
    if q.edges is not None:
        rows["log_density"] = "edge", edge_rows(problem, "log_density")
    return rows


def edge_rows(problem: Problem, name: str) -> Tensor | None:
    """Return ``log_density``, ``features`` or ``shift`` of the edges, (1, E, width)."""
    x = getattr(problem.quadrature.edges, name, None)
    if x is None:
        return None
    if x.dim() == 1:
        x = x[:, None]
    return x[None]


class Bias(NamedTuple):
    """A term that a softmax adds to its scores.

    Attributes:
        scores: the term, (R, 1 | H, b | 1, k), or None where it is zero.
        blind: which queries see nothing, (R, 1 | H, b | 1, 1), or None where all see a key.
    """

    scores: Tensor | None
    blind: Tensor | None


class Neighbours(NamedTuple):
    """The problems of one tile with all that was gathered for them.

    Attributes:
        part: the queries and keys of the problems.
        rows: the gathered tensors by name, (R, b | k, width).
        real: keys that are neither empty slots nor padding, (R, k).
        full: every key is known to be real.
        quadrature: that of the whole problem.
    """

    part: Group
    rows: dict[str, Tensor]
    real: Tensor
    full: bool
    quadrature: Quadrature

    @classmethod
    def of(
        cls,
        part: Group,
        rows: dict[str, Tensor],
        quadrature: Quadrature,
    ) -> Neighbours:
        """Return a tile's problems, with padding among their keys marked."""
        valid = quadrature.valid
        if valid is None:
            return cls(
                part,
                rows,
                part.real,
                part.full,
                quadrature,
            )
        sample = part.sample
        if valid.shape[0] == 1:
            sample = torch.zeros_like(sample)
        real = part.real & valid[sample[:, None], part.key]
        return cls(part, rows, real, False, quadrature)

    def heads(self, name: str, count: int) -> Tensor:
        """Return rows by head, (R, H, b | k, width / H)."""
        return self.rows[name].unflatten(-1, (count, -1)).transpose(1, 2)

    def seen_positions(self) -> Tensor:
        """Return the gathered positions ``y``, in a periodic box those of the nearest images."""
        y = self.rows["y"]
        if "shift" in self.rows:
            y = y + self.rows["shift"].to(y.dtype)
        return y

    def displacements(self) -> Tensor:
        """Return x - y of the gathered positions ``x`` and ``y``, (R, b, k, p)."""
        return self.rows["x"][:, :, None] - self.seen_positions()[:, None]

    def _log_density(self) -> Tensor | None:
        """Return log ρ of the edges, (R, 1 | H, 1, k), or None where they have none."""
        if "log_density" not in self.rows:
            return None
        return self.rows["log_density"].mT[:, :, None]

    def density(self) -> PairDensity:
        """Return ρ and log ρ, (R | 1, 1 | H, b, k), also where the domain has none: kernels may
        weigh hidden pairs by other means than masses.
        """
        dtype = self.quadrature.mass.dtype
        log_density = self._log_density()
        if log_density is not None:
            # Edges of an order keep their densities in the default dtype, whatever the domain's is.
            log_density = log_density.to(dtype)
            return PairDensity(log_density.exp(), log_density)
        mask = self.part.real[:, None, None]
        if self.part.seen is not None:
            mask = self.part.seen[None, None]
        return PairDensity.of_mask(mask, dtype)

    def mass(self) -> Tensor:
        """Return m, zero where there is no key, (R, k)."""
        mass = self.rows["mass"][..., 0]
        if self.full:
            return mass
        return torch.where(self.real, mass, 0.0)

    def weights(self, *, spread: bool = True) -> Tensor:
        """Return the weights w = s m ρ of the quadrature, (R, 1 | H, b | 1, k).

        Args:
            spread: False lets one number stand for equal weights of all keys, (R, 1 | H, b | 1, 1).
                That needs equal masses, no empty slots and no pair density, and masses without a
                gradient, which would have to reach each of them.
        """
        mass = self.mass()
        alike = self.full and self.quadrature.equal and not self.rows["mass"].requires_grad
        if alike and not spread:
            mass = mass[:, :1]
        weights = mass[:, None, None]

        # ρ is in the edges, or it is 1 within a reach and 0 beyond it. Either has one number per
        # key, so the weights have one as well.
        log_density = self._log_density()
        if log_density is not None:
            weights = weights * log_density.exp()
        elif self.part.seen is not None:
            weights = weights * self.part.seen

        # The scale comes as (R, b, 1 | H), one row per query.
        if "scale" in self.rows:
            weights = weights * self.rows["scale"].mT[..., None]
        return weights

    def bias(self) -> Bias:
        """Return the term that a softmax adds to its scores: log ρ, the gathered ``log_mass``, and
        :data:`HIDDEN` where there is no key.

        A finite number hides keys, so that a query that sees none has a softmax all the same, and
        nothing has to be taken out before it.
        """
        scores = None
        if "log_mass" in self.rows:
            scores = self.rows["log_mass"].mT[:, :, None]
        log_density = self._log_density()
        if scores is None:
            scores = log_density
        elif log_density is not None:
            scores = scores + log_density
        seen = self.part.seen
        if self.full and seen is None and scores is None:
            return Bias(None, None)

        mask = self.real[:, None, None]
        if seen is not None:
            mask = mask & seen
        if scores is None:
            scores = torch.zeros(
                (),
                dtype=self.quadrature.mass.dtype,
                device=mask.device,
            )
        else:
            mask = mask & (scores > -torch.inf)
        blind = ~mask.any(-1, keepdim=True)
        return Bias(torch.where(mask, scores, HIDDEN), blind)
