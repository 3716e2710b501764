"""Learning-rate schedules: a linear warm-up, and then one of several courses.

All but ``plateau`` are functions of the step and use torch's ``LambdaLR``. Its closed form gives a
resumed run exactly the same rates, whereas torch's chained schedulers accumulate rounding errors.
``plateau`` is torch's ``ReduceLROnPlateau``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LinearLR, ReduceLROnPlateau

from .metrics import direction


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up from nearly 0 to the peak, followed by the course ``name``.

    After W steps of warm-up, at step s of S, with p = (s - W) / (S - W) and the floor f, the rate
    is this share of its peak:

    - ``cosine``: f + (1 - f) (1 + cos πp) / 2
    - ``linear``: f + (1 - f) (1 - p)
    - ``inverse_sqrt``: √(W / (s + 1)), as in the first transformer; W = 1 without a warm-up
    - ``step``: ``factor`` to the power of the number of drops so far
    - ``plateau``: multiplied by ``factor`` whenever ``metric`` has not improved for more than
      ``patience`` epochs
    - ``constant``: 1

    None of them goes below f.

    Attributes:
        name: one of the courses above.
        warmup, of: the warm-up takes the share ``warmup / of`` of all steps. Both may count epochs,
            or ``of`` is 1. With ``of=None``, ``warmup`` is a number of epochs.
        warmup_steps: length of the warm-up in steps, instead of ``warmup``.
        floor: lowest learning rate, as a share of the peak.
        factor: factor of each drop of ``step`` and ``plateau``.
        patience: epochs without improvement that ``plateau`` tolerates.
        metric: metric that ``plateau`` watches: one of the validation, or ``train_loss``.
        milestones: epochs at which ``step`` drops.
        every: epochs between two drops of ``step``, instead of ``milestones``.

    Reference: Vaswani et al., Attention Is All You Need, 2017, equation 3 (``inverse_sqrt``).
    """

    name: str = "cosine"
    warmup: float = 0.0
    of: float | None = 1.0
    warmup_steps: int | None = None
    floor: float = 0.0
    factor: float = 0.1
    patience: int = 10
    metric: str = "val_loss"
    milestones: tuple[float, ...] = ()
    every: float | None = None

    def warmup_of(self, steps: int, steps_per_epoch: int) -> int:
        """Return the number of warm-up steps in a run of ``steps``.

        A warm-up that would take the entire run is shortened to half of it.

        Example:
            >>> Schedule(warmup=2.0, of=10).warmup_of(50, 5)
            10
            >>> Schedule(warmup_steps=80).warmup_of(50, 5)
            25
        """
        if self.warmup_steps is None and self.of is not None:
            return round(steps * self.warmup / self.of)

        warmup = self.warmup_steps
        if warmup is None:
            warmup = round(steps_per_epoch * self.warmup)
        if warmup < steps:
            return warmup
        return steps // 2

    def share(
        self,
        step: int,
        warmup: int,
        steps: int,
        steps_per_epoch: int,
    ) -> float:
        """Return the learning rate at ``step`` as a share of its peak.

        The drops of ``plateau``, which depend on a metric, are not part of it.

        Example:
            >>> halved = Schedule("step", factor=0.5, milestones=(1, 2))
            >>> [halved.share(step, 0, 6, 2) for step in range(6)]
            [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
            >>> [round(Schedule("inverse_sqrt").share(s, 2, 9, 3), 3) for s in range(5)]
            [0.5, 1.0, 0.816, 0.707, 0.632]
            >>> [round(Schedule(floor=0.1).share(s, 2, 6, 3), 3) for s in range(7)]
            [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1]
        """
        if step < warmup:
            return (step + 1) / warmup

        course_steps = max(1, steps - warmup)
        progress = min(1.0, (step - warmup) / course_steps)
        if self.name == "cosine":
            half_height = (1 - self.floor) * 0.5
            return self.floor + half_height * (1 + math.cos(math.pi * progress))
        if self.name == "linear":
            height = 1 - self.floor
            return self.floor + height * (1 - progress)

        share = 1.0
        if self.name == "inverse_sqrt":
            share = math.sqrt(max(1, warmup) / (step + 1))
        elif self.name == "step":
            share = self.factor ** self._drops(step, steps_per_epoch)
        return max(self.floor, share)

    def _drops(self, step: int, steps_per_epoch: int) -> int:
        """Count the drops of a ``step`` schedule up to ``step``, the drop at ``step`` included.

        ``every`` and ``milestones`` are in epochs, of which they may be fractions.
        """
        if self.every is not None:
            # Rounding may leave the product just above a whole number of steps, and the quotient
            # just below a whole number of drops. The 1e-9 makes up for it.
            interval = self.every * steps_per_epoch
            return int(step / interval + 1e-9)

        # Each milestone falls on the nearest step.
        drops = [round(epoch * steps_per_epoch) for epoch in self.milestones]
        return sum(step >= drop for drop in drops)

    def schedulers(
        self,
        optimizer: torch.optim.Optimizer,
        steps: int,
        steps_per_epoch: int,
    ) -> list[dict[str, Any]]:
        """Return the schedule over ``steps`` in the form that Lightning expects."""
        warmup = self.warmup_of(steps, steps_per_epoch)
        if self.name != "plateau":

            def share_at(step: int) -> float:
                return self.share(step, warmup, steps, steps_per_epoch)

            course = LambdaLR(optimizer, share_at)
            return [{"scheduler": course, "interval": "step"}]

        lowest = [self.floor * group["lr"] for group in optimizer.param_groups]
        plateau = ReduceLROnPlateau(
            optimizer,
            direction(self.metric),
            self.factor,
            self.patience,
            min_lr=lowest,
        )

        # The Learner itself steps the plateau. "strict" is off because the Learner reports a
        # missing metric with the names of those that exist.
        result: list[dict[str, Any]] = [
            {"scheduler": plateau, "monitor": self.metric, "strict": False}
        ]
        if warmup > 1:
            # LinearLR multiplies the rate and leaves it alone after its last step. LambdaLR would
            # overwrite the drops of the plateau at every step.
            rising = LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1)
            result.append({"scheduler": rising, "interval": "step"})
        return result
