"""The MLP kernel integrated hidden units first, tile by tile, in memory linear in N."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ....errors import OptionError
from ....ops.activations import find_activation
from ....ops.backend import choose_backend
from .arguments import check, complete, documented
from .limits import refusal
from .registration import mlp_kernel_op
from .terms import PAIR_TENSORS

DEFAULT_BYTES = 3_200_000  # a tile of hidden units that a CPU core works through near its cache
DEFAULT_CUDA_BYTES = 256_000_000


@documented
def mlp_kernel(
    query: Float[Tensor, "#b #h q e"] | None,
    key: Float[Tensor, "#b #h k e"] | None,
    value: Float[Tensor, "b h k d"],
    readout: Float[Tensor, "h o d v"],
    *,
    query_bias: Float[Tensor, "#b #h q w"],
    mid: Sequence[tuple[Tensor, Tensor]] = (),
    activation: str = "gelu",
    memory: int | None = None,
    backend: str = "auto",
    **terms: Tensor | None,
) -> Float[Tensor, "b h q o"]:
    r"""The integral of an MLP kernel with a linear last layer, exact, without ever forming the
    kernel.

    For every batch entry, head, query i and hidden unit k,

    .. math::
        s_k(i,j) &= q^b_{ik} + k^b_{jk} + \textstyle\sum_c \alpha_{kc}\, q_{ic}\, k_{jc}
                    + \sum_c \alpha'_{kc}\, q'_{ic}\, k_{j,e-f+c} + r_{k,\,I_i - J_j}
                    + \delta_k |x_i - y_j| \\
        h(i,j)   &= \sigma(s(i,j)), \text{ then } h \leftarrow \sigma(W h + b)
                    \text{ for each layer of mid} \\
        out_o(i) &= \textstyle\sum_{kc} R_{ock} \sum_j \rho_{ij}\, [t_j \le t_i]\, h_k(i,j)\, v_{jc}

    The last layer is linear and commutes with the sum over keys, so the sum is taken over hidden
    units; the quadrature masses of the keys belong in ``value``, the output layer's bias is the
    caller's. Terms whose tensors are None are left out. Dimensions of size 1 are shared.

    Args:
        {tensors}
        mid: further hidden layers, pairs of W (width, width before) and b (width,).
        activation: σ, a name in ``ACTIVATIONS``.
        memory: bytes of one tile of hidden units; by default what fits a CPU's cache, or 256 MB on
            an accelerator. The Triton kernels hold the hidden units in registers, and this many
            bytes of their moments, by default 1 GB.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``, see :mod:`fredholm.ops.backend`. The
            Triton kernels take float32, bfloat16 and float16, every term but ``mid``, and every
            gradient but those of density and positions.

    Returns:
        (B, H, Nq, o) in ``value``'s dtype. PyTorch's operations compute half precisions and
        autocast in float32; the Triton kernels multiply in the half precision and add in float32.

    Cost:
        Time O(B·H·Nq·Nk·w·(e + d)), memory O(N) (B·H·N·(e + d + w) and a few tiles), forward and
        backward, which computes the tiles again. Gradients reach every float tensor except the
        times; the distance has gradient 0 at 0. Other derivatives than the first hold the
        hidden units of every pair, O(B·H·Nq·Nk·w) memory. A ``value`` of zero hides a key only
        while the key's other numbers are finite.

    Raises:
        ShapeError: where shapes do not fit or one tensor of a term is missing.
        OptionError: for an unknown activation or backend, or a memory below one byte.
        BackendError: where ``backend="triton"`` cannot run.

    Reference: ITNet, Algorithms 1 and 2, in the order of summation that needs 2·w·d multiply-adds a
    pair.

    Example:
        >>> q, k, v = torch.ones(1, 1, 2, 3), torch.ones(1, 1, 4, 3), torch.ones(1, 1, 4, 1)
        >>> bias, ones = torch.zeros(1, 1, 2, 5), torch.ones(1, 5, 3)
        >>> readout = torch.ones(1, 1, 1, 5)
        >>> mlp_kernel(q, k, v, readout, query_bias=bias, scale=ones, activation="relu").tolist()
        [[[[60.0], [60.0]]]]
    """
    find_activation(activation)
    if memory is not None and memory < 1:
        raise OptionError(f"memory is the bytes of one tile, at least 1, got {memory}")
    core = {"query": query, "key": key, "value": value, "readout": readout}
    tensors = complete(core | {"query_bias": query_bias} | terms)
    check(tensors, mid)
    device = value.device
    chosen = choose_backend(backend, "mlp_kernel", device, lambda: refusal(tensors, mid))
    if chosen == "triton":
        from ..triton.op import mlp_kernel_triton

        return mlp_kernel_triton(tensors, activation, memory)
    if memory is None:
        memory = DEFAULT_BYTES if value.device.type == "cpu" else DEFAULT_CUDA_BYTES
    dtype = _compute_dtype([*tensors.values(), *(t for layer in mid for t in layer)])
    cast = [_cast(name, t, dtype) for name, t in tensors.items()]
    layers = [t.to(dtype) for layer in mid for t in layer]
    return mlp_kernel_op(*cast, layers, activation, memory).to(value.dtype)


def _compute_dtype(tensors: Sequence[Tensor | None]) -> torch.dtype:
    """float64 where any tensor is, else float32."""
    double = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if double else torch.float32


def _cast(name: str, x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """``x`` in ``dtype`` where it is a number to compute with: times keep the dtype that orders
    them.
    """
    if x is None or not x.is_floating_point() or PAIR_TENSORS[name].kind == "time":
        return x
    return x.to(dtype)
