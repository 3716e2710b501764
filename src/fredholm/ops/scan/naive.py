"""Definitions: the linear recurrence and the causal convolution, term by term."""

from __future__ import annotations

import torch
from jaxtyping import Inexact
from torch import Tensor


def scan_naive(
    decay: Inexact[Tensor, "b n *s"],
    drive: Inexact[Tensor, "b n *s"],
) -> Inexact[Tensor, "b n *s"]:
    """Return all states of h_t = a_t h_{t-1} + b_t from h_{-1} = 0: the oracle of :func:`scan`.

    Example:
        >>> scan_naive(torch.full((1, 3, 1), 0.5), torch.ones(1, 3, 1)).squeeze().tolist()
        [1.0, 1.5, 1.75]
    """
    state = torch.zeros_like(drive[:, 0])
    states = []
    for t in range(drive.shape[1]):
        state = decay[:, t] * state + drive[:, t]
        states.append(state)
    return torch.stack(states, 1)


def causal_convolution_naive(
    signal: Inexact[Tensor, " b #h n i"],
    taps: Inexact[Tensor, "h n o i"],
) -> Inexact[Tensor, "b h n o"]:
    r"""Return :math:`y_t = \sum_{s \le t} \kappa_{t-s} u_s`, lag by lag: the oracle of
    :func:`causal_convolution`.

    Cost: O(N²·d_out·d_in).

    Example:
        >>> u, taps = torch.ones(1, 1, 3, 1), torch.ones(1, 3, 1, 1)
        >>> causal_convolution_naive(u, taps).flatten().tolist()
        [1.0, 2.0, 3.0]
    """
    n = signal.shape[2]
    out = 0.0
    for lag in range(n):
        # u_{t - lag}: zeros come in at the front, and the last points fall out at the end.
        delayed = torch.nn.functional.pad(signal, (0, 0, lag, 0))[:, :, :n]
        delayed = delayed.expand(-1, taps.shape[0], -1, -1)
        out = out + torch.einsum("hoi,bhni->bhno", taps[:, lag], delayed)
    assert isinstance(out, Tensor)
    return out
