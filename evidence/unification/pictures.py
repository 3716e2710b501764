"""Pictures of converted layers' kernels, with random weights from a fixed seed.

Rows are queries and columns are keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fredholm import Domain, as_operator
from fredholm.lab.report.style import WIDTH, Theme, colormap, new_figure

from ..kit.page import IMAGES, save_picture
from .state_space import LoopedDiagonal, LoopedSelective, LoopedSystem, mixer

N, DIM = 20, 6


@dataclass(frozen=True)
class Panel:
    """The picture of a kernel.

    Attributes:
        title: above the picture.
        build: makes the layer.
        dim: number of features.
        domain: makes the domain; None for the operator's default.
        size: number of points.
        signed: whether to show the entry of the first channels with its sign, instead of the
            weight of a pair in the first head.
        options: of the conversion.
    """

    title: str
    build: Callable[[], nn.Module]
    dim: int = DIM
    domain: Callable[[], Domain | None] = lambda: None
    size: int = N
    signed: bool = False
    options: dict[str, Any] | None = None


def line(n: int = N, **options: Any) -> Callable[[], Domain]:
    return lambda: Domain.line(n, **options)


def image(h: int, w: int) -> Callable[[], Domain]:
    return lambda: Domain.grid(h, w, measure="counting")


def attention() -> nn.Module:
    """Make attention with scores large enough for visible differences."""
    layer = nn.MultiheadAttention(DIM, 1, batch_first=True)
    nn.init.normal_(layer.in_proj_weight, std=0.9)
    return layer


def recurrent(kind: str, **options: Any) -> Callable[[], nn.Module]:
    """Return a function that makes a recurrence with long memory, by open gates."""

    def build() -> nn.Module:
        layer = getattr(nn, kind)(DIM, 8, **options)
        for name, parameter in layer.named_parameters():
            if name.startswith("bias_ih") and kind in ("LSTM", "GRU"):
                parameter.data[8:16] += 2.0
            if kind == "RNN" and name.startswith("weight_hh"):
                nn.init.orthogonal_(parameter, gain=0.9)
        return layer

    return build


def damped_system() -> nn.Module:
    """Make h' = A h + B u with all poles in the left half-plane, so that its memory fades."""
    layer = LoopedSystem(6, 1, 1, "zoh")
    turn = torch.randn(6, 6)
    layer.a.data = 1.5 * (turn - turn.mT) - 0.5 * torch.eye(6)
    return layer


def slow_diagonal() -> nn.Module:
    """Make S4D with steps long enough to show oscillations on a few points."""
    layer = LoopedDiagonal(1, 8, "zoh")
    nn.init.constant_(layer.kernel.log_step, -1.5)
    return layer


def graph_layer(kind: str) -> nn.Module:
    """Make a layer of torch_geometric with scores large enough for visible differences."""
    import torch_geometric.nn

    layer = getattr(torch_geometric.nn, kind)(DIM, 4)
    for name, parameter in layer.named_parameters():
        parameter.data.mul_(3.0 if name.startswith("att_") else 1.0)
    return layer


def ring(n: int) -> Callable[[], Domain]:
    """Return a function that makes a ring of n nodes with some chords."""
    nodes = torch.arange(n)
    following = (nodes + 1) % n
    chords = torch.tensor([[0, 5, 11], [9, 14, 3]])
    both = [torch.stack([nodes, following]), torch.stack([following, nodes])]
    edges = torch.cat([*both, chords], 1)
    return lambda: Domain.graph(edges, n, measure="counting")


def _conv(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv1d(1, 1, 5, **options)


BAND = (torch.arange(N)[:, None] - torch.arange(N)).abs() <= 3
ALIBI = -0.4 * (torch.arange(N)[:, None] - torch.arange(N)).abs().float()
PANELS: dict[str, list[Panel]] = {
    "convolution": [
        Panel("Conv1d, 5 taps", _conv(padding=2), 1, signed=True),
        Panel("circular", _conv(padding=2, padding_mode="circular"), 1, signed=True),
        Panel("dilation 3", _conv(padding=6, dilation=3), 1, signed=True),
        Panel("stride 2", _conv(padding=2, stride=2), 1, signed=True),
        Panel(
            "transposed, stride 2",
            lambda: nn.ConvTranspose1d(1, 1, 4, stride=2, padding=1),
            1,
            signed=True,
        ),
        Panel(
            "Conv2d 3×3 on 6×6",
            lambda: nn.Conv2d(1, 1, 3, padding=1),
            1,
            image(6, 6),
            size=36,
            signed=True,
        ),
        Panel("AvgPool1d, 4", lambda: nn.AvgPool1d(4), 1, signed=True, options={"dim": 1}),
        Panel("MaxPool1d, 4", lambda: nn.MaxPool1d(4), 1, signed=True, options={"dim": 1}),
    ],
    "attention": [
        Panel("MultiheadAttention", attention),
        Panel("causal", attention, domain=line(causal=True)),
        Panel("window of 7", attention, domain=lambda: Domain.line(N).replace(pairs=BAND)),
        Panel("ALiBi bias", attention, domain=lambda: Domain.line(N).replace(pairs=ALIBI)),
    ],
    "recurrence": [
        Panel("RNN tanh", recurrent("RNN")),
        Panel("LSTM", recurrent("LSTM")),
        Panel("GRU, 2 layers", recurrent("GRU", num_layers=2)),
        Panel("LSTM, two directions", recurrent("LSTM", bidirectional=True)),
    ],
    "state space": [
        Panel("dense system, zero-order hold", damped_system, 1, signed=True),
        Panel("S4D", slow_diagonal, 1, signed=True),
        Panel("selective scan", lambda: LoopedSelective(DIM, 4, "zoh")),
        Panel("Mamba mixer", lambda: mixer(DIM, state_size=4)),
    ],
    "graph": [
        Panel("GATConv, ring with chords", lambda: graph_layer("GATConv"), domain=ring(N)),
        Panel("GCNConv", lambda: graph_layer("GCNConv"), domain=ring(N)),
    ],
}


def kernel_picture(panel: Panel, seed: int = 3) -> Tensor:
    """Return the numbers of a picture, (Nq, Nk)."""
    torch.manual_seed(seed)
    operator = as_operator(panel.build().eval(), **(panel.options or {}))
    u, domain = torch.randn(1, panel.size, panel.dim), panel.domain()
    with torch.no_grad():
        if not panel.signed:
            return operator.influence(u, domain)[0, 0]
        return operator.kernel_matrix(u, domain)[0, 0, :, :, 0, 0]


def draw(theme: Theme, panels: list[Panel]) -> Any:
    """Draw the panels, each with its own scale; signed ones are blue (positive) and orange."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = [theme.content, theme.paper, theme.position]
    signed = LinearSegmentedColormap.from_list("signed", colours)
    columns = min(4, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(WIDTH * columns / 4, 2.45 * rows)
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).ravel(), panels):
        value = kernel_picture(panel).double().numpy()
        limit = float(np.abs(value).max()) or 1.0
        if panel.signed:
            axes.imshow(value, cmap=signed, vmin=-limit, vmax=limit)
        else:
            axes.imshow(value, cmap=colormap(theme), vmin=0, vmax=limit)
        axes.set_title(panel.title)
        axes.set_xlabel("key y", fontsize=8)
        axes.set_ylabel("query x", fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(True)
    return figure


def draw_all(folder: Path = IMAGES) -> list[Path]:
    """Draw ``unification-<family>.png`` for every family with panels."""
    written = []
    for family, panels in PANELS.items():
        path = folder / f"unification-{family.replace(' ', '-')}.png"
        save_picture(lambda theme, panels=panels: draw(theme, panels), path)
        written.append(path)
    return written
