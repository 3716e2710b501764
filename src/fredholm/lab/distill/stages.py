"""First and last stage of a conversion: attention distillation, and the task.

``matching.py`` has the stages between them.
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
    """Apply a model to a batch; a mapping has its arguments by name."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(inputs)


def outputs_of(model: nn.Module, inputs: Any) -> Tensor:
    """Return a model's logits, whatever its library puts them into.

    Raises:
        ConversionError: a model without the head of a task.
    """
    out = call(model, inputs)
    result = getattr(out, "logits", out)
    if isinstance(result, tuple):
        result = result[0]
    if isinstance(result, Tensor):
        return result

    gives = type(out).__name__
    if isinstance(out, Mapping):
        gives = ", ".join(out)
    kind = type(model).__name__
    stem = kind.removesuffix("Model")
    raise ConversionError(
        f"{kind}: expected logits, got {gives}; load the model with the head of a task, for "
        f"example {stem}ForSequenceClassification, fine-tuned on the task"
    )


def check_batch(inputs: Any) -> None:
    """Refuse a batch with a sample that is nothing but padding: attention to no key is undefined.

    Raises:
        DataError: naming the samples.
    """
    if not isinstance(inputs, Mapping):
        return
    mask = inputs.get("attention_mask")
    if mask is None:
        return
    real = mask.bool().any(-1)
    empty = (~real).nonzero().flatten().tolist()
    if empty:
        raise DataError(
            f"attention_mask: expected a token or more in each sample, got only padding in samples "
            f"{empty[:8]} of the batch; remove them from the data"
        )


class Stage(Learner):
    """One stage of a conversion: its loss, and the parameters that it trains.

    A further stage is a subclass with a :meth:`loss`, and a :meth:`trained` if it does not train
    all parameters; the others are frozen while it runs. :func:`fredholm.lab.distill.fit.run_stage`
    does everything else. A stage that validates sets ``metrics``, as :class:`FineTuning` does.
    Checkpoints contain the state of every submodule: keep a frozen teacher out of them by a tuple,
    ``self.teacher = (teacher,)``.

    Args:
        replaced: the model and its new parts.
        loader: makes the training loader of a process.
        options: :class:`fredholm.lab.distill.fit.StageOptions`.
        seed: of the steps' random numbers.
    """

    scores = ("val_loss", "val_metric")

    def __init__(
        self,
        replaced: Replaced,
        loader: Loader,
        options: Any,
        seed: int,
    ):
        schedule = Schedule(warmup=options.warmup)
        descent = Descent(options.lr, options.weight_decay, schedule=schedule)
        super().__init__(replaced.model, loader, descent, seed)
        self.replaced = replaced
        self.options = options

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        check_batch(batch[0])
        return super().training_step(batch, batch_idx)

    def window_of_step(self) -> AbstractContextManager[None]:
        """Return a context with the window of a step: usually the converted layers' own.

        With ``vary_window`` it is a random narrower one, in every second step on average.
        """
        window = self.replaced.window
        if not self.options.vary_window or window is None:
            return nullcontext()
        if torch.rand(()) < 0.5:
            return nullcontext()
        return self.replaced.narrowed(int(torch.randint(1, window + 1, ())))


class Distillation(Stage):
    """Attention distillation: train only the new maps, to give the teacher's attention.

    Every layer reads what the teacher's layer reads. The model needs no head.
    """

    def trained(self) -> list[nn.Parameter]:
        return list(self.replaced.new_parameters().values())

    def on_train_start(self) -> None:
        # The teacher's dropout would be noise in the target.
        self.model.eval()
        for part in self.replaced.parts.values():
            part.train()
        self.replaced.switch("distil")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        # Before the first step, one pass with the teacher's attention sets the gain of each layer
        # with a window: beyond it, the maps then have about softmax's weight. A resumed stage has
        # the gain in its checkpoint. With accumulated gradients, later batches are at step 0 as
        # well.
        if self.global_step == 0 and batch_idx == 0:
            self._calibrate(batch[0])

    @torch.no_grad()
    def _calibrate(self, inputs: Any) -> None:
        """Set the gains by a batch: their mean over the processes, each with its part of it."""
        check_batch(inputs)
        self.replaced.switch("calibrate")
        call(self.model, inputs)
        self.replaced.switch("distil")

        # Each process has set them by its part of the batch, and training never compares them.
        if self.trainer.world_size > 1:
            for gain in self.replaced.gains():
                mean = self.trainer.strategy.reduce(gain.clone(), reduce_op="mean")
                gain.copy_(mean)

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        with self.window_of_step():
            call(self.model, inputs)
        losses = self.replaced.losses()
        for name, value in losses.items():
            if not torch.isfinite(value):
                raise TrainingFailed(
                    f"distillation loss of layer {name}: expected a finite number, got "
                    f"{float(value.detach())} at step {self.global_step}; {self.cure()}, or choose "
                    "a map that cannot overflow"
                )
        return torch.stack(list(losses.values())).mean()

    def on_train_end(self) -> None:
        self.replaced.switch("linear")


class FineTuning(Stage):
    """Fine-tuning: train the whole model on the task, with validation after each epoch."""

    def __init__(
        self,
        replaced: Replaced,
        loader: Loader,
        options: Any,
        seed: int,
        task: Task,
    ):
        super().__init__(replaced, loader, options, seed)
        self.task = task
        self.score_units = task.score_units
        self.tally = Tally(task)

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
        found = self.tally.metrics()
        self.tally = Tally(self.task)
        name, _ = self.task.metric
        self.metrics = {
            "val_metric": found[name],
            "val_loss": found["val_loss"],
        }
        self.log_dict(self.metrics, prog_bar=True, logger=False)
