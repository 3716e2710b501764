"""How LUNA's map begins: presets of its options, and where scalar networks and directions start."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import OptionError, suggest
from ...integral.exponential import orthogonal_draws
from ...ops.backend import at_least_single
from ...ops.feature_map import Bank, scalar_bank_naive

PRESETS: dict[str, dict[str, Any]] = {
    "default": {"shared": False, "envelope": None, "init": "knots"},
    # Conversions of softmax attention start from it.
    "exponential": {"shared": False, "envelope": None, "init": "exponential"},
    # Listing 1.
    "paper": {"shared": False, "envelope": None, "init": "linear"},
    # Fig. 1: one network for all channels.
    "paper-figure": {"shared": True, "envelope": None, "init": "linear"},
    # Eq. 11.
    "paper-equation": {"shared": False, "envelope": "scalar", "init": "linear"},
    # Table 5.
    "paper-gated": {"shared": False, "envelope": "channels", "init": "linear"},
}
CAPS = (None, "running", "batch")
ENVELOPES = (None, "scalar", "channels")
REACH = 6.0
"""Distance from 0 up to which an exponential is drawn."""


def normal_grid(n: int = 256) -> Tensor:
    """Return quantiles of N(0, 1), which projections of features of variance 1 follow."""
    dtype = torch.get_default_dtype()
    ranks = torch.arange(n, dtype=at_least_single(dtype))
    levels = (ranks + 0.5) / n
    return torch.special.ndtri(levels).to(dtype)


class _Sizes(NamedTuple):
    """Networks of a set, and outputs of each: one network for all channels, or one per channel."""

    networks: int
    outputs: int

    @classmethod
    def of(cls, channels: int, shared: bool) -> _Sizes:
        if shared:
            return cls(1, channels)
        return cls(channels, 1)


def _linear_bank(
    sets: int,
    channels: int,
    hidden: int,
    shared: bool,
    activation: str,
) -> Bank:
    """Draw a bank as torch draws linear layers 1 → hidden → outputs by default."""
    networks, outputs = _Sizes.of(channels, shared)

    def uniform(bound: float, *shape: int) -> Tensor:
        memory = torch.empty(sets, networks, *shape)
        return memory.uniform_(-bound, bound)

    # The bound is one over the root of a layer's inputs: 1 of the first, ``hidden`` of the second.
    bound = hidden**-0.5
    return Bank(
        weight=uniform(1.0, hidden),
        bias=uniform(1.0, hidden),
        readout=uniform(bound, outputs, hidden),
        shift=uniform(bound, outputs),
    )


def _knot_bank(
    sets: int,
    channels: int,
    hidden: int,
    shared: bool,
    activation: str,
) -> Bank:
    """Draw knots from N(0, 1), slopes ±1, and readouts such that ψ has mean 0 and variance 1
    there: no channel is dead.
    """
    networks, outputs = _Sizes.of(channels, shared)
    coins = torch.randint(0, 2, (sets, networks, hidden))
    weight = coins * 2.0 - 1.0
    knots = torch.randn(sets, networks, hidden)
    bank = Bank(
        weight=weight,
        bias=-weight * knots,
        readout=torch.randn(sets, networks, outputs, hidden),
        shift=torch.zeros(sets, networks, outputs),
    )

    # Mean and deviation of every channel over the quantiles.
    scalars = normal_grid().expand(1, sets, -1)
    values = scalar_bank_naive(scalars, bank, activation=activation, nonneg=False)
    values = values.view(sets, networks, outputs, -1)
    std, mean = torch.std_mean(values, -1)
    readout = bank.readout / std[..., None]
    shift = -mean / std
    return bank._replace(readout=readout, shift=shift)


def _exponential_bank(
    sets: int,
    channels: int,
    hidden: int,
    shared: bool,
    activation: str,
) -> Bank:
    """Return chords of :math:`e^{\\pm u/j}` between equidistant knots on [-6, 6], constant on the
    lower side, a line on the other.
    """
    if activation != "relu":
        raise OptionError(
            f'init="exponential" draws with ReLU units, got activation={activation!r}; use '
            'init="knots"'
        )
    if hidden < 2:
        raise OptionError(f'init="exponential" needs at least 2 hidden units, got {hidden}')

    # Channels 2j and 2j + 1 have the rates 1 / (j + 1) and -1 / (j + 1).
    channel = torch.arange(channels)
    signs = 1.0 - 2.0 * (channel % 2)
    rates = 1.0 / (1 + channel // 2)
    knots = torch.linspace(
        -REACH,
        REACH,
        hidden,
        device=rates.device,
    )

    # A network per channel takes its channel's sign into the hidden units, so that it rises to the
    # right; a shared one has one set of knots for all signs.
    if shared:
        rates = rates * signs
    exponents = rates[:, None] * knots
    drawn = exponents.exp()

    # A unit begins at each knot and adds the change of slope there; none begins at the last knot.
    slopes = drawn.diff(dim=-1) / knots.diff()
    nothing = torch.zeros(channels, 1)
    first_slope = slopes[:, :1]
    changes = slopes.diff(dim=-1)
    readout = torch.cat([first_slope, changes, nothing], -1)
    if shared:
        of_one_set = Bank(
            weight=torch.ones(1, hidden),
            bias=-knots[None],
            readout=readout[None],
            shift=drawn[None, :, 0],
        )
    else:
        of_one_set = Bank(
            weight=signs[:, None].expand(-1, hidden),
            bias=-knots.expand(channels, -1),
            readout=readout[:, None],
            shift=drawn[:, :1],
        )
    # Every set of networks has its own copy, which training changes.
    parts = []
    for part in of_one_set:
        of_sets = part.expand(sets, *part.shape)
        parts.append(of_sets.clone())
    return Bank(*parts)


def gaussian(sets: int, directions: int, width: int) -> Tensor:
    std = width**-0.5
    return torch.randn(sets, directions, width) * std


def orthonormal(sets: int, directions: int, width: int) -> Tensor:
    """Return the identity, or rows that are orthonormal within blocks of ``width``."""
    if directions == width:
        identity = torch.eye(width)
        return identity.repeat(sets, 1, 1)
    draws = [orthogonal_draws(directions, width) for _ in range(sets)]
    rows = torch.stack(draws)
    lengths = rows.norm(dim=-1, keepdim=True)
    return rows / lengths


INITS = {
    "knots": _knot_bank,
    "linear": _linear_bank,
    "exponential": _exponential_bank,
}


def chosen_options(name: str, **given: Any) -> dict[str, Any]:
    """Return a preset's options, with those that are given in their place.

    Raises:
        OptionError: a name that does not exist.
    """
    if name not in PRESETS:
        raise OptionError(f"unknown preset {name!r}{suggest(name, PRESETS)}")
    chosen = dict(PRESETS[name])
    for key, value in given.items():
        if value is not None:
            chosen[key] = value
    if chosen["envelope"] == "none":
        chosen["envelope"] = None

    allowed = {
        "envelope": ENVELOPES,
        "cap": CAPS,
        "init": tuple(INITS),
    }
    for key, known in allowed.items():
        value = chosen.get(key)
        if value not in known:
            names = [str(each) for each in known]
            raise OptionError(f"unknown {key} {value!r}{suggest(str(value), names)}")
    return chosen
