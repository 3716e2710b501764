"""Checks of what a domain is built from: shapes always, values where data enters."""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import DomainError, ShapeError


def positive(n: int, what: str) -> None:
    """DomainError unless there is a point."""
    if n < 1:
        raise DomainError(f"{what} needs at least one point, got {n}")


def check_shapes(
    positions: Tensor,
    measure: Tensor | None = None,
    valid: Tensor | None = None,
    pairs: Tensor | None = None,
) -> None:
    """ShapeError unless shapes, dtypes and devices fit; reads no values, so traced code may call
    it.
    """
    if not positions.is_floating_point():
        raise ShapeError(
            f"positions must be floating point, got {positions.dtype}; convert with .float()"
        )
    if positions.dim() not in (2, 3) or positions.shape[-1] == 0:
        raise ShapeError(
            f"positions must have shape (N, p) or (B, N, p), got {tuple(positions.shape)}"
        )
    n = positions.shape[-2]
    positive(n, "a domain")
    if valid is not None and (
        valid.dtype != torch.bool or valid.dim() != 2 or valid.shape[-1] != n
    ):
        raise ShapeError(f"valid must be boolean (B, {n}), got {valid.dtype} {tuple(valid.shape)}")
    if measure is not None and (measure.dim() not in (1, 2) or measure.shape[-1] != n):
        raise ShapeError(f"measure must have shape ({n},) or (B, {n}), got {tuple(measure.shape)}")
    if measure is not None and not measure.is_floating_point():
        raise ShapeError(
            f"measure must be floating point, got {measure.dtype}; convert with .float()"
        )
    if pairs is not None and (pairs.dim() not in (2, 3, 4) or pairs.shape[-1] != n):
        raise ShapeError(
            f"pairs must have shape (Nq, Nk), (B, Nq, Nk) or (B, H, Nq, Nk), Nk = {n}; got "
            f"{tuple(pairs.shape)}"
        )
    if pairs is not None and pairs.dtype != torch.bool and not pairs.is_floating_point():
        raise ShapeError(
            f"pairs must be a boolean mask or a floating log-density, got {pairs.dtype}"
        )
    _check_together(positions, measure, valid, pairs)


def _check_together(
    positions: Tensor, measure: Tensor | None, valid: Tensor | None, pairs: Tensor | None
) -> None:
    """One batch size and one device."""
    parts = {"positions": (positions, 3), "measure": (measure, 2), "valid": (valid, 2)}
    if pairs is not None:
        parts["pairs"] = (pairs, max(pairs.dim(), 3))
    batches = {
        name: x.shape[0] for name, (x, dims) in parts.items() if x is not None and x.dim() == dims
    }
    sizes = [size for size in batches.values() if size != 1]  # of traced code not for a set
    if any(size != sizes[0] for size in sizes[1:]):
        raise ShapeError(f"a domain has one batch size, got {batches}")
    devices = {name: str(x.device) for name, (x, _) in parts.items() if x is not None}
    if len(set(devices.values())) > 1:
        raise ShapeError(
            f"a domain lives on one device, got {devices}; move it with domain.to(device)"
        )


def cheap_to_read(x: Tensor, *, waited: bool = False) -> bool:
    """Whether looking at a tensor's values costs next to nothing: not on an accelerator, which
    would have to be waited for (unless it is ``waited`` for anyway), and not in code that is
    traced, captured or transformed.
    """
    if type(x) is not Tensor or torch.compiler.is_compiling():
        return False
    if x.device.type != "cpu" and (not waited or x.is_meta):
        return False
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    if torch._C._get_tracing_state() or torch._C._len_torch_dispatch_stack():
        return False
    return not torch._C._functorch.get_dynamic_layer_stack_depth()  # pyright: ignore[reportAttributeAccessIssue]


def check_forward(spacing: Tensor) -> None:
    """DomainError where times go back, so that a point would stand for a negative time.

    Called for every batch, hence only of what is :func:`cheap_to_read`.
    """
    if not cheap_to_read(spacing):
        return
    if bool((spacing < 0).any()):
        raise DomainError(
            "timestamps must not go back: a point stands for the time to its neighbours, which "
            "would be negative here; sort each sequence by its times first"
        )


def check_values(
    positions: Tensor, measure: Tensor, valid: Tensor | None, pairs: Tensor | None, *, sorted_: bool
) -> None:
    """DomainError unless positions and masses are usable; reads values, so for eager code only."""
    real = torch.ones((), dtype=torch.bool, device=positions.device) if valid is None else valid
    bad = ~positions.isfinite().all(-1) & real
    if bool(bad.any()):
        raise DomainError(
            f"{int(bad.sum())} point(s) have non-finite positions; drop them or mark them in valid"
        )
    if sorted_:
        time, there = torch.broadcast_tensors(positions[..., 0], real)
        before = torch.where(there, time, -torch.inf).cummax(-1).values  # also across padding
        if bool(((time[..., 1:] <= before[..., :-1]) & there[..., 1:]).any()):
            raise DomainError(
                "timestamps must increase strictly; sort them and merge repeated ones"
            )
    mass = torch.where(real, measure, 0.0)
    if not bool(mass.isfinite().all()) or bool((mass < 0).any()):
        raise DomainError(
            f"masses must be finite and not negative, got {float(mass.min())} to "
            f"{float(mass.max())}; drop such points or mark them in valid"
        )
    if not bool((mass.sum(-1) > 0).all()):
        raise DomainError(
            "total mass is zero: every point is padding or has measure 0; at least one must count"
        )
    if pairs is not None and pairs.is_floating_point() and bool(pairs.isnan().any()):
        raise DomainError("pairs contain NaN; use -inf to hide a pair and 0 to leave it as it is")
