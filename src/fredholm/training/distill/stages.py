"""The two stages of a conversion as Lightning modules: attention distillation, then the task."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn

from ...convert.linearize import Replaced
from ...errors import ConversionError, DataError
from ..failures import TrainingFailed
from ..module import step_seed, warmup_cosine
from ..tasks import Task

Scores = dict[str, float]
Metric = Callable[[Tensor, Tensor], float]


def outputs_of(model: nn.Module, inputs: Any) -> Tensor:
    """A model's logits: called with a batch's arguments where they are a mapping, and taken out of
    the library's outputs.

    Raises:
        ConversionError: a model without the head of a task.
    """
    out = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
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


class Stage(pl.LightningModule):
    """What both stages share: resumable batches, random numbers of each step from (seed, epoch,
    batch), AdamW on a cosine.
    """

    def __init__(
        self, replaced: Replaced, loader: Callable[[int, int], Any], options: Any, seed: int
    ):
        super().__init__()
        self.model: Any = replaced.model
        self.replaced, self.loader, self.options, self.seed = replaced, loader, options, seed
        self.total, self.count = 0.0, 0
        self.metrics: Scores = {}
        self.loader_state: dict[str, Any] | None = None

    def train_dataloader(self):
        loader = self.loader(self.trainer.global_rank, self.trainer.world_size)
        if self.loader_state is not None:
            loader.load_state_dict(self.loader_state)
        return loader

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        seed = step_seed(self.seed, self.current_epoch, batch_idx, self.global_rank)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, labels = batch
        check_batch(inputs)
        loss = self.loss(inputs, labels)
        self.total += float(loss.detach()) * len(labels)
        self.count += len(labels)
        self.log("train_loss_step", loss.detach(), prog_bar=True, logger=False)
        return loss

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        raise NotImplementedError

    def on_train_epoch_start(self) -> None:
        self.total, self.count = 0.0, 0

    def train_loss(self) -> float:
        """Mean training loss of the epoch so far."""
        return self.total / max(self.count, 1)

    def trained(self) -> list[nn.Parameter]:
        raise NotImplementedError

    def configure_optimizers(self):
        options = self.options
        optimizer = torch.optim.AdamW(
            self.trained(), lr=options.lr, weight_decay=options.weight_decay
        )
        total = int(self.trainer.estimated_stepping_batches)
        warmup = round(total * options.warmup)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warmup_cosine(step, warmup, total, 0.0)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["sums"] = [self.total, self.count]
        loader: Any = self.trainer.train_dataloader
        checkpoint["loader"] = loader.state_dict()
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.total, self.count = checkpoint["sums"]
        self.loader_state = checkpoint["loader"]


class Distillation(Stage):
    """Stage 1: only the new maps learn; every layer is given what the teacher gives it, and matches
    the teacher's attention.
    """

    def configure_optimizers(self):
        self.model.requires_grad_(False)
        for parameter in self.trained():
            parameter.requires_grad_(True)
        return super().configure_optimizers()

    def trained(self) -> list[nn.Parameter]:
        return list(self.replaced.new_parameters().values())

    def on_train_start(self) -> None:
        self.model.eval()  # the teacher's own dropout would be noise in the target
        for part in self.replaced.parts.values():
            part.train()
        self.replaced.switch("distil")

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        outputs_of(self.model, inputs)
        losses = self.replaced.losses()
        for name, value in losses.items():
            if not torch.isfinite(value):
                raise TrainingFailed(
                    f"distillation loss of layer {name}: {float(value.detach())} at step "
                    f"{self.global_step}; lower the learning rate "
                    f"({self.options.lr:g}), or choose a map that cannot overflow"
                )
        return torch.stack(list(losses.values())).mean()

    def on_train_end(self) -> None:
        self.replaced.switch("linear")
        self.model.requires_grad_(True)


class FineTuning(Stage):
    """Stage 2: the whole model learns the task; validation after each epoch."""

    def __init__(
        self,
        replaced: Replaced,
        loader: Callable[[int, int], Any],
        options: Any,
        seed: int,
        task: Task,
        metric: Metric,
    ):
        super().__init__(replaced, loader, options, seed)
        self.task, self.metric = task, metric
        self.seen: list[tuple[Tensor, Tensor]] = []

    def trained(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def on_train_start(self) -> None:
        self.model.train()

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        value = self.task.loss(outputs_of(self.model, inputs), labels)
        if not torch.isfinite(value):
            raise TrainingFailed(
                f"loss: {float(value.detach())} at step {self.global_step}; lower the learning "
                f"rate ({self.options.lr:g})"
            )
        return value

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, labels = batch
        check_batch(inputs)
        self.seen.append(
            self.task.pairs(outputs_of(self.model, inputs).float().cpu(), labels.cpu())
        )

    def on_validation_epoch_end(self) -> None:
        outputs, labels = (torch.cat(parts) for parts in zip(*self.seen))
        self.seen = []
        loss = self.task.loss_of_pairs(outputs, labels)
        self.metrics = {"val_metric": self.metric(outputs, labels), "val_loss": float(loss)}
        self.log_dict(self.metrics, prog_bar=True, logger=False)
