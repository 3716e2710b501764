"""The kernel along a trajectory as written: a product of transition matrices for every pair."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fredholm.layers.trajectory import Trajectory


def transitions(
    line: Trajectory,
) -> tuple[Float[Tensor, "b t n n"], Float[Tensor, "b t n d"], Float[Tensor, "b t m n"]]:
    r"""Return A, B, C of :math:`s_t = A_t s_{t-1} + B_t x_t + b_t`, :math:`y_t = C_t s_t`, as
    matrices; A_1, which reads no y, has no U.

    .. math:: A_t = \mathrm{diag}(\alpha_t) + \mathrm{diag}(\beta_t)\,U C_{t-1}, \quad
        B_t = \mathrm{diag}(\delta_t)\,W, \quad
        C_t = V\,\mathrm{diag}(\varepsilon_t)

    Example:
        >>> one = torch.ones(1, 3, 1)
        >>> read = one[0, :1]
        >>> line = Trajectory(one / 2, one, one, 2 * one, None, read, read, None, one, ())
        >>> transitions(line)[0].flatten().tolist()
        [0.5, 2.5, 2.5]
    """
    write = line.write
    out = line.out
    if out is None:
        out = torch.eye(write.shape[-1], dtype=write.dtype, device=write.device)
    c = out * write[:, :, None, :]
    outputs_before = c[:, :-1]
    mixed = line.gain[:, 1:, :, None] * (line.recurrent @ outputs_before)
    # A row of zeros in time stands for the first transition.
    mixed = torch.nn.functional.pad(mixed, (0, 0, 0, 0, 1, 0))
    a = torch.diag_embed(line.keep) + mixed
    b = line.drive[..., None] * line.read
    return a, b, c


def kernel_naive(line: Trajectory) -> Float[Tensor, "b t t m d"]:
    r"""Return the whole kernel, pair by pair:
    :math:`K(t, s) = C_t A_t A_{t-1} \cdots A_{s+1} B_s` for s ≤ t, else 0. O(N²·n³).

    The oracle of :func:`fredholm.layers.trajectory.pull`.

    Example:
        >>> one = torch.ones(1, 2, 1)
        >>> read = one[0, :1]
        >>> line = Trajectory(one / 2, 0 * one, one, one, None, read, read, None, one, ())
        >>> kernel_naive(line).squeeze().tolist()
        [[1.0, 0.0], [0.5, 1.0]]
    """
    a, b, c = transitions(line)
    batch, n, width, _ = a.shape
    identity = torch.eye(width, dtype=a.dtype, device=a.device)
    identity = identity.expand(batch, -1, -1)
    zero = torch.zeros_like(c[:, 0] @ b[:, 0])
    rows = []
    for t in range(n):
        row = []
        for s in range(t + 1):
            product = identity
            for r in range(s + 1, t + 1):
                product = a[:, r] @ product
            response = c[:, t] @ product @ b[:, s]
            row.append(response)
        row += [zero] * (n - t - 1)
        rows.append(torch.stack(row, 1))
    return torch.stack(rows, 1)
