"""The first and the last stage of a conversion: attention distillation, and the task;
``matching.py`` has those between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ConversionError, DataError
from ...linearization import Replaced
from ..training.failures import TrainingFailed
from ..training.learner import Descent, Learner, Loader
from ..training.schedules import Schedule
from ..training.tasks import Tally, Task


def call(model: nn.Module, inputs: Any) -> Any:
    """What a model makes of a batch, whose arguments may be a mapping."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def outputs_of(model: nn.Module, inputs: Any) -> Tensor:
    """A model's logits, taken out of the library's outputs.

    Raises:
        ConversionError: a model without the head of a task.
    """
    out = call(model, inputs)
    result = out.logits if hasattr(out, "logits") else out[0] if isinstance(out, tuple) else out
    if not isinstance(result, Tensor):
        gives = ", ".join(out) if isinstance(out, Mapping) else type(out).__name__
        kind = type(model).__name__
        stem = kind.removesuffix("Model")
        raise ConversionError(
            f"{kind} gives {gives} and no logits: the head of a task is missing. Load the model "
            f"with one, for example {stem}ForSequenceClassification, fine-tuned on the task"
        )
    return result


def check_batch(inputs: Any) -> None:
    """DataError for a sample that is padding from end to end, which no attention can answer."""
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    if mask is None:
        return
    empty = (~mask.bool().any(-1)).nonzero().flatten().tolist()
    if empty:
        raise DataError(
            f"attention_mask: samples {empty[:8]} of the batch are padding from end to end; remove "
            "them from the data"
        )


class Stage(Learner):
    """One stage of a conversion: what is minimised, and which parameters learn meanwhile.

    A further stage is a subclass with a :meth:`loss`, and a :meth:`trained` where not everything
    learns (the rest is frozen while it runs); :func:`fredholm.lab.distill.fit.run_stage` does
    everything else. One that validates sets ``metrics``, as :class:`FineTuning` does. The state of
    every submodule is in the checkpoints: a frozen teacher's place is a tuple, ``self.teacher =
    (teacher,)``.

    Args:
        replaced: the model and its new parts.
        loader: makes the training loader of a process.
        options: :class:`fredholm.lab.distill.fit.StageOptions`.
        seed: of the steps' random numbers.
    """

    scores = ("val_loss", "val_metric")

    def __init__(self, replaced: Replaced, loader: Loader, options: Any, seed: int):
        descent = Descent(
            options.lr, options.weight_decay, schedule=Schedule(warmup=options.warmup)
        )
        super().__init__(replaced.model, loader, descent, seed)
        self.replaced, self.options = replaced, options

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        check_batch(batch[0])
        return super().training_step(batch, batch_idx)

    def window_of_step(self) -> AbstractContextManager[None]:
        """The window of a step: the converted layers' own, or with ``vary_window`` in every second
        step, on average, a narrower one that is drawn.
        """
        window = self.replaced.window
        if not self.options.vary_window or window is None or bool(torch.rand(()) < 0.5):
            return nullcontext()
        return self.replaced.narrowed(int(torch.randint(1, window + 1, ())))


class Distillation(Stage):
    """Distil: only the new maps learn; every layer is given what the teacher gives it, and matches
    the teacher's attention. The model needs no head.
    """

    def trained(self) -> list[nn.Parameter]:
        return list(self.replaced.new_parameters().values())

    def on_train_start(self) -> None:
        self.model.eval()  # the teacher's own dropout would be noise in the target
        for part in self.replaced.parts.values():
            part.train()
        self.replaced.switch("distil")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        if self.global_step == 0 and batch_idx == 0:
            self.replaced.switch("calibrate")
            with torch.no_grad():
                call(self.model, batch[0])
            self.replaced.switch("distil")

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        with self.window_of_step():
            call(self.model, inputs)
        losses = self.replaced.losses()
        for name, value in losses.items():
            if not torch.isfinite(value):
                raise TrainingFailed(
                    f"distillation loss of layer {name}: {float(value.detach())} at step "
                    f"{self.global_step}; {self.cure()}, or choose a map that cannot overflow"
                )
        return torch.stack(list(losses.values())).mean()

    def on_train_end(self) -> None:
        self.replaced.switch("linear")


class FineTuning(Stage):
    """Tune: the whole model learns the task; validation after each epoch."""

    def __init__(
        self,
        replaced: Replaced,
        loader: Loader,
        options: Any,
        seed: int,
        task: Task,
    ):
        super().__init__(replaced, loader, options, seed)
        self.task, self.tally = task, Tally(task)

    def on_train_start(self) -> None:
        self.model.train()

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        return self.task.loss(outputs_of(self.model, inputs), labels)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, labels = batch
        check_batch(inputs)
        outputs = outputs_of(self.model, inputs).float().cpu()
        self.tally.add(outputs, labels.cpu())

    def on_validation_epoch_end(self) -> None:
        tally, self.tally = self.tally, Tally(self.task)
        found = tally.metrics()
        self.metrics = {"val_metric": found[self.task.metric[0]], "val_loss": found["val_loss"]}
        self.log_dict(self.metrics, prog_bar=True, logger=False)
