"""What comes in is checked and cleaned: shapes that fit, zeros at padding."""

from __future__ import annotations

import torch
from torch import Tensor

from ..domain import Domain
from ..errors import ShapeError


def batched(x: Tensor, dims: int) -> Tensor:
    return x[None] if x.dim() == dims else x


def positions(domain: Domain) -> Tensor:
    """Positions (1 | B, N, p). Those of one grid stay the grid's, whatever is padding on it: fast
    forms read displacements there.
    """
    shared = domain.shape is not None and domain.positions.dim() == 2
    return batched(domain.positions if shared else clean(domain.positions, domain.valid), 2)


def clean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Zero at padding, by ``where``, so that NaN there is harmless."""
    if valid is None:
        return x
    return torch.where(valid[..., None], x, torch.zeros((), dtype=x.dtype, device=x.device))


def check_fit(u: Tensor, domain: Domain, name: str, domain_name: str) -> None:
    if u.shape[1] != domain.size:
        raise ShapeError(
            f"{name} has {u.shape[1]} points and its {domain_name} {domain.size}; they must be "
            "equal"
        )
    if domain.batch not in (None, 1, u.shape[0]):
        raise ShapeError(
            f"{name} has batch size {u.shape[0]} and its {domain_name} {domain.batch}; they must "
            "be equal"
        )
    if domain.positions.device != u.device:
        where = f"{domain.positions.device}, {name} on {u.device}"
        raise ShapeError(
            f"{domain_name} is on {where}; move it with {domain_name}.to({str(u.device)!r})"
        )
