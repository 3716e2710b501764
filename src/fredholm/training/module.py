"""The training step of a classifier, readable on one screen."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn

from ..integral import auxiliary_loss
from .failures import TrainingFailed
from .recipe import Recipe
from .tasks import Task, create_task

Mixer = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]


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


def step_seed(*key: int) -> int:
    """A seed for one step, a function of its key alone.

    Every random number of a training step (dropout, mixing, sampled keys) follows from (seed,
    epoch, batch, process), so a resumed run needs no generator's state to continue exactly.

    Example:
        >>> step_seed(0, 1, 2) == step_seed(0, 1, 2) != step_seed(0, 2, 1)
        True
    """
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


def make_optimizer(model: Any, recipe: Recipe) -> torch.optim.AdamW:
    """The recipe's optimizer of a model's parameters."""
    options = recipe.optimizer
    first, second = options.betas
    groups = model.weight_decay_groups(options.weight_decay)
    return torch.optim.AdamW(
        groups, lr=options.lr, betas=(float(first), float(second)), eps=options.eps
    )


class Classifier(pl.LightningModule):
    """Training of ``model`` by ``recipe`` on (inputs, labels) batches, for what the ``task`` asks.

    ``loader(rank, world_size)`` makes the resumable training loader of one process; ``mixer``
    blends inputs and labels.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        loader: Callable[[int, int], Any],
        mixer: Mixer | None = None,
        task: Task | None = None,
    ):
        super().__init__()
        self.task = task or create_task()
        self.model = model
        self.recipe = recipe
        self.loader = loader
        self.mixer = mixer
        self.sums = {
            "train": [0.0, 0.0],
            "val": [0.0, 0.0, 0.0],
        }  # loss * n, n; loss * n, correct, n
        self.metrics: dict[str, float] = {}
        self.loader_state: dict[str, Any] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)

    def train_dataloader(self):
        loader = self.loader(self.trainer.global_rank, self.trainer.world_size)
        if self.loader_state is not None:
            loader.load_state_dict(self.loader_state)
        return loader

    def on_after_batch_transfer(self, batch, dataloader_idx: int):
        """Several processes validate each its own rows of the same batch, so that no sample counts
        twice.
        """
        world = self.trainer.world_size
        if world == 1 or self.trainer.training:
            return batch
        return tuple(part[self.trainer.global_rank :: world] for part in batch)

    def on_train_batch_start(self, batch, batch_idx: int) -> None:
        seed = step_seed(self.recipe.seed, self.current_epoch, batch_idx, self.global_rank)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)

    def training_step(self, batch, batch_idx: int) -> Tensor:
        inputs, labels = batch
        if self.mixer is not None:
            inputs, labels = self.mixer(
                inputs, labels, torch.Generator().manual_seed(torch.initial_seed())
            )
        loss = self.task.loss(self.model(inputs), labels, self.recipe.training.label_smoothing)
        if not torch.isfinite(loss):
            raise TrainingFailed(
                f"loss: {loss.item()} at step {self.global_step} (epoch {self.current_epoch + 1}, "
                f"batch {batch_idx + 1}); "
                f"lower optimizer.lr ({self.recipe.optimizer.lr:g}) or lengthen "
                "schedule.warmup_epochs"
            )
        self._add("train", loss.detach() * len(inputs), len(inputs))
        self.log("train_loss_step", loss.detach(), prog_bar=True, logger=True)
        extra = auxiliary_loss(self.model)
        return loss if extra is None else loss + extra

    def validation_step(self, batch, batch_idx: int) -> None:
        inputs, labels = batch
        self._add("val", *self.task.sums(self.model(inputs), labels))

    def _add(self, phase: str, *values) -> None:
        self.sums[phase] = [total + float(value) for total, value in zip(self.sums[phase], values)]

    def on_train_epoch_start(self) -> None:
        self.sums["train"] = [0.0, 0.0]

    def on_train_epoch_end(self) -> None:
        self.log("train_loss", self.train_loss(), logger=True, sync_dist=False)

    def on_validation_epoch_end(self) -> None:
        self.metrics = self.task.metrics(self._reduced("val"))
        self.log_dict(self.metrics, prog_bar=True, logger=True, sync_dist=False)
        self.sums["val"] = [0.0, 0.0, 0.0]

    def train_loss(self) -> float:
        """Mean training loss of the epoch so far, over all processes."""
        total, count = self._reduced("train")
        return total / max(count, 1.0)

    def _reduced(self, phase: str) -> list[float]:
        sums = torch.tensor(self.sums[phase], dtype=torch.float64, device=self.device)
        return self.trainer.strategy.reduce(sums, reduce_op="sum").tolist()

    def configure_optimizers(self):
        schedule, optimizer = self.recipe.schedule, make_optimizer(self.model, self.recipe)
        total = int(self.trainer.estimated_stepping_batches)
        warmup = round(total * self.recipe.warmup_epochs / self.recipe.training.epochs)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warmup_cosine(step, warmup, total, schedule.min_lr_ratio)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        checkpoint["sums"] = list(self.sums["train"])
        loader: Any = self.trainer.train_dataloader
        checkpoint["loader"] = loader.state_dict()
        # Lightning restores its own copy in the middle of an epoch only; ours serves at every
        # place.
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        self.sums["train"] = list(checkpoint["sums"])
        self.loader_state = checkpoint["loader"]
