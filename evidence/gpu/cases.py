"""The Triton kernels that are checked and timed. A kernel joins by one function
marked :func:`register`.
"""

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
        op: the op's name, for people.
        bound: what bounds the kernel, from its arithmetic (docs/gpu.md).
        sizes: of the timed cases, by a name that says them; the first is the one that is tuned.
        small: sizes of the answer's check, where the definition fits in memory, and of the smoke
            run.
        make: inputs for sizes, seeded, in float32 on the CPU; every float one that needs a gradient
            requires it.
        run: the op on inputs, by a backend: ``run(inputs, "triton")``.
        exact: the definition on the same inputs in float64.
        flops: floating-point operations of the forward and of the backward at sizes, counted once:
            nothing computed again.
        tolerance: of the answers in half precision, relative in norm.
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
    """A random input that gets a gradient."""
    return (scale * torch.randn(*shape)).requires_grad_()


def move(x: Inputs, device: str, dtype: torch.dtype) -> Inputs:
    """Inputs on the device, float ones in ``dtype``; the same ones require gradients."""
    moved = {
        n: t.detach().to(device, dtype if t.is_floating_point() else t.dtype) for n, t in x.items()
    }
    return {n: t.requires_grad_(x[n].requires_grad) for n, t in moved.items()}


# --- ITNet ----------------------------------------------------------------------------------------

WIDTHS = {"h": 6, "d": 64, "w": 128}  # ITNet-S: 6 heads of 64, 128 hidden units
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
    """2·w·(d_h + columns) multiply-adds a pair and head and W2 once a query; the backward has three
    products for each one.
    """
    pairs = b * h * (n * (n + 1) / 2 if causal else n * n)
    product, moments, readout = pairs * w * (d + 2 * m), pairs * w * d, b * h * n * w * d * d
    # backward: dM from W2 and d W2; S again, then dQ and dK; M again for d W2, U = dM Vᵀ and dV
    return 2 * (product + moments + readout), 2 * (3 * product + 3 * moments + 2 * readout)


def _itnet_inputs(b: int, h: int, n: int, d: int, w: int, m: int = 0, causal: int = 0) -> Inputs:
    """Tensors of one layer of ITNet with weights of unit-sized pre-activations; ``m``: frequencies
    of the appended columns.
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
    """The same on a line: the displacement term is a table."""
    index = torch.arange(n)
    table = {"table": leaf(1, w, 2 * n - 1), "query_index": index + n - 1, "key_index": index}
    return _itnet_inputs(b, h, n, d, w) | table


def _itnet(make: Callable[..., Inputs], bound: str, **more: int) -> KernelCase:
    from fredholm.families.itnet.hidden_first import mlp_kernel, mlp_kernel_naive

    return KernelCase(
        op="exact ITNet" + (", causal" if more.get("causal") else ""),
        bound=bound,
        sizes=_itnet_sizes(**more),
        small={"b": 1, "h": 2, "n": 12, "d": 16, "w": 16}
        | {k: 4 if k == "m" else v for k, v in more.items()},
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
