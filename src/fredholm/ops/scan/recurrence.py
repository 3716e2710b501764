"""The scan h_t = a_t h_{t-1} + b_t as a custom op, whose gradient is a scan from the end."""

from __future__ import annotations

from math import isqrt, prod
from typing import Any

import torch
from jaxtyping import Inexact
from torch import Tensor

from ..backend import full_precision
from ..custom_op import custom_op
from .naive import scan_naive

SMALL_STEP = 1 << 12
"""Numbers in a step below which its launch takes longer than its arithmetic, so that more
arithmetic in fewer steps is faster.
"""
SHORT_SEQUENCE = 64
"""Points up to which chunks save too few steps to pay for their second multiplication."""


def scan(
    decay: Inexact[Tensor, "#b #n *s"],
    drive: Inexact[Tensor, "b n *s"],
) -> Inexact[Tensor, "b n *s"]:
    r"""Return all states of :math:`h_t = a_t h_{t-1} + b_t` from :math:`h_{-1} = 0`, element by
    element of the state.

    Nothing is divided, so a may have any magnitude, zero included. The scan can be differentiated
    any number of times, because its gradient is a scan from the end.

    Args:
        decay: a, real or complex; a batch or a time of size 1 is shared by all.
        drive: b, of the same dtype.

    Returns:
        States (B, N, \*S).

    Cost: O(N) work and memory, in N steps or about 2√N larger ones.

    Example:
        >>> scan(torch.tensor([[[0.5]]]), torch.ones(1, 3, 1)).squeeze().tolist()
        [1.0, 1.5, 1.75]
    """
    with full_precision(drive):
        return scan_op(decay.expand_as(drive), drive)


# --- values ---------------------------------------------------------------------------------------


def scan_forward(decay: Tensor, drive: Tensor) -> Tensor:
    """Return all states, (B, N, *S), in steps or in chunks: a static choice by the sizes."""
    batch, points, *state = drive.shape
    numbers_in_step = batch * prod(state)

    bound_by_launches = numbers_in_step < SMALL_STEP or drive.is_cuda
    if points > SHORT_SEQUENCE and bound_by_launches:
        # √N points per chunk need the fewest steps: N / chunk + chunk.
        return scan_chunked(decay, drive, isqrt(points))
    return scan_steps(decay, drive)


def scan_steps(decay: Tensor, drive: Tensor) -> Tensor:
    """Return all states in N steps of one multiply-add each."""
    states = torch.empty_like(drive)
    states[:, 0] = drive[:, 0]
    for t in range(1, drive.shape[1]):
        before = states[:, t - 1]
        torch.addcmul(
            drive[:, t],
            decay[:, t],
            before,
            out=states[:, t],
        )
    return states


def scan_chunked(decay: Tensor, drive: Tensor, chunk: int) -> Tensor:
    r"""Return all states in N / ``chunk`` + ``chunk`` steps: chunks side by side, then in a row.

    Let :math:`s` be the first point of the chunk of :math:`t`, and :math:`\tilde h` the states of a
    chunk that starts from zero. Then

    .. math:: h_t = \tilde h_t + \Big(\prod_{r=s}^{t} a_r\Big)\, h_{s-1}.
    """
    points = drive.shape[1]
    chunks = -(-points // chunk)

    # Padded points keep the state: a decay of 1 and a drive of 0.
    padding = chunks * chunk - points
    if padding:
        decay = torch.cat([decay, torch.ones_like(decay[:, :padding])], 1)
        drive = torch.cat([drive, torch.zeros_like(drive[:, :padding])], 1)
    decay = decay.unflatten(1, (chunks, chunk))
    drive = drive.unflatten(1, (chunks, chunk))

    # Step t advances all chunks at once, each from zero; (B, chunks, *S) numbers per step.
    states = torch.empty_like(drive)
    products = torch.empty_like(decay)
    states[:, :, 0] = drive[:, :, 0]
    products[:, :, 0] = decay[:, :, 0]
    for t in range(1, chunk):
        decay_t = decay[:, :, t]
        before = states[:, :, t - 1]
        torch.addcmul(
            drive[:, :, t],
            decay_t,
            before,
            out=states[:, :, t],
        )
        torch.mul(
            decay_t,
            products[:, :, t - 1],
            out=products[:, :, t],
        )

    # Chunk k - 1 is complete before chunk k reads its last state; (B, chunk, *S) per step.
    for k in range(1, chunks):
        last_before = states[:, k - 1, -1:]
        states[:, k].addcmul_(products[:, k], last_before)
    return states.flatten(1, 2)[:, :points].contiguous()


# --- registration ---------------------------------------------------------------------------------


def _forward(decay: Tensor, drive: Tensor) -> Tensor:
    return scan_forward(decay, drive.contiguous())


def _fake(decay: Tensor, drive: Tensor) -> Tensor:
    return torch.empty_like(drive, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _backward(ctx: Any, grad: Tensor) -> tuple:
    r"""Return the gradients of a and b, for the gradient :math:`\bar h` of the states:

    .. math:: \bar b_t = \bar h_t + a_{t+1}^*\, \bar b_{t+1}, \qquad
        \bar a_t = \bar b_t\, h_{t-1}^*

    The first is a scan from the last point. Only the op itself and differentiable operations of
    torch are called here, so derivatives of any order follow.
    """
    decay, states = ctx.saved_tensors

    # In reversed time point t decays by a_{t+1}; nothing comes after the last point.
    nothing = torch.zeros_like(decay[:, :1])
    decay_of_next = torch.cat([decay[:, 1:], nothing], 1).conj()
    reversed_drive = scan_op(
        decay_of_next.flip(1),
        grad.flip(1),
    )
    drive = reversed_drive.flip(1)

    # h_{t-1}, which is zero before the first point.
    zero = torch.zeros_like(states[:, :1])
    before = torch.cat([zero, states[:, :-1]], 1)
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
