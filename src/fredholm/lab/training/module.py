"""The :class:`.learner.Learner` of a recipe, and the checks of its model before a run begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.func import functional_call

from ...distributed import Shards
from ...kernels import auxiliary_loss
from ...models.decay import dropped_weights
from ...modes import evaluating
from .build import build_mixer
from .evaluation import as_weights, on_device
from .failures import TrainingFailed
from .learner import Descent, Learner, Loader, Parameters, step_seed
from .recipe import Phase, Recipe
from .schedules import Schedule
from .tasks import Pairs, Tally, Task, create_task, joined_pairs, task_of

Mixer = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]


class RecipeLearner(Learner):
    """Training of ``model`` by ``recipe`` on (inputs, labels) batches.

    Args:
        model: the model that learns.
        recipe: optimizer, schedule and the options of a step.
        loader: makes the resumable training loader of one process, see :class:`Learner`.
        mixer: blends the inputs and labels of a batch (mixup, cutmix).
        task: defines the loss and the scores; classification by default.
        mesh: the processes that hold parts of the same samples as this one; None when every process
            holds complete samples.
    """

    scores = ("val_loss", "val_accuracy")

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        loader: Loader,
        mixer: Mixer | None = None,
        task: Task | None = None,
        mesh: DeviceMesh | None = None,
    ):
        super().__init__(model, loader, descent_of(recipe), recipe.seed)
        self.task = task or create_task()
        self.score_units = self.task.score_units
        self.recipe = recipe
        self.mixer = mixer
        self.mesh = mesh

        # The number of processes that share each sample.
        self.parts = 1
        self.task.shards = None
        if mesh is not None:
            self.parts = mesh.size()
            self.task.shards = Shards.over(mesh)

        self.tally = Tally(self.task)

    def forward(self, inputs: Any) -> Tensor:
        if self.mesh is None:
            return self.model(inputs)
        return self.model(inputs, mesh=self.mesh)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.mixer is not None:
            # Processes with parts of the same samples have to blend them alike, so the seed depends
            # on their group and not on their rank.
            group = self.global_rank // self.parts
            seed = step_seed(self.seed, self.current_epoch, batch_idx, group)
            generator = torch.Generator().manual_seed(seed)

            inputs, labels = batch
            batch = self.mixer(inputs, labels, generator)

        # Before the step, which weights the loss by the labels that are left.
        batch = self.cut_to_phase(*batch)
        return super().training_step(batch, batch_idx)

    def cut_to_phase(self, inputs: Any, labels: Tensor) -> tuple[Any, Tensor]:
        """Cut a batch of texts to the length that the phase of this step reads."""
        phases = self.recipe.training.phases
        return in_phase(phases, self.global_step, inputs, labels)

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        options = self.recipe.training

        # With weight dropout the model runs without a random share of its weights.
        if options.weight_dropout:
            weights = dropped_weights(self.model, options.weight_dropout)
            outputs = functional_call(self.model, weights, (inputs,))
        else:
            outputs = self(inputs)
        return self.task.loss(outputs, labels, options.label_smoothing)

    def weight(self, labels: Tensor) -> float:
        # A label per point is divided over the processes with the points. A label per sample is
        # held by all of them, and each counts for its share.
        holders = self.parts
        if self.task.points is not None:
            holders = 1
        return self.task.weight(labels) / holders

    def penalty(self) -> Tensor | None:
        return auxiliary_loss(self.model)

    def trained(self) -> Parameters:
        return self.model.weight_decay_groups(self.recipe.optimizer.weight_decay)

    def cure(self) -> str:
        lr = self.recipe.optimizer.lr
        return f"lower optimizer.lr ({lr:g}) or lengthen schedule.warmup_epochs"

    def validation_step(self, batch, batch_idx: int) -> None:
        inputs, labels = batch
        outputs = self(inputs)

        # The last batch may be shorter than the number of processes. A process without a sample of
        # its own computes one anyway, to take part in the communication, and does not count it.
        loader: Any = self.trainer.val_dataloaders
        if self.trainer.world_size > 1 and not loader.order.share(batch_idx):
            return
        self.tally.add(outputs, labels)

    def on_validation_epoch_end(self) -> None:
        tally = self.tally
        self.tally = Tally(self.task)

        sums = self.sum_over_ranks(tally.sums)
        pairs = self._gather_pairs(tally)
        self.metrics = tally.metrics(sums, pairs)

        loss = self.metrics.get("val_loss", 0.0)
        if not math.isfinite(loss):
            raise TrainingFailed(
                f"val_loss: {loss} after epoch {self.current_epoch + 1}; {self.cure()}"
            )
        self.log_dict(self.metrics, prog_bar=True, logger=True, sync_dist=False)

    def _gather_pairs(self, tally: Tally) -> Pairs | None:
        """Return outputs and labels of all processes, if the metric needs them."""
        if not self.task.keeps or self.trainer.world_size == 1:
            return tally.pairs()

        # Processes with parts of the same sample all hold the one answer of the sample, which must
        # be counted once.
        contribution = tally.pairs()
        if self.mesh is not None and self.task.points is None:
            holds_first_part = self.mesh.get_local_rank() == 0
            if not holds_first_part:
                contribution = None

        parts: list[Pairs | None] = [None] * self.trainer.world_size
        torch.distributed.all_gather_object(parts, contribution)
        return joined_pairs(parts)


def in_phase(
    phases: list[Phase] | None,
    step: int,
    inputs: Any,
    labels: Tensor,
) -> tuple[Any, Tensor]:
    """Cut a batch of texts (B, ..., N) to the length that the phase of ``step`` reads.

    Labels per token are cut with their tokens; labels per text stay as they are.

    Example:
        >>> phases = [Phase(steps=10, max_length=2), Phase(steps=5)]
        >>> texts, labels = torch.ones(1, 4).long(), torch.zeros(1, 4).long()
        >>> [in_phase(phases, step, texts, labels)[1].shape[1] for step in (0, 9, 10)]
        [2, 2, 4]
    """
    phase = _phase_at(phases or [], step)
    if phase is None or phase.max_length is None or not isinstance(inputs, Tensor):
        return inputs, labels

    length = phase.max_length
    label_per_token = labels.dim() > 1 and labels.shape[-1] == inputs.shape[-1]
    if label_per_token:
        labels = labels[..., :length]
    return inputs[..., :length], labels


def _phase_at(phases: list[Phase], step: int) -> Phase | None:
    """Return the phase that ``step`` belongs to; None after the last one."""
    end = 0
    for phase in phases:
        end += phase.steps
        if step < end:
            return phase
    return None


# --- checks before a run begins -------------------------------------------------------------------


@torch.no_grad()
def rehearse(model: Any, batches: Any, mesh: DeviceMesh) -> None:
    """Check that every operator of the model works on distributed points.

    It runs a training step's forward on a few points of the first sample. An operator without an
    exchange between processes is thus refused before there is a run folder.

    Raises:
        OptionError: the encoder reads complete samples only.
        DomainError: an operator needs all points in one process.
    """
    inputs, _ = batches.loader.dataset.batch([0])
    encoder = model.encoder
    axis = encoder.axis
    few_points = min(4 * encoder.grain, inputs.shape[axis])
    inputs = inputs.narrow(axis, 0, few_points)

    model.train()
    model(as_weights(model, inputs), mesh=mesh)


@torch.no_grad()
def judge_few(model: Any, recipe: Recipe, dataset: Any) -> None:
    """Check that the model's outputs suit the task, by the loss of two samples.

    The samples are blended as the recipe blends them. Neither the model nor the random numbers that
    follow are changed.

    Raises:
        ShapeError: the model's head gives answers of another kind.
    """
    count = min(2, len(dataset))
    inputs, labels = dataset.batch(torch.arange(count))
    mixer = build_mixer(recipe, len(dataset.classes))

    device = on_device(model)
    forked_devices = []
    if device.type == "cuda":
        forked_devices.append(device)

    with torch.random.fork_rng(forked_devices):
        if mixer is not None:
            generator = torch.Generator().manual_seed(0)
            inputs, labels = mixer(inputs, labels, generator)
        try:
            with evaluating(model), autocast_of(recipe, device):
                outputs = model(inputs.to(device))
        except Exception:
            # Two samples may have fewer points than the model needs. The first training step names
            # a real failure.
            return

    task = task_of(dataset)
    task.loss(outputs, labels.to(device), recipe.training.label_smoothing)


def autocast_of(recipe: Recipe, device: torch.device) -> torch.autocast:
    """Make the autocast context of a recipe's forward."""
    bfloat16 = recipe.training.precision == "bf16"
    return torch.autocast(device.type, torch.bfloat16, enabled=bfloat16)


# --- optimizer and schedule -----------------------------------------------------------------------


def descent_of(recipe: Recipe) -> Descent:
    """Read a recipe's optimizer and schedule; each parameter group has its own weight decay."""
    options = recipe.optimizer
    first, second = options.betas
    return Descent(
        lr=options.lr,
        weight_decay=options.weight_decay,
        betas=(float(first), float(second)),
        eps=options.eps,
        name=options.name,
        schedule=schedule_of(recipe),
    )


def schedule_of(recipe: Recipe) -> Schedule:
    """Read a recipe's schedule; omitted keys keep the defaults of :class:`Schedule`."""
    options = recipe.schedule

    # A run whose length is given in steps does not know yet how many epochs these are.
    epochs = None
    if recipe.training.steps is None:
        epochs = recipe.training.epochs

    milestones = ()
    if options.milestones is not None:
        milestones = tuple(options.milestones)

    same_name = {"factor", "patience", "metric", "every", "warmup_steps"}
    return Schedule(
        options.name,
        warmup=recipe.warmup_epochs,
        of=epochs,
        floor=options.min_lr_ratio,
        milestones=milestones,
        **options.model_dump(include=same_name, exclude_none=True),
    )
