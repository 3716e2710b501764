"""LUNA: attention with a learned kernel, a bank of scalar networks on learned projections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...errors import DomainError, OptionError, suggest
from ...integral import (
    Banked,
    FeatureAttentionKernel,
    FeatureMap,
    Layout,
    Problem,
    Projections,
    orthogonal_draws,
    register_feature_map,
)
from ...ops.feature_map import Bank, scalar_bank, scalar_bank_naive

PRESETS: dict[str, dict[str, Any]] = {
    "default": {"shared": False, "envelope": None, "init": "knots"},
    "exponential": {"shared": False, "envelope": None, "init": "exponential"},  # of conversions
    "paper": {"shared": False, "envelope": None, "init": "linear"},  # Listing 1
    "paper-figure": {
        "shared": True,
        "envelope": None,
        "init": "linear",
    },  # Fig. 1: one network for all channels
    "paper-equation": {"shared": False, "envelope": "scalar", "init": "linear"},  # Eq. 11
    "paper-gated": {"shared": False, "envelope": "channels", "init": "linear"},  # Table 5
}
CAPS = (None, "running", "batch")
ENVELOPES = (None, "scalar", "channels")
TINY = 1e-6


@register_feature_map("luna")
class LunaMap(FeatureMap):
    r"""A learned map: :math:`\phi(x) = h(x)\,[\psi_l(w_i\cdot x + b_i)]_{l,i} / \sqrt M`, ψ scalar
    networks 1 → hidden → 1.

    Args:
        width, heads: see :class:`FeatureMap`.
        directions: M, number of projections w; default 8, with ``init="exponential"`` the width e.
        channels: L; r = M·L. Default 8, with ``init="exponential"`` 2.
        hidden: units of a network.
        activation: of the hidden units; a ReLU is evaluated as the piecewise linear function it is.
        nonneg: a ReLU behind ψ, so that no denominator is negative.
        per_head: w, b and ψ for every head, as in conversions; otherwise all heads share them.
        preset: ``"default"``; ``"exponential"``, to start near softmax; or what the paper says in
            one place: ``"paper"`` (its listing), ``"paper-figure"``, ``"paper-equation"``,
            ``"paper-gated"``. It sets the next three options where they are not given.
        shared: one network 1 → hidden → L instead of L networks.
        envelope: h: ``"none"`` (1), ``"scalar"`` (a softplus of a linear map) or ``"channels"`` (a
            sigmoid for every channel).
        init: of ψ: ``"knots"`` (knots where projections are, every channel with mean 0 and variance
            1 before the last ReLU) or ``"linear"`` (torch's default, which leaves about a fifth of
            the channels dead), or ``"exponential"``: ψ draws
            :math:`e^{u}, e^{-u}, e^{u/2}, e^{-u/2}, \dots` on [-6, 6], and directions are
            orthonormal, the identity if M = e, so that two channels begin as Hedgehog's features
            do. For conversions: attention starts nearer to softmax, and ends nearer.
        bank: w and ψ stay as drawn, and one coefficient a channel is learned ("bank +
            coefficients").
        cap: scales down channels whose root mean square is above ``target``: ``"running"`` with a
            running average, which neither couples samples nor sees ahead, or ``"batch"`` with the
            call's own, as the paper's listing.

    Raises:
        OptionError: an unknown name, or a size below one.

    Reference: LUNA, Eqs. 9-11, Listing 1, Table 5.

    Example:
        >>> LunaMap(16, directions=4, channels=2)(torch.randn(1, 2, 5, 16)).shape
        torch.Size([1, 2, 5, 8])
    """

    weight: Tensor
    bias: Tensor
    bank_weight: Tensor
    bank_bias: Tensor
    bank_readout: Tensor
    bank_shift: Tensor
    coefficient: Tensor | None
    gate: Tensor | None
    gate_bias: Tensor | None
    mean_square: Tensor

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        directions: int | None = None,
        channels: int | None = None,
        hidden: int = 64,
        activation: str = "relu",
        nonneg: bool = True,
        per_head: bool = False,
        preset: str = "default",
        shared: bool | None = None,
        envelope: str | None = None,
        init: str | None = None,
        bank: bool = False,
        cap: str | None = None,
        target: float = 0.1,
    ):
        if preset not in PRESETS:
            raise OptionError(f"unknown preset {preset!r}{suggest(preset, PRESETS)}")
        chosen = PRESETS[preset]
        init = str(init or chosen["init"])
        directions = (width if init == "exponential" else 8) if directions is None else directions
        channels = (2 if init == "exponential" else 8) if channels is None else channels
        if min(directions, channels, hidden) < 1:
            raise OptionError(
                f"directions, channels and hidden must be at least 1, got {directions}, {channels} "
                f"and {hidden}"
            )
        super().__init__(width, heads, features=directions * channels)
        envelope = (
            chosen["envelope"] if envelope is None else None if envelope == "none" else envelope
        )
        for name, value, known in (
            ("envelope", envelope, ENVELOPES),
            ("cap", cap, CAPS),
            ("init", init, INITS),
        ):
            if value not in known:
                raise OptionError(
                    f"unknown {name} {value!r}{suggest(str(value), [str(k) for k in known])}"
                )
        self.directions, self.channels, self.activation, self.nonneg = (
            directions,
            channels,
            activation,
            nonneg,
        )
        self.envelope, self.cap, self.target = envelope, cap, target
        self.positive = nonneg
        sets = heads if per_head else 1
        parts = INITS[init](
            sets, channels, hidden, chosen["shared"] if shared is None else shared, activation
        )
        weight = _orthonormal if init == "exponential" else _gaussian
        self._hold("weight", weight(sets, directions, width), learned=not bank)
        self._hold("bias", torch.zeros(sets, directions), learned=not bank)
        for name, part in zip(Bank._fields, parts):
            self._hold(f"bank_{name}", part, learned=not bank)
        self._hold("coefficient", torch.ones(channels) if bank else None, learned=True)
        rows = {"scalar": 1, "channels": channels}.get(envelope or "")
        self._hold(
            "gate",
            None if rows is None else torch.randn(sets, rows, width) * width**-0.5,
            learned=True,
        )
        self._hold("gate_bias", None if rows is None else torch.zeros(sets, rows), learned=True)
        start = scalar_bank_naive(
            _normal_grid().expand(1, sets, -1), parts, activation=activation, nonneg=nonneg
        )
        self.register_buffer(
            "mean_square", start.square().mean((0, 1, 3)) if cap == "running" else None
        )

    def _hold(self, name: str, value: Tensor | None, *, learned: bool) -> None:
        if learned:
            self.register_parameter(name, None if value is None else nn.Parameter(value))
        else:
            self.register_buffer(name, value)

    @property
    def bank(self) -> Bank:
        """ψ's parameters."""
        return Bank(self.bank_weight, self.bank_bias, self.bank_readout, self.bank_shift)

    @property
    def plain(self) -> bool:
        """Whether the features are those of :meth:`scaled_bank` alone: no envelope, no cap that
        looks at them.
        """
        return self.gate is None and self.pointwise

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        """Not where a cap looks at the call's features."""
        return self.cap is None or (self.cap == "running" and not self.training)

    def scalars(self, x: Tensor) -> Tensor:
        """The projections u of x (B, H, N, e), (B, H, M, N), in float32 at least."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        with torch.autocast(x.device.type, enabled=False):
            return self.weight.to(x.dtype) @ x.mT + self.bias.to(x.dtype)[..., None]

    def scaled_bank(self, dtype: torch.dtype) -> Bank:
        """ψ with all that multiplies a channel."""
        scale = self._scale(dtype)  # not negative, so that it may act before the ReLU
        bank = Bank(*(part.to(dtype) for part in self.bank))
        by_channel = scale.view(bank.shift.shape[1:])
        return bank._replace(
            readout=bank.readout * by_channel[..., None], shift=bank.shift * by_channel
        )

    def features_of(self, x: Tensor) -> Tensor:
        b, h, n, _ = x.shape
        u, sets, scale = self.scalars(x), self.weight.shape[0], self._scale(x.dtype)
        u = (
            u.reshape(b, h, self.directions * n)
            if sets > 1
            else u.reshape(b * h, 1, self.directions * n)
        )
        y = scalar_bank(
            u, self.scaled_bank(x.dtype), activation=self.activation, nonneg=self.nonneg
        )
        y = y.reshape(b, h, self.channels, self.directions, n)
        if self.cap is not None:
            y = self._capped(y, scale)
        if self.gate is not None:
            y = y * self._envelope(x, self.gate, self.gate_bias)
        return y.flatten(2, 3).mT

    def _scale(self, dtype: torch.dtype) -> Tensor:
        """What multiplies a channel but the envelope and the batch's cap, (L,)."""
        scale = self.weight.new_full((self.channels,), self.directions**-0.5, dtype=dtype)
        if self.coefficient is not None:
            scale = scale * self.coefficient.to(dtype).abs()
        if self.cap == "running":
            scale = scale * (self.target / (self.mean_square + TINY).sqrt()).clamp(max=1.0).to(
                dtype
            )
        return scale

    def _capped(self, y: Tensor, scale: Tensor) -> Tensor:
        """The batch's cap; or the running average's update, whose value the features have already."""
        if self.cap == "batch":
            size = (y.square().mean((0, 1, 3, 4)) * self.directions + TINY).sqrt()
            return y * (self.target / size).clamp(max=1.0)[:, None, None]
        if self.training:
            size = y.detach().square().mean((0, 1, 3, 4)) / scale.detach().square().clamp(min=TINY)
            self.mean_square.lerp_(size.to(self.mean_square.dtype), 0.1)
        return y

    def _envelope(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """h, (B, H, 1 | L, 1, N)."""
        assert bias is not None
        gate = weight.to(x.dtype) @ x.mT + bias.to(x.dtype)[..., None]
        gate = nn.functional.softplus(gate) if self.envelope == "scalar" else gate.sigmoid()
        return gate[:, :, :, None]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, directions={self.directions}, channels={self.channels}, activation={self.activation}"


class LunaKernel(FeatureAttentionKernel, Banked):
    r"""Attention with LUNA's kernel,
    :math:`K_h(x, y; u) = \phi(Q_h u(x))\cdot\phi(K_h u(y))\,V_h / Z_h(x)`.

    Args:
        dim, heads, bias, projections: see :class:`fredholm.kernels.attention.AttentionKernel`.
        floor: of the denominator, see :func:`fredholm.ops.linear_attention.guarded`.
        tied: one φ for queries and keys.
        map_options: options of :class:`LunaMap`.

    Raises:
        DomainError: ``cap="batch"`` with an order, padding, pairs or single steps, where the
            batch's statistic would see the future, count padding or depend on how points come.

    Reference: LUNA, Eqs. 9-11.

    Example:
        >>> LunaKernel(16, 4, channels=4).feature_map.features
        32
    """

    feature_map: LunaMap

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        bias: bool = True,
        projections: Projections | None = None,
        floor: float = 1e-6,
        tied: bool = True,
        **map_options,
    ):
        super().__init__(
            dim,
            heads,
            feature_map="luna",
            feature_options=map_options,
            tied=tied,
            floor=floor,
            bias=bias,
            projections=projections,
        )

    def banked(self, problem: Problem) -> dict[str, Any] | None:
        maps = [self.feature_map, self.feature_map if self.key_map is None else self.key_map]
        if not all(one.plain for one in maps):
            return None
        heads = self._heads(problem.ux, 0), self._heads(problem.uy, 1)
        query, key = (one.scalars(x) for one, x in zip(maps, heads))
        banks = [one.scaled_bank(query.dtype) for one in maps]
        rules = {"activation": self.feature_map.activation, "nonneg": self.feature_map.nonneg}
        return {"query": query, "key": key, "query_bank": banks[0], "key_bank": banks[1], **rules}

    def check(self, layout: Layout) -> None:
        if self.feature_map.cap != "batch":
            return
        named = {
            "causal": "an order",
            "padded": "padding",
            "pairs": "pairs",
            "stepping": "single steps",
        }
        for fact, what in named.items():
            if getattr(layout, fact):
                raise DomainError(
                    'cap="batch" is a statistic of all tokens of a call and means nothing with '
                    f'{what}; use cap="running"'
                )

    def weights(self, problem: Problem) -> Tensor:
        if self.feature_map.cap != "batch" or problem.whole is None:
            return super().weights(problem)
        return super().weights(problem.whole)[
            :, :, problem.index
        ]  # the statistic is that of all queries


def _normal_grid(n: int = 256) -> Tensor:
    """Quantiles of N(0, 1), which projections of features of variance 1 follow."""
    return torch.special.ndtri((torch.arange(n) + 0.5) / n)


def _sizes(channels: int, shared: bool) -> tuple[int, int]:
    return (1, channels) if shared else (channels, 1)


def _linear_bank(sets: int, channels: int, hidden: int, shared: bool, activation: str) -> Bank:
    """torch's default for linear layers 1 → hidden → outputs."""
    groups, outputs = _sizes(channels, shared)
    shapes = (
        (sets, groups, hidden),
        (sets, groups, hidden),
        (sets, groups, outputs, hidden),
        (sets, groups, outputs),
    )
    bounds = 1.0, 1.0, hidden**-0.5, hidden**-0.5
    return Bank(
        *(torch.empty(shape).uniform_(-bound, bound) for shape, bound in zip(shapes, bounds))
    )


def _knot_bank(sets: int, channels: int, hidden: int, shared: bool, activation: str) -> Bank:
    """Knots drawn from N(0, 1), slopes ±1, and readouts such that ψ has mean 0 and variance 1
    there: no channel is dead.
    """
    groups, outputs = _sizes(channels, shared)
    weight = torch.randint(0, 2, (sets, groups, hidden)) * 2.0 - 1.0
    bias = -weight * torch.randn(sets, groups, hidden)
    bank = Bank(
        weight, bias, torch.randn(sets, groups, outputs, hidden), torch.zeros(sets, groups, outputs)
    )
    found = scalar_bank_naive(
        _normal_grid().expand(1, sets, -1), bank, activation=activation, nonneg=False
    )[0]
    std, mean = torch.std_mean(found.view(sets, groups, outputs, -1), -1)
    return bank._replace(readout=bank.readout / std[..., None], shift=-mean / std)


def _exponential_bank(sets: int, channels: int, hidden: int, shared: bool, activation: str) -> Bank:
    """Chords of :math:`e^{\\pm u/j}` between equidistant knots on [-6, 6], constant on the lower
    side, a line on the other.
    """
    if activation != "relu":
        raise OptionError(
            f'init="exponential" draws with ReLU units, got activation={activation!r}; use '
            'init="knots"'
        )
    if hidden < 2:
        raise OptionError(f'init="exponential" needs at least 2 hidden units, got {hidden}')
    knots = torch.linspace(-REACH, REACH, hidden)
    signs = 1.0 - 2.0 * (torch.arange(channels) % 2)
    rates = 1.0 / (1 + torch.arange(channels) // 2)
    # unshared networks look along their own sign, so that each rises to the right; a shared one has
    # one set of knots
    drawn = ((rates * signs if shared else rates)[:, None] * knots).exp()
    slopes = drawn.diff(dim=-1) / knots.diff()
    readout = torch.cat([slopes[:, :1], slopes.diff(dim=-1), torch.zeros(channels, 1)], -1)
    if shared:
        parts = torch.ones(1, hidden), -knots[None], readout[None], drawn[None, :, 0]
    else:
        weight = signs[:, None].expand(-1, hidden)
        parts = weight, -knots.expand(channels, -1), readout[:, None], drawn[:, :1]
    return Bank(*(part.expand(sets, *part.shape).clone() for part in parts))


def _gaussian(sets: int, directions: int, width: int) -> Tensor:
    return torch.randn(sets, directions, width) * width**-0.5


def _orthonormal(sets: int, directions: int, width: int) -> Tensor:
    """The identity, or rows that are orthonormal within blocks of ``width``."""
    if directions == width:
        return torch.eye(width).repeat(sets, 1, 1)
    rows = torch.stack([orthogonal_draws(directions, width) for _ in range(sets)])
    return rows / rows.norm(dim=-1, keepdim=True)


REACH = 6.0  # how far from 0 an exponential is drawn
INITS = {"knots": _knot_bank, "linear": _linear_bank, "exponential": _exponential_bank}
