"""How LUNA's map begins: presets of its options, and where scalar networks and directions start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import OptionError, suggest
from ...integral.exponential import orthogonal_draws
from ...ops.backend import at_least_single
from ...ops.feature_map import Bank, scalar_bank_naive

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
REACH = 6.0  # how far from 0 an exponential is drawn


def normal_grid(n: int = 256) -> Tensor:
    """Quantiles of N(0, 1), which projections of features of variance 1 follow."""
    dtype = torch.get_default_dtype()
    levels = (torch.arange(n, dtype=at_least_single(dtype)) + 0.5) / n
    return torch.special.ndtri(levels).to(dtype)


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
    values = scalar_bank_naive(
        normal_grid().expand(1, sets, -1), bank, activation=activation, nonneg=False
    )[0]
    std, mean = torch.std_mean(values.view(sets, groups, outputs, -1), -1)
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
    signs = 1.0 - 2.0 * (torch.arange(channels) % 2)
    rates = 1.0 / (1 + torch.arange(channels) // 2)
    knots = torch.linspace(-REACH, REACH, hidden, device=rates.device)
    # A network per channel takes its channel's sign into the hidden units, so that it rises to the
    # right; a shared one has one set of knots for all signs.
    drawn = ((rates * signs if shared else rates)[:, None] * knots).exp()
    slopes = drawn.diff(dim=-1) / knots.diff()
    readout = torch.cat([slopes[:, :1], slopes.diff(dim=-1), torch.zeros(channels, 1)], -1)
    if shared:
        parts = torch.ones(1, hidden), -knots[None], readout[None], drawn[None, :, 0]
    else:
        weight = signs[:, None].expand(-1, hidden)
        parts = weight, -knots.expand(channels, -1), readout[:, None], drawn[:, :1]
    return Bank(*(part.expand(sets, *part.shape).clone() for part in parts))


def gaussian(sets: int, directions: int, width: int) -> Tensor:
    return torch.randn(sets, directions, width) * width**-0.5


def orthonormal(sets: int, directions: int, width: int) -> Tensor:
    """The identity, or rows that are orthonormal within blocks of ``width``."""
    if directions == width:
        return torch.eye(width).repeat(sets, 1, 1)
    rows = torch.stack([orthogonal_draws(directions, width) for _ in range(sets)])
    return rows / rows.norm(dim=-1, keepdim=True)


INITS = {"knots": _knot_bank, "linear": _linear_bank, "exponential": _exponential_bank}


def chosen_options(name: str, **given: Any) -> dict[str, Any]:
    """A preset's options, with those that are given in their place.

    Raises:
        OptionError: a name that does not exist.
    """
    if name not in PRESETS:
        raise OptionError(f"unknown preset {name!r}{suggest(name, PRESETS)}")
    chosen = PRESETS[name] | {key: value for key, value in given.items() if value is not None}
    if chosen["envelope"] == "none":
        chosen["envelope"] = None
    allowed = {"envelope": ENVELOPES, "cap": CAPS, "init": tuple(INITS)}
    for key, known in allowed.items():
        value = chosen.get(key)
        if value not in known:
            raise OptionError(
                f"unknown {key} {value!r}{suggest(str(value), [str(k) for k in known])}"
            )
    return chosen
