"""The scan as a custom op whose backward is the same scan, run from the end."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Inexact
from torch import Tensor

from ..backend import full_precision
from ..custom_op import custom_op
from .chunked import scan_forward
from .naive import scan_naive


def scan(
    decay: Inexact[Tensor, "#b #n *s"], drive: Inexact[Tensor, "b n *s"]
) -> Inexact[Tensor, "b n *s"]:
    r"""All states of :math:`h_t = a_t h_{t-1} + b_t` from :math:`h_{-1} = 0`, element by element of
    the state.

    Args:
        decay: a, real or complex; one for all batch elements or times where that dimension is 1.
        drive: b, of the same dtype.

    Cost: O(N) work and memory, in N steps or about 2√N larger ones; any |a|, since nothing is
    divided. Differentiable any number of times: the gradient of a recurrence is the recurrence from
    the end.

    Example:
        >>> scan(torch.tensor([[[0.5]]]), torch.ones(1, 3, 1)).squeeze().tolist()
        [1.0, 1.5, 1.75]
    """
    with full_precision(drive):
        return scan_op(decay.expand_as(drive), drive)


def _forward(decay: Tensor, drive: Tensor) -> Tensor:
    return scan_forward(decay, drive.contiguous())


def _fake(decay: Tensor, drive: Tensor) -> Tensor:
    return torch.empty_like(drive, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _backward(ctx: Any, grad: Tensor) -> tuple:
    """g_t = y_t + conj(a_{t+1}) g_{t+1} is the gradient of b_t; that of a_t is g_t conj(h_{t-1}).

    It calls the op itself and differentiable torch operations, and so has derivatives of any order.
    """
    decay, states = ctx.saved_tensors
    zero = torch.zeros_like(decay[:, :1])
    later = torch.cat([decay[:, 1:], zero], 1).conj().flip(1)
    drive = scan_op(later, grad.flip(1)).flip(1)
    before = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)
    return drive * before.conj(), drive


scan_op = custom_op(
    "scan",
    "(Tensor decay, Tensor drive) -> Tensor",
    _forward,
    fake=_fake,
    plain=scan_naive,
    setup_context=_setup_context,
    backward=_backward,
)
