"""The product with the edges of a token graph: unnormalised, together with what its norm needs, in
one pass.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ....errors import OptionError, ShapeError, suggest
from ....ops import comparison
from ....ops.backend import choose_backend
from ....ops.comparison import Random, Sample
from ....ops.launch import grid_refusal
from .activations import find_activation
from .registration import edge_product_op

EDGE_PRODUCT = "the edge product"
DEFAULT_BYTES = 1 << 20  # one tile of pairs; a backward holds two, which a CPU core's cache takes
DEFAULT_CUDA_BYTES = 256_000_000
WIDEST = 256  # columns of a query or a value that the registers of a Triton program can hold
STATISTICS = ("squares", "sums", "none")


def edge_product(
    query: Float[Tensor, "b h q e"],
    key: Float[Tensor, "b h k e"],
    value: Float[Tensor, "b h k d"],
    mass: Float[Tensor, "#b #k"],
    density: Float[Tensor, "#b #h q k"] | None = None,
    *,
    causal: bool = False,
    activation: str = "relu",
    statistic: str = "squares",
    memory: int | None = None,
    backend: str = "auto",
    half: torch.dtype | None = None,
) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h q"]]:
    r"""Edges times values, and the size of every row, in one pass over tiles:

    .. math:: P_{ij} = \rho_{ij}\,[j \le i]\,\phi(q_i \cdot k_j), \qquad
              o_i = \sum_j P_{ij} v_j, \qquad
              r_i = \sum_j m_j P_{ij}^2 \ \text{ or } \ \sum_j m_j |P_{ij}|

    A norm that is one number per head (or per prefix) is a function of r and divides o afterwards,
    so that nothing of size Nq × Nk is kept. The quadrature masses of the product belong in
    ``value``.

    Args:
        query, key, value: (B, H, Nq, e), (B, H, Nk, e), (B, H, Nk, d); d may be 0 where only r is
            wanted.
        mass: m of the row statistic, (B | 1, Nk), or (B | 1, 1) where all keys have the same.
        density: ρ, (B | 1, H | 1, Nq, Nk).
        causal: query i sees the keys j ≤ i.
        activation: φ, a name of :data:`ACTIVATIONS`.
        statistic: ``"squares"``, ``"sums"`` (of magnitudes), or ``"none"`` (r is zero).
        memory: bytes of one tile of the PyTorch form.
        backend: see :mod:`fredholm.ops.backend`.
        half: the half precision in which a Triton kernel multiplies, where the tensors came from
            it; sums stay in float32.

    Returns:
        o and r, in float32 at least.

    Cost: O(B·H·Nq·Nk·(e + d)) time, O(N) memory and three tiles, forward and backward, which
    computes tiles again.

    Raises:
        BackendError: a requested backend that cannot run.
        OptionError: unknown activation, statistic or backend, memory below one byte.
        ShapeError: shapes that do not fit.

    Reference: InfSA Eqs. 11, 12, with the division moved behind the product.

    Example:
        >>> one = torch.ones(1, 1, 2, 1)
        >>> out, row = edge_product(one, one, one, torch.ones(1, 1), causal=True)
        >>> out.flatten().tolist(), row.round(decimals=4).flatten().tolist()
        ([1.0, 2.0], [1.0, 2.0])
    """
    find_activation(activation)
    if statistic not in STATISTICS:
        raise OptionError(f"unknown statistic {statistic!r}{suggest(statistic, STATISTICS)}")
    if memory is not None and memory < 1:
        raise OptionError(f"memory is the bytes of one tile, at least 1, got {memory}")
    if memory is None:
        memory = DEFAULT_BYTES if value.device.type == "cpu" else DEFAULT_CUDA_BYTES
    b, h, nk, _ = value.shape
    if key.shape[:3] != (b, h, nk) or query.shape != (b, h, query.shape[2], key.shape[3]):
        shapes = f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
        raise ShapeError(
            "edge_product needs query (B, H, Nq, e), key (B, H, Nk, e), value (B, H, Nk, d); "
            f"got {shapes}"
        )
    if causal and query.shape[2] != nk:
        raise ShapeError(
            f"a causal product has as many queries as keys, got {query.shape[2]} and {nk}"
        )
    given = [x for x in (query, key, value, mass, density) if x is not None]
    dtype = torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32
    parts = [None if x is None else x.to(dtype) for x in (query, key, value, mass, density)]
    form = (
        ("activation", activation),
        ("statistic", statistic),
        ("causal", causal),
        ("density", density is not None),
        ("e", query.shape[3]),
        ("d", value.shape[3]),
    )
    if (
        choose_backend(
            backend,
            EDGE_PRODUCT,
            value.device,
            lambda: triton_refusal(dtype, query, value),
            lambda: (sample, half or torch.float32, form),
        )
        == "triton"
    ):
        from ..triton.op import edge_product_triton

        low = [x if half is None else x.to(half) for x in (query, key, value)]
        return edge_product_triton(*low, *parts[3:], causal, activation, statistic)
    return edge_product_op(*parts, causal, activation, statistic, memory)


def sample(normal: Random, form: dict[str, Any]) -> Sample:
    """A small problem in the form of a call: what the Triton kernels are compared on."""
    n, e, d = comparison.POINTS, form["e"], form["d"]
    inputs = [normal(1, 2, n, width) for width in (e, e, d)] + [normal(1, n).abs()]
    if form["density"]:
        inputs.append(normal(1, 1, n, n).abs())
    options = {name: form[name] for name in ("activation", "statistic", "causal")}

    def call(backend: str, *x: Tensor) -> tuple[Tensor, ...]:
        half = None if x[0].dtype in (torch.float32, torch.float64) else x[0].dtype
        return edge_product(*x, backend=backend, half=half, **options)

    return Sample(inputs, call)


def triton_refusal(dtype: torch.dtype, query: Tensor, value: Tensor) -> str | None:
    """Why the Triton kernels cannot compute a product of these tensors in the precision of the
    computation, or None.
    """
    if dtype == torch.float64:
        return "its sums are in float32, and the tensors are in float64"
    if max(query.shape[3], value.shape[3]) > WIDEST:
        return (
            f"it holds up to {WIDEST} columns of a query or a value, got {query.shape[3]} and "
            f"{value.shape[3]}"
        )
    return grid_refusal(value.shape[0] * value.shape[1])
