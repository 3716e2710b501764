r"""Measurement of Theorem 5: on translation-invariant data, the part of the kernel's gradient
outside the translation-invariant kernels averages to zero.

The data are pairs (u, y) on a ring of n points: u is noise under a window, y a smoothing of it
whose gain depends on the position. *Fixed* data are these pairs; *shifted* data are the same pairs
rotated by a random angle, drawn at every step; *all shifts* has every rotation of a pair in the
batch, which is the exact average over the group. Only the last two distributions are
translation-invariant. A kernel matrix is the sum of its mean along wrapped diagonals,
:math:`K_{TI}`, and the rest, :math:`K_\perp`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fredholm import Domain, IntegralOperator
from fredholm.kernels import Kernel, MatrixKernel, MLPKernel, Problem

from ..kit.page import band, logarithmic
from ..kit.page import table as as_table
from ..kit.statistics import mean_sd, slope

DATA = {"fixed": "fixed places", "shifted": "random shifts", "orbit": "all shifts in each batch"}
STARTS = ("zero", "random")
"""Initial kernels: a translation-invariant one, or a random one."""


class TableKernel(MatrixKernel):
    """A free parameter for every pair of points of a ring, K_ij = table_ij."""

    reads_query = False

    def __init__(self, n: int, scale: float, generator: torch.Generator):
        super().__init__(1, 1)
        self.table = torch.nn.Parameter(
            scale * torch.randn(n, n, generator=generator, dtype=torch.float64)
        )

    def matrix(self, problem: Problem) -> Tensor:
        table = self.table if problem.index is None else self.table[problem.index]
        return table[None, None, :, :, None, None].expand(len(problem.uy), 1, -1, -1, 1, 1)


def ring(n: int) -> Domain:
    """Return n points of the unit circle in the plane, on which a rotation is a cyclic shift."""
    angle = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    return Domain.points(torch.stack([angle.cos(), angle.sin()], -1))


def split(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Split a matrix (n, n) into K_TI, its mean along each wrapped diagonal, and the rest, K_⊥.

    Example:
        >>> ti, rest = split(torch.tensor([[1.0, 2.0], [4.0, 3.0]]))
        >>> ti.tolist(), rest.tolist()
        ([[2.0, 3.0], [3.0, 2.0]], [[-1.0, -1.0], [1.0, 1.0]])
    """
    n = len(matrix)
    i = torch.arange(n, device=matrix.device)
    lag = (i[None] - i[:, None]) % n
    mean = matrix.new_zeros(n).scatter_add_(0, lag.flatten(), matrix.flatten()) / n
    return mean[lag], matrix - mean[lag]


def ratio(matrix: Tensor) -> float:
    """Return |K_⊥| / |K_TI| in the Frobenius norm."""
    ti, rest = split(matrix)
    return float(rest.norm() / ti.norm().clamp(min=1e-300))


def pairs(number: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw pairs (u, y) of the position-dependent process, (number, n, 1) each."""
    x = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    noise = torch.randn(number, n, generator=generator, dtype=torch.float64)
    u = (0.6 + 0.4 * torch.cos(x)) * noise
    smoothed = u + 0.6 * u.roll(1, 1) + 0.3 * u.roll(2, 1) + 0.6 * u.roll(-1, 1)
    return u[..., None], ((1 + 0.7 * torch.sin(x)) * smoothed)[..., None]


def batch(data: str, number: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a batch of a kind of data.

    ``orbit`` has all n shifts of number / n pairs (at least one).
    """
    if data == "orbit":
        u, y = pairs(max(1, number // n), n, generator)
        return _all_shifts(u), _all_shifts(y)
    u, y = pairs(number, n, generator)
    if data == "shifted":
        turn = torch.randint(n, (number, 1), generator=generator)
        index = (torch.arange(n) - turn) % n
        u, y = u[..., 0].gather(1, index)[..., None], y[..., 0].gather(1, index)[..., None]
    return u, y


def _all_shifts(signals: Tensor) -> Tensor:
    return torch.cat([signals.roll(shift, 1) for shift in range(signals.shape[1])])


def make_kernel(kind: str, start: str, n: int, seed: int) -> Kernel:
    """Return a free table, or a network of the two absolute positions on the circle.

    Neither depends by construction on displacements only.
    """
    generator = torch.Generator().manual_seed(100 + seed)
    if kind == "table":
        return TableKernel(n, 0.0 if start == "zero" else 3.0, generator)
    torch.manual_seed(100 + seed)
    kernel = MLPKernel(
        1,
        1,
        position_dim=2,
        width=64,
        groups=("query_position", "key_position"),
        frequencies=16,
        sigma=0.5,
    ).double()
    with torch.no_grad():
        kernel.weight1.normal_(std=0.3)
        kernel.bias1.normal_(std=0.3)
        if start == "zero":
            kernel.weight2.zero_()
            kernel.bias2.fill_(1.0)
        else:
            kernel.weight2.normal_(std=1.0)
    return kernel


def kernel_of(operator: IntegralOperator, domain: Domain) -> Tensor:
    """Return K (n, n) of a scalar operator whose kernel does not read u."""
    probe = torch.zeros(1, domain.size, 1, dtype=torch.float64)
    return operator.kernel_matrix(probe, domain)[0, 0, :, :, 0, 0]


def respond(matrix: Tensor, u: Tensor, domain: Domain) -> Tensor:
    """Return Σ_j w_ij K_ij u_j, the operator's answer to u (B, n, 1) by its definition."""
    return (matrix * domain.quadrature().weights()[0, 0]) @ u


def train(
    kind: str, start: str, data: str, *, n: int, steps: int, every: int, seed: int, size: int = 64
) -> dict[str, list[float]]:
    """Train by gradient descent on the mean square error.

    Returns |K_⊥| / |K_TI| and the loss at every ``every``-th step.
    """
    generator = torch.Generator().manual_seed(seed)
    domain, kernel = ring(n), make_kernel(kind, start, n, seed)
    operator = IntegralOperator(1, kernel=kernel, residual=False, projection=False).double()
    # The gradient of a free table is divided by the number of points.
    rate = 4.0 * n if kind == "table" else 0.3
    learning = torch.optim.SGD(kernel.parameters(), lr=rate)
    found: dict[str, list[float]] = {"ratio": [], "loss": []}
    for step in range(steps + 1):
        u, y = batch(data, size, n, generator)
        matrix = kernel_of(operator, domain)
        loss = (respond(matrix, u, domain) - y).pow(2).mean()
        if step % every == 0:
            found["ratio"].append(ratio(matrix.detach()))
            found["loss"].append(float(loss.detach()))
        learning.zero_grad()
        loss.backward()
        learning.step()
    return found


def gradient_ratio(data: str, number: int, *, n: int, seed: int) -> float:
    """Return |G_⊥| / |G_TI| of the loss's gradient at K = 0, averaged over ``number`` samples."""
    generator = torch.Generator().manual_seed(seed)
    kernel = TableKernel(n, 0.0, generator)
    operator = IntegralOperator(1, kernel=kernel, residual=False, projection=False).double()
    u, y = batch(data, number, n, generator)
    domain = ring(n)
    (respond(kernel_of(operator, domain), u, domain) - y).pow(2).mean().backward()
    assert kernel.table.grad is not None
    return ratio(kernel.table.grad)


def measure(*, tiny: bool = False) -> dict[str, Any]:
    """Measure the gradient against the number of samples, and the kernel during training."""
    n, seeds, steps, every = 32, 3, 1000, 25
    counts = [32, 128, 512, 2048, 8192, 32768]
    if tiny:
        n, seeds, steps, every = 8, 2, 40, 20
        counts = [64, 256, 1024]
    gradient: dict[str, Any] = {"samples": counts, "seeds": 5}
    for data in DATA:
        runs = [[gradient_ratio(data, m, n=n, seed=s) for s in range(5)] for m in counts]
        table = [mean_sd(row) for row in runs]
        gradient[data] = {"ratio": table, "rate": slope(counts, [p["mean"] for p in table])}
    training: dict[str, Any] = {"steps": list(range(0, steps + 1, every)), "n": n, "seeds": seeds}
    for kind in ("table", "network"):
        for start in STARTS:
            for data in DATA:
                runs = [
                    train(kind, start, data, n=n, steps=steps, every=every, seed=s)
                    for s in range(seeds)
                ]
                curves: dict[str, Any] = {}
                for part in ("ratio", "loss"):
                    by_step = zip(*(run[part] for run in runs))
                    curves[part] = [mean_sd(values) for values in by_step]
                training[f"{kind} {start} {data}"] = curves
    return {"gradient": gradient, "training": training}


def table(found: dict[str, Any]) -> str:
    """Return the page's table of |K_⊥| / |K_TI|, mean ± standard deviation over seeds."""
    gradient, training = found["gradient"], found["training"]
    middle = len(training["steps"]) // 5
    few, many = gradient["samples"][0], gradient["samples"][-1]
    steps = [training["steps"][i] for i in (0, middle, -1)]
    head = [f"gradient, {few} samples", f"{many} samples", *(f"step {s}" for s in steps)]
    rows = []

    def cell(point: dict[str, float]) -> str:
        if point["mean"] < 1e-12:
            return "0"
        return f"{point['mean']:.2g} ± {point['sd']:.1g}"

    for kind, title in (("table", "free table"), ("network", "network")):
        for start in STARTS:
            for data, label in DATA.items():
                # The gradient was measured for the free table at K = 0.
                cells = ["", ""]
                if (kind, start) == ("table", "zero"):
                    ratios = gradient[data]["ratio"]
                    cells = [cell(ratios[0]), cell(ratios[-1])]
                run = training[f"{kind} {start} {data}"]["ratio"]
                cells += [cell(run[i]) for i in (0, middle, -1)]
                where = "from K = const" if start == "zero" else "from anywhere"
                rows.append([f"{title}, {where}: {label}", *cells])
    return as_table(["outside / inside", *head], rows) + "\n\n0: below 1e-12."


def draw(theme: Any, found: dict[str, Any]) -> Any:
    """Draw the gradient at K = 0, and the kernel during training: a free table and a network."""
    from fredholm.lab.report.style import WIDTH, new_figure

    figure = new_figure(WIDTH, 3.5)
    panels = figure.subplots(1, 3)
    gradient, training = found["gradient"], found["training"]
    for colour, (data, label) in zip(theme.series, DATA.items()):
        shown = gradient[data]["ratio"]
        # With all shifts only rounding remains, far below the axis.
        if data != "orbit":
            text = f"{label}: slope {gradient[data]['rate']:.2f}"
            band(panels[0], gradient["samples"], shown, colour, text, marker="o", markersize=3)
    panels[0].set_xscale("log", base=2)
    panels[0].set_xlabel("samples m averaged")
    panels[0].set_ylabel("|outside| / |inside| the invariant kernels")
    panels[0].set_title("gradient at K = 0")
    for axes, kind, title in zip(
        panels[1:], ("table", "network"), ("free table", "network of positions")
    ):
        for colour, (data, label) in zip(theme.series, DATA.items()):
            for start, line in zip(STARTS, ("-", "--")):
                x, points = training["steps"][1:], training[f"{kind} {start} {data}"]["ratio"][1:]
                # Smaller values are rounding errors.
                if max(p["mean"] for p in points) < 1e-10:
                    continue
                text = label if start == "zero" or (kind, data) == ("table", "orbit") else ""
                band(axes, x, points, colour, text, linestyle=line)
        axes.set_xlabel("step (dashed: random start)")
        axes.set_title(title)
    for axes in panels:
        logarithmic(axes)
    return figure
