"""The MLP kernel integrated hidden units first, tile by tile, in memory linear in N."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...errors import OptionError, ShapeError
from ..activations import activation_named
from ..backend import choose_backend
from .limits import refusal
from .registration import mlp_kernel_op

DEFAULT_BYTES = 3_200_000  # a tile of hidden units that a CPU core works through near its cache
DEFAULT_CUDA_BYTES = 256_000_000


def mlp_kernel(
    query: Float[Tensor, "#b #h q e"] | None,
    key: Float[Tensor, "#b #h k e"] | None,
    value: Float[Tensor, "b h k d"],
    readout: Float[Tensor, "h o d v"],
    *,
    query_bias: Float[Tensor, "#b #h q w"],
    key_bias: Float[Tensor, "#b #h k w"] | None = None,
    scale: Float[Tensor, "#h w e"] | None = None,
    query2: Float[Tensor, "#b #h q f"] | None = None,
    scale2: Float[Tensor, "#h w f"] | None = None,
    table: Float[Tensor, "#h w t"] | None = None,
    query_index: Int[Tensor, " q"] | None = None,
    key_index: Int[Tensor, " k"] | None = None,
    distance_scale: Float[Tensor, "#h w"] | None = None,
    query_positions: Float[Tensor, "*bp q p"] | None = None,
    key_positions: Float[Tensor, "*bk k p"] | None = None,
    density: Float[Tensor, "#b #h q k"] | Bool[Tensor, "#b #h q k"] | None = None,
    query_time: Tensor | None = None,
    key_time: Tensor | None = None,
    mid: Sequence[tuple[Tensor, Tensor]] = (),
    activation: str = "gelu",
    memory: int | None = None,
    backend: str = "auto",
) -> Float[Tensor, "b h q o"]:
    r"""The integral of an MLP kernel with a linear last layer, exact, without ever forming the
    kernel.

    For every batch entry, head, query i and hidden unit k,

    .. math::
        s_k(i,j) &= q^b_{ik} + k^b_{jk} + \textstyle\sum_c \alpha_{kc}\, q_{ic}\, k_{jc}
                    + \sum_c \alpha'_{kc}\, q'_{ic}\, k_{j,e-f+c} + r_{k,\,I_i - J_j} + \delta_k
                    |x_i - y_j| \\
        h(i,j)   &= \sigma(s(i,j)), \text{ then } h \leftarrow \sigma(W h + b) \text{ for each layer
        of mid} \\ out_o(i) &= \textstyle\sum_{kc} R_{ock} \sum_j \rho_{ij}\, [t_j \le t_i]\,
        h_k(i,j)\, v_{jc}

    The last layer is linear and commutes with the sum over keys, so the sum is taken over hidden
    units; the quadrature masses of the keys belong in ``value``, the output layer's bias is the
    caller's. Terms whose tensors are None are left out. Dimensions of size 1 are shared.

    Args:
        query, key: q (B | 1, H | 1, Nq, e) and k (B | 1, H | 1, Nk, e), with ``scale`` α; all three
            or none.
        value: v (B, H, Nk, d).
        readout: R (H, o, d, w'), w' the last hidden width.
        query_bias: (B | 1, H | 1, Nq, w).
        key_bias: (B | 1, H | 1, Nk, w).
        scale: α (H | 1, w, e).
        query2, scale2: q' (B | 1, H | 1, Nq, f) and α' (H | 1, w, f), met by the last f ≤ e columns
            of ``key``.
        table, query_index, key_index: r (H | 1, w, T), I (Nq,) and J (Nk,), int64: a pair reads row
            I_i - J_j, which must lie in [0, T). One integer a point serves any regular grid.
        distance_scale, query_positions, key_positions: δ (H | 1, w), x (Nq, p) or (B, Nq, p), y
            likewise.
        density: ρ (B | 1, H | 1, Nq, Nk), float or a boolean mask.
        query_time, key_time: t (Nq,) or (B, Nq), and (Nk,) or (B, Nk): a key not later than the
            query is visible.
        mid: further hidden layers, pairs of W (width, width before) and b (width,).
        activation: σ, a name in ``ACTIVATIONS``.
        memory: bytes of one tile of hidden units; by default what fits a CPU's cache, or 256 MB on
            an accelerator. The Triton kernels hold the hidden units in registers, and this many
            bytes of their moments, by default 1 GB.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``, see :mod:`fredholm.ops.backend`. The
            Triton kernels serve float32, bfloat16 and float16, every term but ``mid``, and every
            gradient but those of density and positions.

    Returns:
        (B, H, Nq, o) in ``value``'s dtype. PyTorch's operations compute half precisions and
        autocast in float32; the Triton kernels multiply in the half precision and add in float32.

    Cost:
        Time O(B·H·Nq·Nk·w·(e + d)), memory O(N) (B·H·N·(e + d + w) and a few tiles), forward and
        backward, which computes the tiles again. Gradients reach every float tensor except the
        times; the distance has gradient 0 at 0. One derivative: the backward is not differentiable
        itself. A ``value`` of zero hides a key only while the key's other numbers are finite.

    Raises:
        ShapeError: where shapes do not fit or one tensor of a term is missing.
        OptionError: for an unknown activation or backend, or a memory below one byte.
        BackendError: where ``backend="triton"`` cannot run.

    Reference: ITNet, Algorithms 1 and 2, in the order of summation that needs 2·w·d multiply-adds a
    pair.

    Example:
        >>> q, k, v = torch.ones(1, 1, 2, 3), torch.ones(1, 1, 4, 3), torch.ones(1, 1, 4, 1)
        >>> bias, ones, readout = torch.zeros(1, 1, 2, 5), torch.ones(1, 5, 3), torch.ones(1, 1, 1, 5)
        >>> mlp_kernel(q, k, v, readout, query_bias=bias, scale=ones, activation="relu").tolist()
        [[[[60.0], [60.0]]]]
    """
    activation_named(activation)
    if memory is not None and memory < 1:
        raise OptionError(f"memory is the bytes of one tile, at least 1, got {memory}")
    tensors: dict[str, Any] = {
        "query": query, "key": key, "value": value, "readout": readout, "query_bias": query_bias, "key_bias": key_bias,
        "scale": scale, "query2": query2, "scale2": scale2, "table": table, "query_index": query_index,
        "key_index": key_index,
        "distance_scale": distance_scale, "query_positions": _batched(query_positions, 3),
        "key_positions": _batched(key_positions, 3), "density": density,
        "query_time": _time(query_time), "key_time": _time(key_time),
    }  # fmt: skip
    _check(tensors, mid)
    if (
        choose_backend(backend, "mlp_kernel", value.device, lambda: refusal(tensors, mid))
        == "triton"
    ):
        from .triton import mlp_kernel_triton

        return mlp_kernel_triton(tensors, activation, memory)
    if memory is None:
        memory = DEFAULT_BYTES if value.device.type == "cpu" else DEFAULT_CUDA_BYTES
    dtype = _compute_dtype([*tensors.values(), *(t for layer in mid for t in layer)])
    cast = {
        name: _cast(t, dtype) if not name.endswith("time") else t for name, t in tensors.items()
    }
    layers = [t.to(dtype) for layer in mid for t in layer]
    return mlp_kernel_op(*cast.values(), layers, activation, memory).to(value.dtype)


def _batched(x: Tensor | None, dim: int) -> Tensor | None:
    return x if x is None or x.dim() == dim else x[None]


def _time(x: Tensor | None) -> Tensor | None:
    return None if x is None else _batched(x.detach(), 2)


def _cast(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return x.to(dtype) if x is not None and x.is_floating_point() else x


def _compute_dtype(tensors: Sequence[Tensor | None]) -> torch.dtype:
    """float64 where any tensor is, else float32."""
    return (
        torch.float64
        if any(t is not None and t.dtype == torch.float64 for t in tensors)
        else torch.float32
    )


TERMS = (
    ("query", "key", "scale"),
    ("query2", "scale2"),
    ("table", "query_index", "key_index"),
    ("distance_scale", "query_positions", "key_positions"),
    ("query_time", "key_time"),
)


def _check(tensors: dict[str, Any], mid: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Raise ShapeError unless every term is complete and its shapes fit."""
    for term in TERMS:
        given = [name for name in term if tensors[name] is not None]
        if given and len(given) < len(term):
            missing = ", ".join(name for name in term if name not in given)
            raise ShapeError(
                f"mlp_kernel got {', '.join(given)} without {missing}: give all of "
                f"{', '.join(term)} or none"
            )
    if tensors["query2"] is not None and tensors["key"] is None:
        raise ShapeError("mlp_kernel got query2 without key, whose last columns it multiplies")
    value, bias = tensors["value"], tensors["query_bias"]
    b, h, k, d = value.shape
    q, w = bias.shape[2], bias.shape[3]
    last = mid[-1][0].shape[0] if mid else w
    e = 0 if tensors["key"] is None else tensors["key"].shape[-1]
    f = 0 if tensors["query2"] is None else tensors["query2"].shape[-1]
    p = None if tensors["key_positions"] is None else tensors["key_positions"].shape[-1]
    shapes = {  # how many leading dimensions may be shared (size 1), and the sizes; None: any
        "query": (2, (b, h, q, e)), "key": (2, (b, h, k, e)), "readout": (0, (h, None, d, last)),
        "query_bias": (2, (b, h, q, w)), "key_bias": (2, (b, h, k, w)), "scale": (1, (h, w, e)),
        "query2": (2, (b, h, q, f)), "scale2": (1, (h, w, f)), "table": (1, (h, w, None)),
        "query_index": (0, (q,)), "key_index": (0, (k,)),
        "distance_scale": (1, (h, w)), "query_positions": (1, (b, q, p)), "key_positions": (1, (b, k, None)),
        "density": (2, (b, h, q, k)), "query_time": (1, (b, q)), "key_time": (1, (b, k)),
    }  # fmt: skip
    for name, (shared, needed) in shapes.items():
        tensor = tensors[name]
        if tensor is not None and not _fits(tensor.shape, shared, needed):
            wanted = ", ".join(
                "any" if n is None else f"{n} or 1" if i < shared else f"{n}"
                for i, n in enumerate(needed)
            )
            raise ShapeError(
                f"mlp_kernel's {name} has shape {tuple(tensor.shape)}, needs ({wanted}): value "
                "gives batch, heads, keys"
                " and d, query_bias queries and hidden width, key e, mid or else query_bias the "
                "last hidden width"
            )
    if f > e:
        raise ShapeError(
            f"mlp_kernel's query2 has {f} columns, more than key's {e}, whose last columns it "
            "multiplies"
        )
    before = w
    for weight, shift in mid:
        if weight.dim() != 2 or weight.shape[1] != before or shift.shape != weight.shape[:1]:
            got = f"{tuple(weight.shape)} and {tuple(shift.shape)}"
            raise ShapeError(
                f"a layer of mlp_kernel's mid has weight and bias {got}, needs (n, {before}) and "
                "(n,)"
            )
        before = weight.shape[0]


def _fits(shape: Sequence[int], shared: int, needed: Sequence[int | None]) -> bool:
    if len(shape) != len(needed):
        return False
    return all(
        want is None or got == want or (i < shared and got == 1)
        for i, (got, want) in enumerate(zip(shape, needed))
    )
