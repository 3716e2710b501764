"""Learning rates over a training: a linear warm-up, and then one of several courses.

All but ``plateau`` are functions of the step, so they go through torch's ``LambdaLR``: its closed
form gives a resumed run the very same rates, where torch's chained classes multiply rounding
errors. ``plateau`` is torch's ``ReduceLROnPlateau``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch.optim.lr_scheduler import LambdaLR, LinearLR, ReduceLROnPlateau

from .metrics import direction

NAMES = ("cosine", "linear", "inverse_sqrt", "step", "plateau", "constant")


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up from nearly 0 to the peak, and then ``name``.

    After W steps of warm-up, at step s of S, with p = (s - W) / (S - W) and the floor f, the rate
    is this share of its peak:

    - ``cosine``: f + (1 - f) (1 + cos πp) / 2
    - ``linear``: f + (1 - f) (1 - p)
    - ``inverse_sqrt``: √(W / (s + 1)), as of the first transformer; W = 1 without a warm-up
    - ``step``: ``factor`` to the number of ``milestones`` passed, or of times ``every`` has passed
    - ``plateau``: ``factor`` more whenever ``metric`` is no better for ``patience`` epochs
    - ``constant``: 1

    None of them goes below f.

    Attributes:
        name: one of :data:`NAMES`.
        warmup, of: the warm-up takes ``warmup / of`` of all steps: epochs of epochs, or a share
            of 1. Without ``of`` it is so many epochs.
        warmup_steps: the same in steps, instead.
        floor: the least learning rate, as a share of the peak.
        factor: of ``step`` and ``plateau``.
        patience: of ``plateau``, in epochs.
        metric: of ``plateau``: one of a validation, or ``train_loss``.
        milestones, every: of ``step``, in epochs.

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

    def warmup_of(self, steps: int, epoch: int) -> int:
        """Steps of warm-up in ``steps``, of which ``epoch`` are an epoch; half of them where it
        would leave none.

        Example:
            >>> Schedule(warmup=2.0, of=10).warmup_of(50, 5)
            10
            >>> Schedule(warmup_steps=80).warmup_of(50, 5)
            25
        """
        if self.warmup_steps is None and self.of is not None:
            return round(steps * self.warmup / self.of)
        given = round(epoch * self.warmup) if self.warmup_steps is None else self.warmup_steps
        return given if given < steps else steps // 2

    def share(self, step: int, warmup: int, steps: int, epoch: int) -> float:
        """The learning rate at ``step``, as a share of its peak; of ``plateau``, without plateaus.

        Example:
            >>> halved = Schedule("step", factor=0.5, milestones=(1, 2))
            >>> [halved.share(step, 0, 6, 2) for step in range(6)]
            [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
            >>> [round(Schedule("inverse_sqrt").share(s, 2, 9, 3), 3) for s in range(5)]
            [0.5, 1.0, 0.816, 0.707, 0.632]
        """
        if self.name == "cosine":
            return warmup_cosine(step, warmup, steps, self.floor)
        if step < warmup:
            return (step + 1) / warmup
        if self.name == "linear":
            progress = min(1.0, (step - warmup) / max(1, steps - warmup))
            return self.floor + (1 - self.floor) * (1 - progress)
        if self.name == "inverse_sqrt":
            return max(self.floor, math.sqrt(max(1, warmup) / (step + 1)))
        if self.name == "step":
            return max(self.floor, self.factor ** self._passed(step, epoch))
        return 1.0

    def _passed(self, step: int, epoch: int) -> int:
        """How many times a ``step`` schedule has come down."""
        if self.every is not None:
            return int(step / (self.every * epoch) + 1e-9)
        return sum(step >= round(milestone * epoch) for milestone in self.milestones)

    def schedulers(self, optimizer: Any, steps: int, epoch: int) -> list[dict[str, Any]]:
        """The schedule as Lightning takes it, over ``steps`` of which ``epoch`` are an epoch."""
        warmup = self.warmup_of(steps, epoch)
        if self.name != "plateau":
            course = LambdaLR(optimizer, lambda step: self.share(step, warmup, steps, epoch))
            return [{"scheduler": course, "interval": "step"}]
        least = [self.floor * group["lr"] for group in optimizer.param_groups]
        plateau = ReduceLROnPlateau(
            optimizer, direction(self.metric), self.factor, self.patience, min_lr=least
        )
        # The Learner steps it, by the same metric: where that is missing, it says so.
        monitored = {"scheduler": plateau, "monitor": self.metric, "strict": False}
        result: list[dict[str, Any]] = [monitored]
        if warmup > 1:
            # Unlike LambdaLR it multiplies the rate, and leaves it alone after its last step.
            rising = LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1)
            result.append({"scheduler": rising, "interval": "step"})
        return result


def warmup_cosine(step: int, warmup: int, total: int, floor: float) -> float:
    """Learning rate at ``step`` as a share of the peak: linear over ``warmup`` steps, then a cosine
    down to ``floor``.

    Example:
        >>> [round(warmup_cosine(s, 2, 6, 0.1), 3) for s in range(7)]
        [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1]
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
