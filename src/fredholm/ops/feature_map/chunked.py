"""A bank of scalar networks with any activation, in chunks: hidden units are never kept, the
backward computes them again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..tiles import find_activation, rectangles
from .naive import Bank

ELEMENTS = 500_000  # hidden units of a chunk that a CPU core works through near its cache
ACCELERATOR_ELEMENTS = 100_000_000


def _chunk(u: Tensor, bank: Bank) -> int:
    elements = ELEMENTS if u.device.type == "cpu" else ACCELERATOR_ELEMENTS
    return max(1, elements // bank.weight[0].numel())


def forward(u: Tensor, bank: Bank, activation: str, nonneg: bool) -> Tensor:
    """(R, S, T) scalars to (R, S, L, T)."""
    (rows, sets, columns), channels = u.shape, bank.channels
    out, apply = u.new_empty(rows, sets, channels, columns), find_activation(activation).apply_
    for s in range(sets):
        weight, bias, readout, shift = (x[s] for x in bank)
        for r, c in rectangles(rows, columns, _chunk(u, bank)):
            part = u[r, s, c]
            hidden = weight[..., None] * part.reshape(-1) + bias[..., None]
            apply(hidden)
            y = torch.baddbmm(shift[..., None], readout, hidden)
            y = y.relu_() if nonneg else y
            out[r, s, :, c] = y.view(channels, *part.shape).transpose(0, 1)
    return out


def backward(
    grad: Tensor, out: Tensor | None, u: Tensor, bank: Bank, activation: str
) -> list[Tensor]:
    """Gradients of u and of the bank; ``out`` where its ReLU cuts the gradient."""
    (rows, sets, columns), rule = u.shape, find_activation(activation)
    du, total = u.new_empty(u.shape), Bank(*(x.new_zeros(x.shape) for x in bank))
    for s in range(sets):
        weight, bias, readout, shift = (x[s] for x in bank)
        for r, c in rectangles(rows, columns, _chunk(u, bank)):
            part = u[r, s, c]
            x = part.reshape(-1)
            g = grad[r, s, :, c]
            g = g if out is None else g * (out[r, s, :, c] > 0)
            g = g.transpose(0, 1).reshape(*shift.shape, -1)  # (G, C, n)
            before = weight[..., None] * x + bias[..., None]
            hidden = before.clone()
            rule.apply_(hidden)
            total.readout[s].baddbmm_(g, hidden.mT)
            total.shift[s].add_(g.sum(-1))
            inner = readout.mT @ g
            rule.gradient_(inner, before)
            total.weight[s].add_(inner @ x)
            total.bias[s].add_(inner.sum(-1))
            du[r, s, c] = (weight.flatten() @ inner.flatten(0, 1)).view(part.shape)
    return [du, *total]
