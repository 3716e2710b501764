"""The convolution whose product of spectra is a Triton kernel: custom ops and launches; the
transforms are torch's.

The kernel's spectrum, w hidden spectra combined to H·d_out·d_in, exists in registers only. Float32,
in TF32 where torch's ``float32_matmul_precision`` lets it. No atomics: shares of a sum have places
of their own and are added by torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....ops.launch import launch
from ....ops.tuning import Tiles, case_name, choose_tiles, power_of_two
from ..grid_convolution.registration import register
from .backward import hidden_gradient, readout_gradient
from .forward import multiply

TABLE = Path(__file__).with_name("tiles.json")
PARTS = 16  # runs of frequencies whose sums are made apart
DEFAULT = {"frequencies": 64, "outputs": 16, "batch": 4, "warps": 4, "stages": 2}


def _tiles(direction: str, u: Tensor, readout: Tensor) -> tuple[Tiles, dict[str, Any]]:
    _, d_out, d_in, width = readout.shape
    case = case_name(
        direction,
        u.device,
        o=power_of_two(d_out, 1),
        i=power_of_two(d_in, 1),
        w=power_of_two(width),
    )
    tiles = choose_tiles(TABLE, case, DEFAULT)
    shape = {
        "WIDTH": width, "BLOCK_W": power_of_two(width), "BLOCK_F": tiles["frequencies"],
        "BLOCK_O": tiles["outputs"],
        "PRECISION": "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        "num_warps": tiles["warps"], "num_stages": tiles["stages"],
    }  # fmt: skip
    return tiles, shape


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x.contiguous())


def _product(u: Tensor, h: Tensor, readout: Tensor, adjoint: bool) -> Tensor:
    """κ̂ û (H·d_out, B, F), or κ̂ᴴ û (H·d_in, B, F) for û (H·d_out, B, F)."""
    (heads, d_out, d_in, width), (_, batch, count) = readout.shape, u.shape
    tiles, shape = _tiles("forward", u, readout)
    stride_i, stride_o = width, d_in * width
    if adjoint:
        d_out, d_in, stride_i, stride_o = d_in, d_out, stride_o, stride_i
    out = u.new_empty(heads * d_out, batch, count)
    block_b = min(tiles["batch"], power_of_two(batch, 1))
    grid = (
        -(-count // shape["BLOCK_F"]),
        heads * -(-d_out // shape["BLOCK_O"]),
        -(-batch // block_b),
    )
    launch(
        multiply, grid, _real(u), _real(h), readout.contiguous(), torch.view_as_real(out), batch,
        count, d_in, d_out, readout[0].numel(), stride_i, stride_o, BLOCK_B=block_b,
        ADJOINT=adjoint, **shape,
    )  # fmt: skip
    return out


def convolve(u: Tensor, h: Tensor, readout: Tensor) -> Tensor:
    """:func:`fredholm.families.ckconv.grid_convolution.spectrum.convolve`; overwrites nothing."""
    return _product(u, h, readout, False)


def adjoint(
    grad: Tensor,
    u: Tensor,
    h: Tensor,
    readout: Tensor,
    share: Tensor,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """:func:`fredholm.families.ckconv.grid_convolution.spectrum.adjoint`; overwrites nothing."""
    (heads, d_out, d_in, width), (_, batch, count) = readout.shape, u.shape
    _, shape = _tiles("backward", u, readout)
    readout, sizes = readout.contiguous(), (batch, count, d_in, d_out)
    outputs, frequencies = heads * -(-d_out // shape["BLOCK_O"]), -(-count // shape["BLOCK_F"])
    grad_h = grad_r = None
    if needs[1]:
        shares = h.new_empty(outputs, width, count)
        tensors = (_real(grad), _real(u), readout, torch.view_as_real(shares))
        launch(hidden_gradient, (frequencies, outputs), *tensors, *sizes, **shape)
        grad_h = shares.sum(0)[:, None]
    if needs[2]:
        blocks = -(-frequencies // PARTS)
        parts = -(-frequencies // blocks)
        totals = readout.new_empty(parts, *readout.shape)
        tensors = (_real(grad), _real(u), _real(h), share, totals)
        launch(readout_gradient, (parts, outputs, d_in), *tensors, *sizes, blocks, **shape)
        grad_r = totals.sum(0)
    return _product(grad, h, readout, True) if needs[0] else None, grad_h, grad_r


grid_convolution_triton = register("grid_convolution_triton", convolve, adjoint)
