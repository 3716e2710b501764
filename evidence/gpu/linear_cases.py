"""The cases of LUNA, linear attention, pure InfSA and CKConv among the Triton kernels."""

from __future__ import annotations

from math import log2

import torch
from torch import Tensor

from fredholm.families.ckconv.grid_convolution import grid_convolution, grid_convolution_naive
from fredholm.families.infsa.graph import EdgeOptions, edge_product
from fredholm.families.infsa.naive import edge_product_naive
from fredholm.ops.feature_map import Bank, scalar_bank_naive
from fredholm.ops.linear_attention import (
    Banks,
    banked_attention,
    linear_attention,
    linear_attention_naive,
)
from fredholm.quadrature import Quadrature

from .cases import Inputs, KernelCase, leaf, register

FLOOR = 1e-6


def _quadrature(x: Inputs) -> Quadrature:
    """Return a quadrature of equal masses, in the order of the inputs where they have one."""
    time = x.get("time")
    return Quadrature(
        mass=x["mass"], query_time=time, key_time=time, triangular=time is not None, equal=True
    )


def _points(b: int, h: int, n: int, d: int, causal: int) -> Inputs:
    order = {"time": torch.arange(n).float()[None]} if causal else {}
    return {"value": leaf(b, h, n, d), "mass": torch.full((1, n), 1 / n)} | order


# --- LUNA and linear attention --------------------------------------------------------------------

LUNA = {"b": 8, "h": 12, "d": 64, "m": 8, "channels": 8, "hidden": 64}
LENGTHS = {"N 4096": {"n": 4096}, "N 16384": {"n": 16384, "b": 2}, "N 1024": {"n": 1024, "b": 32}}


def _luna_inputs(
    b: int, h: int, n: int, d: int, m: int, channels: int, hidden: int, causal: int = 0
) -> Inputs:
    """Return scalars of unit variance, and networks with positive outputs."""
    bank = {
        "weight": leaf(1, channels, hidden),
        "bias": leaf(1, channels, hidden),
        "readout": leaf(1, channels, 1, hidden, scale=hidden**-0.5),
        "shift": torch.ones(1, channels, 1, requires_grad=True),
    }
    return {"query": leaf(b, h, m, n), "key": leaf(b, h, m, n)} | bank | _points(b, h, n, d, causal)


def _bank(x: Inputs) -> Bank:
    return Bank(*(x[name] for name in Bank._fields))


def _luna(x: Inputs, backend: str) -> Tensor:
    bank = _bank(x)
    banks = Banks(bank, bank)
    return banked_attention(
        x["query"], x["key"], x["value"], _quadrature(x), banks, floor=FLOOR, backend=backend
    )


def _features(u: Tensor, bank: Bank) -> Tensor:
    b, h, m, n = u.shape
    return (
        scalar_bank_naive(u.reshape(b * h, 1, m * n), bank).reshape(b, h, bank.channels * m, n).mT
    )


def _luna_exact(x: Inputs) -> Tensor:
    query, key = (_features(x[name], _bank(x)) for name in ("query", "key"))
    return linear_attention_naive(query, key, x["value"], _quadrature(x).weights(), FLOOR)


def _luna_flops(
    b: int, h: int, n: int, d: int, m: int, channels: int, hidden: int, causal: int = 0
) -> tuple[float, float]:
    """Return the operations of forward and backward.

    The forward has two multiply-adds per hidden unit and scalar, and d + 1 per feature and point,
    on either side. The backward has two for each of them.
    """
    scalars = 2 * b * h * n * m * channels * hidden * 2
    sums = 2 * b * h * n * m * channels * (d + 1)
    return 2 * (scalars + sums), 2 * (2 * scalars + 2 * sums)


def _luna_case(**more: int) -> KernelCase:
    return KernelCase(
        op="LUNA from a bank's scalars" + (", causal" if more else ""),
        bound="multiply-adds of the hidden units outside the matrix units: 8,192 a point, head and "
        "side, beside 4,160 of the sums",
        sizes={name: LUNA | size | more for name, size in LENGTHS.items()},
        small={"b": 1, "h": 2, "n": 20, "d": 16, "m": 2, "channels": 2, "hidden": 2} | more,
        make=_luna_inputs,
        run=_luna,
        exact=_luna_exact,
        flops=_luna_flops,
    )


@register
def luna() -> KernelCase:
    return _luna_case()


@register
def luna_causal() -> KernelCase:
    return _luna_case(causal=1)


def _linear_inputs(b: int, h: int, n: int, d: int, r: int, causal: int = 1) -> Inputs:
    """Return positive features beside the values and masses."""
    features = {name: torch.rand(b, h, n, r).requires_grad_() for name in ("query", "key")}
    return features | _points(b, h, n, d, causal)


@register
def linear_attention_causal() -> KernelCase:
    def run(x: Inputs, backend: str) -> Tensor:
        return linear_attention(
            x["query"], x["key"], x["value"], _quadrature(x), floor=FLOOR, backend=backend
        )

    def flops(b: int, h: int, n: int, d: int, r: int) -> tuple[float, float]:
        sums = 2 * b * h * n * r * (d + 1)
        return 2 * sums, 4 * sums

    return KernelCase(
        op="linear attention with given features, causal",
        bound="memory: 2 (r + d) numbers a point and head",
        sizes={"N 4096": {"b": 8, "h": 12, "n": 4096, "d": 64, "r": 64}},
        small={"b": 1, "h": 2, "n": 20, "d": 16, "r": 16},
        make=_linear_inputs,
        run=run,
        exact=lambda x: linear_attention_naive(
            x["query"], x["key"], x["value"], _quadrature(x).weights(), FLOOR
        ),
        flops=flops,
    )


# --- pure InfSA -----------------------------------------------------------------------------------


def _infsa_inputs(b: int, h: int, n: int, d: int, causal: int = 0) -> Inputs:
    return {"query": leaf(b, h, n, d), "key": leaf(b, h, n, d)} | _points(b, h, n, d, causal)


def _normalised(out: Tensor, row: Tensor, causal: bool) -> Tensor:
    total = row.cumsum(-1) if causal else row.sum(-1, keepdim=True)
    return out * total.rsqrt()[..., None]


def _infsa(x: Inputs, backend: str) -> Tensor:
    causal, dtype = "time" in x, x["query"].dtype
    half = None if dtype == torch.float32 else dtype
    tensors = x["query"], x["key"], x["value"], x["mass"][:, :1]
    options = EdgeOptions(causal=causal, half=half)
    return _normalised(*edge_product(*tensors, options=options, backend=backend), causal)


def _infsa_exact(x: Inputs) -> Tensor:
    causal = "time" in x
    return _normalised(
        *edge_product_naive(x["query"], x["key"], x["value"], x["mass"][:, :1], causal=causal),
        causal,
    )


def _infsa_flops(b: int, h: int, n: int, d: int, causal: int = 0) -> tuple[float, float]:
    """Return the operations of two products in the forward and five in the backward."""
    product = 2 * b * h * (n * (n + 1) / 2 if causal else n * n) * d
    return 2 * product, 5 * product


def _infsa_case(**more: int) -> KernelCase:
    sizes = {
        "N 4096": {"b": 1, "n": 4096},
        "N 16384": {"b": 1, "n": 16384},
        "N 1024": {"b": 16, "n": 1024},
    }
    return KernelCase(
        op="pure InfSA with its norm" + (", causal" if more else ""),
        bound="matrix units: 2 d multiply-adds a pair, beside a ReLU and two multiply-adds of the "
        "norm",
        sizes={name: {"h": 16, "d": 64} | size | more for name, size in sizes.items()},
        small={"b": 1, "h": 2, "n": 20, "d": 16} | more,
        make=_infsa_inputs,
        run=_infsa,
        exact=_infsa_exact,
        flops=_infsa_flops,
    )


@register
def infsa() -> KernelCase:
    return _infsa_case()


@register
def infsa_causal() -> KernelCase:
    return _infsa_case(causal=1)


# --- CKConv ---------------------------------------------------------------------------------------


@register
def ckconv() -> KernelCase:
    """Return the causal convolution, computed in float32: spectra have no half precision."""

    def make(b: int, h: int, n: int, c: int, w: int) -> Inputs:
        scale = (c * w * n) ** -0.5
        return {
            "signal": leaf(b, h, n, c),
            "hidden": leaf(n, w),
            "readout": leaf(h, c, c, w, scale=scale),
        }

    def run(x: Inputs, backend: str) -> Tensor:
        return grid_convolution(**x, grid=(x["signal"].shape[2],), causal=True, backend=backend)

    def flops(b: int, h: int, n: int, c: int, w: int) -> tuple[float, float]:
        # Transforms, the kernel's spectrum from real weights, and a complex product per frequency;
        # the backward has each of them twice.
        transforms = (w + 2 * b * h * c) * 5 * n * log2(2 * n)
        products = n * h * c * c * (4 * w + 8 * b)
        return transforms + products, 2 * transforms + 2 * products

    return KernelCase(
        op="CKConv, hidden units first",
        bound="memory of the spectra at few channels, multiply-adds outside the matrix units at "
        "many",
        sizes={
            "30 channels": {"b": 32, "h": 1, "n": 4096, "c": 30, "w": 33},
            "100 channels": {"b": 32, "h": 1, "n": 1024, "c": 100, "w": 33},
        },
        small={"b": 1, "h": 1, "n": 20, "c": 3, "w": 5},
        make=make,
        run=run,
        exact=lambda x: grid_convolution_naive(**x, grid=(x["signal"].shape[2],), causal=True),
        flops=flops,
    )
