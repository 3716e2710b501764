r"""Theorem 5 measured: on translation-invariant data the kernel's gradient outside the
translation-invariant kernels averages to zero.

A ring of n points carries pairs (u, y) of a process that knows its place: noise under a window,
answered by a smoothing whose gain depends on the place. *Fixed* data are these pairs; *shifted*
data are the same pairs turned together by a random angle, fresh at every step, and *all shifts*
puts every turn of a pair into the batch: the average over the group, exactly. Only the last two are
translation-invariant distributions. A kernel matrix splits into the mean along its wrapped
diagonals, :math:`K_{TI}`, and the rest,
:math:`K_\perp`.
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
STARTS = ("zero", "random")  # translation-invariant, or anywhere


class TableKernel(MatrixKernel):
    """A free number for every pair of points of a ring: K_ij = table_ij."""

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
    """n points of the unit circle in the plane: a rotation is a cyclic shift."""
    angle = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    return Domain.points(torch.stack([angle.cos(), angle.sin()], -1))


def split(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(K_TI, K_⊥) of (n, n): the mean along each wrapped diagonal, and what is left.

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
    """|K_⊥| / |K_TI|, Frobenius."""
    ti, rest = split(matrix)
    return float(rest.norm() / ti.norm().clamp(min=1e-300))


def pairs(number: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(u, y) of the process that knows its place, (number, n, 1) each."""
    x = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    noise = torch.randn(number, n, generator=generator, dtype=torch.float64)
    u = (0.6 + 0.4 * torch.cos(x)) * noise
    smoothed = u + 0.6 * u.roll(1, 1) + 0.3 * u.roll(2, 1) + 0.6 * u.roll(-1, 1)
    return u[..., None], ((1 + 0.7 * torch.sin(x)) * smoothed)[..., None]


def batch(data: str, number: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One fresh batch of a kind of data; ``orbit`` has all n shifts of number / n pairs (at least
    one).
    """
    if data == "orbit":
        u, y = pairs(max(1, number // n), n, generator)
        return tuple(torch.cat([t.roll(s, 1) for s in range(n)]) for t in (u, y))  # type: ignore[return-value]
    u, y = pairs(number, n, generator)
    if data == "shifted":
        turn = torch.randint(n, (number, 1), generator=generator)
        index = (torch.arange(n) - turn) % n
        u, y = (t[..., 0].gather(1, index)[..., None] for t in (u, y))
    return u, y


def make_kernel(kind: str, start: str, n: int, seed: int) -> Kernel:
    """A free table, or a network of the two absolute positions on the circle, which nothing ties to
    displacements.
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
    """K (n, n) of a scalar operator whose kernel does not read u: one matrix for every signal."""
    probe = torch.zeros(1, domain.size, 1, dtype=torch.float64)
    return operator.kernel_matrix(probe, domain)[0, 0, :, :, 0, 0]


def respond(matrix: Tensor, u: Tensor, domain: Domain) -> Tensor:
    """What the operator answers to u (B, n, 1), by its definition: Σ_j w_ij K_ij u_j."""
    return (matrix * domain.quadrature().weights()[0, 0]) @ u


def train(
    kind: str, start: str, data: str, *, n: int, steps: int, every: int, seed: int, size: int = 64
) -> dict[str, list[float]]:
    """Plain gradient descent on the mean square error; |K_⊥|/|K_TI| and the loss at every
    ``every``-th step.
    """
    generator = torch.Generator().manual_seed(seed)
    domain, kernel = ring(n), make_kernel(kind, start, n, seed)
    operator = IntegralOperator(1, kernel=kernel, residual=False, projection=False).double()
    learning = torch.optim.SGD(kernel.parameters(), lr=4.0 * n if kind == "table" else 0.3)
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
    """|G_⊥|/|G_TI| of the loss's gradient in the kernel at K = 0, averaged over ``number`` samples."""
    generator = torch.Generator().manual_seed(seed)
    kernel = TableKernel(n, 0.0, generator)
    operator = IntegralOperator(1, kernel=kernel, residual=False, projection=False).double()
    u, y = batch(data, number, n, generator)
    domain = ring(n)
    (respond(kernel_of(operator, domain), u, domain) - y).pow(2).mean().backward()
    assert kernel.table.grad is not None
    return ratio(kernel.table.grad)


def measure(*, tiny: bool = False) -> dict[str, Any]:
    """The gradient against the number of samples, and the kernel during training, over seeds."""
    n, seeds, steps, every = (8, 2, 40, 20) if tiny else (32, 3, 1000, 25)
    counts = [64, 256, 1024] if tiny else [32, 128, 512, 2048, 8192, 32768]
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
                training[f"{kind} {start} {data}"] = {
                    part: [mean_sd(values) for values in zip(*(run[part] for run in runs))]
                    for part in ("ratio", "loss")
                }
    return {"gradient": gradient, "training": training}


def table(found: dict[str, Any]) -> str:
    """Shares outside the translation-invariant kernels, with standard deviations over seeds, for
    the page.
    """
    gradient, training = found["gradient"], found["training"]
    middle = len(training["steps"]) // 5
    few, many = gradient["samples"][0], gradient["samples"][-1]
    steps = [training["steps"][i] for i in (0, middle, -1)]
    head = [f"gradient, {few} samples", f"{many} samples", *(f"step {s}" for s in steps)]
    rows = []

    def cell(point: dict[str, float]) -> str:
        return "0" if point["mean"] < 1e-12 else f"{point['mean']:.2g} ± {point['sd']:.1g}"

    for kind, title in (("table", "free table"), ("network", "network")):
        for start in STARTS:
            for data, label in DATA.items():
                ends = (
                    [gradient[data]["ratio"][i] for i in (0, -1)]
                    if (kind, start) == ("table", "zero")
                    else []
                )
                run = training[f"{kind} {start} {data}"]["ratio"]
                cells = [cell(p) for p in ends] or ["", ""]
                cells += [cell(run[i]) for i in (0, middle, -1)]
                where = "from K = const" if start == "zero" else "from anywhere"
                rows.append([f"{title}, {where}: {label}", *cells])
    return as_table(["outside / inside", *head], rows) + "\n\n0: below 1e-12."


def draw(theme: Any, found: dict[str, Any]) -> Any:
    """The gradient at a translation-invariant kernel, then the kernel while it learns: a free
    table, and a network.
    """
    from fredholm.lab.report.style import WIDTH, new_figure

    figure = new_figure(WIDTH, 3.5)
    panels = figure.subplots(1, 3)
    gradient, training = found["gradient"], found["training"]
    for colour, (data, label) in zip(theme.series, DATA.items()):
        shown = gradient[data]["ratio"]
        if data != "orbit":  # rounding alone: far below the axis
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
                if max(p["mean"] for p in points) < 1e-10:
                    continue  # rounding
                text = label if start == "zero" or (kind, data) == ("table", "orbit") else ""
                band(axes, x, points, colour, text, linestyle=line)
        axes.set_xlabel("step (dashed: random start)")
        axes.set_title(title)
    for axes in panels:
        logarithmic(axes)
    return figure
