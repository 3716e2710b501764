"""The products of spectra, a block of frequencies at a time: no more of the kernel's spectrum
exists than fits a cache.

Spectra are (channels, B, F) with F the frequencies of a real transform, flattened. A block of them
is seen as pairs of real numbers: R is real, so that :math:`\\hat\\kappa = R \\hat h` is one real
matrix product, and what follows one small real product per frequency. Heads of one channel need no
blocks: their :math:`\\hat\\kappa` is no larger than the signal.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CACHE, DEVICE = 1 << 21, 1 << 28  # bytes of a block, on a CPU and elsewhere
NARROW = 16
"""Fewer columns than this are multiplied as rows: BLAS runs along the columns of a small product.
"""


def convolve(u: Tensor, h: Tensor, readout: Tensor) -> Tensor:
    """κ̂ û, (H·d_out, B, F), from û (H·d_in, B, F), ĥ (w, 1, F) and R (H, d_out, d_in, w). Where
    widths agree it overwrites û.
    """
    heads, d_out, d_in, _ = readout.shape
    if d_out == d_in == 1:
        return u.mul_(_channelwise(h, readout)[:, None])
    out = u if d_out == d_in else u.new_empty(heads * d_out, *u.shape[1:])
    for block in _blocks(readout, u):
        out[..., block] = _product(_kernel(h, readout, block), u, heads, block)
    return out


def kernel_spectrum(h: Tensor, readout: Tensor) -> Tensor:
    """κ̂ at all frequencies, for :func:`apply`: (H, F) where heads have one channel, else real parts
    above imaginary parts, (F·H, 2·d_out, d_in).
    """
    if readout.shape[1] == readout.shape[2] == 1:
        return _channelwise(h, readout)
    return _kernel(h, readout, slice(None)).contiguous()


def apply(u: Tensor, kernel: Tensor, heads: int) -> Tensor:
    """κ̂ û as :func:`convolve` gives it, with the spectrum of :func:`kernel_spectrum`."""
    if kernel.dim() == 2:
        return u.mul_(kernel[:, None])
    return _product(kernel, u, heads, slice(None))


def _product(kernel: Tensor, u: Tensor, heads: int, block: slice) -> Tensor:
    """κ̂ û of a block of frequencies, (H·d_out, B, f)."""
    d_out = kernel.shape[1] // 2
    crossed = torch.view_as_complex(_times(kernel, _pairs(u, heads, block)).unflatten(-1, (-1, 2)))
    product = torch.add(crossed[:, :d_out], crossed[:, d_out:], alpha=1j)
    return product.view(-1, heads * d_out, u.shape[1]).permute(1, 2, 0)


def adjoint(
    grad: Tensor,
    u: Tensor,
    h: Tensor,
    readout: Tensor,
    share: Tensor,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    r"""Gradients in û (H·d_in, B, F), ĥ (w, 1, F) and R, where needed, for a gradient ĝ (H·d_out,
    B, F). Overwrites û and ĥ.

    .. math:: \hat g_u = \hat\kappa^H \hat g, \quad P = \sum_b \hat g\,\hat u^H, \quad
        \hat g_{h,k} = \langle R_k, P \rangle, \quad
        g_{R_k} = \sum_f s_f\,\mathrm{Re}(\overline{\hat h_k} P)

    ``share`` (F,) is s, by Parseval: one over the transform's size, twice that where a frequency
    stands for its conjugate too.
    """
    heads, d_out, d_in, width = readout.shape
    if d_out == d_in == 1:
        return _adjoint_channelwise(grad, u, h, readout, share, needs)
    matrix = readout.reshape(-1, width)
    grad_r = torch.zeros_like(matrix) if needs[2] else None
    for block in _blocks(readout, u):
        g, signal = _pairs(grad, heads, block), _pairs(u, heads, block)
        turned = torch.cat([g, _turned(g)], 1)
        product = None
        if needs[1] or needs[2]:  # P, real part above imaginary part
            product = (
                (turned @ signal.mT)
                .view(-1, heads, 2, d_out * d_in)
                .transpose(1, 2)
                .reshape(-1, len(matrix))
            )
        if product is not None and grad_r is not None:
            grad_r.addmm_(
                product.mT, _columns(h, block) * share[block].repeat_interleave(2)[:, None]
            )
        if needs[0]:
            part = _times(_kernel(h, readout, block).mT, turned).unflatten(-1, (-1, 2))
            u[..., block] = (
                torch.view_as_complex(part).view(-1, heads * d_in, u.shape[1]).permute(1, 2, 0)
            )
        if product is not None and needs[1]:
            part = (product @ matrix).unflatten(0, (-1, 2))
            h[:, 0, block] = torch.complex(part[:, 0], part[:, 1]).mT
    gradients = u if needs[0] else None, h if needs[1] else None
    return *gradients, None if grad_r is None else grad_r.view_as(readout)


def _adjoint_channelwise(
    grad: Tensor,
    u: Tensor,
    h: Tensor,
    readout: Tensor,
    share: Tensor,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """:func:`adjoint` where every head has one channel: products of numbers, of all frequencies at
    once.
    """
    matrix, grad_h, grad_r = readout.flatten(1), None, None
    kernel = _channelwise(h, readout) if needs[0] else None
    if needs[1] or needs[2]:
        product = (grad * u.conj()).sum(1)
        if needs[2]:
            grad_r = (_flat(product * share) @ _flat(h).mT).view_as(readout)
        if needs[1]:
            grad_h = torch.view_as_complex((matrix.mT @ _flat(product)).unflatten(-1, (-1, 2)))[
                :, None
            ]
    return None if kernel is None else grad * kernel.conj()[:, None], grad_h, grad_r


def _channelwise(h: Tensor, readout: Tensor) -> Tensor:
    """κ̂ where every head has one channel, (H, F)."""
    return torch.view_as_complex((readout.flatten(1) @ _flat(h)).unflatten(-1, (-1, 2)))


def _flat(x: Tensor) -> Tensor:
    """Spectra as rows of real numbers, (rows, 2·F)."""
    return torch.view_as_real(x.flatten(1)).flatten(1)


def _blocks(readout: Tensor, u: Tensor) -> Iterator[slice]:
    heads, d_out, d_in, _ = readout.shape
    size = max(1, budget(u) // (2 * heads * d_out * d_in * readout.element_size()))
    for start in range(0, u.shape[-1], size):
        yield slice(start, min(start + size, u.shape[-1]))


def budget(x: Tensor) -> int:
    """Bytes of a block on the device of x."""
    return CACHE if x.device.type == "cpu" else DEVICE


def _columns(h: Tensor, block: slice) -> Tensor:
    """ĥ of a block as (2f, w): a row of real parts, a row of imaginary parts, and so on."""
    return torch.view_as_real(h[:, 0, block]).permute(1, 2, 0).reshape(-1, h.shape[0])


def _kernel(h: Tensor, readout: Tensor, block: slice) -> Tensor:
    """κ̂ of a block, real part above imaginary part, (f·H, 2·d_out, d_in)."""
    heads, d_out, d_in, width = readout.shape
    kernel = _columns(h, block) @ readout.reshape(-1, width).mT
    return kernel.view(-1, 2, heads, d_out * d_in).transpose(1, 2).reshape(-1, 2 * d_out, d_in)


def _pairs(x: Tensor, heads: int, block: slice) -> Tensor:
    """A spectrum of a block as real numbers, real and imaginary parts in turn, (f·H, d, 2·B)."""
    rows = x[..., block].permute(2, 0, 1).contiguous()
    return torch.view_as_real(rows).view(len(rows) * heads, x.shape[0] // heads, -1)


def _turned(pairs: Tensor) -> Tensor:
    """-i times pairs of real and imaginary parts."""
    return torch.view_as_real(torch.view_as_complex(pairs.unflatten(-1, (-1, 2))) * -1j).flatten(-2)


def _times(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, contiguous."""
    return a @ b if b.shape[-1] >= NARROW else (b.mT @ a.mT).mT.contiguous()
