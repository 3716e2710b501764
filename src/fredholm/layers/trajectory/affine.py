"""An affine recurrence with frozen coefficients, driven forwards (responses) and backwards (rows of
its kernel).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Trajectory:
    r"""A recurrence that is affine once its gates are read off the trajectory, with state s (n
    wide) and output y (m wide):

    .. math:: s_t = \alpha_t s_{t-1} + \beta_t\,(U y_{t-1}) + \delta_t\,(W x_t) + b_t, \qquad
        y_t = V(\varepsilon_t s_t)

    Greek letters act feature by feature, so that no transition matrix is ever stored.

    Attributes:
        keep, gain, drive, write: α, β, δ, ε, (B, N, n).
        bias: b, (B, N, n), or None.
        recurrent, read, out: U (n, m), W (n, d), and V (m, n) or None for the identity.
        output: the outputs of the nonlinear recurrence itself, (B, N, m).
        state: its state after the last point, as its cell takes it.
    """

    keep: Float[Tensor, "b t n"]
    gain: Float[Tensor, "b t n"]
    drive: Float[Tensor, "b t n"]
    write: Float[Tensor, "b t n"]
    bias: Float[Tensor, "b t n"] | None
    recurrent: Float[Tensor, "n m"]
    read: Float[Tensor, "n d"]
    out: Float[Tensor, "m n"] | None
    output: Float[Tensor, "b t m"]
    state: tuple[Tensor, ...]


class Affine(NamedTuple):
    """State s (B, n) and output y (B, m) of an affine recurrence at a point."""

    s: Tensor
    y: Tensor


def push(
    line: Trajectory,
    x: Float[Tensor, "b t d"] | None,
    start: tuple[Float[Tensor, "b n"], Float[Tensor, "b m"]],
) -> tuple[Float[Tensor, "b t m"], Affine]:
    """Return the affine response y to x (None: to zeros, the offset) and (s, y) after the last
    point, from (s, y) before the first.

    With secant slopes the response to the signal that made the trajectory is the output of
    the nonlinear recurrence. Cost O(N·n·(m + d)).

    Example:
        >>> one = torch.ones(1, 3, 1)
        >>> read = one[0, :1]
        >>> line = Trajectory(one / 2, 0 * one, one, one, None, read, read, None, one, ())
        >>> impulse, zero = torch.tensor([[[1.0], [0.0], [0.0]]]), 0 * one[:, 0]
        >>> push(line, impulse, (zero, zero))[0].flatten().tolist()
        [1.0, 0.5, 0.25]
    """
    drive = line.bias
    if x is not None:
        signal = x @ line.read.mT
        forced = line.drive * signal
        if drive is None:
            drive = forced
        else:
            drive = drive + forced

    s, y = start
    outputs = []
    for t in range(line.keep.shape[1]):
        moved = line.keep[:, t] * s
        recurrent = y @ line.recurrent.mT
        read = line.gain[:, t] * recurrent
        s = moved + read
        if drive is not None:
            s = s + drive[:, t]
        y = line.write[:, t] * s
        if line.out is not None:
            y = y @ line.out.mT
        outputs.append(y)
    return torch.stack(outputs, 1), Affine(s, y)


def pull(
    line: Trajectory,
    left: Float[Tensor, "b q t o m"],
) -> Float[Tensor, "b q t o d"]:
    r"""Return rows of the kernel: :math:`\sum_r L(q, r)\,K(r, s)` with K the map of the whole
    signal x to y, for any factors L.

    L = identity at r = q gives row q of K itself; the rows of a layer above give those of both
    layers together. One recursion from the last point to the first, so that rows cost O(Q·N·o·n·(m
    + d)) time and no N² tensor exists.

    Example:
        >>> one = torch.ones(1, 3, 1)
        >>> read = one[0, :1]
        >>> line = Trajectory(one / 2, 0 * one, one, one, None, read, read, None, one, ())
        >>> pull(line, torch.tensor([0.0, 0.0, 1.0]).view(1, 1, 3, 1, 1)).flatten().tolist()
        [0.25, 0.5, 1.0]
    """
    last = line.keep.shape[1] - 1
    # The derivative of the rows by s_(t+1), (B, Q, o, n).
    upon_next = None
    responses = []
    for t in range(last, -1, -1):
        # y_t enters the rows by L, and s_(t+1) by β_(t+1) U y_t.
        upon_y = left[:, :, t]
        if upon_next is not None:
            upon_read = upon_next * line.gain[:, t + 1, None, None]
            upon_y = upon_y + upon_read @ line.recurrent

        # s_t enters y_t by V ε_t, and s_(t+1) by α_(t+1).
        upon_s = upon_y
        if line.out is not None:
            upon_s = upon_y @ line.out
        upon_s = upon_s * line.write[:, t, None, None]
        if upon_next is not None:
            keep = line.keep[:, t + 1, None, None]
            upon_s = upon_s + upon_next * keep
        response = upon_s * line.drive[:, t, None, None]
        responses.append(response)
        upon_next = upon_s
    in_order = responses[::-1]
    return torch.stack(in_order, 2) @ line.read
