"""Checks of a domain's tensors: shapes always, values where data enters."""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import DomainError, ShapeError


def positive(n: int, name: str) -> None:
    """DomainError unless there is a point."""
    if n < 1:
        raise DomainError(f"{name}: expected at least one point, got {n}")


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
            f"expected floating-point positions, got {positions.dtype}; convert with .float()"
        )
    if positions.dim() not in (2, 3) or positions.shape[-1] == 0:
        raise ShapeError(
            f"expected positions (N, p) or (B, N, p), got {tuple(positions.shape)}; add a "
            "dimension with [:, None]"
        )
    n = positions.shape[-2]
    positive(n, "a domain")
    if valid is not None:
        _check_valid(valid, n)
    if measure is not None:
        _check_measure(measure, n)
    if pairs is not None:
        _check_pairs(pairs, n)

    # Batched tensors have more dimensions than those that all samples share.
    unbatched = {
        "positions": (positions, 2),
        "measure": (measure, 1),
        "valid": (valid, 1),
    }
    unbatched["pairs"] = (pairs, 2)
    tensors = {name: x for name, (x, _) in unbatched.items() if x is not None}
    batches = {}
    for name, x in tensors.items():
        _, dimensions = unbatched[name]
        if x.dim() > dimensions:
            batches[name] = x.shape[0]

    # A symbolic size of traced code cannot enter a set.
    sizes = [size for size in batches.values() if size != 1]
    if any(size != sizes[0] for size in sizes[1:]):
        raise ShapeError(f"expected tensors of one batch size in a domain, got {batches}")
    devices = {name: str(x.device) for name, x in tensors.items()}
    if len(set(devices.values())) > 1:
        raise ShapeError(
            f"expected a domain on one device, got {devices}; move it with domain.to(device)"
        )


def _check_valid(valid: Tensor, n: int) -> None:
    if valid.dtype != torch.bool or valid.dim() != 2 or valid.shape[-1] != n:
        raise ShapeError(f"expected boolean valid (B, {n}), got {valid.dtype} {tuple(valid.shape)}")


def _check_measure(measure: Tensor, n: int) -> None:
    if measure.dim() not in (1, 2) or measure.shape[-1] != n:
        raise ShapeError(f"expected a measure ({n},) or (B, {n}), got {tuple(measure.shape)}")
    if not measure.is_floating_point():
        raise ShapeError(
            f"expected a floating-point measure, got {measure.dtype}; convert with .float()"
        )


def _check_pairs(pairs: Tensor, n: int) -> None:
    if pairs.dim() not in (2, 3, 4) or pairs.shape[-1] != n:
        raise ShapeError(
            f"expected pairs (Nq, Nk), (B, Nq, Nk) or (B, H, Nq, Nk), Nk = {n}, got "
            f"{tuple(pairs.shape)}"
        )
    if pairs.dtype != torch.bool and not pairs.is_floating_point():
        raise ShapeError(
            "expected pairs as a boolean mask or a floating-point log-density, got "
            f"{pairs.dtype}; convert with .bool()"
        )


def cheap_to_read(x: Tensor, *, waited: bool = False) -> bool:
    """Whether reading a tensor's values costs next to nothing: not on an accelerator, for which
    the program would have to wait (unless it has ``waited`` anyway), and not in code that is
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


def check_forward(gaps: Tensor) -> None:
    """DomainError where times go back: where the time since the real point before is negative.

    It reads values: call it for every batch only of what is :func:`cheap_to_read`.
    """
    if bool((gaps < 0).any()):
        raise DomainError(
            "expected timestamps that do not go back, got some that do: the time between two "
            "points would be negative; sort each sequence by its times"
        )


def check_values(
    positions: Tensor,
    measure: Tensor,
    valid: Tensor | None,
    pairs: Tensor | None,
    *,
    sorted_: bool,
) -> None:
    """DomainError unless positions and masses are usable; reads values, so for eager code only."""
    real = valid
    if real is None:
        real = torch.ones((), dtype=torch.bool, device=positions.device)
    bad = ~positions.isfinite().all(-1) & real
    if bool(bad.any()):
        raise DomainError(
            f"expected finite positions, got {int(bad.sum())} point(s) with others; drop them or "
            "mark them as padding in valid"
        )
    if sorted_:
        # The last real time before a point, also where padding lies between them.
        time, real_time = torch.broadcast_tensors(positions[..., 0], real)
        known_times = torch.where(real_time, time, -torch.inf)
        before = known_times.cummax(-1).values
        repeated = (time[..., 1:] <= before[..., :-1]) & real_time[..., 1:]
        if bool(repeated.any()):
            raise DomainError(
                f"expected timestamps that increase strictly, got {int(repeated.sum())} that do "
                "not; sort them and merge repeated ones"
            )
    mass = torch.where(real, measure, 0.0)
    if not bool(mass.isfinite().all()) or bool((mass < 0).any()):
        raise DomainError(
            f"expected finite masses of 0 or more, got {float(mass.min())} to "
            f"{float(mass.max())}; drop such points or mark them as padding in valid"
        )
    if not bool((mass.sum(-1) > 0).all()):
        raise DomainError(
            "expected a positive total mass, got 0: every point is padding or has no mass; at "
            "least one must count"
        )
    if pairs is not None and pairs.is_floating_point() and bool(pairs.isnan().any()):
        raise DomainError(
            f"expected pairs without NaN, got {int(pairs.isnan().sum())}; use -inf to hide a pair "
            "and 0 to leave it as it is"
        )
