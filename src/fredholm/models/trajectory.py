"""Trajectories of trained continuous models: energy and distance from the constraints by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import OptionError
from ..families.continuous.splitting import Monitor, growth
from ..modes import evaluating
from .bodies.continuous import ContinuousBody
from .model import Model

SIZE = 0.01
"""Size of the perturbation, relative to u(0)."""


@torch.no_grad()
def trajectory(
    model: Model,
    inputs: Tensor,
    steps: int | None = None,
    seed: int = 0,
) -> dict[str, list[float]]:
    r"""Return after each step, as means over the inputs: ``time``, ``energy`` ½‖u‖², ``distance``
    to S1, and ``growth`` of a difference.

    The distance is to the features of mean 0 and standard deviation 1, before a hard projection's
    affine map. The growth is
    :math:`\|u^n - v^n\| / \|u^0 - v^0\|`, where v starts a random 1% of u(0) away. If there are
    several stages, it is the last one's. The model is in evaluation mode meanwhile.

    Cost: three forward passes.

    Example:
        >>> from fredholm.models import create_model
        >>> model = create_model("continuous_text_micro", encoder={"vocabulary": 9})
        >>> steps = trajectory(model, torch.tensor([[3, 4, 0]]), steps=2)
        >>> steps["time"], len(steps["energy"])
        ([2.0, 4.0], 2)
    """
    body: Any = model.body
    if not isinstance(body, ContinuousBody):
        raise OptionError(
            f"trajectory: expected a continuous body, got {type(body).__name__}; choose another "
            "model"
        )
    evolution = body.evolution
    with evaluating(model):
        u, domain = model.encoder(inputs)
        u, domain = body.start(u, domain, steps)
        monitor = Monitor(domain)
        evolution(u, domain, steps=steps, observer=monitor)

        # Drawn on the CPU: a seed gives the same noise on every device.
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(u.shape, generator=generator, dtype=u.dtype).to(u.device)
        if domain.valid is not None:
            # Padding must not count in the norms.
            real = domain.valid[..., None]
            u = torch.where(real, u, 0.0)
            noise = torch.where(real, noise, 0.0)
        noise = noise * (SIZE * u.norm() / noise.norm())
        ratios = growth(
            evolution,
            u,
            domain,
            perturbation=noise,
            steps=steps,
        )

    # A scheme may act several times per step; the last row of each step counts.
    last = {row["step"]: row for row in monitor.rows}
    measured = {key: [row[key] for row in last.values()] for key in ("energy", "distance")}
    count = len(ratios)
    return {
        "time": [evolution.horizon * (n + 1) / count for n in range(count)],
        **measured,
        "growth": ratios,
    }
