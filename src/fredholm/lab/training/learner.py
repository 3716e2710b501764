"""What :func:`fredholm.lab.training.fit.fit` trains: a model, the parameters that learn, their
optimiser, and a loss. Its training step is readable on one screen.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...errors import CheckpointError, OptionError
from .failures import TrainingFailed
from .schedules import Schedule
from .sharding import is_sharded, shard

# Makes the training loader of one process, from its rank and the number of processes.
Loader = Callable[[int, int], Any]


def step_seed(*key: int) -> int:
    """A seed for one step, a function of its key alone.

    Every random number of a training step (dropout, mixing, sampled keys) follows from (seed,
    epoch, batch, process), so a resumed run needs no generator's state to continue exactly.

    Example:
        >>> step_seed(0, 1, 2) == step_seed(0, 1, 2) != step_seed(0, 2, 1)
        True
    """
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}


@dataclass(frozen=True)
class Descent:
    """AdamW, or Adam with L2 decay, and a schedule of its learning rate.

    Attributes:
        lr: at the peak.
        weight_decay: of parameters whose group names no other. AdamW shrinks the weights by it;
            Adam adds it, times the weights, to the gradient.
        betas, eps: of both.
        name: of :data:`OPTIMIZERS`.
        schedule: warm-up, and what follows it.
    """

    lr: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    name: str = "adamw"
    schedule: Schedule = field(default_factory=Schedule)

    def optimizer(self, parameters: list[Any], fused: bool = True) -> torch.optim.Optimizer:
        """The optimiser of ``parameters``, or of groups of them; ``fused``, in one pass where they
        allow it.
        """
        return OPTIMIZERS[self.name](
            parameters,
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=(fused and _fuses(parameters)) or None,  # None: torch chooses
        )

    def optimizers(self, parameters: list[Any], steps: int, epoch: int, fused: bool = True) -> Any:
        """The optimiser and its schedule over ``steps``, of which ``epoch`` are an epoch, as
        Lightning takes them.
        """
        optimizer = self.optimizer(parameters, fused)
        return [optimizer], self.schedule.schedulers(optimizer, steps, epoch)


def _fuses(parameters: list[Any]) -> bool:
    """Whether all parameters can take their step in one pass: whole floating-point tensors on a
    processor, where a pass an operation takes three times as long.
    """
    groups = (g["params"] if isinstance(g, dict) else [g] for g in parameters)
    return all(
        p.device.type == "cpu" and p.is_floating_point() and type(p.data) is Tensor
        for group in groups
        for p in group
    )


class Learner(pl.LightningModule):
    """A model that learns from (inputs, labels) batches.

    A subclass says what is minimised, :meth:`loss`, and may say which parameters learn,
    :meth:`trained`, and what else is added, :meth:`penalty`. One that validates sets ``metrics`` at
    the end of each validation; the names in ``scores`` become columns of the table of epochs.

    Resuming is exact, because all that a step depends on is a function of its place or is in the
    checkpoint: random numbers follow from (seed, epoch, batch, process), the loader takes up its
    place again, and parameters come in the order of :meth:`trained`, by which an optimiser knows
    them. Every submodule's weights are in the checkpoint too: a teacher that does not learn is
    kept out of it by a place that is no submodule, such as a tuple.

    Args:
        model: what learns, and what is kept in the end.
        loader: makes the resumable training loader of a process from its rank and the number of
            processes; see :func:`fredholm.data.make_loader`.
        descent: the optimiser and its schedule.
        seed: of the steps' random numbers.
    """

    scores: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: nn.Module, loader: Loader, descent: Descent, seed: int):
        super().__init__()
        self.model: Any = model
        self.loader, self.descent, self.seed = loader, descent, seed
        self.last_step: int | None = None  # of a fit that ends by steps
        self.sums = [0.0, 0.0]  # of the epoch so far, over all processes: loss * n, n
        self.metrics: dict[str, float] = {}
        self.loader_state: dict[str, Any] | None = None

    # --- what a subclass says ---------------------------------------------------------------------

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        """The mean loss of a batch."""
        raise NotImplementedError

    def weight(self, labels: Tensor) -> float:
        """How many losses :meth:`loss` is the mean of, so that the parts of a batch that several
        processes have are weighted as one process would.
        """
        return len(labels)

    def penalty(self) -> Tensor | None:
        """What is minimised beside the loss and not reported with it."""
        return None

    def trained(self) -> list[Any]:
        """The parameters that learn, or the optimiser's groups of them; the order is part of a
        checkpoint.
        """
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def finish(self) -> None:
        """After the last step and before the last weights are kept, also where a resumed fit had
        none left.
        """

    def cure(self) -> str:
        """What to do about a loss that is not finite."""
        return f"lower the learning rate ({self.descent.lr:g})"

    # --- a step -----------------------------------------------------------------------------------

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        seed = step_seed(self.seed, self.current_epoch, batch_idx, self.global_rank)
        # torch.manual_seed asks every kind of accelerator, which takes a step of a small model long
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, labels = batch
        loss = self.loss(inputs, labels)
        mean, count, share = self._whole(loss, labels)
        if not math.isfinite(mean):  # of the whole batch, so that all processes stop
            raise TrainingFailed(
                f"loss: {mean} at step {self.global_step} (epoch {self.current_epoch + 1}, "
                f"batch {batch_idx + 1}); {self.cure()}"
            )
        for place, value in enumerate((mean * count, count)):
            self.sums[place] += value
        trainer: Any = self.trainer
        if (self.global_step + 1) % trainer.log_every_n_steps == 0:  # Lightning writes it then
            self.log("train_loss_step", mean, logger=True)
        extra = self.penalty()
        loss = loss if extra is None else loss + extra
        share *= self._short(batch_idx)
        return loss if share == 1 else share * loss

    def _short(self, batch_idx: int) -> float:
        """What the batches of an epoch's last step count for more where they are fewer than those
        of others: Lightning divides each by as many as a whole step has.
        """
        whole, batches = self.trainer.accumulate_grad_batches, self.trainer.num_training_batches
        mine = min(whole, batches - batch_idx + batch_idx % whole)
        return whole / mine

    def _whole(self, loss: Tensor, labels: Tensor) -> tuple[float, float, float]:
        """Of the batch that all processes have a part of: its mean loss, of how many that is the
        mean, and the weight of this part in the mean over processes, which the gradient is.
        """
        world, mine = self.trainer.world_size, self.weight(labels)
        if world == 1:
            return float(loss.detach()), mine, 1.0
        part = float(loss.detach()) * mine if mine else 0.0  # the mean of nothing is no number
        total, whole = self.reduced([part, mine])
        of = whole or 1.0  # of nothing there is no mean
        return total / of, whole, mine * world / of

    def on_train_epoch_start(self) -> None:
        self.sums = [0.0, 0.0]

    def on_train_epoch_end(self) -> None:
        loss = self.train_loss()
        self.log("train_loss", loss, logger=True, sync_dist=False)
        # Before the checkpoint of the epoch is written; Lightning would do it after.
        for config in self.trainer.lr_scheduler_configs:
            if config.reduce_on_plateau:
                known = {"train_loss": loss, **self.metrics}
                plateau: Any = config.scheduler
                plateau.step(_metric(known, str(config.monitor)))

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        if not isinstance(scheduler, ReduceLROnPlateau):  # see on_train_epoch_end
            super().lr_scheduler_step(scheduler, metric)

    def train_loss(self) -> float:
        """Mean training loss of the epoch so far, over all processes."""
        total, count = self.sums
        return total / max(count, 1.0)

    def reduced(self, sums: list[float]) -> list[float]:
        """Sums over all processes."""
        values = torch.tensor(sums, dtype=torch.float64, device=self.device)
        return self.trainer.strategy.reduce(values, reduce_op="sum").tolist()

    def configure_model(self) -> None:
        if self.device_mesh is not None and not is_sharded(self.model):
            shard(self.model, self.device_mesh["data_parallel"])

    # --- what is resumed --------------------------------------------------------------------------

    def train_dataloader(self):
        loader = self.loader(self.trainer.global_rank, self.trainer.world_size)
        if self.loader_state is not None:
            loader.load_state_dict(self.loader_state)
        return loader

    def configure_optimizers(self):
        self.trainer.fit_loop.setup_data()  # without a limit of epochs the trainer has not yet
        limits = (self.trainer.estimated_stepping_batches, self.last_step or math.inf)
        steps = int(min(limits))
        batches = self.trainer.num_training_batches
        epoch = math.ceil(batches / self.trainer.accumulate_grad_batches)
        # Lightning does not clip the gradients of a fused step under mixed precision
        fused = not isinstance(self.trainer.precision_plugin, MixedPrecision)
        return self.descent.optimizers(self.trained(), steps, epoch, fused)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["sums"] = list(self.sums)
        loader: Any = self.trainer.train_dataloader
        checkpoint["loader"] = loader.state_dict()
        # Lightning restores its own copy in the middle of an epoch only; ours serves at every
        # place.
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_moments(checkpoint.get("optimizer_states", []), self.trained())
        self.sums = list(checkpoint["sums"])
        self.loader_state = checkpoint["loader"]
        loader: Any = self.trainer.train_dataloader
        if loader is not None:  # of sharded weights the state is read after the loader was made
            loader.load_state_dict(self.loader_state)


def check_moments(states: list[dict[str, Any]], groups: list[Any]) -> None:
    """CheckpointError where an optimizer's moments are not of the parameters that they would be
    given to: torch goes by their order alone.
    """
    each = (group["params"] if isinstance(group, dict) else [group] for group in groups)
    shapes = dict(enumerate(tuple(parameter.shape) for group in each for parameter in group))
    for state in states:
        for place, found in state["state"].items():
            if place in shapes and "exp_avg" in found:  # of sharded weights places are names
                shape = tuple(found["exp_avg"].shape)
                if shape != shapes[place]:
                    raise CheckpointError(
                        f"the optimizer's moment {place} has shape {shape} and its parameter "
                        f"{shapes[place]}: the checkpoint is of a version of fredholm that ordered "
                        "parameters otherwise; train anew in another folder"
                    )


def _metric(known: dict[str, float], name: str) -> float:
    if name not in known:
        raise OptionError(f"schedule.metric: received {name!r}; needs one of {', '.join(known)}")
    return known[name]
