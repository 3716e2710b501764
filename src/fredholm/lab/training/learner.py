"""The Lightning module that :func:`fredholm.lab.training.fit.fit` trains.

A :class:`Learner` holds a model, names the parameters that learn, makes their optimizer and defines
the loss. Its :meth:`~Learner.training_step` fits on one screen.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...errors import CheckpointError, OptionError
from .failures import TrainingFailed
from .schedules import Schedule
from .sharding import is_sharded, shard

# Make the training loader of one process from its rank and the number of processes.
Loader = Callable[[int, int], Any]

# Parameters, or the groups of them that torch's optimizers accept.
Parameters = list[Any]


def step_seed(*key: int) -> int:
    """Return the seed of one training step, a function of ``key`` alone.

    Every random number of a step (dropout, mixing, sampled keys) follows from the key (seed, epoch,
    batch, rank). A resumed run therefore continues exactly, without any saved generator state.

    Example:
        >>> step_seed(0, 1, 2) == step_seed(0, 1, 2) != step_seed(0, 2, 1)
        True
    """
    sequence = np.random.SeedSequence(key)
    (state,) = sequence.generate_state(1, np.uint64)

    # torch's seeds have 63 bits.
    return int(state >> 1)


OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
}


class OptimizersAndSchedulers(NamedTuple):
    """The pair that Lightning expects from ``configure_optimizers``."""

    optimizers: list[torch.optim.Optimizer]
    schedulers: list[dict[str, Any]]


@dataclass(frozen=True)
class Descent:
    """AdamW, or Adam with L2 decay, and the schedule of its learning rate.

    Attributes:
        lr: peak learning rate.
        weight_decay: decay of parameters whose group names no other. AdamW shrinks the weights by
            it; Adam adds it, times the weights, to the gradient.
        betas: decay rates of both moments.
        eps: added to the denominator of a step.
        name: a key of :data:`OPTIMIZERS`.
        schedule: the warm-up and the course after it.
    """

    lr: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    name: str = "adamw"
    schedule: Schedule = field(default_factory=Schedule)

    def optimizer(self, parameters: Parameters, fused: bool = True) -> torch.optim.Optimizer:
        """Make the optimizer of ``parameters``; ``fused`` allows torch's single-pass step."""
        # Passing None leaves the choice to torch; False would rule out its other fast path.
        single_pass = None
        if fused and _can_fuse(parameters):
            single_pass = True

        return OPTIMIZERS[self.name](
            parameters,
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=single_pass,
        )

    def optimizers(
        self,
        parameters: Parameters,
        steps: int,
        steps_per_epoch: int,
        fused: bool = True,
    ) -> OptimizersAndSchedulers:
        """Make the optimizer and its schedule over ``steps`` optimizer steps."""
        optimizer = self.optimizer(parameters, fused)
        schedulers = self.schedule.schedulers(optimizer, steps, steps_per_epoch)
        return OptimizersAndSchedulers([optimizer], schedulers)


def _each_parameter(parameters: Parameters) -> Iterator[Tensor]:
    """Walk over parameters in the optimizer's order, whether they are grouped or not."""
    for entry in parameters:
        if isinstance(entry, dict):
            yield from entry["params"]
        else:
            yield entry


def _can_fuse(parameters: Parameters) -> bool:
    """Tell whether every parameter is a plain floating-point tensor on the CPU.

    On a CPU one fused pass takes a third of the time of one pass per operation. Sharded parameters
    (DTensor, a subclass) have no fused step.
    """
    return all(
        parameter.device.type == "cpu"
        and parameter.is_floating_point()
        and type(parameter.data) is Tensor
        for parameter in _each_parameter(parameters)
    )


class GlobalLoss(NamedTuple):
    """The loss of a global batch, which all processes share.

    Attributes:
        mean: mean over the global batch, the same number in every process.
        count: number of losses in that mean.
        gradient_scale: factor for this process's own mean loss before its backward pass.
    """

    mean: float
    count: float
    gradient_scale: float


class Learner(pl.LightningModule):
    """A model that learns from (inputs, labels) batches.

    A subclass defines :meth:`loss`, and may choose which parameters learn (:meth:`trained`) and add
    a :meth:`penalty`. A subclass that validates sets ``metrics`` at the end of each validation; the
    names in ``scores`` become columns of the table of epochs.

    Resuming is exact. Everything that a step depends on is either in the checkpoint or a function
    of (seed, epoch, batch, rank): random numbers follow from these four, the loader continues at
    its saved position, and an optimizer identifies parameters by the order of :meth:`trained`.

    The checkpoint holds the weights of every submodule. To keep a frozen teacher out of it, store
    the teacher inside a tuple, which torch does not register as a submodule.

    Args:
        model: the model that learns, and whose weights are kept.
        loader: makes the resumable training loader of a process from its rank and the number of
            processes; see :func:`fredholm.data.make_loader`.
        descent: the optimizer and its schedule.
        seed: seed of the random numbers of all steps.
    """

    scores: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        model: nn.Module,
        loader: Loader,
        descent: Descent,
        seed: int,
    ):
        super().__init__()
        self.model: Any = model
        self.loader = loader
        self.descent = descent
        self.seed = seed

        # The step at which the fit ends; None when epochs alone limit it.
        self.last_step: int | None = None

        # (shift, scale) of the scores that a validation gives in the units of the files; None if it
        # gives none.
        self.score_units: tuple[float, float] | None = None

        # Further callbacks of the fit.
        self.callbacks: list[Callback] = []

        # Sum and number of the losses of this epoch so far, over all processes.
        self.epoch_loss_sum = 0.0
        self.epoch_loss_count = 0.0

        self.metrics: dict[str, float] = {}
        self.loader_state: dict[str, Any] | None = None

    # --- what a subclass defines ------------------------------------------------------------------

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        raise NotImplementedError

    def weight(self, labels: Tensor) -> float:
        """Return the number of losses that :meth:`loss` averages.

        Processes may hold parts of different sizes of a global batch. This number weights the parts
        so that their sum equals the loss of a single process with the whole batch.
        """
        return len(labels)

    def penalty(self) -> Tensor | None:
        """Return a term to minimise beside the loss; it is not reported as part of the loss."""
        return None

    def trained(self) -> Parameters:
        """Return the parameters that learn, or groups of them; checkpoints depend on the order."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def finish(self) -> None:
        """Run after the last step and before the last weights are kept.

        It also runs when a resumed fit had no step left.
        """

    def cure(self) -> str:
        """Return the advice for a loss that is not finite."""
        return f"lower the learning rate ({self.descent.lr:g})"

    # --- a step -----------------------------------------------------------------------------------

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        seed = step_seed(self.seed, self.current_epoch, batch_idx, self.global_rank)

        # torch.manual_seed would query every kind of accelerator, which takes as long as a step of
        # a small model.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)

        np.random.seed(seed % 2**32)
        random.seed(seed)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, labels = batch
        loss = self.loss(inputs, labels)

        # All processes see the same global mean, so that all of them stop at the same step.
        reported = self._global_loss(loss, labels)
        if not math.isfinite(reported.mean):
            raise TrainingFailed(
                f"loss: {reported.mean} at step {self.global_step} (epoch "
                f"{self.current_epoch + 1}, batch {batch_idx + 1}); {self.cure()}"
            )
        self.epoch_loss_sum += reported.mean * reported.count
        self.epoch_loss_count += reported.count

        # Lightning writes its logs at these steps only; logging at others costs time for nothing.
        trainer: Any = self.trainer
        if (self.global_step + 1) % trainer.log_every_n_steps == 0:
            self.log("train_loss_step", reported.mean, logger=True)

        penalty = self.penalty()
        if penalty is not None:
            loss = loss + penalty

        scale = reported.gradient_scale * self._accumulation_scale(batch_idx)
        if scale == 1:
            return loss
        return scale * loss

    def _global_loss(self, loss: Tensor, labels: Tensor) -> GlobalLoss:
        """Return the mean loss of the global batch and the factor for this process's loss.

        DDP averages gradients over processes. Processes may hold different numbers of losses, so
        each scales its loss by (its losses x processes / all losses).
        """
        count = self.weight(labels)
        processes = self.trainer.world_size
        if processes == 1:
            return GlobalLoss(float(loss.detach()), count, 1.0)

        # The mean over an empty part is NaN and must not enter the sum.
        local_sum = 0.0
        if count:
            local_sum = float(loss.detach()) * count

        global_sum, global_count = self.sum_over_ranks([local_sum, count])
        divisor = global_count or 1.0
        return GlobalLoss(
            mean=global_sum / divisor,
            count=global_count,
            gradient_scale=count * processes / divisor,
        )

    def _accumulation_scale(self, batch_idx: int) -> float:
        """Return the factor that corrects the last, shorter step of an epoch.

        Lightning divides every loss by ``accumulate_grad_batches``. The last step of an epoch may
        accumulate fewer batches, and each of them has to count for more.
        """
        batches_per_step = self.trainer.accumulate_grad_batches
        first_batch = batch_idx - batch_idx % batches_per_step
        left_in_epoch = self.trainer.num_training_batches - first_batch
        return batches_per_step / min(batches_per_step, left_in_epoch)

    def on_train_epoch_start(self) -> None:
        self.epoch_loss_sum = 0.0
        self.epoch_loss_count = 0.0

    def on_train_epoch_end(self) -> None:
        loss = self.train_loss()
        self.log("train_loss", loss, logger=True, sync_dist=False)

        # Lightning would step a plateau schedule after it has written the checkpoint of the epoch;
        # a resumed run would then miss this step.
        for config in self.trainer.lr_scheduler_configs:
            if config.reduce_on_plateau:
                metrics = {"train_loss": loss, **self.metrics}
                plateau: Any = config.scheduler
                plateau.step(_find_metric(metrics, str(config.monitor)))

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        # on_train_epoch_end has already stepped a plateau schedule.
        if not isinstance(scheduler, ReduceLROnPlateau):
            super().lr_scheduler_step(scheduler, metric)

    def train_loss(self) -> float:
        """Return the mean training loss of the epoch so far, over all processes."""
        return self.epoch_loss_sum / max(self.epoch_loss_count, 1.0)

    def sum_over_ranks(self, values: list[float]) -> list[float]:
        """Sum each value over all processes, in float64."""
        local = torch.tensor(values, dtype=torch.float64, device=self.device)
        total = self.trainer.strategy.reduce(local, reduce_op="sum")
        return total.tolist()

    def configure_model(self) -> None:
        if self.device_mesh is not None and not is_sharded(self.model):
            shard(self.model, self.device_mesh["data_parallel"])

    # --- what is resumed --------------------------------------------------------------------------

    def train_dataloader(self):
        trainer = self.trainer
        loader = self.loader(trainer.global_rank, trainer.world_size)
        if self.loader_state is not None:
            loader.load_state_dict(self.loader_state)
        return loader

    def configure_optimizers(self):
        # A trainer without a limit of epochs has not loaded the data yet, and could not estimate
        # the number of steps.
        self.trainer.fit_loop.setup_data()
        limit = self.last_step or math.inf
        steps = int(min(self.trainer.estimated_stepping_batches, limit))

        batches = self.trainer.num_training_batches
        steps_per_epoch = math.ceil(batches / self.trainer.accumulate_grad_batches)

        # Under mixed precision Lightning does not clip the gradients of a fused step.
        fused = not isinstance(self.trainer.precision_plugin, MixedPrecision)
        return self.descent.optimizers(self.trained(), steps, steps_per_epoch, fused)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["sums"] = [self.epoch_loss_sum, self.epoch_loss_count]
        loader: Any = self.trainer.train_dataloader
        checkpoint["loader"] = loader.state_dict()

        # Lightning keeps a copy of the loader's state and restores it in the middle of an epoch
        # only. Our entry "loader" serves everywhere, so we drop theirs.
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_moments(checkpoint.get("optimizer_states", []), self.trained())
        self.epoch_loss_sum, self.epoch_loss_count = checkpoint["sums"]
        self.loader_state = checkpoint["loader"]

        # With sharded weights Lightning reads the checkpoint after it has made the loader.
        loader: Any = self.trainer.train_dataloader
        if loader is not None:
            loader.load_state_dict(self.loader_state)


def check_moments(states: list[dict[str, Any]], parameters: Parameters) -> None:
    """Compare the shapes of an optimizer's moments with those of its parameters.

    torch matches both by their order alone. Moments of another order would be applied silently to
    the wrong parameters wherever shapes happen to broadcast.

    Raises:
        CheckpointError: a moment has another shape than its parameter.
    """
    shapes = {}
    for number, parameter in enumerate(_each_parameter(parameters)):
        shapes[number] = tuple(parameter.shape)

    for state in states:
        for number, moments in state["state"].items():
            # The states of sharded weights have names as keys, which cannot be out of order.
            if number not in shapes or "exp_avg" not in moments:
                continue
            shape = tuple(moments["exp_avg"].shape)
            if shape != shapes[number]:
                raise CheckpointError(
                    f"optimizer: expected moment {number} of shape {shapes[number]}, got {shape}; "
                    "another version of fredholm, which ordered parameters differently, wrote the "
                    "checkpoint: train again in another folder"
                )


def _find_metric(metrics: dict[str, float], name: str) -> float:
    if name not in metrics:
        known = ", ".join(metrics)
        raise OptionError(f"schedule.metric: expected one of {known}, got {name!r}")
    return metrics[name]
