"""Banks of scalar networks inside GPU kernels, whose hidden units live in registers.

The features of a block of points are a matrix (points, L·M): channel l of direction m is in column
l·M + m, as in :class:`fredholm.kernels.LunaMap`. Both sizes are padded to powers of two, with
columns that are zero.

Arguments that the functions share:

    base, at, count   scalars, a contiguous (M, count) matrix of one (batch, head) pair, and points
    weight ...        w, b, R and c of one set
    L, C, H, M        channels, outputs of a network, its hidden units, directions
    SHARED            whether the set is one network, C = L: a hidden unit is computed once for all
                      its channels
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    """tanh(x) = (1 - e^(-2|x|)) / (1 + e^(-2|x|)) · sign(x), whose exponential cannot overflow."""
    e = tl.exp(-2.0 * tl.abs(x))
    value = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0.0, -value, value)


@triton.jit
def activated(s, ACTIVATION: tl.constexpr):
    """σ(s) for a name of ``fredholm.ops.tiles.ACTIVATIONS``."""
    if ACTIVATION == "relu":
        value = tl.where(s < 0.0, 0.0, s)
    elif ACTIVATION == "gelu":
        value = 0.5 * s * (1.0 + tl.erf(s * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        value = 0.5 * s * (1.0 + _tanh(0.7978845608028654 * (s + 0.044715 * s * s * s)))
    elif ACTIVATION == "silu":
        value = s * tl.sigmoid(s)
    elif ACTIVATION == "tanh":
        value = _tanh(s)
    else:
        tl.static_assert(ACTIVATION == "sin", "an activation without device code")
        value = tl.sin(s)
    return value


@triton.jit
def slope(s, ACTIVATION: tl.constexpr):
    """σ'(s), for the same names."""
    if ACTIVATION == "relu":
        value = tl.where(s > 0.0, 1.0, 0.0)
    elif ACTIVATION == "gelu":
        normal = 0.3989422804014327 * tl.exp(-0.5 * s * s)
        value = 0.5 * (1.0 + tl.erf(s * 0.7071067811865476)) + s * normal
    elif ACTIVATION == "gelu_tanh":
        t = _tanh(0.7978845608028654 * (s + 0.044715 * s * s * s))
        inner = 0.7978845608028654 * (1.0 + 0.134145 * s * s)
        value = 0.5 * (1.0 + t) + 0.5 * s * (1.0 - t * t) * inner
    elif ACTIVATION == "silu":
        gate = tl.sigmoid(s)
        value = gate * (1.0 + s * (1.0 - gate))
    elif ACTIVATION == "tanh":
        t = _tanh(s)
        value = 1.0 - t * t
    else:
        tl.static_assert(ACTIVATION == "sin", "an activation without device code")
        value = tl.cos(s)
    return value


@triton.jit
def scalars(base, at, count, M: tl.constexpr, BLOCK_M: tl.constexpr):
    """Scalars u of the points ``at``, (points, 1, BLOCK_M), zero in padding."""
    m = tl.arange(0, BLOCK_M)
    inside = (at < count)[:, None] & (m < M)[None, :]
    # In 64 bits: M·count may be more than 2³¹.
    u = tl.load(base + m[None, :].to(tl.int64) * count + at[:, None], mask=inside, other=0.0).to(
        tl.float32
    )
    return u[:, None, :]


@triton.jit
def _unit(
    weight, bias, readout, j,
    L: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
    BLOCK_L: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Hidden unit j of each network: w and b, and R for every channel.

    w and b are (1, 1, 1) where the set is one network, else (1, BLOCK_L, 1); R is (1, BLOCK_L, 1).
    """
    channel = tl.arange(0, BLOCK_L)
    known = channel < L
    if SHARED:
        w, b = tl.load(weight + j).to(tl.float32), tl.load(bias + j).to(tl.float32)
        w, b = tl.full((1, 1, 1), 0.0, tl.float32) + w, tl.full((1, 1, 1), 0.0, tl.float32) + b
    else:
        # Channel l is an output of network l // C.
        network = channel // C * H + j
        w = tl.load(weight + network, mask=known, other=0.0).to(tl.float32)[None, :, None]
        b = tl.load(bias + network, mask=known, other=0.0).to(tl.float32)[None, :, None]
    r = tl.load(readout + channel * H + j, mask=known, other=0.0).to(tl.float32)[None, :, None]
    return w, b, r


@triton.jit
def channels(
    u, weight, bias, readout, shift,
    L: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    SHARED: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """ψ before a last ReLU, (points, BLOCK_L, BLOCK_M), of scalars u (points, 1, BLOCK_M).

    The loop goes over hidden units, so that only one of each network is in registers at a time.
    """
    channel = tl.arange(0, BLOCK_L)
    c = tl.load(shift + channel, mask=channel < L, other=0.0).to(tl.float32)
    total = tl.zeros((u.shape[0], BLOCK_L, u.shape[2]), tl.float32) + c[None, :, None]
    for j in range(H):
        w, b, r = _unit(weight, bias, readout, j, L, C, H, BLOCK_L, SHARED)
        total += r * activated(w * u + b, ACTIVATION)
    return total


@triton.jit
def known(
    at, count,
    L: tl.constexpr, M: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Whether an entry of (points, BLOCK_L, BLOCK_M) is not padding."""
    columns = (tl.arange(0, BLOCK_L) < L)[:, None] & (tl.arange(0, BLOCK_M) < M)[None, :]
    return (at < count)[:, None, None] & columns[None, :, :]


@triton.jit
def features(
    base, at, count,
    weight, bias, readout, shift,
    L: tl.constexpr, C: tl.constexpr, H: tl.constexpr, M: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_M: tl.constexpr,
    SHARED: tl.constexpr, ACTIVATION: tl.constexpr, NONNEG: tl.constexpr,
):  # fmt: skip
    """φ of the points ``at``, (points, BLOCK_L·BLOCK_M), zero in padding."""
    u = scalars(base, at, count, M, BLOCK_M)
    y = channels(u, weight, bias, readout, shift, L, C, H, BLOCK_L, SHARED, ACTIVATION)
    if NONNEG:
        y = tl.where(y < 0.0, 0.0, y)
    y = tl.where(known(at, count, L, M, BLOCK_L, BLOCK_M), y, 0.0)
    return tl.reshape(y, (u.shape[0], BLOCK_L * BLOCK_M))


@triton.jit
def features_backward(
    grad,
    base, at, count,
    weight, bias, readout, shift,
    base_grad, weight_grad, bias_grad, readout_grad, shift_grad,
    L: tl.constexpr, C: tl.constexpr, H: tl.constexpr, M: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_M: tl.constexpr,
    SHARED: tl.constexpr, ACTIVATION: tl.constexpr, NONNEG: tl.constexpr,
):  # fmt: skip
    """Write the gradients of the scalars and of the bank, from that of φ.

    With g = ``grad``, (points, BLOCK_L·BLOCK_M), zero where the last ReLU is, and for unit j
    δ_j = σ'(w_j u + b_j) Σ_l R_lj g_l:

        dR_lj = Σ g_l σ(w_j u + b_j)     dc_l = Σ g_l     dw_j = Σ δ_j u     db_j = Σ δ_j
        du = Σ_j δ_j w_j

    Sums are over the points and directions of this block. They go to places that no other block
    writes to: w and b (1 | L, H), R (L, H) and c (L,). du goes to ``base_grad`` (M, count). Hidden
    units are computed again, one of each network at a time.
    """
    u = scalars(base, at, count, M, BLOCK_M)
    g = tl.reshape(grad, (u.shape[0], BLOCK_L, BLOCK_M))
    g = tl.where(known(at, count, L, M, BLOCK_L, BLOCK_M), g, 0.0)
    # A last ReLU lets the gradient through where ψ is positive.
    if NONNEG:
        y = channels(u, weight, bias, readout, shift, L, C, H, BLOCK_L, SHARED, ACTIVATION)
        g = tl.where(y > 0.0, g, 0.0)
    channel = tl.arange(0, BLOCK_L)
    tl.store(shift_grad + channel, tl.sum(tl.sum(g, 2), 0), mask=channel < L)

    # With one network du is the same for all channels, and has one row.
    if SHARED:
        du = tl.zeros((u.shape[0], 1, BLOCK_M), tl.float32)
    else:
        du = tl.zeros((u.shape[0], BLOCK_L, BLOCK_M), tl.float32)
    for j in range(H):
        w, b, r = _unit(weight, bias, readout, j, L, C, H, BLOCK_L, SHARED)
        before = w * u + b
        dr = tl.sum(tl.sum(g * activated(before, ACTIVATION), 2), 0)
        tl.store(readout_grad + channel * H + j, dr, mask=channel < L)

        # R g, then δ. One network adds it up over its channels.
        inner = r * g
        if SHARED:
            inner = tl.sum(inner, 1)[:, None, :] * slope(before, ACTIVATION)
            tl.store(weight_grad + j, tl.sum(inner * u))
            tl.store(bias_grad + j, tl.sum(inner))
        else:
            inner *= slope(before, ACTIVATION)
            tl.store(
                weight_grad + channel * H + j,
                tl.sum(tl.sum(inner * u, 2), 0),
                mask=channel < L,
            )
            tl.store(bias_grad + channel * H + j, tl.sum(tl.sum(inner, 2), 0), mask=channel < L)
        du += w * inner

    m = tl.arange(0, BLOCK_M)
    inside = (at < count)[:, None] & (m < M)[None, :]
    tl.store(base_grad + m[None, :].to(tl.int64) * count + at[:, None], tl.sum(du, 1), mask=inside)
