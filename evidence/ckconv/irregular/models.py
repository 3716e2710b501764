"""Classifiers of irregular series: times (N, points), and values (N, points, C), NaN where a channel
is not observed.

- ``ckcnn``: the library's, of values (zero where nothing is observed) and a mask per channel. Its
  convolutions sum over the observations, each weighed by the time since the one before, or equally.
- ``gru-d``: Che et al., "Recurrent neural networks for multivariate time series with missing
  values", 2018 (Eqs. 3-5 and 10-17): decays of inputs and states with the time since the last
  observation.
- ``ncde``: Kidger et al., "Neural controlled differential equations for irregular time series",
  2020, by the authors' package torchcde.
- ``tcn``: dilated convolutions of the same values and masks on a grid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fredholm.models import create_model

from ...kit.contest import parameters
from ...performance.peers import peer
from ..series import Dilated
from .tasks import Task

CKCNN, GRU_D, NCDE, TCN = "ckcnn", "gru-d", "ncde", "tcn"
NAMES = (CKCNN, GRU_D, NCDE, TCN)
MINIROCKET = "minirocket"
"""Not a network: see :mod:`.contest`."""
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    CKCNN: {
        "weights of time, smaller ω": {"timed": True, "high": False},
        "weights of time, larger ω": {"timed": True, "high": True},
        "equal weights, smaller ω": {"timed": False, "high": False},
        "equal weights, larger ω": {"timed": False, "high": True},
    },
    GRU_D: {f"dropout {rate}": {"dropout": rate} for rate in (0.0, 0.15, 0.3, 0.5)},
    NCDE: {
        f"{path} path, dropout {rate}": {"cubic": path == "cubic", "dropout": rate}
        for path in ("linear", "cubic")
        for rate in (0.0, 0.3)
    },
    TCN: {
        f"{grid} grid, {levels} levels": {"fine": grid == "finer", "levels": levels}
        for grid in ("coarser", "finer")
        for levels in (5, 7)
    },
}
"""Settings of each model among which validation chooses: names and options."""
PARAMETERS = 20_000


@dataclass(frozen=True)
class Design:
    """A model's name, its setting, its width, and the task whose series it reads.

    The setting is the name of one of :data:`SETTINGS`.
    """

    name: str
    setting: str
    dim: int
    task: Task


class Observations(NamedTuple):
    """The points of a batch with any observation, at the front of each row.

    Attributes:
        times: (B, n); the last time is repeated behind the end.
        values: (B, n, C), NaN where a channel is not observed.
        last: (B,), index of the last point.
    """

    times: Tensor
    values: Tensor
    last: Tensor


def observations(times: Tensor, values: Tensor) -> Observations:
    """Return the points with any observation.

    Example:
        >>> nan = torch.nan
        >>> values = torch.tensor([[[nan], [5.0], [nan], [7.0]]])
        >>> found = observations(torch.arange(4.0)[None], values)
        >>> found.times.tolist(), found.values.flatten().tolist(), found.last.tolist()
        ([[1.0, 3.0]], [5.0, 7.0], [1])
    """
    observed = (~values.isnan()).any(-1)
    counts = observed.sum(1)
    # Observed points come first and keep their order.
    order = torch.argsort((~observed).long(), dim=1, stable=True)[:, : int(counts.max())]
    last = counts - 1
    behind = torch.arange(order.shape[1]) > last[:, None]
    final = order.gather(1, last[:, None])
    order = torch.where(behind, final, order)
    found = values.gather(1, order[..., None].expand(-1, -1, values.shape[2]))
    return Observations(
        times.gather(1, order), found.masked_fill(behind[..., None], torch.nan), last
    )


# --- GRU-D ----------------------------------------------------------------------------------------


class GruD(nn.Module):
    r"""GRU-D: a GRU whose inputs and state decay with the time δ since the last observation.

    .. math::
        \gamma = \exp(-\max(0, W_\gamma \delta + b_\gamma)), \quad
        \hat x = m \odot x + (1 - m) \odot (\gamma_x \odot x' + (1 - \gamma_x) \odot \tilde x)

    m is 1 where a value is observed, x' the value observed last, and x̃ the mean, zero here. The
    state decays by γ_h before each step, and all gates read x̂, the decayed state and m. W_γ of the
    inputs is diagonal.

    Reference: Che et al. 2018, Eqs. 3-5 and 10-17.
    """

    def __init__(self, task: Task, dim: int, *, dropout: float):
        super().__init__()
        channels = task.channels
        self.unit, self.dropout = task.unit, dropout
        # Above zero, where the decay has a gradient.
        self.input_decay = nn.Parameter(torch.full((2, channels), 0.1))
        self.state_decay = nn.Linear(channels, dim)
        self.gates = nn.Linear(2 * channels, 3 * dim)
        self.of_state = nn.Linear(dim, 2 * dim, bias=False)
        self.of_reset = nn.Linear(dim, dim, bias=False)
        self.head = nn.Linear(dim, task.classes)

    def forward(self, times: Tensor, values: Tensor) -> Tensor:
        times, values, last = observations(times, values)
        held = since_last(times / self.unit, values)
        known = (~values.isnan()).to(values.dtype)
        weight, bias = self.input_decay
        decay = torch.exp(-functional.relu(weight * held.since + bias))
        filled = torch.where(known > 0, values.nan_to_num(), decay * held.value)

        # Only the state needs a loop over the observations.
        drop = self.dropout if self.training else 0.0
        inputs = functional.dropout(torch.cat([filled, known], -1), drop, self.training)
        gates = self.gates(inputs)
        decays = torch.exp(-functional.relu(self.state_decay(held.since)))
        state = torch.zeros_like(decays[:, 0])
        states = []
        for gate, fade in zip(gates.unbind(1), decays.unbind(1)):
            state = self._step(gate, fade * state)
            states.append(state)
        final = torch.stack(states, 1)[torch.arange(len(last)), last]
        return self.head(functional.dropout(final, drop, self.training))

    def _step(self, gate: Tensor, state: Tensor) -> Tensor:
        """Return the next state from the inputs' part of all gates and the decayed state."""
        update, reset, candidate = gate.chunk(3, -1)
        of_update, of_reset = self.of_state(state).chunk(2, -1)
        z = torch.sigmoid(update + of_update)
        r = torch.sigmoid(reset + of_reset)
        candidate = torch.tanh(candidate + self.of_reset(r * state))
        return (1 - z) * state + z * candidate


class Held(NamedTuple):
    """What each channel knows from its past: its last value and the time since then, (B, n, C).

    The value is zero, and the time is counted from the start, before the first observation.
    """

    value: Tensor
    since: Tensor


def since_last(times: Tensor, values: Tensor) -> Held:
    """Return the last value before each observation, and the time since it was observed.

    Example:
        >>> times, nan = torch.tensor([[0.0, 2.0, 5.0]]), torch.nan
        >>> found = since_last(times, torch.tensor([[[4.0], [nan], [6.0]]]))
        >>> found.value.flatten().tolist(), found.since.flatten().tolist()
        ([0.0, 4.0, 4.0], [0.0, 2.0, 5.0])
    """
    points = values.shape[1]
    index = torch.arange(points)[None, :, None]
    known = torch.where(values.isnan(), -1, index).cummax(1).values
    before = torch.cat([torch.full_like(known[:, :1], -1), known[:, :-1]], 1)
    place = before.clamp(min=0)
    never = before < 0
    value = values.gather(1, place).masked_fill(never, 0.0)
    first = times[:, :1, None].expand_as(value)
    time = times[..., None].expand_as(value).gather(1, place)
    since = times[..., None] - torch.where(never, first, time)
    return Held(value, since)


# --- neural CDE -----------------------------------------------------------------------------------


class VectorField(nn.Module):
    """f of dz = f(z) dX: a network with one hidden layer, tanh at its end, (B, d) to (B, d, C)."""

    def __init__(self, dim: int, hidden: int, channels: int):
        super().__init__()
        self.dim, self.channels = dim, channels
        self.network = nn.Sequential(
            nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim * channels), nn.Tanh()
        )

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return self.network(z).view(len(z), self.dim, self.channels)


class NeuralCde(nn.Module):
    """A neural CDE of time, values and the number of observations so far, per channel.

    The path runs from observation to observation, in straight lines or in cubic Hermite splines,
    and the solver makes one midpoint step for each of them. The path is a function of the
    observations' index; their times are one of its channels.

    Reference: Kidger et al. 2020; Morrill et al. 2021 (cubic paths).
    """

    def __init__(self, task: Task, dim: int, *, cubic: bool, dropout: float):
        super().__init__()
        self.unit, self.cubic = task.unit, cubic
        controls = 1 + 2 * task.channels
        self.start = nn.Linear(controls, dim)
        self.field = VectorField(dim, 2 * dim, controls)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(dim, task.classes)

    def forward(self, times: Tensor, values: Tensor) -> Tensor:
        torchcde = peer("torchcde")
        assert torchcde is not None
        times, values, last = observations(times, values)
        control = self.control(times, values)
        if self.cubic:
            splines = torchcde.hermite_cubic_coefficients_with_backward_differences(control)
            path = torchcde.CubicSpline(splines)
        else:
            path = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(control))
        start = self.start(control[:, 0])
        states = torchcde.cdeint(
            path,
            self.field,
            start,
            path.grid_points,
            adjoint=False,
            method="midpoint",
            # A step begins behind the corner of a path of straight lines, not before it.
            options={"step_size": 1.0, "perturb": True},
        )
        final = states[torch.arange(len(last)), last]
        return self.head(self.dropout(final))

    def control(self, times: Tensor, values: Tensor) -> Tensor:
        """Return the points of the path, (B, n, 1 + 2C)."""
        known = ~values.isnan()
        counts = known.to(values.dtype).cumsum(1)
        return torch.cat(
            [times[..., None] / self.unit, filled(times, values), counts / self.unit], -1
        )


def filled(times: Tensor, values: Tensor) -> Tensor:
    """Interpolate each channel linearly in time between its observations; zero if it has none.

    Example:
        >>> times, nan = torch.tensor([[0.0, 1.0, 4.0]]), torch.nan
        >>> filled(times, torch.tensor([[[2.0], [nan], [6.0]]])).flatten().tolist()
        [2.0, 3.0, 6.0]
    """
    points = values.shape[1]
    index = torch.arange(points)[None, :, None]
    known = ~values.isnan()
    before = torch.where(known, index, -1).cummax(1).values
    after = torch.where(known, index, points).flip(1).cummin(1).values.flip(1)
    # Beyond the first or last observation the path is constant.
    left = torch.where(before < 0, after, before).clamp(max=points - 1)
    right = torch.where(after >= points, before, after).clamp(min=0)

    at = times[..., None].expand_as(values)
    start, end = at.gather(1, left), at.gather(1, right)
    share = (at - start) / (end - start).clamp(min=1e-12)
    lines = torch.lerp(values.gather(1, left), values.gather(1, right), share.clamp(0, 1))
    return lines.nan_to_num()


# --- convolutions ---------------------------------------------------------------------------------


class Ckcnn(nn.Module):
    """A CKCNN of the observations, which reads the last one's features.

    Its convolutions weigh an observation by the time since the one before, which is right for
    samples of a continuous signal, or all of them equally, which is right for events. On the ticks
    of a clock they are FFTs, elsewhere sums over pairs.
    """

    def __init__(self, task: Task, dim: int, *, timed: bool, high: bool):
        super().__init__()
        self.clock, self.timed = task.clock, timed
        encoder: Any = {"channels": task.channels, "length": task.length, "mask": "channel"}
        if not task.clock:
            encoder["timed"] = True
        omega = task.omegas[high]
        self.model = create_model(
            "ckcnn_small",
            encoder=encoder,
            body={
                "widths": (dim, dim),
                "dropout": task.dropout,
                "input_dropout": task.dropout / 2,
                "operator_options": {"omega": omega},
            },
            head={"outputs": task.classes},
        )

    def forward(self, times: Tensor, values: Tensor) -> Tensor:
        inputs = values
        if not self.clock:
            # Points without an observation are padding, which has no time.
            never = values.isnan().all(-1)
            inputs = torch.cat([times.masked_fill(never, torch.nan)[..., None], values], -1)
        u, domain = self.model.encoder(inputs)
        if not self.timed:
            ones = domain.valid.to(u.dtype)
            domain = domain.replace(measure=ones, kind="counting")
        return self.model.answer(u, domain)


def gridded(times: Tensor, values: Tensor, step: float) -> Tensor:
    """Return values on a grid (B, cells, C): of a cell's observations the last, or NaN.

    Example:
        >>> times, values = torch.tensor([[0.0, 2.1, 2.2]]), torch.tensor([[[5.0], [6.0], [7.0]]])
        >>> gridded(times, values, 1.0).flatten().tolist()
        [5.0, nan, 7.0]
    """
    # Half a step of rounding must not move a tick.
    cell = (times / step + 1e-4).long()
    known = ~values.isnan()
    cells = int(cell[known.any(-1)].max()) + 1
    index = torch.arange(values.shape[1])[None, :, None]
    number = torch.where(known, index, -1)
    place = cell.clamp(max=cells - 1)[..., None].expand_as(values)
    last = torch.full((len(values), cells, values.shape[2]), -1)
    last = last.scatter_reduce(1, place, number, "amax")
    found = values.gather(1, last.clamp(min=0))
    return found.masked_fill(last < 0, torch.nan)


def last_observed(grid: Tensor) -> Tensor:
    """Return the index of the last cell with any value, (N, 1)."""
    cells = torch.arange(grid.shape[1])
    return (cells * (~grid.isnan()).any(-1)).max(1, keepdim=True).values


class Tcn(nn.Module):
    """Dilated convolutions on a grid, of values and masks; the head reads the last observed cell."""

    def __init__(self, task: Task, dim: int, *, fine: bool, levels: int):
        super().__init__()
        self.step = task.grids[fine]
        self.body = Dilated(2 * task.channels, dim, levels, task.dropout)
        self.head = nn.Linear(dim, task.classes)

    def forward(self, times: Tensor, values: Tensor) -> Tensor:
        grid = gridded(times, values, self.step)
        known = ~grid.isnan()
        features = self.body(torch.cat([grid.nan_to_num(), known.to(grid.dtype)], -1))
        last = last_observed(grid)[:, 0]
        return self.head(features[torch.arange(len(last)), last])


# --- all models -----------------------------------------------------------------------------------


def make_model(design: Design) -> nn.Module:
    """Return a model by its design."""
    classes = {CKCNN: Ckcnn, GRU_D: GruD, NCDE: NeuralCde, TCN: Tcn}
    options = SETTINGS[design.name][design.setting]
    return classes[design.name](design.task, design.dim, **options)


@cache
def sized(name: str, setting: str, task: Task) -> Design:
    """Return the design whose number of parameters is nearest to that of the task's CKCNN.

    That of the CKCNN is nearest to ``PARAMETERS``. Its kernels' outputs grow with the square of the
    width, so it has the fewest sizes to choose from.
    """
    target = PARAMETERS
    if name != CKCNN:
        target = parameters(make_model(sized(CKCNN, next(iter(SETTINGS[CKCNN])), task)))
    smaller = Design(name, setting, 4, task)
    while True:
        larger = replace(smaller, dim=smaller.dim + 1)
        size = parameters(make_model(larger))
        if size >= target:
            break
        smaller = larger
    if size - target < target - parameters(make_model(smaller)):
        return larger
    return smaller
