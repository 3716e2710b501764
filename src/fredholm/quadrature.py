"""Quadrature: what a query sees of a domain, and with which weight."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Rows = Tensor | list[int] | None


def take_rows(tensor: Tensor, rows: Rows, dim: int) -> Tensor:
    """``tensor`` at the query indices ``rows`` along ``dim``; all of it where ``rows`` is None or
    ``dim`` has size 1.
    """
    if rows is None or tensor.shape[dim] == 1:
        return tensor
    return tensor.index_select(dim, torch.as_tensor(rows, device=tensor.device))


@dataclass(eq=False)  # nobody writes to one; a frozen class takes three times as long to build
class Quadrature:
    r"""Weights of the sum that stands for an integral:
    :math:`\int f(x_i, y)\,d\mu(y) \approx \sum_j w_{ij} f(x_i, y_j)`.

    The weights are kept factored, so that no N² tensor exists unless the domain's ``pairs`` brought
    one:

    .. math:: w_{ij} = s_i\, m_j\, [t_j \le t_i]\, \rho_{ij}

    Attributes:
        mass: m, mass of each key, zero at padding; (1 | B, Nk).
        scale: s, one over the mass each query sees, or None where nothing is renormalised; (1 | B,
            1 | H, Nq).
        query_time, key_time: t, or None where order plays no role; (1 | B, Nq) and (1 | B, Nk).
        density: ρ, the pair density (0 or 1 for a mask); (1 | B, 1 | H, Nq, Nk) or None.
        log_density: log ρ, or None; kept beside ρ so that a softmax adds it without a logarithm.
        valid: keys that are no padding; (B, Nk) or None.
        equal: whether all keys that are no padding have the same mass: a static fact.
        triangular: whether the order is that of the indices, t_i = i: a static fact.
    """

    mass: Float[Tensor, "#b k"]
    scale: Float[Tensor, "#b #h q"] | None = None
    query_time: Float[Tensor, "#b q"] | None = None
    key_time: Float[Tensor, "#b k"] | None = None
    density: Float[Tensor, "#b #h q k"] | None = None
    log_density: Float[Tensor, "#b #h q k"] | None = None
    valid: Bool[Tensor, "#b k"] | None = None
    equal: bool = False
    triangular: bool = False

    def order(self) -> Bool[Tensor, "b q k"] | None:
        """Pairs in causal order, ``t_j <= t_i``, or None where order plays no role."""
        if self.query_time is None or self.key_time is None:
            return None
        return self.key_time[:, None, :] <= self.query_time[:, :, None]

    def visible(self, rows: Rows = None) -> Bool[Tensor, "b h q k"] | None:
        """Pairs that order, padding and masks leave, or None where every query sees every key.
        O(Nq·Nk).
        """
        part, parts = self.rows(rows), []
        if part.valid is not None:
            parts.append(part.valid[:, None, None, :])
        order = part.order()
        if order is not None:
            parts.append(order[:, None])
        if part.log_density is not None:
            parts.append(part.log_density > -torch.inf)
        seen = None
        for mask in parts:
            seen = mask if seen is None else seen & mask
        return seen

    def weights(self, rows: Rows = None) -> Float[Tensor, "b h q k"]:
        """The dense weights w (1 | B, 1 | H, Nq, Nk), for definitions, pictures and small domains.
        O(Nq·Nk).
        """
        part = self.rows(rows)
        dense, order = part.mass[:, None, None, :], part.order()
        if order is not None:
            dense = torch.where(order[:, None], dense, 0.0)
        if part.density is not None:
            dense = dense * part.density
        if part.scale is not None:
            dense = dense * part.scale[..., None]
        return dense

    def rows(self, rows: Rows) -> Quadrature:
        """The same quadrature for some of the queries, which are then in no triangular order."""
        if rows is None:
            return self

        def pick(x: Tensor | None, dim: int) -> Tensor | None:
            return None if x is None else take_rows(x, rows, dim)

        return replace(
            self,
            scale=pick(self.scale, 2),
            query_time=pick(self.query_time, 1),
            density=pick(self.density, 2),
            log_density=pick(self.log_density, 2),
            triangular=False,
        )

    def to(self, dtype: torch.dtype) -> Quadrature:
        """The same quadrature in a working precision, at least float32; itself where it has it."""
        dtype = torch.promote_types(dtype, torch.float32)
        if self.mass.dtype == dtype and (self.scale is None or self.scale.dtype == dtype):
            return self  # a quadrature's parts share their dtype
        parts = {name: getattr(self, name) for name in ("mass", "scale", "density", "log_density")}
        return replace(
            self, **{name: None if x is None else x.to(dtype) for name, x in parts.items()}
        )

    def row(self, t: int) -> Quadrature:
        """What query ``t`` sees of the keys up to and including ``t``: the quadrature of one causal
        step.
        """

        def cut(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[..., : t + 1]

        def pick(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[..., t : t + 1, : t + 1]

        scale = None if self.scale is None else self.scale[..., t : t + 1]
        return Quadrature(
            mass=self.mass[:, : t + 1],
            scale=scale,
            density=pick(self.density),
            log_density=pick(self.log_density),
            valid=cut(self.valid),
            equal=self.equal,
        )

    def stretch(self, start: int, stop: int) -> Quadrature:
        """What queries ``start`` to ``stop`` of a causal domain see of the keys before ``stop``:
        the quadrature of a stretch of steps at once.
        """

        def pairs(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[..., start:stop, :stop]

        # Half precisions cannot tell apart the indices of a long domain.
        order = torch.arange(stop, device=self.mass.device, dtype=torch.float32)[None]
        return Quadrature(
            mass=self.mass[:, :stop],
            scale=None if self.scale is None else self.scale[..., start:stop],
            query_time=order[:, start:],
            key_time=order,
            density=pairs(self.density),
            log_density=pairs(self.log_density),
            valid=None if self.valid is None else self.valid[:, :stop],
            equal=self.equal,
            triangular=start == 0,
        )


def reciprocal(mass: Tensor) -> Tensor:
    """1 / mass, and 0 where there is no mass to divide by: a query that sees nothing integrates to
    zero.
    """
    return torch.where(mass > 0, 1.0 / torch.where(mass > 0, mass, 1.0), 0.0)
