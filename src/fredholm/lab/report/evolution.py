"""The steps of a continuous model as a section of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...models.bodies.continuous import ContinuousBody
from ...models.encoders import Inputs
from ...models.trajectory import trajectory
from .page import Data, Picture, Section, words
from .style import Theme, new_figure, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTITIES = {
    "energy": "energy ½‖u‖²",
    "distance": "distance to mean 0, sd 1",
    "growth": "growth of a difference",
}


def evolution_section(
    model: Any, inputs: Tensor | Inputs, *, seed: int
) -> tuple[Section | None, dict[str, Any]]:
    """Energy, distance to the constraint and growth of a perturbation after each step, at N, 2N and
    4N steps; for other models nothing.
    """
    body = getattr(model, "body", None)
    if not isinstance(body, ContinuousBody) or not isinstance(inputs, Tensor):
        return None, {}
    device = next(model.parameters()).device
    base = body.evolution.steps
    counts = [base, 2 * base, 4 * base] if model.config.body.scheme != "relaxed" else [base]
    result = {n: trajectory(model, inputs.to(device), n, seed) for n in counts}
    text = words("evolution", steps=base, horizon=f"{body.evolution.horizon:g}")
    caption = words("evolution_caption", samples=len(inputs), seed=seed)
    ends = {n: {key: values[-1] for key, values in one.items()} for n, one in result.items()}
    alt = "; ".join(
        f"{n} steps end at energy {e['energy']:.3g}, distance {e['distance']:.3g}, growth "
        f"{e['growth']:.3g}"
        for n, e in ends.items()
    )
    rows = [
        [n, *line]
        for n, one in result.items()
        for line in zip(one["time"], *(one[k] for k in QUANTITIES))
    ]
    data = Data(["steps", "time", *QUANTITIES], rows)
    picture = Picture("steps", alt, caption, render(lambda theme: _steps(theme, result)), data)
    return Section("steps", "Step by step", text, [picture]), {
        str(n): one for n, one in result.items()
    }


def _steps(theme: Theme, found: dict[int, dict[str, list[float]]]) -> Figure:
    """Plot each quantity against time: one panel per quantity, one line per number of steps."""
    rows, columns = theme.side_by_side(len(QUANTITIES))
    figure = new_figure(theme.width, 2.7 * rows)
    for axes, (key, label) in zip(figure.subplots(rows, columns), QUANTITIES.items()):
        for colour, (count, one) in zip(theme.series, found.items()):
            size = 3 if count < 25 else 0
            axes.plot(
                one["time"],
                one[key],
                color=colour,
                marker="o",
                markersize=size,
                label=f"{count} steps",
            )
        axes.set_title(label)
        axes.set_xlabel("time t")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
    figure.axes[0].legend()
    return figure
