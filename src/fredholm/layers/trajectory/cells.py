"""The cells of torch's recurrences, unrolled, with the coefficients of the affine recurrence that
each is along its trajectory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .affine import Trajectory
from .slopes import slope


@dataclass(frozen=True, eq=False)
class Weights:
    """One direction of one layer, stacked gate by gate as torch stores them: RNN one, LSTM i, f, g,
    o, GRU r, z, n.

    Attributes:
        read, recurrent: of x and of h, (gates·n, d) and (gates·n, m).
        read_bias, recurrent_bias: (gates·n,) or None.
        out: the LSTM's projection of h, (m, n), or None.
    """

    read: Float[Tensor, "g d"]
    recurrent: Float[Tensor, "g m"]
    read_bias: Float[Tensor, " g"] | None = None
    recurrent_bias: Float[Tensor, " g"] | None = None
    out: Float[Tensor, "m n"] | None = None

    def bias(self) -> Tensor | None:
        """Return the sum of both biases, for cells in which they act together."""
        if self.read_bias is None or self.recurrent_bias is None:
            return None
        return self.read_bias + self.recurrent_bias


State = tuple[Tensor, ...]


def rnn(
    weights: Weights,
    x: Tensor,
    state: State,
    linearization: str,
    activation: str = "tanh",
) -> Trajectory:
    r"""Unroll Elman's recurrence: :math:`h_t = D_t (W x_t + U h_{t-1} + b)`,
    :math:`D_t = \mathrm{diag}\,S(z_t)`, z the argument of σ.

    Args:
        weights, x, state: one layer, its signal (B, N, d) and (h,) before it, (B, n).
        linearization: ``"secant"`` or ``"tangent"``.
        activation: ``"tanh"`` or ``"relu"``.

    Cost: O(N·n·(n + d)), one step after the other.

    Reference: ITNet Eqs. 96, 134, 135, with the secant in the tangent's place.

    Example:
        >>> eye = torch.eye(2)
        >>> rnn(Weights(eye, eye), torch.ones(1, 3, 2), (torch.zeros(1, 2),), "secant").output.shape
        torch.Size([1, 3, 2])
    """
    function = torch.relu
    if activation == "tanh":
        function = torch.tanh
    bias = weights.bias()
    (h,) = state
    arguments = []
    outputs = []
    drives = F.linear(x, weights.read, bias)
    for drive in drives.unbind(1):
        recurrent = h @ weights.recurrent.mT
        z = drive + recurrent
        h = function(z)
        arguments.append(z)
        outputs.append(h)

    slopes = slope(activation, linearization)
    gain = slopes(torch.stack(arguments, 1))
    zero = gain.new_zeros(1, 1, 1)
    one = gain.new_ones(1, 1, 1)
    if bias is not None:
        bias = gain * bias
    return Trajectory(
        keep=zero.expand_as(gain),
        gain=gain,
        drive=gain,
        write=one.expand_as(gain),
        bias=bias,
        recurrent=weights.recurrent,
        read=weights.read,
        out=None,
        output=torch.stack(outputs, 1),
        state=(h,),
    )


def lstm(
    weights: Weights,
    x: Tensor,
    state: State,
    linearization: str,
) -> Trajectory:
    r"""Unroll long short-term memory, with the cell c as the state and its candidate's argument a:

    .. math:: c_t = f_t c_{t-1} + i_t S(a_t)\,(W_g x_t + U_g h_{t-1} + b_g), \qquad
        h_t = P\,(o_t S(c_t)\, c_t)

    Args:
        weights, x: one layer and its signal (B, N, d).
        state: (h, c) before it, (B, m) and (B, n).
        linearization: ``"secant"``, ``"tangent"``, or ``"gates"``: tangents, and
            :math:`U_g h_{t-1}` left out of the transition, as Eq. 148 is printed.

    Cost: O(N·n·(m + d)), one step after the other.

    Reference: ITNet Definition 11, Eqs. 146-148.

    Example:
        >>> weights = Weights(torch.rand(8, 3), torch.rand(8, 2))
        >>> start = torch.zeros(1, 2), torch.zeros(1, 2)
        >>> lstm(weights, torch.ones(1, 4, 3), start, "secant").output.shape
        torch.Size([1, 4, 2])
    """
    bias = weights.bias()
    h, c = state
    # Of each step its gates, the candidate's argument, the cell and the output.
    steps = []
    drives = F.linear(x, weights.read, bias)
    for drive in drives.unbind(1):
        gates = drive + h @ weights.recurrent.mT
        i, f, a, o = gates.chunk(4, -1)
        i = i.sigmoid()
        f = f.sigmoid()
        o = o.sigmoid()
        c = f * c + i * a.tanh()
        h = o * c.tanh()
        if weights.out is not None:
            h = h @ weights.out.mT
        steps.append((i, f, a, o, c, h))
    along_time = (torch.stack(values, 1) for values in zip(*steps))
    i, f, a, o, cells, outputs = along_time

    through = slope("tanh", linearization)
    drive = i * through(a)
    # The third quarter of the stacked gates.
    n = drive.shape[-1]
    candidate = slice(2 * n, 3 * n)
    # Without the state's way through the gates, only their products are kept.
    gain = drive
    if linearization == "gates":
        gain = torch.zeros_like(drive)
    if bias is not None:
        bias = drive * bias[candidate]
    return Trajectory(
        keep=f,
        gain=gain,
        drive=drive,
        write=o * through(cells),
        bias=bias,
        recurrent=weights.recurrent[candidate],
        read=weights.read[candidate],
        out=weights.out,
        output=outputs,
        state=(h, c),
    )


def gru(
    weights: Weights,
    x: Tensor,
    state: State,
    linearization: str,
) -> Trajectory:
    r"""Unroll a gated recurrent unit, with the candidate's argument a:

    .. math:: h_t = z_t h_{t-1} + (1 - z_t) S(a_t)\,
        \big(W_n x_t + b_n + r_t (U_n h_{t-1} + b'_n)\big)

    Args:
        weights, x, state: one layer, its signal (B, N, d) and (h,) before it, (B, n).
        linearization: as for :func:`lstm`; ``"gates"`` leaves :math:`U_n h_{t-1}` out of the
            transition, as Eq. 150 is printed.

    Cost: O(N·n·(n + d)), one step after the other.

    Reference: ITNet Eqs. 149, 150.

    Example:
        >>> weights = Weights(torch.rand(6, 3), torch.rand(6, 2))
        >>> gru(weights, torch.ones(1, 4, 3), (torch.zeros(1, 2),), "secant").output.shape
        torch.Size([1, 4, 2])
    """
    (h,) = state
    # Of each step its gates, the candidate's argument and the output.
    steps = []
    drives = F.linear(x, weights.read, weights.read_bias)
    for drive in drives.unbind(1):
        recurrent = F.linear(h, weights.recurrent, weights.recurrent_bias)
        xr, xz, xn = drive.chunk(3, -1)
        hr, hz, hn = recurrent.chunk(3, -1)
        r = (xr + hr).sigmoid()
        z = (xz + hz).sigmoid()
        a = xn + r * hn
        h = (1 - z) * a.tanh() + z * h
        steps.append((r, z, a, h))
    along_time = (torch.stack(values, 1) for values in zip(*steps))
    r, z, a, outputs = along_time

    through = slope("tanh", linearization)
    drive = (1 - z) * through(a)
    # The last third of the stacked gates.
    candidate = slice(2 * drive.shape[-1], None)
    bias = None
    if weights.read_bias is not None and weights.recurrent_bias is not None:
        recurrent_part = r * weights.recurrent_bias[candidate]
        bias = drive * (weights.read_bias[candidate] + recurrent_part)
    gain = torch.zeros_like(drive)
    if linearization != "gates":
        gain = drive * r
    return Trajectory(
        keep=z,
        gain=gain,
        drive=drive,
        write=drive.new_ones(1, 1, 1).expand_as(drive),
        bias=bias,
        recurrent=weights.recurrent[candidate],
        read=weights.read[candidate],
        out=None,
        output=outputs,
        state=(h,),
    )


# By torch's names, ``torch.nn.RNNBase.mode``.
CELLS: dict[str, Callable[[Weights, Tensor, State, str], Trajectory]] = {
    "RNN_TANH": rnn,
    "RNN_RELU": partial(rnn, activation="relu"),
    "LSTM": lstm,
    "GRU": gru,
}
