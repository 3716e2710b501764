"""Linear attention with a cost linear in the number of points: two sums, causal chunks, one step at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...errors import StrategyError
from ...quadrature import Quadrature
from ..backend import choose_backend
from .naive import guarded
from .served import linear_attention_refusal


def linear_attention(
    query: Float[Tensor, "#b #h q r"],
    key: Float[Tensor, "#b #h k r"],
    value: Float[Tensor, "#b #h k c"],
    quadrature: Quadrature,
    *,
    floor: float | None,
    chunk: int = 64,
    backend: str = "auto",
) -> Float[Tensor, "b h q c"]:
    r""":math:`s_i\,\phi_i^T \sum_{j} m_j\,\psi_j v_j^T`, over the same sum with :math:`v = 1` unless ``floor`` is None.

    In triangular order the sum ends at i: points go in chunks, pairs inside a chunk and one moment for all chunks before. The
    moments (r × c) accumulate in float32 at least, autocast or not.

    Args:
        query, key: features φ and ψ.
        quadrature: masses, padding and a triangular order; pair masks have no linear form.
        floor: of the denominator, see :func:`guarded`.
        chunk: points a chunk; Triton's kernels choose their own.
        backend: see :mod:`fredholm.ops.backend`; without an order ``"auto"`` stays with PyTorch's two matrix products.

    Cost: O(N·r·c) time; memory O(N·(r + c)), and in triangular order O(N·(r·c / chunk + chunk)) more.

    Raises:
        BackendError: a backend that was asked for and cannot run.
        StrategyError: pair weights, or an order in which the queries are not the keys.

    Example:
        >>> u = torch.ones(1, 1, 3, 2)
        >>> linear_attention(u, u, u, Domain.line(3, causal=True).quadrature(), floor=1e-6)[0, 0, 0].tolist()
        [1.0, 1.0]
    """
    check_order(quadrature)
    dtype = torch.promote_types(query.dtype, torch.float32)
    backend = "torch" if backend == "auto" and not quadrature.triangular else backend

    def refusal() -> str | None:  # sizes are compared only where a kernel could run
        batch, heads = (max(x.shape[i] for x in (query, key, value)) for i in (0, 1))
        return linear_attention_refusal(dtype, query.shape[3], value.shape[3], batch * heads)

    if choose_backend(backend, "linear attention", value.device, refusal) == "triton":
        from .triton import attend

        return attend(query, key, value, quadrature, floor)
    with torch.autocast(query.device.type, enabled=False):
        query, value = query.to(dtype), _with_mass(value.to(dtype), floor)
        key = key.to(dtype) * quadrature.mass[:, None, :, None].to(dtype)
        out = _prefix_sums(query, key, value, chunk) if quadrature.triangular else query @ (key.mT @ value)
        scale = None if quadrature.scale is None else quadrature.scale[..., None].to(dtype)
        return _divide(out, scale, floor)


def linear_attention_step(
    query: Float[Tensor, "#b #h r"],
    key: Float[Tensor, "#b #h r"],
    value: Float[Tensor, "#b #h c"],
    mass: Float[Tensor, "#b"],
    scale: Float[Tensor, "#b #h"] | None,
    moment: Float[Tensor, "b h r _"] | None,
    *,
    floor: float | None,
) -> tuple[Float[Tensor, "b h c"], Float[Tensor, "b h r _"]]:
    """One point in causal order: its response and the moment after it (None before the first point). O(r·c) time and memory."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        weighted = key.to(dtype) * mass.to(dtype)[:, None, None]
        new = weighted[..., :, None] * _with_mass(value.to(dtype), floor)[..., None, :]
        moment = new if moment is None else moment + new
        out = (query.to(dtype)[..., None, :] @ moment).squeeze(-2)
        return _divide(out, None if scale is None else scale[..., None].to(dtype), floor), moment


def check_order(quadrature: Quadrature) -> None:
    """StrategyError where pairs, or an order across two domains, leave no linear form."""
    if quadrature.density is not None or (quadrature.query_time is not None and not quadrature.triangular):
        raise StrategyError("linear attention has no linear form for pair weights or an order across two domains")


def _with_mass(value: Tensor, floor: float | None) -> Tensor:
    """Values with a constant channel where there is a denominator: its integral."""
    return value if floor is None else F.pad(value, (0, 1), value=1.0)


def _divide(out: Tensor, scale: Tensor | None, floor: float | None) -> Tensor:
    out = out if scale is None else out * scale
    return out if floor is None else out[..., :-1] / guarded(out[..., -1:], floor)


def _prefix_sums(query: Tensor, key: Tensor, value: Tensor, chunk: int) -> Tensor:
    r""":math:`\phi_i^T \sum_{j \le i} \psi_j v_j^T` for all i. Shapes only, no loop, so that traced lengths stay free."""
    n = query.shape[2]
    count = (n + chunk - 1) // chunk
    if torch.compiler.is_compiling():
        count += 1  # an extra empty chunk: a traced dimension of size 1 would be taken for a constant
    else:
        chunk = min(chunk, n)
    # unfold, because to traced code unflatten would be a claim about divisibility
    query, key, value = (F.pad(x, (0, 0, 0, count * chunk - n)).unfold(2, chunk, chunk).mT for x in (query, key, value))
    before = F.pad((key.mT @ value).cumsum(2), (0, 0, 0, 0, 1, -1))
    out = (query @ key.mT).tril() @ value + query @ before
    return F.pad(out.flatten(2, 3), (0, 0, 0, n - count * chunk))
