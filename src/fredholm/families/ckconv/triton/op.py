"""The convolution with Triton kernels for the product of spectra: custom ops and launches. The
transforms are torch's.

The kernel's spectrum, w hidden spectra combined to H·d_out·d_in, exists in registers only. In
float32, with products in TF32 where torch's ``float32_matmul_precision`` allows it. No atomics: the
shares of a sum have places of their own, and torch adds them up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....ops.launch import launch
from ....ops.tuning import Tiles, case_name, choose_tiles, power_of_two
from ..grid_convolution.registration import register
from ..grid_convolution.spectrum import Gradients
from .backward import hidden_gradient, readout_gradient
from .forward import multiply

TABLE = Path(__file__).with_name("tiles.json")
PARTS = 16
"""Runs of frequencies whose sums over frequencies are made apart."""
DEFAULT = {"frequencies": 64, "outputs": 16, "batch": 4, "warps": 4, "stages": 2}


def _tiles(direction: str, u: Tensor, readout: Tensor) -> tuple[Tiles, dict[str, Any]]:
    """Return the tiles of a call, and the constants that all kernels take."""
    _, d_out, d_in, width = readout.shape
    case = case_name(
        direction,
        u.device,
        o=power_of_two(d_out, 1),
        i=power_of_two(d_in, 1),
        w=power_of_two(width),
    )
    tiles = choose_tiles(TABLE, case, DEFAULT)
    exact = torch.get_float32_matmul_precision() == "highest"
    shape = {
        "WIDTH": width,
        "BLOCK_W": power_of_two(width),
        "BLOCK_F": tiles["frequencies"],
        "BLOCK_O": tiles["outputs"],
        "PRECISION": "tf32x3" if exact else "tf32",
        "num_warps": tiles["warps"],
        "num_stages": tiles["stages"],
    }
    return tiles, shape


def _real(x: Tensor) -> Tensor:
    """Return a complex tensor as the kernels read it, real and imaginary parts in turn."""
    return torch.view_as_real(x.contiguous())


def _product(u: Tensor, h: Tensor, readout: Tensor, adjoint: bool) -> Tensor:
    """Return κ̂ û (H·d_out, B, F), or with ``adjoint`` κ̂ᴴ û (H·d_in, B, F)."""
    heads, d_out, d_in, width = readout.shape
    _, batch, count = u.shape
    tiles, shape = _tiles("forward", u, readout)
    stride_i, stride_o = width, d_in * width
    # The adjoint exchanges inputs and outputs.
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
        multiply,
        grid,
        *(_real(u), _real(h), readout.contiguous(), torch.view_as_real(out)),
        *(batch, count, d_in, d_out),
        *(readout[0].numel(), stride_i, stride_o),
        BLOCK_B=block_b,
        ADJOINT=adjoint,
        **shape,
    )
    return out


def convolve(u: Tensor, h: Tensor, readout: Tensor) -> Tensor:
    """Return :func:`fredholm.families.ckconv.grid_convolution.spectrum.convolve`, in new memory."""
    return _product(u, h, readout, False)


def adjoint(
    grad: Tensor,
    u: Tensor,
    h: Tensor,
    readout: Tensor,
    share: Tensor,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    """Return :func:`fredholm.families.ckconv.grid_convolution.spectrum.adjoint`, in new memory."""
    needs_u, needs_h, needs_readout = needs
    heads, d_out, d_in, width = readout.shape
    _, batch, count = u.shape
    _, shape = _tiles("backward", u, readout)
    readout = readout.contiguous()
    sizes = (batch, count, d_in, d_out)
    outputs = heads * -(-d_out // shape["BLOCK_O"])
    frequencies = -(-count // shape["BLOCK_F"])

    grad_u = grad_h = grad_readout = None
    if needs_h:
        # One share per head and block of outputs.
        shares = h.new_empty(outputs, width, count)
        tensors = (_real(grad), _real(u), readout, torch.view_as_real(shares))
        launch(hidden_gradient, (frequencies, outputs), *tensors, *sizes, **shape)
        grad_h = shares.sum(0)[:, None]
    if needs_readout:
        # One share per run of frequencies.
        blocks = -(-frequencies // PARTS)
        parts = -(-frequencies // blocks)
        totals = readout.new_empty(parts, *readout.shape)
        tensors = (_real(grad), _real(u), _real(h), share, totals)
        launch(readout_gradient, (parts, outputs, d_in), *tensors, *sizes, blocks, **shape)
        grad_readout = totals.sum(0)
    if needs_u:
        grad_u = _product(grad, h, readout, True)
    return Gradients(grad_u, grad_h, grad_readout)


grid_convolution_triton = register("grid_convolution_triton", convolve, adjoint)
