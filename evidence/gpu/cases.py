"""The Triton kernels that are checked and timed; :func:`register` adds one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class KernelCase:
    """One op with a Triton kernel.

    Attributes:
        op: the operation's name in the tables.
        bound: the resource that bounds the kernel, from its arithmetic (docs/gpu.md).
        sizes: the timed cases by name; the first of them is tuned.
        small: sizes for the check of the answer, where the definition fits in memory, and for the
            smoke run.
        make: returns inputs for the sizes, in float32 on the CPU, from torch's current seed. Inputs
            that need a gradient require it.
        run: computes the operation by a backend: ``run(inputs, "triton")``.
        exact: computes the definition; it is called with inputs in float64.
        flops: returns the floating-point operations of the forward and of the backward. Values that
            a kernel computes again count once.
        tolerance: allowed relative error in norm, in half precision.
    """

    op: str
    bound: str
    sizes: dict[str, dict[str, int]]
    small: dict[str, int]
    make: Callable[..., Inputs]
    run: Callable[[Inputs, str], Tensor]
    exact: Callable[[Inputs], Tensor]
    flops: Callable[..., tuple[float, float]]
    tolerance: float = 2e-2


KERNELS: dict[str, KernelCase] = {}


def register(make_case: Callable[[], KernelCase]) -> Callable[[], KernelCase]:
    """Add the case that a function returns, under the function's name."""
    KERNELS[make_case.__name__] = make_case()
    return make_case


def leaf(*shape: int, scale: float = 1.0) -> Tensor:
    """Return a random input that requires a gradient."""
    return (scale * torch.randn(*shape)).requires_grad_()


def move(x: Inputs, device: str, dtype: torch.dtype) -> Inputs:
    """Move inputs to the device, floating-point ones in ``dtype``; the same ones need gradients."""
    moved = {}
    for name, tensor in x.items():
        to = dtype if tensor.is_floating_point() else tensor.dtype
        moved[name] = tensor.detach().to(device, to).requires_grad_(tensor.requires_grad)
    return moved


# --- ITNet ----------------------------------------------------------------------------------------

# ITNet-S: 6 heads of 64, 128 hidden units.
WIDTHS = {"h": 6, "d": 64, "w": 128}
LENGTHS = {
    "N 1024": {"b": 8, "n": 1024},
    "N 512": {"b": 16, "n": 512},
    "N 196": {"b": 64, "n": 196},
}


def _itnet_sizes(**more: int) -> dict[str, dict[str, int]]:
    return {name: WIDTHS | size | more for name, size in LENGTHS.items()}


def _itnet_flops(
    b: int, h: int, n: int, d: int, w: int, m: int = 0, causal: int = 0
) -> tuple[float, float]:
    """Return the operations of forward and backward.

    The forward has 2·w·(d_h + columns) multiply-adds per pair and head, and one product with W2 per
    query. The backward has three products for each of the pairs' products.
    """
    pairs = b * h * (n * (n + 1) / 2 if causal else n * n)
    product, moments, readout = pairs * w * (d + 2 * m), pairs * w * d, b * h * n * w * d * d
    # The backward: dM from W2, and dW2; S again, then dQ and dK; M again for dW2, U = dM Vᵀ and dV.
    return 2 * (product + moments + readout), 2 * (3 * product + 3 * moments + 2 * readout)


def _itnet_inputs(b: int, h: int, n: int, d: int, w: int, m: int = 0, causal: int = 0) -> Inputs:
    """Return the tensors of one layer of ITNet, with pre-activations of unit size.

    ``m`` is the number of frequencies of the appended columns.
    """
    e = d + 2 * m
    x: Inputs = {
        "query": leaf(b, h, n, e), "key": leaf(b, h, n, e), "value": leaf(b, h, n, d, scale=1 / n),
        "readout": leaf(h, d, d, w, scale=(w * d) ** -0.5), "query_bias": leaf(b, h, n, w), "key_bias": leaf(b, h, n, w),
        "scale": leaf(1, w, e, scale=e**-0.5),
    }  # fmt: skip
    if m:
        x |= {"query2": leaf(b, h, n, 2 * m), "scale2": leaf(1, w, 2 * m, scale=e**-0.5)}
        points = torch.rand(n, 2)
        x |= {"distance_scale": leaf(1, w), "query_positions": points, "key_positions": points}
    if causal:
        x |= {"query_time": torch.arange(n).float(), "key_time": torch.arange(n).float()}
    return x


def _with_table(b: int, h: int, n: int, d: int, w: int) -> Inputs:
    """Return the tensors of a layer on a line, where the displacement term is a table."""
    index = torch.arange(n)
    table = {"table": leaf(1, w, 2 * n - 1), "query_index": index + n - 1, "key_index": index}
    return _itnet_inputs(b, h, n, d, w) | table


def _itnet(make: Callable[..., Inputs], bound: str, **more: int) -> KernelCase:
    from fredholm.families.itnet.hidden_first import mlp_kernel, mlp_kernel_naive

    small = {"b": 1, "h": 2, "n": 12, "d": 16, "w": 16} | more
    if "m" in more:
        small["m"] = 4
    return KernelCase(
        op="exact ITNet" + (", causal" if more.get("causal") else ""),
        bound=bound,
        sizes=_itnet_sizes(**more),
        small=small,
        make=make,
        run=lambda x, backend: mlp_kernel(**x, activation="gelu_tanh", backend=backend),  # type: ignore[arg-type]
        exact=lambda x: mlp_kernel_naive(**x, activation="gelu_tanh"),  # type: ignore[arg-type]
        flops=_itnet_flops,
    )


@register
def itnet_plain() -> KernelCase:
    return _itnet(
        _itnet_inputs,
        "matrix units and GELUs alike: 128 multiply-adds and one tanh a hidden unit and pair",
    )


@register
def itnet_table() -> KernelCase:
    return _itnet(
        _with_table,
        "loads of the displacement table: one number a hidden unit and pair, from cache",
    )


@register
def itnet_columns() -> KernelCase:
    return _itnet(
        _itnet_inputs, "matrix units: 256 multiply-adds and one tanh a hidden unit and pair", m=64
    )


@register
def itnet_causal() -> KernelCase:
    return _itnet(_itnet_inputs, "as without order, over half the pairs", causal=1)
